"""A run in its folder: what it writes, that it resumes exactly however it ended, and what it rejects."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.experiments import Experiment, load_experiment
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.methods import METHODS
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_network, load_trained
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.lock import LockLost
from bayesbinn.train.progress import Progress, RunStopped
from tests.helpers.processes import Commands, wait_for_a_checkpoint

DOCUMENTED = {
    *("epoch", "lr", "train_loss", "train_accuracy", "validation_accuracy", "test_accuracy"),
    *("flip_ratio", "seconds"),
}
POINT_MASSES = ("ste", "bop")
FAST_METHODS = ("bayesbinn", "ste", "pmf", "lrnet")
SOME_METHODS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST_METHODS)) for name in METHODS]
"""`tests/methods/test_conformance.py` resumes every method; a run's part in it differs only in the kind of state."""
SMALL = {"model.width": 0.02, "training.batch_size": 64, "training.epochs": 3}
# Relaxed, so that the noise of every step shows in the weights.
RELAXED = {"lr": 0.03, "temperature": 0.5, "initial_strength": 1.0}
# Methods for streams of tasks, which the preset does not have.
FOR_STREAMS = {"bimu": {"lr": 4.9, "max_lr": 0.5}, "ewc": {"lr": 1e-2}}


pytestmark = pytest.mark.usefixtures("one_thread")


def digits(method: str = "bayesbinn", **changes: Any) -> Experiment:
    if method in FOR_STREAMS:
        base = digits("float", **changes)
        chosen = base.method.model_copy(update={"name": method, "settings": FOR_STREAMS[method]})
        return base.model_copy(update={"method": chosen})
    own = RELAXED if method == "bayesbinn" else {}
    return load_experiment("digits", method=method, overrides={**SMALL, **own, **changes})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics without the seconds, which differ in every run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def assert_same_run(a: Path, b: Path) -> None:
    """The same metrics, posterior, weights, statistics and optimizer state, bit for bit."""
    assert rows_of(a) == rows_of(b)
    assert (a / "config.toml").read_bytes() == (b / "config.toml").read_bytes()
    if (a / "posterior.safetensors").exists() or (b / "posterior.safetensors").exists():
        p, q = load_file(a / "posterior.safetensors"), load_file(b / "posterior.safetensors")
        assert p.keys() == q.keys() and all(torch.equal(p[name], q[name]) for name in p)
    p, q = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (a, b))
    for part in ("model", "optimizer", "real_optimizer", "random", "signs", "best"):
        assert_same_tree(p[part], q[part], part)


