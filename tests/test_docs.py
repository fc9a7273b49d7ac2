"""The documentation is true: its Python runs as printed, its links hold, and the site builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.data.catalog import SETS
from tests.helpers.markdown import Block, blocks, table
from tests.helpers.places import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHIPPED = ("digits", "moons")
MAX_NOT_RUN = 5


def published(block: Block) -> list[str]:
    """The data sets in a block that must be downloaded."""
    named = re.findall(r'load\("(\w+)"', block.code)
    return [name for name in named if name in SETS and name not in SHIPPED]


def python(page: Path) -> list[Block]:
    """Python, and diffs, which lead to Python."""
    return [block for block in blocks(page) if block.language in ("python", "diff")]


def source(block: Block) -> str:
    """The block itself; of a diff what it leads to."""
    if block.language == "python":
        return block.code
    return "".join(line[1:] for line in block.code.splitlines(keepends=True) if not line.startswith("-"))


# tests/test_readme.py runs the README's example and compares its output.
TO_RUN = [page for page in PAGES[1:] if any(not block.not_run for block in python(page))]


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
        **{"loader": batches, "batches": batches, "x": x, "y": y, "N": len(x), "posterior": optimizer.posterior()},
        **{"x_validation": x_validation, "y_validation": y_validation, "x_test": parts.test.whole()[0]},
    }


def a_model_file(folder: Path) -> dict[str, Any]:
    """model.safetensors, as `bb.pack` writes it, and inputs for it."""
    model = models.table_mlp(10, inputs=64, hidden=16).eval()
    bb.pack(model, folder / "model.safetensors", bb.STEAdam(bb.split_parameters(model)[0]).posterior())
    return {"x": np.zeros((2, 64), dtype=np.float32)}


READERS_OWN = {
    **dict.fromkeys(("getting-started.md", "methods.md", "prediction.md", "deployment.md"), a_network),
    "export.md": a_model_file,
}


@pytest.mark.parametrize("page", TO_RUN, ids=[page.name for page in TO_RUN])
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    to_run = [block for block in python(page) if not block.not_run]
    needed = sorted({name for block in to_run for name in published(block)})
    if needed and not os.environ.get("BAYESBINN_DATA"):
        pytest.skip(f"{page.name} needs {', '.join(needed)}: BAYESBINN_DATA names a folder with the real data sets")
    monkeypatch.chdir(tmp_path)
    namespace = READERS_OWN.get(page.name, lambda folder: {})(tmp_path)
    for block in to_run:
        # Compiled with its place, so that an error names the line of the page.
        exec(compile("\n" * block.line + source(block), str(page), "exec"), namespace)
    if page.name == "continual.md":
        accuracy = namespace["learner"].record.summary()["recalibrated"]["average_accuracy"]
        assert accuracy > 60, "the page says 75 to 82 %; chance is 10 %"
        assert "recalibrated" in capsys.readouterr().out


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if block.not_run]
    assert len(left_out) <= MAX_NOT_RUN
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(text.count("<!-- not run") for text in texts) == len(left_out), "a mark stands directly above its block"
    fences = sum(len(re.findall(r"^ *```(?:python|diff)", text, re.M)) for text in texts)
    assert sum(len(python(page)) for page in PAGES) == fences, "a block that is not found is not run"


@pytest.mark.parametrize(
    "name",
    [
        *("continual.Learner", "continual.Plan", "experiments.schedules.Cosine", "train.schedules.Cosine"),
        *("export.export_c", "export.export_onnx", "format.read", "runtime.load", "errors.BayesbinnWarning"),
        *("errors.StuckTraining", "errors.SaturatedPosterior", "errors.CalibrationWarning", "train.fit"),
        *("data.load", "data.load_digits", "data.permuted", "data.split", "data.stream_of", "metrics.accuracy"),
        *("models.continual_mlp", "models.mnist_mlp", "models.table_mlp", "models.vgg", "models.lrnet_mnist"),
        *("forgetting.average_accuracy", "train.loop.fit"),
    ],
)
def test_a_name_that_pages_have_given_can_be_imported(name: str) -> None:
    module, _, attribute = f"bayesbinn.{name}".rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_every_public_name_is_in_the_reference() -> None:
    index = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    assert not [name for name in bb.__all__ if name != "__version__" and f"`bb.{name}`" not in index]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    named = set(re.findall(r"[\w/-]+\.md", navigation))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert named == pages | {"results/README.md", "CHANGELOG.md"}


def test_every_figure_of_the_results_is_shown() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    figures = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results").rglob("*.png"))]
    assert len(figures) >= 7
    assert not [figure for figure in figures if f"](../{figure})" not in shown]


def test_every_file_of_the_results_has_a_claim_and_a_command() -> None:
    rows = table((ROOT / "results" / "README.md").read_text(encoding="utf-8"), "claim", "file", "command")
    linked = {target for each in rows for target in re.findall(r"\]\((.+?)\)", each["file"])}
    files = {path.relative_to(ROOT / "results").as_posix() for path in (ROOT / "results").rglob("*.md")}
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    reproduced = set(re.findall(r"\]\(\.\./results/(.+?\.md)\)", page))
    assert linked <= files and files - {"README.md"} <= linked | reproduced
    for each in rows:
        script = re.match(r"`python (\S+)", each["command"])
        assert script is None or (ROOT / script[1]).exists(), each


def test_the_site_builds_without_a_warning_and_without_a_network(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    unreachable = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, **unreachable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    methods = (tmp_path / "site" / "methods" / "index.html").read_text(encoding="utf-8")
    assert methods.count("<math") > 20 and "$" not in re.sub(r"<code.*?</code>", "", methods, flags=re.S)
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")]
    fetched = [
        link for page in pages for link in re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(http[^"]+)', page)
    ]
    assert not fetched, "a reader without a network sees the whole site"
    reference = (tmp_path / "site" / "api" / "methods" / "index.html").read_text(encoding="utf-8")
    assert "natural-gradient" in reference, "docstrings are there"
