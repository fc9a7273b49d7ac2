"""What a page is made of: text, tables, drawings, pictures. Plain values, escaped here and nowhere else.

Names of classes, columns, files and runs come from data that somebody else may have written, so every text may hold
markup. `escaped` makes it harmless; drawings are the exception, since the drawing library has escaped their text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bayesbinn.errors import printable


def escaped(text: str) -> str:
    """Text for HTML, in elements and in attributes.

    >>> escaped('<b onclick="x">')
    '&lt;b onclick=&quot;x&quot;&gt;'
    """
    return html.escape(printable(text), quote=True)


class Block(Protocol):
    """A piece of a section."""

    def to_html(self) -> str:
        """Its markup, escaped."""
        ...


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str

    def to_html(self) -> str:
        return f"<p>{escaped(self.words)}</p>"


@dataclass(frozen=True)
class Missing:
    """Why something is not shown."""

    reason: str

    def to_html(self) -> str:
        return f'<p class="missing">Not shown: {escaped(self.reason)}</p>'


@dataclass(frozen=True)
class Code:
    """Commands or settings, as they appear in a terminal or a file."""

    text: str

    def to_html(self) -> str:
        shown = html.escape(printable(self.text, keep_lines=True), quote=True)
        return f'<pre tabindex="0"><code>{shown}</code></pre>'


@dataclass(frozen=True)
class Facts:
    """Names and values, such as the headline numbers of a page."""

    rows: Sequence[tuple[str, str]]
    large: bool = False

    def to_html(self) -> str:
        kind = "numbers" if self.large else "facts"
        pairs = "".join(f"<div><dt>{escaped(k)}</dt><dd>{escaped(v)}</dd></div>" for k, v in self.rows)
        return f'<dl class="{kind}">{pairs}</dl>'


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, columns of numbers are aligned right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """How many columns from the left hold words."""

    def to_html(self) -> str:
        head = "".join(f'<th{self._kind(i)} scope="col">{escaped(each)}</th>' for i, each in enumerate(self.head))
        rows = "".join(f"<tr>{self._row(row)}</tr>" for row in self.rows)
        return (
            f'<section class="wide" tabindex="0" aria-label="{escaped(self.caption)}"><table>'
            f"<caption>{escaped(self.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
        )

    def _row(self, row: Sequence[str]) -> str:
        first, rest = row[0], list(row[1:])
        cells = "".join(f"<td{self._kind(i)}>{escaped(each)}</td>" for i, each in enumerate(rest, 1))
        return f'<th scope="row">{escaped(first)}</th>{cells}'

    def _kind(self, column: int) -> str:
        return "" if column < self.words else ' class="number"'


@dataclass(frozen=True)
class Matrix:
    """Counts by row and column, darker where a row's share is larger."""

    caption: str
    corner: str
    names: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    shares: Sequence[Sequence[float]]
    """From 0 to 1: how dark a cell is."""
    digits: int = 0

    def to_html(self) -> str:
        head = "".join(f'<th scope="col">{escaped(each)}</th>' for each in self.columns)
        rows = "".join(
            f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(self._cell, values, shares))}</tr>'
            for name, values, shares in zip(self.names, self.values, self.shares, strict=True)
        )
        return (
            f'<section class="wide" tabindex="0" aria-label="{escaped(self.caption)}"><table class="matrix">'
            f"<caption>{escaped(self.caption)}</caption><thead><tr>"
            f'<th scope="col">{escaped(self.corner)}</th>{head}</tr>'
            f"</thead><tbody>{rows}</tbody></table></section>"
        )

    def _cell(self, value: float | None, share: float) -> str:
        if value is None:
            return "<td></td>"
        # Five steps: the text stays readable on each, in both themes.
        step = 0 if value == 0 else 1 + min(4, int(5 * share))
        return f'<td class="s{step}">{value:.{self.digits}f}</td>'


@dataclass(frozen=True)
class Drawing:
    """An inline SVG, as `drawing.drawn` makes it: its text is escaped and its ids are unique."""

    svg: str
    caption: str

    def to_html(self) -> str:
        return f"<figure>{self.svg}<figcaption>{escaped(self.caption)}</figcaption></figure>"


@dataclass(frozen=True)
class Row:
    """Blocks side by side if there is room."""

    blocks: Sequence[Block]

    def to_html(self) -> str:
        return f'<div class="row">{"".join(block.to_html() for block in self.blocks)}</div>'


@dataclass(frozen=True)
class Picture:
    """A small image with a line or two below it."""

    uri: str
    """``data:image/png;base64,…``"""
    alt: str
    lines: Sequence[str]

    def to_html(self) -> str:
        lines = "<br>".join(map(escaped, self.lines))
        return (
            f'<li><img src="{escaped(self.uri)}" alt="{escaped(self.alt)}" width="84" height="84">'
            f"<span>{lines}</span></li>"
        )


@dataclass(frozen=True)
class Pictures:
    """A sheet of pictures."""

    pictures: Sequence[Picture]

    def to_html(self) -> str:
        return f'<ul class="pictures">{"".join(each.to_html() for each in self.pictures)}</ul>'


@dataclass(frozen=True)
class Section:
    """A heading and the blocks under it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)

    @property
    def anchor(self) -> str:
        """An id that a link can name.

        >>> Section("P(w = +1), by layer").anchor
        'p-w-1-by-layer'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def to_html(self) -> str:
        inner = "\n".join(block.to_html() for block in self.blocks)
        return f'<section id="{self.anchor}">\n<h2>{escaped(self.title)}</h2>\n{inner}\n</section>'
