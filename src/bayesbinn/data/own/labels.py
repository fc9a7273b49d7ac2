"""From the labels in a user's file to targets: classes by name, or numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.data.dataset import Task
from bayesbinn.data.own.kinds import mostly_amounts
from bayesbinn.errors import InvalidInput

_MANY_CLASSES = 10
MAX_CLASSES = 50
"""Whole numbers with more distinct values than this are quantities, unless the user says otherwise."""

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Labels:
    """How labels become targets; made from the training labels, applied to any."""

    task: Task
    values: Values
    """The distinct labels in order, for classification."""
    note: str

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(_text(value) for value in self.values)

    def targets(self, labels: Values, where: str) -> Tensor:
        """int64 [N] or float32 [N, 1]; a label that training never saw is an error."""
        numeric = labels.dtype.kind in "biuf"
        if not numeric and (self.task == "regression" or self.values.dtype.kind != "U"):
            raise InvalidInput(f"{where}: the label {_text(labels[0])!r} is text, but those to train on are numbers")
        if self.task == "regression":
            _check_finite(labels, where)
            return torch.from_numpy(labels.astype(np.float32)).view(-1, 1)
        if numeric and self.values.dtype.kind == "U":
            labels = np.array([_text(label) for label in labels])
        codes = np.searchsorted(self.values, labels).clip(max=len(self.values) - 1)
        strange = np.flatnonzero(self.values[codes] != labels)
        if len(strange):
            raise InvalidInput(
                f"{where}: example {strange[0]} has the label {_text(labels[strange[0]])!r}, which is not among the "
                f"{len(self.values)} classes of the training part: {some(self.classes)}"
            )
        return torch.from_numpy(codes.astype(np.int64))


def understand(labels: Values, where: str, task: Task | None = None) -> Labels:
    """Text and true/false are classes. So are whole numbers with few distinct values; other numbers are quantities.

    Few are 50 or fewer, and no more than half as many as there are examples. `task` overrides the rule.

    >>> understand(np.array(["cat", "dog", "cat"]), "my.csv").classes
    ('cat', 'dog')
    >>> understand(np.array([0.5, 1.5, 7.25]), "my.csv").task
    'regression'
    """
    if labels.ndim != 1:
        raise InvalidInput(f"{where}: labels of shape {labels.shape}: one label for each example is needed")
    numeric = labels.dtype.kind in "iuf"
    if numeric:
        _check_finite(labels, where)
    if not numeric and labels.dtype.kind not in "bU":
        raise InvalidInput(f"{where}: labels of type {labels.dtype}: numbers, text or true/false are needed")
    if len(labels) == 0:
        raise InvalidInput(f"{where}: there are no labels: one for each example is needed")
    values = np.unique(labels)
    why = _quantities(labels, values) if numeric else ""
    if task == "regression" or (task is None and why):
        if not numeric:
            raise InvalidInput(f"{where}: regression needs numbers, but the first label is {_text(labels[0])!r}")
        return Labels("regression", values[:0], f"regression: {why or _numbers(values)}{_override(task, 'regression')}")
    if len(values) < 2:
        raise InvalidInput(f"{where}: all labels are {_text(values[0])!r}: 2 or more classes are needed")
    names = tuple(_text(value) for value in values)
    override = _override(task, "classification") if numeric else ""
    amount = mostly_amounts(names)
    if amount and not override:
        override = f"; if texts such as {amount!r} are quantities, write them as plain numbers"
    alike = _alike(names)
    return Labels("classification", values, f"classification: {len(values)} classes, {some(names)}{override}{alike}")


def _alike(names: Sequence[str]) -> str:
    """Which two classes differ only in capital letters, which may be a slip.

    >>> _alike(["YES", "no", "yes"]), _alike(["no", "yes"])
    ("; 'YES' and 'yes' are different classes", '')
    """
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            return f"; {first!r} and {name!r} are different classes"
    return ""


def check_repeating(classes: Sequence[str], examples: int, where: str) -> None:
    """Reject classes that rarely repeat: quantities that are not written as numbers, names or free text.

    For new runs only: an older run keeps its classes.
    """
    if len(classes) > _MANY_CLASSES and 2 * len(classes) > examples:
        raise InvalidInput(
            f"{where}: the label has {len(classes)} different texts in {examples} examples, such as "
            f"{classes[0]!r:.50}: is this the right column? A class needs several examples; write a quantity as plain "
            "numbers, without currencies, units or separators (to learn the texts anyway: --set "
            "data.task=classification)"
        )


def are_classes(numbers: Values, task: Task | None) -> bool:
    """Whether `understand` makes classes of these numbers."""
    return task == "classification" or (task is None and not _quantities(numbers, np.unique(numbers)))


def _check_finite(numbers: Values, where: str) -> None:
    bad = np.flatnonzero(~(np.abs(numbers.astype(np.float64)) <= np.finfo(np.float32).max))
    if len(bad):
        raise InvalidInput(
            f"{where}: the label of example {bad[0]} is NaN or too large: correct it or remove the example"
        )


def _quantities(labels: Values, values: Values) -> str:
    """Why these numbers are quantities; empty if they are classes."""
    whole = labels.dtype.kind != "f" or bool((values == np.floor(values)).all())
    if not whole:
        return "the label has numbers with fractions"
    if len(values) > MAX_CLASSES:
        return f"{_numbers(values)}, more than {MAX_CLASSES}"
    return f"{_numbers(values)} in {len(labels)} examples" if 2 * len(values) > len(labels) else ""


def _numbers(values: Values) -> str:
    return f"the label has {len(values)} different numbers"


def _override(asked: Task | None, chosen: Task) -> str:
    """What was asked for, or how to ask for the other task."""
    if asked is not None:
        return ", as data.task says"
    other = "classification" if chosen == "regression" else "regression"
    return f'; for {other}, --set data.task={other} (in Python, task="{other}")'


def _text(value: Any) -> str:
    """A whole number without a decimal point, whatever its type."""
    return str(int(value)) if isinstance(value, np.floating) and value.is_integer() else str(value)


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few, separated by commas."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
