"""What a report says about a run, a table, a stream, a sweep and a model file, and what it says is missing."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesbinn.errors import InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.report import classification, curves, regression, run, stream, sweep, write_report
from bayesbinn.report.blocks import Code, Facts, Matrix, Missing, Picture, Table, Text
from bayesbinn.report.drawing import canvas, drawn
from bayesbinn.report.provenance import command_of
from bayesbinn.runs.evaluate import evaluate_run
from tests.helpers.commands import call, done
from tests.report.conftest import EVIL, KINDS, Place

MAX_BYTES = 1_500_000
SECTIONS = {
    "digits": [
        "Training",
        "Test scores",
        "Confusion",
        "Certainty",
        "Examples",
        "Weights",
        "Layers",
        "Speed",
        "Settings",
    ],
    "table": [
        "Training",
        "Test scores",
        "Confusion",
        "Certainty",
        "Examples",
        "Weights",
        "Layers",
        "Speed",
        "Settings",
    ],
    "regression": [
        "Training",
        "Test scores",
        "Errors",
        "Coverage",
        "Examples",
        "Weights",
        "Layers",
        "Speed",
        "Settings",
    ],
    "stream": ["Accuracy over time", "Forgetting", "Weights over time", "Layers", "Settings"],
    "sweep": ["Comparison", "Runs", "Failures", "Software"],
    "model": ["Layers", "Inputs and outputs", "Statistics", "Speed", "File"],
}
pytestmark = pytest.mark.usefixtures("one_thread")


class Seen(HTMLParser):
    """The elements of a page, its ids, and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_its_sections_and_is_small(kind: str, place: Place) -> None:
    text = place.pages[kind].read_text(encoding="utf-8")
    assert re.findall(r"<h2>(.*?)</h2>", text) == SECTIONS[kind]
    assert len(text.encode()) < MAX_BYTES
    anchors = set(re.findall(r'<section id="([^"]*)"', text))
    assert set(re.findall(r'<a href="#([^"]*)"', text)) == anchors


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_refers_to_nothing_outside_and_its_ids_are_unique(kind: str, place: Place) -> None:
    page = Seen(place.pages[kind])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [
        value or "" for _, each in page.tags for key, value in each.items() if key in ("href", "src", "xlink:href")
    ]
    assert targets and all(each.startswith(("#", "data:image/png;base64,")) for each in targets)
    assert {each[1:] for each in targets if each.startswith("#")} <= set(ids)
    assert not page.all("script") and not page.all("link")
    assert all(each.get("alt") for each in page.all("img"))
    assert all(each.get("role") == "img" and each.get("aria-label") for each in page.all("svg"))


@pytest.mark.parametrize("kind", ["table", "model"])
def test_names_that_hold_markup_are_shown_and_not_run(kind: str, place: Place) -> None:
    page = Seen(place.pages[kind])
    assert EVIL in page.text and not page.all("script")


def test_every_block_escapes_its_text() -> None:
    blocks = (
        Text(EVIL),
        Missing(EVIL),
        Code(EVIL),
        Facts([(EVIL, EVIL)]),
        Table(EVIL, [EVIL, EVIL], [[EVIL, EVIL]]),
        Matrix(EVIL, EVIL, [EVIL], [EVIL], [[1]], [[1.0]]),
        Picture(EVIL, EVIL, [EVIL]),
    )
    for block in blocks:
        assert "<script" not in block.to_html() and "&lt;script&gt;" in block.to_html(), block
        assert 'alert("' not in block.to_html(), block
    assert "\\x1b" in Text("\x1b[31m").to_html()


def test_a_drawing_escapes_its_text_and_leaves_names_alone() -> None:
    name = ' id="a" #040404 1.23456 url(#x) $x$ <b>'
    with canvas() as (figure, axes):
        axes[0, 0].set_title(name)
        axes[0, 0].plot([0, 1], [0, 1], color="#040404")
        svg = drawn(figure, "one", f'"{name}', "").svg
    assert 'id="a" #040404 1.23456 url(#x) $x$ &lt;b&gt;' in svg
    assert "stroke: var(--c1)" in svg and 'aria-label="&quot; id=' in svg
    with canvas() as (figure, axes):
        axes[0, 0].plot([0, 1], [0, 1], color="#040404")
        again = drawn(figure, "two", "", "").svg
    own, other = (set(re.findall(r'id="([^"]*-[^"]*)"', each)) for each in (svg, again))
    assert own and other and not own & other


