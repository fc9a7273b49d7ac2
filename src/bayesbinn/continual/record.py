"""What a continual learner has seen: a line per epoch, a line per finished task, the accuracy matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesbinn import forgetting
from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.posterior import BernoulliPosterior

SATURATED = 0.99
"""A weight is saturated if its more likely sign has at least this probability."""
BINS = 50
"""Number of bins in the histogram of P(w = +1)."""


@dataclass
class Record:
    """Everything measured so far. Accuracies are in percent; tasks are counted from 1 in the lines."""

    tasks: list[str]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """One line per epoch, with `accuracy` (by seen task) if it was evaluated."""
    finished: list[dict[str, Any]] = field(default_factory=list)
    """One line per task: `accuracy` is {policy: {task: percent}}."""
    start: dict[str, Any] = field(default_factory=dict)
    """The untrained network: its weights' distribution, and `baseline`, its accuracy on each task under the last
    policy, which is also used to test a task before it is learned."""
    end: dict[str, Any] = field(default_factory=dict)
    """What is measured once, after the last task."""

    def policies(self) -> list[str]:
        """The BatchNorm policies that accuracies were measured with."""
        return list(self.finished[0]["accuracy"]) if self.finished else []

    def matrix(self, policy: str) -> NDArray[np.float64]:
        """R[i, j]: accuracy on task j after training task i; NaN if it was not measured."""
        if policy not in self.policies():
            known = self.policies()
            raise InvalidInput(f"no accuracy for the policy {policy!r}.{nearest(policy, known)} Available: {known}")
        matrix = np.full((len(self.finished),) * 2, np.nan)
        for row, line in enumerate(self.finished):
            for task, accuracy in line["accuracy"].get(policy, {}).items():
                if int(task) <= len(self.finished):
                    matrix[row, int(task) - 1] = accuracy
        return matrix

    def summary(self) -> dict[str, dict[str, float | None]]:
        """The metrics of `bayesbinn.forgetting` by policy."""
        policies, baseline, count = self.policies(), self.start.get("baseline", []), len(self.finished)
        # A stream may have grown since its start.
        given = {policies[-1]: baseline[:count]} if policies and len(baseline) >= count else {}
        return {policy: forgetting.summary(self.matrix(policy), given.get(policy)) for policy in policies}


def describe_weights(posterior: BernoulliPosterior | None) -> dict[str, Any]:
    """Mean entropy of the weights in bits, the share that is saturated, and the histogram of P(w = +1).

    >>> describe_weights(BernoulliPosterior({"w": torch.tensor([0.0, 5.0])}))["saturated"]
    0.5
    """
    if posterior is None:
        return {"entropy": None, "saturated": None, "histogram": None}
    p = torch.cat([value.flatten() for value in posterior.probability().values()])
    certain = torch.maximum(p, 1 - p) >= SATURATED
    return {
        "entropy": posterior.mean_entropy() / float(np.log(2)),
        "saturated": float(certain.float().mean()),
        "histogram": torch.histc(p, bins=BINS, min=0, max=1).long().tolist(),
    }
