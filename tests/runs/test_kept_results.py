"""Calibrations and residuals in a run's folder: used for the network they were fitted to, and only if undamaged."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesbinn.errors import InvalidFile
from bayesbinn.posterior import LogitScale
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_network
from bayesbinn.train import calibration
from bayesbinn.train.progress import Progress, RunStopped
from tests.helpers.commands import Call
from tests.runs.test_data import wine_experiment, write_wine
from tests.train.test_residuals import linear, predicted

pytestmark = pytest.mark.usefixtures("one_thread")


def flip_a_digit(path: Path, key: str) -> None:
    """Change a digit in the first number under a key; the file stays valid JSON."""
    text = path.read_text()
    digit = re.search(rf'"{key}": \d*\.(\d)', text)
    assert digit is not None
    place = digit.start(1)
    path.write_text(text[:place] + str((int(text[place]) + 5) % 10) + text[place + 1 :])


def wine_run(folder: Path, method: str, **training: Any) -> Path:
    settings = {"lr": 1e-3, "temperature": 1e-10} if method == "bayesbinn" else {}
    experiment = wine_experiment(
        write_wine(folder.parent / "g.csv"),
        method={"name": method, "settings": settings},
        training={"epochs": 3, "batch_size": 32, **training},
    )
    Run.open(experiment, folder).train()
    return folder


def test_point_masses_that_continue_training_are_calibrated_again(call: Call, tmp_path: Path) -> None:
    """With this threshold no sign ever changes, but BatchNorm and the real weights do."""
    table, run = write_wine(tmp_path / "g.csv"), tmp_path / "run"
    train = ["train", table, "--label", "cultivar", "--epochs", "30", "--method", "bop", "--set", "threshold=10"]
    assert call(*train, "--out", run, "--stop-after", "2").code == 0
    early = load_network(run)
    assert call(*train, "--out", run).code == 0
    late = load_network(run)
    assert early.posterior is not None and late.posterior is not None
    assert all(torch.equal(late.posterior.natural[k], value) for k, value in early.posterior.natural.items())
    assert call(*train, "--out", tmp_path / "whole").code == 0
    assert late.calibration == load_network(tmp_path / "whole").calibration != early.calibration
    scores, expected = (json.loads(call("evaluate", it, "--json").out) for it in (run, tmp_path / "whole"))
    assert scores | {"run": ""} == expected | {"run": ""}


def test_the_best_network_is_not_calibrated_twice_if_it_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[LogitScale] = []

    def counted(*args: Any) -> LogitScale:
        fits.append(fitted(*args))
        return fits[-1]

    fitted = calibration.fitted
    monkeypatch.setattr(calibration, "fitted", counted)
    best_is_last = wine_run(tmp_path / "one", "bayesbinn", epochs=1)
    assert len(fits) == 1
    last, best = (load_network(best_is_last, which) for which in ("last", "best"))
    assert last.calibration == best.calibration == fits[0]
    for seed in range(1, 9):
        run = wine_run(tmp_path / str(seed), "bayesbinn", epochs=3, seed=seed)
        kept = json.loads((run / "calibration.json").read_text())
        if kept["best"]["epoch"] < kept["last"]["epoch"]:
            assert fits[-1] == load_network(run, "best").calibration != load_network(run).calibration == fits[-2]
            return
    pytest.fail("in all runs the last epoch was the best")


def test_a_request_to_stop_ends_a_calibration_and_the_next_session_completes_it(tmp_path: Path) -> None:
    spread_out = {"name": "bayesbinn", "settings": {"certainty": 100}}
    table = write_wine(tmp_path / "g.csv")
    experiment = wine_experiment(table, method=spread_out, training={"epochs": 2, "batch_size": 32})
    run = Run.open(experiment, tmp_path / "run")
    shares: list[float] = []

    def heard(progress: Progress) -> None:
        if progress.calibrated is not None:
            shares.append(progress.calibrated)

    with pytest.raises(RunStopped, match="while calibrating; the same command completes"):
        run.train(on_progress=heard, should_stop=lambda: bool(shares))
    assert len(shares) == 1 and 0 < shares[0] < 1
    assert not (tmp_path / "run" / "calibration.json").exists() and load_network(tmp_path / "run").calibration is None
    Run.open(experiment, tmp_path / "run").train(on_progress=heard)
    assert load_network(tmp_path / "run").calibration is not None
    networks = sum(later < earlier for earlier, later in pairwise(shares[1:])) + 1
    assert networks <= 2, "the last and the best"
    assert shares[-1] == 1


@pytest.mark.parametrize("method", ["float", "bop", "bayesbinn"])
def test_a_calibration_of_another_network_is_not_used(method: str, tmp_path: Path) -> None:
    one, other = (wine_run(tmp_path / str(seed), method, seed=seed) for seed in (1, 2))
    assert load_network(one).calibration is not None
    assert load_network(one, "best").calibration is not None
    shutil.copy(other / "calibration.json", one)
    found = load_network(one)
    assert found.calibration is None and "fitted it on the data" in found.find_calibration()[1][0]


@pytest.mark.parametrize("method", ["float", "bayesbinn"])
def test_one_changed_digit_in_a_calibration_is_rejected(method: str, call: Call, tmp_path: Path) -> None:
    run = wine_run(tmp_path / "run", method)
    before = (run / "calibration.json").read_bytes()
    flip_a_digit(run / "calibration.json", "mode")
    for command in (("evaluate", run), ("pack", run)):
        answer = call(*command)
        assert answer.code == 2 and len(answer.err.strip().splitlines()) == 1
        assert "calibration.json: damaged (its checksum does not match); resume the run to rewrite it" in answer.err
    Run.open(Run.load(run).experiment, run).train()
    assert (run / "calibration.json").read_bytes() == before


def test_one_changed_digit_in_the_residuals_is_rejected(tmp_path: Path) -> None:
    run = linear(tmp_path / "r", training__epochs=2)
    before = (run / "residuals.json").read_bytes()
    flip_a_digit(run / "residuals.json", "mode")
    with pytest.raises(InvalidFile, match=r"residuals.json: damaged \(its checksum does not match\); resume"):
        predicted(run)
    Run.open(Run.load(run).experiment, run).train()
    assert (run / "residuals.json").read_bytes() == before


def test_residuals_of_another_network_are_not_used(tmp_path: Path) -> None:
    one, other = (linear(tmp_path / str(seed), training__epochs=2, training__seed=seed) for seed in (1, 2))
    assert load_network(one).residuals is not None
    shutil.copy(other / "residuals.json", one)
    assert load_network(one).residuals is None
    Run.open(Run.load(one).experiment, one).train()
    assert load_network(one).residuals is not None


@pytest.mark.parametrize("method", ["float", "bayesbinn"])
def test_a_calibration_from_an_older_version_is_fitted_again(method: str, tmp_path: Path) -> None:
    run = wine_run(tmp_path / "run", method)
    path, kept = run / "calibration.json", load_network(run).calibration
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))
    found = load_network(run)
    assert found.calibration is None
    fitted, notes = found.find_calibration()
    assert fitted == kept and "has no calibration for these weights; fitted it on the data" in notes[0]
