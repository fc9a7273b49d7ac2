"""The compiled kernels of csrc/training; `native` is their only caller."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

class _Kernel(Protocol):
    def __call__(
        self, threads: int, sizes: Sequence[int], columns: Sequence[Sequence[int]], **settings: Any
    ) -> None: ...

KERNELS: Final[dict[str, _Kernel]]
"""By name; columns are addresses of tensors, or keys of their noise."""
COLUMNS: Final[dict[str, list[tuple[str, int]]]]
"""The columns of each kernel in order, with the number of values that each has for an element (0: a key)."""

def isa() -> str: ...
def borrow_threads_from(library: str) -> str: ...
def random_bits(key: int, draw: int, block: int) -> list[int]: ...
def first_beyond(threads: int, sizes: Sequence[int], tensors: Sequence[int], limit: float) -> int: ...
