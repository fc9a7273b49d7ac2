"""Damaged data files of every kind: each loads or is refused with one line, and none takes much memory.

How many: tests/storms/cases.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.storms.cases import LONG, SEED, count, record
from tests.tools import fuzz_data_files
from tests.tools.fuzz_data_files import FILES

COUNT = count("data files")
MAX_BYTES = 10**9


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process for all kinds, so that its memory can be measured and a crash is noticed."""
    folder = tmp_path_factory.mktemp("storm")
    program, started = Path(fuzz_data_files.__file__), time.monotonic()
    done = subprocess.run(
        [sys.executable, str(program), str(COUNT), str(1 + SEED), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=7200 if LONG else 300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    wrong = sum(len(found["other"]) for found in answer.values())
    record("data files", "damaged files", COUNT * len(answer), wrong, time.monotonic() - started)
    return answer


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_loads_or_is_refused_with_one_line(results: dict[str, Any], kind: str) -> None:
    found = results[kind]
    assert found["other"] == [], f"seed {1 + SEED}"
    assert found["loaded"] + found["refused"] == found["tried"] >= 2 * (COUNT + 1)
    assert found["loaded"] >= 2 and found["refused"] > 0, "the whole file loads, and the damage is damage"
    assert found["bytes"] < MAX_BYTES
