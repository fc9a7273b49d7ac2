"""Our versions of the paper's tables and figures."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn import paper
from bayesbinn.environment import describe
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import figure_moons as moons
from bayesbinn.paper import published, records
from bayesbinn.paper import table as comparison
from bayesbinn.paper.evidence import load_queue, planned
from bayesbinn.paper.figure_curves import authors_curves
from bayesbinn.paper.figure_functions import hard, hysteresis, relaxed
from bayesbinn.paper.figure_moons import Grid
from bayesbinn.paper.figure_snelson import curves_of, roughness
from bayesbinn.paper.gather import Budget, Cell, outcome_of
from bayesbinn.paper.page import page
from bayesbinn.paper.published import Value
from bayesbinn.paper.tables import SHORT_RATES, SHORT_RATES_MARGIN, TABLES
from bayesbinn.paper.toy import COLUMNS, Trio, standardized
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_trained
from bayesbinn.train.folder import RunFolder
from tests.helpers.figures import reproduced
from tests.helpers.markdown import table
from tests.helpers.places import ROOT

RESULTS = ROOT / "results" / "paper"
STE, MODE, MEAN = COLUMNS


pytestmark = pytest.mark.usefixtures("one_thread")


def fabricate(runs: Path, preset: str, method: str, seed: int, rows: list[dict[str, Any]], **changes: Any) -> Path:
    """Fabricate a finished run: `rows` are (train, validation, test[, mean]) accuracies by epoch."""
    overrides = {**changes, "training.seed": seed, "training.epochs": len(rows)}
    experiment = load_experiment(preset, method=method, overrides=overrides)
    tags = "".join(f"-{key}{value:g}" for key, value in changes.items())
    folder = runs / f"{preset}-{method}{tags}-{seed}-e{len(rows)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(experiment.to_toml(), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def row(epoch: int, train: float, validation: float | None, test: float, **more: float) -> dict[str, Any]:
    accuracies = {"train_accuracy": train, "validation_accuracy": validation, "test_accuracy": test}
    return {"epoch": epoch, "lr": 0.0, "train_loss": 0.0, "flip_ratio": 0.0, "seconds": 30.0, **accuracies, **more}


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to train fails as if the data set were missing."""
    from bayesbinn.errors import InvalidFile

    def refuse(experiment: Any, folder: RunFolder, data_dir: Path | None = None) -> Run:
        raise InvalidFile(f"{experiment.data.name} is not here")

    monkeypatch.setattr(Run, "open", refuse)


