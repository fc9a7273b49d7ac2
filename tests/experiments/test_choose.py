"""Choices for a user's own data: every method learns, rare classes are found, images of any size use convolutions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.data.splits import stratified_rows, validation_rows
from bayesbinn.experiments.choose import choose_budget, choose_for_file, choose_network, method_settings
from bayesbinn.experiments.config import load_experiment
from bayesbinn.runs.data import load_data
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.single import Run
from bayesbinn.train.loop import fit
from tests.helpers.commands import call, done

OWN_METHODS = ("bayesbinn", "ste", "bop", "pmf", "lrnet", "float")


def write_table(path: Path, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(x.shape[1])), "y"])
        writer.writerows([*row.round(4), label] for row, label in zip(x, y, strict=True))
    return path


def test_the_digits_preset_and_the_choice_for_own_data_agree_where_they_can() -> None:
    """The preset spells its settings out. Whoever changes one of the two places is told here of the other."""
    digits = data.load("digits")
    budget = choose_budget(len(digits.train_inputs), convolutional=False).settings
    preset = load_experiment("digits")
    assert preset.training.batch_size == budget["batch_size"]
    steps = budget["epochs"] * (len(digits.train_inputs) // budget["batch_size"])
    for method in OWN_METHODS:
        spelled, chosen = load_experiment("digits", method=method).method.settings, method_settings(method, steps)
        different = {key for key in spelled.keys() | chosen.keys() if spelled.get(key) != chosen.get(key)}
        assert different == {"bayesbinn": {"lr"}, "pmf": {"beta_interval"}}.get(method, set()), method


def separable(count: int = 160) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two informative columns of very different scales, and two of noise."""
    x = np.random.default_rng(0).normal(size=(count, 4))
    return x * [1, 1000, 1, 0.01], np.where(x[:, 0] - x[:, 1] > 0, "yes", "no")


