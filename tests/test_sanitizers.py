"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on awkward sizes and special values."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "csrc" / "sanitize.sh"


def test_the_kernels_are_clean() -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler!r}")
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr and "asan" in done.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout
