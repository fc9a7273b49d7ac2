"""`certainty`, the one setting for a posterior, through every interface; and the warnings without a posterior."""

from __future__ import annotations

import copy
import csv
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

import bayesbinn as bb
from bayesbinn.errors import InvalidInput, SaturatedPosterior, StuckTraining
from bayesbinn.experiments.config import load_experiment, preset_names
from bayesbinn.runs.open import prepare
from bayesbinn.runs.single import Run
from bayesbinn.train.loop import fit, stuck_at_chance
from tests.helpers.processes import warm_python

N = 120


pytestmark = pytest.mark.usefixtures("one_thread")


def weight(*shape: int) -> tuple[str, nn.Parameter]:
    return f"w{'x'.join(map(str, shape))}", nn.Parameter(torch.zeros(shape))


def stepped(optimizer: bb.BayesBiNN, count: int = 5) -> dict[str, Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(count):
        with optimizer.sampled_params(train=True):
            sum((p * torch.linspace(-1, step + 1.0, p.numel()).view_as(p)).sum() for p in parameters).backward()
        optimizer.step()
    return dict(optimizer.posterior().natural)


# ---- the setting -----------------------------------------------------------------------------------


def test_it_is_the_memory_rule_with_everything_that_belongs_to_it() -> None:
    knob = bb.BayesBiNN([weight(40)], train_set_size=N, certainty=50, seed=1)
    rate = knob.param_groups[0]["lr"]
    by_hand = bb.BayesBiNN([weight(40)], rate, N, temperature=1.0, memory=50.0 * N, initial_strength=0.5, seed=1)
    assert torch.equal(*(each.posterior().natural["w40"] for each in (knob, by_hand)))
    found, expected = stepped(knob)["w40"], stepped(by_hand)["w40"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(found.abs(), torch.tensor(0.5)), "the weights moved"


def test_what_is_given_is_kept() -> None:
    optimizer = bb.BayesBiNN([weight(9)], 0.2, N, temperature=0.5, certainty=7, initial_strength=2.0)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["temperature"], group["certainty"]) == (0.2, 0.5, 7)
    assert set(optimizer.posterior().natural["w9"].abs().tolist()) == {2.0}


def test_a_separate_group_has_its_own_rule() -> None:
    groups = [{"params": [weight(3)]}, {"params": [weight(5)], "certainty": 20}]
    sharp, spread = bb.BayesBiNN(groups, lr=1e-3, train_set_size=N, temperature=1e-10).param_groups
    assert (sharp["certainty"], sharp["lr"], sharp["temperature"]) == (None, 1e-3, 1e-10)
    assert (spread["certainty"], spread["temperature"]) == (20, 1.0) and spread["lr"] > 0.1

    groups = [{"params": [weight(3)], "memory": 9.0}, {"params": [weight(5)], "certainty": 20}]
    bounded, spread = bb.BayesBiNN(groups, lr=0.3, train_set_size=N, certainty=50).param_groups
    assert (bounded["memory"], bounded["certainty"]) == (9.0, None)
    assert (spread["memory"], spread["certainty"], spread["lr"]) == (None, 20, 0.3)


def test_it_resumes_bit_for_bit_and_an_older_state_stays_what_it_was() -> None:
    one = bb.BayesBiNN([weight(40)], train_set_size=N, certainty=50, seed=1)
    stepped(one)
    other = bb.BayesBiNN([weight(40)], train_set_size=N, certainty=3, seed=2)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other.param_groups[0]["certainty"] == 50
    assert torch.equal(stepped(one)["w40"], stepped(other)["w40"])

    plain = bb.BayesBiNN([weight(40)], 0.1, N, temperature=0.5, initial_strength=1.0)
    saved = plain.state_dict()
    del saved["param_groups"][0]["certainty"]  # as a version without the setting saved it
    other.load_state_dict(saved)
    assert other.param_groups[0]["certainty"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"certainty": 5, "memory": 5.0}, "certainty is memory divided by train_set_size; pass one of them"),
        ({"certainty": 0}, "certainty=0: it must be a finite number above 0"),
        ({"certainty": "high"}, "certainty='high': it must be"),
        ({"lr": 0.1}, "needs 'temperature': pass .* for one network, or only certainty=100 for a posterior"),
        ({"temperature": 1e-10}, "needs 'lr'"),
        ({"certainty": 5, "train_set_size": None}, "needs 'train_set_size'"),
        ({"certainty": 5, "train_set_size": 0}, "train_set_size=0"),
    ],
)
def test_what_cannot_be_gets_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        bb.BayesBiNN([weight(3)], **{"train_set_size": N, **settings})
    assert "\n" not in str(caught.value)
    groups = [{"params": [weight(3)], "certainty": 5, "memory": 5.0}]
    with pytest.raises(InvalidInput, match="pass one of them"):
        bb.BayesBiNN(groups, 0.1, N, temperature=1.0)


