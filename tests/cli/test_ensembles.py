"""`bayesbinn pack RUN RUN …`: networks of several runs in one file, in the runtime, in ONNX and in C."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import bayesbinn as bb
from bayesbinn.__main__ import main
from bayesbinn.errors import InvalidInput
from bayesbinn.format import read
from bayesbinn.runtime import load
from bayesbinn.runtime import reference as numpy_runtime

ROWS = 40


def call(*arguments: str | Path) -> tuple[int, str]:
    """Run a command in this process, as the installed script would; returns its exit code and its output or error."""
    torch.set_num_threads(1)
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["bayesbinn", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, err.getvalue() if code else out.getvalue()


def trained(folder: Path, seed: int, *settings: str, data: str = "digits", method: str = "bayesbinn") -> Path:
    words = [word for each in ("model.width=0.02", *settings) for word in ("--set", each)]
    code, text = call("train", data, "--method", method, "--seed", str(seed), "--epochs", "3", *words, "--out", folder)
    assert code == 0, text
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that share their validation rows, one that does not, and their files."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        trained(folder / f"shared-{seed}", seed, "data.split_seed=7")
    trained(folder / "apart", 3)
    for names, out in ((("shared-1", "shared-2"), "shared"), (("shared-1", "apart"), "mixed")):
        code, text = call("pack", *(folder / name for name in names), "-o", folder / f"{out}.safetensors")
        assert code == 0 and "(2 runs)" in text, text
    for name in ("shared-1", "shared-2", "apart"):
        assert call("pack", folder / name)[0] == 0
        assert call("pack", folder / name, "--no-calibrate", "-o", folder / f"{name}-raw.safetensors")[0] == 0
    return folder


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    dataset = bb.data.load("digits")
    return dataset.test_inputs.numpy(), dataset.test_targets.numpy()


def mean_probabilities(files: list[Path], x: np.ndarray) -> np.ndarray:
    return np.mean([load(path).predict_proba(x) for path in files], axis=0)


def test_the_ensemble_is_the_mean_of_its_networks(place: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x = digits[0][:ROWS]
    mixed = load(place / "mixed.safetensors")
    assert mixed.networks == 2
    members = [place / name / "model.safetensors" for name in ("shared-1", "apart")]
    np.testing.assert_allclose(mixed.predict_proba(x), mean_probabilities(members, x), atol=1e-6)
    sizes = [path.stat().st_size for path in members]
    assert (place / "mixed.safetensors").stat().st_size < sum(sizes)


def test_shared_validation_rows_calibrate_the_mean(place: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    """One scale for all networks, better on the common validation rows than the members' own scales or none."""
    shared, dataset = read(place / "shared.safetensors"), bb.data.load("digits")
    assert shared.graph.logit_scale != 1 and not any(node.name == "confidence" for node in shared.graph.nodes)
    rows = dataset.split(0.1, 7).validation
    assert rows is not None and rows.rows is not None
    x, y = dataset.train_inputs[rows.rows].numpy(), dataset.train_targets[rows.rows].numpy()

    def nll(probabilities: np.ndarray) -> float:
        return float(-np.log(probabilities[np.arange(len(y)), y]).mean())

    ours = nll(load(place / "shared.safetensors").predict_proba(x))
    assert ours < nll(mean_probabilities([place / f"shared-{seed}-raw.safetensors" for seed in (1, 2)], x))
    assert ours < nll(mean_probabilities([place / f"shared-{seed}" / "model.safetensors" for seed in (1, 2)], x)) + 0.01


def test_python_joins_files_as_the_command_does(place: Path, tmp_path: Path) -> None:
    members = [place / name / "model.safetensors" for name in ("shared-1", "apart")]
    bb.pack_ensemble(members, tmp_path / "joined.safetensors")
    assert (tmp_path / "joined.safetensors").read_bytes() == (place / "mixed.safetensors").read_bytes()
    three = bb.pack_ensemble([tmp_path / "joined.safetensors", members[0]], tmp_path / "three.safetensors")
    assert three.graph.networks == 3


def test_samples_of_several_runs_are_one_ensemble(place: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    runs = [place / f"shared-{seed}" for seed in (1, 2)]
    path = place / "samples.safetensors"
    code, text = call("pack", *runs, "--samples", "2", "-o", path)
    assert code == 0, text
    assert load(path).networks == 4


def test_onnx_runs_the_ensemble(place: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x = digits[0][:ROWS].astype(np.float32)
    for name in ("mixed", "shared"):
        model, target = place / f"{name}.safetensors", place / f"{name}.onnx"
        code, text = call("export", model, "--to", "onnx", "--out", target)
        assert code == 0, text
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        (found,) = session.run(["probabilities"], {"input": x})
        np.testing.assert_allclose(found, load(model).predict_proba(x), atol=1e-5)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_c_runs_the_ensemble(place: Path, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    code, text = call("export", place / "mixed.safetensors", "--to", "c", "--out", tmp_path)
    assert code == 0, text
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\n'
        "int main(void)\n{\n    static float buffer[MODEL_BUFFER_BYTES / sizeof(float)];\n"
        "    static float input[MODEL_INPUTS], output[MODEL_OUTPUTS];\n"
        "    while (fread(input, sizeof input, 1, stdin) == 1) {\n"
        "        if (model_probabilities(input, output, buffer, sizeof buffer)) return 1;\n"
        "        fwrite(output, sizeof output, 1, stdout);\n    }\n    return 0;\n}\n"
    )
    compiler = ["gcc", "-std=c99", "-O1", "main.c", "model.c", "-lm", "-o", "main"]
    subprocess.run(compiler, cwd=tmp_path, check=True, capture_output=True)
    x = digits[0][:ROWS].astype(np.float32)
    done = subprocess.run([str(tmp_path / "main")], input=x.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, dtype=np.float32).reshape(ROWS, -1)
    np.testing.assert_allclose(found, load(place / "mixed.safetensors").predict_proba(x), atol=1e-5)


def test_numpy_and_native_agree(place: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, file = digits[0][:ROWS].astype(np.float32), read(place / "mixed.safetensors")
    native = load(place / "mixed.safetensors").outputs(x)
    np.testing.assert_allclose(numpy_runtime.run(file, x), native, rtol=1e-4, atol=1e-4)


def test_runs_that_do_not_match_get_one_line(place: Path, tmp_path: Path) -> None:
    wide = trained(tmp_path / "wide", 1, "model.width=0.03")
    moons = trained(tmp_path / "moons", 1, data="moons")
    real = trained(tmp_path / "real", 1, method="float")
    first, out = place / "shared-1", ("-o", tmp_path / "out.safetensors")
    for arguments, message in (
        ((first, wide, *out), "another network than"),
        ((first, moons, *out), "trained on different data (moons)"),
        ((first, real, *out), "is stored as float32 and uint8"),
        ((first, place / "apart"), "need a name; add -o"),
        ((first, first, *out), "named twice"),
    ):
        code, text = call("pack", *arguments)
        assert code == 2 and message in text and len(text.strip().splitlines()) == 1, text
    assert not (tmp_path / "out.safetensors").exists()
    with pytest.raises(InvalidInput, match="2 or more are needed"):
        bb.pack_ensemble([first / "model.safetensors"], tmp_path / "one.safetensors")
