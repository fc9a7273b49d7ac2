"""One writer per run folder, even among machines that share it.

The lock is a file that names its owner, which touches it every few seconds. Another process takes it over when the
owner was a process on the same machine and has ended, or when the file has not been touched for a while. The waiting
process measures that time with its own clock, because the clocks of two machines may differ.

A process may be killed at any of these steps. So every file here identifies its process from the moment it exists, by
its content or, while it is still empty, by its name, and the next owner removes what dead processes left.
"""

from __future__ import annotations

import hashlib
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
"""Seconds without a touch after which a lock is stale. NFS may show a file's time up to a minute late."""
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
        """Whether it is known to have ended. Nothing is known about processes on other machines."""
        return self.machine == _machine() and _start_of(self.process) != self.started


def _machine() -> str:
    """Identifies this machine since its last boot, or the container: a container numbers its own processes."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(process: int) -> str:
    """When a process started, to distinguish it from a later one with the same number; empty if it has ended."""
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
        self._own_file = folder / _own_name(self._owner)
        self._guard = self.path.with_suffix(".taking")
        self._since: dict[Path, tuple[object, float]] = {}
        self.waits_for = ""
        """After a failed `claim`: what it is waiting for, if that may take long."""
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self,
        *,
        wait: bool = True,
        should_stop: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """Become the owner; False if another owner is alive and `wait` is False or `should_stop` returns True.

        `tell` is called once with what the lock is waiting for, if that may take long.
        """
        self.waits_for = ""
        while not self._attempt():
            if not wait or should_stop():
                return False
            with suppress(OSError):
                if not self.waits_for and self._note_wait(owner_of(self.path.parent)):
                    tell(self.waits_for)
            time.sleep(POLL)
        self._clear_leftovers()
        self._leaving.clear()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return True

    def claim(self) -> bool:
        """Become the owner now. A live owner on this machine is an error. If False, try again in a second.

        A process on another machine may have ended. Its silence is timed from the first call.
        """
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFile(f"{folder}: cannot create the folder of the run ({error.strerror})") from None
        try:
            if self.acquire(wait=False):
                return True
            found = owner_of(folder)
        except OSError as error:
            raise InvalidFile(f"{self.path}: could not be written ({error.strerror})") from None
        owner = None if found is None else found[0]
        if owner is not None and owner.machine == _machine() and not owner.dead():
            raise InvalidUse(
                f"{folder}: process {owner.process} is writing there; wait for it, or choose another --out"
            )
        self._note_wait(found)
        return False

    def _note_wait(self, found: tuple[Owner | None, int] | None) -> str:
        blocked, folder = self._blocked_by(found), self.path.parent
        end = f"this process continues after {self._stale:.0f} s without a sign of it"
        self.waits_for = f"{folder}: {blocked}; {end}" if blocked else ""
        return self.waits_for

    def _blocked_by(self, found: tuple[Owner | None, int] | None) -> str:
        """Describes what only waiting can resolve; empty if nothing blocks."""
        if found is None:
            return ""
        owner, _ = found
        if owner is None:
            return f"the file {NAME!r} there does not name a process"
        if owner.machine != _machine():
            return "a process on another machine was writing there"
        if not owner.dead():
            return ""
        with suppress(OSError):
            taking = _read(self._guard)
            if taking is None or taking.machine != _machine():
                return "another process was taking it over from one that ended"
        return ""

    @property
    def held(self) -> bool:
        """Whether this object has acquired the lock and not released it; another process may still have taken it."""
        return self._thread is not None

    def check(self) -> None:
        """Raise if another process owns the folder. Call before every write: the owner may have been suspended."""
        if self._is_lost():
            raise LockLost(f"{self.path}: another process took over this run and continues it")

    def release(self) -> None:
        """Release the lock; does nothing if it was lost or never held."""
        self._leaving.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if not self._is_lost():
            self._remove(self.path, lambda taken: _read(taken) == self._owner)

    def _attempt(self) -> bool:
        """Create the lock, or take it over from an owner that has ended or was silent for too long."""
        if self._create(self.path):
            return True
        try:
            found = owner_of(self.path.parent)
        except OSError:
            return False  # a shared file system may fail for a moment
        if found is None:
            return False  # it has just been released
        gone = found[0] is not None and found[0].dead()
        return (gone or self._seen_for(self.path, found) > self._stale) and self._take_over(found)

    def _seen_for(self, path: Path, state: object) -> float:
        """Seconds since this object first saw a file in this state."""
        now = time.monotonic()
        if path not in self._since or self._since[path][0] != state:
            self._since[path] = (state, now)
        return now - self._since[path][1]

    def _create(self, path: Path) -> bool:
        """Create a file that names this process, unless it exists. Other processes never see it empty."""
        if path.exists():
            return False
        self._write_own_file()
        try:
            os.link(self._own_file, path)
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError:  # a file system without hard links
            return self._create_plainly(path)
        finally:
            with suppress(OSError):
                self._own_file.unlink()
        return True

    def _create_plainly(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(asdict(self._owner)))
        except OSError:
            path.unlink()
            raise
        return True

    def _write_own_file(self) -> None:
        try:
            self._own_file.write_text(json.dumps(asdict(self._owner)))
        except OSError:
            with suppress(OSError):
                self._own_file.unlink()
            raise

    def _take_over(self, stale: tuple[Owner | None, int]) -> bool:
        """Replace a dead owner's lock. A second file prevents two processes from doing so at once."""
        if not self._create(self._guard) and not (self._clear_guard() and self._create(self._guard)):
            return False
        try:
            if owner_of(self.path.parent) != stale:
                return False
            self._write_own_file()
            os.replace(self._own_file, self.path)
        except FileNotFoundError:
            return False
        finally:
            for left in (self._own_file, self._guard):
                with suppress(OSError):
                    left.unlink()
        return not self._is_lost()

    def _clear_guard(self) -> bool:
        """Remove the guard of a process that ended during a takeover; one from another machine, once it is old."""
        try:
            seen = _read(self._guard), self._guard.stat().st_mtime_ns
        except FileNotFoundError:
            return True
        except OSError:
            return False
        owner = seen[0]
        gone = owner is not None and owner.dead()
        if gone or self._seen_for(self._guard, seen) > self._stale:
            self._remove(self._guard, lambda taken: (_read(taken), taken.stat().st_mtime_ns) == seen)
            return True
        return False

    def _clear_leftovers(self) -> None:
        """Remove files that killed processes left next to the lock. A live process never keeps one for long."""
        with suppress(OSError):
            now = self.path.stat().st_mtime  # on the file system's clock
            for left in self.path.parent.glob(f"{NAME}.*"):
                with suppress(OSError):
                    owner = _read(left) or _named_by(left.name)
                    if (owner is not None and owner.dead()) or now - left.stat().st_mtime > self._stale:
                        left.unlink()

    def _remove(self, path: Path, is_meant: Callable[[Path], bool]) -> None:
        """Delete a file unless another has taken its place. It is renamed first, so that no other process uses it."""
        with suppress(OSError):
            os.rename(path, self._own_file)
            if not is_meant(self._own_file):
                os.link(self._own_file, path)
        with suppress(OSError):
            self._own_file.unlink()

    def _is_lost(self) -> bool:
        """Whether the file is gone or names another owner. A file that cannot be read right now does not count."""
        try:
            owner = _read(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return owner is not None and owner != self._owner

    def _beat(self) -> None:
        while not self._leaving.wait(self._heartbeat):
            if self._is_lost():
                return
            with suppress(OSError):
                os.utime(self.path)


def _own_name(owner: Owner) -> str:
    """The name of the file that becomes a lock once it is written. It identifies the owner if the file is empty."""
    return f"{NAME}.{_digest(owner.machine)}-{owner.process}-{owner.started}-{owner.token}"


def _named_by(name: str) -> Owner | None:
    """The process on this machine that `_own_name` encoded; None for any other name."""
    parts = name.removeprefix(f"{NAME}.").split("-")
    if len(parts) != 4 or parts[0] != _digest(_machine()) or not parts[1].isdecimal():
        return None
    return Owner(parts[3], _machine(), int(parts[1]), parts[2])


def _digest(machine: str) -> str:
    return hashlib.sha256(machine.encode()).hexdigest()[:12]


def _read(path: Path) -> Owner | None:
    """None while the file is being written."""
    try:
        return Owner(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        return None


def owner_of(folder: Path) -> tuple[Owner | None, int] | None:
    """Who owns a folder, and when the lock was last touched (ns); None if there is no lock."""
    path = folder / NAME
    try:
        return _read(path), path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def seems_owned(folder: Path) -> bool:
    """Whether a process seems to be writing there now: a guess for displays, which compares two machines' clocks."""
    try:
        found = owner_of(folder)
    except OSError:
        return False
    if found is None or (found[0] is not None and found[0].dead()):
        return False
    return abs(time.time() - found[1] / 1e9) < STALE
