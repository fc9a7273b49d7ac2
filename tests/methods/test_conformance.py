"""Every registered method is driven through one contract."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.errors import InvalidInput, InvalidUse, NonFiniteGradient
from bayesbinn.kernels import native
from bayesbinn.methods import METHODS, BinaryOptimizer

# A few settings per method that make a small network learn within a few dozen steps. "bayesbinn" is
# tested at the paper's limit, at a relaxed temperature with momentum, and with a bounded memory.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bayesbinn": ("bayesbinn", {"lr": 1e-2, "temperature": 1e-10}),
    "bayesbinn-memory": ("bayesbinn", {"lr": 0.05, "temperature": 1.0, "initial_strength": 0.5, "memory": 3e3}),
    "bayesbinn-relaxed": ("bayesbinn", {"lr": 0.05, "temperature": 0.5, "initial_strength": 0.5, "momentum": 0.5}),
    "ste": ("ste", {"lr": 1e-2}),
    "bop": ("bop", {"lr": 1e-2, "threshold": 1e-6}),
    "pmf": ("pmf", {"lr": 1e-2, "beta_growth": 1.2, "beta_interval": 10}),
    "lrnet": ("lrnet", {"lr": 5e-2}),
    "float": ("float", {"lr": 1e-2}),
    "ewc": ("ewc", {"lr": 1e-2}),
    "bimu": ("bimu", {"max_lr": 0.05}),
}
BINARY = [case for case, (method, _) in CASES.items() if METHODS[method].optimizer.binary]
RELAXING = [case for case, (method, _) in CASES.items() if METHODS[method].optimizer.relaxes]


def test_every_registered_method_is_driven() -> None:
    assert {method for method, _ in CASES.values()} == set(METHODS)


every_method = pytest.mark.parametrize("case", CASES)
every_binary_method = pytest.mark.parametrize("case", BINARY)


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two binary layers and, because binary weights need it, a fixed scale between them."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.to(dtype)


def batch(index: int = 0, size: int = 32, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Inputs whose class is the largest of three fixed linear functions."""
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(100 + index))
    teacher = torch.randn(8, 3, generator=torch.Generator().manual_seed(7)).sign()
    return x.to(dtype), (x @ teacher).argmax(1)


def make(case: str, model: nn.Module, **changes: Any) -> BinaryOptimizer:
    method, settings = CASES[case]
    binary, _ = bb.split_parameters(model)
    return METHODS[method].create(binary, train_set_size=320, seed=11, **{**settings, **changes})


def loss_of(model: nn.Module, index: int = 0) -> Tensor:
    x, y = batch(index, dtype=next(model.parameters()).dtype)
    return F.cross_entropy(model(x).float() / 4, y)


def train(model: nn.Module, optimizer: BinaryOptimizer, steps: int, first: int = 0) -> None:
    for index in range(first, first + steps):
        with optimizer.sampled_params(train=True):
            loss_of(model, index % 10).backward()
        optimizer.step()


