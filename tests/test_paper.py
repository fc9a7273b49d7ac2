"""The paper's tables and figures next to ours."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn import paper
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import published
from bayesbinn.paper.cells import Budget, Cell, expected_flips, outcome_of
from bayesbinn.paper.curves import authors_curves
from bayesbinn.paper.functions import hard, hysteresis, relaxed
from bayesbinn.paper.moons import FAR, Grid
from bayesbinn.paper.published import Value
from bayesbinn.paper.snelson import Curves, curves_of, roughness
from bayesbinn.paper.toy import COLUMNS, Trio
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runs import Run, load_trained

RESULTS = Path(__file__).parents[1] / "results" / "paper"
STE, MODE, MEAN = COLUMNS


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def reproduced(name: str, folder: Path, **options: Any) -> tuple[list[str], str, dict[str, Any]]:
    """The lines, the Markdown and the numbers; all four files must be there and say something."""
    options = {"runs": folder / "runs", "out": folder / "out", **options}
    lines = list(paper.reproduce(name, **options))
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        content = (folder / "out" / f"{name}.{suffix}").read_bytes()
        assert content.startswith(magic) and len(content) > 5000
    text = (folder / "out" / f"{name}.md").read_text(encoding="utf-8")
    return lines, text, json.loads((folder / "out" / f"{name}.json").read_text(encoding="utf-8"))


def fabricate(runs: Path, preset: str, method: str, seed: int, rows: list[dict[str, Any]], **changes: Any) -> Path:
    """A finished run that nobody ran: `rows` are (train, validation, test[, mean]) accuracies by epoch."""
    overrides = {**changes, "training.seed": seed, "training.epochs": len(rows)}
    experiment = load_experiment(preset, method=method, overrides=overrides)
    tags = "".join(f"-{key}{value:g}" for key, value in changes.items())
    folder = runs / f"{preset}-{method}{tags}-{seed}-e{len(rows)}"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(experiment.to_toml(), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def row(epoch: int, train: float, validation: float | None, test: float, **more: float) -> dict[str, Any]:
    accuracies = {"train_accuracy": train, "validation_accuracy": validation, "test_accuracy": test}
    return {"epoch": epoch, "lr": 0.0, "train_loss": 0.0, "flip_ratio": 0.0, "seconds": 30.0, **accuracies, **more}


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any run that would have to be trained is a data set that is not there."""

    def refuse(experiment: Any, folder: Path, data_dir: Path | None = None) -> Run:
        folder.mkdir(parents=True)
        from bayesbinn.errors import InvalidFile

        raise InvalidFile(f"{experiment.data.name} is not\nhere")

    monkeypatch.setattr(Run, "open", refuse)


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
    assert "| Machine" in text and "torch" in text
    assert sorted(path.name for path in runs.iterdir()) == ["mnist-ste-1-e3", "mnist-ste-2-e3"]  # nothing left behind


def test_stop_after_reads_no_later_epoch(tmp_path: Path, no_training: None) -> None:
    fabricate(tmp_path / "runs", "mnist", "ste", 1, [row(1, 90, 95, 94), row(2, 91, 97, 98), row(3, 92, 99, 99)])
    _, text, numbers = reproduced("table-accuracy", tmp_path, epochs=3, methods="ste", stop_after=2)
    assert numbers["rows"][0]["test"]["ours"]["mean"] == 98 and "2 of 3" in text


def test_the_mean_is_the_mode_only_where_samples_are(tmp_path: Path, no_training: None) -> None:
    runs = tmp_path / "runs"
    folder = fabricate(runs, "mnist", "bayesbinn", 1, [row(1, 90, 95, 94)])

    def mean_row() -> str:
        _, text, _ = reproduced("table-accuracy", tmp_path, epochs=1, methods="bayesbinn")
        return next(line for line in text.splitlines() if "BayesBiNN (mean)" in line and "| MNIST" in line)

    assert "not measured" in mean_row()
    BernoulliPosterior({"weight": torch.tensor([1e9, -1e9])}).save(folder / "posterior.safetensors")
    assert "94.00" in mean_row()
    BernoulliPosterior({"weight": torch.tensor([1e9, 1.0])}).save(folder / "posterior.safetensors")
    assert expected_flips(folder) == pytest.approx(1 / (1 + math.exp(2)))
    assert "not measured" in mean_row()
    (folder / "metrics.jsonl").write_text(json.dumps(row(1, 90, 95, 94, test_accuracy_mean=93.5)) + "\n")
    assert "93.50" in mean_row()


def test_lrnet_table_is_of_the_last_epoch(tmp_path: Path, no_training: None) -> None:
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
def test_grids(tmp_path: Path, no_training: None, name: str, setting: str, count: int) -> None:
    fabricate(tmp_path / "runs", f"mnist-{name}", "bayesbinn", 1, [row(1, 90, 95, 94)], **{setting: 1e-3})
    _, text, numbers = reproduced(f"table-{name}", tmp_path, epochs=1)
    measured = [each for each in numbers["rows"] if each["test"]["ours"]]
    assert len(numbers["rows"]) == count
    assert [list(each.values())[0] for each in measured] == ["1e-3"] and measured[0]["test"]["ours"]["mean"] == 94
    assert "94.00" in text


