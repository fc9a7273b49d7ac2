"""Re-estimate BatchNorm statistics for the mode or for every sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.files import check_safetensors, seal_safetensors, write_whole
from bayesbinn.posterior import BernoulliPosterior, Weights
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import PureNetwork, evaluating, unwrapped

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_KIND = "bayesbinn BatchNorm statistics"
_VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormStatistics:
    """Running means and variances for the mode (`samples` = 0) or for each of `samples` posterior samples.

    Made by `recalibrate`, used by ``predict(..., statistics=...)``.
    """

    samples: int
    seed: int
    tensors: Mapping[str, Tensor]
    """[samples, channels] by buffer name, such as ``"1.running_mean"``; the mode counts as one sample."""
    fingerprint: int | None
    """Fingerprint of the posterior's λ; None: the model's weights at the time."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.samples, self.seed, dict(self.tensors), self.fingerprint)

    def __repr__(self) -> str:
        layers = sum(name.endswith("running_mean") for name in self.tensors)
        source = f"{self.samples} samples of seed {self.seed}" if self.samples else "the mode"
        return f"BatchNormStatistics({layers} layers, {source})"

    def buffers(self, index: int) -> Weights:
        """The buffers of one sample."""
        return {name: value[index] for name, value in self.tensors.items()}

    def belongs_to(self, posterior: BernoulliPosterior | None) -> bool:
        """Whether they were measured with this posterior; None: with a model's weights as they were."""
        return self.fingerprint == _fingerprint(posterior)

    def check(self, model: nn.Module, posterior: BernoulliPosterior | None, samples: int, seed: int) -> None:
        """Reject weights other than those the statistics were measured with."""
        if (samples == 0) != (self.samples == 0) or samples > self.samples:
            have = f"{self.samples} samples" if self.samples else "the mode"
            want = f"{samples} samples" if samples else "the mode"
            raise InvalidInput(f"the statistics are for {have}, the prediction uses {want}; recalibrate for that")
        if samples and seed != self.seed:
            raise InvalidInput(f"the statistics are for seed {self.seed}, the prediction uses {seed}; use one seed")
        if not self.belongs_to(posterior):
            raise InvalidInput("the statistics belong to a different posterior; recalibrate with the one used here")
        own = {canonical_name(name): buffer for name, buffer in model.named_buffers()}
        for name, value in self.tensors.items():
            if name not in own or own[name].shape != value.shape[1:]:
                found = tuple(own[name].shape) if name in own else "nothing"
                there = tuple(value.shape[1:])
                raise InvalidInput(
                    f"the statistics belong to a different model: {name!r} has shape {there}, here {found}"
                )

    # ---- files -------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with a checksum, whole or not at all; keep it next to the posterior's."""
        header = {"kind": _KIND, "version": _VERSION, "samples": self.samples, "seed": self.seed}
        header["fingerprint"] = self.fingerprint
        plain = save({name: value.cpu().contiguous() for name, value in self.tensors.items()})
        write_whole(path, seal_safetensors(plain, {key: json.dumps(value) for key, value in header.items()}))

    @classmethod
    def load(cls, path: str | Path) -> BatchNormStatistics:
        """Read a file written by `save`. A file that has changed since then is rejected."""
        path = Path(path)
        if not path.is_file():
            raise InvalidFile(f"{path}: there is no such file")
        try:
            content = path.read_bytes()  # read once, so that the checked bytes are the ones used
            metadata = check_safetensors(content)
            kind, version = (json.loads(metadata.get(key, "null")) for key in ("kind", "version"))
            if kind == _KIND and version == _VERSION:
                samples, seed, fingerprint = (json.loads(metadata[key]) for key in ("samples", "seed", "fingerprint"))
                return _restored(samples, seed, load(content), fingerprint)
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise InvalidFile(
                f"{path}: not a complete file of BatchNorm statistics ({reason}); save it again"
            ) from error
        if kind == _KIND:
            raise InvalidFile(f"{path}: BatchNorm statistics of version {version}; this one reads version {_VERSION}")
        raise InvalidFile(f"{path}: not a file of BatchNorm statistics; `BatchNormStatistics.save` writes one")


def _restored(samples: int, seed: int, tensors: Weights, fingerprint: int | None) -> BatchNormStatistics:
    return BatchNormStatistics(samples, seed, MappingProxyType(tensors), fingerprint)


