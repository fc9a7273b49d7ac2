"""The picture at the top of the README, in a light and a dark version.

    python benchmarks/picture.py --out docs/images

Left: weights of a network trained on scikit-learn's digits. Middle: what two networks trained on two moons say about
the plane around the data. Right: milliseconds per input, from results/benchmarks/inference.json. The networks are
trained by the command line (about a minute); ``--keep`` keeps their run folders, and finished ones are reused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import bayesbinn as bb

ROOT = Path(__file__).parents[1]
INFERENCE = ROOT / "results" / "benchmarks" / "inference.json"
SAMPLES = 50
TILES = (5, 7)
STEP = 0.04

# Okabe and Ito's blue and orange, which colour-blind readers can tell apart.
BLUE, ORANGE = "#0072B2", "#E69F00"


@dataclass(frozen=True)
class Theme:
    """Colours for one background."""

    name: str
    ink: str
    page: str
    faint: str


THEMES = (
    Theme("light", ink="#1f2328", page="#ffffff", faint="#c8ccd1"),
    Theme("dark", ink="#e6edf3", page="#0d1117", faint="#3d444d"),
)
CONTESTANTS = {
    "torch fp32": "PyTorch",
    "onnxruntime fp32": "onnxruntime",
    "onnxruntime int8": "onnxruntime, int8",
    "exact": "bayesbinn",
    "int8": "bayesbinn, int8",
}


@dataclass(frozen=True)
class Plane:
    """The probability of the second class on a grid around the two moons."""

    across: np.ndarray[Any, Any]
    up: np.ndarray[Any, Any]
    probability: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Content:
    """Everything that is drawn."""

    weights: np.ndarray[Any, Any]
    points: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    planes: dict[str, Plane]
    milliseconds: dict[str, float]


def bayesbinn(*arguments: str | Path) -> None:
    """Run a command; its output is shown only if it fails."""
    command = [sys.executable, "-m", "bayesbinn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def trained_weights(folder: Path, epochs: list[str]) -> np.ndarray[Any, Any]:
    """The first layer of a digits network: one 8×8 tile of -1 and +1 per hidden unit."""
    bayesbinn("train", "digits", *epochs, "--out", folder)
    mode = bb.BernoulliPosterior.load(folder / "posterior.safetensors").mode()
    first = next(iter(mode.values())).numpy()
    return first.reshape(-1, 8, 8)


def predicted_plane(folder: Path, method: str, samples: int, epochs: list[str], points: np.ndarray[Any, Any]) -> Plane:
    """Train on two moons, then predict every point of a grid around them."""
    bayesbinn("train", "moons", "--method", method, *epochs, "--out", folder)
    (left, low), (right, high) = points.min(0) - 0.9, points.max(0) + 0.9
    across, up = np.arange(left, right, STEP), np.arange(low, high, STEP)
    inputs, answers = folder / "grid.npy", folder / "grid.json"
    np.save(inputs, np.stack(np.meshgrid(across, up), -1).reshape(-1, 2).astype(np.float32))
    bayesbinn("predict", folder, inputs, "--samples", str(samples), "--no-calibrate", "--out", answers)
    rows = json.loads(answers.read_text())
    return Plane(across, up, np.array([row["p(lower)"] for row in rows]).reshape(len(up), len(across)))


def measured_milliseconds() -> dict[str, float]:
    """One input, one thread, the MNIST MLP."""
    rows = json.loads(INFERENCE.read_text())["rows"]
    (row,) = [row for row in rows if (row["task"], row["batch"], row["threads"]) == ("MNIST MLP", 1, 1)]
    return {label: row["milliseconds"][name] for name, label in CONTESTANTS.items()}


def gathered(keep: Path, epochs: int | None) -> Content:
    """Train what is missing and read the measurements."""
    fewer = [] if epochs is None else ["--epochs", str(epochs)]
    moons = bb.data.load("moons").train_inputs.numpy(), bb.data.load("moons").train_targets.numpy()
    return Content(
        trained_weights(keep / "digits", fewer),
        *moons,
        {
            "One network (straight-through):\nsure almost everywhere": predicted_plane(
                keep / "moons-ste", "ste", 0, fewer, moons[0]
            ),
            f"{SAMPLES} samples of the posterior:\nunsure between the classes": predicted_plane(
                keep / "moons-bayesbinn", "bayesbinn", SAMPLES, fewer, moons[0]
            ),
        },
        measured_milliseconds(),
    )


def drawn(content: Content, theme: Theme, path: Path) -> None:
    """One SVG on a transparent background; the same content gives the same bytes."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {
        **{"font.family": "DejaVu Sans", "font.size": 8, "svg.hashsalt": "bayesbinn", "savefig.transparent": True},
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), theme.ink),
    }
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(9.6, 2.35))
        grid = figure.add_gridspec(1, 4, width_ratios=[1.25, 1.2, 1.2, 1.1], wspace=0.12)
        left, *middle, right = [figure.add_subplot(place) for place in grid]
        draw_weights(left, content.weights, theme)
        for axis, (title, plane) in zip(middle, content.planes.items(), strict=True):
            draw_plane(axis, title, plane, content, theme)
        draw_times(right, content.milliseconds, theme)
        figure.subplots_adjust(left=0.01, right=0.985, top=0.84, bottom=0.02)
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": "bayesbinn"})
        pyplot.close(figure)


