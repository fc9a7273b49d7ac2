"""The sign that is never 0, and which parameters are binary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from bayesbinn.binary import Rule, canonical_name, check_binary, check_owners, sign, split_parameters
from bayesbinn.errors import InvalidInput


def names(model: nn.Module, *args: object, **settings: object) -> tuple[list[str], list[str]]:
    binary, real = split_parameters(model, *args, **settings)  # type: ignore[arg-type]
    return [name for name, _ in binary], [name for name, _ in real]


def mixed() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


class TiedLanguageModel(nn.Module):
    """An output layer that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight


class TiedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight


# ---- sign --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sign_is_never_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([-torch.inf, -1e-7, -0.0, 0.0, 1e-7, torch.inf], dtype=dtype)
    # The smallest float16 number is 6e-8, so 1e-7 is not rounded to 0 there either.
    assert sign(x).tolist() == [-1, -1, 1, 1, 1, 1]
    assert sign(x).dtype is dtype


# ---- the split -----------------------------------------------------------------------------------------


def test_by_default_weights_of_linear_and_convolution_layers_are_binary() -> None:
    assert names(mixed()) == (["0.weight", "3.weight"], ["0.bias", "1.weight", "1.bias", "3.bias"])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(2, 2, bias=False),
        nn.Conv1d(2, 2, 1, bias=False),
        nn.Conv2d(2, 2, 1, bias=False),
        nn.Conv3d(2, 2, 1, bias=False),
        nn.ConvTranspose2d(2, 2, 1, bias=False),
    ],
)
def test_every_kind_of_layer_with_a_weight_matrix(layer: nn.Module) -> None:
    assert names(layer) == (["weight"], [])
    assert names(nn.Sequential(layer)) == (["0.weight"], [])


@pytest.mark.parametrize("layer", [nn.Embedding(3, 2), nn.LayerNorm(2), nn.BatchNorm1d(2), nn.PReLU()])
def test_other_layers_stay_real(layer: nn.Module) -> None:
    assert names(layer)[0] == []


def test_biases_can_be_included() -> None:
    binary, real = names(mixed(), biases=True)
    assert binary == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert real == ["1.weight", "1.bias"]


def test_a_predicate_overrides_the_rule() -> None:
    binary, real = names(mixed(), lambda name, parameter: parameter.ndim == 4)
    assert binary == ["0.weight"]
    assert len(real) == 5


def test_names_override_the_rule() -> None:
    assert names(mixed(), ["3.weight", "3.bias"])[0] == ["3.weight", "3.bias"]
    assert names(mixed(), {"module.3.weight"})[0] == ["3.weight"]
    assert names(mixed(), [])[0] == []


def test_the_parameters_are_the_models_own() -> None:
    model = mixed()
    binary, real = split_parameters(model)
    assert {id(p) for _, p in binary + real} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_do_not_change_names(wrap: type[nn.DataParallel]) -> None:
    assert names(wrap(mixed())) == names(mixed())


def test_a_compiled_part_does_not_change_names() -> None:
    model = nn.Sequential(torch.compile(mixed(), backend="eager"))
    assert names(model)[0] == ["0.0.weight", "0.3.weight"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("module.layers.0.weight", "layers.0.weight"),
        ("_orig_mod.module.0.weight", "0.weight"),
        ("module._orig_mod.0.weight", "0.weight"),
        ("blocks.1._orig_mod.weight", "blocks.1.weight"),
        ("encoder.module.weight", "encoder.module.weight"),  # a user's own attribute
    ],
)
def test_canonical_names(name: str, plain: str) -> None:
    assert canonical_name(name) == plain


def test_a_tied_weight_appears_once() -> None:
    assert names(TiedLinear()) == (["first.weight"], ["first.bias", "second.bias"])
    assert names(TiedLanguageModel(), lambda name, parameter: True)[0] == ["embedding.weight"]


