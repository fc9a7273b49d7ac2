"""What "binary" means: the sign that is never 0, and which parameters of a model carry it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.weak import WeakTensorKeyDictionary

from bayesbinn.errors import InvalidInput, nearest

NamedParameters = list[tuple[str, nn.Parameter]]
Rule = Callable[[str, nn.Parameter], bool] | Collection[str]

# One-dimensional parameters that the user chose to be binary. Methods see only the tensors, not the model.
_ON_PURPOSE = WeakTensorKeyDictionary()

BINARY_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.modules.conv._ConvNd)


def sign(x: Tensor) -> Tensor:
    """``+1`` where ``x >= 0`` and ``-1`` elsewhere: never 0, not even for ``-0.0``.

    >>> sign(torch.tensor([-2.0, -0.0, 0.0, 3.0]))
    tensor([-1.,  1.,  1.,  1.])
    """
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def canonical_name(name: str) -> str:
    """A parameter's name without the parts that wrappers add.

    ``DistributedDataParallel`` and ``DataParallel`` put ``module.`` in front, ``torch.compile``
    inserts ``_orig_mod.``.

    >>> canonical_name("module._orig_mod.layers.0.weight")
    'layers.0.weight'
    """
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def split_parameters(
    model: nn.Module, binary: Rule | None = None, *, biases: bool = False
) -> tuple[NamedParameters, NamedParameters]:
    """Split a model's parameters into binary and real ones, as lists of ``(name, parameter)``.

    By default the weights of linear and convolution layers are binary and everything else
    (biases, normalization, embeddings) stays real.

    Args:
        model: any module.
        binary: overrides the rule: a predicate ``(name, parameter) -> bool``, or the names of
            the binary parameters.
        biases: also make the biases of linear and convolution layers binary, as the paper's
            synthetic networks do. Only with the default rule.

    A parameter shared by two layers appears once. It is an error if it would be binary in one
    place and real in the other.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    >>> binary, real = split_parameters(model)
    >>> [name for name, _ in binary], [name for name, _ in real]
    (['0.weight'], ['0.bias', '1.weight', '1.bias'])
    """
    if binary is not None and biases:
        raise InvalidInput("biases=True extends the default rule; include the biases in `binary` instead")
    places = [(canonical_name(n), p) for n, p in model.named_parameters(remove_duplicate=False)]
    if not places:
        raise InvalidInput(f"{type(model).__name__} has no parameters to split")
    is_binary = _as_predicate(model, binary, biases, [name for name, _ in places])

    chosen: dict[nn.Parameter, tuple[str, bool]] = {}
    for name, parameter in places:
        wanted = is_binary(name, parameter)
        first, first_wanted = chosen.setdefault(parameter, (name, wanted))
        if wanted != first_wanted:
            raise InvalidInput(
                f"{first!r} and {name!r} are one shared parameter, but the rule makes "
                f"{first if first_wanted else name!r} binary and the other real; "
                "name both or neither in `binary`"
            )
    split: tuple[NamedParameters, NamedParameters] = ([], [])
    for parameter, (name, wanted) in chosen.items():
        split[0 if wanted else 1].append((name, parameter))
        _ON_PURPOSE.pop(parameter, None)
        if wanted and parameter.dim() <= 1:
            _ON_PURPOSE[parameter] = True
    return split


def is_binary_on_purpose(parameter: Tensor) -> bool:
    """Whether the last call of `split_parameters` on this bias or gain was asked to make it binary."""
    return parameter in _ON_PURPOSE


def _as_predicate(
    model: nn.Module, binary: Rule | None, biases: bool, names: list[str]
) -> Callable[[str, nn.Parameter], bool]:
    if binary is None:
        wanted = {"weight", "bias"} if biases else {"weight"}
        by_rule = {
            _place(prefix, kind)
            for prefix, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, BINARY_LAYERS)
            for kind in wanted
        }
        return lambda name, _: name in by_rule
    if callable(binary):
        return binary
    if isinstance(binary, str):
        raise InvalidInput(f"binary={binary!r} is one string; pass a list of names or a predicate")
    requested = {canonical_name(name) for name in binary}
    for name in sorted(requested - set(names)):
        raise InvalidInput(f"the model has no parameter {name!r}.{nearest(name, names)}")
    return lambda name, _: name in requested


def check_binary(model: nn.Module, binary: Rule | None = None, *, biases: bool = False) -> int:
    """Check that a model's binary weights are exactly -1 or +1; return the number of weights checked.

    Takes the same rule as `split_parameters`. What counts is the weight that a layer uses: if a parametrization, weight
    norm, spectral norm or pruning computes it from other parameters, the result is checked. A model that cannot be
    checked is rejected: one without a linear or convolution layer, one with a rule that selects no parameter, or one
    with a hook that works on the result of another hook.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> check_binary(layer)
    4
    """
    count = 0
    for name, weight in _weights_in_use(model, binary, biases).items():
        dense = weight.detach().to_dense()
        wrong = (dense != 1) & (dense != -1)
        if bool(wrong.any()):
            example = dense[wrong][0].item()
            raise InvalidInput(
                f"{name!r} is not binary: {int(wrong.sum())} of {dense.numel()} values are not "
                f"-1 or +1 (for example {example:g}); train it with a binary method or exempt it"
            )
        count += dense.numel()
    return count


def _weights_in_use(model: nn.Module, binary: Rule | None, biases: bool) -> dict[str, Tensor]:
    """The binary weights by name, as the layers use them; a shared one appears once."""
    chosen = split_parameters(model, binary, biases=biases)[0]
    if binary is not None and not chosen:
        raise InvalidInput(
            f"`binary` selects no parameter of {type(model).__name__}, so there is nothing to check; name at least one"
        )
    computed: dict[str, Tensor] = {}
    computed_from: dict[nn.Parameter, str] = {}
    layers: dict[str, Tensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for kind, (weight, sources) in _computed_tensors(module).items():
            name = _place(prefix, kind)
            computed[name] = weight
            computed_from |= dict.fromkeys(sources, name)
        if isinstance(module, BINARY_LAYERS):
            for kind in ("weight", "bias") if biases else ("weight",):
                if isinstance(used := getattr(module, kind, None), Tensor):
                    layers[_place(prefix, kind)] = used
                    _refuse_unknown_hooks(_place(prefix, kind), module, kind, computed)
    if binary is not None:
        names = [(computed_from.get(parameter, name), parameter) for name, parameter in chosen]
        return {name: computed.get(name, parameter) for name, parameter in names}
    if not layers:
        raise InvalidInput(
            f"{type(model).__name__} has no linear or convolution layer, so there is nothing to check; "
            "name the binary parameters in `binary`"
        )
    shared = {id(weight): name for name, weight in reversed(layers.items())}
    return {name: computed.get(name, weight) for name, weight in layers.items() if shared[id(weight)] == name}


def _place(prefix: str, kind: str) -> str:
    return canonical_name(f"{prefix}.{kind}" if prefix else kind)


@torch.no_grad()
def _computed_tensors(module: nn.Module) -> dict[str, tuple[Tensor, list[nn.Parameter]]]:
    """Tensors that a module computes before use, and the parameters it computes them from."""
    found: dict[str, tuple[Tensor, list[nn.Parameter]]] = {}
    if parametrize.is_parametrized(module):
        for kind, steps in module.parametrizations.items():  # type: ignore[operator, union-attr]
            found[kind] = getattr(module, kind), list(steps.parameters())
    # Hooks leave the tensor of the last forward pass in the module; compute what the next one will use.
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            found[hook.name] = hook.compute_weight(module), _parameters_named(module, hook.name, "_g", "_v")
        elif isinstance(hook, SpectralNorm):
            weight = hook.compute_weight(module, do_power_iteration=False)
            found[hook.name] = weight, _parameters_named(module, hook.name, "_orig")
        elif isinstance(hook, BasePruningMethod):
            kind = hook._tensor_name
            found[kind] = hook.apply_mask(module), _parameters_named(module, kind, "_orig")
    return found


def _parameters_named(module: nn.Module, kind: str, *endings: str) -> list[nn.Parameter]:
    names = [kind + ending for ending in endings]
    for name in names:
        if name not in module._parameters:
            # The two hooks run in order of registration: the outer one may use what the inner one left there in the
            # previous forward pass.
            raise InvalidInput(
                f"{kind!r} of a {type(module).__name__} is computed from {name!r}, which is itself computed and "
                "not a parameter, so it cannot be checked; remove one of the two (pruning, weight norm, spectral norm)"
            )
    return [getattr(module, name) for name in names]


def _refuse_unknown_hooks(name: str, module: nn.Module, kind: str, computed: dict[str, Tensor]) -> None:
    """A weight that is not a parameter of its layer may be written by a hook that only a forward pass would run."""
    if kind not in module._parameters and name not in computed and module._forward_pre_hooks:
        raise InvalidInput(
            f"{name!r} is not a parameter of its layer, and a forward hook may write it, so it cannot be "
            "checked; remove the hook and make the weight a parameter"
        )


def check_owners(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Raise if two optimizers train the same parameter of `model`, or if none trains a trainable one.

    >>> model = nn.Linear(2, 2)
    >>> check_owners(model, torch.optim.SGD([model.weight], lr=0.1))
    Traceback (most recent call last):
    bayesbinn.errors.InvalidInput: no optimizer trains 'bias'; ...
    """
    owners: dict[Tensor, list[str]] = {}
    for optimizer in optimizers:
        for parameter in _parameters_of(optimizer):
            owners.setdefault(parameter, []).append(type(optimizer).__name__)
    for name, parameter in model.named_parameters():
        mine = owners.get(parameter, [])
        if len(mine) > 1:
            raise InvalidInput(f"{name!r} is trained by {' and '.join(mine)}; give it to one optimizer")
        if not mine and parameter.requires_grad:
            raise InvalidInput(f"no optimizer trains {name!r}; pass it to one, or freeze it with requires_grad_(False)")


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
