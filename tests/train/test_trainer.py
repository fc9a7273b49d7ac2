"""What every caller may rely on, for one task or a stream of tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesbinn as bb
from bayesbinn import data, models
from bayesbinn.continual import Learner, Plan
from bayesbinn.errors import InvalidUse
from bayesbinn.experiments import load_experiment
from bayesbinn.runs.open import open_any
from bayesbinn.runs.report import report
from bayesbinn.runs.single import Run
from bayesbinn.runs.stream import open_run
from bayesbinn.runs.trained import load_network
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.lock import owner_of
from bayesbinn.train.progress import Progress, RunStopped
from bayesbinn.train.trainer import Trainer
from tests.helpers.places import FIXTURES

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"model.width": 0.02, "training.epochs": 4},
    "permuted-digits": {"continual.tasks": 2, "training.epochs": 2, "continual.samples": 2},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=SETTINGS)
def experiment(request: pytest.FixtureRequest) -> Any:
    return load_experiment(request.param, overrides=SETTINGS[request.param])


def test_progress_counts_epochs_over_all_tasks(experiment: Any, tmp_path: Path) -> None:
    heard: list[Progress] = []
    trainer = open_any(experiment, tmp_path, None)
    assert isinstance(trainer, Trainer)
    assert (trainer.total_epochs, trainer.epochs_done, trainer.finished, trainer.where_to_resume) == (4, 0, False, "")
    trainer.train(on_progress=heard.append)
    assert trainer.finished and trainer.epochs_done == 4
    training = [each for each in heard if each.calibrated is None]
    assert heard == [*training, *(each for each in heard if each.calibrated is not None)], "calibrated at the end"
    batches = training[0].batches
    assert [(each.epoch, each.epochs) for each in training if each.row is not None] == [(n, 4) for n in range(1, 5)]
    assert [each.batch for each in training if each.row is None] == [*range(1, batches + 1)] * 4
    for each in training:
        assert each.batches == batches
        if each.row is not None:
            assert {"epoch", "lr", "train_loss", "train_accuracy", "seconds"} <= each.row.keys()


def test_a_stopped_run_says_where_it_resumes(experiment: Any, tmp_path: Path) -> None:
    batches = iter(range(10_000))
    with pytest.raises(RunStopped, match=rf"^stopped in .*epoch 1; the same command resumes {tmp_path}$"):
        open_any(experiment, tmp_path, None).train(should_stop=lambda: next(batches) == 2)
    again = open_any(experiment, tmp_path, None)
    assert again.where_to_resume.endswith("epoch 1, after 3 batches") and again.totals.batches == 3


def test_a_path_is_locked_while_something_is_written_there(experiment: Any, tmp_path: Path) -> None:
    trainer = open_any(experiment, tmp_path, None)
    assert owner_of(tmp_path) is None, "others may use it until it is trained"
    refused = []

    def intrude(progress: Progress) -> None:
        if progress.row is None and not refused:
            with pytest.raises(InvalidUse, match="is writing there") as caught:
                open_any(experiment, tmp_path, None)
            refused.append(caught)

    trainer.train(stop_after=1, on_progress=intrude)
    assert refused and owner_of(tmp_path) is None


def test_a_run_that_was_since_trained_elsewhere_is_rejected(experiment: Any, tmp_path: Path) -> None:
    early = open_any(experiment, tmp_path, None)
    open_any(experiment, tmp_path, None).train(stop_after=1)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(InvalidUse, match="its checkpoint has changed since the run was opened; open it again"):
        early.train()
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    open_any(experiment, tmp_path, None).train()


def test_a_run_may_continue_after_its_own_checkpoints(experiment: Any, tmp_path: Path) -> None:
    trainer = open_any(experiment, tmp_path, None)
    trainer.train(stop_after=1)
    trainer.train()
    assert trainer.finished


@pytest.mark.parametrize("kind", ["run", "stream"])
def test_reading_does_not_need_a_lock(kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "before" / kind, tmp_path / "run"))
    with RunFolder.locked(folder):
        assert report(folder)["run"] == str(folder)
        assert load_network(folder).model is not None


def test_a_card_is_not_restored_while_another_process_writes(tmp_path: Path) -> None:
    experiment = load_experiment("digits", overrides=SETTINGS["digits"])
    Run.open(experiment, tmp_path).train(stop_after=1)
    (tmp_path / "data.json").unlink()
    with RunFolder.locked(tmp_path):
        load_network(tmp_path)
        assert not (tmp_path / "data.json").exists()
    load_network(tmp_path)
    assert (tmp_path / "data.json").exists()


def test_a_learner_given_a_path_takes_the_lock_itself(tmp_path: Path) -> None:
    def learner(folder: RunFolder | Path) -> Learner:
        torch.manual_seed(0)
        model = models.continual_mlp(10, inputs=64, width=0.1)
        optimizer = bb.BayesBiNN(bb.split_parameters(model)[0], train_set_size=1437, certainty=100, seed=0)
        stream = data.permuted(data.load("digits"), 1, seed=0)
        return Learner(model, optimizer, stream, Plan(epochs=1, samples=2), folder=folder)

    by_path = learner(tmp_path / "path")
    with RunFolder.locked(tmp_path / "path"), pytest.raises(InvalidUse, match="is writing there"):
        by_path.train()
    by_path.train()
    with RunFolder.locked(tmp_path / "own") as folder:
        learner(folder).train()
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("path", "own")]
    assert files[0] == files[1] and "lock" not in files[0]


def test_every_epoch_of_every_task_has_its_own_order() -> None:
    seen: list[list[int]] = []

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen[-1].extend(y.tolist())
        return nn.functional.cross_entropy(output, y)

    model = models.continual_mlp(10, inputs=64, width=0.1)
    optimizer = bb.BayesBiNN(bb.split_parameters(model)[0], train_set_size=1437, certainty=100, seed=0)
    stream = data.permuted(data.load("digits"), 2, seed=0)
    learner = Learner(model, optimizer, stream, Plan(epochs=2, batch_size=300, samples=1, seed=5), loss=loss)

    def listen(progress: Progress) -> None:
        if progress.row is not None:
            seen.append([])

    seen.append([])
    learner.train(on_progress=listen)
    part = stream[0].split(0.0, 5).train  # a permutation of the pixels does not change the labels
    for number, labels in enumerate(seen[:4], 1):
        assert labels == [int(each) for _, y in part.batches(300, seed=5, epoch=number) for each in y], number


def test_a_run_is_a_stream_of_one_task(tmp_path: Path) -> None:
    """The same batches, schedule and steps: one task gives the same λ with either trainer."""
    settings = {"training.epochs": 2, "continual.tasks": 1, "continual.samples": 0}
    stream = load_experiment("permuted-digits", overrides=settings)
    learner = open_run(stream, tmp_path / "stream")
    dataset = learner.stream[0]
    run = Run(stream.model_copy(update={"continual": None}), tmp_path / "run", dataset, learner.card)
    learner.train()
    run.train()
    for name, value in learner.optimizer.posterior().natural.items():
        assert torch.equal(value, run.optimizer.posterior().natural[name])
