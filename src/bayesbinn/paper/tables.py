"""The paper's tables as lists of rows: which runs, which epoch, and the paper's value for each column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.paper import published
from bayesbinn.paper.gather import Cell, Trained
from bayesbinn.paper.published import DATASETS, OPTIMIZERS, Scores, Value

BEST = (
    "Accuracies in percent, mean ± population standard deviation over seeds, in the first epoch with the highest "
    "validation accuracy."
)
LAST = "Test accuracy in percent after the last epoch, mean ± population standard deviation over seeds."
TRAIN = (
    "Train accuracy is the running accuracy during the epoch, with dropout, batch statistics and sampled weights, as "
    "the authors log it."
)
MEAN = (
    "BayesBiNN (mean) is read from the same runs as the mode. If a posterior sample of the trained network differs "
    "from the mode in fewer than 0.01 weights on average, the mean equals the mode and no samples are drawn. Otherwise "
    "10 samples are drawn."
)
SATURATION = (
    "Saturated: the fraction of weights, after the last epoch, whose more likely sign has probability 0.99 or more."
)


SHORT_RATES: dict[str, tuple[float, ...]] = {
    "ste": (1e-2, 1e-3),
    "bop": (1e-5, 1e-4, 1e-3, 1e-2),
    "pmf": (1e-3, 1e-2, 1e-1),
    "lrnet": (1e-2,),
    "float": (3e-4, 1e-3),
}
"""By method: the paper's learning rate on MNIST, then others that might suit a schedule shorter than its."""
SHORT_RATES_MARGIN = 0.2
"""How much more accurate another rate must be, in points, on the 6,000 validation digits: a standard error at 98 %."""


