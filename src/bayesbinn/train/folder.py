"""The folder of a run, while this process may write to it.

Code that writes to a run's folder takes a `RunFolder`, which exists only with its lock, so nobody can forget the lock.
Reading needs only the path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesbinn import ranks
from bayesbinn.errors import InvalidUse
from bayesbinn.files import clear_leftovers, write_whole
from bayesbinn.train.lock import RunLock
from bayesbinn.train.progress import RunStopped

Tell = Callable[[str], None]


def _ignore(text: str) -> None:
    """The default `tell`."""


class RunFolder:
    """A run's folder that this process owns. Every data-parallel rank has one, but only rank 0 writes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with RunFolder.locked(Path(place, "run")) as folder:
    ...         folder.write("config.toml", b"seed = 1")
    ...     folder.write("config.toml", b"seed = 2")
    Traceback (most recent call last):
    ...
    bayesbinn.errors.InvalidUse: .../run: its lock is not held; write inside the block of RunFolder.locked
    """

    def __init__(self, lock: RunLock) -> None:
        self._lock = lock
        self.path = lock.path.parent
        if self.writes:
            self._check()
            clear_leftovers(self.path)

    @classmethod
    @contextmanager
    def locked(cls, path: Path, *, tell: Tell = _ignore, patient: bool = True) -> Iterator[RunFolder]:
        """Own a folder for the duration of the block. A folder created here is removed again if nothing is written.

        It is an error if a live process on this machine uses the folder. A process on another machine may have ended,
        so a `patient` caller waits until it has been silent for long enough; `tell` receives one line about that.
        """
        lock, told = RunLock(path), False
        made = [each for each in (path, *path.parents) if not each.exists()]
        try:
            # In short rounds: ranks that hear nothing for a long time would consider rank 0 lost.
            while not ranks.decided(lock.claim):
                if not patient:
                    raise InvalidUse(lock.waits_for or f"{path}: another process is writing there")
                if lock.waits_for and not told:
                    tell(lock.waits_for)
                    told = True
                time.sleep(1)
            yield cls(lock)
        finally:
            lock.release()
            if ranks.rank() == 0:
                with suppress(OSError):
                    for each in made:
                        each.rmdir()  # only if it is empty

    @classmethod
    @contextmanager
    def awaited(cls, path: Path, *, should_stop: Callable[[], bool], tell: Tell = _ignore) -> Iterator[RunFolder]:
        """Like `locked`, but wait for the current owner; raises `RunStopped` if `should_stop` returns True first."""
        lock = RunLock(path)
        if not lock.acquire(should_stop=should_stop, tell=tell):
            raise RunStopped(f"stopped while another process was writing in {path}")
        try:
            yield cls(lock)
        finally:
            lock.release()

    @property
    def writes(self) -> bool:
        """Whether this rank writes; on the others, `write` and `keep` do nothing."""
        return ranks.rank() == 0

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file, or fail with one line."""
        if self.writes:
            write_whole(self.writable(name), content)

    def keep(self, name: str, content: bytes) -> None:
        """Write a file unless it exists."""
        if self.writes and not (self.path / name).exists():
            self.write(name, content)

    def writable(self, name: str) -> Path:
        """The path of a file, for code that opens it itself. The lock is checked now, so write at once."""
        self._check()
        return self.path / name

    def _check(self) -> None:
        """Raise if this process does not own the folder, or lost it because it was suspended for too long."""
        if not self._lock.held:
            raise InvalidUse(f"{self.path}: its lock is not held; write inside the block of RunFolder.locked")
        self._lock.check()


@contextmanager
def owned(folder: RunFolder | Path) -> Iterator[RunFolder]:
    """The folder itself if it is already locked; a path is locked for the duration of the block."""
    if isinstance(folder, RunFolder):
        yield folder
    else:
        with RunFolder.locked(folder) as opened:
            yield opened


def path_of(folder: RunFolder | Path) -> Path:
    """The path of a folder, for reading."""
    return folder.path if isinstance(folder, RunFolder) else folder
