"""Files are written whole or not at all.

The content goes to a new file in the same folder, under a name nobody else has. Once it is on the disk, a rename puts
it in the place of the old file. Readers see the old file or the new one, whatever happens to the writer.

The writer holds a lock on its unfinished file. The system drops that lock when a process ends, however it ends, so
the next writer can tell what a killed one left behind from what a living one is still writing.

Checkpoints and posteriors also carry a SHA-256 of their own content (`seal_zip`, `seal_safetensors`), so that a file
that was damaged on the disk is refused. Files of older versions have none and are read as they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from bayesbinn.errors import BayesbinnError, InvalidFile

SUFFIX = ".partial"
_MAX_STEM = 200
"""Bytes of the target's name in the unfinished file's: file systems allow 255 in all."""
_PATIENCE = 10.0
"""Seconds. Who holds a folder's lock for longer is no writer of this package."""
_SAFETENSORS_LEFTOVER = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""The temporary files of the safetensors library."""


def write_whole(path: str | Path, content: bytes | bytearray | memoryview) -> None:
    """Write a file, or fail with one line and leave the old one as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", b"whole")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('whole', 1)
    """
    write_together([(path, content)])


def write_together(contents: Sequence[tuple[str | Path, bytes | bytearray | memoryview]]) -> None:
    """Write files that belong together: none takes its place before all of them are on the disk."""
    current = Path(contents[0][0])
    try:
        with ExitStack() as stack:
            written = []
            for path, content in contents:
                current = Path(path)
                new = stack.enter_context(_NewFile(current))
                new.write(content)
                written.append(new)
            if len(written) > 1:
                # Of two processes that write the same files, one is the last for all of them.
                stack.enter_context(_alone_in(written[0].path.parent))
            for new in written:
                current = new.path
                new.publish()
    except OSError as error:
        raise _failed(current, error) from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to, for libraries that open files themselves. It replaces `path` when the block succeeds.

    An error in the block leaves the old file as it was. One about files or disks becomes a single line.
    """
    try:
        with beside(path) as unfinished:
            yield unfinished
    except BayesbinnError:
        raise
    except Exception as error:
        if system_error(error) is None:
            raise
        raise _failed(Path(path), error) from None


@contextmanager
def beside(path: str | Path) -> Iterator[Path]:
    """As `replacing`, with all errors as they come."""
    with _NewFile(Path(path)) as new:
        yield new.unfinished
        new.publish()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; a failure is one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{folder}: the folder cannot be made ({reason_of(error)})") from None


def system_error(error: BaseException) -> OSError | None:
    """The failed system call behind an error: libraries raise their own errors on the way out of a full disk."""
    found: OSError | None = None
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            found = seen
            if seen.errno is not None:
                break
        seen = seen.__cause__ or seen.__context__
    return found


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line.

    >>> reason_of(OSError(28, "No space left on device", "x"))
    'No space left on device'
    """
    found = system_error(error)
    if found is not None and found.strerror:
        return found.strerror
    return " ".join(str(error).split()) or type(error).__name__


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder; only for the folder's one owner."""
    for entry in _entries(folder):
        if entry.endswith(SUFFIX):
            _remove_abandoned(folder / entry)
        elif _SAFETENSORS_LEFTOVER.fullmatch(entry) and not (folder / entry).is_symlink():
            with suppress(OSError):
                (folder / entry).unlink()


def _failed(path: Path, error: BaseException) -> InvalidFile:
    # Not Path.is_file, which raises for a name that is too long.
    kept = "; the previous one is untouched" if os.path.isfile(path) else ""
    return InvalidFile(f"{path}: could not be written ({reason_of(error)}){kept}")


