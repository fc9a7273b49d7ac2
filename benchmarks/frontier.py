"""What bytes and microseconds buy on MNIST: accuracy, calibration, and knowing what is not a digit.

    python benchmarks/frontier.py --runs FOLDER [--records FOLDER] [--out FOLDER] [--times]

FOLDER has the runs of the parts `frontier-…` and `posterior` of the evidence queue, checkpoints included. Every network
or ensemble is a cell, packed, measured and written down before the next: a stopped program goes on where it was.
--times measures the times alone again, for when the machine is quiet.

Writes OUT/frontier.json, .md and .png, and OUT/posterior-worth.md (see bayesbinn.paper.frontier).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import metrics
from bayesbinn.environment import describe
from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import frontier, records
from bayesbinn.posterior import LogitScale
from bayesbinn.runs.ship import pack_network, pack_runs, raw_units
from bayesbinn.runs.trained import Trained, load_network
from bayesbinn.runtime import load

Images = NDArray[Any]
Array = NDArray[Any]
Predict = Callable[[Images], Array]

SAMPLES = 10
ENSEMBLES = (2, 5, 10)
MAX_STRANGERS = 2000
"""Of each kind, and of shifted and noisy images."""
BLOCKS = 100
"""Of consecutive test images, whose sums are kept for paired comparisons."""
ROUNDS = 20


@dataclass(frozen=True)
class Cell:
    """A network or an ensemble to measure."""

    kind: str
    """float32, int8, mode, posterior mode, posterior mean, or ensemble of N."""
    width: float
    runs: tuple[Path, ...]
    certainty: float | None = None
    affine: bool = False
    """Whether BatchNorm has a learned gain and shift."""

    @property
    def key(self) -> str:
        certainty = "" if self.certainty is None else f", certainty {self.certainty:g}"
        learned = ", learned BatchNorm" if self.affine else ""
        seeds = "+".join(run.name.rpartition("-s")[2] for run in self.runs)
        return f"{self.kind}{certainty}{learned}, width {self.width:g}, {seeds}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--records", type=Path, help="where commit and hash of the runs are recorded")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--times", action="store_true", help="measure the times of all cells again")
    parser.add_argument("--without-photographs", action="store_true", help="leave CIFAR-10 out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.out / "frontier.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text()) if path.is_file() else {"cells": {}}
    try:
        for cell in cells(arguments.runs):
            known = found["cells"].get(cell.key)
            if known is not None and not arguments.times:
                continue
            print(cell.key, flush=True)
            found["cells"][cell.key] = measured(cell, arguments.records, known, not arguments.without_photographs)
            write(path, found)
    except BayesbinnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    frontier.write(found, arguments.out)
    return 0


def write(path: Path, found: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


# ---- cells -----------------------------------------------------------------------------------------


def cells(runs: Path) -> Iterator[Cell]:
    """What the finished runs in the folder make."""
    by_kind: dict[tuple[str, float, float | None, bool], list[tuple[int, Path]]] = {}
    for folder in sorted(runs.glob("frontier-*")):
        if not (folder / "checkpoint.pt").is_file():
            continue
        experiment = load_experiment(str(folder / "config.toml"))
        if len((folder / "metrics.jsonl").read_text().splitlines()) < experiment.training.epochs:
            continue
        certainty = experiment.method.settings.get("certainty")
        key = (experiment.method.name, experiment.model.width, certainty, experiment.model.affine)
        by_kind.setdefault(key, []).append((experiment.training.seed, folder))
    for (method, width, certainty, affine), seeds in sorted(by_kind.items(), key=str):
        folders = [folder for _, folder in sorted(seeds)]
        if method == "float":
            kinds = ("float32", "int8")
        else:
            kinds = ("mode",) if certainty is None else ("posterior mode", "posterior mean")
        for kind in kinds:
            yield from (Cell(kind, width, (folder,), certainty, affine) for folder in folders)
        if kinds == ("mode",):
            for size in ENSEMBLES:
                for first in range(0, len(folders) - size + 1, size):
                    yield Cell(f"ensemble of {size}", width, tuple(folders[first : first + size]), affine=affine)


def measured(cell: Cell, kept: Path | None, known: dict[str, Any] | None, photographs: bool) -> dict[str, Any]:
    """Everything about a cell; with `known`, its times alone are new."""
    trained = load_network(cell.runs[0])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.safetensors"
        size, predict, times = prepared(cell, trained, file)
        machine = {key: value for key, value in describe().items() if key != "why"}
        if known is not None:
            return {**known, "microseconds": times(), "machine": machine}
        row: dict[str, Any] = {"kind": cell.kind, "width": cell.width, "certainty": cell.certainty}
        row |= {"affine": cell.affine, "bytes": size}
        row |= {"microseconds": times(), "machine": machine, **scores(predict, trained, photographs)}
    origins = [records.provenance(kept / run.name) if kept else None for run in cell.runs]
    row["runs"] = [
        {"run": run.name, **({} if origin is None else {"commit": origin.commit, "sha256": origin.sha256})}
        for run, origin in zip(cell.runs, origins, strict=True)
    ]
    return row


def prepared(cell: Cell, trained: Trained, file: Path) -> tuple[int, Predict, Callable[[], dict[str, float]]]:
    """Bytes, a function from raw images to probabilities, and one that measures microseconds per image."""
    images = trained.load_data().test_inputs.numpy()
    if cell.kind == "int8":
        network, size = quantised(trained)
        return size, network, lambda: {"1": fastest(network, images[:1]), "100": fastest(network, images[:100])}
    if cell.kind.startswith("ensemble"):
        pack_runs(cell.runs, file)
    elif cell.kind.startswith("posterior"):
        pack_posterior(trained, file, SAMPLES if cell.kind.endswith("mean") else 0)
    else:
        pack_network(trained, file)
    model = load(file)

    def predict(x: Images) -> Array:
        return np.concatenate([model.predict_proba(part) for part in np.array_split(x, max(1, len(x) // 500))])

    def times() -> dict[str, float]:
        if cell.kind == "float32":
            network = as_torch(trained, fused(trained))
            return {"1": fastest(network, images[:1]), "100": fastest(network, images[:100])}
        quick, exact = load(file, "int8", threads=1), load(file, threads=1)
        found = {"1": fastest(quick.predict_proba, images[:1]), "100": fastest(quick.predict_proba, images[:100])}
        return found | {"exact, 1": fastest(exact.predict_proba, images[:1])}

    return file.stat().st_size, predict, times


def pack_posterior(trained: Trained, file: Path, samples: int) -> None:
    """The mode or samples of a spread posterior, with BatchNorm statistics and a calibration of their own."""
    posterior, parts = trained.posterior, trained.parts()
    assert posterior is not None and parts.validation is not None
    seed = trained.experiment.training.seed
    x = parts.train.whole()[0][:10_000]
    statistics = bb.recalibrate(trained.model, posterior, x.split(500), samples=samples, seed=seed)
    own = statistics if samples else None
    inputs, targets = parts.validation.whole()
    calibrated = bb.calibrate(
        trained.model, posterior, inputs, targets, samples=samples, seed=seed, statistics=own, batch_size=1000
    )
    units = raw_units(trained.card)
    example = trained.card.example()
    bb.pack(trained.model, file, calibrated, samples, seed, example, statistics=own, normalisation=units)


# ---- float32 and int8 by torch ---------------------------------------------------------------------


def fused(trained: Trained) -> nn.Sequential:
    """The network with every BatchNorm folded into the layer before it, as one would deploy it."""
    layers: list[nn.Module] = []
    assert isinstance(trained.model, nn.Sequential)
    for layer in trained.model.eval():
        if isinstance(layer, nn.BatchNorm1d):
            layers[-1] = torch.nn.utils.fusion.fuse_linear_bn_eval(layers[-1], with_gain(layer))
        elif not isinstance(layer, nn.Dropout):
            layers.append(layer)
    return nn.Sequential(*layers).eval()


def with_gain(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    """The same BatchNorm with a gain of 1 and a shift of 0 if it has none: torch's fusion needs them."""
    own = copy.deepcopy(norm)
    if own.weight is None:
        own.weight, own.bias = nn.Parameter(torch.ones(own.num_features)), nn.Parameter(torch.zeros(own.num_features))
    return own


