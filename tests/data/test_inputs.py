"""New inputs to predict on: matched to what the model was trained on, or refused with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import bayesbinn as bb
from bayesbinn import data
from bayesbinn.errors import BayesbinnError, InvalidInput

FEATURES = ("width", "height", "depth")


def csv(folder: Path, text: str) -> Path:
    path = folder / "new.csv"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, message: str, features: tuple[str, ...] = FEATURES, shape: tuple[int, ...] = (3,)) -> None:
    with pytest.raises(BayesbinnError, match=message) as caught:
        data.load_inputs(path, shape, features=features)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "width,height,depth\n1,2,3\n4,5,6\n",
        "depth,width,height\n3,1,2\n6,4,5\n",
        "kind,depth,notes,width,height\nrose,3,long,1,2\ntulip,6,short,4,5\n",
        ",height,depth,width\n0,2,3,1\n1,5,6,4\n",
        '"depth" ; width;height\n3;1;2\n6;4;5\n',
    ],
    ids=["same", "other order", "more columns", "row numbers", "semicolons"],
)
def test_columns_are_matched_by_name(tmp_path: Path, text: str) -> None:
    path = csv(tmp_path, text)
    inputs, names = data.load_inputs(path, (3,), features=FEATURES)
    assert inputs.tolist() == [[1, 2, 3], [4, 5, 6]] and names == ["0", "1"]


def test_parquet_columns_are_matched_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"depth": [3.0], "kind": ["rose"], "height": [2], "width": [1]}), tmp_path / "new.parquet")
    inputs, _ = data.load_inputs(tmp_path / "new.parquet", (3,), features=FEATURES)
    assert inputs.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width,height\n1,2\n", r"no column 'depth', which the model was trained on\.$"),
        ("width,Height,Depth\n1,2,3\n", r"no column 'height', .* \(2 are missing: height, depth\)\. Did you mean 'Hei"),
        ("1.5,2.5,3.5\n1,2,3\n", r"no column 'width', .* \(3 are missing"),
        ("width,height,depth,width\n1,2,3,4\n", "two columns are named 'width'"),
        ("width,height,depth\n1,2,3\n1,,3\n", r"column 'height' is empty, NaN or too large in row 2 \(1 such cells\)"),
        ("width,height,depth\n1,2,3\nnan,2,3\n", "column 'width' is empty, NaN or too large in row 2"),
        ("width,height,depth\n1,2,x\n", "column 'depth' holds 'x' in row 1, which is not a number"),
        ("width,height,depth\n", "it has a header but no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    refused(csv(tmp_path, text), message)


def test_without_names_columns_go_by_their_order_but_a_missing_header_is_noticed(tmp_path: Path) -> None:
    """Otherwise the first row would be lost without a word."""
    refused(
        csv(tmp_path, "5.1,3.5,1.4\n4.9,3.0,1.5\n"), r"its first line, 5\.1, 3\.5, 1\.4, holds numbers", features=()
    )
    for header in ("0,1,2", "1,2,3", "a,b,c"):  # pandas writes the first
        inputs, _ = data.load_inputs(csv(tmp_path, f"{header}\n5.1,3.5,1.4\n"), (3,))
        torch.testing.assert_close(inputs, torch.tensor([[5.1, 3.5, 1.4]]))
    refused(csv(tmp_path, "a,b,c,d\n1,2,3,4\n"), r"each example has the shape \(4,\), but the model takes \(3,\)", ())


@pytest.mark.parametrize(
    ("shape", "model", "fits"),
    [
        ((5, 12), (3, 2, 2), True),
        ((5, 3, 2, 2), (12,), True),
        ((5, 2, 6), (1, 2, 6), True),
        ((5, 2, 6, 1), (1, 2, 6), True),
        ((5, 2, 2, 3), (3, 2, 2), False),
        ((5, 6, 2), (1, 2, 6), False),
        ((5, 3, 2), (3, 2, 2), False),
    ],
)
def test_axes_are_not_reordered_by_guess(
    tmp_path: Path, shape: tuple[int, ...], model: tuple[int, ...], fits: bool
) -> None:
    """Numbers of as many as the model takes, but with the axes in another order, are other examples."""
    values = np.arange(np.prod(shape)).reshape(shape) / 2
    np.savez(tmp_path / "new.npz", x=values)
    np.save(tmp_path / "new.npy", values)
    for path in (tmp_path / "new.npz", tmp_path / "new.npy"):
        if fits:
            inputs, _ = data.load_inputs(path, model)
            assert inputs.flatten().tolist() == values.flatten().tolist()
        else:
            refused(path, "each example has the shape", (), model)


def test_a_nan_among_the_inputs_is_named(tmp_path: Path) -> None:
    x = np.zeros((4, 3))
    x[2, 1] = np.nan
    np.savez(tmp_path / "new.npz", x=x)
    refused(tmp_path / "new.npz", r"x\[2\] has a NaN or infinite value: fill it or remove the example")


@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_nan_in_memory_is_not_class_0(task: Any, samples: int) -> None:
    model = nn.Linear(3, 2, bias=False)
    posterior = bb.BernoulliPosterior({"weight": torch.ones(2, 3)})
    x = torch.zeros(4, 3)
    x[1, 2], x[3, 0] = torch.nan, torch.inf
    message = r"input 1 has no prediction \(2 such inputs\): the input has a NaN or infinite value"
    with pytest.raises(InvalidInput, match=message):
        bb.predict(model, posterior, x, samples=samples, task=task)
    with pytest.raises(InvalidInput, match=r"input 0 has no prediction \(4 such inputs\): the network's output is not"):
        bb.predict(nn.Sequential(model, Lost()), None, torch.zeros(4, 3), task=task)


class Lost(nn.Module):
    """A network whose output is no number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.nan
