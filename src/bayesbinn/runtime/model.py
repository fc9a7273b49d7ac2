"""A model file, ready to predict. NumPy in, NumPy out; torch is never imported."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.format import ModelFile, read, shapes
from bayesbinn.runtime import reference
from bayesbinn.runtime.prediction import Array, Prediction, Regression, classified, log_probabilities, two_classes

Activations = Literal["exact", "int8"]
Backend = Literal["auto", "native", "reference"]


def load(
    path: str | os.PathLike[str],
    activations: Activations = "exact",
    threads: int | None = None,
    *,
    backend: Backend = "auto",
) -> Model:
    """Read a model file and prepare it for this CPU.

    Args:
        path: a file that `bb.pack` or ``bayesbinn pack`` wrote.
        activations: "exact" computes with float32 activations, as PyTorch does; "int8" rounds the input of
            every binary layer to 8 bits, with one scale per example, and is several times faster.
        threads: how many to use; by default all cores that this process may use.
        backend: "native", "reference" (NumPy, slow), or "auto": native where the package was built with it.

    A prediction depends neither on the threads nor on the batch that an input comes in. A loaded
    model may be used from several Python threads; they take turns.
    """
    return Model(read(Path(path)), activations, threads, backend=backend)


class Model:
    """What `load` returns."""

    def __init__(
        self,
        file: ModelFile,
        activations: Activations = "exact",
        threads: int | None = None,
        *,
        backend: Backend = "auto",
    ) -> None:
        if activations not in ("exact", "int8"):
            raise InvalidInput(f"activations={activations!r}: it must be 'exact' or 'int8'")
        if backend not in ("auto", "native", "reference"):
            raise InvalidInput(f"backend={backend!r}: it must be 'auto', 'native' or 'reference'")
        if threads is not None and (type(threads) is not int or not 1 <= threads <= 1024):
            raise InvalidInput(f"threads={threads!r}: it must be a whole number from 1 to 1024")
        self.graph = file.graph
        self.activations = activations
        self.threads = threads or usable_cores()
        self.output_shape = shapes(file)[-1]
        self._input_size, self._output_size = prod(self.input_shape), prod(self.output_shape)
        self._network: Any = None
        if backend != "reference":
            self._network = _built(file, activations == "int8", self.threads, required=backend == "native")
        # The native network holds the weights in its own form; only the reference needs the file's.
        self._file = file if self._network is None else None

    @property
    def backend(self) -> str:
        """What runs it: "reference", or the instruction set of the native kernels."""
        if self._network is None:
            return "reference"
        from bayesbinn.runtime import _native

        return str(_native.isa())

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.graph.input_shape

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if the file has none."""
        return self.graph.classes

    @property
    def networks(self) -> int:
        """How many networks an ensemble has; 1 for a single one."""
        return self.graph.networks

    def outputs(self, x: ArrayLike) -> Array:
        """[networks, batch, *output_shape]: what each network gives, before calibration."""
        inputs = self._checked(x)
        if self._network is None:
            assert self._file is not None
            return reference.run(self._file, inputs.reshape(-1, *self.input_shape), self.activations)
        y = np.empty((self.graph.networks, len(inputs), self._output_size), np.float32)
        self._network.run(inputs, y)
        return y if len(self.output_shape) == 1 else y.reshape(*y.shape[:2], *self.output_shape)

    def predict(self, x: ArrayLike) -> Array:
        """[batch, classes] logits, whose softmax is `predict_proba`; for regression the mean output.

        The logits of an ensemble are the logarithms of its mean probabilities. A network with one
        logit z has the two logits (0, z).
        """
        outputs = self.outputs(x)
        if self.graph.task == "regression":
            average: Array = outputs.mean(axis=0, dtype=np.float32)
            return average
        logits = outputs * np.float32(self.graph.logit_scale)
        if self.networks == 1:
            return two_classes(logits[0]) if len(self.output_shape) == 1 else logits[0]
        self._need_classes()
        logs = log_probabilities(logits)
        mean: Array = (np.logaddexp.reduce(logs, axis=0) - np.log(self.networks)).astype(np.float32)
        return mean

    def predict_proba(self, x: ArrayLike) -> Array:
        """[batch, classes] probabilities, averaged over the networks of an ensemble."""
        return self.prediction(x).probabilities

    def prediction(self, x: ArrayLike) -> Prediction:
        """Probabilities and their uncertainty, split into its parts as `bb.predict` does."""
        self._need_classes()
        return classified(self.outputs(x) * np.float32(self.graph.logit_scale))

    def regression(self, x: ArrayLike) -> Regression:
        """The mean output and its standard deviation over the networks."""
        if self.graph.task != "regression":
            raise InvalidUse("this model tells classes; use prediction() or predict_proba()")
        outputs = self.outputs(x).astype(np.float64)
        std = outputs.std(axis=0, ddof=1) if self.networks > 1 else np.zeros_like(outputs[0])
        return Regression(outputs.mean(axis=0).astype(np.float32), std.astype(np.float32))

    def _need_classes(self) -> None:
        if self.graph.task == "regression":
            raise InvalidUse("this model is for regression; use predict() or regression()")
        if len(self.output_shape) != 1:
            raise InvalidUse(f"an output of shape {self.output_shape} is not one number per class; use outputs()")

    def _checked(self, x: ArrayLike) -> NDArray[np.float32]:
        """[batch, inputs], float32, contiguous."""
        try:
            inputs = np.ascontiguousarray(x, dtype=np.float32)
        except (TypeError, ValueError):
            raise InvalidInput("inputs must be numbers in an array of one shape") from None
        size = self._input_size
        if inputs.ndim == 2 and inputs.shape[1] == size:
            return inputs
        if inputs.ndim and (inputs.shape[1:] == self.input_shape or inputs.shape[1:] == (size,)):
            return inputs.reshape(-1, size)
        raise InvalidInput(
            f"inputs of shape {inputs.shape}: [batch, {', '.join(map(str, self.input_shape))}] is needed"
            + (", with the batch first" if inputs.shape == self.input_shape else "")
        )

    def __repr__(self) -> str:
        kind = f"{self.networks} networks" if self.networks > 1 else self.graph.task
        return f"Model({kind}, {self.input_shape} → {self.output_shape}, {self.activations}, {self.backend})"


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _built(file: ModelFile, quantised: bool, threads: int, required: bool) -> Any:
    try:
        from bayesbinn.runtime import native

        return native.build(file, quantised, threads)
    except ImportError as error:
        if required:
            raise InvalidUse(f"the native runtime is not there ({error}); reinstall with a C++ compiler") from None
        return None
