"""Why one test of a network in its first epochs says little: CIFAR-10, BayesBiNN, the paper's settings.

At the start of training, a hundredth of the weights change sign with every step, and BatchNorm's running statistics lag
behind them. The accuracy is measured after groups of three successive steps, in three ways: with the mode; with the
mode of the step before, which is what the authors' code tests, because its mean is a step old; and with the mode after
`recalibrate`, which estimates the statistics for these weights.

    python benchmarks/early_steps.py [--width 0.25] [--steps 900] [--seed 0] [--out FOLDER]

Prints a table and writes FOLDER/early_steps.json and FOLDER/early_steps.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import metrics
from bayesbinn.environment import describe
from bayesbinn.models import vgg
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.prediction.batchnorm import recalibrate

BATCH_SIZE = 50
TESTED = 1000
"""Test images."""
EVERY, SUCCESSIVE = 60, 3
"""Test after this many successive steps of every 60."""
STARTS = 200
"""Not before this step."""
BATCHES = 20
"""For the new statistics."""
KINDS = ("the mode", "the mode one step before", "the mode, recalibrated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=0.25, help="of the paper's network (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=900, help="an epoch has 900 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for early_steps.json and early_steps.md")
    arguments = parser.parse_args()
    found = {
        "machine": {key: value for key, value in describe().items() if key != "why"},
        "width": arguments.width,
        "seed": arguments.seed,
        "rows": measured(arguments.width, arguments.steps, arguments.seed),
    }
    text = markdown(found)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "early_steps.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "early_steps.md").write_text(text)


def measured(width: float, steps: int, seed: int) -> list[dict[str, float]]:
    """Accuracies in percent after each tested step, and the share of weights that the step flipped."""
    parts = bb.data.load("cifar10").split(validation=0.1, seed=seed)
    x_test, y_test = next(iter(parts.test.batches(TESTED)))
    torch.manual_seed(seed)
    model = vgg(width=width)
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=3e-4, train_set_size=450_000, temperature=1e-10, seed=seed)
    rows = []
    model.train()
    for step, (x, y) in enumerate(parts.train.batches(BATCH_SIZE, seed=seed, epoch=1, augment=True), 1):
        is_tested = step > STARTS and step % EVERY < SUCCESSIVE
        before = {name: weight.detach().clone() for name, weight in binary} if is_tested else {}
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if is_tested:
            flips = metrics.flip_ratio(before, {name: weight.detach() for name, weight in binary})
            fresh = parts.train.batches(BATCH_SIZE, seed=seed, epoch=2, augment=True)
            batches = [each for each, _ in islice(fresh, BATCHES)]
            rows.append({"step": step, "flips": flips, **tested(model, before, batches, x_test, y_test)})
            print(rows[-1], flush=True)
        if step == steps:
            break
    return rows


def tested(
    model: nn.Module, before: dict[str, Tensor], batches: list[Tensor], x: Tensor, y: Tensor
) -> dict[str, float]:
    """The accuracy of each kind; weights and statistics are as before afterwards."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    found = [accuracy(model, x, y)]
    model.load_state_dict(before, strict=False)
    found.append(accuracy(model, x, y))
    model.load_state_dict(kept)
    recalibrate(model, None, batches)
    found.append(accuracy(model, x, y))
    model.load_state_dict(kept)
    return dict(zip(KINDS, found, strict=True))


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(250), y.split(250), strict=True))
    model.train()
    return 100 * right / len(y)


def markdown(found: dict[str, Any]) -> str:
    """Means, and how much the accuracies of successive steps differ."""
    rows = found["rows"]
    table = []
    for kind in KINDS:
        values = [row[kind] for row in rows]
        beyond = [row[kind] - row[KINDS[0]] for row in rows]
        error = statistics.stdev(beyond) / math.sqrt(len(beyond))
        successive = [(one, two) for one, two in pairwise(rows) if two["step"] == one["step"] + 1]
        changes = [abs(two[kind] - one[kind]) for one, two in successive]
        table.append(
            [
                kind,
                f"{statistics.mean(values):.2f}",
                f"{statistics.mean(beyond):+.2f} ± {error:.2f}" if kind != KINDS[0] else "",
                f"{statistics.mean(changes):.2f}",
                f"{max(changes):.2f}",
            ]
        )
    head = ["Tested", "Mean accuracy", "Difference from the mode", "Mean change in a step", "Largest change in a step"]
    flips = 100 * statistics.mean(row["flips"] for row in rows)
    return (
        "# Tests in the first epoch\n\n"
        f"{found['machine']['processor']}, torch {found['machine']['torch']}. CIFAR-10, BayesBiNN with the paper's "
        f"settings, its network at {found['width']:g} of the width, seed {found['seed']}: {TESTED:,} test images after "
        f"{len(rows)} steps of the first epoch, in groups of {SUCCESSIVE} successive ones. Accuracies in percent; "
        "differences with their standard errors. "
        f"A step flips {flips:.2f} % of the weights. Recalibrated: BatchNorm's statistics from {BATCHES} batches.\n\n"
        f"{markdown_table(head, table)}\n"
    )


if __name__ == "__main__":
    main()
