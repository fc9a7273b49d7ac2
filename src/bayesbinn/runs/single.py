"""A run: one experiment in a folder of its own, resumable at any moment.

config.toml             the complete experiment
metrics.jsonl           a line per evaluated epoch
data.json               what the run knows of its data: names, normalisation, split, fingerprint
checkpoint.pt           everything the next batch needs, and the network of the best epoch: tensors and plain values
posterior.safetensors   q(w) after the last epoch, calibrated on the validation part
best.safetensors        q(w) after the epoch with the best validation accuracy (or RMSE), calibrated likewise
residuals.json          how far a regression is off on the validation part
scores.json             the test part by classes, after the last epoch
tensorboard/            the metrics as curves, where TensorBoard is installed
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesbinn import ranks
from bayesbinn.data import Dataset, Part, Parts
from bayesbinn.data.card import CHECKPOINT_KEY, DataCard, restore_card
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment
from bayesbinn.files import write_whole
from bayesbinn.methods import get_method
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.prediction.predicting import predict
from bayesbinn.runs.best_epoch import BestNetwork, best_epoch
from bayesbinn.runs.build import LOSSES, build_model, check_loss, make_optimizers
from bayesbinn.runs.data import card_of, load_data, refuse_other_data, refuse_other_source
from bayesbinn.runs.folder import begin_folder, load_run, refuse_another
from bayesbinn.runs.results import ResultWriter
from bayesbinn.runs.tensorboard import Curves
from bayesbinn.train import data_parallel as distributed
from bayesbinn.train.checkpoints import (
    check_adam,
    check_alike,
    check_lines,
    check_progress,
    read_checkpoint,
    resuming,
    write_checkpoint,
)
from bayesbinn.train.loop import (
    Totals,
    correct_predictions,
    flips,
    set_learning_rates,
    train_batches,
    training_threads,
    warn_if_stuck,
)
from bayesbinn.train.progress import Clock, Progress, RunStopped

TEST_BATCH = 1000


@dataclass
class Run:
    """An experiment under way. `Run.open` creates or resumes it; `train` goes on until the end."""

    experiment: Experiment
    folder: Path
    dataset: Dataset
    model: nn.Module
    optimizer: BinaryOptimizer
    real_optimizer: torch.optim.Optimizer | None
    card: DataCard
    epoch: int = 1
    """The epoch under way, counted from 1; one above the last when the run is finished."""
    totals: Totals = field(default_factory=Totals)
    elapsed: float = 0.0
    """Seconds spent on the epoch under way, over all sessions."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    _saved_at: float = -math.inf
    signs: list[Tensor] = field(default_factory=list)
    """The signs of the binary weights at the start of the epoch."""
    best: BestNetwork | None = None
    """The network after the first epoch with the best validation accuracy or RMSE."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    may_write: Callable[[], None] = lambda: None
    """Called before every writing; raises when the folder has become another process's."""
    _replica: nn.Module | None = None
    """The model as data-parallel ranks train it."""

    # ---- opening -----------------------------------------------------------------------------

    @classmethod
    def open(cls, experiment: Experiment, folder: Path, data_dir: Path | None = None) -> Run:
        """Start a run in a new folder, or resume the one that is there if it is of the same experiment."""
        wanted = ranks.decided(lambda: refuse_other_source(experiment, folder))
        dataset = load_data(wanted, data_dir)
        here = card_of(experiment, dataset)
        # The data first: settings chosen for them, such as the number of epochs, change with them.
        card, notes = ranks.decided(lambda: refuse_other_data(here, folder))
        begun = ranks.decided(lambda: refuse_another(experiment, folder))
        run = cls._build(begun, folder, dataset, card)
        run.notes = notes
        ranks.decided(run._begin)
        return run

    @classmethod
    def load(cls, folder: Path, data_dir: Path | None = None) -> Run:
        """A run as its last checkpoint has it. Nothing is written, so that a run under way can be looked at."""
        experiment, _ = load_run(folder)
        if experiment.continual is not None:
            raise InvalidInput(f"{folder}: a stream of tasks; use bayesbinn.continual.open_run")
        dataset = load_data(experiment, data_dir)
        card, notes = refuse_other_data(card_of(experiment, dataset), folder)
        run = cls._build(experiment, folder, dataset, card)
        run.notes = notes
        if not run.rows:
            raise InvalidInput(f"{folder}: no epoch is finished yet; train first")
        return run

    @classmethod
    def _build(cls, experiment: Experiment, folder: Path, dataset: Dataset, card: DataCard) -> Run:
        check_loss(experiment, card)
        torch.manual_seed(experiment.training.seed)
        model = distributed.prepared(build_model(experiment, card), experiment.training.sync_batchnorm)
        optimizer, real_optimizer = make_optimizers(experiment, model, card)
        run = cls(experiment, folder, dataset, model, optimizer, real_optimizer, card)
        run._remember_signs()
        run._restore(folder / "checkpoint.pt")
        return run

    @property
    def finished(self) -> bool:
        return self.epoch > self.experiment.training.epochs

    @property
    def total_epochs(self) -> int:
        return self.experiment.training.epochs

    @property
    def epochs_done(self) -> int:
        return self.epoch - 1

    @property
    def where_to_resume(self) -> str:
        """In words; empty at the start."""
        begun = self.epoch > 1 or self.totals.batches
        return f"epoch {self.epoch}, after {self.totals.batches} batches" if begun else ""

    # ---- training ----------------------------------------------------------------------------

    def train(
        self,
        *,
        stop_after: int | None = None,
        checkpoint_seconds: float = 180.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on until the last epoch, or until epoch `stop_after` of an unchanged schedule.

        Writes a checkpoint after every epoch and, inside one, every `checkpoint_seconds`. When
        `should_stop` says so, the batch under way is finished and a checkpoint written.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidInput(f"stop_after={stop_after}: it must be 1 or more")
        last = min(self.experiment.training.epochs, stop_after or self.experiment.training.epochs)
        parts = self.dataset.split(self.experiment.data.validation, self.experiment.training.seed)
        if self.epoch <= last:
            with Curves(self.folder, self.epoch) if ranks.rank() == 0 else nullcontext() as curves:

                def tell(progress: Progress) -> None:
                    if progress.row is not None and curves is not None:
                        curves.add(progress.row)
                    on_progress(progress)

                with training_threads(self.model, self.experiment.training.batch_size):
                    self._train_until(last, parts, checkpoint_seconds, tell, should_stop)
            if self.dataset.task == "classification" and ranks.rank() == 0:
                losses = [row["train_loss"] for row in self.rows]
                warn_if_stuck(losses, self.rows[-1]["train_accuracy"], self.dataset.train_targets)
        posterior = self.optimizer.posterior() if self.optimizer.binary else None
        results = ResultWriter(self.folder, self.card, parts, self.may_write)
        results.write(self.epochs_done, self.model, posterior, self.best)

    def _train_until(
        self,
        last: int,
        parts: Parts,
        checkpoint_seconds: float,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        training, settings = self.experiment.training, self.experiment.method
        if self._replica is None:
            self._replica = distributed.replicated(self.model, self.optimizer, self.real_optimizer)
        while self.epoch <= last:
            batches = parts.train.batches(
                training.batch_size,
                seed=training.seed,
                epoch=self.epoch,
                start=self.totals.batches,
                augment=self.experiment.data.augment,
                drop_single=True,
                shard=(ranks.rank(), ranks.world()),
            )
            count = self.totals.batches + len(batches)
            clock = Clock(self.elapsed, checkpoint_seconds)

            def before_batch(count: int = count) -> None:
                progress = (self.epoch - 1 + self.totals.batches / count) / training.epochs
                factor = settings.schedule.factor(self.epoch, training.epochs, progress)
                set_learning_rates(self._optimizers(), factor)
                distributed.separate_dropout(training.seed, self.epoch, self.totals.batches)

            def after_batch(count: int = count, clock: Clock = clock) -> None:
                seen, classes = self.totals, self.dataset.task == "classification"
                on_progress(Progress(self.epoch, training.epochs, seen.batches, count, seen, classification=classes))
                # Ctrl-C reaches the ranks in different batches, and their clocks differ.
                stop, save = ranks.summed([should_stop(), ranks.rank() == 0 and clock.checkpoint_due()])
                if stop or save:
                    self.elapsed = clock.elapsed()
                    self._save(distributed.total_of(self.totals))
                if stop:
                    raise RunStopped(f"stopped in epoch {self.epoch}; the same command resumes {self.folder}")

            train_batches(
                self._replica,
                self.optimizer,
                batches,
                self.totals,
                loss=LOSSES[training.loss],
                real_optimizer=self.real_optimizer,
                mc_samples=settings.settings.get("mc_samples", get_method(settings.name).defaults.get("mc_samples", 1)),
                sizes=batches.sizes,
                before_batch=before_batch,
                after_batch=after_batch,
            )
            row = self._finish_epoch(parts.validation, parts.test, clock, is_last=self.epoch == last)
            on_progress(Progress(self.epoch - 1, training.epochs, count, count, Totals(), row))

    def _finish_epoch(self, validation: Part | None, test: Part | None, clock: Clock, is_last: bool) -> dict[str, Any]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        totals = distributed.total_of(self.totals)
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": totals.mean_loss,
            "train_accuracy": totals.accuracy if self.dataset.task == "classification" else None,
            "validation_accuracy": None,
            "test_accuracy": None,
            "flip_ratio": flips(self.signs, parameters),
        }
        if self.dataset.task == "regression":
            row |= {"validation_rmse": None, "test_rmse": None}
        if is_last or self.epoch % self.experiment.training.evaluate_every == 0:
            distributed.share_buffers(self.model)
            if validation is not None:
                row |= self._measured("validation", validation)
            if test is not None:
                row |= self._measured("test", test)
                row |= self._accuracy_of_the_mean(test)
        row["seconds"] = clock.elapsed()
        self.rows.append(row)
        if best_epoch(self.rows) is row:
            self.best = BestNetwork.of(self.epoch, self.model, self.optimizer)
        self.epoch, self.totals, self.elapsed = self.epoch + 1, Totals(), 0.0
        self._remember_signs()
        # The toy problems have thousands of epochs, each far shorter than a second: not every one is worth a file.
        if is_last or clock.epoch_worth_saving(self._saved_at):
            self._save(self.totals)
            self._write_metrics()
        return row

    def _measured(self, name: str, part: Part) -> dict[str, float]:
        """How good the mode is: in percent of a classification, in the unit of the targets of a regression."""
        if self.dataset.task == "regression":
            return {f"{name}_rmse": self._rmse(part)}
        return {f"{name}_accuracy": self._accuracy(part)}

    @torch.no_grad()
    def _rmse(self, part: Part) -> float:
        self.model.eval()
        own = distributed.own_batches(part, TEST_BATCH)
        (squares,) = ranks.summed([sum(float((self.model(x) - y).double().square().sum()) for x, y in own)])
        return self.dataset.target_std * math.sqrt(squares / len(part))

    @torch.no_grad()
    def _accuracy(self, part: Part) -> float:
        self.model.eval()
        own = distributed.own_batches(part, TEST_BATCH)
        (correct,) = ranks.summed([sum(correct_predictions(self.model(x), y) for x, y in own)])
        return 100 * correct / len(part)

    def _accuracy_of_the_mean(self, part: Part) -> dict[str, Any]:
        samples = self.experiment.training.mean_samples
        if samples == 0 or self.dataset.task != "classification" or not self.optimizer.binary:
            return {}
        posterior = self.optimizer.posterior()
        if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()):
            return {}  # a point mass: every sample is the mode
        if posterior.saturated:
            return {"test_accuracy_mean": self._accuracy(part)}
        seed, right = self.experiment.training.seed, 0
        for x, y in distributed.own_batches(part, TEST_BATCH):
            right += int((predict(self.model, posterior, x, samples=samples, seed=seed).classes == y).sum())
        (correct,) = ranks.summed([right])
        return {"test_accuracy_mean": 100 * correct / len(part)}

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer] if self.real_optimizer is None else [self.optimizer, self.real_optimizer]

    def _remember_signs(self) -> None:
        self.signs = [p.detach() >= 0 for group in self.optimizer.param_groups for p in group["params"]]
        self.signs = [sign.to(torch.int8) * 2 - 1 for sign in self.signs]

    # ---- files -------------------------------------------------------------------------------

    def _begin(self) -> None:
        begin_folder(self.experiment, self.folder)
        restore_card(self.folder, self.card)
        self._write_metrics()

    def _save(self, totals: Totals) -> None:
        if ranks.rank():
            return
        state = self._state(totals)
        self.may_write()
        self._saved_at = time.monotonic()
        write_checkpoint(self.folder / "checkpoint.pt", state)

    def _state(self, totals: Totals) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "totals": asdict(totals),
            "elapsed": self.elapsed,
            "rows": self.rows,
            "signs": self.signs,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "real_optimizer": None if self.real_optimizer is None else self.real_optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "best": None if self.best is None else vars(self.best),
            CHECKPOINT_KEY: self.card.to_json(),
        }

    def _restore(self, path: Path) -> None:
        state = ranks.decided(lambda: read_checkpoint(path))
        if state is None:
            return
        with resuming(path):
            self._check(state)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.real_optimizer is not None:
                self.real_optimizer.load_state_dict(state["real_optimizer"])
            self.epoch, self.elapsed, self.rows = state["epoch"], state["elapsed"], state["rows"]
            self.totals = distributed.part_of(Totals(**state["totals"]))
            self.signs = [sign.to(distributed.device()) for sign in state["signs"]]
            self.best = BestNetwork(**state["best"]) if state.get("best") else None
            torch.set_rng_state(state["random"])

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse a state that this run cannot have written."""
        check_alike(state, {**self._state(Totals()), "rows": [], "best": state.get("best")})
        if state.get("best"):
            check_alike(state["best"]["model"], BestNetwork.of(0, self.model, self.optimizer).model)
        check_lines(state["rows"], "rows")
        check_progress(state, len(self.dataset.train_inputs))
        if state["epoch"] != len(state["rows"]) + 1 or state["epoch"] > self.experiment.training.epochs + 1:
            raise InvalidFile(f"epoch {state['epoch']} with metrics of {len(state['rows'])} epochs")
        if self.real_optimizer is not None:
            check_adam(state["real_optimizer"], self.real_optimizer)

    def _write_metrics(self) -> None:
        """The file always tells what the checkpoint knows: a killed run leaves no line twice."""
        if ranks.rank():
            return
        self.may_write()
        lines = "".join(json.dumps(row) + "\n" for row in self.rows)
        write_whole(self.folder / "metrics.jsonl", lines.encode())
