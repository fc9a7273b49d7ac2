"""A model file, ready to predict. NumPy in, NumPy out; torch is never imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesbinn.environment import cores
from bayesbinn.errors import InvalidInput, InvalidUse, TooMuchMemory
from bayesbinn.modelfile.container import ModelFile, read, shapes
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.runtime import image_unfamiliarity, reference, unfamiliarity
from bayesbinn.runtime.arrays import as_floats, first_not_finite
from bayesbinn.runtime.memory import DEFAULT_MEMORY, readable
from bayesbinn.runtime.prediction import (
    Array,
    Prediction,
    Regression,
    classified,
    joined,
    mean_and_deviation,
    mean_logits,
    mean_probabilities,
    two_classes,
)

Floats = NDArray[np.float64]
Activations = Literal["exact", "int8"]
Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]
Backend = Literal["auto", "native", "reference"]
_STRIP_BYTES = 64 << 20  # for float64 arrays computed from the outputs of some rows
_ROWS_HINT = "; this model takes codes here, raw rows of its table go to predict_rows()"
_SPARE = np.float32(1.01)  # codes may have been rounded on their way here
_CODES_AT_ONCE = 1 << 16  # are checked, so that what is computed for it stays small


def load(
    path: str | os.PathLike[str],
    activations: Activations = "exact",
    threads: int | None = None,
    *,
    backend: Backend = "auto",
    max_memory: int = DEFAULT_MEMORY,
) -> Model:
    """Read a model file and prepare it for this CPU.

    Args:
        path: a file that `bb.pack` or ``bayesbinn pack`` wrote.
        activations: "exact" computes with float32 activations, as PyTorch does; "int8" rounds the input of
            every binary layer to 8 bits, with one scale per example, and is several times faster.
        threads: how many to use; by default all cores that this process may use.
        backend: "native", "reference" (NumPy, slow), or "auto": native if the package was built with it.
        max_memory: bytes that the file, the prepared network and a prediction may take together, 1 GB by
            default. A small file can ask for much more; that raises `TooMuchMemory` before anything is allocated.

    A prediction depends neither on the number of threads nor on the other inputs in the batch. Several
    Python threads may share a loaded model; they take turns.
    """
    check_options(activations, threads, backend, max_memory)
    file = read(Path(path), max_memory)
    try:
        return Model(file, activations, threads, backend=backend, max_memory=max_memory)
    except TooMuchMemory as error:
        raise TooMuchMemory(f"{path}: {error}") from None


def check_options(activations: str, threads: int | None, backend: str, max_memory: int) -> None:
    """Check the arguments of `load`."""
    if activations not in ("exact", "int8"):
        raise InvalidInput(f"activations={activations!r}: it must be 'exact' or 'int8'")
    if backend not in ("auto", "native", "reference"):
        raise InvalidInput(f"backend={backend!r}: it must be 'auto', 'native' or 'reference'")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= 1024):
        raise InvalidInput(f"threads={threads!r}: it must be a whole number from 1 to 1024")
    if type(max_memory) is not int or not 1 <= max_memory < 1 << 63:
        raise InvalidInput(f"max_memory={max_memory!r}: it must be a number of bytes")


class Model:
    """What `load` returns.

    If the file has an encoding, it was trained on a table: `predict_rows` takes raw rows of it. All methods with an
    argument `x` take the codes that `encode_rows` makes of them, and all but `outputs` reject what cannot be codes.
    """

    def __init__(
        self,
        file: ModelFile,
        activations: Activations = "exact",
        threads: int | None = None,
        *,
        backend: Backend = "auto",
        max_memory: int = DEFAULT_MEMORY,
    ) -> None:
        check_options(activations, threads, backend, max_memory)
        self.graph = file.graph
        self.residual = file.residual
        self.encoding = file.encoding
        self.labels = file.labels
        self.sections = file.sections
        self.seems_to_take_pixels = normalises_pixels(file)
        self.activations = activations
        self.threads = threads or cores()
        self.output_shape = shapes(file)[-1]
        self._input_size, self._output_size = prod(self.input_shape), prod(self.output_shape)
        self._network: Any = None
        if backend != "reference":
            self._network = _built(file, activations == "int8", self.threads, max_memory, required=backend == "native")
        # The native network keeps the weights in its own layout; only the reference needs the file's.
        self._file = file if self._network is None else None
        self._memory_left = max_memory - (file.size if self._network is None else self._network.memory())
        self._row_bytes = 4 * self.networks * self._output_size
        self._strip = max(1, _STRIP_BYTES // (12 * self._row_bytes))
        self._codes_strip = max(1, _CODES_AT_ONCE // self._input_size)
        self._code_limits = None if file.encoding is None else _code_limits(file.encoding)
        self._first_not_finite = first_not_finite if self._network is None else _native_check()
        if self._network is None:
            reference.at_once(file, 1, activations, self._memory_left)  # rejects what could never run

    @property
    def backend(self) -> str:
        """What runs the model: "reference", or the instruction set of the native kernels."""
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
        """How many networks the ensemble has; 1 for a single network."""
        return self.graph.networks

    def outputs(self, x: ArrayLike) -> Array:
        """[networks, batch, *output_shape]: the output of each network, before calibration.

        If the file has an encoding, `x` is the codes of `encode_rows`; here alone they are not checked for their range.
        """
        return self._run(self._finite_inputs(x))

    def predict(self, x: ArrayLike) -> Array:
        """[batch, classes] logits, whose softmax is `predict_proba`; for regression the mean output.

        The logits of an ensemble are the logarithms of its mean probabilities. A network with one
        logit z has the two logits (0, z). If the file has an encoding, `x` is the codes that `encode_rows` makes; raw
        rows go to `predict_rows`.
        """
        inputs = self._checked(x)
        if self.graph.task == "regression":
            return self._means(inputs)
        if self.networks == 1:
            logits = self._finite(inputs, 0)[0]
            return two_classes(logits) if len(self.output_shape) == 1 else logits
        self._need_classes()
        return self._in_strips(inputs, mean_logits)

    def predict_proba(self, x: ArrayLike) -> Array:
        """[batch, classes] probabilities, averaged over the networks of an ensemble.

        If the file has an encoding, `x` is the codes that `encode_rows` makes; raw rows go to `predict_rows`.
        """
        return self._probabilities(self._checked(x))

    def _means(self, inputs: NDArray[np.float32]) -> Array:
        return self._in_strips(inputs, lambda y: y.mean(axis=0, dtype=np.float32))

    def _probabilities(self, inputs: NDArray[np.float32]) -> Array:
        self._need_classes()
        return self._in_strips(inputs, mean_probabilities)

    def prediction(self, x: ArrayLike) -> Prediction:
        """Probabilities and their uncertainty, split into its parts as `bb.predict` does.

        If the file has an encoding, `x` is the codes that `encode_rows` makes of raw rows.
        """
        self._need_classes()
        strips = [classified(y) for y in self._strips(self._checked(x))]
        return strips[0] if len(strips) == 1 else joined(strips)

    def unfamiliarity(self, x: ArrayLike) -> NDArray[np.float64]:
        """[batch]: how unlike the training data each input is: 95 % of held-out ones are below 1, 2 is suspicious.

        The file needs statistics for it: ``bayesbinn pack --unfamiliarity`` stores them for images, the estimators do
        so for tables, where `x` is the codes that `encode_rows` makes of raw rows.
        """
        section = self.sections.get("unfamiliarity")
        if section is not None and section.rule == unfamiliarity.RULE:
            return unfamiliarity.score(section, self._checked(x))
        if section is None or section.rule != image_unfamiliarity.RULE:
            raise InvalidUse("this model file has no statistics for unfamiliarity; pack the run with --unfamiliarity")
        inputs = self._checked(x)
        images = inputs.reshape(-1, *self.input_shape)
        return image_unfamiliarity.score(section, images, self.prediction(inputs).entropy)

    @overload
    def predict_rows(self, rows: Rows, return_std: Literal[False] = False) -> Array: ...
    @overload
    def predict_rows(self, rows: Rows, return_std: Literal[True]) -> tuple[Floats, Floats]: ...

    def predict_rows(self, rows: Rows, return_std: bool = False) -> Any:
        """What `predict_proba` gives (for regression, `predict`) for raw rows of the table that the model learned from.

        `rows` is a list of mappings from columns to cells, such as ``[{"age": 41, "job": "nurse"}]``, or one mapping
        from columns to their cells. A missing cell is None. Columns that the model does not know are ignored. For
        regression, `return_std` adds the standard deviations, as `mean_and_std` does.
        """
        x = self.encode_rows(rows)
        if return_std:
            return self.mean_and_std(x)
        return self._means(x) if self.graph.task == "regression" else self._probabilities(x)

    def encode_rows(self, rows: Rows) -> Array:
        """[batch, inputs] of raw rows: what the other methods take."""
        if self.encoding is None:
            raise InvalidUse("this model file has no table encoding: it takes arrays of numbers; use predict_proba()")
        return self.encoding.encode(rows) if isinstance(rows, Mapping) else self.encoding.encode_rows(rows)

    def regression(self, x: ArrayLike) -> Regression:
        """The mean output and its standard deviation over the networks, which leaves out the error they share.

        If the file has an encoding, `x` is the codes that `encode_rows` makes of raw rows.
        """
        if self.graph.task != "regression":
            raise InvalidUse("this model is a classifier; use prediction() or predict_proba()")
        inputs = self._checked(x)
        strips = [mean_and_deviation(y) for y in self._strips(inputs)]
        return Regression(*(np.concatenate(each) for each in zip(*strips, strict=True)))

    def mean_and_std(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """For regression, [batch] each: the mean, and the standard deviation of what is predicted.

        The deviation combines how much the networks disagree about a row with the error that they share, which was
        measured on held-out rows when the model was trained. For several outputs, [batch, outputs]. If the file has an
        encoding, `x` is the codes that `encode_rows` makes; raw rows go to `predict_rows`.
        """
        found = self.regression(x)
        if self.residual is None:
            raise InvalidUse(
                "this model file does not include its networks' error; pack it from a finished run, or use regression()"
            )
        mean, std = found.mean.astype(np.float64), found.total_std(self.residual)
        return (mean[:, 0], std[:, 0]) if self.output_shape == (1,) else (mean, std)

    # ---- running ---------------------------------------------------------------------------------------

    def _run(self, inputs: NDArray[np.float32]) -> Array:
        """The networks' outputs for checked inputs, possibly with infinities and NaN."""
        batch = len(inputs)
        if batch * self._row_bytes > self._memory_left:
            raise TooMuchMemory(
                f"the outputs of {batch} examples need {readable(batch * self._row_bytes)}, but max_memory leaves only "
                f"{readable(self._memory_left)}; predict fewer at a time, or raise max_memory"
            )
        try:
            if self._network is None:
                assert self._file is not None
                x = inputs.reshape(-1, *self.input_shape)
                return reference.run(self._file, x, self.activations, self._memory_left)
            y = np.empty((self.networks, batch, self._output_size), np.float32)
            self._network.run(inputs, y)
        except TooMuchMemory:
            raise
        except MemoryError:
            raise TooMuchMemory(f"there is not enough memory for {batch} examples; predict fewer at a time") from None
        return y if len(self.output_shape) == 1 else y.reshape(*y.shape[:2], *self.output_shape)

    def _finite(self, inputs: NDArray[np.float32], first: int) -> Array:
        """Finite outputs (scaled logits if it is a classifier); `first` is the number of the first row."""
        y = self._run(inputs)
        if self.graph.task == "classification" and self.graph.logit_scale != 1.0:
            with np.errstate(over="ignore"):  # checked below
                y *= np.float32(self.graph.logit_scale)
        lost = self._first_not_finite(y.reshape(-1, self._output_size))
        if lost >= 0:
            raise InvalidInput(
                f"row {first + lost % len(inputs)}: the model's output is NaN or infinite; the inputs may be too large"
            )
        return y

    def _strips(self, inputs: NDArray[np.float32]) -> Iterator[Array]:
        """The same, a few rows at a time: results computed from an ensemble's outputs take more memory than these."""
        for first in range(0, max(1, len(inputs)), self._strip):
            yield self._finite(inputs[first : first + self._strip], first)

    def _in_strips(self, inputs: NDArray[np.float32], function: Callable[[Array], Array]) -> Array:
        strips = [function(y) for y in self._strips(inputs)]
        return strips[0] if len(strips) == 1 else np.concatenate(strips)

    def _need_classes(self) -> None:
        if self.graph.task == "regression":
            raise InvalidUse("this model is for regression; use predict() or regression()")
        if len(self.output_shape) != 1:
            raise InvalidUse(f"an output of shape {self.output_shape} is not one number per class; use outputs()")

    def _checked(self, x: ArrayLike) -> NDArray[np.float32]:
        """[batch, inputs], float32, contiguous, finite; codes within their range, since raw rows may have as many."""
        inputs = self._finite_inputs(x)
        if self._code_limits is not None:
            for first in range(0, len(inputs), self._codes_strip):
                beyond = np.abs(inputs[first : first + self._codes_strip]) > self._code_limits
                if np.count_nonzero(beyond):  # for a single row, any() takes three times as long
                    raise self._no_codes(inputs, first + int(beyond.any(axis=1).argmax()))
        return inputs

    def _no_codes(self, inputs: NDArray[np.float32], row: int) -> InvalidInput:
        assert self.encoding is not None and self._code_limits is not None
        place = int((np.abs(inputs[row]) > self._code_limits).argmax())
        name, height = self.encoding.code_names[place], self._code_limits[place] / _SPARE
        return InvalidInput(
            f"row {row} has {inputs[row, place]:.6g}, but {name!r} is from {-height:.4g} to {height:.4g}{_ROWS_HINT}"
        )

    def _finite_inputs(self, x: ArrayLike) -> NDArray[np.float32]:
        """[batch, inputs], float32, contiguous, finite."""
        hint = "" if self.encoding is None else _ROWS_HINT
        try:
            inputs = as_floats(x)
        except InvalidInput as error:
            raise InvalidInput(f"{error}{hint}") from None
        size = self._input_size
        if inputs.ndim != 2 or inputs.shape[1] != size:
            if not inputs.ndim or (inputs.shape[1:] != self.input_shape and inputs.shape[1:] != (size,)):
                raise InvalidInput(
                    f"inputs of shape {inputs.shape}: [batch, {', '.join(map(str, self.input_shape))}] is needed"
                    + (", with the batch first" if inputs.shape == self.input_shape else "")
                    + hint
                )
            inputs = inputs.reshape(-1, size)
        lost = self._first_not_finite(inputs)
        if lost >= 0:
            raise InvalidInput(
                f"row {lost} has NaN, infinity or a number too large for float32; use finite numbers{hint}"
            )
        return inputs

    def __repr__(self) -> str:
        kind = f"{self.networks} networks" if self.networks > 1 else self.graph.task
        return f"Model({kind}, {self.input_shape} → {self.output_shape}, {self.activations}, {self.backend})"


