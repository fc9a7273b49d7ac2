"""Downloads: try the mirrors in turn, verify, and never leave a partial file under its final name."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from bayesbinn.data.published.files import REMEDY, decompressed, existing
from bayesbinn.data.published.sources import Source, advice, find, find_archive, target
from bayesbinn.environment import need
from bayesbinn.errors import InvalidFile
from bayesbinn.files import beside

CHUNK = 1 << 18
TIMEOUT = (10, 60)
"""Seconds to connect, and between two chunks of data."""
LOCAL = (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""Errors of this machine's disk, not of the network."""


def locate(source: Source, data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Path:
    """The folder with the files: found, unpacked from a local archive, or downloaded."""
    folder = find(source, data_dir)
    if folder is not None:
        return folder
    folder = target(source, data_dir)
    archive = find_archive(source, data_dir)
    if archive is not None:
        unpack(source, archive, folder)
        return folder
    if not download:
        raise InvalidFile(f"{source.name} is not on this machine; {advice(source, data_dir)}")
    try:
        fetch(source, folder)
    except InvalidFile as error:
        raise InvalidFile(f"{source.name} could not be downloaded ({error}); {advice(source, data_dir)}") from error
    return folder


def fetch(source: Source, folder: Path) -> None:
    """Download every missing file of the data set into `folder`."""
    if source.archive is None:
        for member in source.members:
            if existing(folder, member.name) is None:
                name = f"{member.name}.gz"
                _fetch_one(source, name, folder / name, partial(_check, name=name, md5=member.md5))
        return
    archive = folder.parent / source.archive
    check = partial(_check, name=source.archive, md5=source.archive_md5, raw=True)
    _fetch_one(source, source.archive, archive, check)
    try:
        unpack(source, archive, folder)
    except InvalidFile:
        # Another process fetching the same data set may have unpacked and deleted the archive in the meantime.
        if any(existing(folder, member.name) is None for member in source.members):
            raise
    archive.unlink(missing_ok=True)


def unpack(source: Source, archive: Path, folder: Path) -> None:
    """Extract the expected files, and nothing else, from a tar or zip archive in one pass."""
    inside = source.archive_folder or source.folders[0]
    wanted = {f"{inside}/{member.name}": member for member in source.members}
    try:
        for name, content in _regular_files(archive, set(wanted)):
            member = wanted.pop(name)
            with _beside(folder / member.name) as unfinished:
                with unfinished.open("wb") as copy:
                    shutil.copyfileobj(content, copy, CHUNK)
                _check(unfinished, member.name, member.md5)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidFile(f"{archive}: damaged or truncated archive ({_short(error)}); {REMEDY}") from error
    except OSError as error:
        raise InvalidFile(f"{archive}: cannot unpack into {folder} ({_short(error)})") from error
    if wanted:
        raise InvalidFile(f"{archive}: the archive has no file {next(iter(wanted))}; {REMEDY}")


def _fetch_one(source: Source, name: str, final: Path, check: Callable[[Path], None]) -> None:
    """Try the mirrors in turn until one delivers a file that passes the check."""
    pooch = need("pooch", "downloading data sets")
    failures = []
    for mirror in source.mirrors:
        try:
            with _beside(final) as unfinished, _progress(name) as bar:
                pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT)(
                    mirror + name, str(unfinished), None
                )
                check(unfinished)
            return
        except (OSError, InvalidFile) as error:  # errors from requests are OSErrors as well
            failures.append(f"{mirror}: {_short(error)}")
            if isinstance(error, OSError) and error.errno in LOCAL:
                break  # another mirror would not help
    raise InvalidFile("; ".join(failures))


@contextlib.contextmanager
def _beside(final: Path) -> Iterator[Path]:
    """Several processes may fetch the same data set at once; the last one wins."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with beside(final) as unfinished:
        yield unfinished


def _check(path: Path, name: str, md5: str | None, raw: bool = False) -> None:
    """Compare the checksum of the content, decompressed unless `raw`."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") if raw else decompressed(path) as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidFile(f"{name} is damaged or truncated ({_short(error)})") from error
    if md5 is not None and digest.hexdigest() != md5:
        raise InvalidFile(f"{name} has md5 {digest.hexdigest()} instead of {md5}")


def _regular_files(archive: Path, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted files with their content, each once. Links and other names are skipped, so no path is followed."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in sorted(wanted.intersection(packed.namelist())):
                with packed.open(name) as content:
                    yield name, content
        return
    left = set(wanted)
    with tarfile.open(archive) as tar:
        for entry in tar:
            stream = tar.extractfile(entry) if entry.isreg() and entry.name in left else None
            if stream is not None:
                left.remove(entry.name)
                yield entry.name, stream


def _short(error: Exception) -> str:
    """The reason in one line, without the layers that networking libraries add."""
    cause: BaseException = error
    while not isinstance(cause, InvalidFile) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    text = " ".join(str(cause).split())
    return (text or type(cause).__name__)[:160]


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Any]:
    """A progress bar for pooch if stderr is a terminal, otherwise nothing."""
    if not sys.stderr.isatty():
        yield False
        return
    rich = need("rich.progress", "showing progress")
    console = need("rich.console", "showing progress").Console(stderr=True)
    columns = (rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    with rich.Progress("{task.description}", *columns, console=console) as progress:
        yield Bar(progress, name)


class Bar:
    """The progress-bar interface that pooch expects, implemented with rich."""

    def __init__(self, progress: Any, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    @property
    def total(self) -> int:
        return int(self._progress.tasks[self._task].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()
