"""Learning one task after another with one network, one head and any method; resumable at any time."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

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
from bayesbinn.continual.plan import Plan
from bayesbinn.continual.record import Record, describe_weights
from bayesbinn.data import Part, Parts, Stream
from bayesbinn.data.card import DataCard
from bayesbinn.data.streams import random_order
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import BernoulliPosterior, Weights
from bayesbinn.prediction.functional import evaluating
from bayesbinn.train import calibration as run_calibration
from bayesbinn.train.checkpoints import check_accuracies, check_lines
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.loop import Loss, Totals
from bayesbinn.train.progress import Clock, Progress
from bayesbinn.train.trainer import Recipe, Trainer

KEPT_TESTS = 10
"""The number of tasks whose test parts stay in memory."""


class Learner(Trainer):
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
        folder: RunFolder | Path | None = None,
        loss: Loss = F.cross_entropy,
        card: DataCard | None = None,
    ) -> None:
        recipe = Recipe(
            plan.epochs,
            plan.batch_size,
            plan.schedule,
            loss,
            plan.augment,
            plan.seed,
            shift=plan.shift,
            distort=plan.distort,
        )
        super().__init__(model, optimizer, real_optimizer, recipe, folder)
        self.stream, self.plan = stream, plan
        self.policies = policies_of(model)
        self.record = Record([stream.task_name(index) for index in range(len(stream))])
        self._statistics: list[Weights] = []
        self._parts: tuple[int, Parts] | None = None
        self._tests: dict[int, Part] = {}
        self._content = ""
        self._evaluations = Evaluations()
        self._learned: DataCard | None = None
        """The card of the task learned last."""
        if self.folder is not None:
            self.card = card or self._card_of(0)
            """Describes the data that all tasks are made from, or else the first task."""
            self._restore()

    @property
    def tasks(self) -> int:
        return len(self.stream)

    # ---- learning ----------------------------------------------------------------------------

    def _epochs_per_stop(self) -> int:
        return self.plan.epochs  # it stops after tasks

    def _position(self) -> str:
        return f"task {self.task + 1}, epoch {self.epoch}"

    @contextmanager
    def _watched(
        self, folder: RunFolder | None, on_progress: Callable[[Progress], None]
    ) -> Iterator[Callable[[Progress], None]]:
        if not self.record.start:
            self._check_head()
            self._measure_start()
        self._saved_at = time.monotonic()
        yield on_progress

    def _training_part(self) -> Part:
        part = self._data(self.task).train
        for group in self.optimizer.param_groups:
            if "train_set_size" in group:
                group["train_set_size"] = int(len(part) * self.plan.train_set_scale)
        return part

    def _worth_saving(self, waited: float, checkpoint_seconds: float) -> bool:
        is_free = waited >= checkpoint_seconds or not self._evaluations.under_way
        return self.epoch == 1 or (is_free and waited >= min(10.0, checkpoint_seconds))

    def _news(self) -> dict[str, Any]:
        return self._evaluations.news()

    def _data(self, task: int) -> Parts:
        """The parts of a task; the last one asked for is kept."""
        if self._parts is None or self._parts[0] != task:
            self._parts = task, self.stream[task].split(self.plan.validation, self.plan.seed)
        return self._parts[1]

    def _tested(self, task: int) -> Part:
        """The test part of a task; those of the first tasks are kept, because building a task takes time."""
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
        """None if every sample would be the same network: full precision, or a point mass."""
        if not self.optimizer.binary:
            return None
        posterior = self.optimizer.posterior()
        return None if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()) else posterior

    def _check_head(self) -> None:
        """Reject a network whose outputs do not match the stream's classes before spending an hour on it."""
        part, classes = self._tested(0), len(self.stream.classes)
        with evaluating(self.model):
            shape = tuple(self.model(part.gather(torch.arange(min(2, len(part))))).shape[1:])
        if shape != (classes,) and not (classes == 2 and shape in ((), (1,))):
            raise InvalidInput(
                f"the network outputs shape {shape} per input, but the stream has {classes} classes; "
                "give it one output per class"
            )

    def _measure_start(self) -> None:
        """Measure the untrained network: chance, for forward transfer, and the weights' initial distribution."""
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
        """A seed that draws new networks for every evaluation."""
        return self.plan.seed * 1_000_003 + self.epochs_done

    def _end_epoch(self, row: dict[str, Any], clock: Clock, is_last: bool) -> dict[str, Any]:
        line = {"task": self.task + 1, **row, "seconds": clock.elapsed()}
        every = self.plan.evaluate_every
        if every and self.epoch % every == 0 and self.epoch < self.plan.epochs:
            posterior, newest = self._posterior(), self._tested(self.task)
            example = newest.gather(torch.arange(min(2, len(newest))))
            networks = quick_networks(self.model, posterior, self._samples(posterior), self._seed(), example)
            # Tasks that are not kept are built one at a time, when they are needed.
            kept = {**{task: self._tested(task) for task in range(min(KEPT_TESTS, self.task))}, self.task: newest}
            parts: list[Callable[[], Part]] = [
                partial(kept.__getitem__, task) if task in kept else partial(self._build_test, task)
                for task in range(self.task + 1)
            ]
            self._evaluations.start(line, networks, parts, self.policies[0])
        self.record.epochs.append(line)
        if self.epoch == self.plan.epochs:
            self._end_task()
        else:
            self.epoch += 1
        return line

    def _end_task(self) -> None:
        """Measure the accuracies, let the method consolidate, and advance to the next task."""
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
            # A task not yet learned has no stored statistics: it is tested with the batch's.
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
        """How well uncertainty separates uniform noise, and an unseen permutation, from the last task's inputs."""
        inside = self._tested(self.task).whole()[0]
        generator = torch.Generator().manual_seed(self.plan.seed)
        spread = inside.max() - inside.min()
        noise = torch.rand(inside.shape, generator=generator) * spread + inside.min()
        order = torch.from_numpy(random_order((self.plan.seed + 999_983) % 2**32, 0, inside[0].numel()))
        outside = {"noise": noise, "permutation": inside.flatten(1)[:, order].view(inside.shape)}
        return {"auroc": unfamiliarity(self.model, posterior, inside, outside, self._samples(posterior), self._seed())}

    # ---- files -------------------------------------------------------------------------------

    def _finish(self, folder: RunFolder | None, on_progress: Callable[[float], None]) -> None:
        self._save(folder, self.totals)
        if folder is not None and self.task:
            self._write_calibrated(folder, on_progress)

    def _save(self, folder: RunFolder | None, totals: Totals) -> None:
        self._evaluations.finish()
        super()._save(folder, totals)

    def _write_metrics(self, folder: RunFolder) -> None:
        for name, lines in (("metrics.jsonl", self.record.epochs), ("tasks.jsonl", self.record.finished)):
            folder.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())
        folder.write("result.json", json.dumps(self._result(), indent=1).encode())
        if self.optimizer.binary:
            self.optimizer.posterior().save(folder.writable("posterior.safetensors"))

    def _own_state(self) -> dict[str, Any]:
        return {
            "identity": self._identity(),
            "task": self.task,
            "record": asdict(self.record),
            "statistics": self._statistics,
            "card": None if self._learned is None else self._learned.to_json(),
        }

    def _card_of(self, task: int) -> DataCard:
        return DataCard.of(self.stream[task], validation=self.plan.validation, seed=self.plan.seed)

    def _write_calibrated(self, folder: RunFolder, on_progress: Callable[[float], None]) -> None:
        """Calibrate on the validation part of the task learned last, so that predicting needs no data."""
        validation = self._data(self.task - 1).validation
        if validation is not None:
            posterior = self.optimizer.posterior() if self.optimizer.binary else None
            found = run_calibration.fitted(self.model, posterior, validation, on_progress)
            run_calibration.store(folder, "last", self.task, self.model, posterior, found)

    def _restore_own(self, state: dict[str, Any]) -> None:
        names = self.record.tasks
        self.task, self.record = state["task"], Record(**state["record"])
        self.record.tasks = names  # a stream may have grown
        self._statistics = state["statistics"]
        self._learned = DataCard.from_json(state["card"], "card") if state.get("card") else None

    def _check(self, state: dict[str, Any]) -> None:
        own, written = self._identity(), state.get("identity", {})
        changed = [name for name, value in written.items() if own[name] != value]
        if changed:
            raise InvalidInput(f"not the same as in the saved run: {', '.join(changed)}")
        saved = Record(**state["record"])
        done, epoch = len(saved.finished), state["epoch"]
        super()._check(state)
        check_accuracies(saved.finished)
        check_lines(saved.epochs, "record.epochs")
        json.dumps(asdict(saved))
        saved.summary()  # reads the measurements of every finished task
        if state["task"] != done or not 1 <= epoch <= self.plan.epochs or len(state["statistics"]) != done:
            raise InvalidFile(f"task {state['task'] + 1}, epoch {epoch}, with metrics of {done} tasks")
        if len(saved.epochs) != done * self.plan.epochs + epoch - 1:
            raise InvalidFile(f"task {done + 1}, epoch {epoch}, with metrics of {len(saved.epochs)} epochs")

    def _template(self, state: dict[str, Any]) -> dict[str, Any]:
        done = len(state["record"]["finished"])
        return {
            "identity": {},
            "card": state.get("card"),
            "record": asdict(Record([])),
            "statistics": [statistics_of(self.model)] * done,
        }

    def _max_examples(self) -> int:
        return max(len(self.stream[0].train_inputs), 1) * len(self.stream)

    def _identity(self) -> dict[str, Any]:
        """What must not change when a folder is resumed."""
        if not self._content:
            self._content = hashlib.sha256(self.stream[0].test_inputs[:100].numpy().tobytes()).hexdigest()
        return {"epochs": self.plan.epochs, "stream": self._content, "real optimizer": self.real_optimizer is not None}

    def _result(self) -> dict[str, Any]:
        record = self.record
        return {"tasks": record.tasks, "start": record.start, "end": record.end, "summary": record.summary()}
