"""Data sets in memory: splits, batches, normalization, augmentation."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn import data
from bayesbinn.data.augment import PADDING, Draws, crop_and_flip
from bayesbinn.data.batches import generator_of
from bayesbinn.data.normalise import Normaliser, statistics
from bayesbinn.data.splits import holdout_rows, validation_rows
from bayesbinn.errors import InvalidInput, MissingDependency


def images(count: int = 203, shape: tuple[int, ...] = (3, 8, 6), **changes: Any) -> data.Dataset:
    """Random images; the first pixel of each is its number modulo 256, its label its number modulo 4."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    numbers = torch.arange(count)
    inputs[:, 0, 0, 0] = (numbers % 256).to(torch.uint8)
    settings: dict[str, Any] = dict(
        name="images",
        train_inputs=inputs,
        train_targets=numbers % 4,
        test_inputs=inputs[:20],
        test_targets=numbers[:20] % 4,
        task="classification",
        mean=torch.linspace(0.4, 0.6, shape[0]),
        std=torch.linspace(0.2, 0.3, shape[0]),
        classes=("a", "b", "c", "d"),
        augment=True,
    )
    return data.Dataset(**(settings | changes))


def bits(batches: data.Batches) -> list[tuple[bytes, bytes]]:
    return [(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in batches]


# --- splits -------------------------------------------------------------------------------------------------


def test_the_validation_split_is_the_authors() -> None:
    """Their code seeds NumPy's legacy generator and shuffles a list of indices; the first tenth is for validation."""
    for seed, count in ((1, 600), (10, 501)):
        indices = list(range(count))
        np.random.RandomState(seed).shuffle(indices)
        train, held = validation_rows(count, 0.1, seed)
        assert held.tolist() == indices[: count // 10]
        assert train.tolist() == indices[count // 10 :]


def test_the_split_of_mnist_starts_with_known_examples() -> None:
    """Fixed numbers: with a different shuffle, old runs could not be compared."""
    assert validation_rows(60_000, 0.1, 1)[1][:4].tolist() == [15281, 21435, 44536, 13518]


def test_parts_share_the_inputs_and_divide_the_examples() -> None:
    dataset = images()
    parts = dataset.split(validation=0.1, seed=1)
    assert parts.validation is not None and parts.test is not None
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (183, 20, 20)
    assert parts.train.rows is not None and parts.validation.rows is not None
    together = torch.cat((parts.train.rows, parts.validation.rows)).sort().values
    assert torch.equal(together, torch.arange(203))
    assert torch.equal(parts.validation.targets, parts.validation.rows % 4)


def test_without_validation_all_examples_train() -> None:
    parts = images().split(validation=0.0)
    assert parts.validation is None and len(parts.train) == 203


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5])
def test_an_impossible_fraction_is_rejected(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="validation="):
        images().split(validation=fraction)


def test_the_held_out_fifth_is_stratified_and_always_the_same() -> None:
    classes = np.array([0] * 50 + [1] * 10 + [2] * 4 + [3])
    train, test = holdout_rows(classes, len(classes))
    assert np.bincount(classes[test], minlength=4).tolist() == [10, 2, 1, 0]
    assert sorted([*train, *test]) == list(range(65))
    assert np.array_equal(test, holdout_rows(classes, len(classes))[1])


# --- normalization ------------------------------------------------------------------------------------------


def test_pixels_are_normalized_as_in_the_literature() -> None:
    pixels = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    expected = (pixels.double() / 255 - mean.double().view(1, 3, 1, 1)) / std.double().view(1, 3, 1, 1)
    result = Normaliser(mean, std)(pixels)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-6)


