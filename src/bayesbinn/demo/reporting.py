"""The very end of the demo: a run in a folder, and its page to look at."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from bayesbinn.errors import BayesbinnError, printable
from bayesbinn.experiments.config import load_experiment
from bayesbinn.report import write_report
from bayesbinn.runs.open import open_any

EPOCHS = 15


def show_report(console: Console, seed: int, runs: Path = Path("runs")) -> Path | None:
    """Train a run whose posterior is spread out and say where its page is; None if it cannot be written here."""
    folder = runs / f"demo-{seed}"
    changes = {"training.seed": seed, "training.epochs": EPOCHS, "certainty": 100}
    try:
        open_any(load_experiment("digits", overrides=changes), folder, None).train()
        page = write_report(folder)
    except BayesbinnError as error:
        console.print(printable(f"no report: {error}"), markup=False, soft_wrap=True)
        return None
    again = shlex.join(["bayesbinn", "report", str(folder), "--open"])
    console.print(printable(f"A report of one such run: {page} ({again})"), markup=False, soft_wrap=True)
    return page