def noise(count: int = 600) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Uninformative columns, and 19 rows of one class for each row of the other."""
    return np.random.default_rng(1).normal(size=(count, 5)), np.where(np.arange(count) % 20 == 0, "rare", "usual")


def last_row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return row


# ---- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OWN_METHODS)
def test_every_method_learns_a_small_table_with_its_defaults(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path = write_table(tmp_path / "own.csv", *separable())
    experiment, _ = choose_for_file(str(path), "y", method, {"training.evaluate_every": 1000})
    Run.open(experiment, tmp_path / "run").train()
    assert last_row(tmp_path / "run")["test_accuracy"] >= 84


def test_a_rare_class_without_a_trace_in_the_columns_is_never_predicted(tmp_path: Path) -> None:
    path = write_table(tmp_path / "own.csv", *noise())
    done("train", path, "--label", "y", "--epochs", 5, "--out", tmp_path / "run")
    assert last_row(tmp_path / "run")["test_accuracy"] >= 90, "the majority has 95 %"


def test_the_shift_of_the_last_layer_expresses_base_rates_in_a_users_own_loop() -> None:
    x, labels = noise(400)
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(labels == "usual").long()
    torch.manual_seed(0)
    model = models.table_mlp(2, inputs=5, hidden=32)
    binary, real = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=400, temperature=1e-10, seed=0)
    adam = torch.optim.Adam([parameter for _, parameter in real], lr=1e-2)
    fit(model, optimizer, inputs, targets, epochs=5, batch_size=32, real_optimizer=adam)
    usual = bb.predict(model, optimizer.posterior(), inputs).probabilities[:, 1]
    assert float((usual > 0.5).float().mean()) > 0.9 and float(usual.mean()) > 0.6


def test_tables_get_no_dropout_and_learned_gains_and_shifts() -> None:
    model = models.table_mlp(3, inputs=7, hidden=20, layers=3)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    assert len(norms) == 4 and all(norm.affine for norm in norms)
    binary, real = bb.split_parameters(model)
    assert [tuple(p.shape) for _, p in binary] == [(20, 7), (20, 20), (20, 20), (3, 20)]
    assert sum(p.numel() for _, p in real) == 2 * (3 * 20 + 3)
    assert model(torch.randn(5, 7)).shape == (5, 3)


def test_small_tables_get_small_networks_and_large_ones_fewer_epochs() -> None:
    rows = (50, 500, 5_000, 50_000, 500_000)
    units = [choose_network((10,), count).settings["hidden"] for count in rows]
    epochs = [choose_budget(count, convolutional=False).settings["epochs"] for count in rows[2:]]
    assert units == sorted(units) and epochs == sorted(epochs, reverse=True)
    assert choose_network((3000,), 100).settings["hidden"] > choose_network((30,), 100).settings["hidden"]


def test_pmf_ends_with_binary_weights_however_short_the_run() -> None:
    for steps in (10, 300, 40_000):
        settings = method_settings("pmf", steps)
        assert settings["beta_growth"] ** (steps / settings["beta_interval"]) > 5 or steps < 50
    assert method_settings("pmf", 300)["beta_growth"] ** (300 / method_settings("pmf", 300)["beta_interval"]) > 1000


def test_the_notes_state_the_choices_and_the_users_changes(tmp_path: Path) -> None:
    path = write_table(tmp_path / "own.csv", *separable())
    _, notes = choose_for_file(str(path), "y", "bayesbinn", {})
    said = "\n".join(notes)
    network = (
        "table_ensemble of 4 networks side by side with 2 hidden layers of 80 units, which get every code 10 times"
    )
    for part in (f"{network} (116 rows to train on, 4 codes)", "certainty=1000", "cosine, ends above 0", "10 %"):
        assert part in said, part
    experiment, notes = choose_for_file(str(path), "y", "ste", {"model.hidden": 7, "lr": 0.5})
    said = "\n".join(notes)
    assert "layers of 7 units, which get every code 10 times (as you asked)" in said and "ste (lr=0.5)" in said
    assert experiment.model.hidden == 7


# ---- images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "network"),
    [
        ((1, 28, 28), "vgg"),
        ((3, 16, 40), "vgg"),
        ((3, 40, 8), "vgg"),
        ((1, 8, 8), "table_mlp"),
        ((1, 4, 100), "table_mlp"),
    ],
)
def test_images_of_any_proportions_get_convolutions(shape: tuple[int, ...], network: str) -> None:
    choice = choose_network(shape, 1000)
    assert choice.settings["name"] == network
    assert ("convolutions, for images" in choice.reason) == (network == "vgg")


@pytest.mark.parametrize("size", [(32, 32), (8, 40), (17, 9), (1, 20), (3, 3)])
def test_vgg_takes_images_of_any_height_and_width(size: tuple[int, int]) -> None:
    model = models.vgg(4, channels=2, image_size=size, width=0.03)
    assert model(torch.randn(3, 2, *size)).shape == (3, 4)


def test_the_papers_vgg_is_unchanged() -> None:
    square, pair = models.vgg(width=0.03), models.vgg(image_size=(32, 32), width=0.03)
    assert str(square) == str(pair) and "affine=True" not in str(square)
    shifted = models.vgg(width=0.03, output_affine=True)
    assert str(shifted).count("affine=True") == 1 and str(shifted[-1]) == str(shifted[-1]).replace("False", "True")


def test_images_that_are_not_square_are_trained_packed_and_told(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    x = np.random.default_rng(2).integers(0, 60, (60, 10, 18), dtype=np.uint8)
    x[y == 1, :, 9:] += 150
    np.savez(tmp_path / "wide.npz", x=x, y=y)
    run = tmp_path / "run"
    small = ("--set", "model.width=0.05", "--epochs", 6)
    assert "vgg" in call("train", tmp_path / "wide.npz", *small, "--out", run).err
    assert load_experiment(str(run / "config.toml")).model.output_affine
    assert last_row(run)["test_accuracy"] >= 75
    assert pack_run(run).graph.input_shape == (1, 10, 18)


# ---- the validation part ---------------------------------------------------------------------------


def test_validation_rows_are_stratified_by_class() -> None:
    classes = np.repeat([0, 1, 2], [900, 80, 20])
    for seed in range(5):
        train_rows, held = stratified_rows(classes, 0.1, seed)
        assert np.bincount(classes[held]).tolist() == [90, 8, 2]
        assert sorted([*train_rows, *held]) == list(range(1000))
        assert len(held) == len(validation_rows(1000, 0.1, seed)[1])
    first, second = (stratified_rows(classes, 0.1, seed)[1].tolist() for seed in (0, 1))
    assert first != second and first == stratified_rows(classes, 0.1, 0)[1].tolist()


def test_a_class_of_one_stays_in_training_and_no_validation_is_possible() -> None:
    classes = np.array([0] * 29 + [1])
    assert 29 in stratified_rows(classes, 0.1, 0)[0].tolist()
    assert len(stratified_rows(classes, 0.0, 0)[1]) == 0


def test_own_data_are_stratified_and_older_runs_keep_their_split(tmp_path: Path) -> None:
    path = write_table(tmp_path / "own.csv", *noise())
    experiment, _ = choose_for_file(str(path), "y", "bayesbinn", {})
    part = load_data(experiment).split(0.1, 0).validation
    assert part is not None and int((part.whole()[1] == 0).sum()) == 2, "1 of 20 in 48 rows"
    lines = experiment.to_toml().splitlines(keepends=True)
    (tmp_path / "config.toml").write_text(
        "".join(line for line in lines if not line.startswith(("stratify = ", "encode = ")))
    )
    old = load_data(load_experiment(str(tmp_path / "config.toml"))).split(0.1, 0).validation
    plain = data.load(path, label="y").split(0.1, 0).validation
    assert old is not None and plain is not None
    assert torch.equal(old.whole()[0], plain.whole()[0]) and not torch.equal(old.whole()[0], part.whole()[0])


def test_a_run_on_own_data_that_was_begun_before_goes_on_from_its_config(tmp_path: Path) -> None:
    path, run = write_table(tmp_path / "own.csv", *separable(60)), tmp_path / "run"
    changes = {"model.name": "mnist_mlp", "model.width": 0.02, "data.stratify": False}
    changes |= {"training.epochs": 3, "method.schedule.end": "authors"}
    experiment, _ = choose_for_file(str(path), "y", "bayesbinn", changes)
    Run.open(experiment, run).train(stop_after=1)
    config = run / "config.toml"
    new = ("stratify = ", "end = ", "hidden = ", "layers = ", "output_affine = ")
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(new)))
    done("train", config, "--out", run)
    row = last_row(run)
    assert row["epoch"] == 3 and row["lr"] == pytest.approx(0, abs=1e-12), "the authors' cosine goes to 0"
