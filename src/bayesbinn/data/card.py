"""What a run stores about its data: enough to predict without them and to recognize them when it is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.normalise import Normaliser
from bayesbinn.data.splits import validation_rows
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile.encoding import TableEncoding

FILE_NAME = "data.json"
CHECKPOINT_KEY = "data"
"""The checkpoint key that holds the text of the card."""
_VERSION = 1
_PARTS = ("training inputs", "training targets", "test inputs", "test targets")


@dataclass(frozen=True)
class DataCard:
    """Names, shapes, scales and fingerprints of a data set, as stored in ``data.json`` in a run's folder."""

    version: int
    name: str
    task: Task
    classes: tuple[str, ...]
    """Their names in the order of the outputs; empty for regression."""
    columns: tuple[str, ...]
    """The names of a table's columns, without the label, in the order of the inputs."""
    column_types: tuple[str, ...]
    """How each column is fed to the network."""
    label: str | None
    """The column to predict."""
    input_shape: tuple[int, ...]
    input_type: Literal["uint8", "float32"]
    """uint8: pixels from 0 to 255."""
    mean: tuple[float, ...]
    """Scale of the inputs: one value per channel or column, or one for all; for images, of pixels in [0, 1]."""
    std: tuple[float, ...]
    target_mean: float
    target_std: float
    test_part: str
    """Where the test part came from."""
    validation: float
    """The fraction of the training rows held out for model selection and calibration."""
    seed: int
    """The seed of that split."""
    train_rows: int
    """Including the validation rows."""
    validation_rows: int
    test_rows: int
    digests: dict[str, str]
    """SHA-256 of each tensor."""
    fingerprint: str
    """SHA-256 of the digests and the names of classes and columns."""
    encoding: dict[str, Any] | None = None
    """How a table's rows become inputs, as in the model file; None if its numbers are used as they are."""

    def __post_init__(self) -> None:
        if self.version != _VERSION:
            raise InvalidInput(f"version {self.version}; this program can read version {_VERSION}")
        if (self.task == "classification") != (len(self.classes) > 1):
            raise InvalidInput(f"{self.task} with {len(self.classes)} classes")
        if not self.input_shape or min(self.input_shape) < 1:
            raise InvalidInput(f"input_shape {list(self.input_shape)}: sizes must be 1 or more")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.input_shape[0]):
                raise InvalidInput(f"{key} has {len(values)} values; expected 1 or {self.input_shape[0]}")
        if not min(self.std) > 0 or not self.target_std > 0:
            raise InvalidInput("std and target_std must be above 0")
        if self.encoding is not None:
            self._check_encoding()
        elif self.columns and len(self.columns) != self.input_shape[0]:
            raise InvalidInput(f"{len(self.columns)} columns for inputs of shape {list(self.input_shape)}")
        if len(self.column_types) != len(self.columns):
            raise InvalidInput(f"{len(self.column_types)} column types for {len(self.columns)} columns")
        if min(self.train_rows, self.validation_rows, self.test_rows) < 0:
            raise InvalidInput("numbers of rows must be 0 or more")

    def _check_encoding(self) -> None:
        encoding = self.table_encoding
        assert encoding is not None
        if self.input_shape != (encoding.width,) or self.columns != encoding.names:
            raise InvalidInput(f"the encoding is not that of inputs of shape {list(self.input_shape)}")

    @classmethod
    def of(cls, dataset: Dataset, *, validation: float = 0.0, seed: int = 0, label: str | None = None) -> DataCard:
        """The card of a data set as used: the fingerprint covers the tensors, not the file they came from.

        >>> from bayesbinn.data import load
        >>> card = DataCard.of(load("moons"))
        >>> card.input_shape, card.train_rows, card == DataCard.from_json(card.to_json(), "data.json")
        ((2,), 200, True)
        """
        tensors = (dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets)
        digests = {part: _digest(tensor) for part, tensor in zip(_PARTS, tensors, strict=True) if tensor is not None}
        kept_aside = [note for note in dataset.notes if note.startswith("test part: ")]
        pixels = dataset.train_inputs.dtype == torch.uint8
        return cls(
            version=_VERSION,
            name=dataset.name,
            task=dataset.task,
            classes=dataset.classes,
            columns=dataset.features,
            column_types=_column_types(dataset),
            label=label,
            input_shape=dataset.input_shape,
            input_type="uint8" if pixels else "float32",
            mean=tuple(dataset.mean.tolist()),
            std=tuple(dataset.std.tolist()),
            target_mean=dataset.target_mean,
            target_std=dataset.target_std,
            test_part=kept_aside[0].removeprefix("test part: ") if kept_aside else "as it comes with the data",
            validation=validation,
            seed=seed,
            train_rows=len(dataset.train_inputs),
            validation_rows=len(validation_rows(len(dataset.train_inputs), validation, seed)[1]),
            test_rows=len(dataset.test_inputs),
            digests=digests,
            fingerprint=_fingerprint(digests, dataset.classes, dataset.features),
            encoding=None if dataset.encoding is None else json.loads(dataset.encoding.to_json()),
        )

    # ---- what prediction needs -----------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        """0 for regression."""
        return len(self.classes)

    @property
    def input_dtype(self) -> torch.dtype:
        return torch.uint8 if self.input_type == "uint8" else torch.float32

    @property
    def table_encoding(self) -> TableEncoding | None:
        """What the rows of a table go through before the network."""
        return None if self.encoding is None else TableEncoding.from_json(json.dumps(self.encoding))

    @property
    def normaliser(self) -> Normaliser:
        """The scaling applied to new inputs before the network."""
        return Normaliser(torch.tensor(self.mean), torch.tensor(self.std))

    def example(self, count: int = 2) -> Tensor:
        """Random inputs for the network, with the right shape and roughly the right scale."""
        return torch.randn(count, *self.input_shape, generator=torch.Generator().manual_seed(0))

    # ---- recognizing the data ------------------------------------------------------------------

    def refuse_other(self, here: DataCard, folder: Path) -> None:
        """Raise unless the data `here` are those of the run in `folder`."""
        change = self.difference(here)
        if change:
            raise InvalidInput(
                f"{folder}: these data differ from the run's data: {change}; restore the run's data, or train on "
                "these with another --out"
            )

    def difference(self, here: DataCard) -> str:
        """The most important change, in words; empty if the data are the same."""
        if self.task != here.task:
            return f"{self.task} there, {here.task} here"
        if self.classes != here.classes:
            return _named_difference("classes", self.classes, here.classes)
        if self.columns != here.columns:
            return _named_difference("columns", self.columns, here.columns)
        encoded = self.encoding is not None and here.encoding is not None
        for what, there, now in (
            # How many codes the same columns became depends on their values, of which there is more to say below.
            ("inputs of shape", () if encoded else self.input_shape, () if encoded else here.input_shape),
            ("inputs of type", self.input_type, here.input_type),
        ):
            if there != now:
                return f"{what} {there} there, {now} here"
        if (self.train_rows, self.test_rows) != (here.train_rows, here.test_rows):
            return (
                f"rows: {self.train_rows} for training and {self.test_rows} for testing there, "
                f"{here.train_rows} and {here.test_rows} here"
            )
        changed = [part for part in _PARTS if self.digests.get(part) != here.digests.get(part)]
        return f"values: the {', '.join(changed)} differ" if changed else ""

    # ---- files ---------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The text of a ``data.json``; its checksum covers everything else."""
        content = {key: value for key, value in asdict(self).items() if key != "encoding" or value is not None}
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> DataCard:
        """Read and check the output of `to_json`; report the first problem in one line."""
        from pydantic import TypeAdapter, ValidationError

        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
                raise InvalidInput("checksum mismatch")
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            reason = f"{place}: {message}" if place else message
        except (ValueError, RecursionError) as error:
            reason = str(error)
        raise InvalidFile(f"{where}: damaged or edited by hand ({reason})")