@pytest.mark.parametrize("order", [("certainty", "lr"), ("lr", "certainty")])
def test_in_an_experiment_it_replaces_what_came_with_the_preset_but_not_what_was_given(order: tuple[str, ...]) -> None:
    values = {"certainty": 50, "lr": 0.2}
    given = load_experiment("digits", overrides={key: values[key] for key in order}).method.settings
    assert given == values
    assert load_experiment("digits", overrides={"certainty": 50}).method.settings == {"certainty": 50}
    assert load_experiment("moons", overrides={"method.settings.certainty": 50}).method.settings == {
        **{"momentum": 0.99, "mc_samples": 5, "certainty": 50}
    }
    with pytest.raises(InvalidInput, match="pass one of them"):
        load_experiment("digits", overrides={"certainty": 50, "memory": 10.0})


def test_an_experiment_with_it_survives_its_file(tmp_path: Path) -> None:
    experiment = load_experiment("digits", overrides={"certainty": 50, "temperature": 0.7})
    (tmp_path / "config.toml").write_text(experiment.to_toml())
    assert load_experiment(str(tmp_path / "config.toml")) == experiment


# ---- learning --------------------------------------------------------------------------------------


def wine(folder: Path) -> Path:
    inputs, targets = load_wine(return_X_y=True)
    path = folder / "wine.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{index}" for index in range(inputs.shape[1])), "kind"])
        writer.writerows([*row, f"kind {target}"] for row, target in zip(inputs.tolist(), targets, strict=True))
    return path


def trained(folder: Path, changes: list[str]) -> tuple[Run, list[str]]:
    """A run as `bayesbinn train wine.csv --set ...` prepares it, and its warnings."""
    chosen = prepare(str(wine(folder)), "bayesbinn", 0, 30, "kind", changes, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StuckTraining)
        run = Run.open(chosen.experiment, folder / "run")
        run.train()
    return run, [str(each.message) for each in caught if issubclass(each.category, StuckTraining)]


def test_a_table_gets_a_posterior_whose_samples_differ(tmp_path: Path) -> None:
    run, warned = trained(tmp_path, ["certainty=100"])
    assert warned == []
    assert run.rows[-1]["train_accuracy"] > 90
    posterior = run.optimizer.posterior()
    assert posterior.expected_flips() > 0.05 * sum(v.numel() for v in posterior.natural.values())


@pytest.mark.parametrize("temperature", ["0.5", "1e-2"])
def test_a_temperature_that_leaves_the_weights_at_their_start_gets_a_warning(tmp_path: Path, temperature: str) -> None:
    run, warned = trained(tmp_path, [f"temperature={temperature}"])
    assert sum(row["flip_ratio"] for row in run.rows) < 0.01, "real gains may learn, the binary weights do not"
    assert any("leaves weights at their start" in line and "certainty=100" in line for line in warned)


def test_the_same_from_ones_own_loop() -> None:
    said = r"temperature=0.01 with lr=0.001 and train_set_size=120 .*certainty=100"
    with pytest.warns(StuckTraining, match=said) as caught:
        bb.BayesBiNN([weight(3)], 1e-3, N, temperature=1e-2)
    assert caught[0].filename == __file__, "it names the line that made the optimizer"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in (
            {"temperature": 1e-10, "lr": 1e-3},  # one network
            {"temperature": 1e-2, "lr": 1e-3, "train_set_size": 60_000},  # the paper's continual learning
            {"temperature": 1e-3, "lr": 1e-4, "train_set_size": 54_000},  # the hottest of its table of temperatures
            {"temperature": 1.0, "lr": 1e-4, "train_set_size": 200},  # Snelson's regression
            {"temperature": 0.3, "lr": 1e-3, "initial_strength": 0.1},
            {"certainty": 100},
        ):
            bb.BayesBiNN([weight(3)], **{"train_set_size": N, **settings})


def test_no_preset_gets_a_warning() -> None:
    sizes = {"moons": 200, "snelson": 200, "digits": 1294, "permuted-digits": 1437, "mnist": 54_000}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in preset_names():
            method = load_experiment(name, method="bayesbinn").method
            bb.BayesBiNN(
                [weight(3)], train_set_size=sizes.get(name, 45_000 if "cifar" in name else 60_000), **method.settings
            )


# ---- stuck training --------------------------------------------------------------------------------


