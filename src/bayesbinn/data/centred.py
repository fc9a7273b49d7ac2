"""Prepares a drawing like MNIST's digits: scaled to fit a box of 20×20, with its center of mass in the middle of 28×28.

The page of ``bayesbinn export --to html`` does the same in JavaScript; a test compares the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDE, BOX = 28, 20
_FAINT = 16
"""Fainter pixels, such as blurred edges or the noise of a photograph, do not count as ink when the box is found."""

Floats = NDArray[np.float64]


def centred(ink: NDArray[np.uint8], side: int = SIDE, box: int = BOX) -> NDArray[np.uint8]:
    """[side, side] pixels of a drawing of any size, bright on black; all black if there is no ink.

    >>> dot = np.zeros((50, 70), dtype=np.uint8)
    >>> dot[10:20, 30:40] = 255
    >>> image = centred(dot)
    >>> image[3:6, 3:6].tolist(), image[23:25, 23:25].tolist()
    ([[0, 0, 0], [0, 255, 255], [0, 255, 255]], [[255, 0], [0, 0]])
    """
    rows, columns = (np.flatnonzero((ink >= _FAINT).any(axis=axis)) for axis in (1, 0))
    result = np.zeros((side, side), dtype=np.uint8)
    if not len(rows):
        return result
    found = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.float64)
    height, width = found.shape
    longest = max(height, width)
    sizes = [max(1, int(np.floor(box * size / longest + 0.5))) for size in (height, width)]
    small = _areas(height, sizes[0]) @ found @ _areas(width, sizes[1]).T
    top, left = (_start(small.sum(axis=axis), side) for axis in (1, 0))
    result[top : top + sizes[0], left : left + sizes[1]] = np.floor(small + 0.5).astype(np.uint8)
    return result


def _areas(size: int, smaller: int) -> Floats:
    """[smaller, size]: the share of each pixel in every new pixel; rows add up to 1."""
    edges = np.arange(smaller + 1) * (size / smaller)
    pixels = np.arange(size)
    ends = np.minimum(edges[1:, None], pixels + 1)
    covered: Floats = np.maximum(ends - np.maximum(edges[:-1, None], pixels), 0.0)
    return covered * (smaller / size)


def _start(mass: Floats, side: int) -> int:
    """Where the image starts, so that its center of mass is in the middle and all of it is visible."""
    centre = float((mass * (np.arange(len(mass)) + 0.5)).sum() / mass.sum())
    return min(max(int(np.floor(side / 2 - centre + 0.5)), 0), side - len(mass))
