"""Every Python block of README.md and docs/ runs as printed, page by page in one namespace."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.data.catalog import SETS
from tests.helpers.places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHIPPED = ("digits", "moons")
MAX_NOT_RUN = 5


@dataclass(frozen=True)
class Block:
    """A fenced block, and why it is not run, if it is not."""

    page: Path
    line: int
    code: str
    not_run: str

    @property
    def published(self) -> list[str]:
        """The data sets in it that must be downloaded."""
        named = re.findall(r'load\("(\w+)"', self.code)
        return [name for name in named if name in SETS and name not in SHIPPED]


def blocks_of(page: Path) -> list[Block]:
    """Python as it is, and of a diff what it leads to."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"(?:^<!-- not run: (.+?) -->\n)?^```(python|diff)\n(.*?)^```$", text, re.M | re.S):
        reason, kind, code = match.groups()
        if kind == "diff":
            code = "".join(line[1:] for line in code.splitlines(keepends=True) if not line.startswith("-"))
        found.append(Block(page, text.count("\n", 0, match.start(3)), code, reason or ""))
    return found


TO_RUN = [page for page in PAGES if any(not block.not_run for block in blocks_of(page))]


# ---- what the text around the blocks says the reader has -----------------------------------------------


def a_network(folder: Path) -> dict[str, Any]:
    """A model in training on digits, and data, by the names that pages use for them."""
    digits = data.load("digits")
    parts = digits.split(0.2, seed=0)
    assert parts.validation is not None and parts.test is not None
    (x, y), (x_validation, y_validation) = parts.train.whole(), parts.validation.whole()
    model = models.table_mlp(10, inputs=64, hidden=16)
    batches = [(x[i : i + 100], y[i : i + 100]) for i in range(0, 600, 100)]
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, train_set_size=len(x), certainty=100)
    return {
        **{"bb": bb, "torch": torch, "F": F, "model": model, "binary": binary, "optimizer": optimizer},
        **{"loader": batches, "batches": batches, "x": x, "y": y, "N": len(x)},
        **{"x_validation": x_validation, "y_validation": y_validation, "x_test": parts.test.whole()[0]},
    }


def a_model_file(folder: Path) -> dict[str, Any]:
    """model.safetensors, as `bb.pack` writes it, and inputs for it."""
    model = models.table_mlp(10, inputs=64, hidden=16).eval()
    bb.pack(model, folder / "model.safetensors", bb.STEAdam(bb.split_parameters(model)[0]).posterior())
    return {"x": np.zeros((2, 64), dtype=np.float32)}


READERS_OWN = {"README.md": a_network, "methods.md": a_network, "export.md": a_model_file}


@pytest.mark.parametrize("page", TO_RUN, ids=[page.name for page in TO_RUN])
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    blocks = [block for block in blocks_of(page) if not block.not_run]
    needed = sorted({name for block in blocks for name in block.published})
    if needed and not os.environ.get("BAYESBINN_DATA"):
        pytest.skip(f"{page.name} needs {', '.join(needed)}: BAYESBINN_DATA names a folder with the real data sets")
    monkeypatch.chdir(tmp_path)
    namespace = READERS_OWN.get(page.name, lambda folder: {})(tmp_path)
    for block in blocks:
        # Compiled with its place, so that an error names the line of the page.
        exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)
    if page.name == "continual.md":
        accuracy = namespace["learner"].record.summary()["recalibrated"]["average_accuracy"]
        assert accuracy > 60, "the page says 75 to 82 %; chance is 10 %"
        assert "recalibrated" in capsys.readouterr().out


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    left_out = [block for page in PAGES for block in blocks_of(page) if block.not_run]
    assert len(left_out) <= MAX_NOT_RUN
    marks = sum(page.read_text(encoding="utf-8").count("<!-- not run") for page in PAGES)
    assert marks == len(left_out), "a mark stands directly above its block"
    fences = sum(len(re.findall(r"^ *```python", page.read_text(encoding="utf-8"), re.M)) for page in PAGES)
    diffs = sum(len(re.findall(r"^```diff", page.read_text(encoding="utf-8"), re.M)) for page in PAGES)
    assert sum(len(blocks_of(page)) for page in PAGES) == fences + diffs, "a block that is not found is not run"
