"""Disks of many sizes that fill up: one line that names the cause, old files unchanged, nothing left over."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.storms.cases import run_cases
from tests.storms.runs import Runs, assert_same_content, content_of

CAUSE = re.compile(r"error: .+ could not be written \((File too large|No space left on device)\)[^\n]*")
PAGE = 4096
LEAST = 1024
"""Bytes that every file may have, including the log of the command."""
KIND = "table"


class Works:
    """Commands that write files, and what they write when there is room."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs, self.folder = runs, folder
        self.tables = runs.folder
        assert runs.commands.run(*runs.training(KIND, folder / "run")) == 0, runs.commands.errors
        assert runs.commands.run("pack", str(folder / "run"), "--out", str(folder / "m.safetensors")) == 0
        self.whole = {name: self._whole(name) for name in self.commands(folder)}

    def commands(self, out: Path) -> dict[str, list[str]]:
        run, model, table = str(self.folder / "run"), str(self.folder / "m.safetensors"), self.tables / "classes.csv"
        return {
            "pack": ["pack", run, "--samples", "5", "--out", str(out / "packed.safetensors")],
            "onnx": ["export", model, "--to", "onnx", "--out", str(out / "net.onnx")],
            "c": ["export", model, "--to", "c", "--name", "net", "--out", str(out)],
            "csv": ["predict", run, str(table), "--out", str(out / "predictions.csv")],
            "json": ["predict", run, str(table), "--out", str(out / "predictions.json")],
        }

    def _whole(self, name: str) -> dict[str, bytes]:
        out = self.folder / f"whole {name}"
        out.mkdir()
        assert self.runs.commands.run(*self.commands(out)[name]) == 0, self.runs.commands.errors
        return files(out)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def works(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Works:
    return Works(runs, tmp_path_factory.mktemp("works"))


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A disk of 4 MiB, or None without permission to mount one; then a limit on file size replaces it."""
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, room: int) -> Path:
    """Leave about `room` bytes, in whole pages."""
    filler, state = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(bytes(max(0, state.f_bavail * state.f_bsize - max(PAGE, room // PAGE * PAGE))))
    return filler


def test_a_disk_of_any_size_that_fills_up(works: Works, small_disk: Path | None, tmp_path: Path) -> None:
    def one(case: int, random: Random) -> int:
        names = [*works.whole, "train", "resume"]
        name, on_disk = names[case % len(names)], small_disk is not None and random.random() < 0.5
        out = ((small_disk if on_disk else None) or tmp_path) / f"out {case}"
        try:
            if name in works.whole:
                write_once(works, name, out, random, on_disk)
            else:
                train_once(works, out, random, on_disk, resumes=name == "resume")
        finally:
            shutil.rmtree(out, ignore_errors=True)
            (out.parent / "filler").unlink(missing_ok=True)
        return 1

    run_cases("full disk", "disks", one)


def run_in(works: Works, command: list[str], out: Path, room: int, on_disk: bool) -> int:
    """The exit code of a command with `room` bytes; if it fails, it says why in one line."""
    if on_disk:
        filler = fill(out.parent, room)
        code = works.runs.commands.run(*command)
        filler.unlink()
    else:
        code = works.runs.commands.run(*command, limit=max(LEAST, room))
    if code:
        said = [line for line in works.runs.commands.errors if line.startswith("error")]
        assert code == 2 and len(said) == 1 and CAUSE.fullmatch(said[0]), (code, works.runs.commands.errors)
        assert said[0] == works.runs.commands.errors[-1] and "Traceback" not in "".join(works.runs.commands.errors)
    return code


def write_once(works: Works, name: str, out: Path, random: Random, on_disk: bool) -> None:
    whole = works.whole[name]
    old = {file: b"old " * random.choice((1, 300)) for file in whole} if random.random() < 0.7 else {}
    out.mkdir()
    for file, content in old.items():
        (out / file).write_bytes(content)
    room = int(random.uniform(0, 1.2) * max(map(len, whole.values())))
    code = run_in(works, works.commands(out)[name], out, room, on_disk)
    assert files(out) == (old if code else whole), f"{name}: {sorted(files(out))}, exit code {code}"


def train_once(works: Works, out: Path, random: Random, on_disk: bool, resumes: bool) -> None:
    command, expected = works.runs.training(KIND, out), works.runs.undisturbed(KIND).content
    if resumes:
        assert works.runs.commands.run(*command, "--stop-after", str(random.randint(1, 5))) == 0
    largest = max(path.stat().st_size for path in (works.folder / "run").iterdir())
    room = int(random.uniform(0, 1.2 if not on_disk else 3) * largest)
    code = run_in(works, command, out, room, on_disk)
    left = sorted(files(out)) if out.exists() else []
    assert not [file for file in left if file.endswith(".partial") or file.startswith(("lock", ".tmp"))], left
    if code:
        assert works.runs.commands.run(*command) == 0, works.runs.commands.errors
    assert_same_content(content_of(out), expected)
