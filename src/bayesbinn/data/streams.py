"""Streams of tasks for continual learning: permuted inputs, a few classes at a time, or a user's own.

All tasks of a stream have the same input shape and share one head, so that a single network can learn them in turn.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from bayesbinn.data.arrays import numpy_of
from bayesbinn.data.dataset import Dataset
from bayesbinn.data.normalise import statistics
from bayesbinn.errors import InvalidInput, nearest

Scenario = Literal["class", "domain"]
Array = npt.NDArray[Any]

# A larger label is probably a quantity or a mistake; users with more classes must say so.
_MAX_CLASSES = 10_000
_FORMS = "expected (train, test), (name, train, test) or an object with train and test"


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in the order in which they are learned; ``stream[i]`` builds a task each time and does not cache it."""

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    """The names of the shared head's outputs."""
    task_names: tuple[str, ...] = field(repr=False)
    build: Callable[[int], Dataset] = field(repr=False)
    """Maps a task's number to its data set."""
    source: str = ""
    notes: tuple[str, ...] = ()
    """Decisions made on the user's behalf, one sentence each."""

    def __len__(self) -> int:
        return len(self.task_names)

    def __getitem__(self, task: int) -> Dataset:
        return self.build(self._checked(task))

    def __iter__(self) -> Iterator[Dataset]:
        return (self[task] for task in range(len(self)))

    def task_name(self, task: int) -> str:
        return self.task_names[self._checked(task)]

    def _checked(self, task: int) -> int:
        if not 0 <= operator.index(task) < len(self):
            raise IndexError(f"{self.name} has no task {task}; tasks are 0 to {len(self) - 1}")
        return operator.index(task)


# ---- permuted inputs -----------------------------------------------------------------------------


def permuted(
    dataset: Dataset, tasks: int, seed: int = 0, permutations: Sequence[npt.ArrayLike] | None = None
) -> Stream:
    """Each task, including the first, shows the flattened inputs in a different fixed order.

    Task i depends only on (seed, i): 5 tasks are the first five of 100. With `permutations`, one per task, entry k of a
    permuted input is entry ``permutations[i][k]`` of the original.

    >>> from bayesbinn.data import load
    >>> stream = permuted(load("digits"), tasks=100)
    >>> len(stream), stream.input_shape, stream.task_name(99)
    (100, (64,), 'permutation 99')
    """
    _test_targets(dataset)
    if tasks < 1:
        raise InvalidInput(f"tasks={tasks}: must be 1 or more")
    if not 0 <= seed < 2**32:
        raise InvalidInput(f"seed={seed}: must be from 0 to {2**32 - 1}")
    flat = dataset.flattened()
    (size,) = flat.input_shape
    if permutations is not None and len(permutations) != tasks:
        raise InvalidInput(f"len(permutations) is {len(permutations)} but tasks={tasks}; give one per task")
    orders = None if permutations is None else [_permutation(i, each, size) for i, each in enumerate(permutations)]
    origin = f"drawn from seed {seed}" if orders is None else "as given"
    notes = [*dataset.notes, f"each task permutes the {size} entries of its flattened inputs, {origin}"]
    if len(dataset.input_shape) > 1 and dataset.input_shape[0] > 1:
        notes.append(f"the {dataset.input_shape[0]} channels of a pixel are permuted independently")
    flat = replace(flat, name=f"permuted {dataset.name}", notes=tuple(notes))
    names = tuple(f"permutation {task}" for task in range(tasks))
    build = partial(_permuted_task, flat, seed, orders)
    return Stream(flat.name, flat.input_shape, flat.classes, names, build, flat.source, flat.notes)


def _permuted_task(flat: Dataset, seed: int, orders: list[Array] | None, task: int) -> Dataset:
    order = random_order(seed, task, flat.input_shape[0]) if orders is None else orders[task]
    names = flat.features if flat.encoding is None else flat.encoding.code_names

    def shuffled(values: Tensor) -> Tensor:
        # For bytes, five times as fast as torch's index_select (one thread).
        return torch.from_numpy(np.take(values.numpy(), order, axis=-1))

    return replace(
        flat,
        name=f"{flat.name}: permutation {task}",
        train_inputs=shuffled(flat.train_inputs),
        test_inputs=shuffled(flat.test_inputs),
        mean=flat.mean if len(flat.mean) == 1 else shuffled(flat.mean),
        std=flat.std if len(flat.std) == 1 else shuffled(flat.std),
        features=tuple(names[k] for k in order) if names else (),
        encoding=None,  # a task has the codes in another order
    )


