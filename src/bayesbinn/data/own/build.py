"""What all of a user's own data go through once they are arrays: labels, a test part, a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.normalise import statistics
from bayesbinn.data.own.labels import Values, understand
from bayesbinn.data.splits import Rows, holdout_rows
from bayesbinn.errors import InvalidInput

TEST_SHARE = 0.2
MIN_EXAMPLES = 5


@dataclass(frozen=True)
class Examples:
    """Inputs (uint8 or float32) and their labels as they stand in the file."""

    inputs: Tensor
    labels: Values

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> Examples:
        return Examples(self.inputs[torch.from_numpy(rows)], self.labels[rows])


def check_enough(where: str, count: int) -> None:
    """Refuse data of which no test part can be kept."""
    if count < MIN_EXAMPLES:
        raise InvalidInput(f"{where}: {count} examples: {MIN_EXAMPLES} or more are needed to keep some for testing")


def hold_out(where: str, task: Task, labels: Values) -> tuple[Rows, Rows, str]:
    """Rows to train on, rows to test on, and what to say of it: a fifth, always the same one, of every class alike."""
    count = len(labels)
    codes = np.unique(labels, return_inverse=True)[1] if task == "classification" else None
    kept, held = holdout_rows(codes, count, TEST_SHARE)
    if len(held) == 0:
        raise InvalidInput(f"{where}: each of {count} examples has a label of its own: is this the right column?")
    return kept, held, f"test part: {len(held)} of {count} examples, kept aside with a fixed seed"


def build(
    path: Path,
    train: Examples,
    test: Examples | None = None,
    *,
    task: Task | None = None,
    features: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """A data set; without a test part a fifth is kept aside, always the same one, of every class alike."""
    where = str(path)
    for part in (train, test):
        if part is not None and len(part.inputs) != len(part.labels):
            raise InvalidInput(f"{where}: {len(part.inputs)} inputs but {len(part.labels)} labels: give one for each")
    if test is None:
        check_enough(where, len(train.inputs))
    labels = understand(train.labels, where, task)
    said = [*notes, labels.note]
    if test is None:
        kept, held, note = hold_out(where, labels.task, train.labels)
        train, test = train[kept], train[held]
        said.append(note)
    mean, std = statistics(train.inputs)
    targets = labels.targets(train.labels, where)
    scale = statistics(targets) if labels.task == "regression" else (0.0, 1.0)
    return Dataset(
        name=path.stem,
        train_inputs=train.inputs,
        train_targets=targets,
        test_inputs=test.inputs,
        test_targets=labels.targets(test.labels, where),
        task=labels.task,
        mean=mean,
        std=std,
        classes=labels.classes,
        target_mean=float(scale[0]),
        target_std=float(scale[1]),
        features=tuple(features),
        source=where,
        notes=tuple(said),
    )
