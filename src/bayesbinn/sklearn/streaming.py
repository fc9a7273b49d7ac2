"""Continual learning from a table that comes in batches, with a bounded memory of raw rows.

Each batch is split like a table in `fit`. The memory holds a uniform sample of all training rows so far, and of all
calibration and conformal rows; each part is a reservoir. Rows that the last two do not keep become training rows. The
networks continue to learn from the new rows together with the memory. They have already learned from past rows, so a
kept row counts only as much as a new one. Without a memory, the method's rule must retain what was learned: the
posterior after one batch is the prior for the next (`BinaryOptimizer.consolidate`).

The first rows say little about the ranges and categories to come. So as long as all rows are kept, the encoding is
learned again, and new networks are trained, whenever the number of rows has doubled. Later, new networks would know
only the kept rows, so they are trained only when they must be: a class appears for the first time, or a column holds
something new in more than a few rows, such as words where only numbers were before. Each kept row then stands for
several rows, and its weight says how many. A few odd cells are mistakes, and their batch is rejected.
"""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from bayesbinn.data.own.kinds import FEW, read_cells, refuse_slips
from bayesbinn.errors import BayesbinnWarning
from bayesbinn.modelfile.columns import Column, DateColumn
from bayesbinn.modelfile.encoder import InvalidCell
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.sklearn.canonical import Floats, Parts, Rows, concatenated, split
from bayesbinn.sklearn.fitting import (
    Fitted,
    Goal,
    OnEpoch,
    Plan,
    Weigh,
    chosen_for,
    finished,
    learned_encoding,
    quantity_goal,
    started,
)
from bayesbinn.sklearn.training import Budget, train

SHARES = {"training": 0.8, "calibration": 0.1, "conformal": 0.1}
"""The shares of the memory."""
HELD_OUT = ("calibration", "conformal")
EPOCHS = 10
"""Epochs on every batch; new networks train as long as in `fit`."""


@dataclass
class Reservoir:
    """A uniform sample of at most `capacity` rows of a stream."""

    capacity: int
    rows: Rows | None = None
    seen: int = 0

    def add(self, new: Rows, rng: np.random.Generator) -> Rows:
        """Keep every row seen so far with the same probability; returns the new rows that are not kept."""
        if not len(new):
            return new
        joined = new if self.rows is None else concatenated(self.rows, new)
        kept = len(joined) - len(new)
        places = list(range(kept))
        for row in range(kept, len(joined)):
            self.seen += 1
            if len(places) < self.capacity:
                places.append(row)
            elif self.capacity:
                place = int(rng.integers(self.seen))
                if place < self.capacity:
                    places[place] = row
        self.rows = joined.take(np.array(places, dtype=np.int64)) if places else None
        left_out = np.setdiff1d(np.arange(kept, len(joined)), places)
        return joined.take(left_out)

    @property
    def holds_all(self) -> bool:
        """Whether no row has been left out yet."""
        return self.seen <= self.capacity

    def standing_for_all(self) -> Rows | None:
        """The kept rows, each weighted by the number of rows that it stands for."""
        if self.rows is None:
            return None
        return replace(self.rows, weights=self.rows.weights * (self.seen / len(self.rows)))


@dataclass
class Stream:
    """What `partial_fit` remembers between two calls."""

    memory: dict[str, Reservoir]
    rng: np.random.Generator
    fitted: Fitted | None = None
    classes_seen: set[int] = field(default_factory=set)
    learned_at: float = 0.0
    """How many rows had been seen when the encoding was last learned; infinite: it never changes."""

    @staticmethod
    def new(buffer: int, seed: int) -> Stream:
        """A stream that has seen nothing yet."""
        memory = {name: Reservoir(int(share * buffer)) for name, share in SHARES.items()}
        return Stream(memory, np.random.default_rng(seed))

    def copy(self) -> Stream:
        """A copy that can change independently; it shares the rows, which are never changed in place."""
        memory = {name: replace(each) for name, each in self.memory.items()}
        return replace(self, memory=memory, rng=deepcopy(self.rng), classes_seen=set(self.classes_seen))


def learn_batch(
    stream: Stream,
    rows: Rows,
    plan: Plan,
    classes: int,
    weigh: Weigh,
    on_epoch: OnEpoch = lambda epoch, epochs, loss: None,
) -> Fitted:
    """Learn from a batch of rows in canonical form, and remember some of them.

    A batch that is rejected leaves `stream` half changed: pass a copy.
    """
    shares = {**plan.shares, "validation": 0.0}  # there is no early stopping here
    parts = split(rows, shares, stream.rng, stratify=classes > 0)
    memory, fresh = stream.memory["training"], parts.training
    for name in HELD_OUT:
        left_out = stream.memory[name].add(getattr(parts, name), stream.rng)
        if stream.memory[name].capacity:
            fresh = concatenated(fresh, left_out)
    can_start_anew = stream.fitted is None or (memory.rows is not None and math.isfinite(stream.learned_at))
    odd = [] if stream.fitted is None else _odd_cells(stream.fitted.encoding, rows)
    if stream.fitted is None:
        refuse_slips(rows.columns, rows.weights)
    elif odd and (not can_start_anew or _are_slips(odd, rows, memory)):
        raise odd[0]
    appeared = set(rows.targets.tolist()) - stream.classes_seen if classes else set()
    stream.classes_seen |= appeared
    past, weighted_past = memory.rows, memory.standing_for_all()
    memory.add(fresh, stream.rng)
    outdated = bool(appeared) or bool(odd) or (memory.holds_all and memory.seen >= 2 * stream.learned_at)
    anew = stream.fitted is None or (can_start_anew and outdated)
    counted = fresh if weighted_past is None else concatenated(weighted_past, fresh)
    training = counted if anew or past is None else concatenated(past, fresh)
    # A uniform sample, unweighted: with larger weights, a kept row would count as several in conformal prediction.
    held_out = {name: stream.memory[name].rows or getattr(parts, name) for name in HELD_OUT}
    everything = Parts(training, parts.validation, **held_out)
    if stream.fitted is None or anew:
        stream.learned_at = memory.seen
        before, stream.fitted = stream.fitted, _anew(everything, plan, classes, weigh(counted), on_epoch)
        if before is not None and odd:
            _warn_of_other_kinds(before.encoding, stream.fitted.encoding, odd[0])
    else:
        stream.fitted = _further(stream.fitted, everything, plan, weigh(counted), on_epoch)
    if not memory.capacity:
        _consolidate(stream.fitted)
    return stream.fitted


