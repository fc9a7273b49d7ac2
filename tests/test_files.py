"""Atomic writes: full disks, links, devices, kills, two writers at once."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import bayesbinn as bb
from bayesbinn.errors import InvalidFile
from bayesbinn.export import export_c, export_onnx
from bayesbinn.files import clear_leftovers, make_folder, replacing, write_together, write_whole
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.train.checkpoints import write_checkpoint
from tests.helpers.places import FIXTURES
from tests.helpers.processes import warm_python

MODEL = FIXTURES / "model-v1.safetensors"


def model() -> ModelFile:
    return model_file.read(MODEL)


def write_by_block(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_bytes(b"x" * 20_000)


WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: write_whole(path, b"x" * 20_000),
    "block": write_by_block,
    "model file": lambda path: model_file.write(path, model()),
    "onnx": lambda path: export_onnx(model(), path),
    "c": lambda path: export_c(model(), path.with_suffix("")),
    "posterior": lambda path: bb.BernoulliPosterior({"w": torch.ones(5000)}).save(path),
    "checkpoint": lambda path: write_checkpoint(path, {"w": torch.ones(5000)}),
}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@contextmanager
def small_files_only(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@every_writer
def test_a_failed_write_leaves_the_old_file_and_nothing_else(write: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "file.c"
    path.write_bytes(b"old")
    with small_files_only(100), pytest.raises(InvalidFile) as failed:
        write(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file.c"]
    text = str(failed.value)
    assert text.endswith(("could not be written (File too large)", "(File too large); the previous one is untouched"))
    assert "\n" not in text and str(tmp_path) in text


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@every_writer
def test_a_full_disk_is_named(write: Callable[[Path], object], tiny_disk: Path) -> None:
    path = tiny_disk / "file.c"
    path.write_bytes(b"old")
    (tiny_disk / "filler").write_bytes(b"x" * 12_000)
    with pytest.raises(InvalidFile, match=r"could not be written \(No space left on device\)"):
        write(path)
    assert path.read_bytes() == b"old" and sorted(os.listdir(tiny_disk)) == ["file.c", "filler"]


@every_writer
def test_the_mode_is_the_one_that_the_umask_gives(write: Callable[[Path], object], tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            write(tmp_path / "file.c")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file.c").stat().st_mode) == mode


@every_writer
def test_only_files_are_replaced(write: Callable[[Path], object], tmp_path: Path) -> None:
    place = tmp_path / "place.c"
    place.mkdir()
    with pytest.raises(InvalidFile, match=r"place\.c: this is a folder; name a file in it"):
        write(place)
    place.rmdir()
    os.mkfifo(place)
    with pytest.raises(InvalidFile, match=r"place\.c: this is a pipe; name a regular file"):
        write(place)
    assert stat.S_ISFIFO(place.stat().st_mode)
    place.unlink()
    place.symlink_to("/dev/null")
    with pytest.raises(InvalidFile, match=r"place\.c: this is a device; name a regular file"):
        write(place)
    assert stat.S_ISCHR(place.stat().st_mode) and os.listdir(tmp_path) == ["place.c"]


@every_writer
def test_links_are_followed(write: Callable[[Path], object], tmp_path: Path) -> None:
    """As `open` does, and as users expect who keep a link to the newest file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link, target = tmp_path / "newest.c", elsewhere / "v3.c"
    link.symlink_to("elsewhere/v3.c")
    for _ in ("there is no target yet", "there is one"):
        write(link)
        assert link.is_symlink() and target.is_file() and not target.is_symlink()
        assert target.stat().st_size > 100 and os.listdir(elsewhere) == ["v3.c"]


def test_a_link_to_itself_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidFile, match=r"loop: could not be written \(Too many levels of symbolic links\)"):
        write_whole(tmp_path / "loop", b"new")
    assert (tmp_path / "loop").is_symlink()


