"""What a version 2 model file may hold besides its network: class labels and sections of statistics.

A section is a named rule with its numbers and small tensors: how probabilities were calibrated, what prediction sets
are made of, and how rows unlike the training data are recognized. This module checks that a section is complete and
finite; the code that applies a rule checks which numbers it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile.strict_json import compact_json, strict_json

SECTIONS = ("calibration", "conformal", "unfamiliarity")
Label = str | int | float | bool
Number = float | int | tuple[float, ...]

MAX_LABELS = 1 << 20
_MAX_KEYS = 64
_MAX_NUMBERS = 1 << 16
_MAX_TEXT = 100
MAX_WHOLE = 10**17  # a number is read back from at most 18 characters
_TYPES = ("float32", "float16", "uint8")


@dataclass(frozen=True, eq=False)
class Section:
    """A named rule with what it needs."""

    rule: str
    """The rule that these numbers belong to, such as ``split conformal``."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """Finite numbers, or tuples of them."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays of float32, float16 or uint8."""

    def __post_init__(self) -> None:
        _require(_is_name(self.rule), "its rule must be text of 1 to 100 characters")
        _require(len(self.numbers) + len(self.tensors) <= _MAX_KEYS, f"at most {_MAX_KEYS} entries are allowed")
        for key, value in self.numbers.items():
            _require(_is_name(key), "the names of its numbers must be text")
            found = value if isinstance(value, tuple) else (value,)
            fine = len(found) <= _MAX_NUMBERS and all(_is_number(each) for each in found)
            _require(fine, f"{key} must be a finite number, or at most {_MAX_NUMBERS} of them")
        for key, array in self.tensors.items():
            _require(_is_name(key) and key not in self.numbers, "the names of its tensors must be text, each used once")
            known = isinstance(array, np.ndarray) and array.dtype.name in _TYPES and array.ndim <= 8
            _require(known, f"{key} must be an array of {' or '.join(_TYPES)}")
            _require(bool(np.isfinite(array).all()), f"{key} has NaN or infinite values")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section) or (self.rule, dict(self.numbers)) != (other.rule, dict(other.numbers)):
            return False
        same = self.tensors.keys() == other.tensors.keys()
        return same and all(_equal(array, other.tensors[key]) for key, array in self.tensors.items())

    __hash__ = None  # type: ignore[assignment]


def tensor_name(section: str, key: str) -> str:
    """What a section's tensor is called in the file.

    >>> tensor_name("conformal", "scores")
    'conformal:scores'
    """
    return f"{section}:{key}"


def section_text(section: Section) -> str:
    """A section as JSON; the file stores its tensors separately."""
    numbers = {key: list(value) if isinstance(value, tuple) else value for key, value in section.numbers.items()}
    document = {"rule": section.rule, "numbers": numbers, "tensors": list(section.tensors)}
    return compact_json({key: value for key, value in document.items() if value})


def section_from(name: str, text: str, tensors: dict[str, NDArray[Any]]) -> Section:
    """A section from its JSON; its tensors are taken out of the file's."""
    document = strict_json(text, f"the section {name}")
    known = {"rule"} <= set(document) <= {"rule", "numbers", "tensors"}
    _require(known, f"the section {name} needs a rule, and may have numbers and tensors", InvalidFile)
    numbers, keys = document.get("numbers", {}), document.get("tensors", [])
    _require(isinstance(numbers, dict), f"the section {name}: its numbers must be an object", InvalidFile)
    fine = isinstance(keys, list) and all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys)
    _require(fine, f"the section {name}: its tensors must be a list of names", InvalidFile)
    found = {}
    for key in keys:
        stored = tensor_name(name, key)
        _require(stored in tensors, f"the section {name}: the file has no tensor {stored!r:.200}", InvalidFile)
        found[key] = tensors.pop(stored)
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in numbers.items()}
    try:
        return Section(document["rule"], plain, found)
    except InvalidInput as error:
        raise InvalidFile(f"the section {name}: {error}") from None


# ---- labels ------------------------------------------------------------------------------------------


def check_labels(labels: Sequence[Label], names: Sequence[str]) -> None:
    """Check that labels have one type, are distinct, and match the class names in number."""
    kinds = {type(label) for label in labels}
    _require(
        len(kinds) == 1 and kinds <= {str, int, float, bool}, "labels must be all text, all numbers or all true/false"
    )
    _require(all(isinstance(x, (str, bool)) or _is_number(x) for x in labels), "labels must be finite numbers")
    _require(len(set(labels)) == len(labels) <= MAX_LABELS, "labels must differ")
    _require(len(labels) == len(names), f"{len(labels)} labels for {len(names)} class names")


def labels_text(labels: Sequence[Label]) -> str:
    """Labels as JSON, which distinguishes text from numbers and true from 1."""
    return compact_json({"values": list(labels)})


def labels_from(text: str) -> tuple[Label, ...]:
    """Labels from their JSON."""
    document = strict_json(text, "the list of labels")
    fine = set(document) == {"values"} and isinstance(document["values"], list)
    _require(fine, "the labels must be a list of values", InvalidFile)
    return tuple(document["values"])


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= _MAX_TEXT


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < MAX_WHOLE) or (type(value) is float and isfinite(value))


def _require(condition: bool, otherwise: str, kind: type[Exception] = InvalidInput) -> None:
    if not condition:
        raise kind(otherwise)
