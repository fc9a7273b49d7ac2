"""Streams of tasks: permutations that can be undone, classes that add up, and a user's own tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from bayesbinn import data
from bayesbinn.errors import InvalidInput

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
RANDOM = np.random.default_rng(5)


def images(shape: tuple[int, ...] = (1, 4, 3), count: int = 60, **changes: Any) -> data.Dataset:
    """Random images, cycling through six classes."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    facts: dict[str, Any] = dict(
        name="images",
        train_inputs=inputs,
        train_targets=torch.arange(count) % 6,
        test_inputs=inputs[: count // 2].flip(0),
        test_targets=torch.arange(count // 2).flip(0) % 6,
        task="classification",
        mean=torch.linspace(0.4, 0.6, shape[0]),
        std=torch.linspace(0.2, 0.3, shape[0]),
        classes=NAMES,
        source="here",
        notes=("made up",),
    )
    return data.Dataset(**(facts | changes))


def table() -> data.Dataset:
    """Four columns of very different scales, two classes."""
    inputs = torch.randn(20, 4) * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    return images(
        train_inputs=inputs,
        train_targets=torch.arange(20) % 2,
        test_inputs=inputs[:6],
        test_targets=torch.arange(6) % 2,
        mean=inputs.mean(0),
        std=inputs.std(0),
        classes=("no", "yes"),
        features=("a", "b", "c", "d"),
    )


def orders(seed: int, tasks: int, size: int) -> list[Any]:
    return [np.random.default_rng([seed, task]).permutation(size) for task in range(tasks)]


def whole(dataset: data.Dataset) -> tuple[Tensor, Tensor]:
    """Normalized training and test inputs, as seen in training."""
    parts = dataset.split(validation=0)
    assert parts.test is not None
    return parts.train.whole()[0], parts.test.whole()[0]


# --- permuted -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), channels=st.sampled_from([1, 3]))
def test_the_inverse_permutation_gives_the_original_back(seed: int, channels: int) -> None:
    dataset = images((channels, 4, 3)).flattened()
    given_orders = orders(seed, 2, dataset.input_shape[0])
    there = data.permuted(dataset, 2, permutations=given_orders)
    for task, order in zip(there, given_orders, strict=True):
        back = data.permuted(task, 1, permutations=[np.argsort(order)])[0]
        for part in ("train_inputs", "test_inputs", "train_targets", "test_targets"):
            assert torch.equal(getattr(back, part), getattr(dataset, part))
        assert torch.equal(back.mean, dataset.mean) and torch.equal(back.std, dataset.std)


@pytest.mark.parametrize("dataset", [images(), images((3, 4, 3)), table()], ids=["gray", "color", "table"])
def test_normalizing_and_permuting_commute(dataset: data.Dataset) -> None:
    order = np.random.default_rng(1).permutation(dataset.flattened().input_shape[0])
    task = data.permuted(dataset, 1, permutations=[order])[0]
    assert task.train_inputs.dtype == dataset.train_inputs.dtype
    for ours, theirs in zip(whole(task), whole(dataset), strict=True):
        assert torch.equal(ours, theirs.flatten(1)[:, order])


def test_the_names_of_columns_go_with_them() -> None:
    assert data.permuted(table(), 1, permutations=[[2, 0, 3, 1]])[0].features == ("c", "a", "d", "b")


def test_every_task_of_a_seed_has_its_own_order_whatever_the_number_of_tasks() -> None:
    few, many = data.permuted(images(), 5, seed=7), data.permuted(images(), 100, seed=7)
    tasks = [many[i].train_inputs for i in range(100)]
    for i, task in enumerate(few):
        assert torch.equal(task.train_inputs, tasks[i])
    original = images().train_inputs.flatten(1)
    assert len({bytes(x.numpy()) for x in [*tasks, original]}) == 101
    assert not torch.equal(data.permuted(images(), 1, seed=8)[0].train_inputs, tasks[0])
    for task in (tasks[0], tasks[99]):
        assert torch.equal(task.sort(1).values, original.sort(1).values)


def test_the_permutations_of_a_seed_are_known() -> None:
    """Fixed numbers: with a different shuffle, old runs could not be compared."""
    rows = torch.arange(10, dtype=torch.float32).repeat(4, 1)
    dataset = images(
        train_inputs=rows,
        train_targets=torch.tensor([0, 1, 0, 1]),
        test_inputs=rows,
        test_targets=torch.tensor([0, 1, 0, 1]),
    )
    found = [task.train_inputs[0].int().tolist() for task in data.permuted(dataset, 2, seed=1)]
    assert found == [[1, 0, 9, 8, 6, 3, 7, 4, 2, 5], [9, 2, 8, 0, 7, 3, 1, 5, 4, 6]]


def test_a_hundred_tasks_cost_nothing_until_requested() -> None:
    dataset = images((1, 64, 64), count=3000)
    start = time.perf_counter()
    stream = data.permuted(dataset, 100)
    assert len(stream) == 100 and stream.task_name(99) == "permutation 99"
    assert time.perf_counter() - start < 0.5
    assert stream[99] is not stream[99]


def test_how_a_permuted_stream_describes_itself() -> None:
    stream = data.permuted(images((3, 4, 3)), 3, seed=4)
    assert (stream.name, stream.input_shape, stream.classes) == ("permuted images", (36,), NAMES)
    assert stream.source == "here"
    assert stream.notes == (
        "made up",
        "each task permutes the 36 entries of its flattened inputs, drawn from seed 4",
        "the 3 channels of a pixel are permuted independently",
    )
    assert [task.name for task in stream] == [f"permuted images: permutation {i}" for i in range(3)]
    assert all(task.classes == NAMES and task.input_shape == (36,) for task in stream)
    assert "as given" in data.permuted(images(), 1, permutations=[np.arange(12, dtype=np.uint64)]).notes[-1]


def test_a_stream_ends() -> None:
    stream = data.permuted(images(), 2)
    for i in (2, -1):
        with pytest.raises(IndexError, match=f"permuted images has no task {i}; tasks are 0 to 1"):
            stream[i]
        with pytest.raises(IndexError):
            stream.task_name(i)
    assert len(list(stream)) == 2
    assert repr(stream).startswith("Stream(name='permuted images', input_shape=(12,), classes=('ant',")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.permuted(images(), 0), "tasks=0: must be 1 or more"),
        (lambda: data.permuted(images(), 1, seed=-1), "seed=-1: must be from 0 to 4294967295"),
        (lambda: data.permuted(images(), 2, permutations=[range(12)]), r"len\(permutations\) is 1 but tasks=2"),
        (
            lambda: data.permuted(images(), 2, permutations=[range(12), range(11)]),
            r"permutation of task 1: shape \(11,\), but inputs have 12 entries; use each of 0 to 11 exactly once",
        ),
        (
            lambda: data.permuted(images(), 1, permutations=[[*range(11), 3]]),
            "permutation of task 0: 3 appears more than once; use each of",
        ),
        (lambda: data.permuted(images(), 1, permutations=[range(1, 13)]), "task 0: 12 is out of range; use each of"),
        (lambda: data.permuted(images(), 1, permutations=[range(-1, 11)]), "task 0: -1 is out of range; use each of"),
        (lambda: data.permuted(images(), 1, permutations=[np.arange(12.0)]), "task 0: values of type float64, not int"),
        (lambda: data.permuted(regression(), 1), "images is for regression; a stream needs classes"),
        (lambda: data.split(regression()), "images is for regression; a stream needs classes"),
        (
            lambda: data.split(images(), 4),
            "classes_per_task=4: images has 6 classes; with scenario='class' it can be 1, 2, 3, 6",
        ),
        (lambda: data.split(images(), 0), "classes_per_task=0: images has 6 classes; with"),
        (lambda: data.split(images(), 1, "domain"), "with scenario='domain' it can be 2, 3, 6"),
        (
            lambda: data.split(images(), 2, "domian"),  # type: ignore[arg-type]
            "scenario='domian': 'class' and 'domain' are allowed. Did you mean 'domain'?",
        ),
        (
            lambda: data.split(images(test_targets=torch.arange(30) % 2)),
            r"split images: task 1 \(cat, dog\) has no test examples",
        ),
        (
            lambda: data.split(images(train_targets=torch.arange(60) % 4)),
            r"split images: task 2 \(elk, fox\) has no training examples",
        ),
    ],
)
def test_what_cannot_be_divided_gets_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def regression() -> data.Dataset:
    return images(task="regression", train_targets=torch.zeros(60, 1), test_targets=None, classes=())


