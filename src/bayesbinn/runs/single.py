"""A run: one experiment in its own folder, resumable at any time.

config.toml             the complete experiment
metrics.jsonl           a line per epoch
data.json               what the run knows about its data: names, normalization, split, fingerprint
checkpoint.pt           everything the next batch needs, and the network of the best epoch: tensors and plain values
posterior.safetensors   q(w) after the last epoch, calibrated on the validation part
best.safetensors        q(w) after the epoch with the best validation accuracy (or RMSE), calibrated the same way
statistics.safetensors  with a certainty: BatchNorm statistics of the first samples of q(w); best-statistics.safetensors
residuals.json          the errors of a regression on the validation part
scores.json             scores by class on the test part, after the last epoch
tensorboard/            the metrics as curves, if TensorBoard is installed
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesbinn import ranks
from bayesbinn.data import Dataset, Part, Parts
from bayesbinn.data.card import FILE_NAME as CARD
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment
from bayesbinn.runs.averaging import NaturalAverage, check_averaging
from bayesbinn.runs.best_epoch import BestNetwork, best_epoch
from bayesbinn.runs.build import build_model, check_batch_size, check_loss, loss_of, make_optimizers
from bayesbinn.runs.data import card_of, load_data, refuse_other_data, refuse_other_source
from bayesbinn.runs.folder import CONFIG, load_run, refuse_another
from bayesbinn.runs.measure import accuracy, accuracy_of_the_mean, rmse, settle
from bayesbinn.runs.results import ResultWriter
from bayesbinn.runs.trackers import usual_trackers, watchers_of
from bayesbinn.train import data_parallel, statistics
from bayesbinn.train.checkpoints import check_alike, check_lines
from bayesbinn.train.folder import RunFolder, owned, path_of
from bayesbinn.train.loop import flips, training_threads, warn_if_stuck
from bayesbinn.train.progress import Clock, Progress
from bayesbinn.train.trainer import Recipe, Trainer


class Run(Trainer):
    """An experiment in progress. `Run.open` creates or resumes it; `train` continues to the end."""

    tasks = 1

    def __init__(self, experiment: Experiment, folder: RunFolder | Path, dataset: Dataset, card: DataCard) -> None:
        """The run as of its checkpoint, or a new one. `open` also checks that it matches the folder."""
        training = experiment.training
        check_loss(experiment, card)
        torch.manual_seed(training.seed)
        model = data_parallel.prepared(build_model(experiment, card), training.sync_batchnorm)
        check_batch_size(experiment, model)
        optimizer, real_optimizer = make_optimizers(experiment, model, card)
        check_averaging(experiment, optimizer)
        recipe = Recipe(
            epochs=training.epochs,
            batch_size=training.batch_size,
            schedule=experiment.method.schedule,
            loss=loss_of(training),
            augment=experiment.data.augment,
            shift=experiment.data.shift,
            distort=experiment.data.distort,
            seed=training.seed,
            classification=dataset.task == "classification",
        )
        super().__init__(model, optimizer, real_optimizer, recipe, folder)
        self.experiment, self.dataset, self.card = experiment, dataset, card
        self.watchers = watchers_of(usual_trackers(), experiment)
        self.rows: list[dict[str, Any]] = []
        """A line of metrics per epoch."""
        self.best: BestNetwork | None = None
        """The network after the first epoch with the best validation accuracy or RMSE."""
        self.signs: list[Tensor] = []
        """The signs of the binary weights at the start of the epoch."""
        self.average = NaturalAverage()
        """The mean of λ after the last epochs, if the experiment asks for it."""
        self._split: Parts | None = None
        self._remember_signs()
        self._restore()

    # ---- opening -----------------------------------------------------------------------------

    @classmethod
    def open(cls, experiment: Experiment, folder: RunFolder | Path, data_dir: Path | None = None) -> Run:
        """Start a run in a new folder, or resume the run in it if it belongs to the same experiment.

        A path is locked only while something is written there: now, and during `train`.
        """
        with owned(folder) as writable:
            place = writable.path
            wanted = ranks.decided(lambda: refuse_other_source(experiment, place))
            dataset = load_data(wanted, data_dir)
            here = card_of(experiment, dataset)
            # Check the data first: settings chosen for them, such as the number of epochs, change with them.
            card, notes = ranks.decided(lambda: refuse_other_data(here, place))
            begun = ranks.decided(lambda: refuse_another(experiment, place))
            run = cls(begun, folder, dataset, card)
            run.notes = notes
            ranks.decided(lambda: run._begin(writable))
            return run

    @classmethod
    def load(cls, folder: Path, data_dir: Path | None = None) -> Run:
        """A run as of its last checkpoint. Nothing is written, so a run in progress can be inspected."""
        experiment, _ = load_run(folder)
        if experiment.continual is not None:
            raise InvalidInput(f"{folder}: a stream of tasks; use bayesbinn.runs.stream.open_run")
        dataset = load_data(experiment, data_dir)
        card, notes = refuse_other_data(card_of(experiment, dataset), folder)
        run = cls(experiment, folder, dataset, card)
        run.notes = notes
        if not run.rows:
            raise InvalidInput(f"{folder}: no epoch is finished yet; train first")
        return run

    @property
    def folder(self) -> Path:
        assert self._given_folder is not None
        return path_of(self._given_folder)

    # ---- training ----------------------------------------------------------------------------

    def _epochs_per_stop(self) -> int:
        return 1

    def _position(self) -> str:
        return f"epoch {self.epoch}"

    def _parts(self) -> Parts:
        if self._split is None:
            self._split = self.dataset.split(self.experiment.data.validation, self.experiment.split_seed)
        return self._split

    def _training_part(self) -> Part:
        return self._parts().train

    def _worth_saving(self, waited: float, checkpoint_seconds: float) -> bool:
        # The toy problems have thousands of epochs, each much shorter than a second: do not save every one.
        return waited >= min(1.0, checkpoint_seconds)

    @contextmanager
    def _watched(
        self, folder: RunFolder | None, on_progress: Callable[[Progress], None]
    ) -> Iterator[Callable[[Progress], None]]:
        # Around all epochs: the toy problems have thousands of short ones, evaluated with the same number of threads.
        with training_threads(self.model, self.recipe.batch_size):
            yield on_progress
        if self.recipe.classification and folder is not None and folder.writes:
            losses = [row["train_loss"] for row in self.rows]
            targets = self.dataset.train_targets
            warn_if_stuck(losses, self.rows[-1]["train_accuracy"], targets, stacklevel=5)  # the caller of `train`

    def _end_epoch(self, row: dict[str, Any], clock: Clock, is_last: bool) -> dict[str, Any]:
        training = self.experiment.training
        self.average.after_epoch(self.epoch, training, self.model, self.optimizer, self._parts().train)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        row |= {"validation_accuracy": None, "test_accuracy": None, "flip_ratio": flips(self.signs, parameters)}
        if not self.recipe.classification:
            row |= {"validation_rmse": None, "test_rmse": None}
        evaluates = is_last or self.epoch % training.evaluate_every == 0
        if evaluates or statistics.needed(self.model, self._certainty):
            # Also without an evaluation: a checkpoint is there to predict with.
            data_parallel.share_buffers(self.model)
            settle(self.model, self._parts().train, self._certainty)
        if evaluates:
            row |= self._measured()
        row["seconds"] = clock.elapsed()
        self.rows.append(row)
        if best_epoch(self.rows) is row:
            self.best = BestNetwork.of(self.epoch, self.model, self.optimizer)
        self.epoch += 1
        self._remember_signs()
        return row

    def _measured(self) -> dict[str, float]:
        """Scores of the mode, in percent or in the unit of the targets, and of the mean over posterior samples."""
        found: dict[str, float] = {}
        parts, training = self._parts(), self.experiment.training
        for name, part in (("validation", parts.validation), ("test", parts.test)):
            if part is None:
                continue
            if self.recipe.classification:
                found[f"{name}_accuracy"] = accuracy(self.model, part)
            else:
                found[f"{name}_rmse"] = rmse(self.model, part, self.dataset.target_std)
        if parts.test is not None and self.recipe.classification and self.optimizer.binary and training.mean_samples:
            posterior, samples, seed = self.optimizer.posterior(), training.mean_samples, training.seed
            own = None
            if statistics.needed(self.model, self._certainty):
                own = statistics.of_samples(self.model, posterior, parts.train, samples, seed)
            mean = accuracy_of_the_mean(self.model, posterior, parts.test, samples, seed, own)
            found |= {} if mean is None else {"test_accuracy_mean": mean}
        return found

    @property
    def _certainty(self) -> float | None:
        """The optimizer's, if it has one."""
        found: float | None = self.optimizer.param_groups[0].get("certainty")
        return found

    def _remember_signs(self) -> None:
        self.signs = [p.detach() >= 0 for group in self.optimizer.param_groups for p in group["params"]]
        self.signs = [sign.to(torch.int8) * 2 - 1 for sign in self.signs]

    def _finish(self, folder: RunFolder | None, on_progress: Callable[[float], None]) -> None:
        assert folder is not None
        posterior = self.optimizer.posterior() if self.optimizer.binary else None
        writer = ResultWriter(folder, self.card, self._parts(), on_progress, self._certainty)
        writer.write(self.epochs_done, self.model, posterior, self.best)

    # ---- files -------------------------------------------------------------------------------

    def _begin(self, folder: RunFolder) -> None:
        folder.keep(CONFIG, self.experiment.to_toml().encode())
        folder.keep(CARD, self.card.to_json().encode())
        self._write_metrics(folder)

    def _write_metrics(self, folder: RunFolder) -> None:
        folder.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows).encode())

    def _own_state(self) -> dict[str, Any]:
        own = {"rows": self.rows, "signs": self.signs, "best": None if self.best is None else vars(self.best)}
        return {**own, "average": vars(self.average)} if self.average.count else own

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]
        self.signs = [sign.to(data_parallel.device()) for sign in state["signs"]]
        self.best = BestNetwork(**state["best"]) if state.get("best") else None
        self.average = NaturalAverage(**state.get("average", {}))

    def _check(self, state: dict[str, Any]) -> None:
        super()._check(state)
        if state.get("best"):
            check_alike(state["best"]["model"], BestNetwork.of(0, self.model, self.optimizer).model)
        check_lines(state["rows"], "rows")
        if state["epoch"] != len(state["rows"]) + 1 or state["epoch"] > self.recipe.epochs + 1:
            raise InvalidFile(f"epoch {state['epoch']} with metrics of {len(state['rows'])} epochs")

    def _template(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"rows": [], "best": state.get("best")}

    def _max_examples(self) -> int:
        return len(self.dataset.train_inputs)
