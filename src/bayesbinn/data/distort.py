"""Randomly distorts a whole batch of drawings at once: rotated, sheared, stretched, shifted, thicker or thinner.

The distortions imitate different hands and pens, so a network that was trained with them recognizes what is drawn with
a mouse. At strength 1 an image is rotated by up to 15°, sheared by up to 0.2, stretched by up to a fifth, shifted by up
to two pixels of 28, and its lines grow or shrink by up to a pixel on each side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

_TURN, _SHEAR, _STRETCH, _SHIFT = torch.pi / 12, 0.2, 0.2, 2 / 14


@dataclass(frozen=True)
class Distortions:
    """For each image, the map from places in the result to places in the original, and how much its lines grow."""

    maps: Tensor
    """[count, 2, 3], in units of half an image."""
    thickness: Tensor
    """[count], from −1 (a pixel less on each side) to 1."""

    @classmethod
    def random(cls, count: int, generator: torch.Generator, strength: float) -> Distortions:
        """Draw every distortion uniformly, up to `strength`."""
        uniform = strength * (2 * torch.rand((7, count), generator=generator) - 1)
        turn, shear, wide, high = _TURN * uniform[0], _SHEAR * uniform[1], *(_STRETCH * uniform[2:4])
        # Stretching first and rotating last, from the result back to the original.
        cosine, sine = turn.cos(), turn.sin()
        first = torch.stack([cosine * (1 + wide), (shear * cosine - sine) * (1 + wide), _SHIFT * uniform[4]], dim=1)
        second = torch.stack([sine * (1 + high), (shear * sine + cosine) * (1 + high), _SHIFT * uniform[5]], dim=1)
        return cls(torch.stack([first, second], dim=1), uniform[6])

    def __getitem__(self, part: slice) -> Distortions:
        return Distortions(self.maps[part], self.thickness[part])

    def applied(self, images: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
        """The images at `rows`, each with its distortion: [len(rows), C, H, W], same dtype.

        >>> ink = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
        >>> ink[..., 2] = 255
        >>> plain = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
        >>> Distortions(plain, torch.tensor([1.0])).applied(ink, np.array([0]))[0, 0, 2].tolist()
        [0, 255, 255, 255, 0]
        """
        gathered = images[torch.from_numpy(rows)].float()
        grid = F.affine_grid(self.maps, list(gathered.shape), align_corners=False)
        moved = F.grid_sample(gathered, grid, align_corners=False)
        amount = self.thickness[:, None, None, None]
        thicker = F.max_pool2d(moved, 3, 1, 1) - moved
        thinner = -F.max_pool2d(-moved, 3, 1, 1) - moved
        changed = moved + amount.clamp(min=0) * thicker - amount.clamp(max=0) * thinner
        return changed if images.is_floating_point() else changed.round().clamp(0, 255).to(images.dtype)