# --- split --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_the_tasks_of_a_split_are_the_set_in_parts(size: int) -> None:
    dataset = images((3, 4, 3), augment=True)
    stream = data.split(dataset, size)
    assert len(stream) == 6 // size and stream.classes == NAMES and stream.input_shape == (3, 4, 3)
    for i, task in enumerate(stream):
        ours = range(i * size, (i + 1) * size)
        assert task.classes == NAMES and task.augment
        for kind in ("train", "test"):
            inputs, targets = getattr(dataset, f"{kind}_inputs"), getattr(dataset, f"{kind}_targets")
            rows = [row for row, label in enumerate(targets.tolist()) if label in ours]
            assert torch.equal(getattr(task, f"{kind}_targets"), targets[rows])
            assert torch.equal(getattr(task, f"{kind}_inputs"), inputs[rows])
            assert set(targets[rows].tolist()) == set(ours)


def test_by_domain_the_label_is_the_position_within_the_task() -> None:
    by_class, by_domain = data.split(images(), 3), data.split(images(), 3, "domain")
    assert by_domain.classes == ("0", "1", "2")
    assert by_class.task_names == by_domain.task_names == ("ant, bee, cat", "dog, elk, fox")
    for i, (left, right) in enumerate(zip(by_class, by_domain, strict=True)):
        assert torch.equal(left.train_inputs, right.train_inputs)
        assert torch.equal(left.train_targets - 3 * i, right.train_targets)
        assert left.test_targets is not None and right.test_targets is not None
        assert torch.equal(left.test_targets - 3 * i, right.test_targets)
        assert right.classes == by_domain.classes and right.name == f"split images: {by_domain.task_name(i)}"


