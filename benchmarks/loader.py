"""How fast one core prepares batches: shuffled, cropped, flipped, normalized.

    python benchmarks/loader.py [--out DIR]

CIFAR-10 and MNIST are read from the data folders if available; otherwise random images of the same size are used (the
table says which). The comparison is the usual loader, one image at a time, on the same images with the same draws.
Rates are those of the fastest of several repetitions; the rate by CPU time is what a dedicated core would give when
other programs compete for it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn import data
from bayesbinn.data.augment import PADDING, Draws
from bayesbinn.data.batches import generator_of
from bayesbinn.errors import InvalidFile

TARGET = 50_000
"""Images per second, augmented, in batches of 50."""


@dataclass(frozen=True)
class Row:
    loader: str
    images: str
    batch_size: int
    images_per_second: int
    images_per_cpu_second: int


def load(name: str, shape: tuple[int, ...]) -> data.Dataset:
    """The real data set, or random images of its size."""
    try:
        return data.load(name, download=False)
    except InvalidFile:
        inputs = torch.randint(0, 256, (20_000, *shape), dtype=torch.uint8)
        targets = torch.arange(20_000) % 10
        mean = torch.full((shape[0],), 0.5)
        return data.Dataset(
            name=f"random images like {name}",
            train_inputs=inputs,
            train_targets=targets,
            test_inputs=inputs[:1000],
            test_targets=targets[:1000],
            task="classification",
            mean=mean,
            std=mean / 2,
            classes=tuple("0123456789"),
            augment=name != "mnist",
        )


def one_by_one(dataset: data.Dataset, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Image by image: pad, crop, flip, scale, normalize, stack."""
    generator = generator_of(1, 1)
    order = torch.randperm(len(rows), generator=generator)
    draws = Draws.random(len(rows), generator)
    mean, std = dataset.mean.view(-1, 1, 1), dataset.std.view(-1, 1, 1)
    height, width = dataset.input_shape[1:]
    for first in range(0, len(rows), batch_size):
        images, labels = [], []
        for position in range(first, min(first + batch_size, len(rows))):
            row = int(rows[order[position]])
            top, left = int(draws.top[position]), int(draws.left[position])
            image = F.pad(dataset.train_inputs[row], (PADDING,) * 4)[:, top : top + height, left : left + width]
            if draws.mirror[position]:
                image = image.flip(-1)
            images.append((image / 255 - mean) / std)
            labels.append(dataset.train_targets[row])
        yield torch.stack(images), torch.stack(labels)


def rate(batches: Callable[[], Iterator[tuple[Tensor, Tensor]]], seconds: float) -> tuple[int, int]:
    """Images per second, by wall time and by CPU time, of the fastest repetition within about `seconds`."""
    by_clock, by_cpu = 0.0, 0.0
    until = time.perf_counter() + seconds
    while by_clock == 0 or time.perf_counter() < until:
        count, clock, cpu = 0, time.perf_counter(), time.process_time()
        for x, _ in batches():
            count += len(x)
            if time.perf_counter() - clock > seconds / 4:
                break
        by_clock = max(by_clock, count / (time.perf_counter() - clock))
        by_cpu = max(by_cpu, count / (time.process_time() - cpu))
    return round(by_clock), round(by_cpu)


def measure(seconds: float) -> list[Row]:
    torch.set_num_threads(1)
    cifar, mnist = load("cifar10", (3, 32, 32)), load("mnist", (1, 28, 28))
    photographs, digits = cifar.split(0.1, seed=10), mnist.split(0.1, seed=1)
    assert photographs.train.rows is not None and photographs.test is not None
    rows, test = photographs.train.rows, photographs.test
    cases: list[tuple[str, str, int, Callable[[], Iterator[tuple[Tensor, Tensor]]]]] = [
        (
            "bayesbinn, augmented",
            cifar.name,
            50,
            lambda: iter(photographs.train.batches(50, seed=1, epoch=1, augment=True)),
        ),
        ("one image at a time, augmented", cifar.name, 50, lambda: one_by_one(cifar, rows, 50)),
        ("bayesbinn, test", cifar.name, 1000, lambda: iter(test.batches(1000))),
        ("bayesbinn, training", mnist.name, 100, lambda: iter(digits.train.batches(100, seed=1, epoch=1))),
    ]
    return [Row(loader, images, size, *rate(batches, seconds)) for loader, images, size, batches in cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per row of the table")
    parser.add_argument("--out", type=Path, help="folder for loader.json")
    arguments = parser.parse_args()
    rows = measure(arguments.seconds)
    print(f"{'loader':32} {'images':12} {'batch':>5} {'images/s':>10} {'by CPU time':>12}")
    for row in rows:
        numbers = f"{row.batch_size:5} {row.images_per_second:10,} {row.images_per_cpu_second:12,}"
        print(f"{row.loader:32} {row.images:12} {numbers}")
    report = {
        "torch": torch.__version__,
        "threads": 1,
        "machine": platform.machine(),
        "target": TARGET,
        "reached": rows[0].images_per_second >= TARGET,
        "rows": [asdict(row) for row in rows],
    }
    print(json.dumps(report))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "loader.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
