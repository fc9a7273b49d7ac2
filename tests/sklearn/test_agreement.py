"""One model file, many doors: all of them give the estimator's answers for the odd table of `people`."""

from __future__ import annotations

import csv
import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesbinn import runtime
from bayesbinn.errors import BayesbinnError
from bayesbinn.export import export_c, export_onnx
from bayesbinn.modelfile.container import read
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor
from tests.cli.test_deployment import done, rows_of
from tests.sklearn.test_estimators import people

NEW = people(40, seed=3)[0].astype({"job": object})
NEW.loc[0, "job"] = "astronaut"  # never seen
NEW.loc[1, ["age", "city", "joined"]] = None
NEW.loc[2, 'income, "net"'] = -1e9


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows = table.astype(object).to_dict("records")
    return [{key: None if pd.isna(cell) else cell for key, cell in row.items()} for row in rows]


@pytest.fixture(scope="module", params=["classes", "quantity"])
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A fitted estimator and its file."""
    table, answer = people(150)
    small: dict[str, Any] = {"random_state": 0, "epochs": 2, "hidden": 24, "networks": 2}
    if request.param == "classes":
        model: Any = BinaryNetworkClassifier(**small).fit(table, answer)
    else:
        model = BinaryNetworkRegressor(**small).fit(table, table["age"].fillna(50) / 10)
    return model, model.save(tmp_path_factory.mktemp("shipped") / "model.safetensors")


def expected(model: Any) -> np.ndarray:
    return model.predict_proba(NEW) if hasattr(model, "classes_") else model.predict(NEW)[:, None]  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_runtime(shipped: tuple[Any, Path], backend: Any) -> None:
    model, path = shipped
    loaded = runtime.load(path, backend=backend)
    right = expected(model)
    assert np.abs(loaded.predict_rows(records(NEW)) - right).max() <= 1e-6 * max(1, np.abs(right).max())
    alone = np.concatenate([loaded.predict_rows([row]) for row in records(NEW)[:5]])
    assert np.abs(alone - right[:5]).max() <= 1e-6 * max(1, np.abs(right).max())
    if loaded.graph.task == "regression":
        mean, std = loaded.predict_rows(records(NEW), return_std=True)
        assert np.abs(std - model.predict(NEW, return_std=True)[1]).max() <= 1e-5
        assert np.abs(mean - right[:, 0]).max() <= 1e-5 and np.ptp(std) > 0.01
    else:
        with pytest.raises(BayesbinnError, match="this model is a classifier"):
            loaded.predict_rows(records(NEW), return_std=True)


def test_the_command_line(shipped: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = shipped
    table = tmp_path / "new.csv"
    NEW.to_csv(table, index=False, quoting=csv.QUOTE_MINIMAL)
    found = rows_of(done("run", path, table))
    names = [f"p({name})" for name in model.classes_] if hasattr(model, "classes_") else ["mean"]
    answers = np.array([[float(row[name]) for name in names] for row in found])
    right = expected(model)
    assert np.abs(answers - right).max() <= 1e-6 * max(1, np.abs(right).max())
    if names == ["mean"]:
        std = np.array([float(row["std"]) for row in found])
        assert np.abs(std - model.predict(NEW, return_std=True)[1]).max() <= 1e-5


def test_onnx_takes_the_encoded_vector(shipped: tuple[Any, Path], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, path = shipped
    session = onnxruntime.InferenceSession(
        str(export_onnx(read(path), tmp_path / "m.onnx")), providers=["CPUExecutionProvider"]
    )
    codes = runtime.load(path).encode_rows(records(NEW))
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(None, {"input": codes}), strict=True))
    name = "probabilities" if "probabilities" in found else "mean" if "mean" in found else outputs[0]
    right = expected(model)
    assert np.abs(found[name] - right).max() <= 1e-5 * max(1, np.abs(right).max())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_c_takes_the_encoded_vector_and_says_so(shipped: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = shipped
    header, source = export_c(read(path), tmp_path / "m", name="m")
    assert "input is the encoded vector, not a raw row" in header.read_text()
    library = tmp_path / "m.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True, timeout=120)
    loaded = ctypes.CDLL(str(library))
    size = int(re.findall(r"#define M_BUFFER_BYTES (\d+)", header.read_text())[0])
    function = loaded.m_probabilities if hasattr(model, "classes_") else loaded.m_predict
    right = expected(model)
    buffer, out = (ctypes.c_float * (size // 4))(), np.zeros(right.shape[1], np.float32)
    for codes, answer in zip(runtime.load(path).encode_rows(records(NEW)), right, strict=True):
        row = np.ascontiguousarray(codes)
        pointers = [ctypes.c_void_p(each.ctypes.data) for each in (row, out)]
        assert function(*pointers, buffer, ctypes.c_size_t(size)) == 0
        assert np.abs(out - answer).max() <= 1e-5 * max(1, np.abs(right).max())