def tensors(optimizer: BinaryOptimizer) -> list[Tensor]:
    return [
        value.clone() for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ] + [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


# ---- learning ------------------------------------------------------------------------------


@every_method
def test_loss_falls(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    before = sum(loss_of(model, i).item() for i in range(10))
    train(model, optimizer, 150)
    after = sum(loss_of(model, i).item() for i in range(10))
    assert after < 0.6 * before


@every_method
def test_a_scheduler_sets_the_learning_rate(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0 if epoch else 1.0)
    train(model, optimizer, 3)
    scheduler.step()
    before = [p.detach().clone() for p in model.parameters()]
    # At rate 0, nothing that determines a weight changes. (PMF's β grows, but the sign does not depend on it.)
    train(model, optimizer, 3)
    assert_same(before, [p.detach().clone() for p in model.parameters()])


@every_method
def test_a_group_has_its_own_learning_rate(case: str) -> None:
    model = network()
    method, settings = CASES[case]
    groups = [{"params": [("0.weight", model[0].weight)], "lr": 0.0}, {"params": [("2.weight", model[2].weight)]}]
    optimizer = METHODS[method].create(groups, train_set_size=320, seed=11, **settings)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 30)
    assert torch.equal(before[0], model[0].weight)
    assert not torch.equal(before[1], model[2].weight)


# ---- what the model holds --------------------------------------------------------------------


@every_binary_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_are_exactly_binary_outside_the_context(case: str, dtype: torch.dtype) -> None:
    model = network(dtype)
    optimizer = make(case, model)
    assert bb.check_binary(model) == 8 * 16 + 16 * 3
    for index in range(3):
        with optimizer.sampled_params(train=True):
            loss_of(model, index).backward()
        bb.check_binary(model)
        optimizer.step()
        bb.check_binary(model)
        with optimizer.sampled_params(train=False):
            bb.check_binary(model)
        bb.check_binary(model)


@every_binary_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.5, 0.0, -3.0, float("nan")])
def test_a_step_ends_in_binary_weights_whatever_was_written_into_them(
    case: str, dtype: torch.dtype, factor: float
) -> None:
    model = network(dtype)
    optimizer = make(case, model)
    train(model, optimizer, 2)
    for parameter in model.parameters():
        parameter.data.mul_(factor)  # unseen by autograd's version counter
    with optimizer.sampled_params(train=True):
        loss_of(model).backward()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    bb.check_binary(model)

    for parameter in model.parameters():
        parameter.data.mul_(factor)
    with optimizer.sampled_params(train=True):
        model[2](torch.ones(4, 16, dtype=dtype)).square().sum().backward()
    model[2].weight.grad = torch.ones_like(model[2].weight)
    assert model[0].weight.grad is None
    optimizer.step()
    bb.check_binary(model)


