"""The lock of a run's folder, with processes that are killed at every step."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from bayesbinn.train.lock import RunLock, owner_of
from tests.helpers.processes import warm_python

# A forked child takes over a dead owner's lock and is killed before its n-th operation on a file of the folder.
KILLED_AT_EVERY_STEP = """
import os, signal, sys
from pathlib import Path
from bayesbinn.train.lock import RunLock

def child(work):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    work()
    os._exit(0)

def killed(folder, step, work):
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event in ("open", "os.link", "os.rename", "os.remove") and str(folder) in str(arguments):
            count += 1
            if count > step:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    work()

def leave(folder):
    RunLock(folder).acquire()

def leave_and_release(folder):
    lock = RunLock(folder)
    lock.acquire()
    lock.release()

place, has_owner, releases = Path(sys.argv[1]), sys.argv[2] == "dead", sys.argv[3] == "release"
step = 0
while True:
    folder = place / str(step)
    folder.mkdir()
    if has_owner:
        child(lambda: leave(folder))
    code = child(lambda: killed(folder, step, lambda: (leave_and_release if releases else leave)(folder)))
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    step += 1
print(step)
"""


@pytest.mark.parametrize("end", ["keep", "release"])
@pytest.mark.parametrize("before", ["dead", "nobody"])
def test_a_process_killed_at_any_step_neither_blocks_others_nor_leaves_files(
    tmp_path: Path, before: str, end: str
) -> None:
    command = [warm_python(), "-c", KILLED_AT_EVERY_STEP, str(tmp_path), before, end]
    steps = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert steps >= (6 if before == "dead" else 3), "the child was killed at too few places"
    for step in range(steps + 1):
        lock = RunLock(tmp_path / str(step))
        started = time.monotonic()
        assert lock.acquire(wait=False), f"killed before step {step}: {os.listdir(tmp_path / str(step))}"
        assert time.monotonic() - started < 1
        assert os.listdir(lock.path.parent) == ["lock"], f"killed before step {step}"
        lock.check()
        lock.release()
        assert os.listdir(lock.path.parent) == []


def test_a_process_killed_before_it_wrote_a_byte_leaves_no_files(tmp_path: Path) -> None:
    """Its empty file still names it. The file of a live process, or one from another machine, stays."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from bayesbinn.train.lock import RunLock\n"
        "def killed(path, text):\n"
        "    path.open('w')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.write_text = killed\n"
        "RunLock(Path(sys.argv[1])).acquire()\n"
    )
    for _ in range(2):
        subprocess.run([warm_python(), "-c", program, str(tmp_path)], check=False)
    left = os.listdir(tmp_path)
    assert len(left) == 2 and all((tmp_path / name).stat().st_size == 0 for name in left)
    living = RunLock(tmp_path)._own_file
    elsewhere = tmp_path / f"lock.000000000000-{'-'.join(left[0].split('-')[1:])}"
    for path in (living, elsewhere):
        path.touch()
    lock = RunLock(tmp_path)
    assert lock.acquire(wait=False)
    assert sorted(os.listdir(tmp_path)) == sorted(["lock", living.name, elsewhere.name])
    lock.release()


def test_waiting_for_a_takeover_by_another_machine_is_reported(tmp_path: Path) -> None:
    """If a machine has lost power, only a timeout shows that its process is gone."""
    dead = RunLock(tmp_path)
    assert dead.acquire()
    owner = json.loads(dead.path.read_text())
    dead.release()
    for name, changes in (("lock", {"started": "0"}), ("lock.taking", {"machine": "elsewhere", "token": "x"})):
        (tmp_path / name).write_text(json.dumps({**owner, **changes}))
    lock = RunLock(tmp_path, stale=0.5)
    assert not lock.claim()
    assert "another process was taking it over from one that ended; this process continues after 0 s" in lock.waits_for
    said: list[str] = []
    assert lock.acquire(tell=said.append)
    assert len(said) == 1 and os.listdir(tmp_path) == ["lock"]
    lock.release()


def test_waiting_for_a_lock_without_a_process_is_reported(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    lock = RunLock(tmp_path, stale=0.5)
    assert not lock.claim() and "'lock' there does not name a process" in lock.waits_for
    assert lock.acquire()
    lock.release()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    lock = RunLock(tmp_path)
    assert lock.acquire() and os.listdir(tmp_path) == ["lock"]
    assert not RunLock(tmp_path).acquire(wait=False)
    found = owner_of(tmp_path)
    assert found is not None and found[0] == lock._owner
    lock.release()
    assert os.listdir(tmp_path) == []
