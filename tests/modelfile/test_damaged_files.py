"""Damaged and forged model files (see fuzz_model_files.py): some in every run, 20,000 under AddressSanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayesbinn.errors import InvalidFile
from bayesbinn.modelfile.container import check_model
from tests.helpers.random_graphs import GraphBuilder
from tests.storms.cases import SEED, count, record
from tests.tools import fuzz_model_files

pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")

PROGRAM = Path(fuzz_model_files.__file__)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a separate process, because its memory is limited."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def totals(text: str) -> list[int]:
    """Totals of the columns: original refused; recomputed refused, ran, loaded; errors of both."""
    (line,) = re.findall(r"^\| \*\*all\*\* \| (.*) \|$", text, re.MULTILINE)
    return [int(number) for number in line.split(" | ")]


def test_damaged_and_forged_files_are_refused_or_run() -> None:
    half, started = count("model files") // 2, time.monotonic()
    done = run("--count", str(2 * half), "--seed", str(1 + SEED))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    refused, also_refused, ran, loaded, *errors = totals(done.stdout)
    record("model files", "forged files", 2 * half, sum(errors), time.monotonic() - started)
    assert done.returncode == 0, done.stdout + done.stderr
    assert refused == half and also_refused + ran + loaded == half and errors == [0, 0]
    assert ran >= half // 15, "the changes must also reach the kernels"


def test_what_is_believed_without_a_checksum_is_found() -> None:
    """The program notices a reader that skips a check."""
    program = (
        "import sys, bayesbinn.modelfile.container as f; f._check_digits = lambda *_: None\n"
        f"sys.argv = [{str(PROGRAM)!r}, '--count', '60']\n"
        "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and totals(done.stdout)[4] > 0
    assert "a file that does not match its checksum is refused" in done.stdout


def test_memory_allocated_on_a_claim_is_noticed() -> None:
    """Even if it is never written to."""
    program = (
        "import sys, numpy, bayesbinn.modelfile.container as f; true = f._check_version\n"
        "f._check_version = lambda version: (numpy.empty(1 << 28), true(version))\n"
        f"sys.argv = [{str(PROGRAM)!r}, '--count', '2', '--first', '100']\n"
        "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Memory" in done.stdout + done.stderr


def test_changed_files_differ_and_can_be_made_again() -> None:
    for original in fuzz_model_files.originals():
        for index in range(20):
            name, content = fuzz_model_files.forged(np.random.default_rng(index), original)
            assert content != original
            assert (name, content) == fuzz_model_files.forged(np.random.default_rng(index), original)


@pytest.mark.parametrize("op", ["max_pool2d", "adaptive_avg_pool2d"])
def test_a_small_file_cannot_claim_millions_of_windows(op: str) -> None:
    """Found by this program: each window took a few hundred bytes as soon as the file was loaded."""
    g = GraphBuilder((1, 1 << 20, 1), 1, 0)
    if op == "max_pool2d":
        g.add(op, kernel=(1, 1), stride=(1, 1), padding=(0, 0), ceil=False, dilation=(1, 1))
    else:
        g.add(op, size=(1 << 20, 1))
    with pytest.raises(InvalidFile, match="65536 windows along an axis are allowed, not 1048576"):
        check_model(g.model())


@pytest.mark.slow
def test_20_000_files_under_address_sanitizer() -> None:
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no C++ compiler")
    done = subprocess.run(
        ["make", "fuzz", f"BIN={Path(sys.executable).parent}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROGRAM.parents[2],
    )
    if "cannot find" in done.stderr and "asan" in done.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert done.returncode == 0, done.stdout + done.stderr
    refused, also_refused, ran, loaded, *errors = totals(done.stdout)
    assert refused == 10_000 and also_refused + ran + loaded == 10_000 and errors == [0, 0]
