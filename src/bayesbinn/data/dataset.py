"""A data set in memory: what every loader returns and training starts from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bayesbinn.data.batches import Part
from bayesbinn.data.normalise import Normaliser
from bayesbinn.data.splits import stratified_rows, validation_rows
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.encoding import TableEncoding

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Parts:
    """The parts of a data set. An empty part is None."""

    train: Part
    validation: Part | None
    test: Part | None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs as stored, with everything needed to use them.

    Images are uint8 [N, C, H, W], tables float32 [N, columns]. Targets are int64 [N] from 0 for
    classification, float32 [N, 1] for regression.
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor | None
    """None if there are only inputs to predict on (Snelson)."""
    task: Task
    mean: Tensor
    """One value per channel or column, or one for all; for images, of pixels in [0, 1]."""
    std: Tensor
    classes: tuple[str, ...] = ()
    """Their names in the order of the targets; empty for regression."""
    target_mean: float = 0.0
    target_std: float = 1.0
    augment: bool = False
    """Whether a cropped or flipped input is as good an example as the original."""
    features: tuple[str, ...] = ()
    """The names of a table's columns."""
    source: str = ""
    """Where it came from: a folder, a file, a package."""
    notes: tuple[str, ...] = ()
    """Decisions made on the user's behalf, one sentence each."""
    encoding: TableEncoding | None = None
    """How a table's rows became these inputs; None if its numbers are used as they are."""
    stratify: bool = False
    """Whether `split` stratifies the validation data by class, or chooses them at random as the authors do."""

    def __post_init__(self) -> None:
        _check_inputs(self)
        for kind, inputs, targets in (
            ("training", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            if targets is not None:
                _check_targets(self, kind, len(inputs), targets)

    @property
    def num_classes(self) -> int:
        """0 for regression."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def normaliser(self) -> Normaliser:
        """The scaling that batches apply to inputs; apply it to new inputs before predicting."""
        return Normaliser(self.mean, self.std)

    def flattened(self) -> Dataset:
        """The same data set with each example as one row (a view; it can no longer be cropped)."""
        pixels = self.train_inputs[0, 0].numel() if len(self.input_shape) > 1 else 1
        mean, std = (s if len(s) == 1 else s.repeat_interleave(pixels) for s in (self.mean, self.std))
        return replace(
            self,
            train_inputs=self.train_inputs.flatten(1),
            test_inputs=self.test_inputs.flatten(1),
            mean=mean,
            std=std,
            augment=False,
        )

    def split(self, validation: float = 0.1, seed: int = 0) -> Parts:
        """Training, validation and test parts, normalized; regression targets are standardized as well.

        Only the training part can be augmented.
        """
        normaliser = self.normaliser
        if self.stratify and self.task == "classification":
            rows = stratified_rows(self.train_targets.numpy(), validation, seed)
        else:
            rows = validation_rows(len(self.train_inputs), validation, seed)
        train, held = (torch.from_numpy(each) for each in rows)
        targets = self._standardized(self.train_targets)
        whole = len(held) == 0
        return Parts(
            train=Part(self.train_inputs, targets, normaliser, None if whole else train, self.augment),
            validation=None if whole else Part(self.train_inputs, targets, normaliser, held),
            test=None
            if self.test_targets is None
            else Part(self.test_inputs, self._standardized(self.test_targets), normaliser),
        )

    def _standardized(self, targets: Tensor) -> Tensor:
        if self.task == "classification":
            return targets
        return (targets - self.target_mean) / self.target_std


def _check_inputs(data: Dataset) -> None:
    train, test = data.train_inputs, data.test_inputs
    if train.dtype not in (torch.uint8, torch.float32) or test.dtype != train.dtype:
        raise InvalidInput(f"{data.name}: inputs are {train.dtype} and {test.dtype}; both must be uint8 or float32")
    if train.dim() < 2 or train.shape[1:] != test.shape[1:]:
        raise InvalidInput(
            f"{data.name}: training inputs {tuple(train.shape)}, test inputs {tuple(test.shape)}: "
            "apart from the number of examples, which comes first, both need the same shape"
        )
    if len(train) < 2:
        raise InvalidInput(f"{data.name}: {len(train)} training examples; at least 2 are needed")
    if data.augment and train.dim() != 4:
        raise InvalidInput(f"{data.name}: inputs {tuple(train.shape)} cannot be cropped; only images [N, C, H, W] can")
    for statistic, values in (("mean", data.mean), ("std", data.std)):
        if values.dim() != 1 or len(values) not in (1, train.shape[1]):
            raise InvalidInput(
                f"{data.name}: {statistic} has shape {tuple(values.shape)}; expected 1 or {train.shape[1]} values"
            )
    if not bool((data.std > 0).all()) or not data.target_std > 0:
        raise InvalidInput(f"{data.name}: std must be above 0 everywhere")
    for kind, inputs in (("training", train), ("test", test)):
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            row = int((~torch.isfinite(inputs.flatten(1))).any(1).nonzero()[0])
            raise InvalidInput(f"{data.name}: {kind} example {row} has a NaN or infinite value; remove or fill it")


def _check_targets(data: Dataset, kind: str, count: int, targets: Tensor) -> None:
    if len(targets) != count:
        raise InvalidInput(f"{data.name}: {count} {kind} inputs but {len(targets)} targets; give one target per input")
    if data.task == "regression":
        if targets.dtype != torch.float32 or targets.shape != (count, 1) or not bool(torch.isfinite(targets).all()):
            raise InvalidInput(f"{data.name}: {kind} targets for regression must be finite float32 [{count}, 1]")
        return
    if targets.dtype != torch.int64 or targets.dim() != 1:
        raise InvalidInput(
            f"{data.name}: {kind} targets are {targets.dtype} {tuple(targets.shape)}; expected int64 [{count}]"
        )
    if data.num_classes < 2:
        raise InvalidInput(f"{data.name}: {data.num_classes} classes; at least 2 are needed")
    outside = (targets < 0) | (targets >= data.num_classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise InvalidInput(
            f"{data.name}: {kind} example {row} has the label {int(targets[row])}, "
            f"but {data.num_classes} classes have the labels 0 to {data.num_classes - 1}"
        )
