"""Several model files in one: an ensemble of networks that were trained apart, such as with different seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import Graph, Node, Stored, own_per_network
from bayesbinn.packing.packer import with_shift
from bayesbinn.prediction.logit_fit import fit_logits
from bayesbinn.prediction.predicting import class_logits
from bayesbinn.runtime.model import Model

Array = NDArray[Any]
_CONFIDENCE = {"scale": "confidence.scale", "shift": "confidence.shift"}


def pack_ensemble(
    models: Sequence[ModelFile | str | Path],
    path: str | Path,
    *,
    inputs: ArrayLike | None = None,
    targets: ArrayLike | None = None,
) -> ModelFile:
    """Write an ensemble of the networks of several model files, and return what was written.

    Its probabilities are the mean of those of the networks; its outputs, for regression, have their mean and spread.
    A file that is an ensemble itself counts with all its networks.

    Args:
        models: two or more model files of one architecture for one task, or their paths.
        path: of the file that is written.
        inputs: raw inputs that no network was trained on, to calibrate the mean of the probabilities with. Without
            them every network keeps its own calibration, and the mean of calibrated probabilities is a little
            underconfident.
        targets: the classes of `inputs`, integers.
    """
    files = [model if isinstance(model, ModelFile) else model_file.read(Path(model)) for model in models]
    names = [f"model {index}" if isinstance(each, ModelFile) else str(each) for index, each in enumerate(models, 1)]
    joined = join(files, names)
    if inputs is not None:
        if targets is None:
            raise InvalidInput("inputs without targets: pass their classes to calibrate with, or neither")
        joined = calibrated(joined, inputs, np.asarray(targets))
    model_file.check_model(joined)
    model_file.write(Path(path), joined)
    return joined


def join(files: Sequence[ModelFile], names: Sequence[str]) -> ModelFile:
    """All networks of the files in one; each keeps its own calibration. `names` are for messages."""
    if len(files) < 2:
        raise InvalidInput(f"an ensemble of {len(files)} model files: 2 or more are needed")
    parted = [_without_scales(file) for file in files]
    files, scales = [file for file, _ in parted], [scale for _, own in parted for scale in own]
    for file, name in zip(files[1:], names[1:], strict=True):
        _refuse_different(files[0], file, names[0], name)
    first = files[0].graph
    counts = [file.graph.networks for file in files]
    owners = _roles(first)
    tensors = {}
    for key in files[0].tensors:
        op, role = owners[key]
        arrays = [array for file in files for array in _of_networks(file, key, op, role)]
        kinds = {str(array.dtype) for array in arrays}
        if len(kinds) > 1:
            raise InvalidInput(f"{key!r} is stored as {' and '.join(sorted(kinds))}: pack all networks alike")
        same = all(np.array_equal(array, arrays[0]) for array in arrays[1:])
        tensors[key] = arrays[0] if same else np.stack(arrays)
    residuals = [file.residual for file in files]
    known = [value for value in residuals if value is not None]
    whole = len(known) == len(files)
    joined = replace(
        files[0],
        graph=replace(first, networks=sum(counts), logit_scale=1.0),
        tensors=tensors,
        residual=float(np.sqrt(np.average(np.square(known), weights=counts))) if whole else None,
    )
    return _with_scales(joined, scales)


def calibrated(ensemble: ModelFile, inputs: ArrayLike, targets: Array) -> ModelFile:
    """The ensemble with one scale, and shifts where they help, that suit the mean of its probabilities."""
    if ensemble.graph.task != "classification":
        raise InvalidInput("a regression has no probabilities to calibrate; leave out inputs and targets")
    logits = class_logits(torch.from_numpy(np.asarray(Model(ensemble).outputs(inputs))))
    classes = torch.from_numpy(targets.astype(np.int64))
    if classes.ndim != 1 or len(classes) != logits.shape[1]:
        raise InvalidInput(f"targets of shape {tuple(classes.shape)} for {logits.shape[1]} inputs: one class for each")
    fit = fit_logits(ensemble.graph.logit_scale * logits, classes)
    shifted = with_shift(ensemble, fit.shift) if fit.shift else ensemble
    return replace(shifted, graph=replace(shifted.graph, logit_scale=fit.scale * ensemble.graph.logit_scale))


def _refuse_different(first: ModelFile, other: ModelFile, first_name: str, name: str) -> None:
    a, b = first.graph, other.graph
    for what, here, there in (
        ("inputs", list(b.input_shape), list(a.input_shape)),
        ("task", b.task, a.task),
        ("classes", list(b.classes), list(a.classes)),
        ("columns", list(b.features), list(a.features)),
        ("layers", [node.op for node in b.nodes], [node.op for node in a.nodes]),
        ("shapes", _shapes(b), _shapes(a)),
        ("tensors", sorted(other.tensors), sorted(first.tensors)),
    ):
        if here != there:
            raise InvalidInput(
                f"{name}: another network than {first_name}: its {what} are {_short(here)}, there {_short(there)}; "
                "an ensemble has networks of one architecture for the same data"
            )
    if _plain(a) != _plain(b):
        raise InvalidInput(f"{name}: another network than {first_name}: the settings of its layers differ")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _shapes(graph: Graph) -> list[Any]:
    return [list(node.settings["shape"]) for node in graph.nodes if "shape" in node.settings]


def _plain(graph: Graph) -> Graph:
    return replace(graph, networks=1, logit_scale=1.0)


def _roles(graph: Graph) -> Mapping[str, tuple[str, str]]:
    """The operation and the role of every tensor."""
    return {name: (node.op, role) for node in graph.nodes for role, name in node.tensors.items()}


def _of_networks(file: ModelFile, key: str, op: str, role: str) -> list[Array]:
    """The tensor of each network of a file."""
    array = file.tensors[key]
    own = file.graph.networks > 1 and own_per_network(Stored(str(array.dtype), array.shape), op, role)
    return list(array) if own else [array] * file.graph.networks


def _without_scales(file: ModelFile) -> tuple[ModelFile, list[float]]:
    """A file without the layer that an ensemble may have at its end, and the logit scale of every network."""
    graph = file.graph
    scales = [graph.logit_scale] * graph.networks
    if graph.nodes[-1].tensors != _CONFIDENCE:
        return file, scales
    own = _of_networks(file, _CONFIDENCE["scale"], "affine", "scale")
    scales = [float(array[0]) * scale for array, scale in zip(own, scales, strict=True)]
    tensors = {key: array for key, array in file.tensors.items() if key not in _CONFIDENCE.values()}
    return replace(file, graph=replace(graph, nodes=graph.nodes[:-1]), tensors=tensors), scales


def _with_scales(joined: ModelFile, scales: list[float]) -> ModelFile:
    """The file with each network's own logit scale: in the graph if it is the same for all, else as a layer."""
    if joined.graph.task != "classification":
        return joined
    if len(set(scales)) == 1:
        return replace(joined, graph=replace(joined.graph, logit_scale=scales[0]))
    size = model_file.shapes(joined)[-1][0]
    node = Node("affine", (len(joined.graph.nodes),), "confidence", tensors=_CONFIDENCE)
    factors = np.repeat(np.array(scales, dtype=np.float32)[:, None], size, axis=1)
    added = {_CONFIDENCE["scale"]: factors, _CONFIDENCE["shift"]: np.zeros(size, dtype=np.float32)}
    graph = replace(joined.graph, nodes=(*joined.graph.nodes, node))
    return replace(joined, graph=graph, tensors={**joined.tensors, **added})
