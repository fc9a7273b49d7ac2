"""Ctrl-C and SIGTERM at random times: the right exit code, one line, no traceback, and the same command resumes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from tests.cli.test_app import PAUSED_START
from tests.storms.cases import run_cases
from tests.storms.runs import KINDS, Runs

LINES = re.compile(r"(stopped (in|after|before) .*; the same command resumes.*|interrupted|terminated)")


def test_a_signal_at_any_time_prints_one_line_and_the_run_resumes(runs: Runs, tmp_path: Path) -> None:
    def one(case: int, random: Random) -> int:
        kind = random.choice(list(KINDS)[:2] if case < 6 else list(KINDS))
        whole, number = runs.undisturbed(kind), (signal.SIGINT, signal.SIGTERM)[case % 4 == 3]
        folder = tmp_path / f"run {case}"
        process = runs.commands.start(*runs.training(kind, folder))
        runs.commands.wait_for_its_start()
        time.sleep(random.choice((0.0, 0.2, 0.9, 0.9)) * random.random() * whole.seconds)
        runs.commands.send(process, number)
        code, said = runs.commands.wait(process), whole.news(runs.commands.errors)
        if code == -signal.SIGTERM:  # before and after training; a shell shows it as 143
            assert number == signal.SIGTERM and said == [], said
        elif code:
            assert code == 128 + number and len(said) == 1 and LINES.fullmatch(said[0]), f"exit {code}: {said}"
            assert not (folder / "lock").exists() and not list(folder.glob("*.partial"))
        else:
            assert said == [], said
        runs.finish(kind, folder)
        return int(code != 0)

    run_cases("signals", "signals", one)


def test_ctrl_c_at_any_time_during_startup_prints_one_line() -> None:
    def one(case: int, random: Random) -> int:
        moment = random.randrange(1, 1200)  # the import during which it comes
        done = subprocess.run(
            [sys.executable, "-c", PAUSED_START, str(moment)], capture_output=True, text=True, check=False, timeout=300
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n"), moment
        return 1

    run_cases("start-up", "Ctrl-C while importing", one)
