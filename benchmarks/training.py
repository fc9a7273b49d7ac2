"""The cost of training a binary network compared with `torch.optim.Adam(fused=True)`.

One process, all contestants interleaved in every round, medians and ratios of medians:

    python benchmarks/training.py [--out FOLDER] [--only mnist,continual,vgg] [--rounds N] [--seconds S]

Prints tables and writes FOLDER/training.json and FOLDER/training.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import models
from bayesbinn.environment import describe
from textbook import Textbook

SETTINGS: dict[str, dict[str, Any]] = {
    "bayesbinn": {"lr": 1e-4, "temperature": 1e-10},
    "ste": {"lr": 1e-2},
    "bop": {"lr": 1e-5, "threshold": 1e-8},
    "pmf": {"lr": 1e-3, "beta_growth": 1.2},
}


@dataclass(frozen=True)
class Task:
    """A network of the paper with its batch size and the limits for a full step, relative to fused Adam."""

    name: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int
    train_set_size: int
    limits: dict[str, float]
    settings: dict[str, dict[str, Any]]


TASKS = {
    "mnist": Task(
        "MNIST MLP, batch 100",
        models.mnist_mlp,
        (784,),
        100,
        54_000,
        {"bayesbinn": 1.10, "ste": 1.1, "bop": 1.1, "pmf": 1.2, "textbook": float("inf")},
        SETTINGS,
    ),
    "continual": Task(
        "continual MLP, batch 100",
        models.continual_mlp,
        (784,),
        100,
        60_000,
        {"bayesbinn": 1.2},
        {"bayesbinn": {"lr": 1e-3, "temperature": 1e-2}},
    ),
    "vgg": Task("VGG CNN, batch 50", models.vgg, (3, 32, 32), 50, 450_000, {"bayesbinn": 1.03}, SETTINGS),
}


class Contestant:
    """One optimizer with its own network."""

    def __init__(self, task: Task, kind: str) -> None:
        torch.manual_seed(0)
        self.kind = kind
        self.model = task.network()
        self.parameters = list(self.model.parameters())
        if kind == "adam":
            self.optimizer: Any = torch.optim.Adam(self.parameters, lr=1e-4, fused=True)
        elif kind == "textbook":
            self.optimizer = Textbook(self.parameters, 1e-4, task.train_set_size, 1e-10)
        elif kind != "none":
            binary, _ = bb.split_parameters(self.model)
            self.optimizer = bb.get_method(kind).create(
                binary, train_set_size=task.train_set_size, seed=0, **task.settings[kind]
            )

    def step(self, work: Callable[[], None]) -> None:
        """A full training step, or with a different `work` only the optimizer's part."""
        if self.kind == "none":
            self.clear()
            work()
        elif self.kind == "adam":
            self.optimizer.zero_grad()
            work()
            self.optimizer.step()
        elif self.kind == "textbook":
            self.clear()
            self.optimizer.sample()
            work()
            self.optimizer.step()
        else:
            with self.optimizer.sampled_params(train=True):
                work()
            self.optimizer.step()

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def train(self, x: Tensor, y: Tensor) -> float:
        def forward_and_backward() -> None:
            F.cross_entropy(self.model(x), y).backward()

        return timed(lambda: self.step(forward_and_backward))

    def optimize(self, gradients: list[Tensor]) -> float:
        """Only the optimizer: sampling, restoring, checking and updating with existing gradients."""

        def hand_over() -> None:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient

        return timed(lambda: self.step(hand_over))


