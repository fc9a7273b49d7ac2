"""What `pip install` gives: with and without a compiler, and with NumPy and safetensors alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bayesbinn
from tests.helpers.places import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "model-v1.safetensors"
MAX_SECONDS = 1.0
"""From the start of Python to the first prediction. It takes under 0.3 s where nothing else runs."""


def built(folder: Path, source: Path = ROOT, **environment: str) -> Path:
    """A wheel of this source; takes about a minute with a compiler."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    variables = {**os.environ, "SKBUILD_BUILD_DIR": str(folder / "build"), **environment}
    done = subprocess.run(command, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("native"), CXX="c++")


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("pure"), CXX="/bin/false")


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
    assert project["requires-python"] == ">=3.11"
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(project["classifiers"])


def check_contents(wheel: Path) -> None:
    """The package and its metadata, and nothing else."""
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    about = f"bayesbinn-{bayesbinn.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"bayesbinn", about}
    assert not [name for name in names if any(word in name for word in ("/test", "results/", "benchmark", ".cpp"))]
    source = ROOT / "src"
    ours = {path.relative_to(source).as_posix() for path in (source / "bayesbinn").rglob("*.*") if path.is_file()}
    tracked = {name for name in ours if not name.endswith((".so", ".pyc"))}
    assert tracked <= set(names), "presets, templates and markers are part of the package"
    assert f"{about}/licenses/LICENSE" in names
    assert f"Version: {bayesbinn.__version__}\n" in archive.read(f"{about}/METADATA").decode()


def test_a_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    check_contents(built(tmp_path, BAYESBINN_PURE_PYTHON="1"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of a clean clone, and the wheel of that sdist, as `make wheel` builds them."""
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
    builder = Installation(folder / "builder")
    builder.run("pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", "build")
    builder.run("python", "-m", "build", "-q", "--outdir", folder / "dist", folder / "clone")
    (source,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return source, wheel


@pytest.mark.slow
def test_an_sdist_is_enough_to_build_a_wheel(packages: tuple[Path, Path]) -> None:
    source, wheel = packages
    check_contents(wheel)
    with tarfile.open(source) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "csrc", "pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"} <= top
    assert not top & {"tests", "results", "benchmarks", "docs", "site", ".github", ".ci"}


@pytest.mark.slow
def test_the_wheel_runs_a_model_file_in_an_empty_environment(packages: tuple[Path, Path], tmp_path: Path) -> None:
    runtime = installed(tmp_path, packages[1])
    assert "kernels give the known outputs" in runtime.run("python", ROOT / "tests/tools/try_runtime.py").stdout
    assert len(runtime.run("bayesbinn", "run", FIXTURE, "inputs.npy").stdout.splitlines()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_both_train_and_run_in_an_empty_environment(packages: tuple[Path, Path], kind: str, tmp_path: Path) -> None:
    package = packages[("sdist", "wheel").index(kind)]
    training = Installation(tmp_path)
    training.install(f"{package}[train]")
    training.run("bayesbinn", "train", "digits", "--epochs", "1")
    assert "native" in training.run("bayesbinn", "info").stdout
    packed = "runs/digits-bayesbinn-0/model.safetensors"
    training.run("bayesbinn", "pack", "runs/digits-bayesbinn-0")
    np.save(tmp_path / "digits.npy", np.zeros((2, 64), dtype=np.float32))
    assert len(training.run("bayesbinn", "run", packed, "digits.npy").stdout.splitlines()) == 3


@pytest.mark.slow
def test_a_wheel_with_and_without_a_compiler(native_wheel: Path, pure_wheel: Path) -> None:
    def modules(wheel: Path) -> set[str]:
        names = zipfile.ZipFile(wheel).namelist()
        return {name.rpartition("/")[0] for name in names if "_native" in name and name.endswith(".so")}

    assert modules(native_wheel) == {"bayesbinn/kernels", "bayesbinn/runtime"}
    assert modules(pure_wheel) == set()


# ---- the runtime alone -------------------------------------------------------------------------------


class Installation:
    """A virtual environment with a package and what it needs, nothing else."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder

    def install(self, package: Path | str) -> None:
        self.run("pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", package)

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


def installed(folder: Path, package: Path) -> Installation:
    installation = Installation(folder)
    installation.install(package)
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
    assert "SHA-256 " in alone.run("bayesbinn", "inspect", FIXTURE).stdout
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
    assert seconds < MAX_SECONDS, timings


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
