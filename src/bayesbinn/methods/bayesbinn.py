"""BayesBiNN: the Bayesian learning rule for Bernoulli distributions over binary weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayesbinn import kernels
from bayesbinn.errors import InvalidInput, InvalidUse, StuckTraining
from bayesbinn.methods.bernoulli import BernoulliOptimizer
from bayesbinn.methods.contract import Group, Members, Sample, State
from bayesbinn.methods.gradients import ROOM
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require
from bayesbinn.posterior import BernoulliPosterior

_START = 10.0
"""|λ| at the start, as in the paper."""
_SPREAD_START = 0.5
_SPREAD_TEMPERATURE = 1.0
_SUGGESTED_CERTAINTY = 100


def spread_rate(train_set_size: float) -> float:
    """α if `certainty` is given and `lr` is not: 25/√N.

    N multiplies every gradient, so with a fixed α, λ would move a tenth as far on a tenth of the data. On held-out data
    the best rates were 0.1 for MNIST's 54,000 images, 0.3 for a tenth of them and 1 to 3 for tables of a hundred rows.

    >>> round(spread_rate(54_000), 2), round(spread_rate(1_221), 2)
    (0.11, 0.72)
    """
    return 25 / math.sqrt(train_set_size)


@register
class BayesBiNN(BernoulliOptimizer):
    r"""A Bernoulli distribution over every weight, updated by natural-gradient descent.

    q(w) has natural parameter λ = ½·log(p/(1 − p)) and mean μ = tanh λ. One step with S samples:

    .. code-block:: text

        δ = ½·log(u/(1 − u)), u ~ U(0, 1)                                           (eq. 8)
        w = tanh((λ + δ)/τ)                                 the relaxed sample      (paper, eq. 10)
        s = ((1 − w²) + ε) / (τ·(v(λ) + ε))                 from ∂ℓ/∂w to ∂ℓ/∂μ     (eq. 13)
        m ← β·m + (1 − β)·[(N/S)·Σ s⊙g + κ·(λ − λ₀)]        the natural gradient
        λ ← λ − α·m/(1 − βᵏ)                                                        (eq. 4)

    with g the minibatch-mean gradient at w and v(λ) = 1 − tanh²λ as float32 rounds it. ε is
    what makes τ = 1e-10 work: there s = 1/τ, and the rule becomes r ← (1 − α)·r − α·g with
    w = sign(r), r = τλ/N. At τ = 1 the relaxation is biased: for a linear loss with −N·c = 1
    and λ₀ = 0 the fixed point is λ = 12.2 instead of 1; at τ = 0.1 it is within 2 %. Beyond
    |λ| ≈ 9.3, s is 1/τ again, so λ₀ − N·c/τ is a second fixed point: a large α can throw
    weights into it, because the noise of s grows like cosh²λ.

    **Memory.** If each posterior becomes the next prior, λ only grows, and after many tasks nothing more can be
    learned. `memory` = M bounds it: it minimizes the negative ELBO of about M examples with a
    weak penalty on λ itself, M·E_q[ℓ] + KL(q ‖ fair coins) + φ/2·Σλ², by its ordinary gradient in λ. Since
    ∂μ/∂λ = v(λ) and ∂KL/∂λ = v(λ)·λ, dividing everything by M/N gives:

    .. code-block:: text

        λ ← λ − α·[v(λ)·(N/S)·Σ s⊙g + (v(λ) + φ)·(N/M)·λ],    φ = 0.05

    Each weight moves in proportion to its variance v(λ): weights that old tasks made certain hardly move;
    uncertain weights learn and, where the data say nothing, fade. Without φ, a weight that became
    certain could never become uncertain again: over 100 tasks, nine tenths of all weights saturated. No task
    boundaries are needed. With a prior (tasks of many epochs), κ·(M/N)·KL(q ‖ prior) is added to the objective and
    v(λ)·κ·(λ − λ₀) to the step.

    **Certainty.** For one data set, c = M/N controls how far q(w) may move away from fair coins: each example counts
    as c examples' worth of evidence. ``certainty=c`` is this rule with M = c·N. A small c gives a spread of
    networks whose mean is honest about what it does not know, a large c a single network. It sets τ = 1,
    |λ| = 0.5 at the start and α = `spread_rate(N)`, unless you set these yourself.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: α. Required, except with `certainty`.
        train_set_size: N, the number of training examples.
        temperature: τ of the relaxation. The paper: 1e-10 for images, 1e-2 for continual
            learning, 1 for synthetic data. Required, except with `certainty`.
        certainty: c = M/N, for a posterior whose samples differ: 100 suits digits, MNIST and tables; less gives more
            spread, more is closer to a single network. Cannot be combined with `memory`.
        momentum: β.
        mc_samples: S, the number of samples that ``step(closure)`` draws.
        prior: the posterior of earlier tasks; its λ is λ₀. None is the uniform prior, λ₀ = 0.
        init: ``"random"`` (±`initial_strength` by a fair coin), ``"sign"`` (by the sign of the
            current weights) or a posterior. Default: the prior if there is one, else "random".
        initial_strength: |λ| at the start. Default: 10, as in the paper; with `certainty`, 0.5.
        kl_weight: κ, the weight of the prior term.
        memory: M, about how many examples to remember; None: all, through the prior.
        eps: ε.
        independent_noise: with several data-parallel ranks, let each draw its own noise.
        seed: seed of the noise; drawn from torch's default generator if None.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 3))
    >>> optimizer = BayesBiNN([("w", weight)], lr=0.1, train_set_size=10, temperature=0.5, seed=0)
    >>> with optimizer.sampled_params(train=True):
    ...     weight.sum().backward()
    >>> optimizer.step()
    >>> bool((weight.abs() == 1).all())
    True
    >>> optimizer = BayesBiNN([("w", weight)], train_set_size=54_000, certainty=100)
    >>> optimizer.param_groups[0]["temperature"], round(optimizer.param_groups[0]["lr"], 3)
    (1.0, 0.108)
    """

    name = "bayesbinn"
    # Below this temperature 1 − w² is 0 for practically every weight, and the noise behind it is only
    # needed where |λ| < 8.4: drawing it again costs less than a buffer.
    keeps_slopes_from = 1e-6
    consolidated = ("prior",)

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        train_set_size: int | None = None,
        *,
        temperature: float | None = None,
        certainty: float | None = None,
        momentum: float = 0.0,
        mc_samples: int = 1,
        prior: BernoulliPosterior | None = None,
        init: str | BernoulliPosterior | None = None,
        initial_strength: float | None = None,
        kl_weight: float = 1.0,
        memory: float | None = None,
        eps: float = 1e-10,
        independent_noise: bool = False,
        seed: int | None = None,
    ) -> None:
        self._prior = prior
        self._init = init if init is not None else prior if prior is not None else "random"
        if isinstance(self._init, str) and self._init not in ("random", "sign"):
            raise InvalidInput(f"init={init!r}: it must be 'random', 'sign' or a posterior")
        self._strength = initial_strength
        if initial_strength is not None:
            require({"initial_strength": initial_strength}, "initial_strength", above=0)
        defaults = {
            "lr": lr,
            "train_set_size": train_set_size,
            "temperature": temperature,
            "momentum": momentum,
            "kl_weight": kl_weight,
            "memory": memory,
            "certainty": certainty,
            "eps": eps,
        }
        _refuse_both(defaults)
        if certainty is not None and train_set_size is not None:
            defaults |= _completed(defaults, {})
        super().__init__(params, defaults, mc_samples=mc_samples, independent_noise=independent_noise, seed=seed)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own settings; a group's `certainty` sets the defaults for the rest."""
        super().add_param_group({**param_group, **_completed(self.defaults, param_group)})
        group = self.param_groups[-1]
        if self._strength is None and isinstance(self._init, str) and _cannot_leave_its_start(group):
            warnings.warn(
                f"temperature={group['temperature']:g} with lr={group['lr']:g} and train_set_size="
                f"{group['train_set_size']:g} leaves weights at their start, |λ| = {_START:g}, for about "
                f"{2.3 / group['lr']:.0f} steps; for a posterior, pass certainty={_SUGGESTED_CERTAINTY} instead of lr "
                "and temperature; for one network, temperature=1e-10",
                StuckTraining,
                stacklevel=_OUTSIDE,
            )

    def _check_settings(self, group: Group) -> None:
        require(group, "lr", least=0)
        require(group, "train_set_size", above=0)
        require(group, "temperature", above=0, least=1e-30)
        require(group, "momentum", least=0, below=1)
        require(group, "kl_weight", least=0)
        require(group, "eps", above=0)
        for key in ("memory", "certainty"):
            if group[key] is not None:
                require(group, key, above=0)
        if group["eps"] * group["temperature"] < 1e-37:
            raise InvalidInput(
                f"eps={group['eps']} times temperature={group['temperature']} vanishes in float32; raise one of them"
            )

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        state: State = {}
        if self._prior is not None:
            state["prior"] = self._prior.usable_natural(name, parameter, "prior").clone()
        state["natural"] = self._initial_natural(parameter, name, group)
        if group["momentum"]:
            state["momentum"] = torch.zeros_like(state["natural"])
        return state

    def _initial_natural(self, parameter: Tensor, name: str, group: Group) -> Tensor:
        if isinstance(self._init, BernoulliPosterior):
            return self._init.usable_natural(name, parameter, "init").clone()
        if self._init == "sign":
            natural = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
            kernels.write_sign([natural], [parameter.detach()])
        else:
            natural = self._fair_coins(parameter, name)
        if self._strength is not None:
            return natural.mul_(self._strength)
        return natural.mul_(_START if group["certainty"] is None else _SPREAD_START)

    def _accumulate(self, members: Members, totals: list[Tensor], sample: Sample) -> None:
        kernels.accumulate_scaled(
            totals,
            members.state("natural"),
            [parameter.grad for parameter in members.parameters if parameter.grad is not None],
            self._keys(members, "train"),
            sample.draw,
            sample.temperature,
            members.group["eps"],
        )

    def _gradient_limit(self, members: Members, sample: Sample | None) -> float:
        group = members.group
        scale = 1.0 if sample is None else kernels.largest_scale(sample.temperature, group["eps"])
        return ROOM / float(scale * max(group["train_set_size"], 1) * max(group["lr"], 1))

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group, beta = members.group, members.group["momentum"]
        if beta:
            for state in members.states:
                state.setdefault("momentum", torch.zeros_like(state["natural"]))
        rule = kernels.RuleSettings(
            lr=group["lr"] / (1 - beta**members.step),
            temperature=group["temperature"] if sample is None else sample.temperature,
            eps=group["eps"],
            data_weight=group["train_set_size"] / samples,
            kl_weight=group["kl_weight"],
            momentum=beta,
        )
        parameters, naturals, priors = members.parameters, members.state("natural"), members.state("prior")
        if group["certainty"] is not None:
            rule = rule._replace(steady=True, relaxation=1 / group["certainty"])
        elif group["memory"] is not None:
            rule = rule._replace(steady=True, relaxation=group["train_set_size"] / group["memory"])
        momenta = members.state("momentum") if beta else [None] * len(gradients)
        if sample is not None and sample.slopes is not None:
            slopes = sample.slopes_of(members)
            kernels.bayesbinn_update_from_slopes(parameters, naturals, gradients, slopes, momenta, priors, rule)
        else:
            keys, draw = self._keys(members, "train"), None if sample is None else sample.draw
            kernels.bayesbinn_update(parameters, naturals, gradients, momenta, priors, keys, draw, rule)
        self._moved(members)

    def set_prior(self, posterior: BernoulliPosterior | None) -> None:
        """Set λ₀; None is the uniform prior. λ does not change; parameters added later use the constructor's prior."""
        if self._samples.inside is not None:
            raise InvalidUse("set_prior inside a sampled_params block; call it after the block")
        priors = {
            parameter: None if posterior is None else posterior.usable_natural(name, parameter, "prior").clone()
            for parameter, name in self._names.items()
        }
        for parameter, prior in priors.items():
            self.state[parameter].pop("prior", None)
            if prior is not None:
                self.state[parameter]["prior"] = prior

    def consolidate(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Today's posterior becomes tomorrow's prior: λ₀ ← λ."""
        self.set_prior(self.posterior())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit for bit; the model then holds the mode. Rejects the state of another method."""
        if "param_groups" in state_dict:  # a state without this setting was trained without it, whatever ours is
            groups = [{"certainty": None, **group} for group in state_dict["param_groups"]]
            state_dict = {**state_dict, "param_groups": groups}
        super().load_state_dict(state_dict)


# Frames from the warning to the line that calls BayesBiNN: this one, torch's, contract's, bernoulli's and our
# constructor, and the caller.
_OUTSIDE = 6


def _completed(defaults: Group, given: Group) -> Group:
    """The settings that a group and the optimizer leave open, or on which they contradict each other."""
    _refuse_both(given)
    settings = {**defaults, **given}
    completed: Group = {}
    if given.get("certainty") is not None:
        completed["memory"] = None
        if defaults["certainty"] is None:  # the optimizer's values are for the other rule
            settings |= {key: given.get(key) for key in ("lr", "temperature")}
    elif given.get("memory") is not None:
        completed["certainty"] = None
    certain = {**settings, **completed}["certainty"] is not None
    if settings["train_set_size"] is None:
        raise InvalidInput("BayesBiNN needs 'train_set_size', the number of training examples")
    for key in ("lr", "temperature"):
        if settings[key] is None and not certain:
            raise InvalidInput(
                f"BayesBiNN needs {key!r}: pass lr=1e-3 and temperature=1e-10 for one network, "
                f"or only certainty={_SUGGESTED_CERTAINTY} for a posterior"
            )
    if settings["temperature"] is None:
        settings["temperature"] = _SPREAD_TEMPERATURE
    if settings["lr"] is None:
        require(settings, "train_set_size", above=0)
        settings["lr"] = spread_rate(settings["train_set_size"])
    return {**completed, "lr": settings["lr"], "temperature": settings["temperature"]}


def _cannot_leave_its_start(group: Group) -> bool:
    """Whether most weights will stay at λ = ±10.

    There s is 1/τ, one step moves λ by (αN/τ)·g, and below |λ| = 9 s almost vanishes unless τ is about 1 (where
    1 − w² stays comparable to v(λ)). So either a few steps must carry a weight across (αN/τ in the thousands; in the
    paper, 6,000 and more), or the prior must pull it to |λ| ≈ 1 first, which takes 2.3/α steps. On wine (N = 120),
    every τ from 1e-3 to 0.5 stayed at chance with α = 1e-3; with α = 1e-2 they learned late, and the mode was poor.
    """
    bounded = group["memory"] is not None or group["certainty"] is not None
    reach = group["lr"] * group["train_set_size"] / group["temperature"]
    return not bounded and group["temperature"] < 1 and reach < 5000 and 0 < group["lr"] < 2e-2


def _refuse_both(given: Group) -> None:
    if given.get("memory") is not None and given.get("certainty") is not None:
        raise InvalidInput(
            f"memory={given['memory']!r} and certainty={given['certainty']!r}: certainty is memory divided by "
            "train_set_size; pass one of them"
        )
