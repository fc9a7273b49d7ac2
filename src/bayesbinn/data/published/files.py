"""Read a publisher's file, compressed or not, and report any problem in one line."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bayesbinn.errors import InvalidFile, InvalidInput

GZIP = b"\x1f\x8b"
REMEDY = "replace the file, or delete it to download it again"


def existing_path(path: str | os.PathLike[str], hint: str = "") -> Path:
    """A regular file or a folder; pipes and devices are rejected because reading them may never end."""
    try:
        where = Path(path).expanduser()
        if where.is_file() or where.is_dir():
            return where
        there = where.exists()
    except (OSError, ValueError, RuntimeError) as error:  # name too long, NUL in the name, unknown home directory
        raise InvalidInput(f"{os.fspath(path)}: no such file or folder ({error})") from None
    if there:
        raise InvalidInput(f"{where}: neither a regular file nor a folder; copy its content into a file first")
    raise InvalidInput(f"{os.fspath(path)}: no such file or folder{hint}")


def existing(folder: Path, name: str) -> Path | None:
    """`folder/name` or `folder/name.gz`, whichever exists."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


@contextmanager
def decompressed(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The content as a stream, decompressed if it is gzip, whatever the name says."""
    with path.open("rb") as file:
        if file.peek(2)[:2] != GZIP:
            yield file
        else:
            with gzip.open(file) as plain:
                yield plain


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The decompressed content, up to `most` bytes."""
    try:
        with decompressed(path) as content:
            return content.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidFile(f"{path}: damaged or truncated gzip file ({error}); {REMEDY}") from error
    except OSError as error:
        raise InvalidFile(f"{path}: cannot read the file ({error.strerror}); {REMEDY}") from error


def read_exactly(path: Path, size: int, meaning: str) -> bytes:
    """The content, which must have `size` bytes; `meaning` says why."""
    content = read_bytes(path, size + 1)
    if len(content) != size:
        received = f"more than {size:,}" if len(content) > size else f"{len(content):,}"
        raise InvalidFile(f"{path}: {received} bytes instead of {size:,} ({meaning}); {REMEDY}")
    return content