@dataclass(frozen=True)
class Line:
    """One row: its labels, its runs, how to read them, and the paper's values."""

    labels: tuple[str, ...]
    cell: Cell
    paper: dict[str, Value | None]
    """By column: train, validation, test."""
    by_mean: bool = False
    """Whether the test accuracy is that of the mean over posterior samples."""

    def read(self, run: Trained, column: str, select: Literal["best", "last"]) -> float | None:
        """A run's accuracy in one of the columns."""
        row: dict[str, Any] = run.best() if select == "best" else run.last()
        if self.by_mean and column == "test":
            return run.accuracy_of_the_mean(row)
        value = row.get(f"{column}_accuracy")
        return None if value is None else float(value)


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    title: str
    heads: tuple[str, ...]
    """What the labels are."""
    lines: tuple[Line, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    select: Literal["best", "last"] = "best"
    charted: str = "test"
    """The column that the chart shows."""
    saturation: bool = False
    """Whether to show the fraction of weights that the posterior is certain about."""

    @property
    def compared(self) -> bool:
        """Whether the paper has any of its numbers."""
        return any(value is not None for line in self.lines for value in line.paper.values())


def _chosen(methods: str | None, offered: Sequence[str], default: Sequence[str]) -> list[str]:
    if methods is None:
        return list(default)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise InvalidInput(f"--methods {methods!r}: name at least one of {', '.join(offered)}")
    for name in names:
        if name not in offered:
            raise InvalidInput(
                f"--methods {methods}: no method {name!r} in this table.{nearest(name, offered)} "
                f"Allowed: {', '.join(offered)}"
            )
    return names


def _of_optimizers(methods: str | None, columns: tuple[str, ...]) -> tuple[Line, ...]:
    titles = {**OPTIMIZERS, "lrnet": "LR-net"}
    offered = [name for name in titles if name != "bayesbinn-mean"]
    chosen = _chosen(methods, offered, offered)
    lines = []
    for dataset, dataset_title in DATASETS.items():
        for row, title in titles.items():
            method = row.removesuffix("-mean")
            if method not in chosen or (method == "lrnet" and methods is None and dataset != "mnist"):
                continue  # the paper has LR-net in a separate table; on MNIST ours is cheap enough to show
            scores = published.DETAILED.get((dataset, row))
            lines.append(
                Line((dataset_title, title), Cell(dataset, method), _paper(scores, columns), row.endswith("-mean"))
            )
    return tuple(lines)


def _paper(scores: Scores | None, columns: tuple[str, ...]) -> dict[str, Value | None]:
    return {column: getattr(scores, column, None) for column in columns}


def accuracy(methods: str | None) -> Table:
    """Test accuracy of all optimizers on the three image sets."""
    return Table(
        title="Test accuracy of all optimizers (the paper's Table 2)",
        heads=("Data", "Optimizer"),
        lines=_of_optimizers(methods, ("test",)),
        columns=("test",),
        notes=(BEST, MEAN),
    )


def detailed(methods: str | None) -> Table:
    """Train, validation and test accuracy of all optimizers."""
    columns = ("train", "validation", "test")
    return Table(
        title="Train, validation and test accuracy of all optimizers (the paper's detailed table)",
        heads=("Data", "Optimizer"),
        lines=_of_optimizers(methods, columns),
        columns=columns,
        notes=(BEST, TRAIN, MEAN),
    )


def learning_rates(methods: str | None) -> Table:
    """BayesBiNN on MNIST at eight learning rates."""
    return _grid(
        methods,
        "BayesBiNN on MNIST at different initial learning rates, temperature 1e-10",
        ("Learning rate", "lr", "mnist-learning-rates"),
        published.LEARNING_RATES,
        "The paper prints its first rate as 10⁻¹; its search grid starts at 10⁻², which we run here.",
    )


def temperatures(methods: str | None) -> Table:
    """BayesBiNN on MNIST at ten temperatures."""
    return _grid(
        methods,
        "BayesBiNN on MNIST at different temperatures, initial learning rate 1e-4",
        ("Temperature", "temperature", "mnist-temperatures"),
        published.TEMPERATURES,
        'The second half of the paper\'s table is headed "Learning rate"; the values are temperatures.',
    )


def _grid(methods: str | None, title: str, axis: tuple[str, str, str], paper: dict[float, Scores], note: str) -> Table:
    _chosen(methods, ["bayesbinn"], ["bayesbinn"])
    head, setting, preset = axis
    columns = ("train", "validation", "test")
    lines = tuple(
        Line((f"{value:.0e}".replace("e-0", "e-"),), Cell(preset, "bayesbinn", {setting: value}), _paper(row, columns))
        for value, row in paper.items()
    )
    return Table(title, (head,), lines, columns, (BEST, TRAIN, note, SATURATION), saturation=True)


def short_rates(methods: str | None) -> Table:
    """MNIST at other learning rates than the paper's, for schedules shorter than its."""
    chosen = _chosen(methods, list(SHORT_RATES), list(SHORT_RATES))
    titles = {**OPTIMIZERS, "lrnet": "LR-net"}
    columns = ("train", "validation", "test")
    lines = tuple(
        Line(
            (titles[method], f"{rate:.0e}".replace("e-0", "e-")),
            Cell("mnist", method, {"lr": rate}),
            _paper(None, columns),
        )
        for method, rates in SHORT_RATES.items()
        if method in chosen
        for rate in rates
    )
    notes = (
        BEST,
        TRAIN,
        "The paper's own rate comes first. A shorter schedule keeps it unless another one is better by more than "
        f"{SHORT_RATES_MARGIN} points on validation data.",
    )
    title = "Learning rates of the other optimizers on MNIST"
    return Table(title, ("Optimizer", "Learning rate"), lines, columns, notes, charted="validation")


def lrnet(methods: str | None) -> Table:
    """BayesBiNN and LR-net on LR-net's networks, after the last epoch."""
    titles = {"lrnet": "LR-net", "bayesbinn": "BayesBiNN (mode)"}
    chosen = _chosen(methods, list(titles), list(titles))
    lines = tuple(
        Line(
            (DATASETS[dataset], titles[method]),
            Cell(f"lrnet-{dataset}", method),
            {"test": published.LRNET[dataset, method]},
        )
        for dataset in ("mnist", "cifar10")
        for method in titles
        if method in chosen
    )
    notes = (
        LAST,
        "The paper takes its LR-net numbers from LR-net's own paper: pretrained, with a real output layer and learned "
        "BatchNorm. We train the network of the comparison from scratch, with every layer binary.",
    )
    return Table("BayesBiNN and LR-net on LR-net's networks", ("Data", "Optimizer"), lines, ("test",), notes, "last")


TABLES: dict[str, Callable[[str | None], Table]] = {
    "table-accuracy": accuracy,
    "table-detailed": detailed,
    "table-learning-rates": learning_rates,
    "table-temperatures": temperatures,
    "table-rates": short_rates,
    "table-lrnet": lrnet,
}