def timed(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def interleave(
    calls: dict[str, Callable[[], float]], rounds: int, seconds: float, warm_up: int = 3
) -> dict[str, list[float]]:
    """The times of each call, round by round. Every round runs all of them in a different order."""
    order = list(calls)
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for index in range(-warm_up, rounds):
        shuffle(order)
        for name in order:
            value = calls[name]()
            if index >= 0:
                times[name].append(value)
        if index >= 4 and time.perf_counter() - started > seconds:
            break
    return times


def medians_of(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """The median over rounds of one time divided by the other: slow drift, such as in clock speed, cancels out."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def bench_steps(task: Task, rounds: int, seconds: float) -> dict[str, Any]:
    """Full training steps of every contestant."""
    contestants = {kind: Contestant(task, kind) for kind in ("adam", *task.limits)}
    x = torch.randn(task.batch_size, *task.shape)
    y = torch.randint(10, (task.batch_size,))
    times = interleave(
        {kind: (lambda c=c: c.train(x, y)) for kind, c in contestants.items()},  # type: ignore[misc]
        rounds,
        seconds,
    )
    rows = {
        kind: {
            "milliseconds": 1e3 * value,
            "ratio": ratio(times, kind, "adam"),
            "limit": task.limits.get(kind),
            "rounds": len(times[kind]),
        }
        for kind, value in medians_of(times).items()
    }
    for kind, contestant in contestants.items():
        if kind in bb.METHODS and kind != "float":
            assert bb.check_binary(contestant.model), kind
    return rows


def bench_own_part(task: Task, rounds: int, seconds: float) -> dict[str, Any]:
    """The optimizer's own time, compared with the textbook version and with copying the bytes it touches."""
    kinds = ("adam", "bayesbinn", "pmf", "textbook")
    contestants = {kind: Contestant(task, kind) for kind in kinds}
    gradients = [torch.randn_like(p) * 1e-3 for p in contestants["adam"].parameters]
    weights = sum(g.numel() for g in gradients)
    touched = {
        "sample: read λ (no noise turns these weights, so w stays the mode)": 4 * weights,
        "restore the mode: read λ": 4 * weights,
        "finite check: read g": 4 * weights,
        "update: read λ and g, write λ and w": 16 * weights,
    }
    # Two logits, two first and two second moments per weight.
    touched_by_pmf = {
        "soft weights: read ũ, write w": 12 * weights,
        "restore the mode: read ũ, write w": 12 * weights,
        "finite check: read g": 4 * weights,
        "update: read and write ũ and both moments, read g, write w": 56 * weights,
    }

    def copy_of(total: int) -> Callable[[], float]:
        # A copy of B bytes reads B and writes B, so it touches 2·B.
        source, target = torch.ones(total // 8), torch.zeros(total // 8)
        return lambda: timed(lambda: target.copy_(source))

    times = interleave(
        {
            **{kind: (lambda c=c: c.optimize(gradients)) for kind, c in contestants.items()},  # type: ignore[misc]
            "copy": copy_of(sum(touched.values())),
            "copy for pmf": copy_of(sum(touched_by_pmf.values())),
        },
        rounds,
        seconds,
    )
    return {
        "milliseconds": {kind: 1e3 * value for kind, value in medians_of(times).items()},
        "bytes_touched": touched,
        "bytes_touched_by_pmf": touched_by_pmf,
        "pmf_times_copy": ratio(times, "pmf", "copy for pmf"),
        "faster_than_textbook": ratio(times, "textbook", "bayesbinn"),
        "times_copy": ratio(times, "bayesbinn", "copy"),
        "limits": {"faster_than_textbook": 25.0, "times_copy": 2.5},
    }


def bench_memory(names: list[str]) -> dict[str, Any]:
    """Peak memory beyond the network and its gradients, in float32 numbers per weight; one process each."""
    result: dict[str, Any] = {}
    for name in names:
        peaks = {}
        kinds = ("none", "adam", *(k for k in TASKS[name].limits if k != "textbook"))
        for kind in kinds:
            done = subprocess.run(
                [sys.executable, __file__, "--memory", f"{name}:{kind}"], capture_output=True, text=True, check=True
            )
            peaks[kind] = json.loads(done.stdout)
        weights = peaks["none"]["weights"]
        result[name] = {
            kind: {
                "peak_floats_per_weight": (peak["bytes"] - peaks["none"]["bytes"]) / 4 / weights,
                "state_floats_per_weight": peak["state"] / 4 / weights,
            }
            for kind, peak in peaks.items()
        }
    return result


def measure_memory(name: str, kind: str) -> None:
    task = TASKS[name]
    contestant = Contestant(task, kind)
    x, y = torch.randn(task.batch_size, *task.shape), torch.randint(10, (task.batch_size,))
    for _ in range(3):
        contestant.train(x, y)
    state = getattr(getattr(contestant, "optimizer", None), "state", {})
    held = sum(v.numel() * v.element_size() for s in state.values() for v in s.values() if isinstance(v, Tensor))
    # Not getrusage, whose maximum is inherited from the parent process.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"bytes": peak, "state": held, "weights": sum(p.numel() for p in contestant.parameters)}))


def markdown(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        "# Training speed",
        "",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"kernels: {machine['kernels']}. Median times and median ratios over rounds in which all contestants "
        "of a table ran in turn, in one process.",
    ]
    for name, rows in results["steps"].items():
        lines += [
            "",
            f"## Full step: {TASKS[name].name}",
            "",
            "| optimizer | ms | × fused Adam | limit |",
            "|-|-:|-:|-:|",
        ]
        for kind, row in rows.items():
            limit = "" if row["limit"] in (None, float("inf")) else f"{row['limit']:.2f}"
            lines.append(f"| {kind} | {row['milliseconds']:.2f} | {row['ratio']:.3f} | {limit} |")
    if "own_part" in results:
        own = results["own_part"]
        lines += ["", f"## The optimizer's own part: {TASKS['mnist'].name}", "", "| | ms |", "|-|-:|"]
        lines += [f"| {kind} | {value:.2f} |" for kind, value in own["milliseconds"].items()]
        lines += ["", "Bytes that BayesBiNN has to touch, the same number that `copy` moves:", ""]
        lines += [f"- {what}: {size / 1e6:.0f} MB" for what, size in own["bytes_touched"].items()]
        lines += [
            "",
            f"{own['faster_than_textbook']:.1f} × faster than the textbook version (target: 25), "
            f"{own['times_copy']:.2f} × the copy (target: at most 2.5).",
            "",
            "Bytes that PMF has to touch, the same number that `copy for pmf` moves:",
            "",
            *(f"- {what}: {size / 1e6:.0f} MB" for what, size in own["bytes_touched_by_pmf"].items()),
            "",
            f"PMF's own part takes {own['pmf_times_copy']:.2f} × that copy: it is memory-bound, and its limit of "
            "1.2 × fused Adam's step is out of reach with six float32 numbers of state per weight.",
        ]
    if "memory" in results:
        lines += ["", "## Memory beyond network and gradients, in floats per weight", ""]
        lines += ["| network | optimizer | state | peak of the process |", "|-|-|-:|-:|"]
        for name, kinds in results["memory"].items():
            for kind, row in kinds.items():
                lines.append(
                    f"| {name} | {kind} | {row['state_floats_per_weight']:.2f} | {row['peak_floats_per_weight']:.2f} |"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for training.json and training.md")
    parser.add_argument("--only", default="mnist,continual,vgg", help="which networks")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=90, help="time limit per table")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        measure_memory(*arguments.memory.split(":"))
        return
    names = [name for name in arguments.only.split(",") if name]
    results: dict[str, Any] = {"machine": describe(), "steps": {}}
    for name in names:
        rounds = 1000 if name == "continual" else arguments.rounds
        # A CNN step takes seconds and varies by a tenth, so it needs more rounds than fit in the time limit.
        seconds = 3 * arguments.seconds if name == "vgg" else arguments.seconds
        results["steps"][name] = bench_steps(TASKS[name], rounds, seconds)
    if "mnist" in names:
        results["own_part"] = bench_own_part(TASKS["mnist"], arguments.rounds, arguments.seconds)
    results["memory"] = bench_memory([name for name in names if name != "continual"])
    text = markdown(results)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "training.json").write_text(json.dumps(results, indent=2, default=str) + "\n")
        (arguments.out / "training.md").write_text(text)


if __name__ == "__main__":
    main()
