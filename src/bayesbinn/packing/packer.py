"""Packing: a torch model, with or without a posterior, becomes a model file that runs without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Graph, Node, Task
from bayesbinn.modelfile.sections import Label, Section
from bayesbinn.models.side_by_side import SideBySide
from bayesbinn.packing.side_by_side import file_of_draws
from bayesbinn.packing.trace import Captured, capture
from bayesbinn.posterior import BernoulliPosterior, LogitScale, Weights
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import PureNetwork, evaluating
from bayesbinn.runtime import reference

if TYPE_CHECKING:
    from bayesbinn.prediction.batchnorm import BatchNormStatistics

Normalisation = tuple[Tensor, Tensor]

TOLERANCE = 1e-4
"""How far torch and the file may differ, relative to the largest output. Rounding errors are much smaller."""
HALF_TOLERANCE = 5e-2
"""The same for a model that torch runs in 16 bits."""


def pack(
    model: nn.Module,
    path: str | Path,
    posterior: BernoulliPosterior | None = None,
    samples: int = 0,
    seed: int = 0,
    example_input: Tensor | None = None,
    *,
    statistics: BatchNormStatistics | None = None,
    task: Task = "classification",
    normalisation: Normalisation | None = None,
    target: tuple[float, float] | None = None,
    classes: Sequence[str] = (),
    features: Sequence[str] = (),
    real: str = "float32",
    verify: bool = True,
    calibration: LogitScale | None = None,
    residual: float | None = None,
    encoding: TableEncoding | None = None,
    labels: Sequence[Label] | None = None,
    sections: Mapping[str, Section] | None = None,
) -> ModelFile:
    """Write a model as a file for `bayesbinn.runtime`, and return what was written.

    Weights of exactly -1 and +1 take one bit each; BatchNorm and biases become a scale and a shift
    per channel. The model itself does not change.

    Args:
        model: its forward is a fixed sequence of supported layers; the error names any other layer.
        path: path of the file, such as ``"model.safetensors"``.
        posterior: where the binary weights come from; None: the model's weights as they are.
        samples: 0: the posterior's mode. C: an ensemble of the networks that
            ``predict(..., samples=C, seed=seed)`` averages over.
        seed: seed of the samples.
        example_input: a batch in the form the model takes. Needed unless the model starts with a linear layer.
        statistics: BatchNorm statistics for these weights, from ``recalibrate(..., samples, seed=seed)``.
        task: "classification" or "regression".
        normalisation: mean and standard deviation of the raw inputs, one for each entry of the
            first axis or one for all. With it, the file takes raw inputs, such as pixels from 0 to 255.
        target: mean and standard deviation of a regression's targets, for a model trained on
            standardized targets. With it, the file returns outputs in the unit of the targets.
        classes: names of the classes.
        features: names of the input columns.
        real: how to store weights that are not binary.
        verify: run an example through torch and through the file, and raise an error if they differ.
        calibration: as in `predict`. The file's logits contain the shifts; `logit_scale` is the factor.
        residual: for a regression: the standard deviation of what its networks leave unexplained, in the unit of the
            outputs, measured on data not used in training.
        encoding: how the rows of a table become the model's inputs; with it the file takes raw rows.
        labels: the classes' labels as the training data had them: text, numbers or true/false.
        sections: further statistics of the trained network, by name; see docs/format.md.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(8, 3, bias=False), nn.BatchNorm1d(3))
    >>> posterior = BernoulliPosterior({"0.weight": torch.ones(3, 8)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     packed = pack(model, f"{folder}/model.safetensors", posterior)
    >>> [node.op for node in packed.graph.nodes], packed.tensors["0.weight"].tolist()
    (['linear'], [[255], [255], [255]])
    """
    _check_arguments(task, target, real)
    ensemble = Ensemble(model, posterior, samples, seed, statistics)
    network = ensemble.network
    if posterior is not None:
        posterior.warn_if_saturated(samples)
    with evaluating(model):
        if isinstance(network.model, SideBySide):
            example = torch.zeros(2, network.model.sizes[0]) if example_input is None else example_input
            packed = file_of_draws(network.model, [ensemble.tensors(index) for index in range(len(ensemble))])
        else:
            captured, example = capture(model, example_input)
            packed = _assembled(captured, [_arrays(captured, ensemble.tensors(i)) for i in range(len(ensemble))])
        scale, shift = ensemble.calibration(calibration) if task == "classification" else LogitScale().of(samples)
        graph = replace(packed.graph, task=task, logit_scale=scale, classes=tuple(classes), features=tuple(features))
        packed = ModelFile(graph, packed.tensors)
        if verify:
            _verify(packed, network, example[:2], {index: ensemble.tensors(index) for index in {0, len(ensemble) - 1}})
    if shift:
        packed = with_shift(packed, shift)
    if normalisation is not None:
        packed = _with_normalisation(packed, *normalisation)
    if target is not None:
        packed = _with_target(packed, *target)
    if real == "float16":
        packed = _halved(packed)
    packed = replace(
        packed,
        residual=residual,
        encoding=encoding,
        labels=None if labels is None else tuple(labels),
        sections=dict(sections or {}),
    )
    try:
        model_file.check_model(packed)
    except InvalidFile as error:
        raise InvalidInput(f"{type(network.model).__name__} cannot be packed: {error}") from None
    model_file.write(path, packed)
    return packed


def _check_arguments(task: str, target: tuple[float, float] | None, real: str) -> None:
    if task not in ("classification", "regression"):
        raise InvalidInput(f"task={task!r}: it must be 'classification' or 'regression'")
    if target is not None and task != "regression":
        raise InvalidInput(f"target={target!r}: only for regression; pass task='regression'")
    if real not in ("float32", "float16"):
        raise InvalidInput(f"real={real!r}: it must be 'float32' or 'float16'")


# ---- tensors -----------------------------------------------------------------------------------------

Arrays = dict[str, NDArray[Any]]


def _arrays(captured: Captured, given: Mapping[str, Tensor]) -> tuple[list[dict[str, str]], Arrays]:
    """One network: the names of each node's tensors by role, and the tensors by name."""
    names: list[dict[str, str]] = []
    arrays: Arrays = {}
    weights: dict[tuple[Any, ...], str] = {}  # by address: a weight that two layers share is stored once
    computed = captured.tensors(given)
    for layer, tensors in zip(captured.layers, computed, strict=True):
        roles = {role: f"{layer.name}.{role}" for role in tensors}
        if "weight" in tensors:
            tensor = tensors["weight"]
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            roles["weight"] = weights.setdefault(key, roles["weight"])
        for role, tensor in tensors.items():
            if roles[role] not in arrays:
                arrays[roles[role]] = _array(tensor, role)
        names.append(roles)
    return names, arrays


def _array(tensor: Tensor, role: str) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    if role == "weight" and bool((np.abs(array) == 1).all()):
        return pack_rows(array.reshape(len(array), -1))
    return array


def _assembled(captured: Captured, networks: list[tuple[list[dict[str, str]], Arrays]]) -> ModelFile:
    """All networks in one: tensors that are the same in all of them are stored once."""
    names, first = networks[0]
    tensors = {}
    for name in first:
        arrays = [arrays[name] for _, arrays in networks]
        if len({array.dtype for array in arrays}) > 1:
            raise InvalidInput(f"{name!r} is binary in some samples of the posterior and real in others")
        same = all(np.array_equal(array, arrays[0]) for array in arrays[1:])
        tensors[name] = arrays[0] if same else np.stack(arrays)
    nodes = [replace(node, tensors=roles) for node, roles in zip(captured.nodes(), names, strict=True)]
    return ModelFile(Graph(captured.input_shape, tuple(nodes), networks=len(networks)), tensors)


def _halved(packed: ModelFile) -> ModelFile:
    """Real weights as float16; scales and shifts do not change."""
    tensors = dict(packed.tensors)
    for name in {node.tensors["weight"] for node in packed.graph.nodes if "weight" in node.tensors}:
        array = tensors[name]
        if array.dtype == np.float32:
            largest = float(np.abs(array).max())
            if largest > float(np.finfo(np.float16).max):
                raise InvalidInput(f"{name!r} has a weight of {largest:g}, too large for float16; pass real='float32'")
            tensors[name] = array.astype(np.float16)
    return ModelFile(packed.graph, tensors)


# ---- raw inputs and outputs -----------------------------------------------------------------------------


def _with_normalisation(packed: ModelFile, mean: Tensor, std: Tensor) -> ModelFile:
    """The file with (x − mean)/std in front."""
    size = packed.graph.input_shape[0]
    for what, values in (("mean", mean), ("std", std)):
        if values.ndim > 1 or values.numel() not in (1, size):
            raise InvalidInput(f"normalisation: {what} has shape {tuple(values.shape)}; 1 or {size} values are needed")
    factor = 1 / std.double().cpu()
    scale, shift = (v.expand(size).float().contiguous().numpy() for v in (factor, -mean.double().cpu() * factor))
    node = Node("affine", (0,), "normalisation", tensors=_NORMALISATION)
    moved = (replace(node, inputs=tuple(index + 1 for index in node.inputs)) for node in packed.graph.nodes)
    tensors = {_NORMALISATION["scale"]: scale, _NORMALISATION["shift"]: shift, **packed.tensors}
    return ModelFile(replace(packed.graph, nodes=(node, *moved)), tensors)


def _with_target(packed: ModelFile, mean: float, std: float) -> ModelFile:
    """The file with y·std + mean at the end."""
    size = model_file.shapes(packed)[-1][0]
    node = Node("affine", (len(packed.graph.nodes),), "target", tensors=_TARGET)
    values = {"scale": std, "shift": mean}
    added = {name: np.full(size, values[role], dtype=np.float32) for role, name in _TARGET.items()}
    return ModelFile(replace(packed.graph, nodes=(*packed.graph.nodes, node)), {**packed.tensors, **added})


def with_shift(packed: ModelFile, shift: tuple[float, ...]) -> ModelFile:
    """The file with logits + shift as its logits. A single logit (class 1 of two) gets the difference of the shifts."""
    *_, output = model_file.shapes(packed)
    values = np.array(shift if output != (1,) else [shift[1] - shift[0]])
    if output != values.shape or (output == (1,) and len(shift) != 2):
        raise InvalidInput(f"the calibration has shifts for {len(shift)} classes, the model's output is {list(output)}")
    *nodes, last = packed.graph.nodes
    shared = any(set(node.tensors.values()) & {last.tensors.get("shift")} for node in nodes)
    if last.op not in ("linear", "affine") or shared:
        last, nodes = Node("affine", (len(packed.graph.nodes),), "calibration"), [*nodes, last]
        added = {_CALIBRATION["scale"]: np.ones_like(values), _CALIBRATION["shift"]: values}
        last = replace(last, tensors=_CALIBRATION)
    else:
        name = last.tensors.get("shift", f"{last.name}.shift")
        added = {name: packed.tensors.get(name, np.zeros(1)).astype(np.float64) + values}
        last = replace(last, tensors={**last.tensors, "shift": name})
    tensors = {**packed.tensors, **{name: array.astype(np.float32) for name, array in added.items()}}
    return ModelFile(replace(packed.graph, nodes=(*nodes, last)), tensors)


_CALIBRATION = {"scale": "calibration.scale", "shift": "calibration.shift"}
_NORMALISATION = {"scale": "normalisation.scale", "shift": "normalisation.shift"}
_TARGET = {"scale": "target.scale", "shift": "target.shift"}


# ---- verification -------------------------------------------------------------------------------------------


def _verify(packed: ModelFile, network: PureNetwork, x: Tensor, given: Mapping[int, Weights]) -> None:
    """Reject a file that does not do what the model does: the tracer may miss a hook or an in-place operation."""
    name = type(network.model).__name__
    try:
        model_file.check_model(packed)
    except InvalidFile as error:
        raise InvalidInput(f"{name} cannot be packed: {error}") from None
    outputs = reference.run(packed, x.detach().cpu().float().numpy())
    for index, tensors in given.items():
        result = network(tensors, x).detach().cpu()
        if isinstance(network.model, SideBySide):
            result, index = result[:, 0], index * network.model.networks
        tolerance = HALF_TOLERANCE if result.dtype.itemsize == 2 else TOLERANCE
        expected = result.float().numpy()
        found = outputs[index].reshape(expected.shape)
        largest = float(np.abs(expected).max())
        difference = float(np.abs(found - expected).max())
        if not difference <= tolerance * largest:
            raise InvalidInput(
                f"{name} does something that packing cannot see: on an example, the file would differ from torch by "
                f"{difference:.3g} of {largest:.3g}; look for hooks, in-place operations and attributes set in forward"
            )
