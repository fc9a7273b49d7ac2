"""Which `affine` operations can be fused into the operation before them; only this module decides.

Packing stores the combined scale and shift with that operation, so that BatchNorm costs no extra layer. The native
runtime fuses what is left in a file, such as a scale and shift after pooling, into the same pass over memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from bayesbinn.modelfile.graph import OPERATIONS


class Step(Protocol):
    """An operation and the values it uses, numbered as in a graph."""

    @property
    def op(self) -> str: ...

    @property
    def inputs(self) -> tuple[int, ...]: ...


def uses_of(steps: Sequence[Step]) -> Counter[int]:
    """How often each value is used; the last one is the output, which counts as a use."""
    uses = Counter(value for step in steps for value in step.inputs)
    uses[len(steps)] += 1
    return uses


def affine_hosts(steps: Sequence[Step], axes: Sequence[int]) -> dict[int, int]:
    """For each `affine` that can be fused into the operation that computes its input: the index of that operation.

    Nothing else may use the value in between, and both must mean the same channels: those of `affine` are the
    first axis of an example, those of a linear layer its last. `axes` is the number of axes of each result.

    >>> from bayesbinn.modelfile.graph import Node
    >>> chain = [Node("linear", (0,)), Node("affine", (1,)), Node("relu", (2,)), Node("affine", (3,))]
    >>> affine_hosts(chain, [1, 1, 1, 1]), affine_hosts(chain, [2, 2, 2, 2])
    ({1: 0}, {})
    """
    uses = uses_of(steps)
    return {
        index: step.inputs[0] - 1
        for index, step in enumerate(steps)
        if step.op == "affine" and step.inputs[0] > 0 and uses[step.inputs[0]] == 1
        if _scales_the_first_axis(steps[step.inputs[0] - 1].op, axes[step.inputs[0] - 1])
    }


def _scales_the_first_axis(op: str, axes: int) -> bool:
    axis = OPERATIONS[op].channels
    return axis is not None and axis % axes == 0


def composed(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    """Scale and shift of (x·s + t)·g + h for the pairs (s, t) and (g, h); None means 1 and 0.

    >>> composed((2.0, 1.0), (3.0, 10.0)), composed((None, 1.0), (3.0, None))
    ((6.0, 13.0), (3.0, 3.0))
    """
    (scale, shift), (g, h) = first, second
    if g is not None:
        scale = g if scale is None else scale * g
        shift = None if shift is None else shift * g
    if h is not None:
        shift = h if shift is None else shift + h
    return scale, shift
