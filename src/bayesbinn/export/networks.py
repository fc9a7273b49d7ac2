"""What both exports need to know: which nodes are used, and what differs between the networks of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.container import ModelFile, check_model
from bayesbinn.modelfile.container import shapes as shapes_of
from bayesbinn.modelfile.graph import Graph, Node, Shape, Stored, own_per_network, place

MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Networks:
    """A checked model with this information."""

    graph: Graph
    shapes: list[Shape]
    """The shape of each value, for one example."""
    own: list[bool]
    """Whether each value differs between the networks. Shared values are computed once."""
    steps: list[int]
    """The nodes that the output needs: shared ones first, each group in file order."""
    _tensors: dict[str, NDArray[Any]]

    @property
    def classifies(self) -> bool:
        return self.graph.task == "classification"

    @property
    def raw_outputs(self) -> int:
        """The number of outputs of one network for one example."""
        return prod(self.shapes[-1])

    @property
    def outputs(self) -> int:
        """The number of outputs of the answer: a single logit z means two classes with the logits 0 and z."""
        return 2 if self.classifies and self.raw_outputs == 1 else self.raw_outputs

    def is_own(self, node: Node, role: str) -> bool:
        """Whether each network has its own copy of this tensor."""
        array = self._tensors[node.tensors[role]]
        return own_per_network(Stored(array.dtype.name, array.shape), node.op, role)

    def tensor(self, node: Node, role: str, network: int = 0) -> NDArray[Any] | None:
        """A network's tensor as stored (possibly shared); None if the node has none."""
        if role not in node.tensors:
            return None
        array = self._tensors[node.tensors[role]]
        return array[network] if self.is_own(node, role) else array

    def is_binary(self, node: Node) -> bool:
        return "weight" in node.tensors and self._tensors[node.tensors["weight"]].dtype == np.uint8


def networks_of(model: ModelFile) -> Networks:
    """Check a model and reject what neither export can express."""
    graph, tensors = model.graph, model.tensors
    check_model(model)
    shapes = shapes_of(model)
    stored = {name: Stored(array.dtype.name, array.shape) for name, array in tensors.items()}
    if graph.task == "classification" and len(shapes[-1]) != 1:
        raise InvalidInput(f"the model returns {list(shapes[-1])} for an input; a classifier must return [classes]")
    if not 0 < as_float32(graph.logit_scale) < MAX_FLOAT32:
        raise InvalidInput(f"logit scale {graph.logit_scale} is 0 or infinite in float32; calibrate the model again")
    needed, own = {len(graph.nodes)}, [False]
    for index in reversed(range(len(graph.nodes))):
        if index + 1 in needed:
            needed.update(graph.nodes[index].inputs)
    for index, node in enumerate(graph.nodes):
        if node.op == "max_pool2d":
            _check_windows(index, node, shapes[node.inputs[0]], shapes[index + 1])
        differs = any(own_per_network(stored[name], node.op, role) for role, name in node.tensors.items())
        own.append(graph.networks > 1 and (differs or any(own[value] for value in node.inputs)))
    steps = [index for index in range(len(graph.nodes)) if index + 1 in needed]
    return Networks(graph, shapes, own, sorted(steps, key=lambda index: own[index + 1]), tensors)


def as_float32(number: float) -> float:
    """The nearest finite float32.

    >>> as_float32(0.5), as_float32(1e300) == MAX_FLOAT32
    (0.5, True)
    """
    return float(np.float32(min(max(number, -MAX_FLOAT32), MAX_FLOAT32)))


def _check_windows(index: int, node: Node, before: Shape, after: Shape) -> None:
    """A dilated window can miss the image: its maximum would be -∞, which neither export can pool."""
    for axis in (0, 1):
        keys = ("kernel", "stride", "padding", "dilation")
        kernel, stride, padding, dilation = (node.settings[key][axis] for key in keys)
        for start in range(-padding, min(0, after[axis + 1] * stride - padding), stride):
            first = start + -(start // dilation) * dilation  # the first position that is not before the image
            if first >= before[axis + 1] or first > start + dilation * (kernel - 1):
                raise InvalidInput(f"{place(index, node)}: a window covers only padding; use a smaller dilation")
