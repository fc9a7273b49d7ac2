"""The noise: Philox4x32-10, a counter-based generator, so that every draw has an address.

Each number depends only on (seed, purpose, parameter, draw, element), not on the device, the
number of threads, the order of the parameters or earlier draws.

    key      64 bits, a hash of seed, purpose and parameter name
    counter  128 bits: which block of the tensor (64), which draw (64)

Philox yields four 32-bit words per counter. Elements are assigned to them in blocks of 32
(eight counters), so that a vector unit with eight lanes writes its words without shuffling:

    element 32·b + 8·j + c   <-   word j of counter 8·b + c
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

BLOCK = 32
_LOW = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85


@lru_cache(maxsize=4096)
def noise_key(seed: int, purpose: str, name: str) -> int:
    """The 64-bit Philox key of one stream, such as (7, "train", "layers.0.weight")."""
    digest = blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32 on int64 tensors that hold 32-bit words."""
    k0, k1 = key & _LOW, key >> 32
    for _ in range(10):
        # An int64 product wraps, but its 64 bits are those of the unsigned product.
        p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW) ^ c1 ^ k0,
            p1 & _LOW,
            ((p0 >> 32) & _LOW) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def random_bits(key: int, draw: int, count: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
    """32 random bits (as int64) for elements `first` to `first + count - 1` of a tensor.

    `first` must be a multiple of 32.
    """
    blocks = -(-count // BLOCK)
    counter = torch.arange(8 * blocks, device=device, dtype=torch.int64) + first // BLOCK * 8
    zero = torch.zeros_like(counter)
    words = philox(counter & _LOW, counter >> 32, zero + (draw & _LOW), zero + (draw >> 32), key)
    return torch.stack(words).view(4, blocks, 8).transpose(0, 1).reshape(-1)[:count]


def uniform(key: int, draw: int, count: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
    """Uniform numbers (k + ½)·2⁻²³, k < 2²³: symmetric, never 0 or 1, exact in float32 (as is 1 − u)."""
    bits = random_bits(key, draw, count, device, first)
    return ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