@every_writer
def test_links_under_guessable_names_are_not_followed(write: Callable[[Path], object], tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file.c"
    victim.write_bytes(b"precious")
    for name in ("file.c.partial", f"file.c.{os.getpid()}.partial", "file.c.00000000.partial"):
        (tmp_path / name).symlink_to(victim)
    write(path)
    assert victim.read_bytes() == b"precious" and path.stat().st_size > 100


def test_a_link_that_replaces_the_unfinished_file_is_rejected(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")

    def swap() -> None:
        with replacing(tmp_path / "file") as unfinished:
            unfinished.unlink()
            unfinished.symlink_to(victim)

    with pytest.raises(InvalidFile, match="could not be written"):
        swap()
    assert os.listdir(tmp_path) == ["victim"] and victim.read_bytes() == b"precious"


def test_names_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    for name in ("a" * 255, "ä" * 127):
        write_whole(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"


@pytest.mark.parametrize("write", [WRITERS[name] for name in ("bytes", "block", "model file", "onnx", "posterior")])
def test_a_name_that_is_too_long_gets_one_line(write: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"could not be written \(File name too long\)$"):
        write(tmp_path / ("a" * 260 + ".csv"))
    assert not os.listdir(tmp_path)


def test_an_error_in_the_block_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def fail() -> None:
        with replacing(tmp_path / "file") as unfinished:
            unfinished.write_bytes(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "file").read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_the_cause_is_found_behind_a_library_error(tmp_path: Path) -> None:
    """torch's file writer raises `unexpected pos` while it handles the system's error."""

    def save() -> None:
        with replacing(tmp_path / "file") as unfinished, unfinished.open("wb", buffering=0) as file:
            torch.save({"w": torch.ones(5000)}, file)

    with small_files_only(5000), pytest.raises(InvalidFile, match=r"could not be written \(File too large\)$"):
        save()
    assert os.listdir(tmp_path) == []


def test_files_that_belong_together_change_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a.h", tmp_path / "a.c"
    write_together([(first, b"1"), (second, b"1")])
    with small_files_only(100), pytest.raises(InvalidFile, match=r"a\.c: could not be written"):
        write_together([(first, b"2"), (second, b"2" * 200)])
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"1") and len(os.listdir(tmp_path)) == 2


def test_a_folder_that_cannot_be_created_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFile, match=r"file/x: cannot create the folder \(Not a directory\)"):
        make_folder(tmp_path / "file" / "x")


# ---- kills and other writers -----------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from bayesbinn.files import replacing
with replacing(Path(sys.argv[1])) as unfinished:
    unfinished.write_bytes(b"half")
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_the_next_writer_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    assert subprocess.run([warm_python(), "-c", KILLED, str(path), "kill"], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old" and len(list(tmp_path.glob("*.partial"))) == 1
    write_whole(tmp_path / "other", b"new")
    assert len(list(tmp_path.glob("*.partial"))) == 1, "it belongs to the other file"
    write_whole(path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_the_file_of_a_living_writer_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    command = [warm_python(), "-c", KILLED, str(path), "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        writer.stdout.readline()
        clear_leftovers(tmp_path)
        write_whole(path, b"new")
        assert len(list(tmp_path.glob("*.partial"))) == 1
        writer.stdin.close()
        assert writer.wait(30) == 0
    assert path.read_bytes() == b"half" and os.listdir(tmp_path) == ["file"], "the last one wins"


def test_the_owner_of_a_folder_clears_leftovers(tmp_path: Path) -> None:
    for name in ("checkpoint.pt.123.partial", "model.safetensors.partial", ".tmpAb12Cd", "config.toml", ".tmpfile"):
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".tmpfile", "config.toml"]


WRITER = """
import sys
from pathlib import Path
from bayesbinn import format as model_file
from bayesbinn.export import export_c
from dataclasses import replace
model, path = model_file.read(sys.argv[1]), Path(sys.argv[2])
classes = tuple(sys.argv[3] * 2000 + str(i) for i in range(len(model.graph.classes)))
model = model_file.ModelFile(replace(model.graph, classes=classes), model.tensors)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[4])):
    model_file.write(path, model)
    export_c(model, path.with_suffix(""), name="net")
"""


def test_two_writers_never_damage_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    expected = set()
    commands = [[warm_python(), "-c", WRITER, str(MODEL), str(path), letter] for letter in "ab"]
    for command in commands:
        assert subprocess.run([*command, "1"], input=b"\n", check=True, capture_output=True).stdout
        expected.add((path.read_bytes(), *_c_files(path)))
    assert len(expected) == 2
    started = [subprocess.Popen([*each, "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for each in commands]
    for writer in started:
        assert writer.stdout is not None and writer.stdin is not None
        writer.stdout.readline()
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    whole, reads = {each[0] for each in expected}, 0
    deadline = time.monotonic() + 60
    while any(writer.poll() is None for writer in started) and time.monotonic() < deadline:
        assert hashlib.sha256(path.read_bytes()).digest() in {hashlib.sha256(each).digest() for each in whole}
        model_file.read(path)
        reads += 1
    for writer in started:
        with writer:
            assert writer.wait(30) == 0, "a writer failed"
    assert reads > 10
    assert _c_files(path) in {each[1:] for each in expected}, "header and source belong to the same model"
    assert len(os.listdir(tmp_path)) == 3


def _c_files(path: Path) -> tuple[bytes, bytes]:
    return path.with_suffix(".h").read_bytes(), path.with_suffix(".c").read_bytes()