@pytest.mark.parametrize("binary", [None, ["output.weight"], ["embedding.weight"]])
def test_a_weight_that_is_binary_and_real_is_rejected_naming_both_places(binary: list[str] | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_parameters(TiedLanguageModel(), binary)
    message = str(caught.value)
    assert "'embedding.weight' and 'output.weight' are one shared parameter" in message
    wanted = binary[0] if binary else "output.weight"
    assert f"makes '{wanted}' binary and the other real" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (mixed(), {"binary": ["3.wieght"]}, r"the model has no parameter '3.wieght'. Did you mean '3.weight'\?"),
        (mixed(), {"binary": ["head"]}, r"the model has no parameter 'head'.$"),
        (mixed(), {"binary": "3.weight"}, "binary='3.weight' is one string; pass a list of names"),
        (mixed(), {"binary": ["3.weight"], "biases": True}, "include the biases in `binary` instead"),
        (nn.ReLU(), {}, "ReLU has no parameters to split"),
    ],
)
def test_a_bad_rule_gets_one_line(model: nn.Module, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split_parameters(model, **settings)  # type: ignore[arg-type]


# ---- check_binary --------------------------------------------------------------------------------------


def test_check_binary_counts_weights() -> None:
    model = mixed()
    for _, parameter in split_parameters(model)[0]:
        parameter.data = sign(parameter.data)
    assert check_binary(model) == 18 + 24
    assert check_binary(model, ["3.weight"]) == 24
    assert check_binary(nn.DataParallel(model)) == 42


@pytest.mark.parametrize("value", [0.0, 0.999, -1.0001, torch.inf, torch.nan])
def test_check_binary_finds_a_single_wrong_weight(value: float) -> None:
    model = mixed()
    for _, parameter in split_parameters(model)[0]:
        parameter.data = sign(parameter.data)
    model[3].weight.data[1, 2] = value
    with pytest.raises(InvalidInput, match=f"'3.weight' is not binary: 1 of 24 values .*for example {value:g}"):
        check_binary(model)


def test_check_binary_checks_biases_only_on_request() -> None:
    model = nn.Linear(2, 1)
    model.weight.data = torch.ones(1, 2)
    assert check_binary(model) == 2
    with pytest.raises(InvalidInput, match="'bias' is not binary"):
        check_binary(model, biases=True)


def binary_layer() -> nn.Linear:
    layer = nn.Linear(4, 3, bias=False)
    layer.weight.data = sign(layer.weight.data)
    return layer


class SignOf(nn.Module):
    """A parametrization whose result is binary."""

    def forward(self, weight: Tensor) -> Tensor:
        return sign(weight)


def pruned(layer: nn.Linear) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", amount=0.5)


WEIGHT_NORMS = [
    weight_norm,
    pytest.param(torch.nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
]


@pytest.mark.parametrize("normed", [*WEIGHT_NORMS, spectral_norm, torch.nn.utils.spectral_norm])
@pytest.mark.parametrize("everything", [False, True])
def test_check_binary_checks_the_weight_that_a_normed_layer_uses(
    normed: Callable[[nn.Module], nn.Module], everything: bool
) -> None:
    model = nn.Sequential(normed(binary_layer()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(sign(parameter))
    rule = (lambda name, parameter: True) if everything else None
    with pytest.raises(InvalidInput, match=r"'0\.weight' is not binary: 12 of 12"):
        check_binary(model, rule)


@pytest.mark.parametrize("everything", [False, True])
def test_check_binary_sees_the_zeros_of_a_pruned_layer(everything: bool) -> None:
    model = nn.Sequential(pruned(binary_layer()))
    assert sorted(set(model[0].weight.flatten().tolist())) == [-1, 0, 1]
    rule = (lambda name, parameter: True) if everything else None
    with pytest.raises(InvalidInput, match=r"'0\.weight' is not binary: 6 of 12 values .*for example -?0"):
        check_binary(model, rule)


def test_check_binary_computes_what_the_next_forward_pass_will_use() -> None:
    """The tensor that pruning leaves in the layer comes from the last forward pass."""
    layer = binary_layer()
    prune.identity(layer, "weight")
    assert check_binary(layer) == 12
    layer.weight_mask.zero_()  # type: ignore[union-attr, operator]
    assert bool((layer.weight.abs() == 1).all())
    with pytest.raises(InvalidInput, match="'weight' is not binary: 12 of 12"):
        check_binary(layer)


def test_check_binary_accepts_what_is_computed_to_be_binary() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), binary_layer())
    parametrize.register_parametrization(model[0], "weight", SignOf())
    assert check_binary(model) == 24


def test_check_binary_cannot_tell_what_an_unknown_hook_writes() -> None:
    layer = binary_layer()
    weight = layer.weight.detach().clone()
    del layer.weight
    layer.weight = weight  # type: ignore[assignment]
    layer.register_parameter("latent", nn.Parameter(weight.clone()))
    assert check_binary(layer) == 12
    layer.register_forward_pre_hook(lambda module, inputs: setattr(module, "weight", module.latent / 3))
    with pytest.raises(InvalidInput, match="'weight' is not a parameter of its layer, and a forward hook may write it"):
        check_binary(layer)


def test_a_model_without_binary_layers_cannot_be_checked() -> None:
    with pytest.raises(InvalidInput, match="LSTM has no linear or convolution layer"):
        check_binary(nn.LSTM(2, 2))


@pytest.mark.parametrize("rule", [[], (), lambda name, parameter: False])
def test_a_rule_that_selects_nothing_cannot_be_checked(rule: Rule) -> None:
    for model in (binary_layer(), nn.Linear(4, 3)):
        with pytest.raises(
            InvalidInput, match=r"`binary` selects no parameter of Linear, so there is nothing to check"
        ):
            check_binary(model, rule)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("inner", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm, prune.identity])
@pytest.mark.parametrize("everything", [False, True])
def test_check_binary_rejects_a_hook_on_the_result_of_a_hook(
    inner: Callable[[nn.Module, str], nn.Module], everything: bool
) -> None:
    """The outer hook was registered first, so its input comes from the last forward pass."""
    layer = binary_layer()
    prune.identity(layer, "weight")
    inner(layer, "weight_orig")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(3)
    rule = (lambda name, parameter: True) if everything else None
    with pytest.raises(InvalidInput, match=r"'weight' of a Linear is computed from 'weight_orig', which is itself"):
        check_binary(nn.Sequential(layer), rule)


def test_units_of_the_complex_plane_and_holes_of_a_sparse_weight_are_not_binary() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[1j, -1 + 0j]]))
    with pytest.raises(InvalidInput, match="1 of 2 values"):
        check_binary(layer)
    layer.weight = nn.Parameter(torch.tensor([[1.0, 0.0]]).to_sparse())
    with pytest.raises(InvalidInput, match="1 of 2 values"):
        check_binary(layer)


def test_a_shared_weight_is_counted_once() -> None:
    model = TiedLinear()
    model.first.weight.data = sign(model.first.weight.data)
    assert check_binary(model) == 16


# ---- check_owners --------------------------------------------------------------------------------------


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)


def test_every_parameter_needs_one_owner() -> None:
    model = nn.Linear(2, 2)
    check_owners(model, sgd([model.weight]), torch.optim.Adam([model.bias]))
    with pytest.raises(InvalidInput, match="no optimizer trains 'bias'"):
        check_owners(model, sgd([model.weight]))
    with pytest.raises(InvalidInput, match="'weight' is trained by SGD and Adam; give it to one"):
        check_owners(model, sgd([model.weight]), torch.optim.Adam([model.weight, model.bias]))


def test_a_frozen_parameter_needs_no_owner() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    check_owners(model, sgd([model.weight]))


def test_a_tied_weight_has_one_owner() -> None:
    model = TiedLinear()
    check_owners(model, sgd([model.first.weight, model.first.bias, model.second.bias]))
