"""BernoulliPosterior: a frozen snapshot of q(w), the product of one Bernoulli distribution per weight."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from bayesbinn import kernels
from bayesbinn.binary import canonical_name, sign
from bayesbinn.errors import InvalidFile, InvalidInput, SaturatedPosterior, nearest
from bayesbinn.files import check_safetensors, seal_safetensors, write_whole

_KIND = "bayesbinn posterior"
_VERSION = 1
_SATURATED = 0.01
"""Number of expected flips below which 99 in 100 samples equal the mode."""
_UNSEALED = {"kind", "version", "logit_scale"}
"""The metadata keys of files written before checksums were added."""

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class LogitScale:
    """A factor and a shift per class for the logits of the mode, and another set for the samples behind the mean.

    Probabilities are softmax(factor·(logits + shift)). An empty shift means no shift. A model with one logit has
    two classes, with the logits 0 and z, and hence two shifts.

    >>> scale = LogitScale(mode=2.0, mode_shift=(1.0, -1.0))
    >>> scale.to_dict()
    {'mode': 2.0, 'mean': 1.0, 'mode_shift': [1.0, -1.0]}
    >>> LogitScale.from_dict(scale.to_dict()) == scale
    True
    """

    mode: float = 1.0
    mean: float = 1.0
    mode_shift: tuple[float, ...] = ()
    mean_shift: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("mode", self.mode), ("mean", self.mean)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"logit scale of the {name} is {value!r}; it must be a finite number above 0")
        for name, shift in (("mode", self.mode_shift), ("mean", self.mean_shift)):
            if not isinstance(shift, tuple) or not all(math.isfinite(value) for value in shift):
                raise InvalidInput(f"logit shift of the {name} is {shift!r}; it must be a tuple of finite numbers")
            if len(shift) == 1:
                raise InvalidInput(f"logit shift of the {name} has one value; it must have one for each class, or none")

    def of(self, samples: int) -> tuple[float, tuple[float, ...]]:
        """Factor and shift for a prediction by the mode (0 samples) or by the mean over `samples`."""
        return (self.mean, self.mean_shift) if samples else (self.mode, self.mode_shift)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. An empty shift is omitted."""
        shifts = {"mode_shift": list(self.mode_shift), "mean_shift": list(self.mean_shift)}
        return {"mode": self.mode, "mean": self.mean, **{name: shift for name, shift in shifts.items() if shift}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LogitScale:
        """Build a logit scale from the output of `to_dict`."""
        if not isinstance(values, Mapping) or not {"mode", "mean"} <= set(values) <= set(cls.__dataclass_fields__):
            allowed = ", ".join(cls.__dataclass_fields__)
            raise InvalidInput(f"logit scale {values!r}: allowed keys are {allowed}, and the first two are required")
        fields: dict[str, Any] = dict(values)
        try:
            for name in {"mode_shift", "mean_shift"} & set(fields):
                fields[name] = tuple(fields[name])
            return cls(**fields)
        except TypeError as error:
            raise InvalidInput(f"logit scale {values!r}: {error}") from None


class BernoulliPosterior:
    """q(w), given by its natural parameters λ = ½·log(p/(1 − p)), where p is the probability of +1.

    λ = ±inf is a point mass (STE-Adam, Bop). The tensors are copies, so further training does not change them.

    >>> posterior = BernoulliPosterior({"w": torch.tensor([0.0, 1.0, -3.0])})
    >>> posterior.probability()["w"]
    tensor([0.5000, 0.8808, 0.0025])
    >>> posterior.mode()["w"]
    tensor([ 1.,  1., -1.])
    """

    def __init__(self, natural: Mapping[str, Tensor], logit_scale: LogitScale | None = None) -> None:
        if not natural:
            raise InvalidInput("a posterior needs at least one parameter")
        copies = {}
        for name, value in natural.items():
            if bool(torch.isnan(value).any()):
                raise InvalidInput(f"λ of {name!r} contains NaN")
            if canonical_name(name) in copies:
                raise InvalidInput(f"two parameters are named {canonical_name(name)!r}; names must be unique")
            copies[canonical_name(name)] = value.detach().to(torch.float32, copy=True).contiguous()
        self._natural = copies
        self._logit_scale = logit_scale or LogitScale()

    @property
    def natural(self) -> Mapping[str, Tensor]:
        """λ by parameter name."""
        return MappingProxyType(self._natural)

    @property
    def logit_scale(self) -> LogitScale:
        """What `bb.calibrate` fitted; before that, factors of 1 and no shifts."""
        return self._logit_scale

    def with_logit_scale(self, logit_scale: LogitScale) -> BernoulliPosterior:
        """The same distribution with another logit scale."""
        return BernoulliPosterior(self._natural, logit_scale)

    def __repr__(self) -> str:
        weights = sum(value.numel() for value in self._natural.values())
        return f"BernoulliPosterior({len(self._natural)} parameters, {weights:,} weights)"

    # ---- the distribution ------------------------------------------------------------------

    def mean(self) -> Weights:
        """μ = E[w] = tanh λ."""
        return {name: torch.tanh(value) for name, value in self._natural.items()}

    def probability(self) -> Weights:
        """P(w = +1) = σ(2λ)."""
        return {name: torch.sigmoid(2 * value) for name, value in self._natural.items()}

    def mode(self) -> Weights:
        """The most likely weights: sign(λ), +1 where λ = 0."""
        return {name: sign(value) for name, value in self._natural.items()}

    def draw(self, seed: int, index: int) -> Weights:
        """Sample number `index` of the stream `seed`; every weight is exactly ±1."""
        drawn = {name: torch.empty_like(value) for name, value in self._natural.items()}
        keys = [kernels.noise_key(seed, "posterior", name) for name in self._natural]
        kernels.write_hard_sample(list(drawn.values()), list(self._natural.values()), keys, index)
        return drawn

    def sample(self, n: int, seed: int) -> Weights:
        """`n` samples stacked along a new first axis. The first ones do not depend on `n`."""
        if n < 1:
            raise InvalidInput(f"sample(n={n}): n must be 1 or more")
        draws = [self.draw(seed, index) for index in range(n)]
        return {name: torch.stack([weights[name] for weights in draws]) for name in self._natural}

    def entropy(self) -> Weights:
        """−p·log p − (1 − p)·log(1 − p) of every weight, in nats: log 2 at λ = 0, 0 at a point mass."""
        return {name: _entropy(value) for name, value in self._natural.items()}

    def mean_entropy(self) -> float:
        """The entropy per weight, averaged over all weights."""
        entropies = self.entropy().values()
        return sum(float(e.sum()) for e in entropies) / sum(e.numel() for e in entropies)

    def expected_flips(self) -> float:
        """The expected number of weights in which a sample differs from the mode: Σ σ(−2|λ|).

        >>> BernoulliPosterior({"w": torch.tensor([0.0, 30.0])}).expected_flips()
        0.5
        """
        # In double precision: in float32, 1 − σ(2|λ|) has no digits left from |λ| = 9 on.
        return sum(float(torch.sigmoid(-2 * value.double().abs()).sum()) for value in self._natural.values())

    @property
    def saturated(self) -> bool:
        """Whether at least 99 in 100 samples equal the mode."""
        return self.expected_flips() < _SATURATED

    def warn_if_saturated(self, samples: int, stacklevel: int = 3) -> None:
        """Warn if several samples were requested and all of them equal the mode."""
        if samples > 1 and self.saturated:
            warnings.warn(
                f"all {samples} samples equal the mode because the posterior is saturated, so their mutual "
                "information is 0; use samples=0, or train with BayesBiNN(certainty=100) for a posterior whose "
                "samples differ",
                SaturatedPosterior,
                stacklevel=stacklevel,
            )

    def kl(self, prior: BernoulliPosterior | None = None) -> float:
        """KL(q ‖ prior) in nats, summed over all weights; without a prior, against fair coins."""
        total = 0.0
        for name, value in self._natural.items():
            base = torch.zeros_like(value) if prior is None else prior.usable_natural(name, value, "prior")
            q, p = value.double(), base.double().to(value.device)
            # E_q[log q − log p] = μ(λ − λ₀) − A(λ) + A(λ₀) with A(λ) = log(2 cosh λ); a point mass has entropy 0.
            finite = torch.nan_to_num(q, posinf=0.0, neginf=0.0)
            spread = torch.tanh(finite) * (finite - p) - _log_2_cosh(finite) + _log_2_cosh(p)
            point = _log_2_cosh(p) - torch.where(q > 0, p, -p)
            total += float(torch.where(torch.isinf(q), point, spread).sum())
        return total

    # ---- in a model and as a prior -----------------------------------------------------------

    def usable_natural(self, name: str, like: Tensor, role: str) -> Tensor:
        """λ of a parameter, checked to be present, of the right shape and finite. `role` is used in the message."""
        value = self._natural.get(canonical_name(name))
        if value is None:
            raise InvalidInput(
                f"the {role} has no entry for {name!r}.{nearest(name, self._natural)} "
                "It was made for a different model or without parameter names"
            )
        if value.shape != like.shape:
            raise InvalidInput(
                f"the {role} has shape {tuple(value.shape)} for {name!r}, but the model {tuple(like.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise InvalidInput(
                f"the {role} is infinite for {name!r}: a point mass (STE, Bop) cannot be updated by Bayes' rule; "
                "use a method that keeps probabilities, or init='sign'"
            )
        return value.to(like.device)

    @torch.no_grad()
    def apply(self, model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write weights (the mode if None) into the model's parameters of the same names."""
        targets = self.targets(model)
        for name, value in (self.mode() if weights is None else weights).items():
            if name not in targets:
                raise InvalidInput(f"the posterior has no parameter {name!r}.{nearest(name, targets)}")
            if value.shape != targets[name].shape:
                raise InvalidInput(
                    f"weights have shape {tuple(value.shape)} for {name!r}, but the model {tuple(targets[name].shape)}"
                )
            targets[name].copy_(value)

    def targets(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The model's parameters that this posterior describes; raises if one is missing or has the wrong shape."""
        own = {canonical_name(name): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
        for name, value in self._natural.items():
            if name not in own:
                raise InvalidInput(
                    f"this posterior belongs to a different model: {type(model).__name__} has no parameter {name!r}."
                    f"{nearest(name, own)}"
                )
            if own[name].shape != value.shape:
                raise InvalidInput(
                    f"this posterior belongs to a different model: {name!r} has shape {tuple(own[name].shape)} there, "
                    f"{tuple(value.shape)} here"
                )
        return {name: own[name] for name in self._natural}

    # ---- files -------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with a checksum, whole or not at all. Equal posteriors give equal files."""
        header = {"kind": _KIND, "version": _VERSION, "logit_scale": self._logit_scale.to_dict()}
        plain = save({name: value.cpu() for name, value in self._natural.items()})
        write_whole(path, seal_safetensors(plain, {key: json.dumps(value) for key, value in header.items()}))

    @classmethod
    def load(cls, path: str | Path) -> BernoulliPosterior:
        """Read a file written by `save`. A file that has changed since then is rejected."""
        path = Path(path)
        if not path.is_file():
            raise InvalidFile(f"{path}: there is no such file")
        try:
            content = path.read_bytes()  # read once, so that the checked bytes are the ones used
            metadata = check_safetensors(content, lambda found: found.keys() == _UNSEALED)
            header = {key: json.loads(metadata[key]) for key in ("kind", "version", "logit_scale")}
            natural = load(content)
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise InvalidFile(f"{path}: not a complete posterior file ({reason}); save it again") from error
        if header["kind"] != _KIND or header["version"] != _VERSION:
            raise InvalidFile(
                f"{path}: {header['kind']!r} version {header['version']}; expected {_KIND!r} version {_VERSION}"
            )
        try:
            return cls(natural, LogitScale.from_dict(header["logit_scale"]))
        except (InvalidInput, TypeError) as error:
            raise InvalidFile(f"{path}: {error}") from error


def _log_2_cosh(x: Tensor) -> Tensor:
    return x.abs() + torch.log1p(torch.exp(-2 * x.abs()))


def _entropy(natural: Tensor) -> Tensor:
    """A(λ) − λ·tanh λ, written so that large |λ| neither cancels nor gives inf − inf."""
    a = natural.abs()
    e = torch.exp(-2 * a)
    return torch.log1p(e) + torch.nan_to_num(2 * a * e, nan=0.0) / (1 + e)