def random_order(seed: int, task: int, size: int) -> Array:
    """A permutation from NumPy's legacy generator, whose shuffle never changes."""
    bits = np.random.MT19937(np.random.SeedSequence([seed, task]))
    return np.random.RandomState(bits).permutation(size)


def _permutation(task: int, values: npt.ArrayLike, size: int) -> Array:
    order = np.asarray(values)
    wanted = f"use each of 0 to {size - 1} exactly once"
    if order.shape != (size,):
        raise InvalidInput(f"permutation of task {task}: shape {order.shape}, but inputs have {size} entries; {wanted}")
    if order.dtype.kind not in "iu":
        raise InvalidInput(f"permutation of task {task}: values of type {order.dtype}, not integers; {wanted}")
    for value in order[(order < 0) | (order >= size)]:
        raise InvalidInput(f"permutation of task {task}: {value} is out of range; {wanted}")
    for value in np.flatnonzero(np.bincount(order.astype(np.int64), minlength=size) > 1):
        raise InvalidInput(f"permutation of task {task}: {value} appears more than once; {wanted}")
    return order.astype(np.int64)


# ---- a few classes at a time ---------------------------------------------------------------------


def split(dataset: Dataset, classes_per_task: int = 2, scenario: Scenario = "class") -> Stream:
    """The classes in order, `classes_per_task` of them in each task.

    ``"class"``: labels do not change; the head has all classes and must also distinguish tasks. ``"domain"``: the
    label is the class's position within its task, and the head has `classes_per_task` outputs.

    >>> from bayesbinn.data import load
    >>> stream = split(load("digits"), scenario="domain")
    >>> stream.task_names, stream.classes
    (('0, 1', '2, 3', '4, 5', '6, 7', '8, 9'), ('0', '1'))
    """
    parts = ("training", dataset.train_targets), ("test", _test_targets(dataset))
    if scenario not in get_args(Scenario):
        hint = nearest(str(scenario), get_args(Scenario))
        raise InvalidInput(f"scenario={scenario!r}: 'class' and 'domain' are allowed.{hint}")
    total, size = dataset.num_classes, classes_per_task
    least = 2 if scenario == "domain" else 1
    allowed = [n for n in range(least, total + 1) if total % n == 0]
    if size not in allowed:
        raise InvalidInput(
            f"classes_per_task={size}: {dataset.name} has {total} classes; "
            f"with scenario={scenario!r} it can be {', '.join(map(str, allowed))}"
        )
    names = tuple(", ".join(dataset.classes[first : first + size]) for first in range(0, total, size))
    for kind, targets in parts:
        counts = torch.bincount(targets, minlength=total).view(-1, size).sum(1).tolist()
        if 0 in counts:
            task = counts.index(0)
            raise InvalidInput(f"split {dataset.name}: task {task} ({names[task]}) has no {kind} examples; add some")
    head = dataset.classes if scenario == "class" else tuple(map(str, range(size)))
    labels = "labels do not change" if scenario == "class" else "a label is its class's position within the task"
    said = f"{size} classes in each task; {labels}", "all tasks use the scale of the full data set"
    build = partial(_split_task, dataset, size, head, names)
    name, notes = f"split {dataset.name}", (*dataset.notes, *said)
    return Stream(name, dataset.input_shape, head, names, build, dataset.source, notes)


