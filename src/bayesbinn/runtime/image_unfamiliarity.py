"""How unlike the training images an image is, in NumPy; the page of ``bayesbinn export --to html`` does the same.

The score combines two measures. The first is how uncertain the networks are: the entropy H of their mean prediction.
The second is how badly any class explains the image. An image is described by its edges: their strength in each of four
directions, averaged over blocks, as a vector of length 1, which depends little on how thick and bright lines are. The
vectors of a class are close to a space of a few main directions, and r is the share of an image's square that is
outside the space of every class. The first measure alone accepts some letters as digits; the second alone accepts half
of one digit with half of another.

The score is (√(H/h) + 2·r/o)/u. 95 % of held-out images have an H below h, an r below o, and a sum below u: so 95 % of
held-out images have a score below 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.modelfile.sections import Section
from bayesbinn.runtime.unfamiliarity import USUAL, Floats

RULE = "entropy, and what no class explains"
MAX_DIRECTIONS = 30
"""The most directions of each class."""
_EDGES = 4
"""Directions of edges: horizontal, vertical, and the two between them."""
_SIDE = 7
"""About how many blocks the longer side of an image has."""
_WEIGHT = 2.0
_MAX_IMAGES = 2000
"""The most images of each class to learn from."""
_MAX_VALUES = 1 << 18
"""The most values of all directions together: half a megabyte as float16."""
_LEAST = 1e-6

Images = NDArray[Any]


def learn(images: Images, classes: NDArray[np.int64], held_out: Images, entropy: NDArray[Any]) -> Section:
    """Learn from [images, channels, height, width] of the training part, and held-out images with their entropies."""
    block = max(1, round(max(images.shape[2:]) / _SIDE))
    found = [_units(images[np.flatnonzero(classes == each)[:_MAX_IMAGES]], block) for each in np.unique(classes)]
    width = found[0].shape[1]
    count = min(MAX_DIRECTIONS, width, _MAX_VALUES // (width * len(found)))
    directions = np.concatenate([_main_directions(units, count) for units in found])
    tensors = {"directions": directions.astype(np.float16)}
    numbers: dict[str, Any] = {"block": block, "classes": len(found), "entropy": 1.0, "rest": 1.0, "unit": 1.0}
    rest = _rest(Section(RULE, numbers, tensors), held_out)
    numbers["entropy"], numbers["rest"] = _limit(entropy), _limit(rest)
    unit = _limit(score(Section(RULE, numbers, tensors), held_out, entropy))
    return Section(RULE, {**numbers, "unit": unit}, tensors)


def score(section: Section, images: Images, entropy: NDArray[Any]) -> Floats:
    """[images]: how unlike the training images each is; 1 is the threshold."""
    numbers: Any = section.numbers
    uncertain = np.sqrt(np.maximum(entropy.astype(np.float64), 0.0) / numbers["entropy"])
    scores: Floats = (uncertain + _WEIGHT * _rest(section, images) / numbers["rest"]) / numbers["unit"]
    return scores


def _rest(section: Section, images: Images) -> Floats:
    """[images]: the share that no class explains; 1 for an image without edges."""
    numbers: Any = section.numbers
    units = _units(images, numbers["block"])
    directions = section.tensors["directions"].astype(np.float64)
    along = units @ directions.T
    explained = (along**2).reshape(len(units), numbers["classes"], -1).sum(axis=2).max(axis=1)
    rest: Floats = np.maximum(1.0 - explained, 0.0)
    return rest


def _units(images: Images, block: int) -> Floats:
    """[images, values]: mean strengths of the edges in blocks, scaled to length 1.

    Rows and columns of pixels that fill no block are left out.
    """
    count, channels, height, width = images.shape
    rows, columns = height // block, width // block
    edges = _edges(images.astype(np.float64))[..., : rows * block, : columns * block]
    means = edges.reshape(count, channels * _EDGES, rows, block, columns, block).mean(axis=(3, 5)).reshape(count, -1)
    lengths = np.sqrt((means**2).sum(axis=1, keepdims=True))
    units: Floats = means / np.where(lengths > 0, lengths, 1.0)
    return units


def _edges(images: Floats) -> Floats:
    """[images, channels, directions, height, width]: how strong an edge is, shared by the two nearest directions.

    The outermost pixels have no edge along the border.
    """
    across, down = np.zeros_like(images), np.zeros_like(images)
    across[..., 1:-1] = images[..., 2:] - images[..., :-2]
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    strength = np.sqrt(across**2 + down**2)
    direction = np.arctan2(down, across) / np.pi * _EDGES  # twice around: an edge is the same seen from both sides
    before = np.floor(direction)
    share = direction - before
    first = before.astype(np.int64) % _EDGES
    found = [
        strength * (np.where(first == each, 1 - share, 0.0) + np.where((first + 1) % _EDGES == each, share, 0.0))
        for each in range(_EDGES)
    ]
    return np.stack(found, axis=2)


def _main_directions(units: Floats, count: int) -> Floats:
    """[count, values]: the directions of the largest squares; a class of few images has zeros at the end."""
    _, vectors = np.linalg.eigh(units.T @ units)
    directions: Floats = vectors[:, ::-1][:, :count].T.copy()
    directions[min(count, len(units)) :] = 0.0
    return directions


def _limit(values: NDArray[Any]) -> float:
    """What the usual share of values stays below; never 0, because scores are divided by it."""
    return max(float(np.quantile(values.astype(np.float64), USUAL, method="higher")), _LEAST)
