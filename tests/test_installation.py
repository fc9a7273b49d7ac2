"""What `pip install` gives: with and without a compiler, and with NumPy and safetensors alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.places import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "model-v1.safetensors"
MOST_SECONDS = 1.0
"""From the start of Python to the first prediction. It takes under 0.3 s where nothing else runs."""


def built(folder: Path, compiler: str) -> Path:
    """A wheel of this source; takes about a minute with a compiler."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    environment = {**os.environ, "CXX": compiler, "SKBUILD_BUILD_DIR": str(folder / "build")}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("native"), "c++")


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("pure"), "/bin/false")


@pytest.mark.slow
def test_a_wheel_with_and_without_a_compiler(native_wheel: Path, pure_wheel: Path) -> None:
    def modules(wheel: Path) -> set[str]:
        names = zipfile.ZipFile(wheel).namelist()
        return {name.rpartition("/")[0] for name in names if "_native" in name and name.endswith(".so")}

    assert modules(native_wheel) == {"bayesbinn/kernels", "bayesbinn/runtime"}
    assert modules(pure_wheel) == set()


# ---- the runtime alone -------------------------------------------------------------------------------


class Installation:
    """A virtual environment with a wheel and what it needs, nothing else."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder

    def install(self, wheel: Path) -> None:
        self.run("pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel)

    def run(self, program: str, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        # Neither this environment nor the source folder may help.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.folder / "bin" / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
        )
        assert done.returncode == code, done.stderr
        return done


def installed(folder: Path, wheel: Path) -> Installation:
    installation = Installation(folder)
    installation.install(wheel)
    with np.load(FIXTURE.with_suffix(".npz")) as arrays:
        np.save(folder / "inputs.npy", arrays["inputs"])
    return installation


@pytest.fixture(scope="module")
def alone(native_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return installed(tmp_path_factory.mktemp("alone"), native_wheel)


@pytest.mark.slow
def test_the_runtime_needs_numpy_and_safetensors_alone(alone: Installation) -> None:
    listed = alone.run("pip", "list", "--format=freeze", "--disable-pip-version-check").stdout
    names = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert names <= {"bayesbinn", "numpy", "safetensors", "pip", "setuptools", "wheel"}, names
    rows = alone.run("bayesbinn", "run", FIXTURE, "inputs.npy").stdout.splitlines()
    assert rows[0].startswith("input,") and len(rows) == 1 + len(np.load(alone.folder / "inputs.npy"))
    assert "it fits" in alone.run("bayesbinn", "inspect", FIXTURE).stdout
    alone.run("bayesbinn", "export", FIXTURE, "--to", "c", "--out", "c")
    assert (alone.folder / "c" / "model.c").exists()
    program = (
        "import numpy as np, bayesbinn.runtime as r\n"
        f"a = np.load({str(FIXTURE.with_suffix('.npz'))!r})\n"
        f"m = r.load({str(FIXTURE)!r})\n"
        "assert m.backend != 'reference', m.backend\n"
        "np.testing.assert_allclose(m.outputs(a['inputs']), a['exact'], rtol=1e-4, atol=1e-4)\n"
    )
    alone.run("python", "-c", program)


@pytest.mark.slow
def test_commands_that_need_more_say_what_to_install(alone: Installation) -> None:
    for arguments, needed in (
        (["train", "digits"], "'.[train]'"),
        (["--help"], "'.[train]'"),
        (["export", FIXTURE, "--to", "onnx"], "'.[onnx]'"),
    ):
        done = alone.run("bayesbinn", *arguments, code=2)
        assert needed in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.slow
def test_the_first_prediction_comes_soon(alone: Installation) -> None:
    program = (
        f"import numpy as n, bayesbinn.runtime as r; r.load({str(FIXTURE)!r}, 'int8').predict(n.load('inputs.npy'))"
    )
    timings = []
    for _ in range(6):
        start = time.perf_counter()
        alone.run("python", "-c", program)
        timings.append(time.perf_counter() - start)
    seconds = statistics.median(timings[1:])  # the first one compiles the modules
    print(f"from the start of Python to the first prediction: {1e3 * seconds:.0f} ms")
    assert seconds < MOST_SECONDS, timings


@pytest.mark.slow
def test_without_kernels_the_runtime_computes_with_numpy(alone: Installation, pure_wheel: Path, tmp_path: Path) -> None:
    pure = installed(tmp_path / "pure", pure_wheel)
    program = f"import bayesbinn.runtime as r; print(r.load({str(FIXTURE)!r}).backend)"
    assert pure.run("python", "-c", program).stdout == "reference\n"
    assert alone.run("python", "-c", program).stdout != "reference\n"
    for each in (pure, alone):
        each.run("bayesbinn", "run", FIXTURE, "inputs.npy", "--out", "p.json")
    slow, fast = (json.loads((each.folder / "p.json").read_text()) for each in (pure, alone))
    assert len(slow) == len(fast) > 0
    for one, other in zip(slow, fast, strict=True):
        assert one.pop("class") == other.pop("class")
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_without_kernels_info_says_why() -> None:
    environment = {**os.environ, "BAYESBINN_KERNELS": "torch"}
    done = subprocess.run(
        [sys.executable, "-m", "bayesbinn", "info"], env=environment, capture_output=True, text=True, check=True
    )
    assert "torch reference" in done.stdout
    assert "BAYESBINN_KERNELS=torch" in done.stdout
