"""NumPy's files, read with care: only the arrays that are asked for, and nothing larger than the file can hold.

A header of a hundred bytes can promise any number of terabytes, and a compressed megabyte can hold a gigabyte of
zeros. So the promise is compared with what the file has before memory is taken.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TypeVar

from numpy.lib import format as npy_format

from bayesbinn.data.own.labels import Values
from bayesbinn.data.own.memory import check_fits
from bayesbinn.errors import BayesbinnError, InvalidFile

MAX_EXPANSION = 50
"""How many times larger than its compressed form an array may be if it is not small."""
SMALL = 256 * 2**20
"""An array of at most this many bytes may be compressed as well as it can be."""

T = TypeVar("T")
Choose = Callable[[Path, Sequence[str]], Sequence[str]]
"""From the names of all arrays, in small letters, to those that are wanted; or an error."""


def read_npz(path: Path, choose: Choose = lambda path, names: names) -> dict[str, Values]:
    """The chosen arrays of an archive, or all of them, by their names in small letters."""
    with _explained(path, ".npz file", "numpy.savez"), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = _by_name(path, archive.infolist(), lambda member: member.filename)
        wanted = {name: members[name] for name in choose(path, list(members))}
        total, stored = 0, os.fstat(file.fileno()).st_size
        for name, member in wanted.items():
            with archive.open(member) as content:
                size = _promised(content, member.file_size)
            _check_expansion(path, name, size, min(member.compress_size, stored))
            total += size
        check_fits(path, total, "its arrays")
        return {name: _array(archive.open(member)) for name, member in wanted.items()}


def read_npy_folder(folder: Path, choose: Choose) -> dict[str, Values]:
    """The chosen arrays of a folder of .npy files, by the files' names in small letters."""
    files = _by_name(folder, npy_files(folder), lambda file: file.name)
    return {name: read_npy(files[name]) for name in choose(folder, list(files))}


def npy_files(folder: Path) -> list[Path]:
    """The .npy files of a folder."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() == ".npy" and p.is_file())


def read_npy(path: Path) -> Values:
    """The array of a .npy file."""
    with _explained(path, ".npy file", "numpy.save"):
        with path.open("rb") as file:
            check_fits(path, _promised(file, os.fstat(file.fileno()).st_size), "its array")
        return _array(path.open("rb"))


def _by_name(path: Path, members: Sequence[T], name_of: Callable[[T], str]) -> Mapping[str, T]:
    found: dict[str, T] = {}
    for member in members:
        name = name_of(member).lower().removesuffix(".npy")
        if name in found:
            raise InvalidFile(
                f"{path}: it holds both {name_of(found[name])} and {name_of(member)}: remove or rename one of them"
            )
        found[name] = member
    return found


def _promised(file: IO[bytes], size: int) -> int:
    """The bytes of an array by its header, which must be all that follows the header in a file of `size` bytes."""
    version = npy_format.read_magic(file)
    readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]} of the format, which is for arrays of records")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read: numbers or text are needed")
    promised, there = prod(shape) * dtype.itemsize, size - file.tell()
    if dtype.itemsize == 0 or promised != there:
        raise ValueError(f"its header promises {promised:,} bytes ({dtype} {shape}), but {there:,} follow")
    return promised


def _check_expansion(path: Path, name: str, size: int, compressed: int) -> None:
    if size > max(SMALL, MAX_EXPANSION * compressed):
        raise InvalidFile(
            f"{path}: {name} would grow from {compressed / 1e6:,.1f} MB to {size / 1e6:,.0f} MB, more than "
            f"{MAX_EXPANSION} times: if that is right, save it uncompressed, with numpy.savez"
        )


def _array(file: IO[bytes]) -> Values:
    with file:
        array: Values = npy_format.read_array(file, allow_pickle=False)
        return array


@contextmanager
def _explained(path: Path, kind: str, writer: str) -> Iterator[None]:
    """Damaged files make NumPy and zipfile raise anything: zlib.error, struct.error, TokenError, MemoryError, ..."""
    try:
        yield
    except BayesbinnError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidFile(f"{path}: not a readable {kind}: {reason}: write it again with {writer}") from error
