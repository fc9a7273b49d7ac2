"""What lookups and faster dropout masks save in a training step of the paper's MNIST network.

One process, all contestants interleaved in every round, medians, with the training loop of the package:

    python benchmarks/shortcuts.py [--out FOLDER] [--rounds N] [--threads 1,2]

The training loop draws the dropout masks faster only in `bb.train.fit` and `bayesbinn train`; the products are faster
in any loop. In `late`, 1 % of the weights are so close to λ = 0 that noise can flip them, as after ten epochs of a
schedule of 20 on MNIST; in `long`, 6 %, as after 56 epochs of the paper's 500. With a certainty all weights are
relaxed, so that nothing is looked up. Prints a table and writes FOLDER/shortcuts.json and FOLDER/shortcuts.md. Both
keep what was measured with other kernels or on another processor, perhaps at an earlier commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.environment import describe
from bayesbinn.kernels import native
from bayesbinn.models import mnist_mlp
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.train import loop
from bayesbinn.train.memory import keep_freed_memory

UNITS = {512: 0.25, 2048: 1.0}
UNCERTAIN = {"late": 0.01, "long": 0.06}
NEAR = 8.0
"""|λ| of the uncertain weights is below this."""
STEPS = 4
"""In each round."""
KINDS = (
    *("fused Adam", "BayesBiNN without shortcuts", "BayesBiNN"),
    *(f"{state}{suffix}" for state in (*UNCERTAIN, "certainty") for suffix in (", without shortcuts", "")),
)


@contextmanager
def without_shortcuts() -> Iterator[None]:
    """Everything by torch's own products and masks."""
    before = native.multiplies_signs, loop.faster_dropout
    native.multiplies_signs, loop.faster_dropout = False, lambda *_: nullcontext()
    try:
        yield
    finally:
        native.multiplies_signs, loop.faster_dropout = before


def contestant(kind: str, width: float) -> Callable[[], None]:
    """A function that makes a few steps."""
    torch.manual_seed(0)
    model = mnist_mlp(width=width).train()
    x, y = torch.randn(100, 784), torch.randint(10, (100,))
    if kind == "fused Adam":
        adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

        def steps_of_adam() -> None:
            for _ in range(STEPS):
                adam.zero_grad()
                F.cross_entropy(model(x), y).backward()
                adam.step()

        return steps_of_adam
    binary, _ = bb.split_parameters(model)
    share = UNCERTAIN.get(kind.split(",")[0])
    init = "random" if share is None else trained_posterior(binary, share)
    # A rate of 0 keeps the weights where they are; the work is the same.
    rule: dict[str, Any] = {"temperature": 1e-10, "init": init}
    if kind.startswith("certainty"):
        rule = {"certainty": 100}
    optimizer = bb.BayesBiNN(binary, lr=0.0, train_set_size=54_000, seed=0, **rule)

    def steps() -> None:
        with without_shortcuts() if "without" in kind else nullcontext():
            loop.train_batches(model, optimizer, [(x, y)] * STEPS, loop.Totals())

    return steps


def trained_posterior(binary: list[tuple[str, torch.nn.Parameter]], uncertain: float) -> bb.BernoulliPosterior:
    natural = {}
    for name, parameter in binary:
        far = torch.randn(parameter.shape) * 1e6
        near = (2 * torch.rand(parameter.shape) - 1) * NEAR
        natural[name] = torch.where(torch.rand(parameter.shape) < uncertain, near, far)
    return bb.BernoulliPosterior(natural)


def measured(units: int, threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds per step of every contestant."""
    torch.set_num_threads(threads)
    racing = {kind: contestant(kind, UNITS[units]) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind, steps in racing.items():
            started = time.perf_counter()
            steps()
            if number:  # the first round warms up
                times[kind].append(1e3 * (time.perf_counter() - started) / STEPS)
    return {kind: statistics.median(each) for kind, each in times.items()}


def commit() -> str:
    """The commit of this repository, with a + if the working tree differs from it."""
    here = Path(__file__).parent
    ended = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=here)
    return ended.stdout.strip() or "unknown"


def milliseconds(row: dict[str, Any], kind: str) -> str:
    """Earlier measurements had fewer contestants."""
    return f"{row['milliseconds'][kind]:.1f}" if kind in row["milliseconds"] else "–"


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """A table of what was measured with each kind of kernels."""
    rows = [
        [*key.split(", ", 1), str(row["units"]), str(row["threads"]), *(milliseconds(row, kind) for kind in KINDS)]
        for key, each in found.items()
        for row in each["rows"]
    ]
    versions = "; ".join(
        f"{key}: commit {each['commit']}, torch {each['machine']['torch']}" for key, each in found.items()
    )
    return (
        "# Shortcuts in a training step\n\n"
        "Milliseconds per step of the MNIST MLP, batch 100, medians over rounds in which all contestants ran in turn, "
        f"in one process. Late: {100 * UNCERTAIN['late']:.0f} % of the weights are uncertain, as after ten epochs of "
        f"20 on MNIST; long: {100 * UNCERTAIN['long']:.0f} %, as after 56 epochs of the paper's 500. "
        "Certainty: all weights are relaxed. "
        "Without shortcuts: torch's own products and dropout masks, as for fused Adam. MKL, which computes torch's "
        f"products, has no AVX-512 for AMD's processors. {versions}.\n\n"
        f"{markdown_table(['Kernels', 'Processor', 'Units', 'Threads', *KINDS], rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for shortcuts.json and shortcuts.md")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1,2")
    arguments = parser.parse_args()
    keep_freed_memory()
    rows = [
        {"units": units, "threads": threads, "milliseconds": measured(units, threads, arguments.rounds)}
        for units in UNITS
        for threads in map(int, arguments.threads.split(","))
    ]
    machine = {k: v for k, v in describe().items() if k != "why"}
    key = f"{native.isa()}, {machine['processor']}"
    found = {key: {"machine": machine, "commit": commit(), "rows": rows}}
    print(markdown(found))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        kept = arguments.out / "shortcuts.json"
        earlier = json.loads(kept.read_text()) if kept.is_file() else {}
        found = dict(sorted({**earlier, **found}.items()))
        kept.write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "shortcuts.md").write_text(markdown(found))


if __name__ == "__main__":
    main()