def test_runs_are_made_once(tmp_path: Path) -> None:
    """The second time everything is reused, also from where `train` keeps runs by default; a resumed run goes on."""
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
    assert "training" in next(outcome_of(cell, Budget(1, 3, 0.1, tmp_path, None)))  # another experiment


def test_names_and_arguments(tmp_path: Path) -> None:
    listed = list(paper.reproduce("list"))
    assert len(listed) == len(paper.NAMES) == 9
    for name, options, message in (
        ("figure-moon", {}, "Did you mean 'figure-moons'"),
        ("table-accuracy", {"methods": "ste,bob"}, "Did you mean 'bop'"),
        ("table-temperatures", {"methods": "ste"}, "There are bayesbinn"),
        ("figure-moons", {"methods": "ste"}, "leave it out"),
        ("table-accuracy", {"seeds": 0}, "--seeds 0"),
        ("table-accuracy", {"stop_after": -1}, "--stop-after -1"),
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
    """A run that was stopped early is shown as far as it has come, next to the authors' epochs."""
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


def test_moons_on_a_short_budget(tmp_path: Path) -> None:
    """Of a tenth of the epochs the mean is already less sure than a single network far from the data."""
    lines, text, numbers = reproduced("figure-moons", tmp_path, epochs=150)
    found = numbers["seeds"]["0"]
    assert [name for name in COLUMNS if name in text] == list(found) == list(COLUMNS)
    far = {name: each["Entropy far from the data"] for name, each in found.items()}
    assert far[MEAN] > far[MODE] and far[MEAN] > far[STE]
    assert found[STE]["Train accuracy"] > 95
    assert len(lines) == 3 and numbers["epochs"] == 150


def test_grid_and_distance() -> None:
    grid = Grid.around(torch.tensor([[0.0, 0.0], [1.0, 0.5]]), step=0.1)
    x = grid.points()
    assert len(x) == len(grid.across) * len(grid.up) == len(grid.distance)
    assert x[0].tolist() == pytest.approx([-0.3, -0.3]) and x[1].tolist() == pytest.approx([-0.2, -0.3])
    assert grid.distance[0] == pytest.approx(math.hypot(0.3, 0.3))


def test_snelson_on_a_short_budget(tmp_path: Path, data_dir: Path) -> None:
    _, text, numbers = reproduced("figure-snelson", tmp_path, epochs=60, data_dir=data_dir)
    found = numbers["seeds"]["0"]
    assert set(found[MEAN]) - set(found[STE]) == {"Std where there are data", "Std where there are none"}
    assert all(each["Roughness"] > 0 for each in found.values()) and "mean squared second derivative" in text
    curves, trio = _curves(tmp_path / "runs", data_dir)
    for curve in (curves.ste, curves.mode, *curves.samples):
        assert float(curve.mean()) == pytest.approx(0, abs=1e-5)
        assert float(curve.std(correction=0)) == pytest.approx(1, abs=1e-3)
    assert torch.equal(curves.std, torch.from_numpy(np.std(curves.samples.numpy(), axis=0, ddof=1))) or torch.allclose(
        curves.std, torch.from_numpy(np.std(curves.samples.numpy(), axis=0, ddof=1))
    )
    assert found[MEAN]["Roughness"] == pytest.approx(roughness(curves.x, curves.samples.mean(0)))
    assert not trio.bayes.training  # predicting in training mode left no trace


def _curves(runs: Path, data_dir: Path) -> tuple[Curves, Trio]:
    _, dataset, bayes, posterior = load_trained(runs / "snelson-bayesbinn-0-e60", data_dir)
    _, _, ste, _ = load_trained(runs / "snelson-ste-0-e60", data_dir)
    assert posterior is not None
    before = {key: value.clone() for key, value in bayes.state_dict().items()}
    trio = Trio(0, dataset, ste, bayes, posterior)
    curves = curves_of(trio)
    assert all(torch.equal(before[key], value) for key, value in bayes.state_dict().items())
    return curves, trio


# ---- the committed results ------------------------------------------------------------------------


def committed(name: str, epochs: int) -> list[dict[str, dict[str, float]]]:
    numbers = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert numbers["epochs"] == numbers["last epoch"] == epochs
    return list(numbers["seeds"].values())


def test_committed_moons_shows_the_papers_claim() -> None:
    for found in committed("figure-moons", 3000):
        far = {name: each["Entropy far from the data"] for name, each in found.items()}
        assert far[MEAN] > far[MODE] and far[MEAN] > far[STE]
    assert FAR == json.loads((RESULTS / "figure-moons.json").read_text(encoding="utf-8"))["far"]


def test_committed_snelson_shows_the_papers_claim() -> None:
    for found in committed("figure-snelson", 5000):
        assert found[MEAN]["Roughness"] < found[STE]["Roughness"]
        assert found[MEAN]["Std where there are none"] > found[MEAN]["Std where there are data"]