class _NewFile:
    """A file that takes the place of another one when it is published, and is removed if it is not."""

    def __init__(self, path: Path) -> None:
        self.path = _destination(path)
        self._stem = os.fsdecode(os.fsencode(self.path.name)[:_MAX_STEM])
        self._published = False

    def __enter__(self) -> _NewFile:
        self._clear_abandoned()
        while True:
            self.unfinished = self.path.with_name(f"{self._stem}.{secrets.token_hex(4)}{SUFFIX}")
            # The mode that `open` would give; a link that waits under this name is an error, not a target.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self.unfinished, flags, 0o666)
            except FileExistsError:
                continue
            with suppress(OSError):  # some network file systems have no locks; then nothing is ever cleared
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.path.lexists(self.unfinished):
                return self
            os.close(self._descriptor)  # a clearing process saw it before it was locked

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._published:
            with suppress(OSError):
                self.unfinished.unlink()
        os.close(self._descriptor)

    def write(self, content: bytes | bytearray | memoryview) -> None:
        """Write and sync."""
        left = memoryview(content).cast("B")
        while left:
            left = left[os.write(self._descriptor, left) :]
        os.fsync(self._descriptor)

    def publish(self) -> None:
        """Put the content on the disk and the file in its place."""
        # A library may have replaced the file rather than written to it.
        descriptor = os.open(self.unfinished, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(self.unfinished, self.path)
        self._published = True
        with suppress(OSError), _open_folder(self.path.parent) as folder:
            os.fsync(folder)

    def _clear_abandoned(self) -> None:
        for name in _entries(self.path.parent):
            middle = name.removeprefix(f"{self._stem}.").removesuffix(SUFFIX)
            if name == f"{self._stem}.{middle}{SUFFIX}" and re.fullmatch("[0-9a-f]{8}", middle):
                _remove_abandoned(self.path.with_name(name))


def _destination(path: Path) -> Path:
    """Where the file itself is: a link is written through, as `open` does. Only a file can be replaced by a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise _failed(path, error) from None
    if stat.S_ISDIR(mode):
        raise InvalidFile(f"{path}: it is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InvalidFile(f"{path}: it is {kind}; name an ordinary file, which is replaced as a whole")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove_abandoned(path: Path) -> None:
    """Remove an unfinished file unless its writer lives."""
    with suppress(OSError):
        if not stat.S_ISREG(path.lstat().st_mode):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # the same file: its name is drawn by chance and never used again
        finally:
            os.close(descriptor)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system drops when a process ends. Without one, go on after a while."""
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = stack.enter_context(_open_folder(folder))
            deadline = time.monotonic() + _PATIENCE
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        yield


DAMAGED = "its checksum does not fit: the file is damaged"


KEY = "checksum"


_DIGITS = 64


_ZEROS = b"0" * _DIGITS


_ZIP_END = b"PK\x05\x06"


_ZIP_END_SIZE = 22


_COMMENT = b"bayesbinn sha256 "


_MAX_HEADER = 100_000_000
"""Bytes, as the safetensors library has it."""


def seal_zip(archive: bytes | bytearray | memoryview) -> bytearray:
    """An archive without a comment, with its digest as the comment."""
    content = bytearray(archive)
    if not _ends_without_comment(content):
        raise ValueError("not a zip archive without a comment")
    content[-2:] = (len(_COMMENT) + _DIGITS).to_bytes(2, "little")
    content += _COMMENT
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def check_zip(content: bytes) -> None:
    """Refuse an archive that has changed since `seal_zip`. One that was never sealed passes."""
    if _ends_without_comment(content):
        return
    seal = content[-_DIGITS - len(_COMMENT) : -_DIGITS]
    digest = hashlib.sha256(memoryview(content)[:-_DIGITS]).hexdigest().encode()
    if seal != _COMMENT or content[-_DIGITS:] != digest:
        raise InvalidFile(DAMAGED)


def _ends_without_comment(content: bytes | bytearray) -> bool:
    return content[-_ZIP_END_SIZE : -_ZIP_END_SIZE + 4] == _ZIP_END and content[-2:] == b"\0\0"


def seal_safetensors(plain: bytes, metadata: dict[str, str]) -> bytearray:
    """A safetensors file without metadata, with this metadata and its digest: the same input gives the same bytes."""
    length = int.from_bytes(plain[:8], "little")
    header = {"__metadata__": {**metadata, KEY: _ZEROS.decode()}, **json.loads(plain[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    content = bytearray(len(text).to_bytes(8, "little") + text + plain[8 + length :])
    start = _place_of_digits(text, _ZEROS) + 8
    content[start : start + _DIGITS] = hashlib.sha256(content).hexdigest().encode()
    return content


def check_safetensors(content: bytes, was_never_sealed: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """The metadata of a file, refused if it has changed since `seal_safetensors`.

    `was_never_sealed` tells from metadata without a digest whether it is that of an older file.
    """
    header = _header_of(content)
    metadata = json.loads(header).get("__metadata__", {})
    digest = metadata.get(KEY)
    if digest is None and was_never_sealed(metadata):
        return dict(metadata)
    if not isinstance(digest, str) or not re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", digest):
        raise InvalidFile(DAMAGED)
    start = _place_of_digits(header, digest.encode()) + 8
    zeroed = hashlib.sha256(content[:start])
    zeroed.update(_ZEROS)
    zeroed.update(memoryview(content)[start + _DIGITS :])
    if zeroed.hexdigest() != digest:
        raise InvalidFile(DAMAGED)
    return dict(metadata)


def _header_of(content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MAX_HEADER):
        raise InvalidFile("it is cut off, or no safetensors file")
    return content[8 : 8 + length]


def _place_of_digits(header: bytes, digits: bytes) -> int:
    # Only one place can follow the key: within a JSON string the quotes would be escaped.
    found: Any = re.search(rb'"' + KEY.encode() + rb'":"(' + digits + rb')"', header)
    if found is None:
        raise InvalidFile(DAMAGED)
    return int(found.start(1))
