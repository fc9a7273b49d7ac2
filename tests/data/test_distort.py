"""Distorted training digits: as strong as asked, drawn from the seed, still the same digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayesbinn.data.batches import Part
from bayesbinn.data.distort import Distortions
from bayesbinn.data.normalise import Normaliser
from bayesbinn.errors import InvalidInput


def bar(thick: int = 4) -> torch.Tensor:
    """[1, 1, 28, 28] with an upright bar in the middle."""
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 5:23, 14 - thick // 2 : 14 + thick // 2] = 255
    return image


def part(images: torch.Tensor) -> Part:
    normaliser = Normaliser(torch.zeros(1), torch.ones(1))
    return Part(images, torch.zeros(len(images), dtype=torch.int64), normaliser)


def test_strength_0_changes_nothing_and_strength_1_stays_within_its_limits() -> None:
    many = bar().expand(300, -1, -1, -1).clone()
    rows, generator = np.arange(300), torch.Generator().manual_seed(0)
    assert torch.equal(Distortions.random(300, generator, 0.0).applied(many, rows), many)
    strong = Distortions.random(300, generator, 1.0)
    images = strong.applied(many, rows).double()
    assert images.shape == many.shape and len({bytes(image.numpy().tobytes()) for image in images}) == 300
    places = torch.arange(28) + 0.5
    centres = (images.sum(2)[:, 0] @ places.double()) / images.sum((1, 2, 3))
    assert 1.0 < float((centres - 14).abs().max()) < 5  # shifted by 2 pixels; sheared and turned around the middle
    ink = images.sum((1, 2, 3)) / many[0].double().sum()
    assert float(ink.min()) < 0.7 and float(ink.max()) > 1.4


def test_thickness_grows_and_shrinks_lines_by_a_pixel_on_each_side() -> None:
    plain = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
    for thickness, width in ((1.0, 6), (0.0, 4), (-1.0, 2)):
        image = Distortions(plain, torch.tensor([thickness])).applied(bar(), np.array([0]))
        assert int((image[0, 0, 14] == 255).sum()) == width


def test_an_epoch_is_the_same_again_and_starts_at_any_batch() -> None:
    data = part(bar().expand(40, -1, -1, -1).clone())
    first = [x for x, _ in data.batches(10, seed=3, epoch=2, distort=0.5)]
    again = [x for x, _ in data.batches(10, seed=3, epoch=2, distort=0.5, start=2)]
    assert all(torch.equal(a, b) for a, b in zip(first[2:], again, strict=True))
    assert not torch.equal(first[0], next(iter(data.batches(10, seed=3, epoch=3, distort=0.5)))[0])


def test_what_cannot_be_distorted_is_refused() -> None:
    row = part(torch.zeros(4, 3))
    for data, settings in ((part(bar()), {}), (row, {"seed": 1}), (part(bar()), {"seed": 1, "shift": 1})):
        with pytest.raises(InvalidInput, match=r"distort=0.5 .*use 0"):
            data.batches(2, distort=0.5, **settings)  # type: ignore[arg-type]
