"""Images unlike the training images: two classes of bars, learned by hand and through `bayesbinn pack`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayesbinn.errors import InvalidUse
from bayesbinn.runtime import image_unfamiliarity, load
from tests.helpers.commands import call

RANDOM = np.random.default_rng(0)


def bars(count: int) -> tuple[np.ndarray, np.ndarray]:
    """[count, 1, 28, 28] of upright (class 0) and level bars (class 1), of any brightness, and their classes."""
    classes = np.arange(count) % 2
    images = np.zeros((count, 1, 28, 28))
    for image, each in zip(images, classes, strict=True):
        place, bright = RANDOM.integers(10, 16), RANDOM.uniform(100, 255)
        image[0, 4:24, place : place + 3] = bright
        if each:
            image[0] = image[0].T
    return images + RANDOM.uniform(0, 5, images.shape), classes


def test_five_percent_of_held_out_images_are_above_1_and_strangers_are() -> None:
    images, classes = bars(400)
    held_out, entropy = bars(200)[0], RANDOM.uniform(0, 0.2, 200)
    section = image_unfamiliarity.learn(images, classes, held_out, entropy)
    scores = image_unfamiliarity.score(section, held_out, entropy)
    assert float((scores > 1).mean()) <= 0.05 and float((scores >= 1).mean()) >= 0.05
    cross, black = images[:1] + images[1:2], np.zeros((1, 1, 28, 28))
    for stranger in (cross, black, np.flip(np.triu(np.full((28, 28), 200.0)))[None, None]):
        assert image_unfamiliarity.score(section, stranger, np.zeros(1)) > 1
    # A familiar image that the networks are unsure about is refused, too.
    assert image_unfamiliarity.score(section, images[:1], np.array([0.0])) < 1
    assert image_unfamiliarity.score(section, images[:1], np.array([5.0])) > 1


def test_brightness_does_not_matter_and_rows_do_not_depend_on_each_other() -> None:
    images, classes = bars(200)
    section = image_unfamiliarity.learn(images, classes, images, np.full(200, 0.1))
    entropy = np.full(3, 0.1)
    np.testing.assert_allclose(
        image_unfamiliarity.score(section, images[:3] / 3, entropy),
        image_unfamiliarity.score(section, images[:3], entropy),
    )
    np.testing.assert_allclose(
        image_unfamiliarity.score(section, images[1:2], entropy[:1])[0],
        image_unfamiliarity.score(section, images[:3], entropy)[1],
    )


def test_pack_learns_it_from_the_runs_images(tmp_path: Path) -> None:
    images, classes = bars(400)
    np.savez(tmp_path / "bars.npz", x=images.astype(np.uint8), y=classes)
    train = ("train", tmp_path / "bars.npz", "--epochs", "2", "--set", "model.width=0.02")
    for seed, split in ((1, 1), (2, 1), (3, 3)):
        settings = ("--seed", seed, "--set", f"data.split_seed={split}", "--set", "data.validation=0.3")
        assert call(*train, *settings, "--out", tmp_path / f"run-{seed}").code == 0
    path, runs = tmp_path / "both.safetensors", [tmp_path / f"run-{seed}" for seed in (1, 2, 3)]
    assert call("pack", *runs[:2], "--unfamiliarity", "-o", path).code == 0
    model, (new, _) = load(path), bars(100)
    scrambled = RANDOM.permuted(new.reshape(100, -1), axis=1).reshape(new.shape)
    assert float((model.unfamiliarity(new) > 1).mean()) < 0.3
    assert float((model.unfamiliarity(scrambled) > 1).mean()) > 0.9
    refused = call("pack", runs[0], runs[2], "--unfamiliarity", "-o", path)
    assert refused.code == 2 and "data.split_seed" in refused.err
    assert call("pack", runs[0], "-o", path).code == 0
    with pytest.raises(InvalidUse, match="--unfamiliarity"):
        load(path).unfamiliarity(new)
