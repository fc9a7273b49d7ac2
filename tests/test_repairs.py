"""Repairs as a user meets them: by the command line and public names alone, so that older code can run these too."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import stat
import sys
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine, make_hastie_10_2
from torch import nn

import bayesbinn as bb
from bayesbinn.__main__ import main

ROOT = Path(__file__).parent.parent
MODEL = Path(__file__).parent / "fixtures" / "model-v1.safetensors"


@dataclass
class Answer:
    code: int
    out: str
    err: str
    warned: list[str]


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process, as the installed script would."""
    torch.set_num_threads(1)

    def run(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["bayesbinn", *map(str, arguments)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                code = main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err, [str(each.message) for each in caught])

    return run


def table(path: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(x.shape[1])), "kind"])
        writer.writerows([*row.round(4).tolist(), f"kind {label}"] for row, label in zip(x, y, strict=True))
    return path


def wine(folder: Path) -> Path:
    return table(folder / "wine.csv", *load_wine(return_X_y=True))


# ---- the defaults for tables -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bayesbinn", "float"])
def test_the_statistics_of_a_table_s_network_are_those_it_predicts_with(
    method: str, call: Call, tmp_path: Path
) -> None:
    """Dropout before BatchNorm teaches it variances that prediction never sees: 70 % right instead of 90."""
    path = table(tmp_path / "hastie.csv", *make_hastie_10_2(1200, random_state=0))
    settings = ("--label", "kind", "--method", method, "--epochs", "10", "--set", "training.evaluate_every=10")
    assert call("train", path, *settings, "--out", tmp_path / "run").code == 0
    scores = json.loads(call("evaluate", tmp_path / "run", "--json").out)
    assert scores["weights" if method == "float" else "mode"]["accuracy"] > 84


# ---- temperatures and posteriors -------------------------------------------------------------------


@pytest.mark.parametrize("temperature", ["0.5", "1e-2"])
def test_a_temperature_that_teaches_the_weights_nothing_does_not_pass_in_silence(
    temperature: str, call: Call, tmp_path: Path
) -> None:
    short = ("--label", "kind", "--epochs", "2", "--out", tmp_path / "run")
    answer = call("train", wine(tmp_path), *short, "--set", f"temperature={temperature}")
    assert answer.code == 0 and any("leaves weights at their start" in line for line in answer.warned), answer.err


def small_network(inputs: int, classes: int, **settings: Any) -> tuple[nn.Module, bb.BayesBiNN]:
    layers = [nn.Linear(inputs, 64, bias=False), nn.BatchNorm1d(64, affine=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, classes, bias=False), nn.BatchNorm1d(classes, affine=False))
    return model, bb.BayesBiNN(bb.split_parameters(model)[0], seed=0, **settings)


