"""Two data-parallel ranks with one thread each, compared with one process with two threads, on the MNIST MLP.

    python benchmarks/scaling.py [--out FOLDER] [--rounds N] [--steps N] [--width W]

Both contestants train on the same batches of 100 in alternating rounds, so that other programs affect both equally.
Times are medians. The bytes per step are computed, and also measured if /proc reports the traffic of the loopback
device. The numbers for 8 GPUs are arithmetic, not a measurement.

Writes FOLDER/scaling.json and FOLDER/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import models, ranks
from bayesbinn.data.batches import share_of
from bayesbinn.environment import describe
from bayesbinn.train import data_parallel as distributed

BATCH, WARM_UP = 100, 3
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
# For the arithmetic: an 8-GPU server whose GPUs reach half of their float32 peak and communicate over NVLink.
GPUS, GPU_FLOPS, GPU_BANDWIDTH = 8, 9.75e12, 200e9
CNN_BATCH = 50


class Trainer:
    """A network, its optimizer and one rank's share of a batch of random images."""

    def __init__(self, width: float, independent: bool) -> None:
        torch.manual_seed(0)
        model = models.mnist_mlp(width=width)
        settings = {"lr": 1e-4, "temperature": 1e-10, "independent_noise": independent}
        self.optimizer = bb.BayesBiNN(bb.split_parameters(model)[0], train_set_size=54_000, seed=0, **settings)
        self.model = distributed.replicated(model, self.optimizer)
        own = share_of(BATCH, ranks.rank(), ranks.world())
        self.x, self.y = torch.rand(BATCH, 784)[own], torch.randint(10, (BATCH,))[own]

    def step(self) -> float:
        started = time.perf_counter()
        with self.optimizer.sampled_params(train=True):
            F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()
        return time.perf_counter() - started


def sent() -> int:
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0


def _rank(rank: int, folder: str, port: int, rounds: int, steps: int, width: float) -> None:
    """Rank 0 also runs the single process, while rank 1 waits."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()})
    times: dict[str, list[float]] = {"one process": [], "two ranks": [], "two ranks, own noise": []}
    traffic: dict[str, list[int]] = {name: [] for name in times}
    with distributed.session(600):
        torch.set_num_threads(1)
        trainers = {name: Trainer(width, name.endswith("own noise")) for name in list(times)[1:]}
        if rank == 0:
            with ranks.alone():
                trainers["one process"] = Trainer(width, False)
        for number in range(rounds):
            for name in times:
                dist.barrier()  # no other rank computes while the single process is timed
                together = name != "one process"
                if not together and rank:
                    continue
                torch.set_num_threads(1 if together else 2)
                with nullcontext() if together else ranks.alone():
                    for _ in range(WARM_UP if number == 0 else 1):
                        trainers[name].step()
                    before = sent()
                    times[name] += [trainers[name].step() for _ in range(steps)]
                    traffic[name].append((sent() - before) // steps)
        if rank == 0:
            Path(folder, "times.json").write_text(json.dumps({"times": times, "traffic": traffic}))


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def ring_bytes(parameters: int, world: int) -> int:
    """The bytes each rank sends for one ring all-reduce of float32 gradients."""
    return round(4 * parameters * 2 * (world - 1) / world)


def on_paper(name: str, parameters: int, multiply_adds: float, batch: int) -> dict[str, Any]:
    """Estimate a step with `batch` examples on each of 8 GPUs: 6 operations per multiply-add, forward and backward."""
    seconds = 6 * multiply_adds * batch / GPU_FLOPS
    exchange = ring_bytes(parameters, GPUS) / GPU_BANDWIDTH
    return {
        "network": name,
        "parameters": parameters,
        "batch per GPU": batch,
        "sent per GPU and step, bytes": ring_bytes(parameters, GPUS),
        "computing, ms": 1e3 * seconds,
        "exchange, ms": 1e3 * exchange,
        "efficiency without overlap": seconds / (seconds + exchange),
    }


def measure(rounds: int, steps: int, width: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        torch.multiprocessing.spawn(_rank, args=(folder, port, rounds, steps, width), nprocs=2)
        found = json.loads(Path(folder, "times.json").read_text())
    medians = {name: statistics.median(values) for name, values in found["times"].items()}
    count = parameters_of(models.mnist_mlp(width=width))
    vgg = models.vgg()
    sizes = bb.summary(vgg, torch.zeros(2, 3, 32, 32)), bb.summary(models.mnist_mlp(), torch.zeros(2, 784))
    return {
        "network": f"MNIST MLP of width {width:g}, {count:,} weights, batch {BATCH}",
        "rounds": rounds,
        "steps per round": steps,
        "step, ms": {name: 1e3 * value for name, value in medians.items()},
        "speed of two ranks beside one process of two threads": {
            name: medians["one process"] / value for name, value in medians.items() if name != "one process"
        },
        "sent per rank and step, bytes": {
            "computed": ring_bytes(count, 2),
            **{
                f"measured, {name}": statistics.median(values) / 2
                for name, values in found["traffic"].items()
                if name != "one process" and LOOPBACK.exists()
            },
        },
        "on paper, 8 GPUs": [
            on_paper("MNIST MLP", parameters_of(models.mnist_mlp()), sizes[1].total.macs or 0, BATCH),
            on_paper("VGG CNN", parameters_of(vgg), sizes[0].total.macs or 0, CNN_BATCH),
        ],
        "assumed of a GPU": {"operations per second": GPU_FLOPS, "bytes per second to the others": GPU_BANDWIDTH},
        "environment": describe(),
    }


def as_markdown(report: dict[str, Any]) -> str:
    lines = ["# Data-parallel training", "", f"{report['network']}; medians of interleaved steps.", ""]
    lines += ["| | step, ms | speed |", "| --- | ---: | ---: |"]
    speed = report["speed of two ranks beside one process of two threads"]
    for name, value in report["step, ms"].items():
        lines.append(f"| {name} | {value:.1f} | {speed.get(name, 1.0):.2f} |")
    lines += ["", "| sent per rank and step | MB |", "| --- | ---: |"]
    lines += [f"| {name} | {value / 1e6:.1f} |" for name, value in report["sent per rank and step, bytes"].items()]
    assumed = report["assumed of a GPU"]
    lines += [
        "",
        f"On paper, 8 GPUs with {assumed['operations per second'] / 1e12:g} TFLOP/s and "
        f"{assumed['bytes per second to the others'] / 1e9:g} GB/s each, exchange after computing:",
        "",
        "| network | batch per GPU | sent per step, MB | computing, ms | exchange, ms | efficiency |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in report["on paper, 8 GPUs"]:
        lines.append(
            f"| {row['network']} | {row['batch per GPU']} | {row['sent per GPU and step, bytes'] / 1e6:.0f} | "
            f"{row['computing, ms']:.2f} | {row['exchange, ms']:.2f} | {row['efficiency without overlap']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="steps per contestant in each round")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="folder for scaling.json and scaling.md")
    arguments = parser.parse_args()
    report = measure(arguments.rounds, arguments.steps, arguments.width)
    text = as_markdown(report)
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "scaling.json").write_text(json.dumps(report, indent=2) + "\n")
        (arguments.out / "scaling.md").write_text(text)


if __name__ == "__main__":
    main()
