"""The bit convention of binary weights, defined only here.

A row of K weights becomes ⌈K/8⌉ bytes. Weight k is bit k mod 8 of byte k div 8, counted from the
least significant bit; 1 means +1 and 0 means -1. The unused bits of the last byte are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def row_bytes(weights: int) -> int:
    """Bytes of a row with this many weights.

    >>> row_bytes(27)
    4
    """
    return -(-weights // 8)


def pack_rows(weights: NDArray[Any]) -> NDArray[np.uint8]:
    """[..., K] of -1 and +1 → [..., ⌈K/8⌉] bytes.

    >>> pack_rows(np.array([[1, -1, -1, -1, -1, -1, -1, -1, 1, 1]]))
    array([[1, 3]], dtype=uint8)
    """
    positive: NDArray[np.bool_] = weights > 0
    return np.packbits(positive, axis=-1, bitorder="little")


def unpack_rows(packed: NDArray[np.uint8], weights: int) -> NDArray[np.float32]:
    """[..., ⌈K/8⌉] bytes → [..., K] of -1 and +1, with K = `weights`.

    >>> unpack_rows(np.array([[1, 3]], dtype=np.uint8), 10)
    array([[ 1., -1., -1., -1., -1., -1., -1., -1.,  1.,  1.]], dtype=float32)
    """
    bits = np.unpackbits(packed, axis=-1, count=weights, bitorder="little")
    return bits.astype(np.float32) * 2 - 1


def padding_is_zero(packed: NDArray[np.uint8], weights: int) -> bool:
    """Whether the bits after the last weight of every row are 0.

    >>> padding_is_zero(np.array([[1, 3]], dtype=np.uint8), 10), padding_is_zero(np.array([[1, 7]], dtype=np.uint8), 10)
    (True, False)
    """
    used = weights % 8
    return used == 0 or not np.any(packed[..., -1] >> used)