# ---- the numbers are those of the run ------------------------------------------------------------------


def test_the_scores_are_those_of_evaluate(place: Place) -> None:
    folder = place.sources["digits"]
    found = run.gather(folder, None)
    assert found.scored is not None and found.scored.networks == 10
    expected = evaluate_run(folder, None, True, None)["mean of 10"]
    assert run.score_of(found.scored) == pytest.approx(expected["accuracy"])
    text = Seen(place.pages["digits"]).text
    assert f"{expected['accuracy']:.2f} %" in text and f"{expected['NLL']:.4g}" in text


def test_the_confusion_matrix_counts_every_test_row(place: Place) -> None:
    found = run.gather(place.sources["digits"], None)
    assert found.scored is not None
    matrix = classification.confusion_section(found.scored).blocks[0]
    assert isinstance(matrix, Matrix)
    values = np.array(matrix.values)
    assert values.sum() == 360
    assert values.trace() == pytest.approx(3.6 * run.score_of(found.scored))
    np.testing.assert_array_equal(values.sum(axis=1), np.bincount(found.scored.targets))


def test_reliability_by_hand() -> None:
    p = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65], [0.35, 0.65]])
    found = classification.reliability(p, np.array([0, 1, 1, 1]))
    assert found.confidence == pytest.approx([0.65, 0.95]) and found.accuracy == pytest.approx([1.0, 0.5])
    assert found.share == pytest.approx([0.5, 0.5]) and found.ece == pytest.approx(0.5 * 0.35 + 0.5 * 0.45)


def test_coverage_by_hand() -> None:
    one = np.ones(4)
    found = regression.Regressed("y", np.zeros(4), np.array([0.5, 0.7, 1.5, 3.0]), one, None, {}, 0)
    assert [regression.coverage(found, level) for level in (50, 80, 90, 95)] == [25.0, 50.0, 75.0, 75.0]


def test_flips_are_left_out_of_full_precision_and_the_authors_curves_of_other_networks() -> None:
    rows = [{"epoch": 1, "train_loss": 1.0, "test_accuracy": 90.0, "flip_ratio": 0.25}]
    paper = load_experiment("mnist", overrides={"training.epochs": 5})
    found = curves.gather(paper, rows)
    assert found.flips == [(1.0, 25.0)] and found.authors["test"][0][1] == pytest.approx(93.5, abs=4)
    assert curves.gather(load_experiment("mnist", method="float"), rows).flips == []
    narrow = load_experiment("mnist", overrides={"model.width": 0.5})
    assert curves.gather(narrow, rows).authors == {}
    assert curves.gather(load_experiment("digits"), rows).authors == {}


def test_a_run_of_an_older_version_without_flips_is_fine(place: Place, tmp_path: Path) -> None:
    folder = shutil.copytree(place.sources["digits"], tmp_path / "old")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in row.items() if k != "flip_ratio"}) + "\n" for row in rows)
    )
    text = write_report(folder, measure_speed=False).read_text()
    assert "whose sign changed during the epoch" not in text and "Training" in text


def test_the_command_repeats_the_run() -> None:
    experiment = load_experiment("digits", method="ste", overrides={"training.seed": 3, "training.epochs": 7})
    assert command_of(experiment, Path("runs/x")) == "bayesbinn train digits --method ste --seed 3 --epochs 7"
    other = load_experiment("digits", overrides={"model.width": 0.5})
    assert command_of(other, Path("runs/my x")) == "bayesbinn train 'runs/my x/config.toml' --out 'runs/my x-again'"


# ---- what is missing ------------------------------------------------------------------------------------


def test_without_the_data_the_page_says_why_and_shows_the_rest(place: Place, tmp_path: Path) -> None:
    source = place.sources["table"]
    table = source.parent / "table.csv"
    moved = table.rename(tmp_path / "table.csv")
    try:
        text = Seen(write_report(source, tmp_path / "page.html", measure_speed=False)).text
    finally:
        moved.rename(table)
    assert re.search(r"Not shown: .*table\.csv: .*", text) and "need the rows, which a run does not store" in text
    assert "P(w = +1)" in text and "multiply-adds" in text and "it was not measured (--no-speed)" in text


