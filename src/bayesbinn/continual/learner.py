"""Learning one task after the other with one network, one head and any method; resumable at any moment."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.continual.evaluation import (
    PER_TASK,
    Evaluations,
    Networks,
    policies_of,
    quick_networks,
    statistics_of,
    unfamiliarity,
)
from bayesbinn.continual.record import Record, describe_weights
from bayesbinn.data import Part, Parts, Stream
from bayesbinn.data.card import CHECKPOINT_KEY, DataCard, known_card, restore_card
from bayesbinn.data.streams import random_order
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.files import write_whole
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import BernoulliPosterior, Weights
from bayesbinn.prediction.functional import evaluating
from bayesbinn.train import calibration as run_calibration
from bayesbinn.train.checkpoints import (
    check_accuracies,
    check_adam,
    check_alike,
    check_lines,
    check_progress,
    read_checkpoint,
    resuming,
    write_checkpoint,
)
from bayesbinn.train.loop import Loss, Totals, set_learning_rates, train_batches, training_threads
from bayesbinn.train.progress import Clock, Progress, RunStopped
from bayesbinn.train.schedules import Constant, Schedule

KEPT_TESTS = 10
"""Test parts of so many tasks stay in memory."""


@dataclass(frozen=True)
class Plan:
    """How a stream is learned and what is measured on the way."""

    epochs: int
    """Per task."""
    batch_size: int = 100
    schedule: Schedule = field(default_factory=Constant)
    """Of the learning rate; it starts anew with every task."""
    remember: bool = True
    """Whether the method consolidates after each task: the posterior becomes the prior. False: nothing is kept
    but the weights themselves (the paper's "without prior")."""
    samples: int = 100
    """Posterior samples behind every accuracy."""
    evaluate_every: int = 0
    """Epochs between evaluations of all seen tasks inside a task; 0: only after each task."""
    rows: Literal["all", "diagonal"] = "all"
    """What is tested after a task: all seen tasks and the next, or the new one alone. The end has always all."""
    validation: float = 0.0
    """The share of the training data that is kept aside; then accuracies are measured there, not on the test data."""
    train_set_scale: float = 1.0
    """The factor on N: the learner tells the optimizer the size of every task, whatever it was built with."""
    augment: bool = False
    """Crop and mirror training images at random."""
    shift: int = 0
    """Shift training images at random, by up to this many pixels."""
    seed: int = 0

    def __post_init__(self) -> None:
        least_values = {"epochs": 1, "batch_size": 1, "samples": 0, "evaluate_every": 0, "shift": 0, "seed": 0}
        for name, least in least_values.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name}={value!r}: it must be a whole number, {least} or more")
        if self.rows not in ("all", "diagonal"):
            raise InvalidInput(f"rows={self.rows!r}: it must be 'all' or 'diagonal'")
        if not 0 <= self.validation < 1:
            raise InvalidInput(f"validation={self.validation!r}: it must be a share from 0 to less than 1")
        if not self.train_set_scale > 0:
            raise InvalidInput(f"train_set_scale={self.train_set_scale!r}: it must be above 0")


