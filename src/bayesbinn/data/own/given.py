"""Labels that come with inputs to predict, so that the predictions can be scored right away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.card import DataCard
from bayesbinn.data.own.npy import read_npz
from bayesbinn.data.own.tables import SUFFIXES as TABLES
from bayesbinn.data.own.tables import read_table


def given_targets(path: Path, card: DataCard, names: list[str]) -> tuple[Tensor | None, tuple[str, ...]]:
    """The labels in a file of inputs, as targets of the network; None, and a note, if not all of them are usable.

    In a table they are in the column that the network was trained to predict, in an .npz file in `y`. For images in
    folders (`names` are their paths below `path`), the folder is the class if every folder is named after one.
    """
    kind = path.suffix.lower()
    if path.is_dir():
        folders = [Path(name).parts[-2] if len(Path(name).parts) > 1 else "" for name in names]
        return (_classes(folders, card)[0], ()) if set(folders) <= set(card.classes) else (None, ())
    where, labels = "", None
    if kind in TABLES and card.label is not None and card.label not in card.columns:
        table = read_table(path, [])
        if card.label in table.column_names:
            where, labels = f"column {card.label!r}", table.column(card.label).to_pylist()
    elif kind == ".npz":
        arrays = read_npz(path, _labels_of_inputs)
        if "y" in arrays and arrays["y"].size == len(names):
            where, labels = "y", arrays["y"].reshape(-1).tolist()
    if labels is None:
        return None, ()
    targets, problem = (_numbers if card.task == "regression" else _classes)(labels, card)
    return targets, (f"not scored: {where} holds {problem}",) if problem else ()


def _labels_of_inputs(path: Path, names: Sequence[str]) -> Sequence[str]:
    """The labels, if the file also has inputs."""
    return ["y"] if {"x", "y"} <= set(names) else []


def _classes(labels: list[Any], card: DataCard) -> tuple[Tensor | None, str]:
    places = {name: index for index, name in enumerate(card.classes)}
    found = [places.get(_text(label), places.get(_whole(label))) for label in labels]
    if None in found:
        row = found.index(None)
        return None, f"{labels[row]!r} in row {row + 1}, which is not one of the {len(places)} classes"
    return torch.tensor(found, dtype=torch.int64), ""


def _numbers(labels: list[Any], card: DataCard) -> tuple[Tensor | None, str]:
    for row, label in enumerate(labels, 1):
        if (number := _number(label)) is None or not np.isfinite(number):
            return None, f"{label!r} in row {row}, which is not a finite number"
    numbers = torch.tensor([_number(label) for label in labels], dtype=torch.float32)
    return ((numbers - card.target_mean) / card.target_std).view(-1, 1), ""


def _text(label: Any) -> str:
    return str(label).strip()


def _whole(label: Any) -> str:
    """A whole number without a decimal point, like the names of classes."""
    number = _number(label)
    return str(int(number)) if number is not None and np.isfinite(number) and number == int(number) else ""


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None
