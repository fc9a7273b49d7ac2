"""A run: one experiment in a folder of its own, resumable at any moment.

config.toml             the complete experiment
metrics.jsonl           a line per evaluated epoch
checkpoint.pt           everything the next batch needs: tensors and plain values
posterior.safetensors   q(w) after the last epoch
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn import data as data_sets
from bayesbinn import models
from bayesbinn.binary import split_parameters
from bayesbinn.data import Dataset, Part
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, nearest
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.methods import get_method
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction import predict
from bayesbinn.train import Loss, Totals, correct_predictions, flips, set_learning_rates, train_batches

TEST_BATCH = 1000

LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy": lambda output, y: F.binary_cross_entropy_with_logits(output.flatten(), y.float()),
    "mse": F.mse_loss,
}


class RunStopped(BayesbinnError):
    """The user asked the run to stop; it can be resumed."""


@dataclass
class Progress:
    """What a display needs to know while a run trains."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    totals: Totals
    row: dict[str, Any] | None = None
    """The line of metrics, when an epoch was just evaluated."""


def build_model(experiment: Experiment, dataset: Dataset) -> nn.Sequential:
    """The experiment's network, fitted to the data's shape and classes."""
    settings = experiment.model
    makers = ("mnist_mlp", "continual_mlp", "vgg", "lrnet_mnist", "lrnet_cifar10", "synthetic_mlp")
    if settings.name not in makers:
        raise InvalidInput(f"there is no network {settings.name!r}.{nearest(settings.name, makers)}")
    maker: Callable[..., nn.Sequential] = getattr(models, settings.name)
    features = int(torch.tensor(dataset.input_shape).prod())
    if settings.name == "synthetic_mlp":
        return maker(features, output_batchnorm=settings.output_batchnorm, width=settings.width)
    shape: dict[str, Any] = {}
    if settings.name.endswith("_mlp"):
        shape = {"inputs": features}
    elif settings.name == "vgg":
        if len(dataset.input_shape) != 3:
            raise InvalidInput(f"{dataset.name}: the CNN needs images, these examples are {dataset.input_shape}")
        shape = {"channels": dataset.input_shape[0], "image_size": dataset.input_shape[1]}
    return maker(max(dataset.num_classes, 1), order=settings.order, width=settings.width, **shape)


