"""Tables: CSV and Parquet files with one label column and numbers in all others."""

from __future__ import annotations

import csv
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.own.build import Examples, build
from bayesbinn.data.own.kinds import decimal_comma, have_decimal_commas
from bayesbinn.data.own.labels import Values, are_classes
from bayesbinn.data.own.memory import check_fits
from bayesbinn.environment import need
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, nearest

SUFFIXES = (".csv", ".tsv", ".parquet")
MAX_NOTES = 5

# A block of a CSV file holds whole rows. Many columns in small blocks take Arrow a time that grows with their square.
_MIN_BLOCK, _MAX_BLOCK = 2**20, 2**26
# Columns are converted many at once, so that a wide table takes no call for each; about as many cells as this.
_CELLS = 2**20


def load_table(path: Path, label: str | None, *, test: Path | None = None, task: Task | None = None) -> Dataset:
    """One file, or one for training and one for testing with the same columns."""
    notes: list[str] = []
    table = read_table(path, notes)
    features, train = _examples(path, table, label, task)
    tested = None
    if test is not None:
        other = read_table(test, [])
        if sorted(other.column_names) != sorted(table.column_names):
            differ = sorted(set(other.column_names) ^ set(table.column_names))
            raise InvalidInput(f"{test}: its columns differ from those of {path.name}: {', '.join(differ)}")
        # Labels to test with are read as those to train on, however few they are.
        as_text = train.labels.dtype.kind == "U"
        quantities = train.labels.dtype.kind in "iuf" and not are_classes(train.labels, task)
        alike: Task = "regression" if quantities else "classification"
        tested = _examples(test, other.select(table.column_names), label, alike, as_text=as_text)[1]
    notes += _steady(features, train.inputs)
    return build(path, train, tested, task=task, features=features, notes=notes)


def _steady(features: list[str], inputs: Tensor) -> list[str]:
    """Notes on the first columns whose differences get lost in float32."""
    std, mean = torch.std_mean(inputs, 0, correction=0)
    found = ((std > 0) & (std < 1e-6 * mean.abs())).nonzero().flatten().tolist()
    advice = "hardly changes next to its size: subtract its mean to keep its digits"
    return [f"column {features[column]!r} {advice}" for column in found[:MAX_NOTES]]


def read_table(path: Path, notes: list[str]) -> Any:
    """The file as an Arrow table; cells of a CSV are still text. What was left out is added to `notes`."""
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    names = table.column_names
    _check_names(path, names)
    if names and names[0] in ("", "__index_level_0__"):
        notes.append("the first column has no name: taken for row numbers and left out")
        table = table.drop_columns([names[0]])
    if table.num_rows == 0:
        raise InvalidFile(f"{path}: it has a header but no rows: at least one is needed")
    return table


def _read_parquet(path: Path) -> Any:
    parquet = need("pyarrow.parquet", "reading Parquet files")
    try:
        # A column of one value takes no room in the file but all of it in memory.
        facts = parquet.read_metadata(path)
        _check_names(path, facts.schema.to_arrow_schema().names)
        rows = max(facts.num_rows, sum(facts.row_group(group).num_rows for group in range(facts.num_row_groups)))
        check_fits(path, rows * facts.num_columns * 8, f"{rows:,} rows")
        table = parquet.read_table(path)
        table.validate(full=True)  # also that text is UTF-8
        return table
    except BayesbinnError:
        raise
    except Exception as error:  # damaged files make Arrow raise UnicodeDecodeError, MemoryError, KeyError, ... too
        raise InvalidFile(f"{path}: not a readable Parquet file ({_one_line(error)}): write it again") from error


def _read_csv(path: Path) -> Any:
    arrow, reader = need("pyarrow", "reading CSV files"), need("pyarrow.csv", "reading CSV files")
    skipped, size = 0, path.stat().st_size
    check_fits(path, size, "it")
    try:
        skipped, delimiter, names = _header(path)
        return reader.read_csv(
            path,
            # One thread, so that the message about a ragged row says which one it is.
            read_options=reader.ReadOptions(
                column_names=names,
                skip_rows=skipped,
                use_threads=False,
                block_size=min(max(size, _MIN_BLOCK), _MAX_BLOCK),
            ),
            parse_options=reader.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            # As text, so that our own message can name the column and the row of a cell that is no number.
            convert_options=reader.ConvertOptions(
                column_types=dict.fromkeys(names, arrow.string()), strings_can_be_null=False
            ),
        )
    except (arrow.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        # Arrow counts from the start of the file, our messages from the first row below the header.
        reason = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - skipped}", _one_line(error))
        raise InvalidFile(
            f"{path}: not a readable CSV file ({reason}): it needs UTF-8 text, one header line and rows of equal length"
        ) from error


