"""Digits as a person with a mouse would draw them: the lines of MNIST's test digits, drawn again with another hand.

An image is thinned to lines of one pixel, which are followed as strokes; the strokes are smoothed, distorted as a whole
and locally, and drawn with a round pen on a large canvas.
"""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CANVAS = 280
_FINE = 3  # images are enlarged before they are thinned
_SHORTEST = 2 * _FINE
_INK = 110
_TURN, _SHEAR, _STRETCH, _WAVE, _TREMBLE = pi / 18, 0.12, 0.1, 0.02, 0.003

Points = NDArray[np.float64]


def pen_strokes(digit: NDArray[np.uint8], random: np.random.Generator) -> list[Points]:
    """Strokes on a canvas of 280×280 that redraw a digit of 28×28 with another hand."""
    strokes = [_smooth(stroke) for stroke in _followed(_thinned(digit))]
    points = np.concatenate(strokes)
    low, high = points.min(axis=0), points.max(axis=0)
    size = max(float((high - low).max()), 1.0)
    return [
        _by_another_hand((stroke - (low + high) / 2) / size, bend) for bend in [_Hand(random)] for stroke in strokes
    ]


class _Hand:
    """Random distortions that all strokes of a drawing share."""

    def __init__(self, random: np.random.Generator) -> None:
        turn, shear = random.uniform(-_TURN, _TURN), random.uniform(-_SHEAR, _SHEAR)
        stretch = np.diag(random.uniform(1 - _STRETCH, 1 + _STRETCH, 2))
        self.matrix = (
            np.array([[cos(turn), -sin(turn)], [sin(turn), cos(turn)]]) @ np.array([[1, shear], [0, 1]]) @ stretch
        )
        self.phases = random.uniform(0, 2 * pi, (2, 3))
        self.waves = random.normal(0, _WAVE, (2, 3))
        self.directions = random.normal(0, 5, (2, 3, 2))
        self.size = random.uniform(0.45, 0.75) * CANVAS
        self.middle = CANVAS / 2 + random.uniform(-0.08, 0.08, 2) * CANVAS
        self.random = random


def _by_another_hand(stroke: Points, hand: _Hand) -> Points:
    moved = stroke @ hand.matrix.T
    for axis in (0, 1):
        angles = stroke @ hand.directions[axis].T + hand.phases[axis]
        moved[:, axis] += (hand.waves[axis] * np.sin(angles)).sum(axis=1)
    moved += hand.random.normal(0, _TREMBLE, moved.shape)
    return moved * hand.size + hand.middle


def _smooth(stroke: Points) -> Points:
    """Running means of neighbours, twice; the ends stay. Every third point is kept."""
    for _ in range(2):
        if len(stroke) > 4:
            middle = (stroke[:-4] + stroke[1:-3] + stroke[2:-2] + stroke[3:-1] + stroke[4:]) / 5
            stroke = np.concatenate([stroke[:2], middle, stroke[-2:]])
    return np.concatenate([stroke[:-1:_FINE], stroke[-1:]])


def _followed(line: NDArray[np.bool_]) -> list[Points]:
    """Strokes along lines of one pixel, as (x, y): from their ends first, straight on at crossings."""
    left = {(int(y), int(x)) for y, x in np.argwhere(line)}
    whole = set(left)
    strokes: list[list[tuple[int, int]]] = []
    while left:
        ends = [place for place in left if sum(near in whole for near in _around(place)) == 1]
        place = min(ends or left)
        left.remove(place)
        stroke = [place]
        while True:
            onward = [near for near in _around(place) if near in left]
            if not onward:
                break
            back = stroke[max(0, len(stroke) - 5)]
            ahead = (place[0] - back[0], place[1] - back[1])
            here = place
            place = max(onward, key=lambda near: (near[0] - here[0]) * ahead[0] + (near[1] - here[1]) * ahead[1])
            left.remove(place)
            stroke.append(place)
        joins = [near for near in _around(place) if near in whole and near not in stroke[-3:]]
        strokes.append([*stroke, *joins[:1]])
    long = [stroke for stroke in strokes if len(stroke) >= _SHORTEST] or [max(strokes, key=len)]
    return [np.array([(x, y) for y, x in stroke], dtype=np.float64) for stroke in long]


def _around(place: tuple[int, int]) -> list[tuple[int, int]]:
    """The eight neighbours, those that share a side first."""
    y, x = place
    sides = [(y - 1, x), (y, x - 1), (y, x + 1), (y + 1, x)]
    return [*sides, (y - 1, x - 1), (y - 1, x + 1), (y + 1, x - 1), (y + 1, x + 1)]


def _thinned(digit: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Lines of one pixel (Zhang and Suen 1984): border pixels are taken away as long as nothing falls apart."""
    size = (digit.shape[1] * _FINE, digit.shape[0] * _FINE)
    large = np.asarray(Image.fromarray(digit).resize(size, Image.Resampling.BICUBIC))
    ink = np.pad(large > _INK, 1)
    while True:
        before = int(ink.sum())
        for first in (True, False):
            n, ne, e, se, s, sw, w, nw = (
                np.roll(ink, shift, axis=(0, 1))
                for shift in ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))
            )
            ring = [n, ne, e, se, s, sw, w, nw]
            count = sum(each.astype(np.int8) for each in ring)
            changes = sum((~a & b).astype(np.int8) for a, b in zip(ring, [*ring[1:], n], strict=True))
            open_side = ~(n & e & s) & ~(e & s & w) if first else ~(n & e & w) & ~(n & s & w)
            ink = ink & ~((count >= 2) & (count <= 6) & (changes == 1) & open_side)
        if int(ink.sum()) == before:
            return ink[1:-1, 1:-1]