class Learner:
    """A network that learns a stream of tasks.

    >>> from bayesbinn import BayesBiNN, data, models, split_parameters
    >>> stream = data.permuted(data.load("digits"), tasks=2, seed=0)
    >>> model = models.continual_mlp(10, inputs=64)
    >>> optimizer = BayesBiNN(split_parameters(model)[0], lr=1e-2, train_set_size=1500, temperature=0.3, seed=0)
    >>> learner = Learner(model, optimizer, stream, Plan(epochs=1, samples=2))
    >>> learner.train()
    >>> learner.record.matrix("recalibrated").shape
    (2, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: BinaryOptimizer,
        stream: Stream,
        plan: Plan,
        *,
        real_optimizer: torch.optim.Optimizer | None = None,
        folder: Path | None = None,
        loss: Loss = F.cross_entropy,
        card: DataCard | None = None,
    ) -> None:
        self.model, self.optimizer, self.stream, self.plan = model, optimizer, stream, plan
        self.real_optimizer, self.folder, self.loss = real_optimizer, folder, loss
        self.may_write: Callable[[], None] = lambda: None
        """Called before every writing; raises when the folder has become another process's."""
        self.policies = policies_of(model)
        self.record = Record([stream.task_name(index) for index in range(len(stream))])
        self.task, self.epoch = 0, 1
        """The task under way, counted from 0, and its epoch, from 1."""
        self.totals, self.elapsed = Totals(), 0.0
        self._statistics: list[Weights] = []
        self._parts: tuple[int, Parts] | None = None
        self._tests: dict[int, Part] = {}
        self._content = ""
        self._evaluations = Evaluations()
        self._learned: DataCard | None = None
        """Of the task learned last."""
        self.notes: tuple[str, ...] = ()
        """What the user should know, one sentence each."""
        if folder is not None:
            self.card = card or self._card_of(0)
            """Of the data that all tasks are made of, or else of the first task."""
            self._restore(folder)

    @property
    def finished(self) -> bool:
        return self.task >= len(self.stream)

    @property
    def total_epochs(self) -> int:
        return len(self.stream) * self.plan.epochs

    @property
    def epochs_done(self) -> int:
        return self.task * self.plan.epochs + self.epoch - 1

    @property
    def where_to_resume(self) -> str:
        """In words; empty at the start."""
        begun = self.epochs_done or self.totals.batches
        return f"task {self.task + 1}, epoch {self.epoch}, after {self.totals.batches} batches" if begun else ""

    # ---- learning ----------------------------------------------------------------------------

    def train(
        self,
        *,
        stop_after: int | None = None,
        checkpoint_seconds: float = 60.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on until the last task, or until `stop_after` tasks are learned.

        With a folder, a checkpoint is written after tasks and epochs and, inside an epoch, every
        `checkpoint_seconds`. When `should_stop` says so, the batch under way is finished first.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidInput(f"stop_after={stop_after}: it must be 1 or more")
        last = min(len(self.stream), stop_after or len(self.stream))
        if not self.record.start:
            self._check_head()
            self._measure_start()
        saved_at = time.monotonic()
        while self.task < last:
            clock = Clock(self.elapsed, checkpoint_seconds)
            self._train_epoch(clock, on_progress, should_stop)
            line = self._finish_epoch(clock)
            number = self.epochs_done + 1
            if self.epoch == self.plan.epochs:
                self._finish_task()
            else:
                self.epoch += 1
            self.totals, self.elapsed = Totals(), 0.0
            waited = time.monotonic() - saved_at
            is_free = waited >= checkpoint_seconds or not self._evaluations.under_way
            if self.epoch == 1 or (is_free and waited >= min(10.0, checkpoint_seconds)):
                self._save()
                saved_at = time.monotonic()
            on_progress(Progress(number, self.total_epochs, 1, 1, Totals(), {**line, **self._evaluations.news()}))
        self._save()
        self._write_calibrated()

    def _train_epoch(
        self, clock: Clock, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> None:
        plan, number = self.plan, self.epochs_done + 1
        part = self._data(self.task).train
        for group in self.optimizer.param_groups:
            if "train_set_size" in group:
                group["train_set_size"] = int(len(part) * plan.train_set_scale)
        batches = part.batches(
            plan.batch_size,
            seed=plan.seed,
            epoch=number,
            start=self.totals.batches,
            augment=plan.augment,
            drop_single=True,
            shift=plan.shift,
        )
        count = self.totals.batches + len(batches)

        def before_batch() -> None:
            progress = (self.epoch - 1 + self.totals.batches / count) / plan.epochs
            set_learning_rates(self._optimizers(), plan.schedule.factor(self.epoch, plan.epochs, progress))

        def after_batch() -> None:
            if self.totals.batches % 10 == 0:
                on_progress(Progress(number, self.total_epochs, self.totals.batches, count, self.totals))
            stop = should_stop()
            if stop or clock.checkpoint_due():
                self.elapsed = clock.elapsed()
                self._save()
            if stop:
                where = f"; the same command resumes {self.folder}" if self.folder else ""
                raise RunStopped(f"stopped in task {self.task + 1}, epoch {self.epoch}{where}")

        with training_threads(self.model, self.plan.batch_size):
            train_batches(
                self.model,
                self.optimizer,
                batches,
                self.totals,
                loss=self.loss,
                real_optimizer=self.real_optimizer,
                mc_samples=self.optimizer.mc_samples,
                before_batch=before_batch,
                after_batch=after_batch,
            )

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer] if self.real_optimizer is None else [self.optimizer, self.real_optimizer]

    def _data(self, task: int) -> Parts:
        """The parts of a task; the last one asked for is kept."""
        if self._parts is None or self._parts[0] != task:
            self._parts = task, self.stream[task].split(self.plan.validation, self.plan.seed)
        return self._parts[1]

    def _tested(self, task: int) -> Part:
        """What a task is tested on; the first tasks' are kept, because building a task takes time."""
        if task not in self._tests:
            part = self._build_test(task, self._data(task) if task == self.task else None)
            if task >= KEPT_TESTS:
                return part
            self._tests[task] = part
        return self._tests[task]

    def _build_test(self, task: int, parts: Parts | None = None) -> Part:
        parts = parts or self.stream[task].split(self.plan.validation, self.plan.seed)
        part = parts.validation if self.plan.validation else parts.test
        if part is None:
            raise InvalidInput(f"task {task + 1} ({self.record.tasks[task]}) has nothing to test on")
        return part

    # ---- measuring ---------------------------------------------------------------------------

    def _posterior(self) -> BernoulliPosterior | None:
        """None where every sample would be the same network: full precision, or a point mass."""
        if not self.optimizer.binary:
            return None
        posterior = self.optimizer.posterior()
        return None if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()) else posterior

    def _check_head(self) -> None:
        """Refuse a network whose outputs are not the stream's classes, before an hour is spent on it."""
        part, classes = self._tested(0), len(self.stream.classes)
        with evaluating(self.model):
            shape = tuple(self.model(part.gather(torch.arange(min(2, len(part))))).shape[1:])
        if shape != (classes,) and not (classes == 2 and shape in ((), (1,))):
            raise InvalidInput(
                f"the network puts out {shape} for an input, but the stream has {classes} classes: one output for each"
            )

    def _measure_start(self) -> None:
        """The untrained network: chance, for forward transfer, and the weights' first distribution."""
        posterior = self._posterior()
        self.record.start = describe_weights(posterior)
        if self.plan.rows == "all":
            networks = Networks(self.model, posterior, self._samples(posterior), self._seed())
            self.record.start["baseline"] = [
                networks.accuracy(self._tested(task), self.policies[-1]) for task in range(len(self.stream))
            ]

    def _samples(self, posterior: BernoulliPosterior | None) -> int:
        return 0 if posterior is None else self.plan.samples

    def _seed(self) -> int:
        """Fresh networks for every evaluation."""
        return self.plan.seed * 1_000_003 + self.epochs_done

    def _finish_epoch(self, clock: Clock) -> dict[str, Any]:
        line: dict[str, Any] = {
            "task": self.task + 1,
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": self.totals.mean_loss,
            "train_accuracy": self.totals.accuracy,
            "seconds": clock.elapsed(),
        }
        every = self.plan.evaluate_every
        if every and self.epoch % every == 0 and self.epoch < self.plan.epochs:
            posterior, newest = self._posterior(), self._tested(self.task)
            example = newest.gather(torch.arange(min(2, len(newest))))
            networks = quick_networks(self.model, posterior, self._samples(posterior), self._seed(), example)
            # Tasks that are not kept are built one at a time, when it is their turn.
            kept = {**{task: self._tested(task) for task in range(min(KEPT_TESTS, self.task))}, self.task: newest}
            parts: list[Callable[[], Part]] = [
                partial(kept.__getitem__, task) if task in kept else partial(self._build_test, task)
                for task in range(self.task + 1)
            ]
            self._evaluations.start(line, networks, parts, self.policies[0])
        self.record.epochs.append(line)
        return line

    def _finish_task(self) -> None:
        """Measure what is known now, then let the method consolidate, and turn to the next task."""
        self._evaluations.finish()
        started, posterior = time.monotonic(), self._posterior()
        self._statistics.append(statistics_of(self.model))
        is_last = self.task == len(self.stream) - 1
        tested = range(self.task, self.task + 1)
        if is_last or self.plan.rows == "all":
            tested = range(min(self.task + 2, len(self.stream)))
        networks = Networks(self.model, posterior, self._samples(posterior), self._seed())
        accuracy: dict[str, dict[str, float]] = {policy: {} for policy in self.policies}
        for task in tested:
            part = self._tested(task)
            # A task not yet learned has no statistics of its own: it is tested by the batch's.
            for policy in self.policies if task <= self.task else self.policies[-1:]:
                own_statistics = self._statistics[task] if policy == PER_TASK else None
                accuracy[policy][str(task + 1)] = networks.accuracy(part, policy, own_statistics)
        line = {
            "task": self.task + 1,
            "name": self.record.tasks[self.task],
            "accuracy": accuracy,
            **describe_weights(posterior),
        }
        own = [each for each in self.record.epochs if each["task"] == self.task + 1]
        line["train_seconds"] = sum(each["seconds"] for each in own)
        if is_last:
            self.record.end = self._measure_end(posterior)
        line["evaluation_seconds"] = (
            time.monotonic() - started + sum(each.get("evaluation_seconds", 0.0) for each in own)
        )
        self.record.finished.append(line)
        if self.folder is not None:
            self._learned = self._card_of(self.task)
        if self.plan.remember:
            self.optimizer.consolidate(self.model, self._batches_to_remember())
        self.task, self.epoch = self.task + 1, 1

    def _batches_to_remember(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from self._data(self.task).train.batches(self.plan.batch_size, seed=self.plan.seed, epoch=0)

    def _measure_end(self, posterior: BernoulliPosterior | None) -> dict[str, Any]:
        """How well the uncertainty tells uniform noise, and an unseen permutation, from the last task's inputs."""
        inside = self._tested(self.task).whole()[0]
        generator = torch.Generator().manual_seed(self.plan.seed)
        spread = inside.max() - inside.min()
        noise = torch.rand(inside.shape, generator=generator) * spread + inside.min()
        order = torch.from_numpy(random_order((self.plan.seed + 999_983) % 2**32, 0, inside[0].numel()))
        outside = {"noise": noise, "permutation": inside.flatten(1)[:, order].view(inside.shape)}
        return {"auroc": unfamiliarity(self.model, posterior, inside, outside, self._samples(posterior), self._seed())}

    # ---- files -------------------------------------------------------------------------------

    def _save(self) -> None:
        self._evaluations.finish()
        if self.folder is None:
            return
        state = self._state()
        self.may_write()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_card()
        write_checkpoint(self.folder / "checkpoint.pt", state)
        for name, lines in (("metrics.jsonl", self.record.epochs), ("tasks.jsonl", self.record.finished)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            write_whole(self.folder / name, text.encode())
        write_whole(self.folder / "result.json", json.dumps(self._result(), indent=1).encode())
        if self.optimizer.binary:
            self.optimizer.posterior().save(self.folder / "posterior.safetensors")

    def _state(self) -> dict[str, Any]:
        return {
            "identity": self._identity(),
            "task": self.task,
            "epoch": self.epoch,
            "totals": asdict(self.totals),
            "elapsed": self.elapsed,
            "record": asdict(self.record),
            "statistics": self._statistics,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "real_optimizer": None if self.real_optimizer is None else self.real_optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "card": None if self._learned is None else self._learned.to_json(),
            CHECKPOINT_KEY: self.card.to_json(),
        }

    def write_card(self) -> None:
        """Keep what is known of the data, once."""
        if self.folder is not None:
            restore_card(self.folder, self.card)

    def _card_of(self, task: int) -> DataCard:
        return DataCard.of(self.stream[task], validation=self.plan.validation, seed=self.plan.seed)

    def _write_calibrated(self) -> None:
        """Calibrate on the validation part of the task learned last, so that predicting needs no data."""
        if self.folder is None or not self.task:
            return
        validation = self._data(self.task - 1).validation
        if validation is not None:
            posterior = self.optimizer.posterior() if self.optimizer.binary else None
            found = run_calibration.fitted(self.model, posterior, validation)
            self.may_write()
            run_calibration.store(self.folder, "last", self.task, self.model, posterior, found)

    def _check(self, state: dict[str, Any], saved: Record) -> None:
        """Refuse a state that this learner cannot have written."""
        done, epoch = len(saved.finished), state["epoch"]
        template = {
            "identity": {},
            "card": state.get("card"),
            "record": asdict(Record([])),
            "statistics": [statistics_of(self.model)] * done,
        }
        check_alike(state, {**self._state(), **template})
        check_accuracies(saved.finished)
        check_lines(saved.epochs, "record.epochs")
        json.dumps(asdict(saved))
        saved.summary()  # reads what was measured of every finished task
        check_progress(state, max(len(self.stream[0].train_inputs), 1) * len(self.stream))
        if state["task"] != done or not 1 <= epoch <= self.plan.epochs or len(state["statistics"]) != done:
            raise InvalidFile(f"task {state['task'] + 1}, epoch {epoch}, with metrics of {done} tasks")
        if len(saved.epochs) != done * self.plan.epochs + epoch - 1:
            raise InvalidFile(f"task {done + 1}, epoch {epoch}, with metrics of {len(saved.epochs)} epochs")
        if self.real_optimizer is not None:
            check_adam(state["real_optimizer"], self.real_optimizer)

    def _identity(self) -> dict[str, Any]:
        """What must not change when a folder is resumed."""
        if not self._content:
            self._content = hashlib.sha256(self.stream[0].test_inputs[:100].numpy().tobytes()).hexdigest()
        return {"epochs": self.plan.epochs, "stream": self._content, "real optimizer": self.real_optimizer is not None}

    def _result(self) -> dict[str, Any]:
        record = self.record
        return {"tasks": record.tasks, "start": record.start, "end": record.end, "summary": record.summary()}

    def _restore(self, folder: Path) -> None:
        path = folder / "checkpoint.pt"
        state = read_checkpoint(path)
        known = known_card(folder, state)
        if known is not None:
            known.refuse_other(self.card, folder)
            self.card = known
        if state is None:
            return
        with resuming(path):
            own, saved, names = self._identity(), state.get("identity", {}), self.record.tasks
            changed = [name for name, value in saved.items() if own[name] != value]
            if changed:
                raise InvalidInput(f"{', '.join(changed)}: not as it was made")
            record = Record(**state["record"])
            self._check(state, record)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.real_optimizer is not None:
                self.real_optimizer.load_state_dict(state["real_optimizer"])
            self.task, self.epoch, self.elapsed = state["task"], state["epoch"], state["elapsed"]
            self.totals, self.record = Totals(**state["totals"]), record
            self.record.tasks = names  # a stream may have grown
            self._statistics = state["statistics"]
            self._learned = DataCard.from_json(state["card"], str(path)) if state.get("card") else None
            torch.set_rng_state(state["random"])