@pytest.fixture
def no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the chart, which takes longer than the rest of a test."""
    monkeypatch.setattr(comparison, "draw", lambda *args: [])


# ---- the paper's numbers --------------------------------------------------------------------------


def test_published_numbers_are_the_papers() -> None:
    assert str(published.DETAILED["mnist", "bayesbinn"].test) == "98.86 ± 0.05"
    assert str(published.DETAILED["cifar10", "bayesbinn-mean"].test) == "93.72 ± 0.15"
    assert str(published.DETAILED["cifar100", "float"].validation) == "75.89 ± 0.41"
    assert published.DETAILED["cifar10", "pmf"].train is None
    assert str(published.LEARNING_RATES[1e-2].train) == "99.46 ± 0.15"
    assert str(published.TEMPERATURES[1e-4].test) == "90.72 ± 0.42"
    assert str(published.LRNET["cifar10", "lrnet"]) == "93.18"
    assert len(published.DETAILED) == 18 and len(published.LEARNING_RATES) == 8
    assert list(published.TEMPERATURES) == pytest.approx([10.0**-k for k in range(3, 13)])


@pytest.mark.parametrize("dataset", published.DATASETS)
def test_the_authors_curves_give_the_papers_numbers(dataset: str) -> None:
    """First maximum of validation, mean and population std over seeds: to the last printed digit."""
    curves = {part: authors_curves()[dataset, part] for part in ("train", "validation", "test")}
    best = curves["validation"].argmax(1)
    for part, values in curves.items():
        found = Value.of(values[np.arange(5), best].tolist())
        expected = getattr(published.DETAILED[dataset, "bayesbinn"], part)
        assert found.mean == pytest.approx(expected.mean, abs=0.0051)
        assert found.std == pytest.approx(expected.std, abs=0.0051)


# ---- tables ---------------------------------------------------------------------------------------


def test_table_from_known_runs(tmp_path: Path, no_training: None) -> None:
    """Hand-computed: seed 1 selects epoch 2 (a first maximum), seed 2 epoch 1; 98.0 and 99.0 give 98.50 ± 0.50."""
    runs = tmp_path / "runs"
    fabricate(runs, "mnist", "ste", 1, [row(1, 90, 95, 94), row(2, 91, 97, 98), row(3, 92, 97, 12)])
    fabricate(runs, "mnist", "ste", 2, [row(1, 95, 96, 99), row(2, 13, 95, 14), row(3, 15, 94, 16)])
    lines, text, numbers = reproduced("table-detailed", tmp_path, seeds=2, epochs=3, methods="ste,bop")
    ste = next(line for line in text.splitlines() if "STE Adam" in line and "| MNIST" in line)
    assert [cell.strip() for cell in ste.split("|")[1:-1]] == [
        *("MNIST", "STE Adam", "93.00 ± 2.00", "99.78 ± 0.10", "96.50 ± 0.50", "99.02 ± 0.11"),
        *("98.50 ± 0.50", "98.85 ± 0.09", "3", "1, 2", "3.0 min"),
    ]
    first = numbers["rows"][0]
    assert first["selected epochs"] == [2, 1] and first["test"]["ours"]["values"] == [98, 99]
    assert first["seconds"] == 180 and first["seeds"] == [1, 2]
    bop = next(line for line in text.splitlines() if "Bop" in line and "| MNIST" in line)
    assert "not run: mnist is not here" in bop and "98.47 ± 0.02" in bop
    assert "not run: cifar100 is not here" in text and numbers["rows"][-1]["not run"] == "cifar100 is not here"
    assert any("mnist-ste-1-e3: reused" in line for line in lines)
    assert lines[-1].endswith("table-detailed.md, table-detailed.json, table-detailed.png, table-detailed.pdf")
    assert "| Machine" in text and "torch" in text
    assert sorted(path.name for path in runs.iterdir()) == ["mnist-ste-1-e3", "mnist-ste-2-e3"]  # nothing left behind


def test_stop_after_reads_no_later_epoch(tmp_path: Path, no_training: None, no_chart: None) -> None:
    fabricate(tmp_path / "runs", "mnist", "ste", 1, [row(1, 90, 95, 94), row(2, 91, 97, 98), row(3, 92, 99, 99)])
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=3, methods="ste", stop_after=2)
    assert numbers["rows"][0]["test"]["ours"]["mean"] == 98 and "2 of 3" in text


def test_the_mean_is_the_mode_only_if_the_samples_are(tmp_path: Path, no_training: None, no_chart: None) -> None:
    runs = tmp_path / "runs"
    folder = fabricate(runs, "mnist", "bayesbinn", 1, [row(1, 90, 95, 94)])

    def mean_row() -> str:
        _, text, _ = reproduced("table-accuracy", tmp_path, epochs=1, methods="bayesbinn")
        return next(line for line in text.splitlines() if "BayesBiNN (mean)" in line and "| MNIST" in line)

    assert "not measured" in mean_row()
    BernoulliPosterior({"weight": torch.tensor([1e9, -1e9])}).save(folder / "posterior.safetensors")
    assert "94.00" in mean_row()
    BernoulliPosterior({"weight": torch.tensor([1e9, 1.0])}).save(folder / "posterior.safetensors")
    assert records.expected_flips(folder) == pytest.approx(1 / (1 + math.exp(2)))
    assert "not measured" in mean_row()
    (folder / "metrics.jsonl").write_text(json.dumps(row(1, 90, 95, 94, test_accuracy_mean=93.5)) + "\n")
    assert "93.50" in mean_row()


def test_the_lrnet_table_uses_the_last_epoch(tmp_path: Path, no_training: None, no_chart: None) -> None:
    fabricate(tmp_path / "runs", "lrnet-mnist", "bayesbinn", 1, [row(1, 90, None, 99), row(2, 91, None, 97)])
    _, text, numbers = reproduced("table-lrnet", tmp_path, epochs=2)
    ours = next(each for each in numbers["rows"] if each["Optimizer"] == "BayesBiNN (mode)")
    assert ours["test"] == {
        "ours": {"mean": 97, "std": None, "values": [97]},
        "paper": {"mean": 99.5, "std": 0.02},
    }
    assert "LR-net" in text and "not run: cifar10 is not here" in text


@pytest.mark.parametrize(
    ("name", "setting", "count"), [("learning-rates", "lr", 8), ("temperatures", "temperature", 10)]
)
def test_grids(tmp_path: Path, no_training: None, no_chart: None, name: str, setting: str, count: int) -> None:
    fabricate(tmp_path / "runs", f"mnist-{name}", "bayesbinn", 1, [row(1, 90, 95, 94)], **{setting: 1e-3})
    _, text, numbers = reproduced(f"table-{name}", tmp_path, epochs=1)
    measured = [each for each in numbers["rows"] if each["test"]["ours"]]
    assert len(numbers["rows"]) == count
    assert [next(iter(each.values())) for each in measured] == ["1e-3"] and measured[0]["test"]["ours"]["mean"] == 94
    assert "94.00" in text


def test_another_rate_replaces_the_preset_s_and_is_stated(tmp_path: Path, no_training: None, no_chart: None) -> None:
    fabricate(tmp_path / "runs", "mnist", "bop", 1, [row(1, 90, 95, 94)])
    fabricate(tmp_path / "runs", "mnist", "bop", 1, [row(1, 90, 95, 97)], lr=1e-4)
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=1, methods="bop")
    assert numbers["rows"][0]["test"]["ours"]["mean"] == 94 and numbers["other rates"] == []
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=1, methods="bop", rates={"mnist.bop": 1e-4})
    assert numbers["rows"][0]["test"]["ours"]["mean"] == 97
    assert "MNIST, Bop: learning rate 0.0001 instead of 1e-05." in text
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=1, methods="bop", rates={"mnist.bop": 1e-3})
    assert "MNIST, Bop: learning rate 0.001 instead of 1e-05, chosen on validation data" in text
    grid = {"mnist-temperatures.bayesbinn": 0.3}
    _, text, _ = reproduced("table-temperatures", tmp_path, epochs=1, rates=grid)
    assert "1e-3: learning rate 0.3 instead of 0.0001." in text


def test_a_table_names_the_machine_that_ran_its_runs(tmp_path: Path, no_training: None, no_chart: None) -> None:
    folder = fabricate(tmp_path / "runs", "mnist", "bop", 1, [row(1, 90, 95, 94)])
    origin = {"command": "x", "commit": "x", "seconds": 1.0, "sha256": "x", "posterior": None}
    elsewhere = {**describe(), "processor": "Another processor"}
    (folder / records.RECORD).write_text(json.dumps({**origin, "machine": elsewhere}))
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=1, methods="bop")
    assert numbers["machine"]["Machine"] == f"Another processor, {describe()['cores']} cores"
    fabricate(tmp_path / "runs", "mnist", "bop", 2, [row(1, 90, 95, 94)])  # without a record, so it ran here
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=1, seeds=2, methods="bop")
    assert numbers["machine"]["Machine"].startswith("Another processor, ")
    assert numbers["machine"]["Machine"].endswith(f" and {describe()['processor']}, {describe()['cores']} cores")
    assert numbers["machine"]["Machine"] in text


def test_short_schedules_keep_the_paper_s_rate_unless_another_is_clearly_better() -> None:
    """The queue's choice follows from the validation accuracies in the repository's table."""
    rows = json.loads((ROOT / "results" / "paper" / "table-rates.json").read_text())["rows"]
    parts = [each for each in load_queue().parts if each.name in ("mnist-20", "lrnet")]
    runs = [run.experiment.method for part in parts for run in planned(part) if run.arguments[1] == "mnist"]
    tables = [shown for part in parts for shown in part.show if shown.name in ("table-accuracy", "table-detailed")]
    assert len(tables) == 4
    titles = {**published.OPTIMIZERS, "lrnet": "LR-net"}
    for method, (usual, *_) in SHORT_RATES.items():
        reached = {
            float(each["Learning rate"]): each["validation"]["ours"]["mean"]
            for each in rows
            if each["Optimizer"] == titles[method]
        }
        best = max(reached, key=lambda rate: reached[rate])
        wanted = best if round(reached[best] - reached[usual], 6) > SHORT_RATES_MARGIN else usual
        assert {each.settings["lr"] for each in runs if each.name == method} == {wanted}, method
        assert {shown.rates.get(f"mnist.{method}", usual) for shown in tables} == {wanted}, method


def test_every_record_of_a_table_is_in_it() -> None:
    """Run `bayesbinn reproduce all --no-train` if this fails."""
    kept = ROOT / "results" / "runs"
    for part in load_queue().parts:
        recorded = [run for run in planned(part) if records.provenance(kept / run.name)]
        for shown in part.show:
            if shown.name in TABLES and recorded:
                rows = json.loads((RESULTS / f"{shown.name}.json").read_text())["rows"]
                there = {run["run"] for each in rows for run in each["runs"]}
                presets = {line.cell.preset for line in TABLES[shown.name](None).lines}
                for run in recorded:
                    if run.arguments[1] in presets and run.name not in there:
                        twin = records.find(kept, run.experiment)  # of two equal experiments, either may be shown
                        assert twin is not None and twin.name in there, f"{run.name} is not in {shown.name}"


def test_runs_are_made_once(tmp_path: Path) -> None:
    """The second time, everything is reused, including runs in the default folder of `train`; stopped runs resume."""
    cell = Cell("digits", "ste")

    def lines(**options: Any) -> list[str]:
        budget = Budget(1, 2, 0.1, tmp_path, None, **options)
        return list(outcome_of(cell, budget))

    assert "training to epoch 1 of 2" in lines(stop_after=1)[0]
    assert "training to epoch 2 of 2" in lines()[0]
    folder = tmp_path / "digits-ste-width0.1-0-e2"
    before = (folder / "checkpoint.pt").stat().st_mtime_ns
    assert "reused, 2 of 2" in lines()[0]
    folder.rename(tmp_path / "digits-ste-0")
    assert "digits-ste-0: reused" in lines()[0]
    assert (tmp_path / "digits-ste-0" / "checkpoint.pt").stat().st_mtime_ns == before
    assert "training" in next(outcome_of(cell, Budget(1, 3, 0.1, tmp_path, None)))  # a different experiment


def test_names_and_arguments(tmp_path: Path) -> None:
    listed = list(paper.reproduce("list"))
    assert len(listed) == len(paper.NAMES) == 14
    for name, options, message in (
        ("figure-moon", {}, "Did you mean 'figure-moons'"),
        ("table-accuracy", {"methods": "ste,bob"}, "Did you mean 'bop'"),
        ("table-temperatures", {"methods": "ste"}, "Allowed: bayesbinn"),
        ("figure-moons", {"methods": "ste"}, "leave it out"),
        ("table-accuracy", {"seeds": 0}, "--seeds 0"),
        ("table-accuracy", {"stop_after": -1}, "--stop-after -1"),
        ("table-accuracy", {"rates": {"mnist.bob": 1.0}}, "Did you mean 'mnist.bop'"),
        ("table-accuracy", {"rates": {"mnist.bop": 0.0}}, "must be a number above 0"),
        ("figure-moons", {"rates": {"mnist.bop": 1.0}}, "Leave it out"),
        ("table-rates", {"rates": {"mnist.bop": 1.0}}, "it replaces no learning rate here"),
    ):
        with pytest.raises(InvalidInput, match=message):
            paper.reproduce(name, runs=tmp_path, out=tmp_path, **options)
    assert not list(tmp_path.iterdir())


# ---- figures --------------------------------------------------------------------------------------


def test_functions(tmp_path: Path) -> None:
    _, _, numbers = reproduced("figure-functions", tmp_path)
    assert numbers["sign"] == [-1, -1, -1, -1, 1, 1, 1, 1]
    assert numbers["hysteresis from −1"] == [-1, -1, -1, -1, -1, -1, 1, 1]
    assert numbers["hysteresis from +1"] == [-1, -1, 1, 1, 1, 1, 1, 1]
    assert numbers["tanh, τ = 0.1"][4] == pytest.approx(math.tanh(1))
    x = np.linspace(-1, 1, 40)
    assert relaxed(x, 1e-3) == pytest.approx(hard(x)) and hysteresis(x, -hard(x), 0.0) == pytest.approx(hard(x))


def test_curves(tmp_path: Path, no_training: None) -> None:
    """A run that was stopped early is shown up to its last epoch, next to the authors' epochs."""
    fabricate(tmp_path / "runs", "mnist", "bayesbinn", 1, [row(1, 92, 96, 96.5), row(2, 95, 97, 97.5)])
    fabricate(tmp_path / "runs", "mnist", "bayesbinn", 2, [row(1, 93, 97, 97.5), row(2, 95, 97, 97.5)])
    metrics = tmp_path / "runs" / "mnist-bayesbinn-2-e2" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    lines, text, numbers = reproduced("figure-curves", tmp_path, seeds=2, epochs=2)
    mnist = numbers["data"]["mnist"]
    assert mnist["test"]["ours"] == [[96.5], [97.5]] and mnist["test"]["epochs"] == [1]
    assert mnist["test"]["authors mean"] == [pytest.approx(96.766)]
    assert "97.00 ± 0.50" in text and "96.77 ± 0.16" in text and "reused, 1 of 2" in lines[1]
    assert numbers["data"]["cifar100"]["not run"] == "cifar100 is not here"


