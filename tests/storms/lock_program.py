"""``python tests/storms/lock_program.py FOLDER KILLS SEED``: processes compete for a folder's lock and are killed.

Prints JSON: how many owners and other processes were killed, who became the owner while another one was, how long it
took until the next owner, how the processes that were not killed ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from random import Random

from bayesbinn.train.lock import RunLock

PROCESSES = 4
Event = tuple[str, int, float]
"""What ("in", "out" or "kill"), the process, and when, on the clock that all of them share."""


def compete(folder: Path, history: int, random: Random, stop: Path) -> None:
    """Become the owner again and again, and log it each time: once it is true, and while it still is."""
    while not stop.exists():
        lock = RunLock(folder, heartbeat=0.05)
        if not lock.acquire(should_stop=stop.exists):
            return
        _note(history, "in")
        time.sleep(random.choice((0.0, 0.002, 0.05, 0.2)))
        lock.check()
        _note(history, "out")
        lock.release()
        time.sleep(random.choice((0.0, 0.01)))


def _note(history: int, what: str, process: int | None = None) -> None:
    line = f"{what} {process or os.getpid()} {time.monotonic():.6f}\n"
    os.write(history, line.encode())  # appended atomically


def read(path: Path) -> list[Event]:
    events = []
    for line in path.read_text().splitlines():
        what, process, when = line.split()
        events.append((what, int(process), float(when)))
    return events


def doubles(history: Iterable[Event]) -> list[str]:
    """Who became the owner while another one was. A killed owner counts as one at least until the kill is sent."""
    owner, found, killed = None, [], set()
    for what, process, when in sorted(history, key=lambda event: event[2]):
        if what == "kill":
            killed.add(process)
        if what == "in":
            if process in killed:
                continue  # it became the owner just before the kill reached it
            if owner is not None:
                found.append(f"{process} at {when:.3f} s while {owner} was the owner")
            owner = process
        elif process == owner:
            owner = None
    return found


def longest_wait(history: list[Event]) -> float:
    """The longest time that the folder had no owner."""
    free, longest = None, 0.0
    for what, _, when in sorted(history, key=lambda event: event[2]):
        if what == "in":
            longest = max(longest, when - free) if free is not None else longest
            free = None
        elif free is None:
            free = when
    return longest


def storm(folder: Path, kills: int, seed: int) -> dict[str, object]:
    random, path, stop = Random(f"locks {seed}"), folder.parent / "history", folder.parent / "stop"
    history = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    living: set[int] = set()
    killed_owners = killed_others = 0

    def start() -> None:
        own = Random(random.random())
        process = os.fork()
        if process:
            living.add(process)
            return
        code = 1
        try:
            compete(folder, history, own, stop)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)

    deadline = time.monotonic() + 120 + 5 * kills
    while killed_owners < kills and time.monotonic() < deadline:
        while len(living) < PROCESSES:
            start()
        time.sleep(random.choice((0.0, 0.01, 0.05)) * random.random())
        victim = _owner(path) if random.random() < 0.8 else random.choice(sorted(living))
        if victim not in living:
            continue
        was_owner = _owner(path) == victim
        _note(history, "kill", victim)
        os.kill(victim, signal.SIGKILL)
        living.remove(victim)
        code = os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1])
        assert code == -signal.SIGKILL, f"a process ended by itself: {code}"
        killed_owners += was_owner
        killed_others += not was_owner
    stop.touch()
    codes = {os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in living}
    events = read(path)
    return {
        "killed_owners": killed_owners,
        "killed_others": killed_others,
        "owners": sum(what == "in" for what, *_ in events),
        "doubles": doubles(events),
        "longest_wait": longest_wait(events),
        "exit_codes": sorted(codes),
    }


def _owner(path: Path) -> int | None:
    """The current owner: the last one that entered, unless it has left."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode().splitlines()
    if not lines:
        return None
    what, process, _ = lines[-1].split()
    return int(process) if what == "in" else None


if __name__ == "__main__":
    print(json.dumps(storm(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