def quantised(trained: Trained) -> tuple[Predict, int]:
    """torch's dynamic int8 quantisation, and the bytes of its weights and biases with their scales."""
    network = torch.ao.quantization.quantize_dynamic(fused(trained), {nn.Linear}, torch.qint8)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(network.state_dict(), file.name)
        size = Path(file.name).stat().st_size
    return as_torch(trained, network), size


def as_torch(trained: Trained, network: nn.Module) -> Predict:
    """Probabilities of raw images, calibrated as the run is."""
    calibration: LogitScale = trained.find_calibration()[0]
    scale, shift = calibration.of(0)
    normalise, offset = trained.card.normaliser, torch.tensor(shift) if shift else 0.0

    @torch.inference_mode()
    def predict(x: Images) -> Array:
        logits = torch.cat([network(normalise(part)) for part in torch.from_numpy(x).split(500)])
        return F.softmax(scale * (logits + offset), 1).numpy()

    return predict


def fastest(predict: Callable[[Any], Any], x: Images) -> float:
    """Microseconds per image, the fastest of several rounds."""
    predict(x)
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        predict(x)
        best = min(best, time.perf_counter() - started)
    return 1e6 * best / len(x)


# ---- quality ---------------------------------------------------------------------------------------


def scores(predict: Predict, trained: Trained, photographs: bool) -> dict[str, Any]:
    """On test images as they are, shifted and noisy; and by entropy, how well strangers are told from them."""
    dataset = trained.load_data()
    assert dataset.test_targets is not None
    images, targets = as_images(dataset.test_inputs.numpy()), dataset.test_targets.numpy()

    def predicted(x: Images) -> Array:
        return predict(x.reshape(len(x), *dataset.input_shape))

    probabilities = predicted(images)
    found: dict[str, Any] = {"test": quality(probabilities, targets)}
    right = np.clip(probabilities[np.arange(len(targets)), targets], 1e-12, 1)
    found["blocks"] = {
        "nll": [round(float(part.mean()), 6) for part in np.array_split(-np.log(right), BLOCKS)],
        "correct": [int(part.sum()) for part in np.array_split(probabilities.argmax(1) == targets, BLOCKS)],
        "images": [len(part) for part in np.array_split(targets, BLOCKS)],
    }
    for name, changed in (("shifted", shifted(images)), ("noisy", noisy(images))):
        found[name] = quality(predicted(changed), targets[: len(changed)])
    familiar = entropy(probabilities[:MAX_STRANGERS])
    found["auroc"] = {
        name: metrics.ood_auroc(familiar, entropy(predicted(strange)))
        for name, strange in strangers(images, photographs).items()
    }
    return found


