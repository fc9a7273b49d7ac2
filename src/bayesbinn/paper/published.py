"""The paper's numbers: accuracy in percent, mean ± population standard deviation over 5 runs.

From the LaTeX source of "Training Binary Neural Networks using the Bayesian Learning Rule" (Meng,
Bachmann, Khan; ICML 2020). What its tables leave open, and how we read them:

* The spread is the population standard deviation and the epoch is the first with the highest
  validation accuracy: neither is stated; both follow from the authors' training logs.
* The first learning rate is printed as 10⁻¹, but the grid in the text starts at 10⁻².
* The second half of the temperature table is headed "Learning rate"; its values are temperatures.
* No training accuracy is given for PMF, and no spread for LR-net, whose numbers are its own paper's.
* "BayesBiNN (mean)" does not say how many samples are averaged (the settings say C = 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Value:
    """A mean and its spread; None if no spread is given."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Value:
        """Mean and population standard deviation, as the authors compute them; one value has no spread.

        >>> str(Value.of([98.0, 99.0]))
        '98.50 ± 0.50'
        >>> str(Value.of([98.0]))
        '98.00'
        """
        return cls(float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class Scores:
    """One row of a table: accuracy on the three parts of the data."""

    train: Value | None
    validation: Value | None
    test: Value


def _row(*numbers: float | None) -> Scores:
    """Mean and std of train, validation and test, in this order; None if not given."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    train, validation, test = (None if mean is None else Value(mean, std) for mean, std in pairs)
    if test is None:
        raise ValueError("every row of the paper has a test accuracy")
    return Scores(train, validation, test)


SEEDS = 5
EPOCHS = 500

OPTIMIZERS = {
    "ste": "STE Adam",
    "bop": "Bop",
    "pmf": "PMF",
    "bayesbinn": "BayesBiNN (mode)",
    "bayesbinn-mean": "BayesBiNN (mean)",
    "float": "Full precision",
}
"""The rows of Table 2 and of the detailed table, by method; the mean is a second reading of the same runs."""

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

DETAILED: dict[tuple[str, str], Scores] = {
    ("mnist", "ste"): _row(99.78, 0.10, 99.02, 0.11, 98.85, 0.09),
    ("mnist", "bop"): _row(99.23, 0.04, 98.55, 0.05, 98.47, 0.02),
    ("mnist", "pmf"): _row(None, None, 99.06, 0.01, 98.80, 0.06),
    ("mnist", "bayesbinn"): _row(99.85, 0.05, 99.02, 0.13, 98.86, 0.05),
    ("mnist", "bayesbinn-mean"): _row(99.85, 0.05, 99.02, 0.13, 98.86, 0.05),
    ("mnist", "float"): _row(99.96, 0.02, 99.15, 0.14, 99.01, 0.06),
    ("cifar10", "ste"): _row(99.99, 0.01, 94.25, 0.42, 93.55, 0.15),
    ("cifar10", "bop"): _row(99.79, 0.03, 93.49, 0.17, 93.00, 0.11),
    ("cifar10", "pmf"): _row(None, None, 91.87, 0.10, 91.43, 0.14),
    ("cifar10", "bayesbinn"): _row(99.96, 0.01, 94.23, 0.41, 93.72, 0.16),
    ("cifar10", "bayesbinn-mean"): _row(99.96, 0.01, 94.23, 0.41, 93.72, 0.15),
    ("cifar10", "float"): _row(100.00, 0.00, 94.54, 0.29, 93.90, 0.17),
    ("cifar100", "ste"): _row(99.06, 0.15, 74.09, 0.15, 72.89, 0.21),
    ("cifar100", "bop"): _row(90.09, 0.57, 69.97, 0.29, 69.58, 0.15),
    ("cifar100", "pmf"): _row(None, None, 69.86, 0.08, 70.45, 0.25),
    ("cifar100", "bayesbinn"): _row(98.02, 0.18, 74.76, 0.41, 73.68, 0.31),
    ("cifar100", "bayesbinn-mean"): _row(98.02, 0.18, 74.76, 0.41, 73.65, 0.41),
    ("cifar100", "float"): _row(99.89, 0.02, 75.89, 0.41, 74.83, 0.26),
}
"""The detailed table, by data set and row. Its test column is Table 2 (accuracy of all optimizers)."""

LEARNING_RATES: dict[float, Scores] = {
    1e-2: _row(99.46, 0.15, 98.90, 0.14, 98.73, 0.11),
    3e-3: _row(99.58, 0.16, 98.94, 0.17, 98.81, 0.07),
    1e-3: _row(99.67, 0.09, 98.96, 0.13, 98.83, 0.05),
    3e-4: _row(99.76, 0.09, 98.97, 0.12, 98.84, 0.08),
    1e-4: _row(99.85, 0.05, 99.02, 0.13, 98.86, 0.05),
    3e-5: _row(99.83, 0.06, 99.02, 0.13, 98.86, 0.05),
    1e-5: _row(99.76, 0.09, 99.04, 0.11, 98.84, 0.08),
    1e-6: _row(99.78, 0.03, 99.02, 0.17, 98.85, 0.05),
}
"""MNIST at temperature 10⁻¹⁰."""

TEMPERATURES: dict[float, Scores] = {
    1e-3: _row(89.25, 0.22, 90.06, 1.04, 90.40, 0.97),
    1e-4: _row(87.55, 0.50, 90.28, 0.43, 90.72, 0.42),
    1e-5: _row(90.22, 0.42, 93.35, 0.48, 93.67, 0.50),
    1e-6: _row(97.37, 0.13, 98.10, 0.17, 98.01, 0.05),
    1e-7: _row(98.27, 0.10, 98.55, 0.16, 98.41, 0.10),
    1e-8: _row(99.48, 0.08, 98.92, 0.13, 98.82, 0.05),
    1e-9: _row(99.75, 0.14, 99.00, 0.13, 98.81, 0.08),
    1e-10: _row(99.85, 0.05, 99.02, 0.14, 98.86, 0.05),
    1e-11: _row(99.81, 0.04, 99.02, 0.12, 98.86, 0.06),
    1e-12: _row(99.82, 0.07, 99.02, 0.13, 98.84, 0.04),
}
"""MNIST at learning rate 10⁻⁴."""

LRNET: dict[tuple[str, str], Value] = {
    ("mnist", "lrnet"): Value(99.47),
    ("mnist", "bayesbinn"): Value(99.50, 0.02),
    ("cifar10", "lrnet"): Value(93.18),
    ("cifar10", "bayesbinn"): Value(93.97, 0.11),
}
"""Test accuracy after the last of 190 (MNIST) and 290 (CIFAR-10) epochs."""


@dataclass(frozen=True)
class Continual:
    """Permuted MNIST with the authors' code: test accuracy on each task after the last one, in percent."""

    prior: bool
    """Whether the posterior becomes the next task's prior."""
    epochs: int
    """Per task."""
    tasks: tuple[float, ...]
    """Empty if only the mean was recorded."""
    mean: float
    entropy: tuple[float, ...] = ()
    """Entropy of the weights after each task, in bits."""


CONTINUAL = (
    Continual(True, 100, (65.5, 81.6, 83.6, 91.2, 94.3), 83.2, (0.76, 0.62, 0.51, 0.42, 0.34)),
    Continual(True, 20, (), 79.5),
    Continual(False, 20, (8.8, 10.8, 8.7, 18.3, 93.5), 28.0),
)
"""The paper draws these curves without numbers; these come from the authors' code, run by us with seed 1, the last
task's BatchNorm statistics, and 100 samples whose logits are averaged."""

STREAM = {"BayesBiNN": 67.9, "BiMU": 90.3}
"""Mean test accuracy of the last 5 of 100 permutations of MNIST at the end, one epoch each, batch size 1, 100 hidden
units: Cottart et al. (2026), BiMU's paper."""