def test_normalizing_does_not_change_the_stored_inputs() -> None:
    table = torch.randn(6, 2)
    before = table.clone()
    Normaliser(torch.ones(2), torch.ones(2))(table)
    assert torch.equal(table, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_statistics_are_those_of_all_values(dtype: torch.dtype) -> None:
    values = torch.randint(0, 256, (30, 2, 5, 3)).to(dtype)
    unit = 255 if dtype == torch.uint8 else 1
    flat = values.transpose(0, 1).reshape(2, -1).double() / unit
    mean, std = statistics(values)
    torch.testing.assert_close(mean, flat.mean(1).float())
    torch.testing.assert_close(std, flat.std(1).float())


def test_a_constant_column_becomes_zero() -> None:
    table = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert Normaliser(*statistics(table))(table)[:, 1].tolist() == [0.0, 0.0]


def test_a_flattened_set_has_the_same_numbers() -> None:
    dataset = images()
    flat = dataset.flattened()
    assert flat.input_shape == (3 * 8 * 6,) and not flat.augment
    torch.testing.assert_close(flat.split(0.0).train.whole()[0], dataset.split(0.0).train.whole()[0].flatten(1))


# --- batches ------------------------------------------------------------------------------------------------


def test_every_example_comes_once_and_the_last_batch_is_kept() -> None:
    part = images().split(0.0).train
    seen = list(part.batches(50, seed=1, epoch=1))
    assert [len(y) for _, y in seen] == [50, 50, 50, 50, 3] and len(part.batches(50)) == 5
    first = torch.cat([x[:, 0, 0, 0] for x, _ in seen]).sort().values
    torch.testing.assert_close(first, part.whole()[0][:, 0, 0, 0].sort().values)


def test_inputs_and_targets_stay_together() -> None:
    part = images(203, mean=torch.zeros(3), std=torch.ones(3)).split(0.1, seed=2).train
    for x, y in part.batches(20, seed=5, epoch=3):
        assert torch.equal((x[:, 0, 0, 0] * 255).round().long() % 4, y)


def test_without_a_seed_the_order_is_that_of_the_data() -> None:
    parts = images().split(0.1, seed=1)
    assert parts.validation is not None
    x = torch.cat([x for x, _ in parts.validation.batches(7)])
    assert torch.equal(x, parts.validation.whole()[0])


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_depends_only_on_seed_and_epoch(augment: bool) -> None:
    part = images().split(0.1, seed=1).train

    def epoch(seed: int, number: int) -> list[tuple[bytes, bytes]]:
        return bits(part.batches(16, seed=seed, epoch=number, augment=augment))

    first = epoch(1, 2)
    torch.manual_seed(99)
    torch.rand(5)
    assert epoch(1, 2) == first
    assert all(epoch(*other) != first for other in ((1, 3), (2, 2), (2, 1), (3, 1)))


@pytest.mark.parametrize("start", [0, 1, 7, 11, 12])
def test_an_epoch_can_start_at_any_batch(start: int) -> None:
    part = images().split(0.1, seed=1).train
    complete = bits(part.batches(16, seed=4, epoch=9, augment=True))
    rest = part.batches(16, seed=4, epoch=9, augment=True, start=start)
    assert len(complete) == 12 and len(rest) == 12 - start
    assert bits(rest) == complete[start:]


def test_a_single_last_example_can_be_dropped() -> None:
    part = images(101).split(0.0).train
    assert [len(y) for _, y in part.batches(50)] == [50, 50, 1]
    assert [len(y) for _, y in part.batches(50, drop_single=True)] == [50, 50]
    assert len(part.batches(50, drop_single=True)) == 2
    assert len(images(102).split(0.0).train.batches(50, drop_single=True)) == 3
    assert len(part.batches(1, drop_single=True)) == 101


def test_batch_size_does_not_change_order_or_augmentation() -> None:
    part = images().split(0.1, seed=1).train
    small, large = (torch.cat([x for x, _ in part.batches(size, seed=1, epoch=1, augment=True)]) for size in (7, 100))
    assert torch.equal(small, large)


def test_only_the_training_part_of_an_augmentable_set_is_augmented() -> None:
    parts, plain = images().split(0.1, seed=1), images(augment=False).split(0.1, seed=1)
    assert parts.validation is not None

    def same(part: data.Part) -> bool:
        return bits(part.batches(64, seed=1, augment=True)) == bits(part.batches(64, seed=1))

    assert not same(parts.train)
    assert same(parts.validation) and same(plain.train)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(batch_size=0), "batch_size=0"),
        (dict(batch_size=10, start=22), "21 batches"),
        (dict(batch_size=10, start=-1), "start=-1"),
        (dict(batch_size=10, augment=True), "needs a seed"),
    ],
)
def test_impossible_batches_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        images().split(0.0).train.batches(**settings)


def test_a_negative_epoch_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="epoch=-1"):
        next(iter(images().split(0.0).train.batches(10, seed=1, epoch=-1)))


# --- augmentation -------------------------------------------------------------------------------------------


def reference(image: Tensor, top: int, left: int, mirror: bool) -> Tensor:
    """Pad with black, crop, then flip: one image, step by step."""
    height, width = image.shape[-2:]
    padded = F.pad(image, (PADDING,) * 4)
    crop = padded[:, top : top + height, left : left + width]
    return crop.flip(-1) if mirror else crop


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 9)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_is_cropped_and_flipped_like_each_single_image(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    pictures = torch.randint(0, 256, (40, *shape)).to(dtype)
    draws = Draws.random(400, generator_of(0, 0))
    rows = torch.randint(0, 40, (400,)).numpy()
    result = crop_and_flip(pictures, rows, draws)
    for i, row in enumerate(rows):
        expected = reference(pictures[row], int(draws.top[i]), int(draws.left[i]), bool(draws.mirror[i]))
        assert torch.equal(result[i], expected), i
    assert result.dtype == dtype and result.is_contiguous()


@pytest.mark.parametrize("mirror", [False, True])
def test_all_or_none_flipped(mirror: bool) -> None:
    picture = torch.randint(0, 256, (1, 3, 6, 6), dtype=torch.uint8)
    middle = np.full(3, PADDING)
    result = crop_and_flip(picture, np.zeros(3, np.int64), Draws(middle, middle, np.full(3, mirror)))
    assert all(torch.equal(r, picture[0].flip(-1) if mirror else picture[0]) for r in result)


def test_offsets_and_coins_are_uniform() -> None:
    draws = Draws.random(81_000, generator_of(7, 1))
    cells = np.bincount(9 * draws.top + draws.left, minlength=81)
    # 81 cells of 1,000 expected: the statistic has mean 80 and standard deviation 12.6.
    assert len(cells) == 81 and ((cells - 1000) ** 2 / 1000).sum() < 80 + 5 * 12.6
    assert abs(draws.mirror.mean() - 0.5) < 5 * 0.5 / 81_000**0.5


def test_the_border_is_black_before_normalization() -> None:
    white = images(60, train_inputs=torch.full((60, 3, 8, 6), 255, dtype=torch.uint8))
    mean, std = white.mean, white.std
    batch = torch.cat([x for x, _ in white.split(0.0).train.batches(20, seed=1, augment=True)])
    for channel in range(3):
        found = batch[:, channel].unique()
        expected = torch.tensor([-mean[channel] / std[channel], (1 - mean[channel]) / std[channel]])
        torch.testing.assert_close(found, expected)


# --- checks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(train_targets=torch.full((203,), 4)), "example 0 has the label 4, but 4 classes have the labels 0 to 3"),
        (dict(test_targets=torch.arange(20) - 1), "test example 0 has the label -1"),
        (dict(train_targets=torch.zeros(202, dtype=torch.long)), "203 training inputs but 202 targets"),
        (dict(train_targets=torch.zeros(203)), "int64"),
        (dict(classes=("a",)), "1 classes; at least 2"),
        (dict(train_inputs=torch.zeros(203, 3, 8, 6, dtype=torch.float64)), "uint8 or float32"),
        (dict(test_inputs=torch.zeros(20, 3, 8, 8, dtype=torch.uint8)), "same shape"),
        (dict(mean=torch.zeros(2)), "1 or 3 values"),
        (dict(std=torch.zeros(3)), "above 0"),
    ],
)
def test_an_impossible_data_set_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        images(**changes)
    assert "\n" not in str(caught.value)


def test_nan_inputs_are_rejected() -> None:
    table = torch.zeros(203, 2)
    table[17, 1] = torch.nan
    changes = dict(train_inputs=table, test_inputs=table[:9], test_targets=None, augment=False, mean=torch.zeros(1))
    with pytest.raises(InvalidInput, match="training example 17 has a NaN"):
        images(**changes, std=torch.ones(1))


def test_a_table_cannot_be_augmented() -> None:
    with pytest.raises(InvalidInput, match="cannot be cropped"):
        replace(data.load("moons"), augment=True)


# --- data sets from scikit-learn ----------------------------------------------------------------------------


def test_both_loaders_return_the_same_digits() -> None:
    split, parts = data.load_digits(), data.load("digits").split(0.0)
    assert parts.test is not None
    torch.testing.assert_close(parts.train.whole()[0], split.train_inputs)
    torch.testing.assert_close(parts.test.whole()[0], split.test_inputs)
    assert torch.equal(parts.test.targets, split.test_targets)


def test_moons_are_the_papers() -> None:
    moons = data.load("moons")
    x, y = moons.split(0.0).train.whole()
    assert x.shape == (200, 2) and y.bincount().tolist() == [100, 100]
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(2))
    from sklearn.datasets import make_moons

    expected = make_moons(200, noise=0.1, random_state=0)[0]
    torch.testing.assert_close(moons.train_inputs.double(), torch.from_numpy(expected), atol=1e-6, rtol=0)


# --- loading by name ----------------------------------------------------------------------------------------


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"there is no data set 'cifar-10'\. Did you mean 'cifar10'\?"):
        data.load("cifar-10")


def test_a_label_for_a_named_data_set_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="moons has its own labels"):
        data.load("moons", label="y")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependency, match=r"needs sklearn: pip install -c constraints.txt '.\[train\]'"):
        data.load("moons")
