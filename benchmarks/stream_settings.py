"""Choose settings for the stream of 100 tasks on its first 10, without test data or later tasks.

    python benchmarks/stream_settings.py --out results/continual

Trains every cell of the grids below on 10 permuted tasks with a seed that no result uses, with a tenth of the training
digits held out, and ranks them by accuracy on the held-out digits of the last five tasks, after the tenth. Finished
cells are kept in settings.json, so an interrupted search can resume.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.continual import Learner, Plan
from bayesbinn.files import write_whole
from bayesbinn.methods import get_method
from bayesbinn.paper.drawing import machine, markdown_table
from bayesbinn.train.schedules import Constant, Cosine

SEED, TASKS, HELD_OUT, SAMPLES = 100, 10, 0.1, 10

# M is at most about four tasks: the harm of a longer memory shows only after more than these ten tasks.
MEMORY: list[dict[str, Any]] = [
    {"memory": memory, "lr": lr, "temperature": 1.0, "initial_strength": strength, "remember": False}
    for memory, lr, strength in (
        *((memory, lr, 1.5) for memory in (2.5e5, 4e5) for lr in (2e-3, 3.3e-3, 5e-3)),
        (4e5, 3.3e-3, 1.0),
    )
]
PLAIN: list[dict[str, Any]] = [
    {"lr": lr, "temperature": 0.3, "initial_strength": 0.1, "schedule": "cosine"} for lr in (1e-4, 3e-4, 1e-3, 3e-3)
] + [
    {"lr": 1e-3, "temperature": 1.0, "initial_strength": 0.1, "schedule": "cosine"},
    {"lr": 1e-3, "temperature": 0.3, "initial_strength": 1.0, "schedule": "cosine"},
    {"lr": 3e-4, "temperature": 0.3, "initial_strength": 1.0, "schedule": "cosine"},
    {"lr": 1e-3, "temperature": 1.0, "initial_strength": 1.0, "schedule": "cosine"},
    {"lr": 5e-4, "temperature": 0.3, "initial_strength": 0.1},
]
# The authors' settings are for batch size 1; here the gradient is a mean over 100, with 100 times fewer steps.
BIMU = [{"lr": 4.9, "gain": 1613.0, "max_lr": 0.023, "memory_size": 1e3}]
# For the paper's five tasks of 100 epochs, tried with a tenth of the epochs at ten times the rate.
FIVE = [
    {
        **{"memory": memory, "lr": lr, "temperature": 1.0, "initial_strength": 1.5},
        **{"schedule": "cosine", "batchnorm": norm, "remember": remember},
    }
    for remember in (False, True)
    for memory, lr, norm in (
        (1e6, 1e-3, False),
        (1e6, 3.3e-4, False),
        (1e6, 1e-3, True),
        (1e7, 3.3e-4, False),
        (1e7, 1e-3, False),
    )
]
EWC = [
    {"lr": 3e-4, "strength": strength, "schedule": "cosine", "batchnorm": True}
    for strength in (1.0, 10.0, 100.0, 1000.0)
]
GRIDS = {
    "with memory": ("bayesbinn", MEMORY),
    "posterior as prior": ("bayesbinn", PLAIN),
    "BiMU": ("bimu", BIMU),
    "five tasks of 10 epochs, with memory": ("bayesbinn", [{**cell, "tasks": 5, "epochs": 10} for cell in FIVE]),
    "five tasks of 3 epochs, full precision with EWC": ("ewc", [{**cell, "tasks": 5, "epochs": 3} for cell in EWC]),
}


def measured(method: str, cell: dict[str, Any], dataset: data.Dataset) -> dict[str, Any]:
    """Learn ten tasks with one setting."""
    settings = dict(cell)
    tasks, epochs, remember = settings.pop("tasks", TASKS), settings.pop("epochs", 1), settings.pop("remember", True)
    schedule = Cosine(every_batch=True) if settings.pop("schedule", "constant") == "cosine" else Constant()
    torch.manual_seed(SEED)
    model = models.continual_mlp(batchnorm=settings.pop("batchnorm", False))
    binary, _ = bb.split_parameters(model)
    optimizer = get_method(method).create(binary, train_set_size=1, seed=SEED, **settings)
    plan = Plan(
        epochs=epochs,
        schedule=schedule,
        remember=remember,
        samples=SAMPLES,
        rows="diagonal",
        validation=HELD_OUT,
        seed=SEED,
    )
    started = time.monotonic()
    learner = Learner(model, optimizer, data.permuted(dataset, tasks, seed=SEED), plan)
    learner.train()
    summary, last = learner.record.summary(), learner.record.finished[-1]
    accuracy = {policy: found["last_accuracy"] for policy, found in summary.items() if policy != "per-task"}
    return {
        "last five": accuracy,
        "all": {policy: summary[policy]["average_accuracy"] for policy in accuracy},
        "newest": {policy: summary[policy]["learning_accuracy"] for policy in accuracy},
        "entropy": last["entropy"],
        "noise AUROC": learner.record.end["auroc"]["noise"]["mutual_information"],
        "seconds": time.monotonic() - started,
    }


def markdown(found: dict[str, dict[str, Any]]) -> str:
    parts = [
        "# Settings for the stream of 100 tasks\n\n`python benchmarks/stream_settings.py`: "
        f"{TASKS} permuted MNIST tasks of seed {SEED}, one epoch each, batch 100; accuracy (%) on {HELD_OUT:.0%} of "
        f"the training digits, held out, with {SAMPLES} samples after the last task. Test data and later tasks were "
        "not used. Seeds of the reported streams: 1, 2, 3.\n"
    ]
    for title, (method, cells) in GRIDS.items():
        rows = []
        for cell in cells:
            result = found.get(key_of(method, cell))
            if result is None:
                continue
            text = ", ".join(
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in cell.items()
            )
            for policy, last in result["last five"].items():
                numbers = [last, result["all"][policy], result["newest"][policy]]
                rows.append(
                    [
                        text,
                        policy,
                        *(f"{x:.1f}" for x in numbers),
                        "" if result["entropy"] is None else f"{result['entropy']:.2f}",
                        f"{result['noise AUROC']:.3f}",
                    ]
                )
        if rows:
            rows.sort(key=lambda row: -float(row[2]))
            head = ["settings", "BatchNorm", "last five", "all", "each when new", "entropy, bits", "AUROC, noise"]
            parts.append(f"## {title}\n\n{markdown_table(head, rows)}\n")
    parts.append("\n".join(f"{name}: {value}  " for name, value in machine().items()))
    return "\n".join(parts)


def key_of(method: str, cell: dict[str, Any]) -> str:
    return json.dumps({"method": method, **cell}, sort_keys=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/continual"))
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "settings.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    dataset = data.load("mnist", data_dir=arguments.data_dir)
    for title, (method, cells) in GRIDS.items():
        for cell in cells:
            key = key_of(method, cell)
            if key not in found:
                found[key] = measured(method, cell, dataset)
                write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
                write_whole(arguments.out / "settings.md", (markdown(found).rstrip() + "\n").encode())
            print(title, cell, {policy: round(x, 1) for policy, x in found[key]["last five"].items()}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
