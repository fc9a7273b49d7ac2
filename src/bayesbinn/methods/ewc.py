"""EWC: full-precision Adam that keeps the weights that earlier tasks need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn import kernels, ranks
from bayesbinn.errors import InvalidInput, InvalidUse, NonFiniteGradient
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, mean_gradients
from bayesbinn.methods.float import FloatAdam
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require
from bayesbinn.prediction.functional import evaluating, unwrapped
from bayesbinn.prediction.predicting import class_logits

# How many per-example gradients are held at once, and how many numbers they may have in total.
_MAX_AT_ONCE = 256
_NUMBERS_AT_ONCE = 1 << 24


@register
class EWC(FloatAdam):
    r"""Adam on real weights with elastic weight consolidation: the reference for continual learning.

    A quadratic term ties each weight to its value after the last task, as strongly as the tasks need it:

    .. code-block:: text

        loss + (strength/2)·Σ F⊙(θ − θ*)²                 Adam gets g + strength·F⊙(θ − θ*)
        F ← decay·F + F_task,  θ* ← θ                     by `consolidate`, after a task
        F_task = mean over examples x of (∂ log p(y|x)/∂θ)²,  y drawn from the network's p(·|x)

    This is the online form, with one term for all tasks. F_task is the diagonal of the Fisher
    information, which requires drawing y from the network's own prediction. With the data's
    labels, the result vanishes where the network fits them, so the tasks learned best would
    be protected least. p is the softmax of the outputs, or σ of a single output.

    With as many examples in the new task as in the old ones, Bayes' rule gives strength 1. In
    practice the diagonal underestimates what is needed, and values of 10 to 10,000 are used.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: Adam's learning rate.
        betas: Adam's decay rates.
        eps: Adam's ε.
        weight_decay: coupled L2, as in `torch.optim.Adam`.
        strength: the weight of the quadratic term.
        decay: the share of F that is kept when a task is added; below 1, old tasks fade.
        fisher_samples: how many examples F_task is estimated from, the first in the batches.
        mc_samples: gradients averaged by ``step(closure)``.
        seed: seed of the labels that `consolidate` draws.
    """

    name = "ewc"
    consolidated = ("importance", "anchor")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        strength: float = 100.0,
        decay: float = 1.0,
        fisher_samples: int = 1000,
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        require({"fisher_samples": fisher_samples}, "fisher_samples", least=1)
        self._fisher_samples = int(fisher_samples)
        adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults = {**adam, "strength": strength, "decay": decay}
        BinaryOptimizer.__init__(self, params, defaults, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        super()._check_settings(group)
        require(group, "strength", least=0)
        require(group, "decay", least=0)
        if group["decay"] > 1:
            raise InvalidInput(f"decay={group['decay']}: it must be at most 1")

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        strength = members.group["strength"]
        tied = [
            gradient
            if anchor is None
            else gradient.float() + penalty_gradient(parameter.detach().float(), importance, anchor, strength)
            for gradient, parameter, importance, anchor in zip(
                mean_gradients(gradients, samples),
                members.parameters,
                members.state("importance"),
                members.state("anchor"),
                strict=True,
            )
        ]
        super()._update(members, tied, sample, samples=1)

    def consolidate(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """F ← decay·F + F_task, θ* ← θ: protect the last task from now on."""
        if self._samples.inside is not None:
            raise InvalidUse("consolidate inside a sampled_params block; call it after the block")
        model = unwrapped(model)
        places: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        for parameter, own in self._names.items():
            if parameter not in places:
                raise InvalidInput(f"{type(model).__name__} does not have the parameter {own!r} of this optimizer")
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and layer.running_mean is None:
                raise InvalidInput(
                    f"EWC needs per-example gradients, but {name!r} uses batch statistics even in eval mode; "
                    "give it track_running_stats=True"
                )
        owned = {places[parameter]: parameter for parameter in self._names}
        inputs = first_examples(batches, self._fisher_samples)
        key = kernels.noise_key(self._counters.seed, "labels", self.name)
        information = fisher_information(model, owned, inputs, key, self._counters.steps)
        for name, value in information.items():
            ranks.average(value)
            if not bool(torch.isfinite(value).all()):
                raise NonFiniteGradient(
                    f"the Fisher information of {name!r} is NaN or infinite; nothing was changed. Check the inputs"
                )
        for group in self.param_groups:
            for parameter in group["params"]:
                state, added = self.state[parameter], information[places[parameter]]
                if "importance" in state:
                    added = state["importance"] * group["decay"] + added
                state["importance"] = added
                state["anchor"] = parameter.detach().to(torch.float32, copy=True).contiguous()


def penalty_gradient(weight: Tensor, importance: Tensor, anchor: Tensor, strength: float) -> Tensor:
    """The gradient of (strength/2)·Σ F⊙(θ − θ*)²."""
    return importance * (weight - anchor) * strength


def first_examples(batches: Iterable[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """The inputs of the first `count` examples; rejects targets that are not classes."""
    taken: list[Tensor] = []
    for inputs, targets in batches:
        if targets.is_floating_point():
            raise InvalidInput(f"EWC got targets of {targets.dtype}; only classifiers (integer targets) are supported")
        taken.append(inputs[:count])
        count -= len(inputs)
        if count <= 0:
            break
    if not any(len(inputs) for inputs in taken):
        raise InvalidInput("EWC got no examples to consolidate; pass the batches of the task just learned")
    return torch.cat(taken)


def fisher_information(
    model: nn.Module, owned: dict[str, Tensor], inputs: Tensor, key: int, draw: int
) -> dict[str, Tensor]:
    """The diagonal Fisher information of the owned parameters: mean over examples of (∂ log p(y|x)/∂θ)², y ~ p."""
    weights = {name: parameter.detach() for name, parameter in owned.items()}
    totals = {name: torch.zeros(w.shape, dtype=torch.float32, device=w.device) for name, w in weights.items()}

    def log_likelihood(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        log_p = _log_probabilities(functional_call(model, weights, (x.unsqueeze(0),)))
        return log_p.gather(1, label.view(1, 1)).squeeze()

    per_example = vmap(grad(log_likelihood), in_dims=(None, 0, 0))
    chunk = min(_MAX_AT_ONCE, max(1, _NUMBERS_AT_ONCE // sum(weight.numel() for weight in weights.values())))
    u = kernels.uniform(key, draw, len(inputs), inputs.device)
    with evaluating(model):
        for x, chosen in zip(inputs.split(chunk), u.split(chunk), strict=True):
            labels = draw_labels(_log_probabilities(model(x)).exp(), chosen)
            for name, gradient in per_example(weights, x, labels).items():
                totals[name] += gradient.float().square().sum(0)
    return {name: total / len(inputs) for name, total in totals.items()}


def draw_labels(probabilities: Tensor, u: Tensor) -> Tensor:
    """A class for each row of probabilities: where their cumulative sum passes u.

    >>> draw_labels(torch.tensor([[0.2, 0.8], [0.2, 0.8]]), torch.tensor([0.1, 0.3]))
    tensor([0, 1])
    """
    return (probabilities.cumsum(1)[:, :-1] < u.unsqueeze(1)).sum(1)


def _log_probabilities(output: Tensor) -> Tensor:
    """log p of every class [n, classes]."""
    return F.log_softmax(class_logits(output.unsqueeze(0))[0].float(), 1)
