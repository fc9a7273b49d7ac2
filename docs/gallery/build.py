"""Builds the pages of the gallery: trains what is missing, packs it, measures it, writes the pages and index.md.

    python docs/gallery/build.py [--runs FOLDER]

The ten digit networks take about half an hour on two cores; runs that are finished are used as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayesbinn.data.catalog import load as load_data
from bayesbinn.export import export_html
from bayesbinn.format import read
from bayesbinn.runs.ship import pack_runs
from bayesbinn.runtime import load
from bayesbinn.sklearn import BinaryNetworkClassifier

HERE = Path(__file__).parent
SEEDS = range(1, 11)
EPOCHS, STRENGTH = 12, 0.6
SETTINGS = {"model.width": 0.25, "data.split_seed": 0, "data.distort": STRENGTH}
LEARNED = 450
"""Customers that the form's networks learn from."""

INDEX = """# Gallery

Pages that `bayesbinn export --to html` wrote: one file each, with the networks and the WebAssembly runtime inside.
Nothing is sent anywhere; save a page and it works without a connection. `make gallery` builds them.

## [Draw a digit](digits.html)

{digits} The page shows the 28×28 pixels that the networks see, what each of them says, and how unfamiliar the drawing
is. Most letters and scribbles are refused, and so is one in twenty digits of MNIST: the
[measurements](../../results/benchmarks/drawings.md).

```sh
bayesbinn train mnist --seed 1 --epochs {epochs} {settings} --out mnist-1
bayesbinn train mnist --seed 2 --epochs {epochs} {settings} --out mnist-2   # and so on
bayesbinn pack mnist-1 mnist-2 --unfamiliarity -o mnist.safetensors
bayesbinn export mnist.safetensors --to html
```

## [Fill in a form](customers.html)

{customers} The table is the made-up one of [Tables](../tables.md): age and job decide who buys. Any cell may be
missing; the page says which classes are possible and whether the row is like those of the training table.
"""


def train(folder: Path) -> list[Path]:
    """The folders of the digit networks; those that are not finished are trained."""
    runs = []
    for seed in SEEDS:
        run = folder / f"digits-{seed}"
        runs.append(run)
        if not (run / "scores.json").exists():
            settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
            command = ["train", "mnist", "--seed", str(seed), "--epochs", str(EPOCHS), *settings, "--out", str(run)]
            subprocess.run([sys.executable, "-m", "bayesbinn", *command], check=True)
    return runs


def digits(runs: list[Path], folder: Path) -> str:
    """Writes the page of the digits; returns what it says."""
    path = folder / "digits.safetensors"
    pack_runs(runs, path, unfamiliarity=True)
    data, model = load_data("mnist"), load(path)
    assert data.test_targets is not None
    right = model.predict_proba(data.test_inputs.numpy()).argmax(axis=1) == data.test_targets.numpy()
    about = (
        f"{len(runs)} networks with weights −1 and +1, three hidden layers of 512 units, trained for {EPOCHS} epochs "
        f"on MNIST with distorted digits (data.distort={STRENGTH:g}): {100 * right.mean():.2f} % of the 10,000 test "
        f"digits are right. {path.stat().st_size / 1e6:.2f} MB."
    )
    export_html(read(path), HERE / "digits.html", title="Draw a digit", about=about)
    return about


def made_up_customers(rows: int = 600) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """A table, and who buys."""
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": random.integers(18, 90, rows).astype(float),
            "income": random.lognormal(7, 1, rows).round(2),
            "job": random.choice(["nurse", "cook", "clerk"], rows),
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 1500, rows), "D"),
        }
    )
    buys = np.where((table["age"] > 50) ^ (table["job"] == "nurse"), "yes", "no")
    table.loc[random.random(rows) < 0.05, "age"] = np.nan
    return table, buys


def customers(folder: Path) -> str:
    """Writes the page of a table of made-up customers; returns what it says."""
    table, buys = made_up_customers()
    model = BinaryNetworkClassifier(random_state=0).fit(table[:LEARNED], buys[:LEARNED])
    path = model.save(folder / "customers.safetensors")
    share, others = 100 * model.score(table[LEARNED:], buys[LEARNED:]), len(table) - LEARNED
    about = (
        f"{model.networks_} networks that learned from {LEARNED} customers: {share:.0f} % of {others} others are right."
    )
    export_html(read(path), HERE / "customers.html", title="Does this customer buy?", about=about)
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path.home() / ".cache" / "bayesbinn" / "gallery")
    folder = parser.parse_args().runs
    folder.mkdir(parents=True, exist_ok=True)
    settings = " ".join(f"--set {key}={value}" for key, value in SETTINGS.items())
    texts = {"digits": digits(train(folder), folder), "customers": customers(folder)}
    (HERE / "index.md").write_text(INDEX.format(**texts, epochs=EPOCHS, settings=settings))


if __name__ == "__main__":
    main()