def recalibrate(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    batches: Iterable[Any],
    samples: int = 0,
    *,
    seed: int = 0,
) -> BatchNormStatistics:
    """Re-estimate BatchNorm's running statistics for the weights that predict.

    Training collects them from relaxed samples that change all the time. Here BatchNorm runs in
    training mode and everything else (dropout) in eval mode, with fixed weights; mean and variance
    are plain averages over the given batches, with equal weight for each batch.

    The mode's statistics do not fit the samples of a spread posterior: for a network on digits with
    a median |λ| of 0.2, the mean over samples had 10 % accuracy with them, and 97 % with each
    sample's own statistics. Call `calibrate` after this.

    Args:
        model: any model with BatchNorm.
        posterior: as in `predict`; None: the model's weights as they are.
        batches: inputs, or tuples whose first element is the inputs, such as a `DataLoader`
            yields. Iterated once. Every batch needs at least two examples.
        samples: 0: for the mode; this also overwrites the model's buffers. C: for each of the
            first C samples of `seed`; the model does not change.
        seed: seed of the samples; `predict` needs the same one.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    >>> posterior = BernoulliPosterior({"0.weight": torch.tensor([[3.0, 3.0]])})
    >>> recalibrate(model, posterior, [torch.tensor([[1.0, 1.0], [3.0, 3.0]])])
    BatchNormStatistics(1 layers, the mode)
    >>> model[1].running_mean, model[1].running_var
    (tensor([4.]), tensor([8.]))
    """
    layers = layers_with_statistics(unwrapped(model))
    if not layers:
        raise InvalidInput(
            f"{type(model).__name__} has no BatchNorm layer with running statistics; there is nothing to recalibrate"
        )
    ensemble = Ensemble(model, posterior, samples, seed)
    network = ensemble.network
    states = [_empty_statistics(layers) for _ in range(len(ensemble))]
    weights = [_compact(ensemble.tensors(index)) for index in range(len(ensemble))]
    count = 0
    with evaluating(model), _averaging(layers.values()):
        for batch in batches:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            count += 1
            for state, drawn in zip(states, weights, strict=True):
                _accumulate(network, {**drawn, **state}, x, count)
    if count == 0:
        raise InvalidInput("recalibrate got no batches; pass at least one batch of training inputs")

    tensors = {
        name: torch.stack([state[name] for state in states])
        for name in states[0]
        if not name.endswith("num_batches_tracked")
    }
    if samples == 0:
        own = {canonical_name(name): buffer for name, buffer in network.model.named_buffers()}
        for name, value in states[0].items():
            own[name].copy_(value)
    return _restored(samples, seed, tensors, _fingerprint(posterior))


def layers_with_statistics(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by the prefix of their buffers."""
    return {
        canonical_name(f"{name}." if name else ""): module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def _empty_statistics(layers: Mapping[str, _BatchNorm]) -> Weights:
    state = {}
    for prefix, layer in layers.items():
        for name, buffer in layer.named_buffers(recurse=False):
            if name in _STATISTICS:
                state[prefix + name] = torch.zeros_like(buffer)
    return state


def _compact(weights: Weights) -> Weights:
    """±1 in one byte each: the weights of all samples stay in memory during the single pass over the batches."""
    return {name: value.to(torch.int8) for name, value in weights.items()}


class _averaging:
    """BatchNorm in training mode with momentum None, which means the plain average in torch."""

    def __init__(self, layers: Iterable[_BatchNorm]) -> None:
        self._layers = list(layers)

    def __enter__(self) -> None:
        self._momenta = [layer.momentum for layer in self._layers]
        for layer in self._layers:
            layer.training, layer.momentum = True, None

    def __exit__(self, *_: object) -> None:
        for layer, momentum in zip(self._layers, self._momenta, strict=True):
            layer.momentum = momentum


def _accumulate(network: PureNetwork, tensors: Weights, x: Tensor, count: int) -> None:
    try:
        network(tensors, x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InvalidInput(
            f"batch {count} has one example, which has no variance; drop it (DataLoader(drop_last=True))"
        ) from error


def _fingerprint(posterior: BernoulliPosterior | None) -> int | None:
    """A sum over the bits of λ, as integers so that it does not depend on the order of summation."""
    if posterior is None:
        return None
    return sum(int(value.view(torch.int32).sum(dtype=torch.int64)) for value in posterior.natural.values())
