"""The figures on continual learning: from fabricated runs with known answers, and from a small real run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bayesbinn import paper
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import figure_continual as continual
from bayesbinn.paper import figure_posteriors as continual_posteriors
from bayesbinn.paper import figure_stream as continual_stream
from bayesbinn.paper import gather_streams as continual_runs
from bayesbinn.paper import published
from bayesbinn.paper.gather import Budget, Cell
from bayesbinn.paper.gather_streams import Gathered, Variant, gather
from tests.helpers import figures

NAMES = ("figure-continual", "figure-posteriors", "figure-stream")
CELL = continual.VARIANTS["bayesbinn"].cell


pytestmark = pytest.mark.usefixtures("one_thread")
reproduced = partial(figures.reproduced, train=False)


@pytest.fixture
def no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip drawing, which takes longer than the rest of a test."""
    for module in (continual, continual_posteriors, continual_stream):
        monkeypatch.setattr(module, "_draw", lambda *args: [])


def fabricate(folder: Path, cell: Cell, seed: int, lines: Sequence[dict[str, Any]], **parts: Any) -> Path:
    """A run's files; `lines` are those of its finished tasks, `parts` the rest of its record."""
    overrides = {**cell.changes, "training.seed": seed, **parts.get("overrides", {})}
    experiment = load_experiment(cell.preset, method=cell.method, overrides=overrides)
    assert experiment.continual is not None
    tasks = [f"permutation {index}" for index in range(experiment.continual.tasks)]
    result = {"tasks": tasks, "start": parts.get("start", weights(0.0)), "end": parts.get("end", {}), "summary": {}}
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(experiment.to_toml(), encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(result))
    for name, rows in (("metrics.jsonl", parts.get("epochs", [])), ("tasks.jsonl", lines)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def weights(entropy: float | None, saturated: float = 0.25) -> dict[str, Any]:
    if entropy is None:
        return {"entropy": None, "saturated": None, "histogram": None}
    return {"entropy": entropy, "saturated": saturated, "histogram": [5] + 48 * [1] + [5]}


def line(task: int, entropy: float | None, **accuracy: dict[str, float]) -> dict[str, Any]:
    """A finished task; one second of training and two of tests."""
    by_policy = {policy.replace("_", "-"): values for policy, values in accuracy.items()}
    times = {"train_seconds": 1.0, "evaluation_seconds": 2.0}
    return {"task": task, "name": "", "accuracy": by_policy, **weights(entropy), **times}


def five_tasks(lost: float, entropy: float | None = 0.5) -> list[dict[str, Any]]:
    """90 when learned, `lost` less after each later task; 20 one task earlier, with the policy that needs no memory."""
    lines = []
    for task in range(1, 6):
        seen = {str(old): 90 - lost * (task - old) for old in range(1, task + 1)}
        ahead = {str(task + 1): 20.0} if task < 5 else {}
        lines.append(line(task, entropy, shared=seen, recalibrated={**seen, **ahead}))
    return lines


def row_of(text: str, *starts: str) -> list[str]:
    """The cells of the first table row that starts with these."""
    for each in text.splitlines():
        cells = [cell.strip() for cell in each.split("|")[1:-1]]
        if cells[: len(starts)] == list(starts):
            return cells
    raise AssertionError(f"no row {starts}")


# ---- figure-continual -----------------------------------------------------------------------------


def test_table_from_known_runs(tmp_path: Path) -> None:
    """Hand-computed: losing 2 and 4 per task leaves 82 and 74 of task 1, means of 86 and 82, forgetting of 5 and 10."""
    for seed, lost in ((1, 2.0), (2, 4.0)):
        folder = tmp_path / "runs" / f"permuted-mnist-bayesbinn-{seed}"
        start = {**weights(0.0), "baseline": [10.0] * 5}
        fabricate(folder, CELL, seed, five_tasks(lost, 0.4 + 0.1 * seed), start=start)
    lines, text, numbers = reproduced("figure-continual", tmp_path, seeds=2)
    assert lines[-1].endswith("figure-continual.md, figure-continual.json, figure-continual.png, figure-continual.pdf")
    assert lines[0].endswith("permuted-mnist-bayesbinn-1: reused, 5 tasks × 100 epochs")
    tasks = ["78.00 ± 4.00", "81.00 ± 3.00", "84.00 ± 2.00", "87.00 ± 1.00", "90.00 ± 0.00"]
    common = [*tasks, "84.00 ± 2.00", "7.50 ± 2.50", "7.50 ± 2.50", "-7.50 ± 2.50"]
    label = "BayesBiNN, posterior as prior"
    assert row_of(text, label, "shared")[2:] == [*common, "", "100", "1, 2"]
    assert row_of(text, label, "recalibrated")[2:] == [*common, "10.00 ± 0.00", "100", "1, 2"]
    assert row_of(text, label, "0.00 ± 0.00")[2:] == [*["0.55 ± 0.05"] * 5, "0.25 ± 0.00", "5 s", "10 s", "1, 2"]
    found = numbers["variants"]["bayesbinn"]
    assert found["after the last task"]["shared"]["Mean"] == {"mean": 84, "std": 2, "values": [86, 82]}
    assert found["seeds"] == [1, 2] and found["samples"] == 100 and found["train seconds"] == [5, 5]
    assert found["entropy"][5]["values"] == pytest.approx([0.5, 0.6])
    theirs = row_of(text, "The authors' code, posterior as prior", "shared")
    assert theirs[2:8] == ["65.5", "81.6", "83.6", "91.2", "94.3", "83.2"]
    assert row_of(text, "The authors' code, without prior", "shared")[2:8] == [
        *("8.8", "10.8", "8.7", "18.3", "93.5", "28.0")
    ]
    theirs = row_of(text, "The authors' code, posterior as prior", "")
    assert theirs[2:7] == ["0.76", "0.62", "0.51", "0.42", "0.34"]
    assert "| Machine" in text and "average logits" in text and "needs to know which task" not in text


def test_points_of_the_curves(tmp_path: Path, no_chart: None) -> None:
    """Within a task from the epoch lines, at its end from the task line; only epochs that all seeds have."""
    for seed, every in ((1, 25), (2, 50)):
        epochs = [
            {"task": task, "epoch": epoch, "train_loss": 1.0, "seconds": 1.0, "accuracy": [50.0 + task + seed] * task}
            for task in range(1, 6)
            for epoch in range(every, 100, every)
        ]
        folder = tmp_path / "runs" / f"permuted-mnist-bayesbinn-{seed}"
        # The number of evaluations does not make a different experiment.
        fabricate(folder, CELL, seed, five_tasks(2), epochs=epochs, overrides={"training.evaluate_every": every})
    _, _, numbers = reproduced("figure-continual", tmp_path, seeds=2, methods="bayesbinn")
    curves = numbers["variants"]["bayesbinn"]["curves"]
    assert curves["task 4"] == {
        "epochs": [350, 400, 450, 500],
        "accuracy": [[55, 90, 56, 88], [56, 90, 57, 88]],
    }
    assert curves["task 1"]["epochs"] == list(range(50, 501, 50)) and curves["task 1"]["accuracy"][0][-1] == 82


def test_missing_and_unfinished_runs_are_omitted(
    tmp_path: Path, no_chart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    fabricate(runs / "permuted-mnist-bayesbinn-2", CELL, 2, five_tasks(2))
    fabricate(runs / "permuted-mnist-bayesbinn-3", CELL, 3, five_tasks(2)[:2])
    no_prior = continual.VARIANTS["no-prior"].cell
    assert no_prior.changes == {"continual.remember": False}
    fabricate(runs / "permuted-mnist-no-prior-1", CELL, 1, five_tasks(2))  # it has a prior
    fabricate(runs / "permuted-mnist-no-prior-2", no_prior, 2, [])
    (runs / "permuted-mnist-no-prior-2" / "tasks.jsonl").unlink()
    fabricate(
        runs / "permuted-mnist-ste-1", continual.VARIANTS["ste"].cell, 1, five_tasks(20, None), start=weights(None)
    )
    monkeypatch.setattr(continual_runs, "preset_names", lambda: ["permuted-mnist"])
    lines, text, numbers = reproduced("figure-continual", tmp_path, seeds=3)
    assert [each.partition("bayesbinn-")[2] for each in lines[:3]] == [
        *("1: not found, omitted", "2: reused, 5 tasks × 100 epochs", "3: in task 3 of 5, omitted")
    ]
    assert "a different experiment (continual.remember is True there, False here)" in lines[3]
    assert "no readable results" in lines[4]
    assert lines[6] == "BayesBiNN with memory: omitted: there is no preset 'permuted-mnist-memory'"
    assert (
        row_of(text, "BayesBiNN, posterior as prior", "shared")[-1] == "2 (seed 1: not found; seed 3: in task 3 of 5)"
    )
    assert row_of(text, "BayesBiNN with memory")[1] == "not run: there is no preset 'permuted-mnist-memory'"
    assert row_of(text, "STE-Adam", "no distribution")[2:8] == [""] * 6
    found = numbers["variants"]
    assert found["bayesbinn"]["seeds"] == [2] and found["no-prior"]["seeds"] == []
    assert found["ewc"]["not run"] == [f"seed {seed}: not found" for seed in (1, 2, 3)]
    assert found["ste"]["entropy"] == [None] * 6


def test_pictures_without_runs(tmp_path: Path) -> None:
    for name in ("figure-continual", "figure-stream"):
        _, text, _ = reproduced(name, tmp_path)
        assert "not run: " in text
    with pytest.raises(InvalidInput, match=r"no finished run to show: .*no run found"):
        reproduced("figure-posteriors", tmp_path)


def test_compressed_runs_have_separate_names(tmp_path: Path, no_chart: None) -> None:
    runs = tmp_path / "runs"
    short = {"overrides": {"training.epochs": 7}}
    fabricate(runs / "permuted-mnist-bayesbinn-1-e7", CELL, 1, five_tasks(2), **short)
    fabricate(runs / "permuted-mnist-bayesbinn-2", CELL, 2, five_tasks(2), **short)
    lines, text, _ = reproduced("figure-continual", tmp_path, seeds=2, epochs=7, methods="bayesbinn")
    assert [each.rpartition("/")[2].partition(":")[0] for each in lines[:2]] == [
        *("permuted-mnist-bayesbinn-1-e7", "permuted-mnist-bayesbinn-2")
    ]
    assert row_of(text, "BayesBiNN, posterior as prior", "shared")[-2:] == ["7", "1, 2"]
    budget = Budget(1, 7, 0.5, runs, None, train=False)
    assert next(gather(continual.VARIANTS["ste"], budget)).startswith(
        f"{runs / 'permuted-mnist-ste-width0.5-1-e7'}: not"
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("figure-continual", {"methods": "ste,ewd"}, "no 'ewd' in this figure. Did you mean 'ewc'"),
        ("figure-continual", {"methods": "lrnet"}, "Allowed: bayesbinn, no-prior, memory, ste, bop, float, ewc"),
        ("figure-continual", {"methods": " ,"}, "name at least one"),
        ("figure-posteriors", {"methods": "ste"}, "leave it out"),
        ("figure-stream", {"methods": "bimu"}, "leave it out"),
        *((name, {"stop_after": 3}, f"--stop-after 3: {name} shows finished runs") for name in NAMES),
    ],
)
def test_arguments(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        paper.reproduce(name, runs=tmp_path, out=tmp_path, **options)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_the_figures_are_listed() -> None:
    assert set(NAMES) <= set(paper.NAMES)


# ---- figure-posteriors ----------------------------------------------------------------------------


def test_posteriors(tmp_path: Path) -> None:
    runs, no_prior = tmp_path / "runs", continual.VARIANTS["no-prior"].cell
    fabricate(runs / "permuted-mnist-bayesbinn-1", CELL, 1, five_tasks(2, 0.75))
    fabricate(runs / "permuted-mnist-no-prior-1", no_prior, 1, five_tasks(20, 0.9))
    lines, text, numbers = reproduced("figure-posteriors", tmp_path, seeds=3)
    assert len(lines) == 3  # one seed of each variant
    label = "BayesBiNN, posterior as prior"
    assert row_of(text, label, "entropy")[2:] == ["0.000", *["0.750"] * 5, "100", "1"]
    assert row_of(text, label, "saturated")[2:] == [*["0.250"] * 6, "100", "1"]
    assert row_of(text, "BayesBiNN, without prior", "entropy")[3] == "0.900"
    assert numbers["rows"][label]["after task 5"]["histogram"] == [5] + 48 * [1] + [5]


def test_posteriors_of_one_run(tmp_path: Path, no_chart: None) -> None:
    fabricate(tmp_path / "runs" / "permuted-mnist-bayesbinn-1", CELL, 1, five_tasks(2, 0.75))
    _, text, _ = reproduced("figure-posteriors", tmp_path)
    assert row_of(text, "BayesBiNN, without prior")[1] == "not run: no run found"


# ---- figure-stream --------------------------------------------------------------------------------


@pytest.fixture
def short_stream(monkeypatch: pytest.MonkeyPatch) -> dict[str, Variant]:
    """The same variants on a stream of six tasks."""
    cell = Cell("permuted-mnist", "bayesbinn", {"continual.tasks": 6, "continual.rows": "diagonal"})
    variants = {key: replace(variant, cell=cell) for key, variant in continual_stream.VARIANTS.items()}
    monkeypatch.setattr(continual_stream, "VARIANTS", variants)
    return variants


def stream_lines(last: float) -> list[dict[str, Any]]:
    """95 when learned; at the end, 30 on task 1 and `last` on the others."""
    lines = [line(task, 1 - 0.1 * task, none={str(task): 95.0}) for task in range(1, 6)]
    return [*lines, line(6, 0.4, none={"1": 30.0, **{str(task): last for task in range(2, 7)}})]


def test_stream_from_known_runs(tmp_path: Path, short_stream: dict[str, Variant]) -> None:
    """Hand-computed: 70 ± 3 and 80 ± 4 (ddof = 1: √18 and √32) are 10/√50 combined standard deviations apart."""
    auroc = {"noise": {"entropy": 0.9, "mutual_information": 0.8}, "permutation": {"entropy": 0.7}}
    for key, seed, last in (("plain", 1, 67.0), ("plain", 2, 73.0), ("memory", 1, 76.0), ("memory", 2, 84.0)):
        variant = short_stream[key]
        folder = tmp_path / "runs" / f"{variant.stem}-{seed}"
        fabricate(folder, variant.cell, seed, stream_lines(last), end={"auroc": auroc})
    _, text, numbers = reproduced("figure-stream", tmp_path, seeds=2)
    learned = (5 * 95 + 70) / 6
    assert row_of(text, "BayesBiNN, posterior as prior", "none")[2:] == [
        *("70.00 ± 3.00", "30.00 ± 0.00", "63.33 ± 2.50", f"{learned:.2f} ± 0.50", "0.400 ± 0.000", "0.250 ± 0.000"),
        *("0.900 ± 0.000", "0.800 ± 0.000", "0.700 ± 0.000", "", "6", "100", "100", "6 s", "12 s", "1, 2"),
    ]
    gain = numbers["memory above plain, in combined standard deviations"]
    assert gain == {"none": pytest.approx(10 / math.sqrt(50))} and "+1.4 combined standard deviations" in text
    assert row_of(text, "BiMU")[1] == "not run: no run found"
    assert row_of(text, "BayesBiNN, published")[2] == "67.9" and row_of(text, "BiMU, published")[2] == "90.3"
    assert numbers["published"] == published.STREAM
    assert numbers["variants"]["memory"]["at the end"][1] == [30, 84, 84, 84, 84, 84]


def test_numbers_of_runs_without_records_are_kept_and_marked(
    tmp_path: Path, no_chart: None, short_stream: dict[str, Variant]
) -> None:
    """Drawn again when the runs are gone, a figure has the same numbers, also beside a run that is new."""
    variant, auroc = short_stream["plain"], {"noise": {"entropy": 0.9, "mutual_information": 0.8}}
    folders = [tmp_path / "runs" / f"{variant.stem}-{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        fabricate(folder, variant.cell, seed, stream_lines(60.0 + 5 * seed), end={"auroc": auroc})
    _, _, before = reproduced("figure-stream", tmp_path, seeds=2)
    shutil.rmtree(folders[0])
    _, text, after = reproduced("figure-stream", tmp_path, seeds=2)
    old, new = before["variants"]["plain"], after["variants"]["plain"]
    assert new.pop("earlier") == [1] and old.pop("earlier") == []
    assert sorted(new.pop("train seconds")) == sorted(old.pop("train seconds"))
    assert new == old
    assert row_of(text, variant.label, "none")[-1] == "1*, 2" and "only their numbers are left" in text
    # Another budget is another experiment: its numbers are not taken.
    _, text, other = reproduced("figure-stream", tmp_path, seeds=2, epochs=7)
    assert other["variants"]["plain"]["seeds"] == []


def test_kept_numbers_of_the_five_tasks(tmp_path: Path, no_chart: None) -> None:
    folder = tmp_path / "runs" / "permuted-mnist-bayesbinn-1"
    epochs = [
        {"task": task, "epoch": 50, "train_loss": 1.0, "seconds": 1.0, "accuracy": [50.0 + task] * task}
        for task in range(1, 6)
    ]
    start = {**weights(0.0), "baseline": [10.0] * 5}
    fabricate(folder, CELL, 1, five_tasks(2), epochs=epochs, start=start)
    for name in ("figure-continual", "figure-posteriors"):
        reproduced(name, tmp_path)
    before = [json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in NAMES[:2]]
    shutil.rmtree(folder)
    after = [reproduced(name, tmp_path)[2] for name in NAMES[:2]]
    before[0]["variants"]["bayesbinn"]["earlier"] = before[1]["rows"]["BayesBiNN, posterior as prior"]["earlier"] = [1]
    assert after == before


def test_one_seed_is_not_compared(tmp_path: Path, no_chart: None, short_stream: dict[str, Variant]) -> None:
    for variant in short_stream.values():
        fabricate(tmp_path / "runs" / f"{variant.stem}-1", variant.cell, 1, stream_lines(80.0))
    _, text, numbers = reproduced("figure-stream", tmp_path)
    assert numbers["memory above plain, in combined standard deviations"] == {} and "needs two seeds" in text


def gathered(variant: Variant, budget: Budget) -> Gathered:
    """What `gather` returns, without its lines."""

    def returned() -> Generator[str, None, None]:
        found.append((yield from gather(variant, budget)))

    found: list[Gathered] = []
    list(returned())
    return found[0]


def test_average_of_seen_tasks(tmp_path: Path, short_stream: dict[str, Variant]) -> None:
    """Known if all rows were measured, unknown if only the newest task was tested."""
    variant = short_stream["plain"]
    whole = [line(task, 0.5, none={str(old): 60.0 + old for old in range(1, task + 1)}) for task in range(1, 7)]
    for seed, lines in ((1, whole), (2, stream_lines(80.0))):
        fabricate(tmp_path / f"{variant.stem}-{seed}", variant.cell, seed, lines)
    known, unknown = gathered(variant, Budget(2, None, None, tmp_path, None, train=False)).runs
    average = continual_stream.average_of_seen(known)
    assert average is not None and average.tolist() == [61, 61.5, 62, 62.5, 63, 63.5]
    assert continual_stream.average_of_seen(unknown) is None


# ---- real runs ------------------------------------------------------------------------------------


def test_missing_runs_are_made_and_unfinished_ones_resumed(
    tmp_path: Path, no_chart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = {
        key: replace(variant, cell=replace(variant.cell, preset="permuted-digits"))
        for key, variant in continual.VARIANTS.items()
    }
    monkeypatch.setattr(continual, "VARIANTS", digits)
    options: dict[str, Any] = {"epochs": 1, "width": 0.2, "methods": "bayesbinn,no-prior", "train": True}
    cell, folder = digits["bayesbinn"].cell, tmp_path / "runs" / "permuted-mnist-bayesbinn-width0.2-0-e1"
    experiment = cell.experiment(Budget(1, 1, 0.2, tmp_path, None), 0)
    continual_runs.open_run(experiment, folder).train(stop_after=2)
    lines, text, numbers = reproduced("figure-continual", tmp_path, **options)
    assert "training (in task 3 of 5)" in lines[0] and "training (not found)" in lines[1]
    again, _, same = reproduced("figure-continual", tmp_path, **options)
    assert "reused" in again[0] and "reused" in again[1] and same["variants"] == numbers["variants"]
    measured = numbers["variants"]["bayesbinn"]["after the last task"]
    assert list(measured) == ["shared", "per-task", "recalibrated"]
    final = json.loads((folder / "tasks.jsonl").read_text().splitlines()[-1])["accuracy"]["per-task"]
    assert [measured["per-task"][f"Task {task}"]["mean"] for task in range(1, 6)] == list(final.values())
    assert row_of(text, "BayesBiNN, without prior", "recalibrated")[-4] != ""


def test_missing_data(tmp_path: Path, no_chart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are requested once; the rest of the figure is written."""
    asked = []

    def refuse(experiment: Any, folder: Path, data_dir: Path | None) -> Any:
        asked.append(folder)
        raise InvalidFile("mnist is not here")

    monkeypatch.setattr(continual_runs, "open_run", refuse)
    lines, text, _ = reproduced("figure-continual", tmp_path, methods="ste,bop", seeds=2, train=True)
    assert len(asked) == 1 and lines[1].endswith("permuted-mnist-ste-1: not run: mnist is not here")
    assert row_of(text, "Bop")[1] == "not run: mnist is not here"