def as_images(inputs: Array) -> Images:
    """[images, channels, height, width]; flat inputs are square images."""
    if inputs.ndim == 4:
        return inputs
    side = round(inputs.shape[1] ** 0.5)
    return inputs.reshape(len(inputs), 1, side, side)


def quality(probabilities: Array, targets: Array) -> dict[str, float]:
    return {
        "accuracy": 100 * metrics.accuracy(probabilities, targets),
        "nll": metrics.nll(probabilities, targets),
        "ece": metrics.ece(probabilities, targets),
    }


def entropy(probabilities: Array) -> Array:
    p = np.clip(probabilities.astype(np.float64), 1e-12, 1)
    return -(p * np.log(p)).sum(1)


def shifted(images: Images) -> Images:
    """Every image moved by up to a tenth of its size in each direction."""
    chance = np.random.default_rng(0)
    most = max(1, images.shape[-1] // 10)
    moves = chance.integers(-most, most + 1, (min(len(images), MAX_STRANGERS), 2))
    padded = np.pad(images[: len(moves)], ((0, 0), (0, 0), (most, most), (most, most)))
    high, wide = images.shape[-2:]
    starts = [(most + down, most + right) for down, right in moves]
    return np.stack([x[:, a : a + high, b : b + wide] for x, (a, b) in zip(padded, starts, strict=True)])


def noisy(images: Images) -> Images:
    """Gaussian noise of a standard deviation of 0.3 of the range of the pixels."""
    some = images[:MAX_STRANGERS].astype(np.float64)
    top = float(images.max())
    noise = np.random.default_rng(1).normal(0, 0.3 * top, some.shape)
    return np.clip(some + noise, 0, top).astype(images.dtype)


def strangers(images: Images, photographs: bool) -> dict[str, Images]:
    """What is not a digit: the same pixels in another order, inverted digits, photographs in grey."""
    some, top = images[:MAX_STRANGERS], images.max()
    chance = np.random.default_rng(2)
    scrambled = chance.permuted(some.reshape(len(some), -1), axis=1).reshape(some.shape)
    found = {"scrambled": scrambled, "inverted": (top - some).astype(images.dtype)}
    grey = grey_photographs(images.shape[-1], float(top)) if photographs else None
    return found if grey is None else {**found, "photographs": grey.astype(images.dtype)}


@lru_cache
def grey_photographs(size: int, top: float) -> Array | None:
    """CIFAR-10's test images in grey at another size; None where the data are not there."""
    try:
        photographs = bb.data.load("cifar10").test_inputs[:MAX_STRANGERS].float()
    except BayesbinnError as error:
        print(f"without photographs: {error}", flush=True)
        return None
    grey = photographs.mean(1, keepdim=True) * top / 255
    found: Array = F.interpolate(grey, size=(size, size), mode="area").numpy()
    return found


if __name__ == "__main__":
    sys.exit(main())