def blobs() -> tuple[Tensor, Tensor]:
    targets = torch.arange(90) % 3
    return torch.randn(90, 4) + 3 * torch.eye(3, 4)[targets], targets


def small(lr: float) -> tuple[nn.Module, bb.BayesBiNN]:
    model = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16, affine=False), nn.ReLU())
    model.extend([nn.Linear(16, 3, bias=False), nn.BatchNorm1d(3, affine=False)])
    return model, bb.BayesBiNN(bb.split_parameters(model)[0], lr, 90, temperature=1e-10, seed=0)


def test_training_that_learns_nothing_gets_a_warning_from_fit() -> None:
    inputs, targets = blobs()
    with pytest.warns(StuckTraining, match=r"stuck at chance: accuracy .* the largest class has 33.3 %.*certainty=100"):
        fit(*small(lr=0.0), inputs, targets[torch.randperm(90)], epochs=3, batch_size=30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(*small(lr=1e-2), inputs, targets, epochs=5, batch_size=30)
        fit(
            *small(lr=0.0),
            inputs,
            targets.float().view(-1, 1),
            epochs=2,
            batch_size=30,
            loss=lambda o, y: (o - y).mean(),
        )


def test_training_that_learns_nothing_gets_a_warning_from_a_run(tmp_path: Path) -> None:
    _, warned = trained(tmp_path, ["lr=1e-30", "temperature=1e-10", "method.real_lr=1e-30", "data.encode=false"])
    assert any("training is stuck at chance" in line for line in warned)


@pytest.mark.parametrize(
    ("losses", "accuracy", "majority", "stuck"),
    [
        ([1.2, 1.2], 30.0, 40.0, True),
        ([1.2, 1.19], 41.0, 40.0, True),  # within three standard errors of 100 rows
        ([1.2, 1.19], 56.0, 40.0, False),
        ([1.2, 1.1], 30.0, 40.0, False),  # it falls by more than 5 %
        ([1.2], 30.0, 40.0, False),  # one epoch says nothing yet
        ([0.3, 0.3], 100.0, 100.0, True),
    ],
)
def test_stuck_means_chance_accuracy_and_a_constant_loss(
    losses: list[float], accuracy: float, majority: float, stuck: bool
) -> None:
    assert stuck_at_chance(losses, accuracy, majority, 100) is stuck


# ---- saturated posteriors --------------------------------------------------------------------------


def linear(strength: float) -> tuple[nn.Module, bb.BernoulliPosterior]:
    model = nn.Sequential(nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3, affine=False))
    return model, bb.BernoulliPosterior({"0.weight": strength * torch.randn(3, 6).sign()})


@pytest.mark.parametrize("strength", [20.0, float("inf")])
def test_samples_that_all_equal_the_mode_get_a_warning(strength: float, tmp_path: Path) -> None:
    model, posterior = linear(strength)
    x = torch.randn(5, 6)
    assert posterior.saturated and posterior.expected_flips() < 1e-10
    message = r"all 4 samples equal the mode.*samples=0, or train with BayesBiNN\(certainty=100\)"
    with pytest.warns(SaturatedPosterior, match=message) as caught:
        prediction = bb.predict(model, posterior, x, samples=4)
    assert caught[0].filename == __file__, "it points at the caller's line"
    assert float(prediction.mutual_information.max()) < 1e-12
    with pytest.warns(SaturatedPosterior, match=message) as caught:
        bb.pack(model, tmp_path / "model.safetensors", posterior, samples=4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for samples in (0, 1):
            bb.predict(model, posterior, x, samples=samples)
            bb.pack(model, tmp_path / "model.safetensors", posterior, samples=samples)


def test_a_spread_posterior_gets_no_warning(tmp_path: Path) -> None:
    model, posterior = linear(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bb.predict(model, posterior, torch.randn(5, 6), samples=4)
        bb.pack(model, tmp_path / "model.safetensors", posterior, samples=4)
    assert not posterior.saturated
    assert posterior.expected_flips() == pytest.approx(18 * float(torch.sigmoid(torch.tensor(-1.0))), rel=1e-6)


def test_on_the_command_line_a_warning_is_one_line(tmp_path: Path) -> None:
    command = [warm_python(), "-m", "bayesbinn", "train", str(wine(tmp_path)), "--label", "kind", "--epochs", "2"]
    done = subprocess.run(
        [*command, "--set", "temperature=0.5", "--out", str(tmp_path / "run")],
        **{"capture_output": True, "text": True, "check": True},
    )
    (line,) = [line for line in done.stderr.splitlines() if "leaves weights at" in line]
    assert line.startswith("warning: temperature=0.5 with lr=0.01")
    assert "StuckTraining" not in done.stderr
