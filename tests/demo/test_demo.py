"""The demo works: every method learns the digits, and the spread-out posterior is well calibrated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bayesbinn.data import Split, load_digits
from bayesbinn.demo import contest as demo
from bayesbinn.demo import reporting
from bayesbinn.methods import METHODS

# The digits are a single task, where these methods have no advantage.
FOR_STREAMS = {"bimu", "ewc"}


@pytest.fixture(scope="module")
def data() -> Split:
    return load_digits(0)


def test_every_method_competes() -> None:
    assert {each.method for each in demo.CONTESTANTS.values()} == set(METHODS) - FOR_STREAMS
    assert {"float", "ste", "bayesbinn"} <= {demo.CONTESTANTS[name].method for name in demo.SHORT}


def test_the_data_are_a_stratified_fifth(data: Split) -> None:
    assert (len(data.train_inputs), len(data.test_inputs)) == (1437, 360)
    counts = data.test_targets.bincount()
    assert counts.min() >= 34 and counts.max() <= 37


@pytest.mark.parametrize("epochs", [12, pytest.param(demo.EPOCHS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("pmf", "lrnet", "ste", "bop")))
        for name in demo.CONTESTANTS
    ],
)
def test_every_method_reaches_95_percent_with_the_mode(name: str, epochs: int, data: Split) -> None:
    """With the demo's number of epochs and with fewer."""
    torch.set_num_threads(1)
    report = demo.compete(replace(demo.CONTESTANTS[name], epochs=epochs), data, seed=0).report
    assert report.mode.accuracy >= 95.0
    if report.method == "float":
        assert report.mean is None and report.binary_weights == 0
        return
    assert report.binary_weights == 64 * 256 + 256 * 256 + 256 * 10
    assert report.mean is not None and report.mode_calibrated is not None and report.mean_calibrated is not None
    assert report.mode_calibrated.nll < report.mode.nll and report.mode_calibrated.ece < report.mode.ece
    assert report.mean_calibrated.nll < report.mean.nll
    if name in ("ste", "bop"):
        assert report.mean == report.mode, "every sample equals the mode"
    if name == "bayesbinn-spread":
        assert report.mean.accuracy >= 95.0 and report.mean != report.mode
        assert report.ood_auroc is not None and report.ood_auroc >= 0.9
        assert report.median_strength is not None and report.median_strength < 3
    if name == "bayesbinn":
        assert report.median_strength is not None and report.median_strength > 9, "saturated at this temperature"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same demo with a single epoch each, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reporting, "EPOCHS", 1)
    hurried = {name: replace(each, epochs=1) for name, each in demo.CONTESTANTS.items()}
    monkeypatch.setattr(demo, "CONTESTANTS", hurried)
    monkeypatch.setattr(demo, "SAMPLES", 4)


@pytest.mark.usefixtures("short")
def test_the_demo_prints_a_table_and_what_it_is_unsure_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    reports = demo.run_demo()
    printed = capsys.readouterr().out
    assert len(reports) == len(demo.SHORT)
    for words in (
        "accuracy %",
        "NLL",
        "ECE",
        "STE-Adam",
        "BayesBiNN certainty=100",
        "AUROC",
        "median |λ|",
        "entropy",
        "runs without PyTorch",
        "A report of one such run: runs/demo-0/report.html (bayesbinn report runs/demo-0 --open)",
    ):
        assert words in printed, words
    assert "█" in printed, "the uncertain digits are drawn"
    assert Path("runs/demo-0/report.html").stat().st_size > 10_000


def test_the_demo_survives_a_folder_that_it_cannot_write_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("a file")
    assert reporting.show_report(Console(), 0, tmp_path / "runs") is None
    assert "no report: " in capsys.readouterr().out


@pytest.mark.usefixtures("short")
def test_the_demo_in_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    demo.run_demo(all_methods=True, as_json=True)
    reports = json.loads(capsys.readouterr().out)
    assert {report["method"] for report in reports} == set(METHODS) - FOR_STREAMS
    for report in reports:
        assert report["mode"].keys() == {"accuracy", "nll", "ece"}
        assert (report["mean"] is None) == (report["method"] == "float")


def test_a_digit_is_drawn_two_characters_a_pixel() -> None:
    lines = demo.draw_digit(torch.arange(64.0)).split("\n")
    assert len(lines) == 8 and all(len(line) == 16 for line in lines)
    assert lines[0][:2] == "  " and lines[-1][-2:] == "██"
