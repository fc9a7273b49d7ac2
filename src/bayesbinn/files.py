"""Atomic file writing: a file is written whole or not at all.

The content goes to a new file with a unique name in the same folder. Once it is on disk, a rename replaces the old
file. Readers see either the old file or the new one, whatever happens to the writer.

The writer holds a lock on its unfinished file. The system releases that lock when the process ends, however it ends, so
the next writer can tell files left by a killed process from those still being written.

Checkpoints and posteriors also carry a SHA-256 of their content (`seal_zip`, `seal_safetensors`), so that a file
damaged on disk is rejected. Files from older versions have no checksum and are read without the check.
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
"""Bytes of the target's name kept in the unfinished file's name: file systems allow 255 in total."""
_PATIENCE = 10.0
"""Seconds. No writer of this package holds a folder's lock for longer."""
_SAFETENSORS_LEFTOVER = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""Temporary files of the safetensors library."""


def write_whole(path: str | Path, content: bytes | bytearray | memoryview) -> None:
    """Write a file, or fail with a one-line error and leave the old file unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", b"whole")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('whole', 1)
    """
    write_together([(path, content)])


def write_together(contents: Sequence[tuple[str | Path, bytes | bytearray | memoryview]]) -> None:
    """Write files that belong together: none is moved into place before all of them are on disk."""
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
                # If two processes write the same files, all of the final files come from the same process.
                stack.enter_context(_alone_in(written[0].path.parent))
            for new in written:
                current = new.path
                new.publish()
    except OSError as error:
        raise _failed(current, error) from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to, for libraries that open files themselves. It replaces `path` when the block succeeds.

    An error in the block leaves the old file unchanged. I/O errors become a one-line message.
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
    """Like `replacing`, but errors pass through unchanged."""
    with _NewFile(Path(path)) as new:
        yield new.unfinished
        new.publish()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; a failure gives a one-line error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{folder}: cannot create the folder ({reason_of(error)})") from None


def system_error(error: BaseException) -> OSError | None:
    """The failed system call behind an error: on a full disk, libraries raise their own errors on top of it."""
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
    """Remove what killed processes left in a folder. Only the folder's owner may call this."""
    for entry in _entries(folder):
        if entry.endswith(SUFFIX):
            _remove_abandoned(folder / entry)
        elif _SAFETENSORS_LEFTOVER.fullmatch(entry) and not (folder / entry).is_symlink():
            with suppress(OSError):
                (folder / entry).unlink()


def _failed(path: Path, error: BaseException) -> InvalidFile:
    # Not Path.is_file, which raises if the name is too long.
    kept = "; the previous one is untouched" if os.path.isfile(path) else ""
    return InvalidFile(f"{path}: could not be written ({reason_of(error)}){kept}")


class _NewFile:
    """A file that replaces another one when it is published, and is removed if it is not."""

    def __init__(self, path: Path) -> None:
        self.path = _destination(path)
        self._stem = os.fsdecode(os.fsencode(self.path.name)[:_MAX_STEM])
        self._published = False

    def __enter__(self) -> _NewFile:
        self._clear_abandoned()
        while True:
            self.unfinished = self.path.with_name(f"{self._stem}.{secrets.token_hex(4)}{SUFFIX}")
            # The mode that `open` would use; an existing link with this name is an error, not a target.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self.unfinished, flags, 0o666)
            except FileExistsError:
                continue
            with suppress(OSError):  # some network file systems have no locks; nothing is ever cleared there
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.path.lexists(self.unfinished):
                return self
            os.close(self._descriptor)  # another process cleared it before it was locked

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
        """Sync the content to disk and move the file into place."""
        # A library may have replaced the file instead of writing to it.
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
    """The path of the real file: links are followed, as `open` does. Only a regular file can be replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise _failed(path, error) from None
    if stat.S_ISDIR(mode):
        raise InvalidFile(f"{path}: this is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InvalidFile(f"{path}: this is {kind}; name a regular file, because the file is replaced as a whole")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove_abandoned(path: Path) -> None:
    """Remove an unfinished file unless its writer is still alive."""
    with suppress(OSError):
        if not stat.S_ISREG(path.lstat().st_mode):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()  # still the same file: its name is random and never reused
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
    """Hold the folder's lock, which the system releases when a process ends. Without it, continue after a timeout."""
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


DAMAGED = "checksum mismatch: the file is damaged"


KEY = "checksum"


_DIGITS = 64


_ZEROS = b"0" * _DIGITS


_ZIP_END = b"PK\x05\x06"


_ZIP_END_SIZE = 22


_COMMENT = b"bayesbinn sha256 "


_MAX_HEADER = 100_000_000
"""Bytes; the same limit as in the safetensors library."""


def seal_zip(archive: bytes | bytearray | memoryview) -> bytearray:
    """Add the digest of an archive without a comment as its comment."""
    content = bytearray(archive)
    if not _ends_without_comment(content):
        raise ValueError("not a zip archive without a comment")
    content[-2:] = (len(_COMMENT) + _DIGITS).to_bytes(2, "little")
    content += _COMMENT
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def check_zip(content: bytes) -> None:
    """Reject an archive that has changed since `seal_zip`. One that was never sealed passes."""
    if _ends_without_comment(content):
        return
    seal = content[-_DIGITS - len(_COMMENT) : -_DIGITS]
    digest = hashlib.sha256(memoryview(content)[:-_DIGITS]).hexdigest().encode()
    if seal != _COMMENT or content[-_DIGITS:] != digest:
        raise InvalidFile(DAMAGED)


def _ends_without_comment(content: bytes | bytearray) -> bool:
    return content[-_ZIP_END_SIZE : -_ZIP_END_SIZE + 4] == _ZIP_END and content[-2:] == b"\0\0"


def seal_safetensors(plain: bytes, metadata: dict[str, str]) -> bytearray:
    """Add metadata and the digest to a safetensors file without metadata. The same input gives the same bytes."""
    length = int.from_bytes(plain[:8], "little")
    header = {"__metadata__": {**metadata, KEY: _ZEROS.decode()}, **json.loads(plain[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    content = bytearray(len(text).to_bytes(8, "little") + text + plain[8 + length :])
    start = _place_of_digits(text, _ZEROS) + 8
    content[start : start + _DIGITS] = hashlib.sha256(content).hexdigest().encode()
    return content


def check_safetensors(
    content: bytes, was_never_sealed: Callable[[dict[str, str]], bool] = lambda metadata: False
) -> dict[str, str]:
    """Return the metadata of a file; reject the file if it has changed since `seal_safetensors`.

    `was_never_sealed` decides whether metadata without a digest comes from an older version.
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
        raise InvalidFile("the file is truncated or not a safetensors file")
    return content[8 : 8 + length]


def _place_of_digits(header: bytes, digits: bytes) -> int:
    # Only one match is possible: inside a JSON string, the quotes would be escaped.
    found: Any = re.search(rb'"' + KEY.encode() + rb'":"(' + digits + rb')"', header)
    if found is None:
        raise InvalidFile(DAMAGED)
    return int(found.start(1))
