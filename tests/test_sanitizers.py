"""The kernels and whole networks under sanitizers, on awkward sizes and special values."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.helpers.places import ROOT

SCRIPT = ROOT / "csrc" / "tests" / "sanitize.sh"


@pytest.mark.parametrize("part", ["training", "inference", pytest.param("threads", marks=pytest.mark.slow)])
def test_the_kernels_are_clean(part: str) -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler!r}")
    done = subprocess.run(["sh", str(SCRIPT), part], capture_output=True, text=True, check=False)
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