def normalises_pixels(file: ModelFile) -> bool:
    """Whether images are first normalized by a mean and a deviation that fit pixels from 0 to 255.

    A file does not record the type of its inputs; other numbers of that size, such as 0.0 to 255.0, look the same.
    """
    first = file.graph.nodes[0] if file.graph.nodes else None
    if first is None or first.name != "normalisation" or first.op != "affine" or len(file.graph.input_shape) != 3:
        return False
    scale, shift = (file.tensors[first.tensors[key]].astype(np.float64) for key in ("scale", "shift"))
    if not (scale > 0).all():
        return False
    mean, deviation = -shift / scale, 1 / scale
    slack = 1e-3  # of float32
    return bool((mean >= -slack).all() and (mean <= 255 + slack).all() and (deviation > 1 + slack).any())


def _code_limits(encoding: TableEncoding) -> NDArray[np.float32]:
    """The largest size of each code, and a little more."""
    heights = [column.height for column in encoding.columns for _ in range(column.width)]
    return np.array(heights, np.float32) * _SPARE


def _native_check() -> Callable[[Array], int]:
    from bayesbinn.runtime import _native

    check: Callable[[Array], int] = _native.first_not_finite
    return check


def _built(file: ModelFile, quantized: bool, threads: int, max_memory: int, required: bool) -> Any:
    try:
        from bayesbinn.runtime import native

        return native.build(file, quantized, threads, max_memory)
    except ImportError as error:
        if required:
            raise InvalidUse(f"the native runtime is not available ({error}); reinstall with a C++ compiler") from None
        return None
