"""Write the files of a table or figure: Markdown, numbers as JSON, and figures of print quality."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesbinn.environment import describe
from bayesbinn.files import make_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors: color-blind readers can distinguish them, and in this order they differ in gray as well.
BLACK, BLUE, ORANGE, SKY, GRAY = "#000000", "#0072B2", "#E69F00", "#56B4E9", "#808080"

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text stays text in the PDF
    "savefig.dpi": 200,
}


@contextmanager
def new_figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> Iterator[Any]:
    """A figure and its axes (always a 2-d array) in the common style; the figure is closed afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, **options)
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.pdf; the same figure gives the same bytes."""
    make_folder(out)
    paths = [out / f"{name}.png", out / f"{name}.pdf"]
    for path in paths:
        content = io.BytesIO()
        metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
        figure.savefig(content, format=path.suffix[1:], metadata=metadata)
        write_whole(path, content.getbuffer())
    return paths


def save_text(out: Path, name: str, markdown: str, numbers: dict[str, Any]) -> list[Path]:
    """Write NAME.md and NAME.json."""
    make_folder(out)
    paths = [out / f"{name}.md", out / f"{name}.json"]
    write_whole(paths[0], (markdown.rstrip() + "\n").encode())
    write_whole(paths[1], (json.dumps(numbers, indent=1, ensure_ascii=False) + "\n").encode())
    return paths


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns also line up as plain text.

    >>> print(markdown_table(["a", "b"], [["1", "long"]]))
    | a | b    |
    | - | ---- |
    | 1 | long |
    """
    cells = [[text.replace("|", "\\|") for text in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    )


def machine(ran_on: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """The hardware and software that produced the numbers: every machine of `ran_on`, or this one.

    >>> common = {"cores": 2, "bayesbinn": "0.1.0", "torch": "2.13.0", "kernels": "native, avx2", "threads": 1}
    >>> machine([{"processor": "A", **common}, {"processor": "B", **common}])["Machine"]
    'A, 2 cores and B, 2 cores'
    """
    texts = [
        {
            "Machine": f"{facts['processor']}, {facts['cores']} cores",
            "Software": f"bayesbinn {facts['bayesbinn']}, torch {facts['torch']}",
            "Kernels": f"{facts['kernels']}; torch threads: {facts['threads']}",
        }
        for facts in ran_on or [describe()]
    ]
    return {key: " and ".join(dict.fromkeys(text[key] for text in texts)) for key in texts[0]}


def machine_rows(columns: int, facts: Mapping[str, str]) -> list[list[str]]:
    """The last rows of every table."""
    return [[key, value, *[""] * (columns - 2)] for key, value in facts.items()]


def written(paths: Sequence[Path]) -> str:
    """A line that says what was written where."""
    folder = paths[0].parent
    return f"{folder}: {', '.join(path.name for path in paths)}"