def _split_task(dataset: Dataset, size: int, head: tuple[str, ...], names: tuple[str, ...], task: int) -> Dataset:
    first = task * size
    shift = first if len(head) == size else 0

    def chosen(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        rows = ((targets >= first) & (targets < first + size)).nonzero()[:, 0]
        return inputs.index_select(0, rows), targets[rows] - shift

    train = chosen(dataset.train_inputs, dataset.train_targets)
    test = chosen(dataset.test_inputs, _test_targets(dataset))
    return replace(
        dataset,
        name=f"split {dataset.name}: {names[task]}",
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test[0],
        test_targets=test[1],
        classes=head,
    )


def _test_targets(dataset: Dataset) -> Tensor:
    if dataset.task != "classification" or dataset.test_targets is None:
        raise InvalidInput(f"{dataset.name} is for {dataset.task}; a stream needs classes and test labels")
    return dataset.test_targets


# ---- a user's own --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Own:
    name: str
    where: str
    """The start of error messages."""
    train: Any
    test: Any


def stream_of(
    tasks: Iterable[Any] | Mapping[str, Any], *, classes: int | Sequence[str] | None = None, name: str = "stream"
) -> Stream:
    """A stream of the user's own tasks, such as those of an Avalanche or Mammoth benchmark.

    Each task is ``(train, test)``, ``(name, train, test)`` or an object with the attributes `train` and `test` (and
    `name`); a mapping also gives names. `train` and `test` are ``(inputs, targets)`` as arrays or tensors, or a
    map-style data set of ``(input, target, ...)``. Targets count classes from 0; the head has `classes` of them, or
    those of the first task.

    uint8 inputs are pixels, of images or rows; everything else becomes float32. Only the first task sets the scale: a
    mean and a deviation per channel or column, or a single pair for rows of pixels (bytes or numbers from 0 to 1),
    because their positions may be permuted. All arrays are checked at once; data sets are read when their task is
    requested, except for the first and one example of each.

    >>> pair = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    >>> stream = stream_of({"plain": (pair, pair), "again": (pair, pair)})
    >>> [dataset.name for dataset in stream], stream.classes
    (['stream: plain', 'stream: again'], ('0', '1'))
    """
    listed = _listed(tasks)
    inputs, targets = _read(listed[0].where, "training", listed[0].train)
    head = _head(listed[0].where, classes, targets)
    mean, std = _scale(inputs)
    for own in listed:
        for kind, part in (("training", own.train), ("test", own.test)):
            _fitting(own.where, kind, part, inputs, len(head), limit=1)
    scope = "each channel" if inputs.dim() > 2 else "each column"
    notes = [f"the first task's mean and deviation{' of ' + scope if len(mean) > 1 else ''} scale all inputs"]
    if classes is None:
        notes.append(f"{len(head)} classes, because the first task's labels go up to {len(head) - 1}")
    build = partial(_own_task, listed, name, head, mean, std, inputs[:0].clone())
    names = tuple(own.name for own in listed)
    return Stream(name, tuple(inputs.shape[1:]), head, names, build, notes=tuple(notes))


def _own_task(
    listed: list[_Own], name: str, head: tuple[str, ...], mean: Tensor, std: Tensor, like: Tensor, task: int
) -> Dataset:
    own = listed[task]
    train = _fitting(own.where, "training", own.train, like, len(head))
    test = _fitting(own.where, "test", own.test, like, len(head))
    return Dataset(f"{name}: {own.name}", *train, *test, "classification", mean, std, head)


def _listed(tasks: Any) -> list[_Own]:
    named = isinstance(tasks, Mapping)
    if not isinstance(tasks, Iterable) and not hasattr(tasks, "__getitem__"):
        raise InvalidInput(f"tasks is of type {type(tasks).__name__}, not a sequence of tasks; {_FORMS} for each")
    items = list(tasks.items() if named else tasks)
    if not items:
        raise InvalidInput("the stream has no tasks; at least 1 is needed")
    listed = []
    for index, item in enumerate(items):
        given, item = item if named else (None, item)
        if hasattr(item, "train") and hasattr(item, "test"):
            given, train, test = given or getattr(item, "name", None), item.train, item.test
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            train, test = item
        elif isinstance(item, (tuple, list)) and len(item) == 3 and isinstance(item[0], str):
            given, train, test = item
        else:
            size = f" and length {len(item)}" if isinstance(item, (tuple, list)) else ""
            raise InvalidInput(f"task {index} is of type {type(item).__name__}{size}; {_FORMS}")
        where = f"task {index}" if given is None else f"task {index} ({given})"
        listed.append(_Own(f"task {index}" if given is None else str(given), where, train, test))
    return listed


def _head(where: str, classes: int | Sequence[str] | None, targets: Tensor) -> tuple[str, ...]:
    if isinstance(classes, (str, float)):
        raise InvalidInput(f"classes={classes!r}: must be the number of classes or a list of their names")
    if classes is None:
        count = int(targets.max()) + 1
        if not 2 <= count <= _MAX_CLASSES:
            raise InvalidInput(f"{where}: the largest label is {count - 1}; pass classes=, the number of all classes")
        return tuple(map(str, range(count)))
    head = tuple(map(str, range(classes) if isinstance(classes, (int, np.integer)) else classes))
    if len(head) < 2 or len(set(head)) < len(head):
        raise InvalidInput(f"classes={classes!r}: at least 2 different classes are needed, as a number or as names")
    return head


def _scale(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for rows of pixels: a pixel that is always dark in the first task has no useful scale of its own."""
    pixels = inputs.dtype == torch.uint8 or bool((inputs >= 0).all() and (inputs <= 1).all())
    return statistics(inputs.reshape(-1, 1) if pixels and inputs.dim() == 2 else inputs)


def _fitting(
    where: str, kind: str, part: Any, like: Tensor, classes: int, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets that match the first task's inputs and the shared head."""
    inputs, targets = _read(where, kind, part, limit)
    found, wanted = (f"{x.dtype} {tuple(x.shape[1:])}" for x in (inputs, like))
    if found != wanted:
        raise InvalidInput(f"{where}: {kind} inputs are {found}, the first task's {wanted}; give all tasks one shape")
    unknown = targets[(targets < 0) | (targets >= classes)].unique().tolist()
    if unknown:
        some = ", ".join(map(str, unknown[:5])) + (", …" if len(unknown) > 5 else "")
        remedy = f"pass classes={unknown[-1] + 1} or more" if unknown[0] >= 0 else "count classes from 0"
        raise InvalidInput(f"{where}: {kind} labels {some}, but the shared head has 0 to {classes - 1}; {remedy}")
    return inputs, targets


def _read(where: str, kind: str, part: Any, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Checked inputs and targets; if a data set must be read example by example, only the first `limit`."""
    if isinstance(part, TensorDataset) and len(part.tensors) > 1:
        part = part.tensors[:2]
    if hasattr(part, "__len__") and len(part) == 0:
        raise InvalidInput(f"{where}: no {kind} examples; add some or leave the task out")
    if isinstance(part, (tuple, list)) and len(part) == 2 and all(isinstance(a, (np.ndarray, Tensor)) for a in part):
        inputs, targets = (numpy_of(each, f"{where}: {kind} part") for each in part)
    elif hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, (Mapping, str)):
        inputs, targets = _examples(where, kind, part, limit)
    else:
        got = type(part).__name__
        raise InvalidInput(f"{where}: {kind} part is of type {got}; expected (inputs, targets) or a map-style data set")
    targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{where}: {kind} inputs have type {inputs.dtype} and shape {inputs.shape}; expected numbers [N, ...]"
        )
    if targets.ndim != 1 or len(targets) != len(inputs):
        raise InvalidInput(
            f"{where}: {len(inputs)} {kind} inputs but targets of shape {targets.shape}; give one class per input"
        )
    if inputs.size == 0:
        raise InvalidInput(f"{where}: no {kind} examples; add some or leave the task out")
    return _inputs(where, kind, inputs), _targets(where, kind, targets)


def _examples(where: str, kind: str, part: Any, limit: int | None) -> tuple[Array, Array]:
    pairs = []
    for row in range(len(part) if limit is None else min(limit, len(part))):
        example = part[row]
        if not isinstance(example, (tuple, list)) or len(example) < 2:
            got = type(example).__name__
            raise InvalidInput(f"{where}: {kind} example {row} is of type {got}; expected (input, target, ...)")
        what = f"{where}: {kind} example {row}"
        pairs.append((numpy_of(example[0], what), numpy_of(example[1], what)))
        for what, one, first in zip(("input", "target"), pairs[-1], pairs[0], strict=True):
            if one.shape != first.shape:
                raise InvalidInput(f"{where}: {kind} example {row}: {what} of shape {one.shape}, not {first.shape}")
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


def _inputs(where: str, kind: str, array: Array) -> Tensor:
    """uint8 or finite float32: rows [N, columns], images [N, C, H, W]."""
    if array.ndim == 3:
        array = array[:, None]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] not in (1, 3):
        if array.shape[3] not in (1, 3):
            raise InvalidInput(f"{where}: {kind} images have shape {array.shape}; expected 1 or 3 channels")
        array = array.transpose(0, 3, 1, 2)
    if array.dtype == np.uint8:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    with np.errstate(over="ignore"):  # an overflow becomes infinite
        numbers = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    nonfinite = (~torch.isfinite(numbers)).flatten(1).any(1)
    if bool(nonfinite.any()):
        row = int(nonfinite.nonzero()[0])
        raise InvalidInput(f"{where}: {kind} example {row} has a NaN or infinite value; fill it or remove the example")
    return numbers


def _targets(where: str, kind: str, array: Array) -> Tensor:
    whole = array.dtype.kind in "biu"
    if array.dtype.kind == "f":
        whole = bool((np.abs(array) < 2**53).all() and (array == np.floor(array)).all())
    if not whole:
        raise InvalidInput(f"{where}: {kind} targets of type {array.dtype} are not integers; count classes from 0")
    return torch.from_numpy(array.astype(np.int64))
