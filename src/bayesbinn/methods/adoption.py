"""Checks of the parameters given to a method: trainable, each only once, and no biases or gains by mistake."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from bayesbinn.binary import canonical_name, is_binary_on_purpose
from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.methods.members import Group

# Rejected by class name: importing them costs time, and FSDP shards a parameter without our knowledge.
_SHARDED = {"DTensor", "FlatParameter"}
_REMEDY = "pass the first list of bb.split_parameters(model), and the second to a torch optimizer"


def listed(label: str, params: Any) -> list[Any]:
    """The parameters a user passed, as lists; rejects a single tensor and an empty list."""
    if isinstance(params, Tensor):
        raise InvalidInput(f"{label} got one tensor; pass an iterable of parameters or of (name, parameter) pairs")
    entries = list(params)
    if not any(entry["params"] if isinstance(entry, dict) else True for entry in entries):
        raise InvalidInput(f"{label} got no parameters; pass the first list of bb.split_parameters(model)")
    return [
        {**entry, "params": [entry["params"]] if isinstance(entry["params"], Tensor) else list(entry["params"])}
        if isinstance(entry, dict)
        else entry
        for entry in entries
    ]


def refuse_unknown_settings(label: str, group: Group, settings: Iterable[str]) -> None:
    """Reject a group with a setting that the method does not have."""
    allowed = {*settings, "params", "param_names", "initial_lr"}
    for key in sorted(group.keys() - allowed):
        raise InvalidInput(f"{label} has no setting {key!r}.{nearest(key, allowed)}")


def refuse_owned_twice(entries: Sequence[Any], owned: Mapping[Tensor, str]) -> None:
    """Reject anything that is not a parameter, and a parameter that is passed twice or already owned."""
    seen = dict(owned)
    for index, entry in enumerate(entries):
        name, parameter = entry if isinstance(entry, tuple) else (f"#{index}", entry)
        if not isinstance(parameter, Tensor):
            raise InvalidInput(f"{name!r} is a {type(parameter).__name__}, not a parameter")
        if parameter in seen:
            raise InvalidInput(f"{name!r} and {seen[parameter]!r} are the same parameter; pass it once")
        seen[parameter] = name


def named(group: Group, owned: Mapping[Tensor, str]) -> dict[Tensor, str]:
    """The names of a new group's parameters; the names must be unique and the parameters trainable."""
    names = group.get("param_names") or [str(len(owned) + i) for i in range(len(group["params"]))]
    taken = set(owned.values())
    found: dict[Tensor, str] = {}
    for parameter, name in zip(group["params"], map(canonical_name, names), strict=True):
        if name in taken:
            raise InvalidInput(f"two parameters have the name {name!r}; names must be unique")
        _refuse_untrainable(name, parameter)
        taken.add(name)
        found[parameter] = name
    return found


def _refuse_untrainable(name: str, parameter: Tensor) -> None:
    if isinstance(parameter, UninitializedTensorMixin):
        raise InvalidInput(f"{name!r} is not initialized yet; run one batch through the model first")
    if type(parameter).__name__ in _SHARDED:
        raise InvalidInput(f"{name!r} is sharded ({type(parameter).__name__}); use DistributedDataParallel, not FSDP")
    if not parameter.is_floating_point() or parameter.layout is not torch.strided:
        raise InvalidInput(
            f"{name!r} of shape {tuple(parameter.shape)} is {parameter.dtype}, {parameter.layout}; "
            "dense float32, float64, bfloat16 or float16 is allowed"
        )


def question_vectors(label: str, named: Mapping[Tensor, str], added: Sequence[Tensor]) -> None:
    """Reject gains and warn about biases, which ``model.parameters()`` includes with the weights.

    An optimizer sees only tensors (`named` are all of them, `added` the new ones), so if there are matrices, vectors
    are taken for gains or biases: for gains if their values are all 1, as they are before training. Vectors without
    matrices are taken for weights, and what `split_parameters` was asked to make binary is never questioned.
    """
    had_matrix = any(_is_matrix(parameter) for parameter in named.keys() - set(added))
    if not had_matrix and not any(_is_matrix(parameter) for parameter in added):
        return
    vectors = [p for p in (added if had_matrix else named) if _is_vector(p) and not is_binary_on_purpose(p)]
    for vector in vectors:
        if bool((vector.detach() == 1).all()):
            raise InvalidInput(
                f"{label} got {named[vector]!r} of shape {tuple(vector.shape)}, whose values are all 1: the gain of a "
                f"normalization layer, which must stay real; {_REMEDY}"
            )
    if vectors:
        count = "a parameter" if len(vectors) == 1 else f"{len(vectors)} parameters"
        warnings.warn(
            f"{label} makes {count} of one dimension binary, such as {named[vectors[0]]!r} of shape "
            f"{tuple(vectors[0].shape)}; biases and gains should stay real: {_REMEDY}. For biases that are binary on "
            "purpose, use split_parameters(model, biases=True)",
            UserWarning,
            stacklevel=2,
        )


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.dim() >= 2


def _is_vector(parameter: Tensor) -> bool:
    return parameter.dim() < 2 and parameter.numel() > 0