def assert_same_tree(a: Any, b: Any, where: str) -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same_tree(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_tree(x, y, f"{where}[{index}]")
    else:
        assert a == b, where


# ---- what a run writes -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOME_METHODS)
def test_metrics_have_the_documented_keys_and_percentages(method: str, tmp_path: Path) -> None:
    run = Run.open(digits(method), tmp_path)
    run.train()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    binary = METHODS[method].optimizer.binary
    sampled = {"test_accuracy_mean"} if binary and method not in POINT_MASSES else set()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    start = run.experiment.method.settings["lr"]
    for row in rows:
        assert row.keys() == DOCUMENTED | sampled
        assert row["lr"] == pytest.approx(start * (1 + math.cos(math.pi * (row["epoch"] - 0.5) / 3)) / 2, abs=1e-15)
        for key in [key for key in row if "accuracy" in key]:
            assert 5 <= row[key] <= 100, key
        assert row["train_loss"] > 0 and row["seconds"] > 0 and 0 <= row["flip_ratio"] <= 1
    assert rows[-1]["train_accuracy"] > (10 if method == "lrnet" else 30), "in percent; LR-net starts slowly"
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert {"config.toml", "metrics.jsonl", "checkpoint.pt"} <= {path.name for path in tmp_path.glob("*.*")}
    assert (tmp_path / "posterior.safetensors").exists() == binary
    assert not list(tmp_path.glob("*.partial"))
    assert run.finished and load_run(tmp_path)[1] == rows
    torch.load(tmp_path / "checkpoint.pt", weights_only=True)


@pytest.mark.parametrize(("method", "samples"), [("bayesbinn", 1), ("bimu", 5)])
def test_a_step_has_as_many_samples_as_the_method_asks_for(method: str, samples: int, tmp_path: Path) -> None:
    run = Run.open(digits(method, **{"training.epochs": 1}), tmp_path)
    run.train()
    counters = run.optimizer.state_dict()["bayesbinn"]
    assert counters["draws"] == samples * counters["steps"] > 0


def test_the_validation_part_is_a_tenth_and_scores_count_whole_examples(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    row = rows_of(tmp_path)[0]
    for key, count in (("validation_accuracy", 143), ("test_accuracy", 360), ("train_accuracy", 1294)):
        right = row[key] * count / 100
        assert right == pytest.approx(round(right), abs=1e-6), key


def test_the_train_set_size_counts_what_is_trained_on(tmp_path: Path) -> None:
    run = Run.open(digits(**{"method.train_set_scale": 10}), tmp_path)
    assert run.optimizer.param_groups[0]["train_set_size"] == 10 * (1437 - 143)


def test_the_test_scores_are_those_of_the_posteriors_mode(tmp_path: Path) -> None:
    from bayesbinn.prediction.predicting import predict

    Run.open(digits(), tmp_path).train()
    _, dataset, model, posterior = load_trained(tmp_path)
    part = dataset.split(0.1, 0).test
    assert part is not None
    x, y = part.whole()
    accuracy = 100 * (predict(model, posterior, x).classes == y).float().mean().item()
    assert accuracy == pytest.approx(rows_of(tmp_path)[-1]["test_accuracy"], abs=1e-4)
    averaged = 100 * (predict(model, posterior, x, samples=10, seed=0).classes == y).float().mean().item()
    assert averaged == pytest.approx(rows_of(tmp_path)[-1]["test_accuracy_mean"], abs=1e-4)


def test_epochs_between_evaluations_have_no_scores_but_the_last_one_does(tmp_path: Path) -> None:
    Run.open(digits(**{"training.evaluate_every": 2, "training.mean_samples": 0}), tmp_path).train()
    rows = rows_of(tmp_path)
    assert [row["test_accuracy"] is None for row in rows] == [True, False, False]
    assert [row["validation_accuracy"] is None for row in rows] == [True, False, False]
    assert all("test_accuracy_mean" not in row for row in rows)


def test_moons_scores_its_single_logit_with_mode_and_mean(tmp_path: Path) -> None:
    changes = {"training.epochs": 60, "training.evaluate_every": 60}
    Run.open(load_experiment("moons", method="ste", overrides=changes), tmp_path / "ste").train()
    assert rows_of(tmp_path / "ste")[-1]["test_accuracy"] > 75
    Run.open(load_experiment("moons", overrides={**changes, "training.epochs": 5}), tmp_path / "b").train()
    assert 20 <= rows_of(tmp_path / "b")[-1]["test_accuracy_mean"] <= 100


def test_regression_has_no_accuracy(tmp_path: Path, data_dir: Path) -> None:
    experiment = load_experiment("snelson", overrides={"training.epochs": 2})
    Run.open(experiment, tmp_path, data_dir).train()
    row = rows_of(tmp_path)[-1]
    assert row.keys() == (DOCUMENTED - {"seconds"}) | {"validation_rmse", "test_rmse"}
    assert row["train_accuracy"] is None and row["test_accuracy"] is None and row["train_loss"] > 0
    assert row["validation_rmse"] is None, "there are no validation data"


def test_regression_is_measured_in_the_unit_of_its_targets(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=1000 + 50 * x[:, 0])
    experiment, _ = choose_for_file(str(tmp_path / "d.npz"), None, "bayesbinn", {"training.epochs": 4})
    Run.open(experiment, tmp_path / "run").train()
    rows = rows_of(tmp_path / "run")
    assert all(row["validation_accuracy"] is None and row["test_accuracy"] is None for row in rows)
    run = Run.load(tmp_path / "run")
    test = run.dataset.split(0.1, 0).test
    assert test is not None
    inputs, targets = test.whole()
    error = (run.model.eval()(inputs) - targets).square().mean().sqrt() * run.dataset.target_std
    assert rows[-1]["test_rmse"] == pytest.approx(error.item(), rel=1e-4) and 5 < rows[-1]["test_rmse"] < 500
    lowest = min(rows, key=lambda row: row["validation_rmse"])
    assert run.best is not None and run.best.epoch == lowest["epoch"]
    assert load_network(tmp_path / "run", "best").epoch.startswith(f"best, {lowest['epoch']} of")


# ---- resuming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOME_METHODS)
def test_stopping_early_and_resuming_changes_nothing(method: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    Run.open(digits(method), whole).train()
    Run.open(digits(method), parts).train(stop_after=1)
    assert [row["epoch"] for row in rows_of(parts)] == [1]
    assert rows_of(parts)[0]["lr"] == rows_of(whole)[0]["lr"], "the schedule is the same"

    # ... and once more within an epoch
    batches = 0

    def enough() -> bool:
        nonlocal batches
        batches += 1
        return batches == 5

    torch.manual_seed(123)  # what happens in between must not matter
    with pytest.raises(RunStopped, match="stopped in epoch 2; the same command resumes"):
        Run.open(digits(method), parts).train(should_stop=enough)
    resumed = Run.open(digits(method), parts)
    assert (resumed.epoch, resumed.totals.batches) == (2, 5)
    torch.manual_seed(456)
    Run.open(digits(method), parts).train()
    assert_same_run(whole, parts)


def test_a_finished_run_does_not_train(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train()
    before = (tmp_path / "metrics.jsonl").read_bytes(), (tmp_path / "checkpoint.pt").read_bytes()
    Run.open(digits(), tmp_path).train()
    assert before == ((tmp_path / "metrics.jsonl").read_bytes(), (tmp_path / "checkpoint.pt").read_bytes())


def test_a_lost_or_torn_metrics_file_is_rewritten(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=2)
    rows = rows_of(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "lr"')
    with pytest.raises(InvalidFile, match=r"metrics.jsonl: expected one line of JSON per epoch"):
        load_run(tmp_path)
    Run.open(digits(), tmp_path)
    assert rows_of(tmp_path) == rows


def test_a_setting_that_toml_changes_the_type_of_does_not_prevent_resuming(tmp_path: Path) -> None:
    experiment = digits("ste", betas=(0.9, 0.99))
    Run.open(experiment, tmp_path).train(stop_after=1)
    assert Run.open(experiment, tmp_path).epoch == 2


def test_progress_reports_every_batch_and_every_epoch(tmp_path: Path) -> None:
    seen: list[Progress] = []
    Run.open(digits(), tmp_path).train(stop_after=2, on_progress=seen.append)
    rows = [each.row for each in seen if each.row is not None]
    assert [row["epoch"] for row in rows] == [1, 2]
    training, closing = seen[: 2 * 21 + 2], seen[2 * 21 + 2 :]
    assert {(each.batches, each.calibrated) for each in training} == {(21, None)}
    shares = [each.calibrated for each in closing]
    assert None not in shares and shares == sorted(shares) and shares[-1] == 1


def test_loading_a_run_writes_nothing(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    (tmp_path / "metrics.jsonl").write_text((tmp_path / "metrics.jsonl").read_text() + "\n".join(["{}"]) + "\n")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    load_trained(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}


# ---- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (digits(lr=0.5), "method.settings.lr is 0.03 there, 0.5 here"),
        (digits("ste"), "method.name is 'bayesbinn' there, 'ste' here"),
        (digits(**{"training.seed": 7}), "training.seed is 0 there, 7 here"),
        (digits(**{"training.epochs": 9}), "training.epochs is 3 there, 9 here"),
        (digits(momentum=0.5), "method.settings.momentum is not set there, 0.5 here"),
    ],
)
def test_another_experiment_in_the_same_folder_is_rejected(other: Experiment, message: str, tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(InvalidInput) as caught:
        Run.open(other, tmp_path)
    assert message in str(caught.value) and "choose another --out" in str(caught.value)
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _other_content(path: Path) -> None:
    torch.save({"epoch": 1}, path)


@pytest.mark.parametrize("damage", [_truncate, _other_content, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_gets_one_line_and_is_kept(damage: Callable[[Path], None], tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    damage(tmp_path / "checkpoint.pt")
    content = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(InvalidFile) as caught:
        Run.open(digits(), tmp_path)
    assert "checkpoint.pt: cannot be resumed" in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "checkpoint.pt").read_bytes() == content


def test_a_checkpoint_that_contains_code_is_rejected(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    torch.save({"epoch": subprocess.Popen}, tmp_path / "checkpoint.pt")
    with pytest.raises(InvalidFile, match="cannot be resumed"):
        Run.open(digits(), tmp_path)


def test_a_run_without_its_checkpoint_is_not_evaluated_as_if_it_were_trained(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train(stop_after=1)
    (tmp_path / "checkpoint.pt").unlink()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(InvalidInput, match="no epoch is finished yet"):
        load_trained(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    with pytest.raises(InvalidFile, match="there is no run here"):
        load_trained(tmp_path / "nowhere")


MISFITS = [
    ({"training.loss": "mse"}, "needs 'cross_entropy'; add --set training.loss=cross_entropy"),
    ({"model.name": "vgg"}, "vgg needs images"),
    ({"model.name": "lrnet_mnist"}, "takes images of (1, 28, 28), these examples are (64,)"),
    ({"model.name": "mnist_mpl"}, "there is no network 'mnist_mpl'. Did you mean 'mnist_mlp'?"),
    ({"model.name": "synthetic_mlp", "training.loss": "binary_cross_entropy"}, "10 classes; synthetic_mlp has one"),
    ({"data.name": "digit"}, "Did you mean 'digits'?"),
    ({"data.label": "y"}, "digits has its own labels"),
]


@pytest.mark.parametrize(("changes", "message"), MISFITS, ids=[message[:30] for _, message in MISFITS])
def test_settings_that_do_not_match_are_rejected_and_leave_no_folder(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BayesbinnError) as caught:
        Run.open(digits(**changes), tmp_path / "run")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_created_and_a_stop_before_the_start_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFile, match="cannot create the folder of the run"):
        Run.open(digits(), tmp_path / "file" / "run")
    with pytest.raises(InvalidInput, match="stop_after=0"):
        Run.open(digits(), tmp_path / "run").train(stop_after=0)


# ---- processes that end badly ----------------------------------------------------------------------


def training(method: str, folder: Path, epochs: int = 6) -> list[str]:
    """Arguments of a small run."""
    changes = {**SMALL, **(RELAXED if method == "bayesbinn" else {}), "training.epochs": epochs}
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return ["train", "digits", "--method", method, "--out", str(folder), *settings]


# Every few batches. A run that nobody stops does without, which takes less time.
OFTEN = ("--checkpoint-minutes", "0.0001")


@pytest.mark.parametrize("method", ["bayesbinn", "lrnet"])
def test_three_kills_at_random_times_change_nothing(method: str, commands: Commands, tmp_path: Path) -> None:
    assert commands.run(*training(method, tmp_path / "whole")) == 0, commands.errors
    duration = sum(row["seconds"] for row in load_run(tmp_path / "whole")[1])
    moments = random.Random(4)
    killed, inside, last = tmp_path / "killed", 0, 0
    for attempt in range(12):
        process = commands.start(*training(method, killed), *OFTEN)
        wait_for_a_checkpoint(killed, after=last)
        time.sleep(moments.uniform(0, duration / 6))
        os.kill(process, signal.SIGKILL)
        assert commands.wait(process) == -signal.SIGKILL, "it ended before it could be killed"
        last = (killed / "checkpoint.pt").stat().st_mtime_ns
        inside += torch.load(killed / "checkpoint.pt", weights_only=True)["totals"]["batches"] > 0
        if attempt >= 2 and inside:
            break
    assert inside, "no kill happened within an epoch"
    assert commands.run(*training(method, killed)) == 0, commands.errors
    assert commands.errors[1].startswith(f"resuming {killed} in epoch ")
    assert_same_run(tmp_path / "whole", killed)
    assert not list(killed.glob("*.partial"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_with_one_line_and_the_same_command_resumes(
    number: signal.Signals, commands: Commands, tmp_path: Path
) -> None:
    """Ctrl-C, and SIGTERM as sent by a cluster or a system that shuts down."""
    assert commands.run(*training("ste", tmp_path / "whole")) == 0, commands.errors
    folder = tmp_path / "stopped"
    process = commands.start(*training("ste", folder), *OFTEN)
    wait_for_a_checkpoint(folder)
    os.kill(process, number)
    assert commands.wait(process) == 128 + number
    assert not (folder / "lock").exists()
    said = [line for line in commands.errors if not line.startswith(("epoch ", "learning rate: "))]
    assert len(said) == 1 and said[0].startswith("stopped in epoch ") and "the same command resumes" in said[0]
    assert commands.run(*training("ste", folder)) == 0
    assert_same_run(tmp_path / "whole", folder)


def test_a_folder_has_one_writer(commands: Commands, tmp_path: Path) -> None:
    first = commands.start(*training("ste", tmp_path, epochs=300), *OFTEN)
    wait_for_a_checkpoint(tmp_path)
    assert commands.wait(commands.start(*training("ste", tmp_path, epochs=300), log="second")) == 2
    last = commands.log("second")[-1]
    assert f"process {first} is writing there; wait for it" in last and not last.startswith("Traceback")
    os.kill(first, signal.SIGKILL)
    assert commands.wait(first) == -signal.SIGKILL and (tmp_path / "lock").exists()
    arguments = [*training("ste", tmp_path, epochs=300), "--stop-after", "1"]
    assert commands.run(*arguments) == 0, "the lock of a dead process does not block others"
    assert not (tmp_path / "lock").exists()


def test_a_full_disk_leaves_the_previous_checkpoint(commands: Commands, tmp_path: Path) -> None:
    """Files may only grow to half a checkpoint, as on a full disk."""
    assert commands.run(*training("bayesbinn", tmp_path / "whole", epochs=3)) == 0, commands.errors
    folder = tmp_path / "run"
    assert commands.run(*training("bayesbinn", folder, epochs=3), "--stop-after", "1") == 0
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    code = commands.run(*training("bayesbinn", folder, epochs=3), *OFTEN, limit=len(before["checkpoint.pt"]) // 2)
    said = [line for line in commands.errors if not line.startswith(("resuming ", "learning rate: "))]
    assert code == 2 and len(said) == 1, said
    assert "checkpoint.pt: could not be written" in said[0] and "the previous one is untouched" in said[0]
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert commands.run(*training("bayesbinn", folder, epochs=3)) == 0
    assert_same_run(tmp_path / "whole", folder)


@pytest.mark.parametrize("moment", ["before opening", "before training", "in an epoch"])
def test_a_process_that_lost_its_folder_writes_nothing(moment: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run.open(digits(), folder).train(stop_after=1)
    lock, before = folder / "lock", {path.name: path.read_bytes() for path in folder.glob("*.*")}

    def lose(now: str) -> None:
        if now == moment:
            owner = json.loads(lock.read_text())
            lock.write_text(json.dumps(owner | {"token": "another"}))

    def train() -> None:
        with RunFolder.locked(folder) as owned:
            lose("before opening")
            run = Run.open(digits(), owned)
            lose("before training")
            run.train(on_progress=lambda progress: lose("in an epoch"))

    with pytest.raises(LockLost, match="took over this run"):
        train()
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert json.loads(lock.read_text())["token"] == "another", "it belongs to the other process"


def test_no_space_for_the_posterior_gets_one_line(tmp_path: Path) -> None:
    Run.open(digits(), tmp_path).train()
    (tmp_path / "posterior.safetensors").unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(InvalidFile, match=r"posterior.safetensors: could not be written \(File too large\)$"):
            Run.open(digits(), tmp_path).train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("*.partial"))
    Run.open(digits(), tmp_path).train()  # the checkpoint is complete: only the posterior is written
    assert (tmp_path / "posterior.safetensors").exists()
