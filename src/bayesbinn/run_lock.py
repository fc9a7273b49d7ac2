"""One writer per run folder, also among machines that share it.

The lock is a file that names its owner, who touches it every few seconds. Another process takes it over when the
owner is a process of the same machine that has ended, or when nobody has touched the file for a while. How long that
is, the waiting process measures by its own clock: the clocks of two machines may differ.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidUse

NAME = "lock"
HEARTBEAT = 10.0
STALE = 120.0
"""Seconds without a touch. NFS may show a file's time up to a minute late."""
POLL = 0.2


class LockLost(BayesbinnError, RuntimeError):
    """Another process owns the folder now, because this one was silent for too long."""


@dataclass(frozen=True)
class Owner:
    """The process that writes in a folder."""

    token: str
    machine: str
    process: int
    started: str

    def dead(self) -> bool:
        """Whether it is known to have ended. Of another machine nothing is known."""
        return self.machine == _machine() and _start_of(self.process) != self.started


def _machine() -> str:
    """This machine since its last start; of a container, the container: its process numbers are its own."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(process: int) -> str:
    """When a process started, which tells it from a later one of the same number; empty when it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "running"


class RunLock:
    """The right to write in a folder."""

    def __init__(self, folder: Path, *, heartbeat: float = HEARTBEAT, stale: float = STALE) -> None:
        self.path = folder / NAME
        self._heartbeat, self._stale = heartbeat, stale
        process = os.getpid()
        self._owner = Owner(uuid.uuid4().hex, _machine(), process, _start_of(process))
        self._touched = 0.0
        self._lost = False
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, *, wait: bool = True, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Become the owner; False when another one is alive and waiting is over or not wanted."""
        seen: tuple[tuple[Owner | None, int], float] | None = None
        while not self._create():
            found = self._found()
            if found is None:
                continue
            if seen is None or found != seen[0]:
                seen = (found, time.monotonic())
            owner = found[0]
            if (owner is not None and owner.dead()) or time.monotonic() - seen[1] > self._stale:
                if self._take_over(found):
                    break
            elif not wait or should_stop():
                return False
            time.sleep(POLL)
        self._touched, self._lost = time.monotonic(), False
        self._leaving.clear()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return True

    def claim(self, tell: Callable[[str], None]) -> None:
        """Become the owner. One of this machine that is alive is an error; of another machine it is waited for."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.acquire(wait=False):
                return
            found = owner_of(folder)
            owner = None if found is None else found[0]
            if owner is not None and owner.machine == _machine():
                raise InvalidUse(
                    f"{folder}: process {owner.process} is training there; wait for it, or choose another --out"
                )
            where = "another process" if owner is None else f"a process of {owner.machine.split()[0]}"
            tell(f"{folder}: {where} was writing there; after {self._stale:.0f} s of silence this one goes on")
            self.acquire()
        except OSError as error:
            raise InvalidFile(f"{self.path}: could not be written ({error.strerror})") from None

    def check(self) -> None:
        """Raise when the folder is another's. Free while the lock was touched in time."""
        if not self._lost and time.monotonic() - self._touched > self._stale / 2:
            self._lost = not self._is_mine()
        if self._lost:
            raise LockLost(f"{self.path}: another process took this run over; it goes on there")

    def release(self) -> None:
        """Let others in; a lock that was lost is left alone."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_mine():
            with suppress(OSError):
                self.path.unlink()

    def _create(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(asdict(self._owner)))
        return True

    def _found(self) -> tuple[Owner | None, int] | None:
        return owner_of(self.path.parent)

    def _is_mine(self) -> bool:
        found = self._found()
        return found is not None and found[0] == self._owner

    def _take_over(self, stale: tuple[Owner | None, int]) -> bool:
        """Replace a dead owner's lock. A second file keeps two processes from doing so at once."""
        guard, mine = self.path.with_suffix(".taking"), self.path.with_suffix(f".{self._owner.token}")
        try:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            # Its process ended within the lines below, or is there still.
            with suppress(OSError):
                if abs(time.time() - guard.stat().st_mtime) > self._stale:
                    guard.unlink()
            return False
        try:
            if self._found() != stale:
                return False
            mine.write_text(json.dumps(asdict(self._owner)))
            os.replace(mine, self.path)
        finally:
            with suppress(OSError):
                guard.unlink()
        return self._is_mine()

    def _beat(self) -> None:
        while not self._leaving.wait(self._heartbeat):
            if not self._is_mine():
                self._lost = True
                return
            with suppress(OSError):
                os.utime(self.path)
                self._touched = time.monotonic()


def owner_of(folder: Path) -> tuple[Owner | None, int] | None:
    """Who owns a folder, and when the lock was touched (ns); None where there is no lock.

    The owner is None while the file is being written.
    """
    path = folder / NAME
    try:
        touched, text = path.stat().st_mtime_ns, path.read_text()
    except OSError:
        return None
    try:
        return Owner(**json.loads(text)), touched
    except (ValueError, TypeError):
        return None, touched


def seems_owned(folder: Path) -> bool:
    """Whether a process seems to write there now: a guess for displays, by the clocks of both machines."""
    found = owner_of(folder)
    if found is None or (found[0] is not None and found[0].dead()):
        return False
    return abs(time.time() - found[1] / 1e9) < STALE
