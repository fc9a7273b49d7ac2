"""Everything that the repository shows is drawn again from its own files: `bayesbinn reproduce all --no-train`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from bayesbinn import paper
from bayesbinn.errors import InvalidInput
from bayesbinn.paper import figure_moons as moons
from bayesbinn.paper.page import PAGE, page
from tests.helpers.places import ROOT


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def contents(folder: Path, name: str) -> dict[str, bytes]:
    return {path.suffix: path.read_bytes() for path in sorted(folder.glob(f"{name}.*"))}


def redrawn(name: str, folder: Path, data_dir: Path | None = None) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a toy figure on a short budget, and those drawn again when its networks are gone."""
    options = {"runs": folder / "runs", "out": folder / "out"}
    list(paper.reproduce(name, epochs=10, data_dir=data_dir, **options))
    before = contents(folder / "out", name)
    shutil.rmtree(folder / "runs")
    list(paper.reproduce(name, train=False, **options))
    return before, contents(folder / "out", name)


def test_moons_without_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moons, "STEP", 0.1)
    monkeypatch.setattr(moons, "DRAWN_STEP", 0.2)
    before, after = redrawn("figure-moons", tmp_path)
    assert before == after and set(after) == {".json", ".md", ".png", ".pdf"}
    (tmp_path / "out" / "figure-moons.json").unlink()
    with pytest.raises(InvalidInput, match="no run found"):
        list(paper.reproduce("figure-moons", train=False, runs=tmp_path / "runs", out=tmp_path / "out"))


def test_snelson_without_its_networks(tmp_path: Path, data_dir: Path) -> None:
    before, after = redrawn("figure-snelson", tmp_path, data_dir)
    assert before == after and set(after) == {".json", ".md", ".png", ".pdf"}


def test_curves_without_their_runs(tmp_path: Path) -> None:
    """The numbers of figure-curves as it is stay, marked, where no record has taken their place."""
    source = ROOT / "results" / "paper" / "figure-curves.json"
    before = json.loads(source.read_text(encoding="utf-8"))
    if not any(each["seeds"] for each in before["data"].values()):
        pytest.skip("figure-curves has no run yet")
    out = tmp_path / "results" / "paper"
    out.mkdir(parents=True)
    shutil.copy(source, out)
    list(paper.reproduce("figure-curves", train=False, runs=tmp_path / "runs", out=out))
    after = json.loads((out / source.name).read_text(encoding="utf-8"))
    for name, each in before["data"].items():
        assert after["data"][name]["test"] == each["test"], name
        assert after["data"][name]["earlier"] == each["seeds"]
        assert after["data"][name]["seconds"] == pytest.approx(each["seconds"])
    # Another schedule is another experiment.
    list(paper.reproduce("figure-curves", train=False, epochs=7, runs=tmp_path / "runs", out=out))
    assert all(not each["seeds"] for each in json.loads((out / source.name).read_text())["data"].values())


@pytest.mark.slow
def test_everything_is_drawn_again_and_the_page_is_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    results = tmp_path / "results"
    lines = list(paper.reproduce("all", train=False, out=results / "paper"))
    assert lines[-1] == f"{tmp_path / PAGE}: written"
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == page(results)
    for name in paper.NAMES:
        left_out = any(line.startswith(f"{name}: left out: none of its runs is recorded") for line in lines)
        assert (results / "paper" / f"{name}.md").is_file() != left_out, name
    again = {path: path.read_bytes() for path in sorted((results / "paper").iterdir())}
    list(paper.reproduce("all", train=False, runs=results / "runs", out=results / "paper"))
    assert again == {path: path.read_bytes() for path in sorted((results / "paper").iterdir())}


def test_drawing_needs_no_training(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="add --no-train"):
        list(paper.reproduce("all", runs=tmp_path, out=tmp_path / "results" / "paper"))


def test_nothing_is_drawn_empty_without_records(tmp_path: Path) -> None:
    """The default folder of other runs is runs/; there, `all` once found no record and emptied every table."""
    out = tmp_path / "results" / "paper"
    with pytest.raises(InvalidInput, match=f"no records in {tmp_path / 'results' / 'runs'}"):
        paper.reproduce("all", train=False, out=out)
    assert not out.exists()
