"""Networks side by side as a model file: an ensemble."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import Graph, Node, Task
from bayesbinn.models.side_by_side import Affine, SideBySide
from bayesbinn.posterior import Weights

Array = NDArray[np.generic]


def file_of(model: SideBySide, folded: Sequence[Affine], task: Task) -> ModelFile:
    """The networks with these scales and shifts in place of BatchNorm."""
    return _file(model, model.networks, _weights(model), folded, task)


def file_of_draws(model: SideBySide, draws: Sequence[Weights]) -> ModelFile:
    """One file with the networks of a model, once for each draw of its weights (and BatchNorm's statistics)."""
    weights: list[list[Tensor]] = []
    folded: list[list[Affine]] = []
    for tensors in draws:
        drawn = copy.deepcopy(model)
        drawn.load_state_dict({**model.state_dict(), **tensors})
        weights.append(_weights(drawn))
        folded.append(drawn.affine())
    joined = [torch.cat(layer) for layer in zip(*weights, strict=True)]
    affine = [
        (torch.cat([s for s, _ in layer]), torch.cat([t for _, t in layer])) for layer in zip(*folded, strict=True)
    ]
    return _file(model, model.networks * len(draws), joined, affine, "classification")


def _weights(model: SideBySide) -> list[Tensor]:
    return [layer.get_parameter("weight") for layer in model.layers]


def _file(
    model: SideBySide, networks: int, weights: Sequence[Tensor], folded: Sequence[Affine], task: Task
) -> ModelFile:
    """Weights of -1 and +1 take a bit each, others stay float32."""
    tensors: dict[str, Array] = {}
    nodes = [Node("concat", (0,) * model.copies, "copies", {"axis": 0})] if model.copies > 1 else []
    for place, (real, (scale, shift)) in enumerate(zip(weights, folded, strict=True)):
        weight = _array(real)
        binary = bool((np.abs(weight) == 1).all())
        roles = {role: f"layer{place}.{role}" for role in ("weight", "scale", "shift")}
        arrays = {"weight": pack_rows(weight) if binary else weight, "scale": _array(scale), "shift": _array(shift)}
        tensors |= {roles[role]: _by_network(array, networks) for role, array in arrays.items()}
        settings = {"shape": (model.sizes[place + 1], weight.shape[1])}
        nodes.append(Node("linear", (len(nodes),), f"layer{place}", settings, roles))
        if place + 1 < len(folded):
            nodes.append(Node("relu", (len(nodes),)))
    return ModelFile(Graph((model.sizes[0],), tuple(nodes), networks=networks, task=task), tensors)


def _array(values: Tensor) -> NDArray[np.float32]:
    return values.detach().to("cpu", torch.float32).numpy()


def _by_network(array: Array, networks: int) -> Array:
    return np.ascontiguousarray(array if networks == 1 else array.reshape(networks, -1, *array.shape[1:]))