@dataclass
class Run:
    """An experiment under way. `Run.open` creates or resumes it; `train` goes on until the end."""

    experiment: Experiment
    folder: Path
    dataset: Dataset
    model: nn.Module
    optimizer: BinaryOptimizer
    real_optimizer: torch.optim.Optimizer | None
    epoch: int = 1
    """The epoch under way, counted from 1; one above the last when the run is finished."""
    totals: Totals = field(default_factory=Totals)
    elapsed: float = 0.0
    """Seconds spent on the epoch under way, over all sessions."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    signs: list[Tensor] = field(default_factory=list)
    """The signs of the binary weights at the start of the epoch."""

    # ---- opening -----------------------------------------------------------------------------

    @classmethod
    def open(cls, experiment: Experiment, folder: Path, data_dir: Path | None = None) -> Run:
        """Start a run in a new folder, or resume the one that is there if it is of the same experiment."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.toml"
        if config.exists():
            existing = load_experiment(str(config))
            if existing != experiment:
                raise InvalidInput(
                    f"{folder} holds another experiment ({_difference(existing, experiment)}); choose another --out"
                )
        dataset = data_sets.load(experiment.data.name, data_dir=data_dir, label=experiment.data.label)
        torch.manual_seed(experiment.training.seed)
        model = build_model(experiment, dataset)
        optimizer, real_optimizer = _optimizers(experiment, model, dataset)
        run = cls(experiment, folder, dataset, model, optimizer, real_optimizer)
        run._remember_signs()
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            run._restore(checkpoint)
        else:
            _write_atomically(config, experiment.to_toml().encode())
            run._write_metrics()
        return run

    @property
    def finished(self) -> bool:
        return self.epoch > self.experiment.training.epochs

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
        training = self.experiment.training
        last = min(training.epochs, stop_after or training.epochs)
        parts = self.dataset.split(self.experiment.data.validation, training.seed)
        settings = self.experiment.method
        while self.epoch <= last:
            batches = parts.train.batches(
                training.batch_size,
                seed=training.seed,
                epoch=self.epoch,
                start=self.totals.batches,
                augment=self.experiment.data.augment,
                drop_single=True,
            )
            count = self.totals.batches + len(batches)
            clock = _Clock(self.elapsed, checkpoint_seconds)

            def before_batch(count: int = count) -> None:
                progress = (self.epoch - 1 + self.totals.batches / count) / training.epochs
                factor = settings.schedule.factor(self.epoch, training.epochs, progress)
                set_learning_rates(self._optimizers(), factor)

            def after_batch(count: int = count, clock: _Clock = clock) -> None:
                on_progress(Progress(self.epoch, training.epochs, self.totals.batches, count, self.totals))
                stop = should_stop()
                if stop or clock.checkpoint_due():
                    self.elapsed = clock.elapsed()
                    self._save()
                if stop:
                    raise RunStopped(f"stopped in epoch {self.epoch}; the same command resumes {self.folder}")

            train_batches(
                self.model,
                self.optimizer,
                batches,
                self.totals,
                loss=LOSSES[training.loss],
                real_optimizer=self.real_optimizer,
                mc_samples=settings.settings.get("mc_samples", 1),
                before_batch=before_batch,
                after_batch=after_batch,
            )
            row = self._finish_epoch(parts.validation, parts.test, clock, is_last=self.epoch == last)
            on_progress(Progress(self.epoch - 1, training.epochs, count, count, Totals(), row))
        self._write_posterior()

    def _finish_epoch(self, validation: Part | None, test: Part | None, clock: _Clock, is_last: bool) -> dict[str, Any]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": self.totals.mean_loss,
            "train_accuracy": self.totals.accuracy if self.dataset.task == "classification" else None,
            "validation_accuracy": None,
            "test_accuracy": None,
            "flip_ratio": flips(self.signs, parameters),
        }
        if is_last or self.epoch % self.experiment.training.evaluate_every == 0:
            if validation is not None:
                row["validation_accuracy"] = self._accuracy(validation)
            if test is not None:
                row["test_accuracy"] = self._accuracy(test)
                row |= self._accuracy_of_the_mean(test)
        row["seconds"] = clock.elapsed()
        self.rows.append(row)
        self.epoch, self.totals, self.elapsed = self.epoch + 1, Totals(), 0.0
        self._remember_signs()
        self._save()
        self._write_metrics()
        return row

    @torch.no_grad()
    def _accuracy(self, part: Part) -> float | None:
        if self.dataset.task != "classification":
            return None
        self.model.eval()
        correct = sum(correct_predictions(self.model(x), y) for x, y in part.batches(TEST_BATCH))
        return 100 * correct / len(part)

    def _accuracy_of_the_mean(self, part: Part) -> dict[str, Any]:
        samples = self.experiment.training.mean_samples
        if samples == 0 or self.dataset.task != "classification" or self.experiment.method.name in ("float",):
            return {}
        posterior = self.optimizer.posterior()
        if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()):
            return {}  # a point mass: every sample is the mode
        seed, correct = self.experiment.training.seed, 0
        for x, y in part.batches(TEST_BATCH):
            correct += int((predict(self.model, posterior, x, samples=samples, seed=seed).classes == y).sum())
        return {"test_accuracy_mean": 100 * correct / len(part)}

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer] if self.real_optimizer is None else [self.optimizer, self.real_optimizer]

    def _remember_signs(self) -> None:
        self.signs = [p.detach() >= 0 for group in self.optimizer.param_groups for p in group["params"]]
        self.signs = [sign.to(torch.int8) * 2 - 1 for sign in self.signs]

    # ---- files -------------------------------------------------------------------------------

    def _save(self) -> None:
        state = {
            "epoch": self.epoch,
            "totals": asdict(self.totals),
            "elapsed": self.elapsed,
            "rows": self.rows,
            "signs": self.signs,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "real_optimizer": None if self.real_optimizer is None else self.real_optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        path = self.folder / "checkpoint.pt"
        partial = path.with_suffix(".partial")
        try:
            torch.save(state, partial)
            os.replace(partial, path)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            raise InvalidFile(f"{path}: could not be written ({error}); the previous checkpoint is untouched") from None

    def _restore(self, path: Path) -> None:
        try:
            state = torch.load(path, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.real_optimizer is not None:
                self.real_optimizer.load_state_dict(state["real_optimizer"])
            self.epoch, self.elapsed, self.rows = state["epoch"], state["elapsed"], state["rows"]
            self.totals, self.signs = Totals(**state["totals"]), state["signs"]
            torch.set_rng_state(state["random"])
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidFile(f"{path}: cannot be resumed ({reason}); delete it to start again") from error
        self._write_metrics()

    def _write_metrics(self) -> None:
        """The file always tells what the checkpoint knows: a killed run leaves no line twice."""
        lines = "".join(json.dumps(row) + "\n" for row in self.rows)
        _write_atomically(self.folder / "metrics.jsonl", lines.encode())

    def _write_posterior(self) -> None:
        if self.experiment.method.name != "float":
            self.optimizer.posterior().save(self.folder / "posterior.safetensors")


class _Clock:
    """Time spent on an epoch, and when the next checkpoint is due."""

    def __init__(self, spent: float, interval: float) -> None:
        self._start = time.monotonic() - spent
        self._interval = interval
        self._next = time.monotonic() + interval

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def checkpoint_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._interval
        return True


def load_run(folder: Path) -> tuple[Experiment, list[dict[str, Any]]]:
    """The experiment and the metrics of a run, finished or not."""
    config = folder / "config.toml"
    if not config.is_file():
        raise InvalidFile(f"{folder}: there is no run here (no config.toml)")
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    return load_experiment(str(config)), [json.loads(line) for line in lines]


def load_trained(
    folder: Path, data_dir: Path | None = None
) -> tuple[Experiment, Dataset, nn.Module, BernoulliPosterior | None]:
    """A run's network with its weights, its data and its posterior (None for full precision)."""
    experiment, rows = load_run(folder)
    if not rows:
        raise InvalidInput(f"{folder}: no epoch is finished yet; train first")
    run = Run.open(experiment, folder, data_dir)
    posterior = None if experiment.method.name == "float" else run.optimizer.posterior()
    run.model.eval()
    return experiment, run.dataset, run.model, posterior


def _optimizers(
    experiment: Experiment, model: nn.Module, dataset: Dataset
) -> tuple[BinaryOptimizer, torch.optim.Optimizer | None]:
    settings = experiment.method
    binary, real = split_parameters(model, biases=settings.binary_biases)
    count = len(dataset.train_inputs)
    size = (count - int(experiment.data.validation * count)) * settings.train_set_scale
    optimizer = get_method(settings.name).create(
        binary, train_set_size=int(size), seed=experiment.training.seed, **settings.settings
    )
    return optimizer, torch.optim.Adam([p for _, p in real], lr=settings.real_lr) if real else None


def _difference(existing: Experiment, wanted: Experiment) -> str:
    old, new = _flat(existing.model_dump()), _flat(wanted.model_dump())
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return f"{key} is {old.get(key)!r} there, {new.get(key)!r} here"
    return "its settings differ"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InvalidFile(f"{path}: could not be written ({error})") from None
