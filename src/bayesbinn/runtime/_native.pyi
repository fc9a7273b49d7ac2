"""The compiled network of csrc/inference; `native` is its only caller."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Weights = NDArray[np.uint8] | NDArray[np.float32]
_Axis = tuple[int, int, int, int, int, int, bool]

class OverLimit(MemoryError): ...

def isa() -> str: ...
def first_not_finite(x: _Floats, /) -> int: ...

class Geometry:
    def __init__(
        self,
        *,
        channels: int,
        height: int,
        width: int,
        outputs: int,
        out_height: int,
        out_width: int,
        kernel_height: int,
        kernel_width: int,
        stride_height: int,
        stride_width: int,
        top: int,
        left: int,
        dilation_height: int,
        dilation_width: int,
        groups: int,
    ) -> None: ...

class Network:
    """Each operation returns the number of the value that it gives; value 0 is the input."""

    def __init__(self, networks: int, inputs: int, threads: int, max_memory: int, /) -> None: ...
    def linear(
        self,
        input: int,
        rows: int,
        count: int,
        weights: _Weights,
        quantized: bool,
        scale: _Floats | None,
        shift: _Floats | None,
        low: float,
        high: float,
        /,
    ) -> int: ...
    def convolution(
        self,
        input: int,
        geometry: Geometry,
        weights: _Weights,
        quantized: bool,
        scale: _Floats | None,
        shift: _Floats | None,
        low: float,
        high: float,
        /,
    ) -> int: ...
    def pool(
        self,
        input: int,
        channels: int,
        rows: _Axis,
        columns: _Axis,
        average: bool,
        scale: _Floats | None,
        shift: _Floats | None,
        low: float,
        high: float,
        /,
    ) -> int: ...
    def affine(
        self,
        input: int,
        outer: int,
        channels: int,
        inner: int,
        scale: _Floats | None,
        shift: _Floats | None,
        low: float,
        high: float,
        /,
    ) -> int: ...
    def tanh(self, input: int, count: int, /) -> int: ...
    def sigmoid(self, input: int, count: int, /) -> int: ...
    def softmax(self, input: int, outer: int, count: int, inner: int, /) -> int: ...
    def add(self, first: int, second: int, count: int, low: float, high: float, /) -> int: ...
    def concatenate(self, inputs: Sequence[int], outer: int, lengths: Sequence[int], /) -> int: ...
    def transpose(self, input: int, rows: int, columns: int, /) -> int: ...
    def seal(self, output: int, output_count: int, /) -> None: ...
    def memory(self) -> int: ...
    def run(self, x: _Floats, y: _Floats, /) -> None: ...
