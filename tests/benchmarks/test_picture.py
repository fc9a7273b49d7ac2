"""The README's picture: drawn by the program from real runs, and as up to date as the measurements."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.places import ROOT


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture_benchmark", ROOT / "benchmarks" / "picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_pictures_show_the_measurements(picture: ModuleType) -> None:
    wanted = {label: f"{value:.2f} ms" for label, value in picture.measured_milliseconds().items()}
    assert len(wanted) == 5
    for theme in picture.THEMES:
        texts = re.findall(r"<!-- (.+?) -->", (ROOT / f"docs/images/overview-{theme.name}.svg").read_text("utf-8"))
        assert {label: texts[texts.index(label) + 1] for label in wanted} == wanted


def test_it_is_drawn_the_same_twice(picture: ModuleType, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    line = np.linspace(-1, 1, 5)
    content = picture.Content(
        weights=np.sign(random.normal(size=(40, 8, 8))),
        points=random.normal(size=(20, 2)),
        labels=random.integers(0, 2, 20),
        planes={name: picture.Plane(line, line, random.random((5, 5))) for name in ("one", "many")},
        milliseconds=picture.measured_milliseconds(),
    )
    for theme in picture.THEMES:
        for name in ("one.svg", "two.svg"):
            picture.drawn(content, theme, tmp_path / name)
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
        assert ElementTree.parse(tmp_path / "one.svg").getroot().tag.endswith("svg")


@pytest.mark.slow
def test_it_is_made_of_real_runs(picture: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "STEP", 0.5)
    content = picture.gathered(tmp_path, epochs=1)
    assert set(np.unique(content.weights)) == {-1.0, 1.0}
    assert all(0 <= plane.probability.min() < plane.probability.max() <= 1 for plane in content.planes.values())
