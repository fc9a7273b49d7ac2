"""What the two figures on synthetic data share: a BayesBiNN and an STE network per seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesbinn.data import Dataset
from bayesbinn.errors import InvalidInput
from bayesbinn.paper.drawing import machine_rows
from bayesbinn.paper.gather import Budget, Cell, duration, outcome_of
from bayesbinn.paper.published import Value
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runs.trained import load_trained

SAMPLES = 10
"""Posterior samples behind the mean, as in the paper."""

COLUMNS = ("STE", "BayesBiNN, mode", f"BayesBiNN, mean of {SAMPLES}")


@dataclass(frozen=True)
class Trio:
    """One seed's networks: STE's, and BayesBiNN's with its posterior."""

    seed: int
    dataset: Dataset
    ste: nn.Module
    bayes: nn.Module
    posterior: BernoulliPosterior


@dataclass(frozen=True)
class Spent:
    """What the networks cost."""

    epochs: int
    reached: int
    seconds: dict[str, float]
    """Wall time by method, over all seeds."""

    def text(self, method: str) -> list[str]:
        """Epochs and wall time for a row of the table."""
        epochs = str(self.epochs) if self.reached == self.epochs else f"{self.reached} of {self.epochs}"
        return [epochs, duration(self.seconds[method])]


def trained(preset: str, budget: Budget) -> Generator[str, None, tuple[list[Trio], Spent]]:
    """Reuse or train both methods for every seed."""
    outcomes = {}
    for method in ("bayesbinn", "ste"):
        outcome = yield from outcome_of(Cell(preset, method), budget)
        if outcome.reason is not None:
            raise InvalidInput(f"{preset}, {method}: not run: {outcome.reason}")
        outcomes[method] = outcome
    trios = []
    for bayes, ste in zip(outcomes["bayesbinn"].runs, outcomes["ste"].runs, strict=True):
        _, dataset, model, posterior = load_trained(bayes.folder, budget.data_dir)
        _, _, ste_model, _ = load_trained(ste.folder, budget.data_dir)
        if posterior is None:
            raise InvalidInput(f"{bayes.folder}: the run has no posterior")
        trios.append(Trio(bayes.seed, dataset, ste_model, model, posterior))
    runs = [run for outcome in outcomes.values() for run in outcome.runs]
    seconds = {method: sum(run.seconds for run in outcome.runs) for method, outcome in outcomes.items()}
    return trios, Spent(runs[0].epochs, min(run.last()["epoch"] for run in runs), seconds)


def compact(values: Sequence[float], digits: int = 4) -> str:
    """Numbers in one line of a JSON file.

    >>> compact([0.123456, 2.0]), expanded(compact([0.5, 2.0])).tolist()
    ('0.1235 2', [0.5, 2.0])
    """
    return " ".join(f"{value:.{digits}g}" for value in values)


def expanded(text: str) -> NDArray[np.float64]:
    """The numbers of `compact`."""
    return np.array(text.split(), dtype=np.float64)


def as_drawn(path: Path, budget: Budget) -> dict[str, Any] | None:
    """The numbers of a figure as it is, to draw it again where its networks are gone; None if they are not asked for.

    The networks of these figures leave no records: the figure's own file has everything that it shows.
    """
    if budget.train or not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if "drawn" in found else None


def spent_of(numbers: Mapping[str, Any]) -> Spent:
    """What the networks of a figure's numbers cost."""
    return Spent(numbers["epochs"], numbers["last epoch"], dict(numbers["seconds"]))


def comparison_rows(
    measured: list[dict[str, dict[str, float]]], spent: Spent, text: Callable[[Value], str], facts: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the Markdown table: every measure of the three predictors, mean ± std over seeds.

    The mean comes last and has all measures; the others may lack some, such as a spread. `facts` describe the machine
    that trained them.
    """
    measures = list(measured[0][COLUMNS[-1]])
    rows = []
    for name in COLUMNS:
        values = []
        for measure in measures:
            found = [seed[name][measure] for seed in measured if measure in seed[name]]
            values.append(text(Value.of(found)) if found else "")
        rows.append([name, *values, *spent.text("ste" if name == "STE" else "bayesbinn"), str(len(measured))])
    head = ["Prediction", *measures, "Epochs", "Wall time", "Seeds"]
    return head, [*rows, *machine_rows(len(head), facts)]


def standardized(trio: Trio) -> tuple[Tensor, Tensor]:
    """The training inputs and targets in the units of the figure."""
    return trio.dataset.split(0.0).train.whole()
