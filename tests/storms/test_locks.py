"""Owners of a folder are killed at random times while others wait: one owner at a time, and soon the next one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from bayesbinn.train.lock import RunLock
from tests.helpers.processes import warm_python
from tests.storms import lock_program
from tests.storms.cases import SEED, count, record

MAX_WAIT = 30.0
"""Seconds until the next owner; a lock that is only freed by its age would take 120."""


def test_killed_owners_leave_one_owner_and_do_not_block_others(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = [warm_python(), lock_program.__file__, str(folder), str(count("locks")), str(SEED)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    slow = found["longest_wait"] > MAX_WAIT
    record("locks", "killed owners", found["killed_owners"], len(found["doubles"]) + slow, time.monotonic() - started)
    assert found["doubles"] == [], f"two owners at once, seed {SEED}"
    assert not slow, f"there was no owner for {found['longest_wait']} s, seed {SEED}"
    assert found["killed_owners"] >= count("locks") and found["killed_others"] > 0 and found["owners"] > 0
    assert found["exit_codes"] == [0], "a process that was not killed failed"

    lock = RunLock(folder)
    assert lock.acquire(wait=False) and os.listdir(folder) == ["lock"], "killed processes left files"
    lock.release()
    assert os.listdir(folder) == []


def test_two_owners_at_once_are_found() -> None:
    """Test the storm's check on a made-up history: 2 enters while 1 is inside, 4 after 3 has been killed."""
    history = [("in", 1, 1.0), ("in", 2, 2.0), ("out", 1, 3.0), ("out", 2, 4.0)]
    assert lock_program.doubles(history) == ["2 at 2.000 s while 1 was the owner"]
    assert lock_program.doubles([("in", 3, 5.0), ("kill", 3, 6.0), ("in", 4, 6.1), ("out", 4, 7.0)]) == []
    assert lock_program.doubles([("kill", 3, 5.0), ("in", 3, 5.001), ("in", 4, 6.0)]) == []
