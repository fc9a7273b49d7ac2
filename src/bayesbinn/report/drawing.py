"""Inline SVG in the colors of the page: one drawing serves light, dark and print.

matplotlib draws with placeholders, which are then replaced by the page's CSS variables. What a browser does not need
(prolog, metadata, digits beyond a hundredth of a point, ids that nothing refers to) is removed.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bayesbinn.errors import printable
from bayesbinn.report.blocks import Drawing

INK, GRID, QUIET = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
"""Colors that color-blind readers can tell apart; curves also differ in their dashes."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)), (0, (2, 2)))
_VARIABLES = {INK: "--ink", GRID: "--grid", QUIET: "--quiet"} | {c: f"--c{i}" for i, c in enumerate(SERIES, 1)}

WIDTH, HEIGHT = 4.7, 2.9
"""Inches: at this width, text of 9 points stays readable on a phone."""
MAX_POINTS = 240
"""The most points of a curve; more cannot be seen at this size."""

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.labelsize": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "text.parse_math": False,  # names from a user's files may hold $
    "path.simplify": True,
}


@contextmanager
def canvas(rows: int = 1, columns: int = 1, height: float = HEIGHT, **options: Any) -> Iterator[Any]:
    """A figure and its axes, a 2-d array, in the page's style; `height` in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, **options)
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def drawn(figure: Any, name: str, alt: str, caption: str) -> Drawing:
    """A figure as a block of the page. `name` must be unique on it; `alt` says what the figure shows."""
    import matplotlib

    content = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the same figure gives the same text
        figure.savefig(content, format="svg", metadata={"Date": None})
    return Drawing(_for_page(content.getvalue(), name, alt), caption)


def thinned(values: Sequence[Any], most: int = MAX_POINTS) -> list[Any]:
    """Evenly spaced values, always with the first and the last.

    >>> thinned(range(10), most=4)
    [0, 3, 6, 9]
    """
    count = len(values)
    if count <= most:
        return list(values)
    return [values[round(i * (count - 1) / (most - 1))] for i in range(most)]


def whole_numbers(axis: Any) -> None:
    """Put the ticks of the horizontal axis at whole numbers only: epochs and tasks."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def logarithmic(axis: Any) -> None:
    """Make the vertical axis logarithmic, with its numbers as plain text."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(lambda value, _: "")


def short(text: str, most: int = 24) -> str:
    """A name that fits into a drawing.

    >>> short("a very long name of a column", 12)
    'a very long…'
    """
    text = printable(text)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _for_page(svg: str, name: str, alt: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    tags = re.findall(r"<[^>]+>", svg)
    used = {each for tag in tags for each in re.findall(r'(?:href="|url\()#([^")]*)', tag)}
    view = re.search(r'viewBox="[^"]*"', tags[0])
    assert view is not None
    opening = f'<svg role="img" aria-label="{html.escape(printable(alt), quote=True)}" {view[0]}>'
    # Only tags are changed: the text between them may be a name from a user's file.
    svg = re.sub(r"<[^>]+>", lambda tag: opening if tag[0] == tags[0] else _for_browser(tag[0], name, used), svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _for_browser(tag: str, name: str, used: set[str]) -> str:
    tag = re.sub(r'\sid="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", tag)
    tag = re.sub(r'(?:xlink:)?(href="|url\()#', rf"\g<1>#{name}-", tag)
    for placeholder, variable in _VARIABLES.items():
        tag = tag.replace(placeholder, f"var({variable})")
    return re.sub(r"-?\d+\.\d{3,}(e-\d+)?", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), tag)
