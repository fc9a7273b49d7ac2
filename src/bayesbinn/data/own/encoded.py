"""Any table as a data set: text, dates, missing cells and numbers of any scale become codes that a network takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.normalise import statistics
from bayesbinn.data.own.arrow_columns import ArrowColumns, cells_of
from bayesbinn.data.own.build import check_enough, hold_out
from bayesbinn.data.own.encoding import learn_encoding
from bayesbinn.data.own.labels import Labels, Values, are_classes, some, understand
from bayesbinn.data.own.memory import check_fits
from bayesbinn.data.own.tables import check_label, labels_of, read_table
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile.columns import CategoryColumn, DateColumn, Scale
from bayesbinn.modelfile.encoder import InvalidCell
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.strangers import Strangers

Rows = NDArray[np.int64]
_KINDS = {
    "number": ("number", "numbers"),
    "category": ("category", "categories"),
    "boolean": ("true/false", "true/false"),
    "date": ("date", "dates"),
}
"""Singular and plural."""
MAX_NAMED = 30
"""With more columns than this, only their number is stated."""


def load_encoded(path: Path, label: str | None, *, test: Path | None = None, task: Task | None = None) -> Dataset:
    """Load one file, or one for training and one for testing; the encoding is learned from the training rows."""
    notes: list[str] = []
    where = str(path)
    table = read_table(path, notes)
    names = check_label(path, table, label)
    assert label is not None
    values, rows = _labelled(path, table, label, task, notes)
    if test is None:
        check_enough(where, len(values))
    labels = _understood(values, where, task, notes)
    tested = None
    if test is None:
        kept, held, said = hold_out(where, labels.task, values)
        parts = (rows[kept], rows[held])
        targets = tuple(labels.targets(values[part], where) for part in (kept, held))
    else:
        tested = read_table(test, [])
        lost = [name for name in (*names, label) if name not in set(tested.column_names)]
        if lost:
            raise InvalidInput(f"{test}: it has no column {lost[0]!r}, which {path.name} has")
        as_text = values.dtype.kind == "U"
        quantities = values.dtype.kind in "iuf" and not are_classes(values, task)
        alike: Task = "regression" if quantities else "classification"
        other, there = _labelled(test, tested, label, alike, notes, as_text=as_text)
        parts, said = (rows, there), f"test part: {len(there)} examples of {test.name}"
        targets = labels.targets(values, where), labels.targets(other, str(test))
    columns = ArrowColumns(path, table, names, parts[0])
    encoding = _learned(path, columns, parts[0], notes)
    others = columns.at(parts[1]) if tested is None else ArrowColumns(test or path, tested, names, parts[1])
    inputs = (_encoded(path, encoding, columns, parts[0]), _encoded(test or path, encoding, others, parts[1]))
    scale = statistics(targets[0]) if labels.task == "regression" else (0.0, 1.0)
    return Dataset(
        name=path.stem,
        train_inputs=inputs[0],
        train_targets=targets[0],
        test_inputs=inputs[1],
        test_targets=targets[1],
        task=labels.task,
        mean=torch.zeros(1),
        std=torch.ones(1),
        classes=labels.classes,
        target_mean=float(scale[0]),
        target_std=float(scale[1]),
        features=encoding.names,
        source=where,
        notes=(*describe(encoding), *notes, labels.note, said),
        encoding=encoding,
    )


def encode_table(
    path: Path, encoding: TableEncoding, notes: list[str] | None = None, label: str | None = None
) -> Tensor:
    """Encode the rows of a file to predict on; extra columns are named in `notes`."""
    table = read_table(path, [])
    names: list[str] = table.column_names
    encoding.check_columns(names, str(path))
    if notes is not None:
        notes += encoding.notes_on(names, str(path), label)
    rows, strangers = np.arange(table.num_rows), Strangers(encoding.columns)
    codes = _encoded(path, encoding, ArrowColumns(path, table, names, rows), rows, strangers)
    if notes is not None:
        notes += strangers.notes(str(path))
    return codes


def describe(encoding: TableEncoding) -> tuple[str, ...]:
    """What the columns became, in sentences."""
    counts, codes = Counter[str](), Counter[str]()
    for column in encoding.columns:
        counts[column.kind] += 1
        codes[column.kind] += column.width
    kinds = [
        f"{counts[kind]} {words[counts[kind] > 1]} ({codes[kind]} code{'s' if codes[kind] > 1 else ''})"
        for kind, words in _KINDS.items()
        if counts[kind]
    ]
    said = [f"columns: {', '.join(kinds)}: {encoding.width} input{'s' if encoding.width > 1 else ''} of the network"]
    if len(encoding.columns) <= MAX_NAMED:
        names = {kind: [column.name for column in encoding.columns if column.kind == kind] for kind in _KINDS}
        said += ["; ".join(f"{_KINDS[kind][1]}: {', '.join(each)}" for kind, each in names.items() if each)]
    ranked = [c.name for c in encoding.columns if isinstance(c, Scale) and "rank" in c.codes]
    if ranked:
        said.append(f"also coded by rank, because their values are unevenly spread: {some(ranked)}")
    lost = [column.name for column in encoding.columns if column.missing]
    if lost:
        said.append(f"an extra code marks missing cells: {some(lost)}")
    shared = [c.name for c in encoding.columns if isinstance(c, CategoryColumn) and c.other]
    if shared:
        said.append(f"rare categories share a code: {some(shared)}")
    ordered = [c for c in encoding.columns if isinstance(c, DateColumn) and c.order != "ymd"]
    if ordered:
        first = "the day" if ordered[0].order == "dmy" else "the month"
        said.append(f"dates are read with {first} first: {some([c.name for c in ordered])}")
    return tuple(said)


def _learned(path: Path, columns: ArrowColumns, rows: Rows, notes: list[str]) -> TableEncoding:
    try:
        encoding = learn_encoding(columns, notes=notes)
    except InvalidCell as error:
        raise InvalidFile(f"{path}: {error.in_row(int(rows[error.row]))}") from None
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from None
    return encoding


def _encoded(
    path: Path, encoding: TableEncoding, columns: ArrowColumns, rows: Rows, strangers: Strangers | None = None
) -> Tensor:
    check_fits(path, 4 * len(rows) * encoding.width, f"{len(rows):,} rows of {encoding.width} codes")
    try:
        return torch.from_numpy(encoding.encode(columns, strangers=strangers))
    except InvalidCell as error:
        place = error.in_row(int(rows[error.row]))
        raise InvalidFile(f"{path}: {place}; correct the cell, or leave it empty if it is missing") from None


def _labelled(
    path: Path, table: Any, label: str, task: Task | None, notes: list[str], *, as_text: bool = False
) -> tuple[Values, Rows]:
    """The labels that are not missing, and their rows."""
    column = table.column(label)
    cells = cells_of(path, label, column)
    lost = np.isnat(cells) if isinstance(cells, np.ndarray) and cells.dtype.kind == "M" else None
    if lost is None:
        lost = np.isnan(cells) if isinstance(cells, np.ndarray) else cells.is_null().to_numpy()
    rows = np.flatnonzero(~lost)
    if not len(rows):
        raise InvalidFile(f"{path}: the label column {label!r} is empty: every row needs a label to learn from")
    if lost.any():
        words = _words_for_missing(column, np.flatnonzero(lost))
        notes.append(f"dropped: {int(lost.sum())} of {len(lost)} rows, which have no label{words}")
    return labels_of(path, label, column.take(rows) if lost.any() else column, task, as_text), rows


def _understood(values: Values, where: str, task: Task | None, notes: list[str]) -> Labels:
    """The labels; an error also says which rows were dropped before."""
    try:
        return understand(values, where, task)
    except InvalidInput as error:
        dropped = "".join(f" ({note})" for note in notes if note.startswith("dropped: "))
        raise InvalidInput(f"{error}{dropped}") from None


def _words_for_missing(column: Any, rows: Rows) -> str:
    """Which words of the label column were taken for missing labels, in case one of them is a class."""
    texts = {text.strip() for text in column.take(rows).to_pylist() if isinstance(text, str)} - {""}
    if not texts:
        return ""
    return f": {some(sorted(map(repr, texts)))} means a missing label (if it is a class, write another word)"
