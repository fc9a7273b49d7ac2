"""The kernels and whole networks under sanitizers, on awkward sizes and special values."""

from __future__ import annotations

import os
import shutil
import subprocess
from platform import machine

import pytest

from tests.helpers.places import ROOT

SCRIPT = ROOT / "csrc" / "tests" / "sanitize.sh"


@pytest.mark.parametrize("part", ["training", pytest.param("inference", marks=pytest.mark.slow)])
def test_the_kernels_of_one_instruction_set_are_clean(part: str) -> None:
    isa = "neon" if machine() in ("aarch64", "arm64") else "portable"
    check(part, ISAS=isa, OPTIMIZE="-O0", LARGEST="60001")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["training", "inference", "threads"])
def test_the_kernels_are_clean(part: str) -> None:
    check(part)


def check(part: str, **environment: str) -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler!r}")
    done = subprocess.run(["sh", str(SCRIPT), part], capture_output=True, text=True, env={**os.environ, **environment})
    if "cannot find" in done.stderr and ("asan" in done.stderr or "tsan" in done.stderr):
        pytest.skip("this compiler has no sanitizer libraries")
    # Some kernels place programs where this sanitizer cannot work; nothing was tested then.
    if "ThreadSanitizer: unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run on this system")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run(["sh", str(SCRIPT), "everything"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "training, inference or threads" in done.stderr
