"""The single entry point to all data: a data set by name, or the user's own by path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.own.encoded import load_encoded
from bayesbinn.data.own.folders import load_images
from bayesbinn.data.own.npy import npy_files
from bayesbinn.data.own.npz import load_npz
from bayesbinn.data.own.tables import SUFFIXES as TABLES
from bayesbinn.data.own.tables import load_table
from bayesbinn.data.published import cifar, mnist, synthetic
from bayesbinn.data.published.digits import digits
from bayesbinn.data.published.download import locate
from bayesbinn.data.published.files import existing_path
from bayesbinn.data.published.sources import Source, advice, find, find_archive
from bayesbinn.errors import InvalidInput, nearest

KINDS = f"{', '.join(TABLES)}, .npz or a folder"


@dataclass(frozen=True)
class Published:
    """A data set read from its publisher's files."""

    description: str
    source: Source
    load: Callable[[Path], Dataset]


@dataclass(frozen=True)
class Included:
    """A data set that scikit-learn ships or generates."""

    description: str
    load: Callable[[], Dataset]


SETS: dict[str, Published | Included] = {
    "mnist": Published("70,000 handwritten digits, 28×28 gray", mnist.SOURCE, mnist.load_mnist),
    "cifar10": Published("60,000 photographs of 10 classes, 32×32 RGB", cifar.SOURCE10, cifar.load_cifar10),
    "cifar100": Published("60,000 photographs of 100 classes, 32×32 RGB", cifar.SOURCE100, cifar.load_cifar100),
    "snelson": Published("200 points on a curve, regression", synthetic.SNELSON, synthetic.load_snelson),
    "moons": Included("two moons, 200 points in the plane, 2 classes", synthetic.load_moons),
    "digits": Included("1,797 handwritten digits, 8×8 gray", digits),
}


@dataclass(frozen=True)
class Available:
    """A named data set and where it is; if it is missing, `advice` says how to get it."""

    name: str
    description: str
    where: str | None
    advice: str | None


def available(data_dir: str | os.PathLike[str] | None = None) -> list[Available]:
    """Every named data set; nothing is read or downloaded.

    >>> [each.name for each in available()]
    ['mnist', 'cifar10', 'cifar100', 'snelson', 'moons', 'digits']
    """
    found = []
    for name, each in SETS.items():
        if isinstance(each, Included):
            found.append(Available(name, each.description, "scikit-learn", None))
            continue
        where = find(each.source, data_dir) or find_archive(each.source, data_dir)
        help_ = None if where else f"downloaded on first use; without a network, {advice(each.source, data_dir)}"
        found.append(Available(name, each.description, None if where is None else str(where), help_))
    return found


def load(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    label: str | None = None,
    task: Task | None = None,
    download: bool = True,
    encode: bool = False,
) -> Dataset:
    """A data set by name (see `available`), or from a .npz, .csv, .tsv or .parquet file or a folder.

    A folder contains images, with one subfolder per class, or two tables named `train` and `test`, or arrays named
    `x.npy` and `y.npy` (or, as in a .npz file, `x_train.npy` and so on). `label` is the table column to predict; `task`
    says whether its numbers are classes or quantities, in case the rule (see `labels.understand`) guesses wrong.
    `data_dir` is searched before BAYESBINN_DATA and the user's cache; `download=False` never uses the network.
    `encode` accepts any table: text, dates and missing cells become codes, as do numbers of any scale
    (`Dataset.encoding`). Without it every column except the label must hold numbers.

    >>> dataset = load("moons")
    >>> parts = dataset.split(validation=0.1, seed=1)
    >>> [len(y) for x, y in parts.train.batches(100, seed=1, epoch=1)]
    [100, 80]
    """
    name = os.fspath(name_or_path)
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r}: the name or path of a data set must be text")
    if task is not None and task not in get_args(Task):
        raise InvalidInput(f"data.task is {task!r}:{nearest(str(task), get_args(Task))} {' or '.join(get_args(Task))}")
    if name in SETS:
        if label is not None or task is not None:
            raise InvalidInput(f"{name} has its own labels; leave out label= and task=, which are for your own tables")
        each = SETS[name]
        return each.load() if isinstance(each, Included) else each.load(locate(each.source, data_dir, download))
    if not Path(name).suffix and len(Path(name).parts) == 1 and not os.path.lexists(name):
        raise InvalidInput(f"there is no data set {name!r}.{nearest(name, SETS)} Allowed: {', '.join(SETS)}, {KINDS}")
    path = existing_path(name, f"; {KINDS} can be loaded")
    try:
        return _own(path, name, label, task, encode)
    except OSError as error:
        raise InvalidInput(f"{error.filename or name}: cannot read the file ({error.strerror or error})") from error


def _own(path: Path, name: str, label: str | None, task: Task | None, encode: bool) -> Dataset:
    kind = path.suffix.lower()
    read = load_encoded if encode else load_table
    if kind in TABLES and path.is_file():
        return read(path, label, task=task)
    if path.is_dir():
        train, test = _pair_of_tables(path)
        if train is not None:
            return read(train, label, test=test, task=task)
    if label is not None:
        tables = ", ".join(TABLES)
        raise InvalidInput(
            f"{name}: label={label!r} names a table column, but this is not a table; save a table as {tables}, "
            "or leave the label out"
        )
    if kind == ".npz" or (path.is_dir() and npy_files(path)):
        return load_npz(path, task)
    if path.is_dir():
        if task == "regression":
            raise InvalidInput(f"{name}: images in folders are always classified; leave out task={task!r}")
        return load_images(path)
    if kind == ".npy":
        raise InvalidInput(
            f"{name}: a single array has no labels; save both with numpy.savez({path.stem + '.npz'!r}, x=..., y=...), "
            "or put x.npy and y.npy in a folder and load that"
        )
    raise InvalidInput(f"{name}: cannot load files ending in {kind or 'nothing'}; {KINDS} can be loaded")


def _pair_of_tables(folder: Path) -> tuple[Path | None, Path | None]:
    for suffix in TABLES:
        train, test = folder / f"train{suffix}", folder / f"test{suffix}"
        if train.is_file() and test.is_file():
            return train, test
    return None, None