@pytest.mark.parametrize("case", ["bayesbinn-relaxed", "pmf", "lrnet", "bimu"])
def test_training_weights_are_relaxed(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    with optimizer.sampled_params(train=True):
        with pytest.raises(InvalidInput, match="not binary"):
            bb.check_binary(model)
        assert all(bool((p.detach().abs() <= 1).all()) for p in model.parameters())


@every_method
@pytest.mark.parametrize("train_mode", [True, False])
def test_an_exception_restores_the_weights_and_drops_the_sample(case: str, train_mode: bool) -> None:
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    train(model, optimizer, 2)
    train(peer, reference, 2)
    before = tensors(optimizer)

    def interrupted() -> None:
        with optimizer.sampled_params(train=train_mode):
            loss_of(model).backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert_same(before, tensors(optimizer))
    if not train_mode:
        optimizer.zero_grad()
    train(model, optimizer, 2, first=2)
    train(peer, reference, 2, first=2)
    assert_same(tensors(reference), tensors(optimizer))


@every_method
def test_a_late_backward_raises(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    with optimizer.sampled_params(train=True):
        loss = loss_of(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_method
def test_evaluating_never_changes_training(case: str) -> None:
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    train(peer, reference, 6)
    for index in range(6):
        with optimizer.sampled_params(train=True):
            loss_of(model, index).backward()
        with optimizer.sampled_params(train=False), torch.no_grad():
            model(batch()[0])
        optimizer.step()
        with optimizer.sampled_params(train=False), torch.no_grad():
            model(batch()[0])
    assert_same(tensors(reference), tensors(optimizer))


@pytest.mark.parametrize("case", ["bayesbinn-relaxed", "lrnet", "pmf", "bimu"])
def test_evaluation_samples_differ_from_each_other(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    draws = []
    for _ in range(2):
        with optimizer.sampled_params(train=False):
            draws.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*draws)


# ---- stepping --------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("samples", [1, 3])
def test_context_and_closure_agree(case: str, samples: int) -> None:
    model, peer = network(), network()
    optimizer, other = make(case, model, mc_samples=samples), make(case, peer)
    for index in range(4):

        def closure(index: int = index) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, index)
            loss.backward()
            return loss

        losses = []
        for _ in range(samples):
            with other.sampled_params(train=True):
                loss = loss_of(peer, index)
                loss.backward()
                losses.append(loss.detach())
        other.step()
        mean = optimizer.step(closure)
        torch.testing.assert_close(mean, sum(losses) / samples)
    assert_same(tensors(other), tensors(optimizer))


@pytest.mark.parametrize("case", [case for case in CASES if case != "lrnet"])
def test_micro_batches_add_up(case: str) -> None:
    """In float64: in float32 the order of a sum decides whether a gradient is 0, and a tiny one moves the state."""
    model, peer = network(torch.float64), network(torch.float64)
    optimizer, reference = make(case, model), make(case, peer)
    x, y = batch(dtype=torch.float64)
    with reference.sampled_params(train=True):
        F.cross_entropy(peer(x), y).backward()
    with optimizer.sampled_params(train=True):
        for part in range(4):
            rows = slice(8 * part, 8 * part + 8)
            (F.cross_entropy(model(x[rows]), y[rows]) / 4).backward()
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-7)
    reference.step()
    optimizer.step()
    for a, b in zip(tensors(reference), tensors(optimizer), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def after_one_step(case: str, *draws: int, **changes: Any) -> list[dict[str, Any]]:
    """The state after a step from the samples with these numbers, each on the batch with the same number."""
    model = network()
    optimizer = make(case, model, **changes)
    for draw in range(draws[-1] + 1):
        with optimizer.sampled_params(train=True):
            loss_of(model, draw).backward()
        if draw not in draws:
            optimizer.zero_grad()  # the sample was drawn, and is dropped
    optimizer.step()
    return list(optimizer.state.values())


LINEAR = {"bayesbinn": "natural", "bimu": "natural", "bop": "average"}
"""The state that changes in proportion to the gradient; by default Adam's first moment."""


@every_method
def test_samples_are_averaged(case: str) -> None:
    """Two samples on two batches change the state by the mean of their separate changes."""
    key = LINEAR.get(CASES[case][0], "first")
    changes = {"gain": 0.1} if case == "bimu" else {}  # a step so short that its curvature does not matter
    start = make(case, network(), **changes).state.values()
    states = (after_one_step(case, *draws, **changes) for draws in ((0,), (1,), (0, 1)))
    for before, *after in zip(start, *states, strict=True):
        one, other, both = (state[key] - before.get(key, 0) for state in after)
        assert (one - other).norm() > 0.1 * one.norm()
        torch.testing.assert_close(both, (one + other) / 2, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


@every_method
def test_clipping_between_context_and_step_acts_on_the_raw_gradient(case: str) -> None:
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    with optimizer.sampled_params(train=True):
        loss_of(model).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    with reference.sampled_params(train=True):
        loss_of(peer).backward()
        gradients = torch.cat([p.grad.flatten() for p in peer.parameters()])
    torch.testing.assert_close(norm, gradients.norm())
    with torch.no_grad():
        for p in peer.parameters():
            p.grad.mul_(1e-3 / (norm + 1e-6))
    reference.step()
    for a, b in zip(tensors(reference), tensors(optimizer), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@every_method
def test_zero_grad_outside_discards_samples(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    with optimizer.sampled_params(train=True):
        loss_of(model).backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(InvalidUse, match="without a sample"):
        optimizer.step()


@every_method
def test_misuse_is_refused(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    with pytest.raises(InvalidUse, match="without a sample"):
        optimizer.step()
    with optimizer.sampled_params(train=True):
        with pytest.raises(InvalidUse, match="inside"):
            optimizer.step()
        with pytest.raises(InvalidUse, match="inside another"), optimizer.sampled_params(train=False):
            pass
        loss_of(model).backward()
    with pytest.raises(InvalidUse, match="one or the other"):
        optimizer.step(lambda: loss_of(model))
    with pytest.raises(InvalidUse, match="without a sample"):
        optimizer.step()


@every_method
def test_a_closure_that_does_nothing_uses_the_collected_samples(case: str) -> None:
    """Lightning always passes one."""
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    for each, net in ((optimizer, model), (reference, peer)):
        with each.sampled_params(train=True):
            loss_of(net).backward()
    assert optimizer.step(lambda: None) is None
    reference.step()
    assert_same(tensors(reference), tensors(optimizer))


@every_method
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_nonfinite_gradient_raises_and_changes_nothing(case: str, bad: float, samples: int) -> None:
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    before, counters = tensors(optimizer), optimizer.state_dict()["bayesbinn"]["steps"]
    for _ in range(samples):
        with optimizer.sampled_params(train=True):
            loss_of(model).backward()
        model[2].weight.grad[0, 0] = bad
    with pytest.raises(NonFiniteGradient, match=r"'2\.weight'.*step 3"):
        optimizer.step()
    assert_same(before, tensors(optimizer))
    assert optimizer.state_dict()["bayesbinn"]["steps"] == counters
    assert all(state["step"] == 2 for state in optimizer.state.values())
    train(model, optimizer, 1)  # the bad sample is gone


def refusal_of_a_step(optimizer: BinaryOptimizer) -> str:
    try:
        optimizer.step()
    except NonFiniteGradient as error:
        return str(error)
    return ""


@every_method
@pytest.mark.parametrize("size", [1e20, 1e30, 3e38])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("compiled", [True, False], ids=["native", "reference"])
def test_a_huge_gradient_is_rejected_or_handled(
    case: str, size: float, samples: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the finite gradient, the state stays finite; a rejected step changes nothing, and a good one follows."""
    if not compiled:
        monkeypatch.setattr(native, "available", False)
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    before = optimizer.state_dict()["bayesbinn"]["steps"], tensors(optimizer)
    for index in range(samples):
        with optimizer.sampled_params(train=True):
            loss_of(model).backward()
        model[2].weight.grad[0, index] = -size
    if message := refusal_of_a_step(optimizer):
        assert re.match(r"the gradient of '2\.weight' .* at step 3[,;] .*nothing was changed", message)
        assert_same(before[1], tensors(optimizer))
        assert optimizer.state_dict()["bayesbinn"]["steps"] == before[0] == 2
        assert all(state["step"] == 2 for state in optimizer.state.values())
    for _ in range(3):
        train(model, optimizer, 1)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(optimizer))
    if case in BINARY:
        bb.check_binary(model)


REFUSED_SIZES = {"ste": 1e20, "float": 1e20, "ewc": 1e20, "lrnet": 1e20, "pmf": 1e20, "bayesbinn": 3e38, "bimu": 3e38}


@pytest.mark.parametrize("case", REFUSED_SIZES)
def test_a_gradient_that_would_overflow_the_state_is_refused(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    with optimizer.sampled_params(train=True):
        loss_of(model).backward()
    for parameter in model.parameters():
        parameter.grad.fill_(REFUSED_SIZES[case])
    before = tensors(optimizer)
    with pytest.raises(NonFiniteGradient, match=r"'0\.weight' has values up to .* at step 1, .*state overflow;"):
        optimizer.step()
    assert_same(before, tensors(optimizer))


@pytest.mark.parametrize("case", ["ste", "pmf", "bayesbinn-memory"])
def test_a_loss_that_explodes_stops_fit_with_a_finite_state(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    factors = iter([1.0, 1.0, 3e37])  # the third batch of the epoch explodes

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y) * next(factors)

    with pytest.raises(NonFiniteGradient, match=r"'[02]\.weight' .* at step 3"):
        bb.train.fit(model, optimizer, *batch(size=96), epochs=1, batch_size=32, loss=loss)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(optimizer))
    bb.check_binary(model)


# ---- odd parameters ----------------------------------------------------------------------------


@every_method
def test_a_parameter_without_gradient_is_untouched(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    before = optimizer.state[model[0].weight]
    copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in before.items()}
    weight = model[0].weight.detach().clone()
    with optimizer.sampled_params(train=True):
        model[2](torch.ones(4, 16)).square().sum().backward()
    assert model[0].weight.grad is None
    optimizer.step()
    assert torch.equal(weight, model[0].weight)
    for key, value in optimizer.state[model[0].weight].items():
        assert torch.equal(value, copies[key]) if isinstance(value, Tensor) else value == copies[key]
    assert optimizer.state[model[2].weight]["step"] == 3
    train(model, optimizer, 2)  # bias corrections now differ between the two


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@every_method
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("kind", ["masked", "sparse"])
def test_a_gradient_with_holes_is_refused(case: str, samples: int, kind: str) -> None:
    model = network()
    optimizer = make(case, model)
    before = tensors(optimizer)
    weight = model[2].weight
    mask = torch.ones(weight.shape, dtype=torch.bool)
    mask[0, 0] = False

    def steps() -> None:
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                loss_of(model).backward()
            dense = weight.grad
            weight.grad = masked_tensor(dense, mask) if kind == "masked" else (dense * mask).to_sparse()
        optimizer.step()

    with pytest.raises(InvalidInput, match=r"the gradient of '2\.weight' is .*(MaskedTensor|sparse)"):
        steps()
    assert_same(before, tensors(optimizer))
    train(model, optimizer, 1)  # the bad sample is gone
    assert optimizer.state_dict()["bayesbinn"]["steps"] == 1


@every_method
def test_a_frozen_parameter_holds_its_mode(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    model[0].weight.requires_grad_(False)
    weight = model[0].weight.detach().clone()
    for train_mode in (True, False):
        with optimizer.sampled_params(train=train_mode):
            assert torch.equal(weight, model[0].weight)
            if train_mode:
                loss_of(model).backward()
    optimizer.step()
    assert torch.equal(weight, model[0].weight)


class Tied(nn.Module):
    """One weight used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


@every_method
def test_a_shared_weight_is_one_parameter(case: str) -> None:
    model = Tied()
    optimizer = make(case, model)
    assert len(optimizer.param_groups[0]["params"]) == 1
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            model(batch()[0]).square().mean().backward()
        optimizer.step()
    if case in BINARY:
        assert bb.check_binary(model) == 64


# ---- saving and resuming -----------------------------------------------------------------------


def through_memory(state: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(state)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@every_method
@pytest.mark.parametrize("carrier", [through_memory, through_a_file])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_resuming_is_bit_exact(
    case: str, carrier: Callable[[dict[str, Any]], dict[str, Any]], dtype: torch.dtype, stop: int
) -> None:
    model = network(dtype)
    optimizer = make(case, model)
    train(model, optimizer, stop)
    saved = carrier({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    with optimizer.sampled_params(train=False):
        expected_draw = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 4, first=stop)

    # A new process would have different weights and another seed.
    resumed_model = network(dtype)
    with torch.no_grad():
        for parameter in resumed_model.parameters():
            parameter.normal_()
    resumed_model.load_state_dict(saved["model"])
    method, settings = CASES[case]
    resumed = METHODS[method].create(bb.split_parameters(resumed_model)[0], train_set_size=320, seed=99, **settings)
    resumed.load_state_dict(saved["optimizer"])
    with resumed.sampled_params(train=False):
        assert_same(expected_draw, [p.detach().clone() for p in resumed_model.parameters()])
    train(resumed_model, resumed, 4, first=stop)
    assert_same(tensors(optimizer), tensors(resumed))
    floats = [v for state in resumed.state.values() for v in state.values() if isinstance(v, Tensor)]
    assert all(value.dtype in (torch.float32, torch.bool) for value in floats)


@every_binary_method
def test_the_optimizer_state_is_enough_to_restore_the_weights(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 5)
    other = network()
    resumed = make(case, other)
    resumed.load_state_dict(optimizer.state_dict())
    assert_same([p.detach() for p in model.parameters()], [p.detach() for p in other.parameters()])


@every_method
def test_a_deep_copy_is_independent(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    both = copy.deepcopy({"model": model, "optimizer": optimizer})
    train(model, optimizer, 3, first=2)
    train(both["model"], both["optimizer"], 3, first=2)
    assert_same(tensors(optimizer), tensors(both["optimizer"]))


@every_method
def test_the_state_of_another_method_is_refused(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    for other in CASES:
        if CASES[other][0] != CASES[case][0]:
            with pytest.raises(InvalidInput, match=rf"state of method '{CASES[other][0]}'"):
                optimizer.load_state_dict(make(other, network()).state_dict())
    with pytest.raises(InvalidInput, match="another optimizer"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    small = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False))
    with pytest.raises(InvalidInput, match=r"'0\.weight'"):
        optimizer.load_state_dict(make(case, small).state_dict())


# ---- threads, dtypes, input --------------------------------------------------------------------


@every_method
def test_the_number_of_threads_does_not_matter(case: str) -> None:
    results = []
    gradients = [torch.randn(300, 400, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        layer = nn.Linear(400, 300, bias=False)
        with torch.no_grad():
            layer.weight.copy_(gradients[0] / 3)
        optimizer = make(case, layer)
        for gradient in gradients:
            with optimizer.sampled_params(train=True):
                layer(torch.ones(1, 400)).sum().backward()
            layer.weight.grad = gradient.clone()
            optimizer.step()
        results.append(tensors(optimizer))
    assert_same(*results)


@every_method
def test_float16_gradients_under_a_grad_scaler(case: str) -> None:
    """A finite scaled step is the plain step; a step with an infinity is skipped, and training goes on."""
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for index in range(3):
        with optimizer.sampled_params(train=True):
            scaler.scale(loss_of(model, index)).backward()
        if index == 1:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    train(peer, reference, 3)
    for a, b in zip(tensors(reference), tensors(optimizer), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    before, scale = tensors(optimizer), scaler.get_scale()
    with optimizer.sampled_params(train=True):
        scaler.scale(loss_of(model)).backward()
    model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert_same(before, tensors(optimizer))
    assert scaler.get_scale() < scale
    train(model, optimizer, 1)


@pytest.mark.parametrize("case", ["bayesbinn", "ste"])
def test_a_grad_scaler_is_forgotten_after_a_refused_step(case: str) -> None:
    """A finite gradient that is too large stops the step, not the scaler; the next step is not divided."""
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with optimizer.sampled_params(train=True):
        scaler.scale(loss_of(model)).backward()
    model[0].weight.grad[0, 0] = 3e38
    if case == "bayesbinn":
        optimizer.param_groups[0]["train_set_size"] = 10**9
    before = tensors(optimizer)
    with pytest.raises(NonFiniteGradient, match=r"'0\.weight' has values up to 2\.9e\+35 at step 1"):
        scaler.step(optimizer)
    assert_same(before, tensors(optimizer))
    scaler.update()
    if case == "bayesbinn":
        optimizer.param_groups[0]["train_set_size"] = 320
        with reference.sampled_params(train=True):  # the refused sample was drawn
            pass
        reference.zero_grad()
    train(model, optimizer, 2)
    train(peer, reference, 2)
    assert_same(tensors(reference), tensors(optimizer))


@every_method
def test_bfloat16_autocast(case: str) -> None:
    """The layers run in 16 bits, gradients match those of 32 bits up to rounding, and the network learns as well."""
    model, peer = network(), network()
    optimizer, reference = make(case, model), make(case, peer)
    with reference.sampled_params(train=True):
        loss_of(peer).backward()
    with optimizer.sampled_params(train=True), torch.autocast("cpu", dtype=torch.bfloat16):
        loss_of(model).backward()
        assert model(batch()[0]).dtype is torch.bfloat16
    found, exact = (torch.cat([p.grad.flatten() for p in each.parameters()]) for each in (model, peer))
    assert found.dtype is torch.float32
    assert 0 < (found - exact).norm() < 0.02 * exact.norm()
    optimizer.zero_grad()

    before = sum(loss_of(model, i).item() for i in range(10))
    for index in range(150):
        with optimizer.sampled_params(train=True), torch.autocast("cpu", dtype=torch.bfloat16):
            loss_of(model, index % 10).backward()
        optimizer.step()
    assert sum(loss_of(model, i).item() for i in range(10)) < 0.6 * before
    assert all(tensor.dtype is torch.float32 for tensor in tensors(optimizer))


@every_method
def test_bad_parameters_get_one_line(case: str) -> None:
    method, settings = CASES[case]
    create = METHODS[method].create

    def refused(params: Any, words: str, **changes: Any) -> None:
        with pytest.raises(InvalidInput, match=words) as caught:
            create(params, train_set_size=320, **{**settings, **changes})
        assert "\n" not in str(caught.value)

    weight = nn.Parameter(torch.randn(3, 2))
    refused([], "no parameters")
    refused([{"params": []}], "no parameters")
    refused(weight, "one tensor")
    refused([("w", "text")], "'w' is a str")
    refused([("a", weight), ("b", weight)], "'b' and 'a' are the same parameter")
    refused([{"params": [("a", weight)]}, {"params": [("b", weight)]}], "'b' and 'a' are the same parameter")
    refused([("module.a", weight), ("a", nn.Parameter(torch.randn(2)))], "two parameters have the name 'a'")
    refused([("w", nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False))], "'w'.*int32")
    refused([("w", nn.Parameter(torch.ones(2, dtype=torch.complex64)))], "'w'.*complex64")
    refused([("w", nn.LazyLinear(3).weight)], "'w' is not initialized")
    refused([("w", weight)], "lr=-1", lr=-1)
    refused([("w", weight)], "lr='fast'", lr="fast")
    refused([("w", weight)], "mc_samples=0", mc_samples=0)
    refused([("w", weight)], "no setting 'learning_rate'", learning_rate=0.1)
    refused([{"params": [("w", weight)], "lrr": 1}], "no setting 'lrr'. Did you mean 'lr'")


DEVICES = ["meta", *(name for name in ("cuda", "mps") if getattr(torch, name).is_available())]


@every_method
@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_moves_to_the_device_of_the_model(case: str, device: str) -> None:
    """Every machine has the device "meta": a tensor left behind fails there as it would on a GPU."""
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    saved = optimizer.state_dict()
    moved = make(case, network().to(device))
    moved.load_state_dict(saved)
    assert len(tensors(moved)) == len(tensors(optimizer))
    for found, stored in zip(tensors(moved), tensors(optimizer), strict=True):
        assert found.device.type == device
        assert (found.dtype, found.shape) == (stored.dtype, stored.shape)
    back = make(case, network())
    back.load_state_dict(saved)
    assert all(tensor.device.type == "cpu" for tensor in tensors(back))


@every_method
def test_non_contiguous_weights_work(case: str) -> None:
    """A channels-last convolution gives the same result as a contiguous one."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Flatten(), nn.Linear(45, 3, bias=False))
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))
        model = model.to(memory_format=layout)
        optimizer = make(case, model)
        for step in range(3):
            with optimizer.sampled_params(train=True):
                x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(step))
                (model(x) * 0).sum().backward()
            for index, parameter in enumerate(model.parameters()):
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(50 + index))
            optimizer.step()
        results.append([t.contiguous() for t in tensors(optimizer)])
    assert_same(*results)


@every_binary_method
def test_the_posterior_is_a_copy_with_the_models_mode(case: str) -> None:
    model = network()
    optimizer = make(case, model)
    train(model, optimizer, 2)
    posterior = optimizer.posterior()
    before = {name: value.clone() for name, value in posterior.natural.items()}
    for name, mode in posterior.mode().items():
        assert torch.equal(mode, dict(model.named_parameters())[name])
    train(model, optimizer, 5)
    for name, value in posterior.natural.items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("case", [case for case in CASES if case not in BINARY])
def test_full_precision_has_no_posterior(case: str) -> None:
    with pytest.raises(InvalidUse, match="full-precision"):
        make(case, network()).posterior()