def read_card(folder: Path) -> DataCard | None:
    """The card in a run's folder; None for a run from a version without cards."""
    path = folder / FILE_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot read the file ({error.strerror})") from None
    try:
        return DataCard.from_json(content, str(path))
    except InvalidFile as error:
        raise InvalidFile(
            f"{error}; delete it: resuming the run or predicting with it restores it from the checkpoint"
        ) from None


def known_card(folder: Path, saved: Mapping[str, Any] | None) -> DataCard | None:
    """The card of a run, checked against the copy in its checkpoint; None if neither has one, as in older versions.

    The file by itself proves nothing: it may be gone or belong to another run.
    """
    in_file, text = read_card(folder), None if saved is None else saved.get(CHECKPOINT_KEY)
    if text is None:
        return in_file
    try:
        in_checkpoint = DataCard.from_json(text if isinstance(text, str) else "", str(folder / "checkpoint.pt"))
    except InvalidFile as error:
        raise InvalidFile(f"{error}; delete it to start again") from None
    if in_file is not None and in_file != in_checkpoint:
        change = in_checkpoint.difference(in_file) or "normalization, split or name differ"
        change = change.replace(" there", " in the checkpoint")
        raise InvalidFile(
            f"{folder / FILE_NAME}: does not belong to the checkpoint next to it ({change}); delete it: resuming the "
            "run or predicting with it restores it from the checkpoint"
        )
    return in_checkpoint


def _column_types(dataset: Dataset) -> tuple[str, ...]:
    if dataset.encoding is None:
        return ("number",) * len(dataset.features)
    return tuple(column.kind for column in dataset.encoding.columns)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _fingerprint(digests: dict[str, str], classes: tuple[str, ...], columns: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps([sorted(digests.items()), classes, columns]).encode()).hexdigest()


def _named_difference(what: str, there: tuple[str, ...], here: tuple[str, ...]) -> str:
    lost = [name for name in there if name not in here]
    new = [name for name in here if name not in there]
    if not lost and not new:
        return f"{what}: the same names in another order"
    parts = [f"{_some(names)} only {where}" for names, where in ((lost, "there"), (new, "here")) if names]
    return f"{what}: {', '.join(parts)}"


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