# --- real data ----------------------------------------------------------------------------------------------


def test_permuted_and_split_mnist(data_dir: Path) -> None:
    mnist = data.load("mnist", data_dir=data_dir, download=False)
    task = data.permuted(mnist, 100, seed=1)[57]
    assert task.train_inputs.shape == (60_000, 784) and task.train_inputs.dtype == torch.uint8
    assert torch.equal(task.train_inputs[::1000].sort(1).values, mnist.train_inputs[::1000].flatten(1).sort(1).values)
    assert torch.equal(task.train_targets, mnist.train_targets)
    stream = data.split(mnist)
    assert stream.task_names == ("0, 1", "2, 3", "4, 5", "6, 7", "8, 9")
    # The numbers of training examples in split MNIST: 5,923 zeros and 6,742 ones, and so on.
    assert [len(task.train_inputs) for task in stream] == [12665, 12089, 11263, 12183, 11800]
    assert sum(len(task.test_inputs) for task in stream) == 10_000


# --- a user's own -------------------------------------------------------------------------------------------


def pixels(count: int = 12, shape: tuple[int, ...] = (5, 4), labels: int = 3) -> tuple[Any, Any]:
    return RANDOM.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % labels


def numbers(count: int = 12, columns: int = 3, labels: int = 3, shift: float = 0.0) -> tuple[Any, Any]:
    return RANDOM.normal(shift, 5, (count, columns)), np.arange(count) % labels


