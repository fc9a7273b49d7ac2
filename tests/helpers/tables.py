"""Tables of Markdown pages, and whether their numbers are in results/, row by row and column by column.

`tests/shown_tables.toml` says where the numbers of each table come from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.places import ROOT

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Table:
    """A table under a heading; a name that the head has twice becomes "name" and "name (2)"."""

    section: str
    head: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    @property
    def has_figures(self) -> bool:
        """Whether a column after the first has only numbers with a fraction."""
        columns = ([row[name] for row in self.rows] for name in self.head[1:])
        return any(all(re.fullmatch(r"[-+]?\d+\.\d+.*", cell) for cell in cells) for cells in columns)


def under_names_of(spec: Mapping[str, Any], table: Table) -> Table | None:
    """The table if it is the one that `spec` describes, under the names of `head`; `also` has a page's other names."""
    other = spec.get("also", {})
    if [other.get(name, name) for name in table.head] != spec["head"]:
        return None
    rows = tuple({other.get(name, name): cell for name, cell in row.items()} for row in table.rows)
    return Table(table.section, tuple(spec["head"]), rows)


def tables_of(text: str) -> list[Table]:
    """The tables of a page: those of Markdown, and those that rich draws with lines."""
    found, section, drawn, lines = [], "", False, list[str]()
    for line in [*text.splitlines(), ""]:
        if re.match(r"\s*[|│┃]", line):
            drawn = not line.strip().startswith("|")
            lines.append(re.sub("[│┃]", "|", line.strip()))
        elif not re.match(r"\s*[├┡└┏]", line):
            if len(lines) > 1 and (drawn or set(lines[1]) <= set("|-: ")):
                found.append(_table(section, lines))
            lines = []
            if line.startswith("#"):
                section = line.lstrip("# ")
    return found


def _table(section: str, lines: list[str]) -> Table:
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])] for line in lines]
    seen: Counter[str] = Counter()
    head = []
    for name in cells[0]:
        seen[name] += 1
        head.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    body = [row for row in cells[1:] if not all(re.fullmatch(":?-+:?", cell) for cell in row)]
    return Table(section, tuple(head), tuple(dict(zip(head, row, strict=True)) for row in body))


def same_figures(shown: str, source: str) -> bool:
    """Whether each number of a cell is the source's number, rounded to the digits shown; units do not count.

    A cell without numbers has to have the source's words.

    >>> same_figures("75.1 ms", "75.11"), same_figures("75.2 ms", "75.11"), same_figures("85.4 ± 0.2", "85.44 ± 0.18")
    (True, False, True)
    >>> same_figures("not given", "not given"), same_figures("not given", "98.8"), same_figures("", "")
    (True, False, False)
    """
    ours, theirs = (_NUMBER.findall(text.replace("−", "-")) for text in (shown, source))
    if not ours and not theirs:
        return shown == source != ""
    return len(ours) == len(theirs) and all(map(_rounds_to, theirs, ours))


def _rounds_to(exact: str, shown: str) -> bool:
    mantissa, _, exponent = shown.replace(",", "").partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(exact.replace(",", "")) - float(shown.replace(",", ""))) <= half * (1 + 1e-9)


def wrong_figures(shown: Table, spec: Mapping[str, Any], root: Path = ROOT) -> Iterator[str]:
    """A line for each number of a shown table that its source does not have in that row and column.

    `spec`: `file`, `keys` (shown column → source column that finds the row), `figures` (shown column → source column,
    or a table with `column` and `where`); optionally `where` (source column → cell), `renamed` (shown cell → the
    source's name for it) and `sections` (a row's first cell → the source's heading).
    """
    sources = tables_of((root / spec["file"]).read_text(encoding="utf-8"))
    renamed = spec.get("renamed", {})
    for row in shown.rows:
        section = spec.get("sections", {}).get(row[shown.head[0]])
        wanted = {there: renamed.get(row[here], row[here]) for here, there in spec.get("keys", {}).items()}
        for here, there in spec["figures"].items():
            column = there if isinstance(there, str) else there["column"]
            where = {**wanted, **spec.get("where", {}), **({} if isinstance(there, str) else there["where"])}
            cells = [
                line[column]
                for table in sources
                if column in table.head and (section is None or table.section == section)
                for line in table.rows
                if all(line.get(name) == value for name, value in where.items())
            ]
            if len(cells) != 1 or not same_figures(row[here], cells[0]):
                yield f"{list(row.values())}: {here!r} is {row[here]!r}; {spec['file']} has {cells} in {column!r}"
