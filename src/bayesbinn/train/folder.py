"""The folder of a run while this process may write there.

Whatever writes to a run's folder takes a `RunFolder`, and there is none without the lock: nobody can forget it. Reading
needs no lock, only the path.
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


def _tell_nobody(text: str) -> None:
    """For callers with nobody to tell."""


class RunFolder:
    """A run's folder that this process owns. Data-parallel ranks all have one, but rank 0 alone writes.

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
    def locked(cls, path: Path, *, tell: Tell = _tell_nobody, patient: bool = True) -> Iterator[RunFolder]:
        """Own a folder for the length of the block; one that is made for it goes again if nothing is written.

        A folder where a living process of this machine writes is refused. One of another machine may have ended: it
        is waited for, and `tell` hears so, unless the caller is not `patient`.
        """
        lock, told = RunLock(path), False
        made = [each for each in (path, *path.parents) if not each.exists()]
        try:
            # In short rounds: ranks that hear nothing for long would take rank 0 for lost.
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
                        each.rmdir()  # only if nothing came of it

    @classmethod
    @contextmanager
    def awaited(cls, path: Path, *, should_stop: Callable[[], bool], tell: Tell = _tell_nobody) -> Iterator[RunFolder]:
        """As `locked`, but wait for whoever writes there now; `RunStopped` if `should_stop` says so first."""
        lock = RunLock(path)
        if not lock.acquire(should_stop=should_stop, tell=tell):
            raise RunStopped(f"stopped while another process was writing in {path}")
        try:
            yield cls(lock)
        finally:
            lock.release()

    @property
    def writes(self) -> bool:
        """Whether this is the rank that writes; on the others, writing does nothing."""
        return ranks.rank() == 0

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, or fail with one line."""
        if self.writes:
            write_whole(self.writable(name), content)

    def keep(self, name: str, content: bytes) -> None:
        """Write a file unless it is there."""
        if self.writes and not (self.path / name).exists():
            self.write(name, content)

    def writable(self, name: str) -> Path:
        """Where to write a file, for code that writes it itself: at once, because the lock is checked now."""
        self._check()
        return self.path / name

    def _check(self) -> None:
        """Raise when the folder is not, or no longer, this process's: an owner may have slept for too long."""
        if not self._lock.held:
            raise InvalidUse(f"{self.path}: its lock is not held; write inside the block of RunFolder.locked")
        self._lock.check()


@contextmanager
def owned(folder: RunFolder | Path) -> Iterator[RunFolder]:
    """A folder that is owned already, as it is; a path, locked for the length of the block."""
    if isinstance(folder, RunFolder):
        yield folder
    else:
        with RunFolder.locked(folder) as opened:
            yield opened


def path_of(folder: RunFolder | Path) -> Path:
    """Where a folder is, to read from it."""
    return folder.path if isinstance(folder, RunFolder) else folder