def draw_weights(axis: Any, weights: np.ndarray[Any, Any], theme: Theme) -> None:
    """Hidden units side by side, a gap of one pixel between them."""
    rows, columns = TILES
    sheet = np.full((9 * rows - 1, 9 * columns - 1), np.nan)
    for index in range(rows * columns):
        top, start = 9 * (index // columns), 9 * (index % columns)
        sheet[top : top + 8, start : start + 8] = weights[index]
    colours = matplotlib.colors.ListedColormap([theme.faint, BLUE])
    sharp = np.kron(sheet, np.ones((12, 12)))  # viewers smooth an enlarged image
    axis.imshow(np.ma.masked_invalid(sharp), cmap=colours, vmin=-1, vmax=1, interpolation="none")
    axis.set_anchor("N")
    axis.axis("off")
    axis.set_title("Every weight is −1 or +1\n(hidden units of a digits network)", fontsize=8)


def draw_plane(axis: Any, title: str, plane: Plane, content: Content, theme: Theme) -> None:
    """Blue and orange where the network is sure, the page's colour where it is not."""
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("sure", [BLUE, theme.page, ORANGE])
    extent = (plane.across[0], plane.across[-1], plane.up[0], plane.up[-1])
    axis.imshow(
        plane.probability, cmap=colours, vmin=0, vmax=1, origin="lower", extent=extent, interpolation="bilinear"
    )
    for label, marker in ((0, "o"), (1, "^")):
        chosen = content.points[content.labels == label][::2]
        axis.scatter(*chosen.T, s=7, marker=marker, c=theme.ink, linewidths=0)
    axis.set_anchor("N")
    axis.axis("off")
    axis.set_title(title, fontsize=8)


def draw_times(axis: Any, milliseconds: dict[str, float], theme: Theme) -> None:
    """Bars on a linear scale, the label above each."""
    for place, (label, value) in enumerate(milliseconds.items()):
        ours = label.startswith("bayesbinn")
        axis.barh(-place, value, height=0.34, color=BLUE if ours else theme.faint)
        axis.text(0, -place + 0.26, label, fontsize=7, va="bottom")
        axis.text(value + 0.05, -place, f"{value:.2f} ms", fontsize=7, va="center")
    axis.set_xlim(0, 1.35 * max(milliseconds.values()))
    axis.set_ylim(-len(milliseconds) + 0.6, 0.75)
    axis.axis("off")
    axis.set_title("Fast without PyTorch\n(MNIST network, one thread)", fontsize=8)


def main() -> None:
    """Draw both themes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--keep", type=Path, help="folder for the run folders; default: a temporary one")
    parser.add_argument("--epochs", type=int, help="fewer epochs than the presets have")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        content = gathered(arguments.keep or Path(temporary), arguments.epochs)
    for theme in THEMES:
        path = arguments.out / f"overview-{theme.name}.svg"
        drawn(content, theme, path)
        print(path)


if __name__ == "__main__":
    main()
