"""A run's folder can be written to only while its lock is held."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from bayesbinn.errors import InvalidUse
from bayesbinn.train.folder import RunFolder, owned
from bayesbinn.train.lock import RunLock, owner_of
from bayesbinn.train.progress import RunStopped


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_there_is_no_folder_without_its_lock(tmp_path: Path) -> None:
    with pytest.raises(InvalidUse, match="its lock is not held"):
        RunFolder(RunLock(tmp_path))
    assert names(tmp_path) == []


def test_nothing_is_written_after_the_lock_is_released(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path) as folder:
        assert names(tmp_path) == ["lock"]
        folder.write("a", b"1")
    for write in (lambda: folder.write("a", b"2"), lambda: folder.keep("b", b"2"), lambda: folder.writable("c")):
        with pytest.raises(InvalidUse, match="its lock is not held"):
            write()
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"1"


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path) as folder:
        refused = pytest.raises(InvalidUse, match="is writing there; wait for it, or choose another --out")
        with refused, RunFolder.locked(tmp_path):
            pass
        with owned(folder) as same:
            assert same is folder
        folder.write("a", b"1")
    with owned(tmp_path) as other:
        other.write("a", b"2")
    assert names(tmp_path) == ["a"]


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder.locked(tmp_path):
        1 / 0  # noqa: B018
    assert owner_of(tmp_path) is None


def test_a_new_folder_is_removed_unless_something_is_written(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path / "runs" / "empty") as folder:
        assert folder.path.is_dir()
    assert names(tmp_path) == []
    with RunFolder.locked(tmp_path / "runs" / "one") as folder:
        folder.write("a", b"")
    assert names(tmp_path / "runs") == ["one"]


def test_keep_does_not_overwrite_a_file(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path) as folder:
        folder.keep("config.toml", b"first")
        folder.keep("config.toml", b"second")
    assert (tmp_path / "config.toml").read_bytes() == b"first"


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.pt.0123456789abcdef.partial").write_bytes(b"half")
    with RunFolder.locked(tmp_path):
        assert names(tmp_path) == ["lock"]


def test_an_impatient_caller_does_not_wait_for_a_silent_owner_elsewhere(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path):
        owner = json.loads((tmp_path / "lock").read_text())
    (tmp_path / "lock").write_text(json.dumps(owner | {"machine": "elsewhere"}))
    started = time.monotonic()
    refused = pytest.raises(InvalidUse, match="a process on another machine was writing there")
    with refused, RunFolder.locked(tmp_path, patient=False):
        pass
    assert time.monotonic() - started < 60, "it would wait for two minutes"
    assert names(tmp_path) == ["lock"], "it belongs to the other process"


def test_waiting_ends_with_the_writer_or_on_request(tmp_path: Path) -> None:
    with RunFolder.locked(tmp_path) as first:
        stopped = pytest.raises(RunStopped, match="stopped while another process was writing")
        with stopped, RunFolder.awaited(tmp_path, should_stop=lambda: True):
            pass
        waiting = threading.Thread(target=_write_when_free, args=(tmp_path,))
        waiting.start()
        first.write("a", b"first")
    waiting.join(30)
    assert (tmp_path / "a").read_bytes() == b"second"


def _write_when_free(path: Path) -> None:
    with RunFolder.awaited(path, should_stop=lambda: False) as folder:
        folder.write("a", b"second")
