"""Sweeps and searches over a user's own data, classes and quantities."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments.config import load_experiment
from bayesbinn.runs.open import prepare
from bayesbinn.sweeps.grid import load_grid
from bayesbinn.sweeps.search import load_search
from tests.helpers.processes import warm_python

SHORT = "[set]\ntraining.epochs = 2\ntraining.mean_samples = 0\nmodel.hidden = 8\n"


def table(path: Path, *, regression: bool = False, rows: int = 90) -> Path:
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 3)).round(4)
    y = 100 + 10 * x[:, 0] + random.normal(size=rows) if regression else ["elm" if v > 0 else "oak" for v in x[:, 0]]
    lines = [",".join(map(str, [*row, label])) for row, label in zip(x.tolist(), y, strict=True)]
    path.write_text("\n".join(["a,b,c,species", *lines]) + "\n")
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def call(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [warm_python(), "-m", "bayesbinn", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


def test_a_grid_over_a_table_chooses_as_train_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "trees.csv")
    path = written(tmp_path / "g.toml", 'experiment = "trees.csv"\nlabel = "species"\nmethods = ["bayesbinn", "ste"]\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the path is relative to the file, not to the working directory
    sweep = load_grid(path)
    for planned, experiment in sweep.runs:
        asked = prepare(str(tmp_path / "trees.csv"), planned.method, None, None, "species", [], None)
        assert experiment == asked.experiment
    assert [planned.method for planned in sweep.planned] == ["bayesbinn", "ste"]
    assert sum("training and" in note for note in sweep.notes) == 1, "notes common to both methods appear once"
    assert sum("chosen settings" in note for note in sweep.notes) == 2


def test_a_grid_over_arrays_and_a_folder(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y)
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    for name in ("d.npz", "arrays"):
        sweep = load_grid(written(tmp_path / "g.toml", f'experiment = "{name}"\nseeds = 2\n'))
        assert [each.data.name for _, each in sweep.runs] == [str((tmp_path / name).resolve())] * 2


MISTAKES = [
    ('experiment = "trees.csv"\n', "label"),
    ('experiment = "trees.csv"\nlabel = "specie"\n', "Did you mean 'species'?"),
    ('experiment = "trees.csv"\nlabel = 3\n', "label must be the name of a column, received 3"),
    ('experiment = "digits"\nlabel = "species"\n', "label is only for your own table, but digits is an experiment"),
    ('experiment = "tree.csv"\nlabel = "species"\n', "no such file or folder"),
    ('experiment = "trees.csv"\nlabel = "species"\n[set]\ndata.task = ["x"]\n', "data.task"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_gets_one_line(text: str, message: str, tmp_path: Path) -> None:
    table(tmp_path / "trees.csv")
    head, _, tables = text.partition("[set]")
    for load, extra in ((load_grid, "seeds = 2\n"), (load_search, "search.lr = {low=0.1, high=1}\n")):
        path = written(tmp_path / "f.toml", head + extra + ("[set]" + tables if tables else ""))
        with pytest.raises(BayesbinnError) as caught:
            load(path)
        assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_search_over_a_regression_table_minimizes_the_rmse(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    table(tmp_path / "heights.csv", regression=True)
    ranges = "[search]\nlr = {low=1e-4, high=1e-1, log=true}\n"
    written(tmp_path / "s.toml", f'experiment = "heights.csv"\nlabel = "species"\n{ranges}{SHORT}')
    done = call("sweep", "search", "s.toml", "--trials", "3", "--workers", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("regression: the label has") == 1 and "this file varies lr" in done.stderr
    answer = json.loads(done.stdout)
    with (tmp_path / "sweeps/s/results.csv").open() as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    errors = {name: float(row["best_validation_rmse"]) for name, row in rows.items()}
    assert len(errors) == 3 and answer["best"] == min(errors, key=errors.__getitem__)
    assert answer["validation RMSE"] == pytest.approx(min(errors.values()))
    status = call("sweep", "status", "sweeps/s", cwd=tmp_path)
    assert "validation RMSE" in status.stdout and "test RMSE" in status.stdout
    settings = load_experiment(str(tmp_path / "sweeps/s/best.toml")).method.settings
    assert settings["lr"] == float(rows[answer["best"]]["lr"])
    trained = call("train", "sweeps/s/best.toml", "--out", "again", "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    report = json.loads(trained.stdout)
    best = next(value for key, value in report.items() if key.startswith("best validation"))
    assert best["validation RMSE"] == pytest.approx(answer["validation RMSE"])
