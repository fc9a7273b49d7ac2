"""Markdown as tests read it: tables by their headers, fenced blocks, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, str]


def cells(line: str) -> list[str]:
    """The cells of a line of a table; an escaped bar does not end a cell."""
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def tables(text: str) -> list[list[Row]]:
    """Every table, its rows by column name. A repeated name gets a number: NLL, NLL 2."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, re.M):
        head, rule, *lines = [cells(line) for line in block.splitlines()]
        assert all(set(cell) <= set("-: ") for cell in rule), block
        names = [name if name not in head[:i] else f"{name} {head[:i].count(name) + 1}" for i, name in enumerate(head)]
        found.append([dict(zip(names, line, strict=True)) for line in lines])
    return found


def table(text: str, *columns: str) -> list[Row]:
    """The only table that starts with these columns."""
    (found,) = [rows for rows in tables(text) if tuple(rows[0])[: len(columns)] == columns]
    return found


def row(rows: list[Row], **values: str) -> Row:
    """The only row with these values; ``_`` in a name means a space."""
    wanted = {name.replace("_", " "): value for name, value in values.items()}
    (found,) = [each for each in rows if wanted.items() <= each.items()]
    return found


@dataclass(frozen=True)
class Block:
    """A fenced block, where it starts, and the reason if it is not run."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        reason, language, code = match.groups()
        yield Block(page, text.count("\n", 0, match.start(3)), language, code, reason or "")
