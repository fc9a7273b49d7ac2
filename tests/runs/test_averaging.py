"""Beyond the paper: the mean of λ over the last epochs, smoothed labels, shifts, learned BatchNorm, batch 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn import data
from bayesbinn.data.augment import Draws, crop_and_flip
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.runs.build import loss_of
from bayesbinn.runs.measure import accuracy
from bayesbinn.runs.single import Run
from bayesbinn.runs.stream import open_run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def digits(method: str = "bayesbinn", **changes: Any) -> Experiment:
    plain = {"training.epochs": 4, "model.width": 0.02, "training.mean_samples": 0}
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    return load_experiment("digits", method=method, overrides={**plain, **renamed})


def lambdas(run: Run) -> list[Tensor]:
    return [value.clone() for value in run.optimizer.posterior().natural.values()]


def test_the_last_network_has_the_mean_of_the_last_lambdas(tmp_path: Path) -> None:
    plain = Run.open(digits(), tmp_path / "plain")
    after = []
    for epoch in range(1, 5):
        plain.train(stop_after=epoch)
        after.append(lambdas(plain))
    averaged = Run.open(digits(training__average_epochs=3), tmp_path / "averaged")
    averaged.train()
    expected = [sum(parts) / 3 for parts in zip(*after[1:], strict=True)]
    for found, mean, last in zip(lambdas(averaged), expected, after[-1], strict=True):
        torch.testing.assert_close(found, mean)
        assert not torch.equal(found, last)
    weights = [p for group in averaged.optimizer.param_groups for p in group["params"]]
    for weight, mean in zip(weights, expected, strict=True):
        assert torch.equal(weight.detach() > 0, mean >= 0)
    assert averaged.rows[:3] == [
        {**row, "seconds": averaged.rows[i]["seconds"]} for i, row in enumerate(plain.rows[:3])
    ]
    test = averaged.dataset.split(0.1, 0).test
    assert test is not None
    assert averaged.rows[3]["test_accuracy"] == accuracy(averaged.model, test)


def test_an_average_survives_being_stopped_after_every_epoch(tmp_path: Path) -> None:
    experiment = digits(training__average_epochs=3)
    whole = Run.open(experiment, tmp_path / "whole")
    whole.train()
    for epoch in range(1, 5):
        stopped = Run.open(experiment, tmp_path / "stopped")
        stopped.train(stop_after=epoch)
    assert all(torch.equal(a, b) for a, b in zip(lambdas(whole), lambdas(stopped), strict=True))
    for a, b in zip(whole.model.buffers(), stopped.model.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("ste", {"training__average_epochs": 2}, "method 'ste' has no λ to average"),
        ("bayesbinn", {"training__batch_size": 1}, r"BatchNorm \(layer 3 of mnist_mlp\) has no statistics"),
        ("bayesbinn", {"training__batch_size": 0}, "greater than 0"),
        ("bayesbinn", {"training__label_smoothing": 1.0}, "less than 1"),
    ],
)
def test_impossible_settings_get_one_line(method: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Run.open(digits(method, **changes), tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_stream_is_not_averaged(tmp_path: Path) -> None:
    experiment = load_experiment("permuted-digits", overrides={"training.average_epochs": 2})
    with pytest.raises(InvalidInput, match="a stream of tasks keeps its last λ"):
        open_run(experiment, tmp_path / "run")


def test_smoothed_labels_change_only_the_training_loss(tmp_path: Path) -> None:
    logits, targets = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    smooth = loss_of(digits(training__label_smoothing=0.2).training)(logits, targets)
    log_p = F.log_softmax(logits, 1)[0]
    torch.testing.assert_close(smooth, -(0.9 * log_p[0] + 0.1 * log_p[1]))
    other = digits(training__label_smoothing=0.2, training__loss="mse").training
    with pytest.raises(InvalidInput, match="only for cross_entropy"):
        loss_of(other)


def test_one_example_per_step_learns_without_batchnorm(tmp_path: Path) -> None:
    changes = {"continual.tasks": 1, "training.epochs": 1, "training.batch_size": 1, "model.batchnorm": False}
    changes |= {"model.width": 0.4, "continual.samples": 0, "lr": 1e-2}
    learner = open_run(load_experiment("permuted-digits", method="float", overrides=changes), tmp_path / "run")
    learner.train()
    assert float(learner.record.matrix("none")[0, 0]) > 70
    with pytest.raises(InvalidInput, match=r"use 2 or more or model\.batchnorm=false"):
        open_run(load_experiment("permuted-digits", overrides={"training.batch_size": 1}), tmp_path / "other")


def test_shifts_move_digits_and_do_not_flip_them() -> None:
    images = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    draws = Draws.shifts(500, torch.Generator().manual_seed(0), 1)
    assert {*draws.top.tolist()} == {*draws.left.tolist()} == {0, 1, 2}
    moved = crop_and_flip(images, torch.zeros(500, dtype=torch.long).numpy(), draws)
    centre = images[0, 0, 1, 1]
    for index in range(500):
        row, column = 2 - int(draws.top[index]), 2 - int(draws.left[index])
        assert moved[index, 0, row, column] == centre
    part = data.load("moons").split(0.0, 0).train
    with pytest.raises(InvalidInput, match="only images can be shifted"):
        part.batches(10, seed=0, shift=1)


def test_a_learned_batchnorm_has_gains_and_shifts(tmp_path: Path) -> None:
    run = Run.open(digits(model__affine=True, data__shift=0), tmp_path / "run")
    run.train(stop_after=1)
    gains = [p for name, p in run.model.named_parameters() if p.dim() == 1 and name.endswith("weight")]
    assert len(gains) == 4 and any(float((gain.detach() - 1).abs().max()) > 1e-3 for gain in gains)