def test_a_run_without_a_finished_epoch_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(load_experiment("digits").to_toml())
    text = Seen(write_report(tmp_path)).text
    assert "no epoch is finished yet" in text and "bayesbinn train digits" in text


def test_methods_without_probabilities_say_so(place: Place) -> None:
    folder = place.sources["sweep"] / "ste-lr0.01-s0"
    text = Seen(write_report(folder, measure_speed=False)).text
    assert "this method keeps one network of −1 and +1, without probabilities" in text


# ---- streams, sweeps, model files ----------------------------------------------------------------------


def test_a_stream_shows_every_task_from_the_moment_it_is_learned(place: Place) -> None:
    facts = stream.gather(place.sources["stream"], None)
    found = stream.curves_of(facts.record, facts.policy)
    assert {task: [int(time) for time, _ in points] for task, points in found.items()} == {
        1: [1, 2, 3],
        2: [2, 3],
        3: [3],
    }
    lost = facts.summary[facts.policy]["forgetting_since_learned"]
    assert lost is not None and f"{lost:.2f}" in Seen(place.pages["stream"]).text


def test_a_sweep_ranks_by_validation_data_and_shows_failures(place: Place) -> None:
    facts = sweep.gather(place.sources["sweep"])
    scores = [each["best_validation_accuracy"] for each in facts.ranked]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert [each["run"] for each in facts.failures] == ["ste-lr1.0-s0"]
    text = Seen(place.pages["sweep"]).text
    assert "error: it broke <here>" in text and f"The best run is {facts.ranked[0]['run']}" in text


def test_a_model_file_shows_its_columns_and_checksum(place: Place) -> None:
    text = Seen(place.pages["model"]).text
    assert "left, right" in text and re.search(r"[0-9a-f]{64}", text) and "model file, int8" in text


def test_a_model_file_of_several_networks_counts_all_their_weights(place: Place) -> None:
    facts, text = run.gather(place.sources["table"], None), Seen(place.pages["model"]).text
    assert facts.network is not None
    assert "weights and bytes are those of all 4 networks" in text and f"{facts.network.sizes.total.binary:,}" in text


# ---- the command ---------------------------------------------------------------------------------------


def test_the_command_writes_where_it_is_told_and_opens_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address))
    out = tmp_path / "new" / "page.html"
    said = done("report", place.sources["sweep"], "--out", out, "--open", "--json")
    assert json.loads(said) == {"out": str(out), "bytes": out.stat().st_size} and opened == [out.as_uri()]
    done("report", place.sources["sweep"])
    assert (place.sources["sweep"] / "report.html").read_bytes() == out.read_bytes(), "the same folder, the same page"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder; give the folder of a run or a sweep, or a MODEL.safetensors"),
        (["."], "it contains neither config.toml nor sweep.json"),
        (["SWEEP", "--card"], "is a sweep; a model card describes a run"),
        (["SWEEP", "--epoch", "best"], "only a run keeps its best epoch"),
        (["SWEEP", "--epoch", "worst"], "--epoch worst: must be last or best"),
        (["SWEEP", "--card", "--open"], "a model card is Markdown"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, place: Place) -> None:
    answer = call("report", *(str(place.sources["sweep"]) if each == "SWEEP" else each for each in arguments))
    assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1


def test_an_unknown_source_raises(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_report(tmp_path / "nothing")


def test_the_ticks_of_a_single_epoch_are_whole_numbers() -> None:
    from bayesbinn.report.drawing import canvas, whole_numbers

    with canvas() as (figure, axes):
        axes[0, 0].plot([1], [90.0], "o")
        whole_numbers(axes[0, 0])
        figure.canvas.draw()
        low, high = axes[0, 0].get_xlim()
        assert [tick for tick in axes[0, 0].get_xticks() if low <= tick <= high] == [1]


def test_the_report_of_a_model_file_does_not_replace_its_page(place: Place, tmp_path: Path) -> None:
    model, page = tmp_path / "model.safetensors", tmp_path / "model.html"
    model.write_bytes(place.sources["model"].read_bytes())
    page.write_text("a page that export wrote")
    assert write_report(model, measure_speed=False) == tmp_path / "model.report.html"
    assert page.read_text() == "a page that export wrote"
