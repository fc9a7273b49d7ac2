"""Processes that share their imports behave as those of an interpreter do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import warm_python


def run(python: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *arguments], input="in\n", capture_output=True, text=True, check=False, cwd=folder, timeout=60
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv, sys.path[0], sys.stdin.read(), __name__)",
        "import os, sys; print(os.getcwd(), os.environ['PATH']); sys.exit(3)",
        "import sys; sys.exit('no')",
        "1 / 0",
        "import os; os.kill(os.getpid(), 15)",
        "import atexit, threading; atexit.register(print, 2); threading.Timer(0.1, print, [1]).start()",
        "raise KeyboardInterrupt",
    ],
)
def test_they_end_and_print_as_an_interpreter_does(code: str, tmp_path: Path) -> None:
    words = ("-c", code, "a", "b c")
    assert run(warm_python(), *words, folder=tmp_path) == run(sys.executable, *words, folder=tmp_path)


def test_a_file_has_its_own_folder_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("number = 7")
    path = tmp_path / "program.py"
    path.write_text("import sys, other; print(other.number, sys.argv, __name__, __file__)")
    words = (str(path), "a")
    assert run(warm_python(), *words, folder=tmp_path) == run(sys.executable, *words, folder=tmp_path)


def test_variables_that_were_read_before_the_fork_are_refused() -> None:
    words, environment = [warm_python(), "-c", "print(1)"], {**os.environ, "BAYESBINN_ISA": "other"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and "BAYESBINN_ISA was read before the fork" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_the_process_itself(number: signal.Signals) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([warm_python(), "-c", code], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        process = int(started.stdout.readline())
        started.send_signal(number)
        assert started.wait(30) == -number
    deadline = time.monotonic() + 30
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline, "the process still runs"
        time.sleep(0.01)