def test_certainty_gives_a_better_mean_than_a_temperature_of_one_half() -> None:
    """The settings that the README once gave for a spread posterior, beside those it gives now."""
    torch.set_num_threads(1)
    x, y = (torch.as_tensor(each) for each in load_wine(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()
    losses: dict[str, float] = {"before": 0.0, "now": 0.0}
    before = {"temperature": 0.5, "lr": 0.05, "kl_weight": 0.05, "initial_strength": 1.0}
    for seed in range(2):
        torch.manual_seed(seed)
        train, held, test = torch.randperm(len(x)).split([106, 36, 36])
        for name, settings in (("before", before), ("now", {"certainty": 100})):
            torch.manual_seed(seed)
            model, optimizer = small_network(13, 3, train_set_size=106, **settings)
            bb.train.fit(model, optimizer, x[train], y[train], epochs=30, batch_size=32)
            posterior = optimizer.posterior()
            statistics = bb.recalibrate(model, posterior, [x[train]], samples=20)
            posterior = bb.calibrate(model, posterior, x[held], y[held], samples=20, statistics=statistics)
            found = bb.predict(model, posterior, x[test], samples=20, statistics=statistics).probabilities
            losses[name] += float(nn.functional.nll_loss(found.log().float(), y[test]))
    assert losses["now"] < 0.75 * losses["before"], losses


def test_samples_that_are_copies_are_told_by_the_commands(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training = ("train", wine(tmp_path), "--label", "kind", "--epochs", "3", "--set", "data.encode=false")
    assert call(*training, "--out", run).code == 0
    packed = call("pack", run, "--samples", "4", "--out", tmp_path / "four.safetensors")
    predicting = ("predict", run, tmp_path / "wine.csv", "--out", tmp_path / "p.csv")
    for answer in (packed, call(*predicting, "--samples", "4"), call("evaluate", run, "--samples", "4")):
        assert answer.code == 0 and any("all 4 samples equal the mode" in line for line in answer.warned)
    for answer in (call(*predicting), call(*predicting, "--samples", "0"), call("evaluate", run)):
        assert answer.code == 0 and not any("equal the mode" in line for line in answer.warned), "nobody asked for them"


def test_training_that_stays_at_chance_is_told() -> None:
    torch.set_num_threads(1)
    model, optimizer = small_network(4, 3, lr=0.0, train_set_size=90, temperature=1e-10)
    with pytest.warns(UserWarning, match="stuck at chance"):
        bb.train.fit(model, optimizer, torch.randn(90, 4), torch.arange(90) % 3, epochs=3, batch_size=30)


# ---- files -----------------------------------------------------------------------------------------


def test_a_full_disk_is_told_in_the_system_s_words(call: Call, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        answer = call("train", "digits", "--stop-after", "1", "--out", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    last = answer.err.splitlines()[-1]
    assert answer.code == 2 and last.startswith("error: ") and "could not be written (File too large)" in last


def test_equal_runs_have_equal_posterior_files(call: Call, tmp_path: Path) -> None:
    for name in "ab":
        short = ("--epochs", "2", "--set", "model.width=0.02", "--out", tmp_path / name)
        assert call("train", "digits", *short).code == 0
    runs = [tmp_path / name / "posterior.safetensors" for name in "ab"]
    for copy in range(8):
        bb.BernoulliPosterior.load(runs[0]).save(tmp_path / f"{copy}.safetensors")
    assert len({path.read_bytes() for path in runs}) == 1
    assert len({path.read_bytes() for path in tmp_path.glob("*.safetensors")}) == 1


def test_a_posterior_may_be_read_by_whom_the_umask_lets(call: Call, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        short = ("--epochs", "1", "--set", "model.width=0.02", "--out", tmp_path / "run")
        assert call("train", "digits", *short).code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / "posterior.safetensors").stat().st_mode) == 0o644


# ---- data ------------------------------------------------------------------------------------------


def test_wide_images_get_convolutions_and_are_told_so(call: Call, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((40, 10, 18), np.uint8), y=np.arange(40) % 2)
    answer = call(
        *("train", tmp_path / "wide.npz", "--epochs", "1", "--set", "model.width=0.05", "--out", tmp_path / "run")
    )
    assert answer.code == 0 and re.search(r"network:? vgg", answer.err), answer.err


def test_a_folder_of_npy_files_is_trained_on_and_a_single_one_told_what_it_lacks(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    y = np.arange(60) % 2
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(60, 3)) + 4 * y[:, None])
    np.save(folder / "y.npy", y)
    trained = call("train", folder, "--epochs", "5", "--out", tmp_path / "run")
    assert trained.code == 0, trained.err
    assert call("predict", tmp_path / "run", folder / "x.npy", "--out", tmp_path / "p.csv").code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 61
    alone = call("train", folder / "x.npy", "--out", tmp_path / "no")
    assert alone.code == 2 and "put x.npy and y.npy in a folder" in alone.err


# ---- advice and pages ------------------------------------------------------------------------------

SEARCH = 'experiment = "digits"\n[search]\nlr = {low=1e-4, high=1e-1, log=true}\n'


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("bayesbinn.cli.app", ["methods"]),
        ("onnx", ["export", str(MODEL), "--to", "onnx", "--out", "m.onnx"]),
        ("optuna", ["sweep", "search", "s.toml"]),
        ("distributed", ["sweep", "run", "g.toml", "--scheduler", "tcp://127.0.0.1:9"]),
        ("pyarrow", ["train", "t.parquet", "--label", "kind"]),
    ],
)
def test_what_is_missing_is_installed_from_the_repository(
    missing: str, arguments: list[str], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no release: `pip install 'bayesbinn[train]'` finds nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SEARCH)
    (tmp_path / "g.toml").write_text('experiment = "digits"\nseeds = 2\n')
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    answer = call(*arguments)
    assert answer.code == 2 and "bayesbinn[" not in answer.err, answer.err
    (extra,) = re.findall(r"pip install -c constraints.txt '\.\[(\w+)\]'", answer.err)
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_curves_of_a_run_are_documented_and_have_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert "tensorboard" in extras and "tensorboard --logdir runs" in pages


def test_every_key_of_a_run_s_file_is_documented(call: Call, tmp_path: Path) -> None:
    assert (
        call("train", "digits", "--stop-after", "1", "--set", "model.width=0.02", "--out", tmp_path / "run").code == 0
    )
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    keys = re.findall(r"^(\w+) = ", (tmp_path / "run" / "config.toml").read_text(), re.MULTILINE)
    assert len(keys) > 10 and not [key for key in keys if f"`{key}`" not in pages]
    networks = [name for name in dir(bb.models) if re.search(r"_mlp$|^vgg$", name) and not name.startswith("_")]
    assert len(networks) >= 5 and not [name for name in networks if f"| `{name}` |" not in pages]