def _header(path: Path) -> tuple[int, str, list[str]]:
    """The number of lines up to and with the header, the delimiter, the names of the columns."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        skipped, header = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (0, ""))
    if not header:
        raise InvalidFile(f"{path}: the file is empty: a header line and rows are needed")
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", header).count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    _check_names(path, names)
    return skipped, delimiter, names


def _check_names(path: Path, names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or "" in names[1:]:
        what = f"two columns are named {twice[0]!r}" if twice else f"column {names.index('', 1) + 1} has no name"
        raise InvalidFile(f"{path}: {what}; the first line must give every column a unique name")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _examples(
    path: Path, table: Any, label: str | None, task: Task | None, *, as_text: bool = False
) -> tuple[list[str], Examples]:
    features = check_label(path, table, label)
    assert label is not None
    labels = labels_of(path, label, table.column(label), task, as_text)
    return features, Examples(numbers_of_columns(path, table, features), labels)


def check_label(path: Path, table: Any, label: str | None) -> list[str]:
    """The columns of a table but for the label, which must be there."""
    names: list[str] = table.column_names
    known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    if label is None:
        raise InvalidInput(f"{path}: which column holds the labels? Name it (label=, or --label); there are {known}")
    if label not in names:
        raise InvalidInput(f"{path}: no column {label!r}.{nearest(label, names)} There are {known}")
    features = [name for name in names if name != label]
    if not features:
        raise InvalidInput(f"{path}: {label!r} is the only column: at least one other is needed to predict it from")
    return features


def numbers_of_columns(path: Path, table: Any, names: list[str]) -> Tensor:
    """float32 [rows, names] of finite numbers; the error names the first cell that is not one."""
    numbers = np.empty((table.num_rows, len(names)), np.float32)
    columns = [table.column(name) for name in names]
    most = max(1, _CELLS // table.num_rows)
    start = 0
    while start < len(names):
        alike = (c for c in range(start, len(names)) if c - start == most or columns[c].type != columns[start].type)
        end = next(alike, len(names))
        numbers[:, start:end] = _numbers_of(path, names[start:end], columns[start:end]).T
        start = end
    return torch.from_numpy(numbers)


def _numbers_of(path: Path, names: list[str], columns: list[Any]) -> npt.NDArray[np.float64]:
    """[names, rows] of columns of one type."""
    arrow = need("pyarrow", "reading tables")
    chunks = [chunk for column in columns for chunk in column.chunks]
    cells, is_text = _cells(arrow.chunked_array(chunks, type=columns[0].type))
    kind, rows = cells.type, len(columns[0])
    if not (is_text or arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
        raise InvalidFile(f"{path}: column {names[0]!r} holds {kind}, not numbers: convert it or drop the column")
    try:
        numbers: npt.NDArray[np.float64] = cells.cast(arrow.float64(), safe=False).to_numpy()
    except arrow.ArrowInvalid:
        all_cells = enumerate(cells.to_pylist())
        place, cell = next((place, cell) for place, cell in all_cells if cell is not None and not is_number(cell))
        raise InvalidFile(
            f"{path}: column {names[place // rows]!r} holds {cell[:100]!r} in row {place % rows + 1}, which is not a "
            "number: correct the cell or drop the column"
        ) from None
    numbers = numbers.reshape(len(names), rows)
    bad = ~(np.abs(numbers) <= np.finfo(np.float32).max)
    if bad.any():
        column = int(bad.any(1).argmax())
        raise InvalidFile(
            f"{path}: column {names[column]!r} is empty, NaN or too large in row {bad[column].argmax() + 1} "
            f"({bad[column].sum()} such cells): fill them, or drop the rows or the column"
        )
    return numbers


def labels_of(path: Path, name: str, column: Any, task: Task | None, as_text: bool) -> Values:
    """Numbers if every cell is one, otherwise text; no cell may be empty.

    Names of classes such as 01 and 1, or whole numbers too large to be told apart, stay text too; with `as_text`
    all text does.
    """
    arrow = need("pyarrow", "reading tables")
    column, is_text = _cells(column)
    if column.null_count:
        row = next(r for r, cell in enumerate(column, 1) if not cell.is_valid)
        raise InvalidFile(
            f"{path}: the label column {name!r} is empty in row {row} ({column.null_count} such cells): "
            "fill them or drop the rows"
        )
    if not is_text:
        values: Values = column.to_numpy()
        return values
    if as_text:
        return np.array(column.to_pylist(), dtype=np.str_)
    try:
        numbers: Values = column.cast(arrow.float64()).to_numpy()
    except arrow.ArrowInvalid:
        texts = column.unique().to_pylist()
        if have_decimal_commas(texts):
            raise InvalidFile(f"{path}: the label column {name!r} {decimal_comma(texts)}") from None
        return np.array(column.to_pylist(), dtype=np.str_)
    with suppress(arrow.ArrowInvalid):  # as floating point, two whole numbers above 2^53 can be one class
        numbers = column.cast(arrow.int64()).to_numpy()
    if are_classes(numbers, task):
        texts = column.unique().to_pylist()
        if len(texts) > len(np.unique(numbers)) or not all(map(_keeps_its_digits, texts)):
            return np.array(column.to_pylist(), dtype=np.str_)
    return numbers


def _keeps_its_digits(text: str) -> bool:
    """Whether a number, if it is written as a whole one, is written as its int64 would be."""
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return True
    return len(digits) < 20 and str(int(text)) == text and -(2**63) <= int(text) < 2**63


def _cells(column: Any) -> tuple[Any, bool]:
    """The column without dictionary encoding, and whether it is text: then trimmed, with empty cells as null."""
    arrow, compute = need("pyarrow", "reading tables"), need("pyarrow.compute", "reading tables")
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        return column, False
    column = compute.utf8_trim_whitespace(column)
    return compute.if_else(compute.equal(column, ""), None, column), True


def is_number(text: str) -> bool:
    """Whether a cell is a number, as tables are read."""
    arrow = need("pyarrow", "reading tables")
    try:
        arrow.scalar(text, arrow.string()).cast(arrow.float64())
    except arrow.ArrowInvalid:
        return False
    return True
