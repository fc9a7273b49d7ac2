"""LR-net: a Bernoulli distribution over every weight, trained through the distribution of the layer's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bayesbinn import kernels, ranks
from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State, mean_gradients
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require, require_adam
from bayesbinn.models.side_by_side import block_linear, copied_linear

# Functions that are linear in their second argument, the weight: the output's mean is the function of the
# mean weight, and its variance the same function of the squared input and the weight's variance.
_LINEAR_IN_WEIGHT: tuple[Callable[..., Tensor], ...] = (
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
    copied_linear,
    block_linear,
)

# Allowed on an owned weight because nothing is trained through it; under no_grad, everything is allowed.
_HARMLESS = frozenset(
    {
        *("shape", "dtype", "device", "layout", "ndim", "grad", "requires_grad", "is_leaf", "grad_fn", "_version"),
        *("is_sparse", "is_cuda", "is_cpu", "is_mps", "is_quantized", "is_meta", "is_nested", "_backward_hooks"),
        *("size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex"),
        *("is_contiguous", "data_ptr", "storage_offset", "get_device", "is_same_size", "__hash__", "__len__"),
        *("__repr__", "detach", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook"),
    }
)


@register
class LRNet(BinaryOptimizer):
    """Learns the probabilities of binary weights by local reparameterization.

    .. code-block:: text

        p = σ(θ),  E[w] = 2p − 1 = tanh(θ/2),  Var[w] = 1 − E[w]²
        z = M + √(V + 1e-3)·n,  n ~ N(0, 1)     for every output element of a layer with input h:
                                                M = h·E[w],  V = h²·Var[w]
        θ ← θ − Adam(∂ℓ/∂θ + ρ·∂Σp(1−p)/∂θ)     the regularizer pushes p toward 0 or 1

    Inside ``sampled_params(train=True)`` the parameters hold E[w], and linear and convolution
    functions that use them are replaced by the formula above; the user's module stays untouched.
    A weight of this optimizer that reaches any other operation is an error. Do not use it with
    ``torch.utils.checkpoint``: the second forward pass would draw different noise.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: Adam's learning rate.
        betas: Adam's decay rates.
        eps: Adam's ε.
        regularization: ρ.
        variance_floor: what is added to V.
        init: ``"weights"``: p = ½(1 + w) with the current weights divided by their standard
            deviation and clipped, p between 0.05 and 0.95 (so that a pretrained float network
            can be used); ``"uniform"``: p = ½.
        mc_samples: samples that ``step(closure)`` draws.
        seed: seed of the noise.
    """

    name = "lrnet"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        regularization: float = 1e-6,
        variance_floor: float = 1e-3,
        init: str = "weights",
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        if init not in ("weights", "uniform"):
            raise InvalidInput(f"init={init!r}: it must be 'weights' or 'uniform'")
        self._init = init
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "regularization": regularization,
            "variance_floor": variance_floor,
        }
        super().__init__(params, defaults, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require_adam(group)
        require(group, "regularization", least=0)
        require(group, "variance_floor", least=0)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        weight = parameter.detach().to(torch.float32).contiguous()
        if self._init == "weights":
            spread = weight.std(correction=0)
            mean = torch.where(spread > 0, weight / spread, weight).clamp(-1, 1)
        else:
            mean = torch.zeros_like(weight)
        theta = torch.logit((1 + mean) / 2, eps=0.05)  # clips p to [0.05, 0.95]
        return {"theta": theta, "first": torch.zeros_like(theta), "second": torch.zeros_like(theta)}

    def _relax(self, members: Members, draw: int) -> Sample:
        kernels.write_tanh(members.parameters, members.state("theta"), 0.5)
        return Sample(members.parameters, draw)

    def _intercepted(self, draw: int) -> AbstractContextManager[Any]:
        owned = {
            parameter: (name, members.group["variance_floor"])
            for members in self._active()
            for parameter, name in zip(members.parameters, members.names, strict=True)
        }
        return LocalReparameterization(owned, self._counters.seed, draw)

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        kernels.write_sign(members.parameters, members.state("theta"))

    def _draw_hard(self, members: Members, draw: int) -> None:
        naturals = [theta / 2 for theta in members.state("theta")]
        kernels.write_hard_sample(members.parameters, naturals, self._keys(members, "evaluate"), draw)

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group = members.group
        thetas = members.state("theta")
        kernels.adam(
            thetas,
            [
                theta_gradient(theta, gradient.to(torch.float32), group["regularization"])
                for theta, gradient in zip(thetas, mean_gradients(gradients, samples), strict=True)
            ],
            members.state("first"),
            members.state("second"),
            kernels.AdamSettings.at_step(members.step, group["lr"], group["betas"], group["eps"]),
        )
        self._harden(members)

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        """λ = θ/2."""
        theta: Tensor = state["theta"]
        return theta / 2


def theta_gradient(theta: Tensor, mean_gradient: Tensor, regularization: float) -> Tensor:
    """∂ℓ/∂θ from ∂ℓ/∂E[w]: with μ = tanh(θ/2), dμ/dθ = (1 − μ²)/2 and dp(1−p)/dθ = −μ(1 − μ²)/4."""
    mu = torch.tanh(theta / 2)
    return (1 - mu * mu) * (mean_gradient / 2 - mu * (regularization / 4))


class LocalReparameterization(TorchFunctionMode):
    """Replaces linear functions of the owned weights, which hold E[w], by samples of their output."""

    def __init__(self, owned: Mapping[Tensor, tuple[str, float]], seed: int, draw: int) -> None:
        super().__init__()
        self._owned = {id(parameter): entry for parameter, entry in owned.items()}
        self._calls = dict.fromkeys(self._owned, 0)
        self._seed = seed
        self._draw = draw

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LINEAR_IN_WEIGHT:
            bound = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            if id(bound["weight"]) in self._owned:
                rest = args[3:]
                extra = {k: v for k, v in kwargs.items() if k not in ("input", "weight", "bias")}
                return self._sample_output(func, bound["input"], bound["weight"], bound.get("bias"), rest, extra)
        self._refuse_other_use(func, args, kwargs)
        return func(*args, **kwargs)

    def _sample_output(
        self, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rest: tuple[Any, ...], extra: dict[str, Any]
    ) -> Tensor:
        self._refuse_other_use(func, (x, bias), extra)
        name, floor = self._owned[id(weight)]
        mean: Tensor = func(x, weight, bias, *rest, **extra)
        variance: Tensor = func(x * x, 1 - weight * weight, None, *rest, **extra)
        call = self._calls[id(weight)]
        self._calls[id(weight)] += 1
        # Each rank has different examples, so it needs different noise.
        purpose = f"activation/{call}/{ranks.rank()}" if ranks.rank() else f"activation/{call}"
        key = kernels.noise_key(self._seed, purpose, name)
        noise = kernels.normal(key, self._draw, mean.numel(), mean.device).view(mean.shape).to(mean.dtype)
        # Rounding can push a sum of squares slightly below 0 where the weights are certain.
        return mean + torch.sqrt(variance.clamp(min=0) + floor) * noise

    def _refuse_other_use(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operation = getattr(func, "__name__", str(func))
        if operation in ("__get__", "__set__"):
            operation = func.__self__.__name__
        if operation in _HARMLESS or not torch.is_grad_enabled():
            return
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if id(item) in self._owned:
                    raise InvalidUse(
                        f"{self._owned[id(item)][0]!r} reaches {operation!r} during training; LR-net only trains "
                        "weights of linear and convolution functions. Exempt it, or use another method"
                    )
