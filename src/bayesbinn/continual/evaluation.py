"""Accuracy of one posterior on many tasks, under each BatchNorm policy.

BatchNorm's running statistics are those of the last batches seen, so they differ between tasks. The result of a test
therefore depends on which statistics it uses:

- ``shared``: the last task's running statistics for every task, as the paper's authors do.
- ``per-task``: those stored when the task had been learned. Needs to know which task an input belongs to.
- ``recalibrated``: those of the test batch itself, for each sampled network. Needs no labels or task identity, but a
  batch of inputs from one task.
- ``none``: the network has no BatchNorm.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn import metrics
from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError, SaturatedPosterior
from bayesbinn.packing.packer import pack
from bayesbinn.posterior import BernoulliPosterior, Weights
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import evaluating
from bayesbinn.prediction.predicting import class_logits, predict
from bayesbinn.runtime import load

SHARED, PER_TASK, RECALIBRATED, NONE = "shared", "per-task", "recalibrated", "none"
BATCH = 1000
"""Test inputs per batch, which ``recalibrated`` takes its statistics from; the authors' value."""


def policies_of(model: nn.Module) -> tuple[str, ...]:
    """The policies that apply to a network: one training run serves all of them."""
    if _normalised(model):
        return (SHARED, PER_TASK, RECALIBRATED)
    # BatchNorm without running statistics always uses the batch's.
    return (RECALIBRATED,) if any(isinstance(layer, _BatchNorm) for layer in model.modules()) else (NONE,)


def statistics_of(model: nn.Module) -> Weights:
    """A copy of BatchNorm's running statistics, by buffer name."""
    return {
        f"{name}.{buffer}": getattr(layer, buffer).clone()
        for name, layer in _normalised(model).items()
        for buffer in ("running_mean", "running_var")
    }


def _normalised(model: nn.Module) -> dict[str, _BatchNorm]:
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }


class Networks:
    """Posterior samples drawn once and evaluated on many tasks; without a posterior, the model itself."""

    def __init__(self, model: nn.Module, posterior: BernoulliPosterior | None, samples: int, seed: int) -> None:
        ensemble = Ensemble(model, posterior, samples if posterior is not None else 0, seed)
        self._model, self._network = model, ensemble.network
        self._weights = [ensemble.tensors(index) for index in range(len(ensemble))]

    def accuracy(self, part: Part, policy: str, statistics: Weights | None = None) -> float:
        """Accuracy of the mean of the samples' probabilities, in percent; `statistics` are for ``per-task``."""
        if policy == RECALIBRATED and len(part) == 1:
            return math.nan  # a single input gives no statistics
        correct = 0
        mode = _batch_statistics(self._model) if policy == RECALIBRATED else nullcontext()
        given = statistics if policy == PER_TASK and statistics is not None else {}
        with evaluating(self._model), mode:
            for x, y in part.batches(even_batch(len(part))):
                outputs = (self._network({**weights, **given}, x) for weights in self._weights)
                total = sum(class_logits(output.unsqueeze(0))[0].softmax(1) for output in outputs)
                assert isinstance(total, Tensor)
                correct += int((total.argmax(1) == y).sum())
        return 100 * correct / len(part)


def even_batch(count: int) -> int:
    """A batch size of at most `BATCH` that splits `count` almost evenly, so that no batch has only a few inputs.

    >>> even_batch(10_000), even_batch(1001)
    (1000, 501)
    """
    return -(-count // -(-count // BATCH))


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Remove the running statistics for a while: BatchNorm then uses the batch's, even in eval mode."""
    kept = [(layer, layer.running_mean, layer.running_var) for layer in _normalised(model).values()]
    try:
        for layer, _, _ in kept:
            layer.running_mean = layer.running_var = None
        yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance


class QuickNetworks:
    """The same samples as a packed ensemble with 8-bit activations: about three times faster, for curves.

    Its classes agree with the exact ones for all but a few of 10,000 digits.
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: BernoulliPosterior,
        samples: int,
        seed: int,
        example: Tensor,
        threads: int = 1,
    ) -> None:
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", SaturatedPosterior)  # every method gets the same number of samples
            path = Path(folder) / "networks.safetensors"
            pack(model, path, posterior=posterior, samples=samples, seed=seed, example_input=example)
            self._ensemble = load(path, activations="int8", threads=threads, backend="native")

    def accuracy(self, part: Part, policy: str, statistics: Weights | None = None) -> float:
        """Accuracy in percent, with the running statistics packed with the networks."""
        correct = 0
        for x, y in part.batches(BATCH):
            outputs = class_logits(torch.from_numpy(self._ensemble.outputs(x.numpy())))
            correct += int((outputs.softmax(-1).mean(0).argmax(1) == y).sum())
        return 100 * correct / len(part)


def quick_networks(
    model: nn.Module, posterior: BernoulliPosterior | None, samples: int, seed: int, example: Tensor
) -> Networks | QuickNetworks:
    """A packed ensemble if there are several networks and the runtime can run them; otherwise the exact ones."""
    if posterior is not None and samples > 1:
        try:
            with evaluating(model):
                return QuickNetworks(model, posterior, samples, seed, example, max(1, torch.get_num_threads() - 1))
        except BayesbinnError:
            pass
    return Networks(model, posterior, samples, seed)


class Evaluations:
    """Accuracies during training. Those of packed networks are computed while training continues."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._line: dict[str, Any] = {}
        self._found: tuple[list[float], float] | Exception | None = None
        self._news: dict[str, Any] = {}

    def start(
        self, line: dict[str, Any], networks: Networks | QuickNetworks, parts: list[Callable[[], Part]], policy: str
    ) -> None:
        """Start adding ``accuracy`` and ``evaluation_seconds`` to a line; the previous line is finished first."""
        self.finish()
        # Networks that are not packed share the layers of the model being trained.
        in_background = isinstance(networks, QuickNetworks) and torch.get_num_threads() > 1

        def measure() -> None:
            if in_background:
                torch.set_num_threads(1)  # for this thread only
            started = time.monotonic()
            try:
                self._found = [networks.accuracy(part(), policy) for part in parts], time.monotonic() - started
            except Exception as error:
                self._found = error

        self._line = line
        if in_background:
            self._thread = threading.Thread(target=measure, name="evaluation", daemon=True)
            self._thread.start()
        else:
            measure()
            self.finish()

    @property
    def under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def news(self) -> dict[str, Any]:
        """The newest accuracies and their epoch, once they are known; otherwise empty."""
        if not self.under_way:
            self.finish()
        news, self._news = self._news, {}
        return news

    def finish(self) -> None:
        """Wait for the current evaluation and add its results to its line."""
        if self._thread is not None:
            self._thread.join()
        self._thread, found, self._found = None, self._found, None
        if found is None:
            return
        if isinstance(found, Exception):
            raise found
        self._line["accuracy"], self._line["evaluation_seconds"] = found
        self._news = {"accuracy": found[0], "accuracy_epoch": self._line["epoch"]}


def unfamiliarity(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    inside: Tensor,
    outside: dict[str, Tensor],
    samples: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """AUROC of separating `outside` inputs from familiar ones by entropy and by mutual information."""
    found: dict[str, dict[str, float]] = {}
    familiar = predict(model, posterior, inside, samples, seed=seed, batch_size=BATCH)
    for name, x in outside.items():
        strange = predict(model, posterior, x, samples, seed=seed, batch_size=BATCH)
        found[name] = {
            score: metrics.ood_auroc(getattr(familiar, score), getattr(strange, score))
            for score in ("entropy", "mutual_information")
        }
    return found
