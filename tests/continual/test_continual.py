"""Continual learning on real digits: what is measured, remembered, saved and rejected."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesbinn as bb
from bayesbinn import continual, data, models
from bayesbinn.continual import Learner, Plan
from bayesbinn.continual.evaluation import (
    Evaluations,
    Networks,
    QuickNetworks,
    quick_networks,
    statistics_of,
    unfamiliarity,
)
from bayesbinn.continual.record import Record, describe_weights
from bayesbinn.data import Stream
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import load_experiment
from bayesbinn.runs.stream import load_record, open_run
from tests.helpers.processes import Commands, wait_for_a_checkpoint

SMALL = {"continual.tasks": 3, "training.epochs": 2, "continual.samples": 3, "training.evaluate_every": 1}


def digits_stream(tasks: int = 2) -> Stream:
    return data.permuted(data.load("digits"), tasks, seed=3)


def small_learner(method: str = "bayesbinn", *, batchnorm: bool = True, **plan: Any) -> Learner:
    torch.manual_seed(0)
    model = models.continual_mlp(10, inputs=64, width=0.3, batchnorm=batchnorm)
    binary, _ = bb.split_parameters(model)
    settings: dict[str, Any] = (
        {"lr": 3e-2, "temperature": 0.3, "initial_strength": 0.1} if method == "bayesbinn" else {}
    )
    optimizer = bb.methods.get_method(method).create(binary, train_set_size=1437, seed=5, **settings)
    stream = digits_stream(plan.pop("tasks", 2))
    return Learner(model, optimizer, stream, Plan(**{"epochs": 3, "batch_size": 50, "samples": 4, **plan}))


def experiment(method: str = "bayesbinn", **changes: Any) -> Any:
    return load_experiment("permuted-digits", method=method, overrides={**SMALL, **changes})


# ---- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(bb.methods.METHODS))
def test_every_method_learns_a_stream(method: str) -> None:
    learner = small_learner(method, epochs=1)
    learner.train()
    assert learner.finished
    matrix = learner.record.matrix("recalibrated")
    assert matrix.shape == (2, 2)
    assert np.isfinite(matrix).all(), "the next task is also tested before it is learned"
    known = learner.record.finished[-1]["entropy"]
    assert (known is None) == (method in ("float", "ewc", "ste", "bop"))


def test_the_prior_of_the_next_task_is_the_posterior_of_the_last() -> None:
    learner = small_learner(tasks=2, epochs=1)
    learner.train(stop_after=1)
    after_first = learner.optimizer.posterior()
    learner.train()
    for group in learner.optimizer.param_groups:
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            # The second task ended with another consolidation.
            assert not torch.equal(learner.optimizer.state[parameter]["prior"], after_first.natural[name])
    fresh = small_learner(tasks=2, epochs=1)
    fresh.train(stop_after=1)
    for group in fresh.optimizer.param_groups:
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            assert torch.equal(fresh.optimizer.state[parameter]["prior"], after_first.natural[name])


def test_the_prior_keeps_what_was_learned() -> None:
    kept, lost = (
        small_learner(
            tasks=3, epochs=15, remember=remember, schedule=load_experiment("permuted-digits").method.schedule
        )
        for remember in (True, False)
    )
    for learner in (kept, lost):
        learner.train()
    first_kept, first_lost = (each.record.matrix("recalibrated")[-1, 0] for each in (kept, lost))
    assert first_kept > first_lost + 15
    entropies = [line["entropy"] for line in kept.record.finished]
    assert entropies == sorted(entropies, reverse=True), "certainty grows with every task"


def test_the_size_of_the_task_reaches_the_rule() -> None:
    learner = small_learner(epochs=1)
    learner.train(stop_after=1)
    assert {group["train_set_size"] for group in learner.optimizer.param_groups} == {
        len(learner.stream[0].train_inputs)
    }


def test_measuring_more_does_not_change_what_is_learned() -> None:
    often, seldom = small_learner(evaluate_every=1, samples=7), small_learner(rows="diagonal", samples=2)
    for learner in (often, seldom):
        learner.train()
    for mine, other in zip(often.model.parameters(), seldom.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(
        torch.cat([x.flatten() for x in often.optimizer.posterior().natural.values()]),
        torch.cat([x.flatten() for x in seldom.optimizer.posterior().natural.values()]),
    )
    assert np.isnan(seldom.record.matrix("shared")[0, 1])
    assert np.isfinite(seldom.record.matrix("shared")[-1]).all(), "the last row is complete"


def test_validation_keeps_the_test_data_out() -> None:
    learner = small_learner(epochs=1, validation=0.2)
    learner.train(stop_after=1)
    train = learner.stream[0].train_inputs
    held = learner._tested(0)
    assert len(held) == int(0.2 * len(train))
    assert len(learner._data(0).train) == len(train) - len(held)


# ---- BatchNorm's statistics ------------------------------------------------------------------------


def test_a_network_without_batchnorm_has_one_policy() -> None:
    assert continual.policies_of(models.continual_mlp()) == ("shared", "per-task", "recalibrated")
    assert continual.policies_of(models.continual_mlp(batchnorm=False)) == ("none",)
    learner = small_learner(batchnorm=False, epochs=1)
    learner.train()
    assert learner.record.policies() == ["none"]


def test_each_policy_uses_the_statistics_it_names() -> None:
    learner = small_learner(epochs=2)
    learner.train(stop_after=1)
    first = statistics_of(learner.model)
    learner.train()
    model, part = learner.model, learner._tested(0)
    x, y = part.whole()
    networks = Networks(model, None, 0, 0)

    model.eval()
    with torch.no_grad():
        by_last = float((model(x).argmax(1) == y).float().mean()) * 100
        assert networks.accuracy(part, "shared") == pytest.approx(by_last)
        kept = statistics_of(model)
        model.load_state_dict({**model.state_dict(), **first})
        by_own = float((model(x).argmax(1) == y).float().mean()) * 100
        model.load_state_dict({**model.state_dict(), **kept})
    assert networks.accuracy(part, "per-task", first) == pytest.approx(by_own)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        for layer in model:
            if isinstance(layer, nn.BatchNorm1d):
                x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + layer.eps)
            else:
                x = layer(x)
        return x

    with torch.no_grad():
        expected = float((by_hand(x).argmax(1) == y).float().mean()) * 100  # fewer than 1,000: one batch
    assert networks.accuracy(part, "recalibrated") == pytest.approx(expected)
    assert all(torch.equal(a, b) for a, b in zip(statistics_of(model).values(), kept.values(), strict=True))


def test_the_packed_ensemble_agrees_with_the_exact_networks() -> None:
    learner = small_learner(epochs=5)
    learner.train(stop_after=1)
    posterior, part = learner.optimizer.posterior(), learner._tested(0)
    quick = quick_networks(learner.model, posterior, 10, 7, part.gather(torch.arange(2)))
    assert isinstance(quick, QuickNetworks)
    exact = Networks(learner.model, posterior, 10, 7)
    assert quick.accuracy(part, "shared") == pytest.approx(exact.accuracy(part, "shared"), abs=1.0)


def test_what_cannot_be_packed_is_evaluated_exactly() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.GELU())
    posterior = bb.BernoulliPosterior({"0.weight": torch.zeros(3, 4)})
    assert isinstance(quick_networks(model, posterior, 5, 0, torch.randn(2, 4)), Networks)


def test_unfamiliar_inputs_are_those_that_samples_disagree_about() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    # The first input gives a certain decision, the second is completely uncertain.
    posterior = bb.BernoulliPosterior({"0.weight": torch.tensor([[5.0, 0.0], [-5.0, 0.0]])})
    inside, outside = torch.tensor([[4.0, 0.0]] * 20), torch.tensor([[0.0, 4.0]] * 20)
    found = unfamiliarity(model, posterior, inside, {"other": outside}, samples=30, seed=0)
    assert found["other"]["mutual_information"] == 1.0
    assert found["other"]["entropy"] == 1.0


# ---- records ---------------------------------------------------------------------------------------


def test_a_record_makes_the_matrix_from_its_lines() -> None:
    lines = [
        {"accuracy": {"shared": {"1": 90.0}, "recalibrated": {"1": 91.0, "2": 12.0}}},
        {"accuracy": {"shared": {"1": 50.0, "2": 80.0}, "recalibrated": {"1": 60.0, "2": 82.0}}},
    ]
    record = Record(["a", "b"], finished=lines, start={"baseline": [10.0, 11.0]})
    assert record.matrix("shared").tolist()[1] == [50.0, 80.0]
    assert np.isnan(record.matrix("shared")[0, 1])
    found = record.summary()
    assert found["shared"]["average_accuracy"] == 65.0  # (50 + 80) / 2
    assert found["shared"]["forgetting_since_learned"] == 40.0  # 90 − 50
    assert found["shared"]["forward_transfer"] is None
    assert found["recalibrated"]["forward_transfer"] == 1.0  # 12 − 11
    with pytest.raises(InvalidInput, match="no accuracy for the policy 'shard'"):
        record.matrix("shard")


def test_the_description_of_weights_matches_numbers_computed_by_hand() -> None:
    p = torch.tensor([0.5, 0.9, 0.995, 0.001])
    natural = 0.5 * torch.log(p / (1 - p))
    found = describe_weights(bb.BernoulliPosterior({"w": natural}))
    bits = -(p * p.log2() + (1 - p) * (1 - p).log2())
    assert found["entropy"] == pytest.approx(float(bits.mean()), abs=1e-5)
    assert found["saturated"] == 0.5
    assert sum(found["histogram"]) == 4
    assert found["histogram"][0] == 1
    assert describe_weights(None)["entropy"] is None


# ---- runs in a folder ------------------------------------------------------------------------------


def result_of(folder: Path) -> dict[str, Any]:
    """Everything that a run has measured, without the times."""
    _, record = load_record(folder)
    lines = [{k: v for k, v in line.items() if "seconds" not in k} for line in (*record.epochs, *record.finished)]
    return {"lines": lines, "start": record.start, "end": record.end, "summary": record.summary()}


def test_a_run_writes_the_files_that_others_read(tmp_path: Path) -> None:
    learner = open_run(experiment(), tmp_path / "run")
    learner.train()
    _, record = load_record(tmp_path / "run")
    assert len(record.epochs) == 6
    assert len(record.finished) == 3
    assert [len(line["accuracy"]) for line in record.epochs if "accuracy" in line] == [1, 2, 3]
    assert bb.BernoulliPosterior.load(tmp_path / "run" / "posterior.safetensors").natural
    again = open_run(experiment(), tmp_path / "run")
    assert again.finished


def test_accuracies_measured_during_training_equal_those_measured_between() -> None:
    found, shown = [], []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):  # with two, the second evaluates while the first continues to train
            torch.set_num_threads(threads)
            learner, rows = small_learner(evaluate_every=1, samples=20), []
            learner.train(on_progress=lambda progress, rows=rows: rows.append(progress.row))
            found.append([{k: v for k, v in line.items() if "seconds" not in k} for line in learner.record.epochs])
            shown.append([row["accuracy_epoch"] for row in rows if row is not None and "accuracy" in row])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
    assert ["accuracy" in line for line in found[0]] == [True, True, False] * 2
    assert shown[0] == [1, 2, 1, 2] and set(shown[1]) == {1, 2}


def test_an_error_in_a_background_evaluation_is_raised() -> None:
    class Broken(QuickNetworks):
        def __init__(self) -> None:
            pass

        def accuracy(self, part: Any, policy: str, statistics: Any = None) -> float:
            raise MemoryError("too much")

    before, evaluations = torch.get_num_threads(), Evaluations()
    try:
        torch.set_num_threads(2)
        evaluations.start({"epoch": 1}, Broken(), [lambda: small_learner()._tested(0)], "shared")
        with pytest.raises(MemoryError, match="too much"):
            evaluations.finish()
    finally:
        torch.set_num_threads(before)
    assert evaluations.news() == {}


def training(folder: Path, method: str) -> list[str]:
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    return ["train", "permuted-digits", "--method", method, "--out", str(folder), *settings]


# 6 ms: several within an epoch, even on a fast machine. A run that nobody stops does without, which takes less time.
OFTEN = ("--checkpoint-minutes", "0.0001")


@pytest.mark.parametrize("method", ["bayesbinn", pytest.param("ewc", marks=pytest.mark.slow)])
def test_kills_within_and_between_tasks_change_nothing(method: str, commands: Commands, tmp_path: Path) -> None:
    assert commands.run(*training(tmp_path / "whole", method)) == 0, commands.errors
    killed, inside, between, last = tmp_path / "killed", 0, 0, 0
    moments = random.Random(1)
    for _ in range(12):
        process = commands.start(*training(killed, method), *OFTEN)
        wait_for_a_checkpoint(killed, after=last)
        time.sleep(moments.uniform(0, 0.05))
        commands.send(process, signal.SIGKILL)
        commands.wait(process)
        last = (killed / "checkpoint.pt").stat().st_mtime_ns
        state = torch.load(killed / "checkpoint.pt", weights_only=True)
        if state["task"] >= 3:
            break
        inside += state["totals"]["batches"] > 0
        between += state["task"] > 0 and state["epoch"] == 1 and state["totals"]["batches"] == 0
        if inside and between:
            break
    assert inside, "no kill happened within an epoch"
    assert commands.run(*training(killed, method)) == 0, commands.errors
    assert result_of(killed) == result_of(tmp_path / "whole")
    assert not list(killed.glob("*.partial"))


def test_sigterm_stops_a_stream_with_a_checkpoint_and_it_resumes(commands: Commands, tmp_path: Path) -> None:
    assert commands.run(*training(tmp_path / "whole", "bayesbinn")) == 0, commands.errors
    folder = tmp_path / "stopped"
    process = commands.start(*training(folder, "bayesbinn"), *OFTEN)
    wait_for_a_checkpoint(folder)
    os.kill(process, signal.SIGTERM)
    assert commands.wait(process) == 143, commands.errors
    assert "the same command resumes" in commands.errors[-1] and not (folder / "lock").exists()
    assert commands.run(*training(folder, "bayesbinn")) == 0, commands.errors
    assert any(line.startswith("resuming ") for line in commands.errors)
    assert result_of(folder) == result_of(tmp_path / "whole")


def test_stopping_between_tasks_and_resuming_gives_the_same_result(tmp_path: Path) -> None:
    open_run(experiment(), tmp_path / "whole").train()
    for tasks in (1, 2, 3):
        open_run(experiment(), tmp_path / "parts").train(stop_after=tasks)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


def test_another_experiment_in_the_folder_is_rejected(tmp_path: Path) -> None:
    open_run(experiment(), tmp_path / "run").train(stop_after=1)
    with pytest.raises(InvalidInput, match=r"continual.remember is True there, False here"):
        open_run(experiment(**{"continual.remember": False}), tmp_path / "run")


def test_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="there is no run here"):
        load_record(tmp_path)
    open_run(experiment(), tmp_path / "run").train(stop_after=1)
    (tmp_path / "run" / "tasks.jsonl").write_text("{")
    with pytest.raises(InvalidFile, match="resume the run to rewrite them"):
        load_record(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(InvalidFile, match="delete it to start again"):
        open_run(experiment(), tmp_path / "run")


# ---- errors ----------------------------------------------------------------------------------------


def test_wrong_plans_are_rejected_in_one_line() -> None:
    for wrong in ({"epochs": 0}, {"epochs": 1.5}, {"rows": "diag"}, {"evaluate_every": -1}, {"train_set_scale": 0.0}):
        ((name, value),) = wrong.items()
        with pytest.raises(InvalidInput, match=f"{name}={value!r}: must be"):
            small_learner(**wrong)
    with pytest.raises(InvalidInput, match="stop_after=0"):
        small_learner().train(stop_after=0)


def test_a_prior_of_another_network_is_rejected() -> None:
    learner = small_learner()
    other = bb.BernoulliPosterior({name: torch.zeros(3, 3) for name in learner.optimizer.posterior().natural})
    assert isinstance(learner.optimizer, bb.BayesBiNN)
    with pytest.raises(InvalidInput, match="shape"):
        learner.optimizer.set_prior(other)
    binary, _ = bb.split_parameters(learner.model)
    with pytest.raises(InvalidInput, match="shape"):
        bb.BayesBiNN(binary, lr=1.0, train_set_size=1, temperature=1.0, prior=other)


def test_a_task_with_new_classes_or_no_data_is_rejected_when_it_starts() -> None:
    def task(labels: list[int]) -> Any:
        y = np.array(labels)
        return (np.random.RandomState(0).rand(len(y), 4).astype(np.float32), y)

    with pytest.raises(InvalidInput, match="class"):
        data.stream_of([(task([0, 1, 0]), task([0, 1])), (task([2, 0]), task([0, 2]))])
    with pytest.raises(InvalidInput, match="no"):
        data.stream_of([(task([0, 1]), task([0, 1])), (task([]), task([0]))])
    with pytest.raises(InvalidInput, match="more than once"):
        data.permuted(data.load("digits"), 1, permutations=[np.zeros(64, int)])


def test_a_users_own_stream_is_learned() -> None:
    generator = np.random.RandomState(0)

    def task(shift: float) -> Any:
        y = generator.randint(0, 2, 200)
        x = generator.randn(200, 8).astype(np.float32) + np.where(y == 1, 1.5, -1.5)[:, None] * (1 if shift else -1)
        return (x.astype(np.float32), y)

    stream = data.stream_of({"first": (task(1), task(1)), "second": (task(1), task(1))})
    model = models.continual_mlp(2, inputs=8, width=0.2)
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=3e-2, train_set_size=200, temperature=0.3, initial_strength=0.1, seed=0)
    learner = Learner(model, optimizer, stream, Plan(epochs=5, batch_size=20, samples=5))
    learner.train()
    assert learner.record.tasks == ["first", "second"]
    assert learner.record.matrix("recalibrated")[-1].min() > 80


def test_the_command_line_reports_the_metrics(commands: Commands, tmp_path: Path) -> None:
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    code = commands.run("train", "permuted-digits", "--out", str(tmp_path / "run"), *settings, "--json")
    assert code == 0, commands.errors
    found = json.loads("\n".join(commands.log("err.out")))
    assert found["tasks"] == "3 of 3"
    assert set(found["BatchNorm shared"]) >= {"average_accuracy", "forgetting_since_best"}


def test_one_logit_is_the_second_of_two_classes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 40, bias=False), nn.BatchNorm1d(40, affine=False), nn.ReLU())
    model.append(nn.Linear(40, 1, bias=False)).append(nn.BatchNorm1d(1, affine=False))
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=3e-2, train_set_size=280, temperature=0.3, initial_strength=0.1, seed=0)
    stream = data.split(data.load("digits"), scenario="domain")
    learner = Learner(
        model,
        optimizer,
        stream,
        Plan(epochs=8, batch_size=20, samples=5, evaluate_every=4),
        loss=lambda z, y: nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.float()),
    )
    learner.train(stop_after=1)
    assert learner.record.matrix("recalibrated")[0, 0] > 80
    assert learner.record.epochs[3]["accuracy"][0] > 70


def test_the_loss_of_the_experiment_is_used(tmp_path: Path) -> None:
    changes = {
        **{"model.name": "synthetic_mlp", "training.loss": "binary_cross_entropy", "continual.stream": "split"},
        **{"continual.scenario": "domain", "training.epochs": 1},
    }
    learner = open_run(experiment(**changes), tmp_path / "run")
    learner.train(stop_after=1)
    assert len(learner.record.finished) == 1


def test_the_largest_seed_and_the_smallest_test_part_work(tmp_path: Path) -> None:
    open_run(experiment(**{"training.seed": 2**32 - 1, "continual.tasks": 1}), tmp_path / "run").train()
    generator = np.random.RandomState(0)
    x, y = generator.rand(11, 64).astype(np.float32), np.arange(11) % 2
    stream = data.stream_of([((x[:10], y[:10]), (x[10:], y[10:]))], classes=10)
    learner = small_learner(evaluate_every=1)
    learner = Learner(
        learner.model, learner.optimizer, stream, Plan(epochs=2, batch_size=5, samples=3, evaluate_every=1)
    )
    learner.train()
    assert learner.record.matrix("shared")[0, 0] in (0.0, 100.0)
    assert np.isnan(learner.record.matrix("recalibrated")[0, 0]), "a single input gives no statistics"


def test_a_head_of_the_wrong_size_is_rejected_at_once() -> None:
    learner = small_learner()
    model = models.continual_mlp(5, inputs=64)
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=1e-2, train_set_size=1437, temperature=0.3, seed=0)
    with pytest.raises(InvalidInput, match=r"outputs shape \(5,\) per input, but the stream has 10 classes"):
        Learner(model, optimizer, learner.stream, Plan(epochs=1)).train()


def test_a_folder_is_resumed_only_with_the_same_settings(tmp_path: Path) -> None:
    def learner(seed: int = 3, tasks: int = 2, **plan: Any) -> Learner:
        made = small_learner(**plan)
        stream = data.permuted(data.load("digits"), tasks, seed=seed)
        return Learner(made.model, made.optimizer, stream, made.plan, folder=tmp_path)

    learner().train(stop_after=1)
    with pytest.raises(InvalidFile, match="not the same as in the saved run: epochs"):
        learner(epochs=2)
    with pytest.raises(InvalidInput, match="these data differ from the run's data: values"):
        learner(seed=7)
    grown = learner(tasks=3)
    grown.train()
    assert grown.record.matrix("shared").shape == (3, 3)


def test_test_batches_are_even() -> None:
    from bayesbinn.continual.evaluation import even_batch

    assert [even_batch(count) for count in (1, 999, 1000, 1001, 2003, 10_000)] == [1, 999, 1000, 501, 668, 1000]