def test_a_shorter_schedule_stands_in_until_the_papers_has_been_run(tmp_path: Path, no_training: None) -> None:
    """Epoch e of 100 is compared with the authors' epoch 5e of 500."""
    short = [row(epoch, 90 + epoch / 20, 91 + epoch / 20, 93 + epoch / 20) for epoch in range(1, 101)]
    fabricate(tmp_path / "runs", "mnist", "bayesbinn", 1, short)
    _, text, numbers = reproduced("figure-curves", tmp_path, train=False)
    found, theirs = numbers["stand-in"], authors_curves()["mnist", "test"]
    assert (found["schedule"], found["seed"], found["data"], len(found["epochs"])) == (100, 1, "mnist", 100)
    assert found["test"]["ours"][-1] == 98 and found["test"]["authors mean"][19] == pytest.approx(theirs[:, 99].mean())
    shown = {each["Epoch of 100"]: each for each in table(text, "Epoch of 100")}
    assert list(shown) == ["1", "2", "5", "10", "20", "50", "100"]
    last = str(Value.of(theirs[:, 499].tolist()))
    assert (shown["100"]["Test, ours"], shown["100"]["Test, authors"]) == ("98.00", last)
    assert shown["20"]["Authors' epoch of 500"] == "100" and shown["20"]["Train, ours"] == "91.00"
    said = f"98.00 % on test data after its last epoch, the authors' runs {last} % after theirs"
    shutil.copytree(tmp_path / "out", tmp_path / "results" / "paper")
    assert said in page(tmp_path / "results")

    whole = [row(epoch, 95, 98 if epoch in (321, 400) else 96, epoch / 10) for epoch in range(1, 501)]
    fabricate(tmp_path / "runs", "mnist", "bayesbinn", 1, whole)
    _, text, numbers = reproduced("figure-curves", tmp_path, train=False)
    assert "stand-in" not in numbers and "in place of" not in text
    said = (
        "MNIST, the paper's whole schedule, seed 1: 32.10 % on test data in the first epoch with the best validation "
        "accuracy (epoch 321), the paper 98.86 ± 0.05 %; 50.00 % after the last epoch, the authors' runs "
        "98.88 ± 0.04 %."
    )
    shutil.copytree(tmp_path / "out", tmp_path / "results" / "paper", dirs_exist_ok=True)
    assert said in text and said in page(tmp_path / "results")


