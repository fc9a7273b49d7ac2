"""The saved state of a method: which method it belongs to, whether it fits, and its tensors as kernels need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput
from bayesbinn.methods.members import Counters, Group, State

KEY = "bayesbinn"
"""The key of the method and counters in a saved state, next to what torch saves."""

Shapes = dict[str, torch.Size]


def header(method: str, counters: Counters) -> dict[str, Any]:
    """What is saved under `KEY`."""
    return {"method": method, **asdict(counters)}


def counters_of(state_dict: Mapping[str, Any], method: str, label: str) -> Counters:
    """The saved counters; rejects the state of another method."""
    saved = state_dict.get(KEY)
    if not isinstance(saved, dict) or saved.get("method") != method:
        kind = f"method {saved['method']!r}" if isinstance(saved, dict) and "method" in saved else "another optimizer"
        raise InvalidInput(f"this is the state of {kind}; {label} loads the state of {method!r}")
    return Counters(**{field.name: saved[field.name] for field in fields(Counters)})


def shapes_of(state: State) -> Shapes:
    """The shapes of a state's tensors, which a saved state must match."""
    return {key: value.shape for key, value in state.items() if isinstance(value, Tensor)}


def matched(
    state_dict: Mapping[str, Any],
    groups: Sequence[Group],
    names: Mapping[Tensor, str],
    shapes: Mapping[Tensor, Shapes],
    consolidated: Sequence[str],
) -> dict[Tensor, State]:
    """The saved state by parameter, after comparing its names and shapes with ours.

    State that `consolidate` adds may be missing on either side.
    """
    saved_groups = state_dict["param_groups"]
    sizes, saved_sizes = ([len(group["params"]) for group in side] for side in (groups, saved_groups))
    if sizes != saved_sizes:
        raise InvalidInput(f"the state has groups of {saved_sizes} parameters, this optimizer has {sizes}")
    found: dict[Tensor, State] = {}
    for group, saved in zip(groups, saved_groups, strict=True):
        saved_names = saved.get("param_names") or [names[p] for p in group["params"]]
        for parameter, index, name in zip(group["params"], saved["params"], saved_names, strict=True):
            own, state = names[parameter], state_dict["state"][index]
            if canonical_name(name) != own and "param_names" in group:
                raise InvalidInput(f"the state is for parameter {name!r} where this optimizer has {own!r}")
            required = {key: shape for key, shape in shapes[parameter].items() if key not in consolidated}
            optional = {key: parameter.shape for key in consolidated if key in state}
            _refuse_other_shapes(own, state, required | optional)
            found[parameter] = state
    return found


def _refuse_other_shapes(name: str, state: State, expected: Shapes) -> None:
    for key, shape in expected.items():
        if key not in state or state[key].shape != shape:
            found = tuple(state[key].shape) if key in state else "nothing"
            raise InvalidInput(f"state {key!r} of {name!r}: expected {tuple(shape)}, found {found}")


def kept(state: State, device: torch.device) -> State:
    """A saved state as kernels need it: copied to contiguous float32 (or bool) tensors.

    torch casts a state to the parameter's dtype; λ stays float32 even if the weights are bfloat16.
    """
    return {key: _kept(value, device) if isinstance(value, Tensor) else value for key, value in state.items()}


def _kept(value: Tensor, device: torch.device) -> Tensor:
    dtype = torch.float32 if value.is_floating_point() else value.dtype
    return value.detach().to(device=device, dtype=dtype, copy=True).contiguous()
