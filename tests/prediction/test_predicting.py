"""Mode and mean prediction: right numbers by every path, and a model that is left as it was."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.binary import split_parameters
from bayesbinn.errors import InvalidInput
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction import ensemble
from bayesbinn.prediction.functional import PureNetwork
from bayesbinn.prediction.predicting import predict

ALL_AT_ONCE = 1 << 40
ONE_BY_ONE = 0


pytestmark = pytest.mark.usefixtures("one_thread")


def random_posterior(model: nn.Module, scale: float = 1.0, **settings: Any) -> BernoulliPosterior:
    generator = torch.Generator().manual_seed(1)
    return BernoulliPosterior(
        {name: scale * torch.randn(p.shape, generator=generator) for name, p in split_parameters(model)[0]}, **settings
    )


def mlp() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.Flatten(),
        nn.Linear(16, 3, bias=False),
    )


def sampled_logits(model: nn.Module, posterior: BernoulliPosterior, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    """The obvious way: write every sample into the model. [samples, batch, classes]"""
    model.eval()
    logits = []
    for index in range(samples):
        posterior.apply(model, posterior.draw(seed, index))
        logits.append(model(x).detach())
    return torch.stack(logits)


# ---- the numbers -----------------------------------------------------------------------------------


def test_the_mode_is_softmax_of_the_logits_at_sign_lambda() -> None:
    model, x = mlp(), torch.randn(5, 6)
    posterior = random_posterior(model)
    prediction = predict(model, posterior, x)
    posterior.apply(model)
    expected = torch.softmax(model.eval()(x), dim=-1)
    torch.testing.assert_close(prediction.probabilities, expected.detach())
    assert torch.equal(prediction.classes, expected.argmax(dim=1))
    assert prediction.samples == 0


def test_the_mean_averages_probabilities_and_not_logits() -> None:
    model, x = mlp(), torch.randn(5, 6)
    posterior = random_posterior(model)
    prediction = predict(model, posterior, x, samples=7, seed=3)
    logits = sampled_logits(model, posterior, x, 7, seed=3)
    torch.testing.assert_close(prediction.probabilities, torch.softmax(logits, dim=-1).mean(dim=0))
    wrong = torch.softmax(logits.mean(dim=0), dim=-1)
    assert (prediction.probabilities - wrong).abs().max() > 0.01


def test_many_samples_approach_the_exact_expectation_over_all_networks() -> None:
    natural = torch.tensor([[0.5, -0.3, 0.1], [-1.0, 0.2, 0.8]])
    posterior = BernoulliPosterior({"weight": natural})
    model, x = nn.Linear(3, 2, bias=False), torch.tensor([[0.7, -1.1, 0.4]])
    exact, p_plus = torch.zeros(2, dtype=torch.float64), torch.sigmoid(2 * natural.double())
    for signs in itertools.product([-1.0, 1.0], repeat=6):
        w = torch.tensor(signs, dtype=torch.float64).view(2, 3)
        chance = torch.where(w > 0, p_plus, 1 - p_plus).prod()
        exact += chance * torch.softmax(x[0].double() @ w.T, dim=0)
    count = 2000
    found = predict(model, posterior, x, samples=count).probabilities[0].double()
    # A probability's standard deviation is at most ½.
    assert (found - exact).abs().max() < 3 * 0.5 / count**0.5


def test_entropies_by_their_formulas() -> None:
    model, x = mlp(), torch.randn(9, 6)
    posterior = random_posterior(model)
    prediction = predict(model, posterior, x, samples=11)
    p = torch.softmax(sampled_logits(model, posterior, x, 11).double(), dim=-1)
    mean = p.mean(dim=0)
    total = -(mean * mean.log()).sum(dim=1)
    aleatoric = -(p * p.log()).sum(dim=2).mean(dim=0)
    torch.testing.assert_close(prediction.entropy.double(), total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(prediction.aleatoric.double(), aleatoric, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(prediction.mutual_information.double(), total - aleatoric, atol=1e-6, rtol=1e-6)
    assert prediction.mutual_information.max() > 0.01
    torch.testing.assert_close(prediction.aleatoric + prediction.mutual_information, prediction.entropy)


def test_the_mode_has_no_mutual_information() -> None:
    model = mlp()
    prediction = predict(model, random_posterior(model), torch.randn(4, 6))
    assert torch.equal(prediction.mutual_information, torch.zeros(4))
    assert torch.equal(prediction.aleatoric, prediction.entropy)


def test_certain_networks_that_disagree_have_only_mutual_information() -> None:
    model, posterior = nn.Linear(1, 1, bias=False), BernoulliPosterior({"weight": torch.zeros(1, 1)})
    prediction = predict(model, posterior, torch.tensor([[60.0]]), samples=400)
    assert prediction.aleatoric.item() < 1e-6
    assert prediction.mutual_information.item() == pytest.approx(0.6931, abs=0.01)


def test_equal_networks_never_have_negative_mutual_information() -> None:
    model = mlp()
    certain = random_posterior(model, scale=1e6)
    prediction = predict(model, certain, torch.randn(200, 6), samples=9)
    assert prediction.mutual_information.min() >= 0
    assert prediction.mutual_information.max() < 1e-6


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("samples", [0, 3])
def test_a_single_logit_is_bernoulli(flat: bool, samples: int) -> None:
    model = nn.Sequential(nn.Linear(3, 1, bias=False), *([nn.Flatten(0)] if flat else []))
    posterior, x = random_posterior(model), torch.randn(5, 3)
    prediction = predict(model, posterior, x, samples)
    weights = [posterior.draw(0, i) for i in range(samples)] or [posterior.mode()]
    expected = torch.stack([torch.sigmoid(x @ w["0.weight"].T) for w in weights]).mean(dim=0)
    assert prediction.probabilities.shape == (5, 2)
    torch.testing.assert_close(prediction.probabilities[:, 1:], expected)
    torch.testing.assert_close(prediction.probabilities.sum(dim=1), torch.ones(5))


def test_the_logit_scales_act_on_mode_and_samples_before_the_softmax() -> None:
    model, x = mlp(), torch.randn(5, 6)
    posterior = random_posterior(model, logit_scale=LogitScale(mode=3.0, mean=0.2))
    at_mode, at_mean = predict(model, posterior, x), predict(model, posterior, x, samples=4)
    logits = sampled_logits(model, posterior, x, 4)
    torch.testing.assert_close(at_mean.probabilities, torch.softmax(0.2 * logits, dim=-1).mean(dim=0))
    posterior.apply(model)
    torch.testing.assert_close(at_mode.probabilities, torch.softmax(3 * model.eval()(x).detach(), dim=-1))


def test_shifts_are_added_to_the_logits_and_may_change_the_class() -> None:
    model, x = mlp(), torch.randn(40, 6)
    classes = model.eval()(x).shape[1]
    shift = torch.linspace(-2, 2, classes)
    scale = LogitScale(3.0, 0.2, tuple(shift.tolist()), tuple((-shift).tolist()))
    posterior = random_posterior(model, logit_scale=scale)
    at_mode, at_mean = predict(model, posterior, x), predict(model, posterior, x, samples=4)
    logits = sampled_logits(model, posterior, x, 4)
    torch.testing.assert_close(at_mean.probabilities, torch.softmax(0.2 * (logits - shift), dim=-1).mean(dim=0))
    posterior.apply(model)
    expected = torch.softmax(3 * (model.eval()(x).detach() + shift), dim=-1)
    torch.testing.assert_close(at_mode.probabilities, expected)
    assert not torch.equal(at_mode.classes, predict(model, None, x).classes)
    given = predict(model, None, x, calibration=scale)
    torch.testing.assert_close(given.probabilities, expected)
    with pytest.raises(InvalidInput, match="shifts for 2 classes"):
        predict(model, None, x, calibration=LogitScale(mode_shift=(1.0, -1.0)))


def test_one_logit_has_two_shifts() -> None:
    model, x = nn.Linear(3, 1), torch.randn(5, 3)
    p = predict(model, None, x, calibration=LogitScale(2.0, mode_shift=(-0.5, 1.0))).probabilities[:, 1]
    torch.testing.assert_close(p, torch.sigmoid(2 * (model(x).detach().squeeze(1) + 1.5)))


@pytest.mark.parametrize("budget", [ONE_BY_ONE, ALL_AT_ONCE])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_regression_mean_and_unbiased_std(shape: tuple[int, ...], budget: int) -> None:
    head: nn.Module = nn.Flatten(0) if not shape else nn.Unflatten(1, shape)
    model = nn.Sequential(nn.Linear(4, max(1, torch.Size(shape).numel())), head)
    posterior, x = random_posterior(model), torch.randn(6, 4)
    prediction = predict(model, posterior, x, samples=6, task="regression", memory_budget=budget, batch_size=4)
    outputs = sampled_logits(model, posterior, x, 6)
    torch.testing.assert_close(prediction.mean, outputs.mean(dim=0))
    torch.testing.assert_close(prediction.std, outputs.std(dim=0))
    assert prediction.mean.shape == (6, *shape)


def test_regression_by_the_mode_and_by_one_sample() -> None:
    model, x = nn.Linear(4, 1), torch.randn(6, 4)
    posterior = random_posterior(model)
    assert torch.equal(predict(model, posterior, x, task="regression").std, torch.zeros(6, 1))
    assert predict(model, posterior, x, samples=1, task="regression").std.isnan().all()


def test_without_a_posterior_the_weights_are_used_as_they_are() -> None:
    model, x = mlp(), torch.randn(5, 6)
    probabilities = predict(model, None, x).probabilities
    torch.testing.assert_close(probabilities, torch.softmax(model.eval()(x).detach(), dim=-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, x = cnn().to(dtype), torch.randn(3, 2, 8, 8, dtype=dtype)
    prediction = predict(model, random_posterior(model), x, samples=3)
    assert prediction.probabilities.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(prediction.probabilities.sum(dim=1).double(), torch.ones(3, dtype=torch.float64))


# ---- paths -----------------------------------------------------------------------------------------


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many samples went through a vectorised pass, and how many passes ran one network."""
    calls: dict[str, list[int]] = {"stacked": [], "single": []}
    stacked, single = PureNetwork.stacked, PureNetwork.__call__

    def counted_stack(self: PureNetwork, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        calls["stacked"].append(len(next(iter(tensors.values()))))
        return stacked(self, tensors, x)

    def counted_single(self: PureNetwork, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        calls["single"].append(1)
        return single(self, tensors, x)

    monkeypatch.setattr(PureNetwork, "stacked", counted_stack)
    monkeypatch.setattr(PureNetwork, "__call__", counted_single)
    return calls


@pytest.mark.parametrize(("build", "shape"), [(mlp, (7, 6)), (cnn, (7, 2, 8, 8))])
def test_all_paths_agree(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = build(), torch.randn(shape)
    posterior = random_posterior(model)
    expected = torch.softmax(sampled_logits(model, posterior, x, 6), dim=-1).mean(dim=0)
    weights = 4 * sum(value.numel() for value in posterior.natural.values())
    for budget, batch_size in itertools.product([ONE_BY_ONE, 8 * weights, ALL_AT_ONCE, None], [1, 3, None]):
        found = predict(model, posterior, x, samples=6, batch_size=batch_size, memory_budget=budget)
        torch.testing.assert_close(found.probabilities, expected, atol=1e-6, rtol=1e-5)


def test_samples_run_at_once_where_memory_allows_and_in_groups_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(100, 50, bias=False), torch.randn(2, 100)
    posterior = random_posterior(model)
    per_sample = 2 * 4 * 5000 + 3 * 4 * 5000  # the largest tensor is the transposed weight
    for budget, groups in ((ALL_AT_ONCE, [9]), (4 * per_sample, [4, 4, 1]), (per_sample, []), (0, [])):
        calls = count_calls(monkeypatch)
        predict(model, posterior, x, samples=10, memory_budget=budget)
        assert calls["stacked"] == groups
        assert len(calls["single"]) == 10 - sum(groups)


def test_weights_are_drawn_once_per_sample_however_x_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    posterior, drawn = random_posterior(model), []
    draw = BernoulliPosterior.draw
    monkeypatch.setattr(BernoulliPosterior, "draw", lambda self, s, i: drawn.append(i) or draw(self, s, i))
    predict(model, posterior, torch.randn(10, 6), samples=4, batch_size=3)
    assert drawn == [0, 1, 2, 3]


class Branching(nn.Module):
    """A Python `if` on a value that depends on the weights: vmap cannot follow both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum().item() > 0 else -2 * y


class Histogram(Branching):
    """vmap can run `histc`, but only by a slow loop that warns."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y + torch.histc(y, bins=4, min=-5, max=5)


@pytest.mark.parametrize("build", [Branching, Histogram])
def test_models_that_vmap_cannot_run_are_run_one_by_one(
    build: type[Branching], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = build(), torch.randn(5, 6)
    posterior = random_posterior(model)
    calls = count_calls(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = predict(model, posterior, x, samples=5, memory_budget=ALL_AT_ONCE)
    assert (calls["stacked"], len(calls["single"])) == ([4], 5)
    expected = torch.softmax(sampled_logits(model, posterior, x, 5), dim=-1).mean(dim=0)
    torch.testing.assert_close(found.probabilities, expected)


def test_vmap_is_tried_once_and_not_again_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Branching()
    posterior, calls = random_posterior(model), count_calls(monkeypatch)
    predict(model, posterior, torch.randn(6, 6), samples=5, batch_size=2, memory_budget=ALL_AT_ONCE)
    assert (calls["stacked"], len(calls["single"])) == ([4], 5 * 3)


def test_the_seed_decides_and_nothing_else_does() -> None:
    model, x = mlp(), torch.randn(5, 6)
    posterior = random_posterior(model)
    first = predict(model, posterior, x, samples=4, seed=5).probabilities
    torch.manual_seed(123)
    assert torch.equal(first, predict(model, posterior, x, samples=4, seed=5).probabilities)
    assert not torch.allclose(first, predict(model, posterior, x, samples=4, seed=6).probabilities)


# ---- the model stays as it was -----------------------------------------------------------------------


class CountsCalls(nn.Module):
    """Writes to a buffer in eval mode, which BatchNorm does not do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("inside the model")


@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize("last", [CountsCalls, Fails])
def test_nothing_of_the_model_or_the_random_state_changes(samples: int, last: type[nn.Module]) -> None:
    model = nn.Sequential(mlp(), last())
    model[0][1].eval()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    grads = [parameter.grad for parameter in model.parameters()]
    values = [grad.clone() for grad in grads if grad is not None]
    versions = [parameter._version for parameter in model.parameters()]
    flags = [each.training for each in model.modules()]
    state = torch.get_rng_state()
    x = torch.randn(5, 6, requires_grad=True)
    torch.set_rng_state(state)

    if last is Fails:
        with pytest.raises(KeyError, match="inside the model"):
            predict(model, random_posterior(model), x, samples)
    else:
        assert not predict(model, random_posterior(model), x, samples).probabilities.requires_grad

    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == addresses
    assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(g, v) for g, v in zip(grads, values, strict=True) if g is not None)
    assert [parameter._version for parameter in model.parameters()] == versions
    assert [each.training for each in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, training=True)


@pytest.mark.parametrize("samples", [0, 5])
def test_a_model_that_is_random_in_eval_mode_is_refused(samples: int) -> None:
    model = nn.Sequential(nn.Linear(6, 4), AlwaysDrops())
    state = torch.get_rng_state()
    posterior = random_posterior(model)
    with pytest.raises(InvalidInput, match="draws random numbers in eval mode"):
        predict(model, posterior, torch.ones(3, 6), samples)
    assert torch.equal(torch.get_rng_state(), state)


def test_randomness_that_only_vmap_notices_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, whose generator is not the one that is compared."""
    monkeypatch.setattr(ensemble, "_without_randomness", lambda network, tensors, x: network(tensors, x))
    model = nn.Sequential(nn.Linear(6, 4), AlwaysDrops())
    with pytest.raises(InvalidInput, match="draws random numbers in eval mode"):
        predict(model, random_posterior(model), torch.ones(3, 6), samples=5)


# ---- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
@pytest.mark.parametrize("samples", [0, 3])
def test_wrappers_change_nothing(wrap: Callable[[nn.Module], nn.Module], samples: int) -> None:
    model, x = mlp(), torch.randn(5, 6)
    posterior, expected = random_posterior(wrap(model)), predict(model, random_posterior(model), x, samples)
    assert set(posterior.natural) == {"0.weight", "4.weight"}
    assert torch.equal(predict(wrap(model), posterior, x, samples).probabilities, expected.probabilities)


def test_a_compiled_part_of_a_model_keeps_working() -> None:
    inner, x = mlp(), torch.randn(5, 6)
    expected = predict(nn.Sequential(inner), random_posterior(nn.Sequential(inner)), x, 3)
    model = nn.Sequential(torch.compile(inner, backend="eager"))
    found = predict(model, random_posterior(model), x, samples=3)
    torch.testing.assert_close(found.probabilities, expected.probabilities)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x)))
        return y


@pytest.mark.parametrize("budget", [ONE_BY_ONE, ALL_AT_ONCE])
def test_a_shared_weight_is_sampled_once_for_both_places(budget: int) -> None:
    model, x = Tied(), torch.randn(3, 4)
    posterior = random_posterior(model)
    assert list(posterior.natural) == ["first.weight"]
    found = predict(model, posterior, x, samples=4, memory_budget=budget).probabilities
    torch.testing.assert_close(found, torch.softmax(sampled_logits(model, posterior, x, 4), dim=-1).mean(dim=0))


# ---- bad input -----------------------------------------------------------------------------------------


class ReturnsPair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": -1}, r"samples=-1: it must be 0 \(the mode\) or more"),
        ({"posterior": None, "samples": 2}, "samples=2 without a posterior"),
        ({"x": torch.empty(0, 6)}, r"x has shape \(0, 6\); at least one input"),
        ({"x": torch.tensor(1.0)}, r"x has shape \(\); at least one input"),
        ({"x": [[1.0] * 6]}, "x is a list; pass a torch tensor"),
        ({"task": "ranking"}, "task='ranking': it must be 'classification' or 'regression'"),
        ({"batch_size": 0}, "batch_size=0: it must be 1 or more"),
        ({"memory_budget": -5}, "memory_budget=-5"),
        (
            {"posterior": BernoulliPosterior({"9.weight": torch.zeros(8, 6)})},
            "a different model: .* no parameter '9.weight'",
        ),
        ({"posterior": BernoulliPosterior({"0.weight": torch.zeros(8, 5)})}, "a different model: '0.weight' has shape"),
        (
            {"model": nn.Sequential(mlp(), ReturnsPair()), "posterior": None},
            "returned a tuple; it must return one tensor",
        ),
        ({"model": nn.Flatten(0), "posterior": None}, r"returned shape \(12,\) for 2 inputs"),
        (
            {"model": nn.Unflatten(1, (2, 3)), "posterior": None},
            r"returned shape \(2, 2, 3\); classification needs \[batch, classes\]",
        ),
    ],
)
def test_bad_input_gets_one_line(settings: dict[str, Any], message: str) -> None:
    model = mlp()
    arguments = {"model": model, "posterior": random_posterior(model), "x": torch.ones(2, 6), **settings}
    with pytest.raises(InvalidInput, match=message) as caught:
        predict(**arguments)
    assert "\n" not in str(caught.value)


def test_asking_one_task_for_the_results_of_the_other() -> None:
    model, x = mlp(), torch.ones(2, 6)
    regression = predict(model, random_posterior(model), x, task="regression")
    for name in ("probabilities", "classes", "entropy", "aleatoric", "mutual_information"):
        with pytest.raises(InvalidInput, match=r"a regression prediction has no .*, only mean, std"):
            getattr(regression, name)
    with pytest.raises(InvalidInput, match="a classification prediction has no 'std'"):
        _ = predict(model, random_posterior(model), x).std


def test_a_prediction_cannot_be_changed() -> None:
    prediction = predict(mlp(), None, torch.ones(2, 6))
    with pytest.raises(AttributeError):
        prediction.samples = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        prediction.tensors["entropy"] = torch.zeros(2)  # type: ignore[index]
    assert (len(prediction), repr(prediction)) == (2, "Prediction(classification of 2 inputs, mode)")