def _odd_cells(encoding: TableEncoding, rows: Rows) -> list[InvalidCell]:
    """The cells that do not fit their columns."""
    odd: list[InvalidCell] = []
    encoding.encode(rows.columns, odd)
    return odd


def _are_slips(odd: list[InvalidCell], rows: Rows, memory: Reservoir) -> bool:
    """Whether the odd cells are mistakes: few in every column, and not what the kept rows can be read as, too."""
    batch = float(rows.weights.sum())
    for name in {cell.column for cell in odd}:
        weight = float(rows.weights[sorted({cell.row for cell in odd if cell.column == name})].sum())
        if weight > FEW * (memory.seen + batch) or weight > batch / 2 or _agree(name, rows, memory):
            return False
    return True


def _agree(name: str, rows: Rows, memory: Reservoir) -> bool:
    """Whether kept and new cells are all numbers or all dates, such as dates that now show that the month is first."""
    joined = rows if memory.rows is None else concatenated(memory.rows, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesbinnWarning)
        return read_cells(name, joined.columns[name], joined.weights, refuse=False).kind in ("number", "date")


def _warn_of_other_kinds(before: TableEncoding, now: TableEncoding, odd: InvalidCell) -> None:
    """Say that columns were re-read, which made the networks start anew."""
    kinds = {column.name: _kind(column) for column in before.columns}
    changed = [c.name for c in now.columns if kinds.get(c.name, _kind(c)) != _kind(c)]
    lost = [name for name in now.ignored if name in kinds]
    if changed or lost:
        how = [f"now read in another way: {', '.join(map(repr, changed))}"] if changed else []
        how += [f"now ignored: {', '.join(map(repr, lost))}"] if lost else []
        warnings.warn(
            f"{odd.what}, unlike the rows before; columns {'; '.join(how)}. New networks learned from the kept rows",
            BayesbinnWarning,
            stacklevel=2,
        )


def _kind(column: Column) -> str:
    """The kind of a column; of dates, also whether the day or the month comes first."""
    return f"{column.kind} {column.order}" if isinstance(column, DateColumn) else column.kind


def _anew(
    parts: Parts,
    plan: Plan,
    classes: int,
    weight_of_class: Floats | None,
    on_epoch: OnEpoch,
) -> Fitted:
    """New networks with a new encoding."""
    goal = Goal(classes, weight_of_class) if classes else quantity_goal(parts.training)
    encoding = learned_encoding(parts)
    sample = goal.sample(encoding, parts.training)
    choice = chosen_for(plan, len(sample), encoding)
    trainer = started(plan, choice, encoding.width, goal, sample, None)
    nothing = sample.rows(torch.arange(0))
    budget = Budget(choice.epochs, choice.batch_size)
    epochs = train(trainer, sample, nothing, budget, lambda epoch, loss: on_epoch(epoch, choice.epochs, loss))
    file = finished(trainer, sample, parts, encoding, goal)
    return Fitted(file, encoding, goal, choice, trainer, epochs)


def _further(
    fitted: Fitted,
    parts: Parts,
    plan: Plan,
    weight_of_class: Floats | None,
    on_epoch: OnEpoch,
) -> Fitted:
    """The same networks, trained further."""
    goal = replace(fitted.goal, weight_of_class=weight_of_class)
    sample = goal.sample(fitted.encoding, parts.training)
    for group in fitted.trainer.optimizer.param_groups:
        if "train_set_size" in group:
            group["train_set_size"] = max(1.0, sample.effective_size())
    epochs = plan.epochs or EPOCHS
    budget = Budget(epochs, fitted.choice.batch_size)
    nothing = sample.rows(torch.arange(0))
    train(fitted.trainer, sample, nothing, budget, lambda epoch, loss: on_epoch(epoch, epochs, loss))
    file = finished(fitted.trainer, sample, parts, fitted.encoding, goal)
    return replace(fitted, file=file, goal=goal, epochs=fitted.epochs + epochs)


def _consolidate(fitted: Fitted) -> None:
    """Make the posterior the next prior. EWC is left out: its rule passes single rows through BatchNorm."""
    if fitted.trainer.method != "ewc":
        fitted.trainer.optimizer.consolidate(fitted.trainer.network, ())
