"""One small run of each kind, and the page of each, shared by all tests of the report."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesbinn.experiments import load_experiment
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.report import write_report
from bayesbinn.runs.open import open_any
from bayesbinn.runs.ship import pack_run
from bayesbinn.sweeps.executor import ERROR
from bayesbinn.sweeps.grid import Planned, write_plan

EVIL = '<script>alert("&$x$")</script>'
"""A class and a column that hold markup."""
KINDS = ("digits", "table", "regression", "stream", "sweep", "model")


@dataclass(frozen=True)
class Place:
    """Sources of reports by kind, and where their pages are."""

    sources: dict[str, Path]
    pages: dict[str, Path]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("report")
    _train(folder / "digits", "digits", {"model.width": 0.05, "training.epochs": 3, "method.certainty": 100})
    _write_tables(folder)
    for name, label in (("table", "kind"), ("regression", "y")):
        experiment, _ = choose_for_file(str(folder / f"{name}.csv"), label, "bayesbinn", {"training.epochs": 3})
        open_any(experiment, folder / name, None).train()
    short = {"training.epochs": 2, "continual.tasks": 3, "continual.samples": 2, "training.evaluate_every": 1}
    _train(folder / "stream", "permuted-digits", short)
    _sweep(folder / "sweep")
    pack_run(folder / "table", folder / "model.safetensors")
    sources = {kind: folder / kind for kind in KINDS} | {"model": folder / "model.safetensors"}
    pages = {
        kind: write_report(source, folder / f"{kind}.html", measure_speed=kind in ("digits", "model"))
        for kind, source in sources.items()
    }
    return Place(sources, pages)


def _train(folder: Path, preset: str, changes: dict[str, object]) -> None:
    settings = {key: value for key, value in changes.items() if key != "method.certainty"}
    if "method.certainty" in changes:
        settings["certainty"] = changes["method.certainty"]
    open_any(load_experiment(preset, overrides=settings), folder, None).train()


def _write_tables(folder: Path) -> None:
    """A table with words and holes whose names hold markup, and one of numbers."""
    random = np.random.default_rng(0)
    x = random.standard_normal((160, 2))
    kinds = np.where(x[:, 0] + 0.3 * random.standard_normal(160) > 0, EVIL, "plain & simple")
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([EVIL, "word", "kind"])
        writer.writerows(
            [f"{a:.3f}" if i % 9 else "", "left" if b > 0 else "right", kind]
            for i, (a, b), kind in zip(range(160), x, kinds, strict=True)
        )
    with (folder / "regression.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "y"])
        writer.writerows([f"{a:.3f}", f"{b:.3f}", f"{a - 2 * b + 0.1 * a * b:.3f}"] for a, b in x)


def _sweep(folder: Path) -> None:
    planned = []
    for lr in (1e-3, 1e-2):
        name = f"ste-lr{lr}-s0"
        planned.append(Planned(name, "ste", 0, {"method.lr": lr}, 1))
        changes = {"model.width": 0.02, "training.epochs": 1, "method.lr": lr}
        experiment = load_experiment("digits", method="ste", overrides=changes)
        open_any(experiment, folder / name, None).train()
    planned.append(Planned("ste-lr1.0-s0", "ste", 0, {"method.lr": 1.0}, 1))
    (folder / "ste-lr1.0-s0").mkdir()
    (folder / "ste-lr1.0-s0" / ERROR).write_text("error: it broke <here>\n")
    write_plan(folder, planned)
