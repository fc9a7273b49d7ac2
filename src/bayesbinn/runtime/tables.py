"""Raw tables for a model file that has an encoding: CSV files read with the standard library, in strips of rows."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile.cells import NotOfItsKind, number_of
from bayesbinn.modelfile.encoder import InvalidCell
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.strangers import Strangers

_STRIP = 20_000
"""How many rows are read at a time; their cells are text, ten times the size of their codes."""


def encoded_strips(path: Path, encoding: TableEncoding, notes: list[str]) -> Iterator[NDArray[np.float32]]:
    """Encode a .csv or .tsv file, whose first line names its columns in any order, as [rows, width] strip by strip."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _encoded(path, file, encoding, notes)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: not a text table ({error})") from None


def _encoded(
    path: Path, file: Iterator[str], encoding: TableEncoding, notes: list[str]
) -> Iterator[NDArray[np.float32]]:
    first = next((line for line in file if line.strip()), "")
    if not first:
        raise InvalidFile(f"{path}: it has no examples")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
    header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
    rows: Iterator[list[str]] = (row for row in csv.reader(file, delimiter=delimiter) if row)
    if _is_a_row(path, header, encoding):
        notes.append(f"{path}: its first line has only numbers, so it is read as data, in the order of the model")
        rows, header = chain([header], rows), list(encoding.names)
    check_names(path, header)
    encoding.check_columns(header, str(path))
    notes += encoding.notes_on([name for name in header if name], str(path))
    places = [header.index(name) for name in encoding.names]
    done, strangers = 0, Strangers(encoding.columns)
    while some := list(islice(rows, _STRIP)):
        for place, row in enumerate(some):
            if len(row) != len(header):
                raise InvalidFile(
                    f"{path}: row {done + place + 1} has {len(row)} cells, the header names {len(header)} columns"
                )
        columns = list(zip(*some, strict=True))
        try:
            table = {name: columns[i] for name, i in zip(encoding.names, places, strict=True)}
            codes = encoding.encode(table, strangers=strangers)
        except InvalidCell as error:
            raise InvalidFile(f"{path}: {error.in_row(done + error.row)}") from None
        yield codes
        done += len(some)
    if not done:
        raise InvalidFile(f"{path}: it has no examples")
    notes += strangers.notes(str(path))


def _is_a_row(path: Path, first: list[str], encoding: TableEncoding) -> bool:
    """Whether a table has no header: its first line is all numbers and does not name the model's columns."""
    try:
        numbers = all(isfinite(number_of(cell)) for cell in first)
    except NotOfItsKind:
        numbers = False
    if not numbers or set(encoding.names) <= set(first):
        return False
    if len(first) != len(encoding.names):
        raise InvalidInput(
            f"{path}: its first line has {len(first)} numbers and does not name the model's {len(encoding.names)} "
            "columns; add a header line"
        )
    return True


def _delimiter(header: str) -> str:
    """Comma, semicolon or tab: whichever occurs most often in the header, outside quotation marks."""
    bare = "".join(header.split('"')[::2])
    return max(",;\t", key=bare.count)


def check_names(path: Path, header: list[str]) -> None:
    """Reject a header that does not give every column a unique name; only the first may have none."""
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice or "" in header[1:]:
        what = f"two columns are named {twice[0]!r}" if twice else f"column {header.index('', 1) + 1} has no name"
        raise InvalidFile(f"{path}: {what}; the first line must give every column a unique name")
