"""With a working compiler the kernels are built; without one the package still installs, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["c++", "/bin/false"])
def test_a_wheel_with_and_without_a_compiler(tmp_path: Path, compiler: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    environment = {**os.environ, "CXX": compiler, "SKBUILD_BUILD_DIR": str(tmp_path / "build")}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    native = [name for name in zipfile.ZipFile(wheel).namelist() if "_native" in name and name.endswith(".so")]
    assert bool(native) == (compiler == "c++")


def test_without_kernels_info_says_why() -> None:
    environment = {**os.environ, "BAYESBINN_KERNELS": "torch"}
    done = subprocess.run(
        [sys.executable, "-m", "bayesbinn", "info"], env=environment, capture_output=True, text=True, check=True
    )
    assert "torch twin" in done.stdout
    assert "BAYESBINN_KERNELS=torch" in done.stdout