class Experience:
    """Like a data set of Avalanche: its examples have a third field, and it is not a torch class."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets, self.read = inputs, targets, 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> tuple[Any, Any, int]:
        self.read += 1
        return self.inputs[row], self.targets[row], 7


def test_every_form_of_a_task_gives_the_same_stream() -> None:
    parts = [(numbers(), numbers(6)) for _ in range(3)]
    tensors = [tuple(TensorDataset(*map(torch.from_numpy, part)) for part in pair) for pair in parts]
    named = [SimpleNamespace(name=f"n{i}", train=train, test=test) for i, (train, test) in enumerate(parts)]
    streams = {
        "pairs": data.stream_of(iter(parts)),
        "lists": data.stream_of([[list(train), list(test)] for train, test in parts]),
        "triples": data.stream_of((f"n{i}", *pair) for i, pair in enumerate(parts)),
        "mapping": data.stream_of({f"n{i}": pair for i, pair in enumerate(parts)}),
        "objects": data.stream_of(named),
        "torch": data.stream_of(tensors),
        "avalanche": data.stream_of([(Experience(*train), Experience(*test)) for train, test in parts]),
        "examples": data.stream_of([[list(zip(*part, strict=True)) for part in pair] for pair in parts]),
    }
    for form, stream in streams.items():
        names = ("n0", "n1", "n2") if form in ("triples", "mapping", "objects") else ("task 0", "task 1", "task 2")
        assert stream.task_names == names, form
        assert (stream.input_shape, stream.classes) == ((3,), ("0", "1", "2"))
        for task, (train, test) in zip(stream, parts, strict=True):
            assert torch.equal(task.train_inputs, torch.from_numpy(train[0]).float()), form
            assert torch.equal(task.test_inputs, torch.from_numpy(test[0]).float()), form
            assert task.train_targets.tolist() == train[1].tolist()
            assert task.test_targets is not None and task.test_targets.tolist() == test[1].tolist()


def test_data_sets_are_read_when_their_task_is_requested() -> None:
    tasks = [(Experience(*numbers()), Experience(*numbers(6))) for _ in range(3)]
    stream = data.stream_of(tasks)
    assert [(train.read, test.read) for train, test in tasks] == [(13, 1), (1, 1), (1, 1)]
    assert len(stream[2].train_inputs) == 12
    assert [(train.read, test.read) for train, test in tasks] == [(13, 1), (1, 1), (13, 7)]


def test_only_the_first_task_sets_the_scale() -> None:
    first, later = numbers(), numbers(shift=1000)
    stream = data.stream_of([(first, first), (later, later)])
    assert stream.notes[0] == "the first task's mean and deviation of each column scale all inputs"
    for task, (inputs, _) in zip(stream, (first, later), strict=True):
        expected = (inputs - first[0].mean(0)) / first[0].std(0, ddof=1)
        assert whole(task)[0].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", [np.uint8, np.float32], ids=["bytes", "zero to one"])
def test_rows_of_pixels_share_one_scale(kind: Any) -> None:
    """A pixel that is always dark in the first task must not blow up if it is bright in a later task."""
    rows = RANDOM.integers(0, 256, (50, 8), dtype=np.uint8)
    rows[:, :4] = 0
    rows[0, 0] = 1
    rows = rows if kind is np.uint8 else (rows / 255).astype(np.float32)
    labels = np.arange(50) % 2
    stream = data.stream_of([((x, labels), (x, labels)) for x in (rows, rows[:, ::-1])])
    assert all(len(task.mean) == 1 and whole(task)[0].abs().max() < 3 for task in stream)
    assert torch.equal(whole(stream[1])[0], whole(stream[0])[0].flip(1))
    assert stream[0].train_inputs.numpy().dtype == kind


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (5, 4, 1)])
def test_gray_images_may_have_any_of_three_shapes(shape: tuple[int, ...]) -> None:
    train = pixels(shape=shape)
    train[0].flags.writeable = False
    stream = data.stream_of([(train, train)])
    assert stream.input_shape == (1, 5, 4) and stream[0].train_inputs.dtype == torch.uint8
    assert stream[0].train_inputs.flatten().tolist() == train[0].flatten().tolist()
    assert 0 < float(stream[0].mean) < 1 and abs(float(whole(stream[0])[0].mean())) < 1e-5


def test_color_images_and_pillow_images_are_accepted() -> None:
    arrays, labels = pixels(shape=(5, 4, 3))
    pictures = [(Image.fromarray(x), int(y)) for x, y in zip(arrays, labels, strict=True)]
    stream = data.stream_of([((arrays, labels), pictures)])
    assert stream.input_shape == (3, 5, 4) and len(stream[0].mean) == 3
    assert torch.equal(stream[0].train_inputs, stream[0].test_inputs)
    assert stream[0].train_inputs[2, 1].tolist() == arrays[2, :, :, 1].tolist()


def test_the_head_is_the_first_tasks_or_what_the_user_says() -> None:
    tasks = [(numbers(labels=2), numbers(labels=2)), (numbers(labels=4), numbers(labels=4))]
    assert data.stream_of(tasks, classes=4).classes == ("0", "1", "2", "3")
    stream = data.stream_of(tasks, classes=["a", "b", "c", "d"], name="letters")
    assert stream.classes == stream[0].classes == ("a", "b", "c", "d")
    assert (stream.name, stream[1].name) == ("letters", "letters: task 1")
    assert "2 classes, because the first task's labels go up to 1" in data.stream_of(tasks[:1]).notes


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64, np.uint64])
def test_whole_numbers_of_any_type_are_targets(kind: Any) -> None:
    inputs, labels = numbers()
    task = data.stream_of([((inputs, labels.astype(kind)), (inputs, labels.astype(kind)[:, None]))])[0]
    assert task.test_targets is not None
    assert task.train_targets.tolist() == task.test_targets.tolist() == labels.tolist()


def test_bfloat16_tensors_that_need_gradients_are_accepted() -> None:
    inputs = torch.randn(4, 3, dtype=torch.bfloat16, requires_grad=True)
    task = data.stream_of([((inputs, torch.tensor([0, 1, 0, 1])),) * 2])[0]
    assert torch.equal(task.train_inputs, inputs.detach().float())


GOOD = numbers()
NONE = GOOD[0][:0], GOOD[1][:0]
HOLE = np.where(np.arange(36).reshape(12, 3) == 16, np.nan, GOOD[0])
RAGGED = [(np.zeros(3), 0), (np.zeros(4), 1)]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (NONE, GOOD, "no training examples; add some or leave the task out"),
        (GOOD, NONE, "no test examples"),
        (Experience([], []), GOOD, "no training examples"),
        (numbers(labels=5), GOOD, "training labels 3, 4, but the shared head has 0 to 2; pass classes=5 or more"),
        (GOOD, numbers(labels=12), r"test labels 3, 4, 5, 6, 7, …, but the shared head has 0 to 2; pass classes=12"),
        (GOOD, (GOOD[0], GOOD[1] - 1), "test labels -1, but the shared head has 0 to 2; count classes from 0"),
        (numbers(columns=4), GOOD, r"training inputs are torch.float32 \(4,\), the first task's torch.float32 \(3,\)"),
        (GOOD, Experience(*numbers(columns=2)), r"test inputs are torch.float32 \(2,\), the first task's"),
        (pixels(shape=(3,)), GOOD, r"training inputs are torch.uint8 \(3,\), the first task's torch.float32 \(3,\)"),
        ((np.ma.masked_less(GOOD[0], 0), GOOD[1]), GOOD, r"training part has \d+ masked values; fill them"),
        (GOOD, (GOOD[0], np.ma.masked_equal(GOOD[1], 1)), r"test part has \d+ masked values; fill them"),
        ((HOLE, GOOD[1]), GOOD, "training example 5 has a NaN or infinite value; fill it or remove"),
        (GOOD, (GOOD[0] * 1e300, GOOD[1]), "test example 0 has a NaN or infinite value"),
        ((GOOD[0], GOOD[1] + 0.5), GOOD, "training targets of type float64 are not integers; count classes"),
        ((GOOD[0], GOOD[1] * np.nan), GOOD, "training targets of type float64 are not integers"),
        (GOOD, (GOOD[0], GOOD[1].astype(str)), "test targets of type <U21 are not integers"),
        ((GOOD[0], GOOD[1][:5]), GOOD, r"12 training inputs but targets of shape \(5,\); give one class per input"),
        (GOOD, (GOOD[0], np.eye(12)), r"12 test inputs but targets of shape \(12, 12\); give one class per input"),
        ((GOOD[1], GOOD[1]), GOOD, r"training inputs have type int64 and shape \(12,\); expected numbers \[N, ...\]"),
        ((GOOD[0].astype(str), GOOD[1]), GOOD, "training inputs have type <U32 and shape"),
        (pixels(shape=(5, 4, 2)), GOOD, r"training images have shape \(12, 5, 4, 2\); expected 1 or 3 channels"),
        (7, GOOD, r"training part is of type int; expected \(inputs, targets\) or a map-style data set"),
        (GOOD, {"x": 1}, "test part is of type dict"),
        (GOOD[0], GOOD, r"training example 0 is of type ndarray; expected \(input, target, ...\)"),
    ],
)
def test_a_task_that_does_not_fit_gets_one_line(train: Any, test: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^task 1 \(odd\): {message}") as caught:
        data.stream_of([("fine", GOOD, GOOD), ("odd", train, test)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (RAGGED, r"training example 1: input of shape \(4,\), not \(3,\)"),
        (Experience(HOLE, GOOD[1]), "training example 5 has a NaN"),
        (Experience(GOOD[0], GOOD[1] + np.arange(12)), "training labels 3, 4, 5, 6, 7, …, but"),
    ],
)
def test_examples_that_are_read_late_are_checked_then(part: Any, message: str) -> None:
    stream = data.stream_of([("fine", GOOD, GOOD), ("odd", part, GOOD)])
    with pytest.raises(InvalidInput, match=rf"^task 1 \(odd\): {message}"):
        stream[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.stream_of([]), "the stream has no tasks; at least 1 is needed"),
        (lambda: data.stream_of({}), "the stream has no tasks"),
        (lambda: data.stream_of(5), "tasks is of type int, not a sequence of tasks"),  # type: ignore[arg-type]
        (lambda: data.stream_of([(GOOD, GOOD), (GOOD,)]), r"task 1 is of type tuple and length 1; expected \(train"),
        (lambda: data.stream_of([(GOOD, GOOD, GOOD)]), "task 0 is of type tuple and length 3"),
        (lambda: data.stream_of("ab"), "task 0 is of type str"),
        (lambda: data.stream_of([(GOOD, GOOD)], classes=1), "classes=1: at least 2 different classes are needed"),
        (lambda: data.stream_of([(GOOD, GOOD)], classes=["a", "a"]), r"classes=\['a', 'a'\]: at least 2 different"),
        (
            lambda: data.stream_of([(numbers(labels=1), GOOD)]),
            "task 0: the largest label is 0; pass classes=, the number of all classes",
        ),
        (
            lambda: data.stream_of([((GOOD[0], GOOD[1] + 10**12), GOOD)]),
            "task 0: the largest label is 1000000000002; pass classes=",
        ),
    ],
)
def test_a_stream_of_the_wrong_form_gets_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