def test_without_training_only_existing_runs_are_used(tmp_path: Path, no_chart: None) -> None:
    fabricate(tmp_path / "runs", "mnist", "bayesbinn", 2, [row(1, 92, 96, 96.5)])
    lines, text, numbers = reproduced("figure-curves", tmp_path, seeds=3, epochs=1, train=False)
    assert [line.rpartition(": ")[2].split(",")[0] for line in lines[:3]] == ["not found", "reused", "not found"]
    assert numbers["data"]["mnist"]["seeds"] == [2] and numbers["data"]["mnist"]["not run"] == "no run found"
    assert numbers["data"]["cifar10"]["not run"] == "no run found" and "not run: no run found" in text


def test_moons_on_a_short_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few epochs after its start at ±15 the posterior is still sharp: the mean is only slightly less sure."""
    monkeypatch.setattr(moons, "STEP", 0.05)
    lines, text, numbers = reproduced("figure-moons", tmp_path, epochs=100)
    found = numbers["seeds"]["0"]
    assert [name for name in COLUMNS if name in text] == list(found) == list(COLUMNS)
    far = {name: each["Entropy far from the data"] for name, each in found.items()}
    assert far[MEAN] > far[MODE] > 0
    assert found[STE]["Train accuracy"] > 95
    assert len(lines) == 3 and numbers["epochs"] == 100
    assert lines[-1].endswith("figure-moons.png, figure-moons.pdf")


def test_grid_and_distance() -> None:
    grid = Grid.around(torch.tensor([[0.0, 0.0], [1.0, 0.5]]), step=0.1)
    x = grid.points()
    assert len(x) == len(grid.across) * len(grid.up) == len(grid.distance)
    assert x[0].tolist() == pytest.approx([-0.3, -0.3]) and x[1].tolist() == pytest.approx([-0.2, -0.3])
    assert grid.distance[0] == pytest.approx(math.hypot(0.3, 0.3))


def test_snelson_on_a_short_budget(tmp_path: Path, data_dir: Path) -> None:
    _, text, numbers = reproduced("figure-snelson", tmp_path, epochs=60, data_dir=data_dir)
    grid = numbers["seeds"]["0"]["grid"]
    assert set(grid[MEAN]) - set(grid[STE]) == {"Std where there are data", "Std where there are none"}
    assert "mean squared second derivative" in text
    _, dataset, bayes, posterior = load_trained(tmp_path / "runs" / "snelson-bayesbinn-0-e60", data_dir)
    _, _, ste, _ = load_trained(tmp_path / "runs" / "snelson-ste-0-e60", data_dir)
    assert posterior is not None
    trio = Trio(0, dataset, ste, bayes, posterior)
    curves = curves_of(trio, "grid")
    assert curves.std.numpy() == pytest.approx(np.std(curves.samples.numpy(), axis=0, ddof=1), abs=1e-5)
    assert grid[MEAN]["Roughness"] == pytest.approx(roughness(curves.x, curves.samples.mean(0)))
    inside = (curves.x >= standardized(trio)[0].min()) & (curves.x <= standardized(trio)[0].max())
    assert grid[MEAN]["Std where there are none"] == pytest.approx(float(curves.std[~inside].mean()))
    # As the authors do: the whole grid in training mode.
    x = dataset.normaliser(dataset.test_inputs).sort(0).values
    posterior.apply(bayes)
    assert torch.allclose(bayes.train()(x).flatten(), curves.mode, atol=1e-5)
    # With the statistics of the training data, the curve at the training inputs is standardized.
    on_data = curves_of(replace(trio, dataset=replace(dataset, test_inputs=dataset.train_inputs)), "data")
    for curve in (on_data.ste, on_data.mode, *on_data.samples):
        assert float(curve.mean()) == pytest.approx(0, abs=1e-5)
        assert float(curve.std(correction=0)) == pytest.approx(1, abs=1e-3)


# ---- the committed results ------------------------------------------------------------------------


def measured_in(folder: Path, name: str, epochs: int) -> list[dict[str, Any]]:
    numbers = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert numbers["epochs"] == numbers["last epoch"] == epochs
    return list(numbers["seeds"].values())


def check_moons(folder: Path) -> None:
    """Far from the data the mean is less sure than the mode and STE."""
    for found in measured_in(folder, "figure-moons", 3000):
        far = {name: each["Entropy far from the data"] for name, each in found.items()}
        assert far[MEAN] > far[MODE] and far[MEAN] > far[STE]


def check_snelson(folder: Path) -> None:
    """The mean is smoother than STE; scaled by the training data, it is less sure where there are none."""
    for found in measured_in(folder, "figure-snelson", 5000):
        for how in ("grid", "data"):
            assert found[how][MEAN]["Roughness"] < found[how][STE]["Roughness"]
        assert found["data"][MEAN]["Std where there are none"] > found["data"][MEAN]["Std where there are data"]


def test_committed_figures_show_the_papers_claims() -> None:
    check_moons(RESULTS)
    check_snelson(RESULTS)


@pytest.mark.slow
def test_full_protocol_shows_the_papers_claims(tmp_path: Path, data_dir: Path) -> None:
    reproduced("figure-moons", tmp_path)
    reproduced("figure-snelson", tmp_path, data_dir=data_dir)
    check_moons(tmp_path / "out")
    check_snelson(tmp_path / "out")
