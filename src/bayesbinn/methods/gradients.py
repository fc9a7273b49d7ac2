"""Checks of a gradient before it updates the state of a method: dense, finite, and small enough for float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.errors import InvalidInput, NonFiniteGradient
from bayesbinn.methods.members import Members, Sample

LARGEST = float(torch.finfo(torch.float32).max)
ROOM = 1e30
"""The most that one step may add to an accumulating state: 100 million such steps stay below the largest float32."""
SQUARABLE = 1e18
"""Gradients up to this size can be squared, as in Adam's second moment, which is a mean and so stays in range."""
_REMEDY = "nothing was changed. Lower the learning rate, clip gradients or check the inputs"


class Batch(NamedTuple):
    """The input of one call of a method's update."""

    members: Members
    gradients: list[Tensor]
    sample: Sample | None
    """The sample behind the gradients; None: they are totals over several samples."""


def present(gradient: Tensor | None) -> Tensor:
    """A gradient that is known to exist."""
    assert gradient is not None
    return gradient


def refuse_unusable(name: str, gradient: Tensor) -> None:
    """Reject a gradient that is not an ordinary dense tensor."""
    if type(gradient).__name__ == "MaskedTensor":
        raise InvalidInput(f"the gradient of {name!r} is a MaskedTensor; fill its gaps, for example with to_tensor(0)")
    if gradient.layout is not torch.strided:
        raise InvalidInput(f"the gradient of {name!r} is {gradient.layout}; it must be dense")


def refuse_nonfinite(batches: Sequence[Batch], limits: Sequence[float], step: int) -> bool:
    """Reject NaN and infinity; return whether a gradient exceeds its method's limit.

    One pass finds both, so the limits cost nothing.
    """
    is_beyond = False
    for batch, limit in zip(batches, limits, strict=True):
        if kernels.first_beyond(batch.gradients, limit) is None:
            continue
        is_beyond = True
        index = kernels.first_beyond(batch.gradients, LARGEST)
        if index is not None:
            raise NonFiniteGradient(
                f"the gradient of {batch.members.names[index]!r} is NaN or infinite at step {step}; {_REMEDY}"
            )
    return is_beyond


@contextmanager
def taken_back_on_overflow(batches: Sequence[Batch], step: int) -> Iterator[None]:
    """Let the block update the states; if a number in them is no longer finite, undo the block and raise."""
    kept = [[_copy_of(state) for state in batch.members.states] for batch in batches]
    weights = [[parameter.detach().clone() for parameter in batch.members.parameters] for batch in batches]
    yield
    overflowed = next(_overflows(batches), None)
    if overflowed is None:
        return
    for batch, states, values in zip(batches, kept, weights, strict=True):
        for state, old in zip(batch.members.states, states, strict=True):
            state.clear()
            state.update(old)
        for parameter, value in zip(batch.members.parameters, values, strict=True):
            parameter.detach().copy_(value)
    name, gradient = overflowed
    raise NonFiniteGradient(
        f"the gradient of {name!r} has values up to {gradient.abs().max().item():.1e} at step {step}, which make the "
        f"optimizer's state overflow; {_REMEDY}"
    )


def _copy_of(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def _overflows(batches: Sequence[Batch]) -> Iterator[tuple[str, Tensor]]:
    """Names and gradients of the parameters that are not finite, or whose state is not."""
    for members, gradients, _ in batches:
        for parameter, name, state, gradient in zip(
            members.parameters, members.names, members.states, gradients, strict=True
        ):
            numbers = [value for value in state.values() if isinstance(value, Tensor) and value.is_floating_point()]
            if kernels.first_beyond([*numbers, parameter.detach()], LARGEST) is not None:
                yield name, gradient
