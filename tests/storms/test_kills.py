"""Runs of every kind, killed at random times and resumed: they end as if nothing had happened, bit for bit."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.storms.cases import LONG, count, run_cases
from tests.storms.runs import KINDS, Runs

CHOSEN = list(KINDS)[: count("kills")]
KILLS_OF_A_RUN = 3 if LONG else 1


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_killed_run_ends_like_an_undisturbed_one(kind: str, runs: Runs, tmp_path: Path) -> None:
    seconds = runs.undisturbed(kind).seconds

    def one(case: int, random: Random) -> int:
        folder, kills = tmp_path / f"run {case}", 0
        for _ in range(KILLS_OF_A_RUN):
            process = runs.commands.start(*runs.training(kind, folder))
            time.sleep(random.uniform(0, 0.9 * seconds))
            runs.commands.send(process, signal.SIGKILL)
            code = runs.commands.wait(process)
            assert code in (0, -signal.SIGKILL), runs.commands.errors
            kills += code != 0
        runs.finish(kind, folder)
        return kills

    run_cases("kills", "kills", one, len(CHOSEN), CHOSEN.index(kind))
