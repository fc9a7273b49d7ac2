"""What individual methods promise beyond the common contract."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.errors import InvalidInput, InvalidUse, NonFiniteGradient
from tests.helpers.processes import run_ranks


def layer(rows: int = 4, columns: int = 6) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


def bayesbinn(params: Any, **settings: Any) -> bb.BayesBiNN:
    return bb.BayesBiNN(params, **{"lr": 0.1, "train_set_size": 10, "temperature": 0.5, "seed": 1, **settings})


# ---- BayesBiNN: start and prior ------------------------------------------------------------------


def test_a_random_start_is_a_fair_coin_of_the_stated_strength() -> None:
    wide = layer(300, 300)
    natural = bayesbinn([("w", wide.weight)], initial_strength=15.0).posterior().natural["w"]
    assert set(natural.unique().tolist()) == {-15.0, 15.0}
    assert abs(float((natural > 0).float().mean()) - 0.5) < 4 * 0.5 / 300


def test_the_random_start_depends_on_the_seed_and_the_name_only() -> None:
    def start(seed: int, name: str) -> Tensor:
        return bayesbinn([(name, layer(30, 30).weight)], seed=seed).posterior().natural[name]

    assert torch.equal(start(1, "w"), start(1, "w"))
    assert not torch.equal(start(1, "w"), start(2, "w"))
    assert not torch.equal(start(1, "w"), start(1, "v"))


def test_torch_manual_seed_decides_where_no_seed_is_given() -> None:
    def start() -> Tensor:
        torch.manual_seed(5)
        return bayesbinn([("w", layer().weight)], seed=None).posterior().natural["w"]

    assert torch.equal(start(), start())


def test_a_warm_start_keeps_the_signs() -> None:
    linear = layer()
    before = bb.sign(linear.weight.detach().clone())
    optimizer = bayesbinn([("w", linear.weight)], init="sign", initial_strength=3.0)
    assert torch.equal(linear.weight, before)
    assert torch.equal(optimizer.posterior().natural["w"], 3 * before)


def test_a_prior_is_where_training_starts_and_what_it_is_pulled_to() -> None:
    linear = layer()
    prior = bb.BernoulliPosterior({"w": torch.randn(4, 6)})
    optimizer = bayesbinn([("w", linear.weight)], prior=prior)
    assert torch.equal(optimizer.posterior().natural["w"], prior.natural["w"])
    assert torch.equal(linear.weight, prior.mode()["w"])
    for _ in range(5):  # without a loss nothing moves: λ = λ₀ is the fixed point
        with optimizer.sampled_params(train=True):
            (linear.weight * 0).sum().backward()
        optimizer.step()
    assert torch.equal(optimizer.posterior().natural["w"], prior.natural["w"])

    other = bayesbinn([("w", linear.weight)], prior=prior, init="random", lr=0.5)
    for _ in range(40):
        with other.sampled_params(train=True):
            (linear.weight * 0).sum().backward()
        other.step()
    torch.testing.assert_close(other.posterior().natural["w"], prior.natural["w"], atol=1e-5, rtol=0)


def test_bad_settings_get_one_line() -> None:
    weight = layer().weight
    entry = torch.zeros(4, 6)

    def refused(words: str, **settings: Any) -> None:
        with pytest.raises(InvalidInput, match=words) as caught:
            bayesbinn([("w", weight)], **settings)
        assert "\n" not in str(caught.value)

    refused("train_set_size=0", train_set_size=0)
    refused("train_set_size=-3", train_set_size=-3)
    refused("temperature=0", temperature=0)
    refused("temperature=-1", temperature=-1.0)
    refused("temperature=nan", temperature=float("nan"))
    refused("momentum=1", momentum=1.0)
    refused("eps=0", eps=0)
    refused("kl_weight=-1", kl_weight=-1)
    refused("initial_strength=0", initial_strength=0)
    refused("init='zeros'", init="zeros")
    refused("no entry for 'w'", prior=bb.BernoulliPosterior({"v": entry}))
    refused(r"\(6, 4\) for 'w'", prior=bb.BernoulliPosterior({"w": entry.T}))
    refused("infinite for 'w'", prior=bb.BernoulliPosterior({"w": entry + torch.inf}))
    refused("infinite for 'w'", init=bb.BernoulliPosterior({"w": entry - torch.inf}))
    with pytest.raises(InvalidInput, match="NaN"):
        bb.BernoulliPosterior({"w": entry * torch.nan})


def test_a_refused_group_leaves_the_optimizer_as_it_was() -> None:
    optimizer = bayesbinn([("w", layer().weight)])
    other = layer().weight
    with pytest.raises(InvalidInput, match="temperature"):
        optimizer.add_param_group({"params": [("v", other)], "temperature": -1.0})
    assert len(optimizer.param_groups) == 1
    assert other not in optimizer.state
    optimizer.add_param_group({"params": [("v", other)], "temperature": 1.0})
    assert set(optimizer.posterior().natural) == {"w", "v"}


def test_wrapper_prefixes_are_stripped() -> None:
    model = nn.Sequential(layer())
    wrapped = torch.compile(model, backend="eager")
    binary, _ = bb.split_parameters(wrapped)
    assert [name for name, _ in binary] == ["0.weight"]
    optimizer = bayesbinn([(f"module.{name}", p) for name, p in wrapped.named_parameters()])
    assert list(optimizer.posterior().natural) == ["0.weight"]
    optimizer.posterior().apply(nn.DataParallel(model))


def test_momentum_may_be_switched_on_later() -> None:
    linear = layer()
    optimizer = bayesbinn([("w", linear.weight)])
    for momentum in (0.0, 0.9):
        optimizer.param_groups[0]["momentum"] = momentum
        with optimizer.sampled_params(train=True):
            linear(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    assert optimizer.state[linear.weight]["momentum"].abs().sum() > 0


def test_the_state_holds_nothing_that_can_be_computed() -> None:
    linear = layer()
    plain = bayesbinn([("w", linear.weight)])
    assert set(plain.state[linear.weight]) == {"step", "natural"}
    prior = plain.posterior()
    full = bayesbinn([("w", linear.weight)], momentum=0.9, prior=prior)
    assert set(full.state[linear.weight]) == {"step", "natural", "momentum", "prior"}


# ---- LR-net: where its weights may go --------------------------------------------------------------


class Product(nn.Module):
    """Uses its weight in a way that `operation` chooses."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.operation(x, self.weight)
        return output


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, w: x @ w.T,
        lambda x, w: torch.einsum("bi,oi->bo", x, w),
        lambda x, w: F.linear(x, w.abs()),
        lambda x, w: F.linear(w, x),
        lambda x, w: torch.cat([F.linear(x, w), w[:, :3]]),
        lambda x, w: x @ w.transpose(0, 1),
    ],
)
def test_lrnet_refuses_operations_it_cannot_sample(operation: Any) -> None:
    model = Product(operation)
    optimizer = bb.LRNet([("the.weight", model.weight)], seed=0)
    before = model.weight.detach().clone()
    with pytest.raises(InvalidUse, match=r"'the\.weight' reaches"), optimizer.sampled_params(train=True):
        model(torch.ones(2, 6)).sum().backward()
    assert torch.equal(before, model.weight)


def test_lrnet_allows_keyword_weights_and_inspection() -> None:
    model = Product(lambda x, w: F.linear(input=x, weight=w, bias=None))
    optimizer = bb.LRNet([("w", model.weight)], seed=0)
    with optimizer.sampled_params(train=True):
        assert model.weight.shape == (3, 6)
        model(torch.ones(2, 6)).sum().backward()
        with torch.no_grad():
            model.weight.norm()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_lrnet_draws_new_noise_for_every_call_and_sample() -> None:
    linear = layer()
    optimizer = bb.LRNet([("w", linear.weight)], seed=0)
    outputs = []
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            outputs += [linear(torch.ones(1, 6)).detach(), linear(torch.ones(1, 6)).detach()]
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 4


# ---- samples over ranks ------------------------------------------------------------------------------


def _rank(rank: int, folder: str, independent: bool) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(rank)  # a different seed and different weights on every rank: rank 0 decides
    linear = layer()
    optimizer = bayesbinn(
        [("w", linear.weight)], seed=None, init="sign", initial_strength=0.5, independent_noise=independent
    )
    drawn = []
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            drawn.append(linear.weight.detach().clone())
            linear(torch.ones(2, 6)).square().sum().backward()
        if not independent:
            dist.all_reduce(linear.weight.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
    torch.save({"natural": optimizer.posterior().natural["w"], "drawn": drawn}, f"{folder}/{rank}.pt")
    dist.barrier()  # a rank that leaves while the other still talks to it can abort at exit
    dist.destroy_process_group()


@pytest.mark.parametrize("independent", [False, True])
def test_ranks_agree_on_everything_except_independent_noise(tmp_path: Any, independent: bool) -> None:
    run_ranks(_rank, str(tmp_path), independent)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first["natural"], second["natural"])
    same_noise = all(torch.equal(a, b) for a, b in zip(first["drawn"], second["drawn"], strict=True))
    assert same_noise is not independent


# ---- writes that are skipped --------------------------------------------------------------------------


def test_weights_changed_from_outside_are_rewritten() -> None:
    """BayesBiNN leaves certain weights alone while nobody else writes; a write from outside is noticed."""
    linear = layer(40, 50)
    optimizer = bayesbinn([("w", linear.weight)], temperature=1e-10)
    mode = linear.weight.detach().clone()
    with torch.no_grad():
        linear.weight.zero_()
    with optimizer.sampled_params(train=True):
        assert torch.equal(linear.weight, mode)  # ±10 is certain at this temperature
        with torch.no_grad():
            linear.weight.mul_(3)
    assert torch.equal(linear.weight, mode)
    with optimizer.sampled_params(train=False):
        assert torch.equal(linear.weight, mode)
    assert torch.equal(linear.weight, mode)


MANY_STEPS = """
import torch, hashlib, bayesbinn as bb
torch.set_num_threads(1)
for temperature in (1e-10, 1e-2, 1.0):
    w = torch.nn.Parameter(torch.zeros(40, 50)); g = torch.Generator().manual_seed(0)
    o = bb.BayesBiNN([('w', w)], lr=0.1, train_set_size=9, temperature=temperature, seed=1, momentum=0.5,
                     initial_strength=2.0)
    for _ in range(20):
        with o.sampled_params(train=True): (w * torch.randn(40, 50, generator=g)).sum().backward()
        o.step()
    natural = o.posterior().natural["w"].numpy().tobytes()
    print(temperature, hashlib.sha256(natural).hexdigest(), float(w.detach().sum()))
"""


def test_many_steps_give_the_same_bits_without_the_native_kernels() -> None:
    """λ and weights after 20 steps through the torch reference, in a separate process, at several temperatures."""
    environment = {**os.environ, "BAYESBINN_KERNELS": "torch"}
    command = [sys.executable, "-c", MANY_STEPS]
    plain = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    native = io.StringIO()
    with redirect_stdout(native):
        exec(MANY_STEPS, {})
    assert len(plain) == 3 and plain == native.getvalue().splitlines()


# ---- changes at odd moments -------------------------------------------------------------


def test_a_parameter_that_was_not_sampled_is_not_updated() -> None:
    """Unfrozen inside the block, or added between block and step: its gradient does not belong to a sample."""
    first, second = layer(), layer()
    optimizer = bayesbinn([("a", first.weight)])
    before = optimizer.posterior().natural["a"].clone()
    first.weight.requires_grad_(False)
    with optimizer.sampled_params(train=True):
        first.weight.requires_grad_(True)
        (first.weight.sum() * second.weight.sum()).backward()
    optimizer.add_param_group({"params": [("b", second.weight)]})
    adopted = optimizer.posterior().natural["b"].clone()
    optimizer.step()
    assert torch.equal(optimizer.posterior().natural["a"], before)
    assert torch.equal(optimizer.posterior().natural["b"], adopted)


@pytest.mark.parametrize(("sampled_at", "changed_to"), [(1e-10, 0.5), (0.5, 0.1), (0.5, 1e-10)])
def test_a_step_uses_the_temperature_of_its_sample(sampled_at: float, changed_to: float) -> None:
    results = []
    for change in (False, True):
        torch.manual_seed(0)
        linear = layer(20, 30)
        optimizer = bayesbinn([("w", linear.weight)], temperature=sampled_at, initial_strength=1.0)
        with optimizer.sampled_params(train=True):
            linear(torch.ones(2, 30)).square().sum().backward()
        if change:
            optimizer.param_groups[0]["temperature"] = changed_to
        optimizer.step()
        results.append(optimizer.posterior().natural["w"])
    assert torch.equal(*results)


def test_a_closure_that_fails_halfway_leaves_nothing_behind() -> None:
    linear = layer()
    optimizer = bayesbinn([("w", linear.weight)], mc_samples=2)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError("once")
        loss = linear(torch.ones(2, 6)).sum()
        loss.backward()
        return loss

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    assert optimizer.step(closure) is not None


def test_replaced_storage_is_noticed() -> None:
    linear = layer(32, 32)
    optimizer = bayesbinn([("w", linear.weight)], temperature=1e-10)
    nn.utils.vector_to_parameters(torch.zeros(1024), linear.parameters())
    with optimizer.sampled_params(train=True):
        assert bool((linear.weight.detach().abs() == 1).all())
    assert bb.check_binary(linear) == 1024


@pytest.mark.parametrize("method", ["ste", "bop"])
def test_weights_scaled_inside_a_block_are_restored(method: str) -> None:
    linear = layer()
    optimizer = bb.get_method(method).create([("w", linear.weight)], train_set_size=1)
    before = linear.weight.detach().clone()
    with optimizer.sampled_params(train=True), torch.no_grad():
        linear.weight.mul_(0.3)
    assert torch.equal(before, linear.weight)


def test_a_posterior_and_an_optimizer_with_a_prior_can_be_copied() -> None:
    prior = bb.BernoulliPosterior({"w": torch.randn(4, 6)})
    linear = layer()
    optimizer = bayesbinn([("w", linear.weight)], prior=prior)
    assert torch.equal(pickle.loads(pickle.dumps(prior)).natural["w"], prior.natural["w"])
    assert torch.equal(copy.deepcopy((linear, optimizer))[1].posterior().natural["w"], prior.natural["w"])


def test_a_scaler_with_several_samples_is_refused_and_leaves_nothing_behind() -> None:
    linear = layer()
    optimizer = bayesbinn([("w", linear.weight)])
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            scaler.scale(linear(torch.ones(2, 6)).sum()).backward()
    with pytest.raises(InvalidUse, match="one sample per step"):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale")


def test_a_saved_state_of_another_dtype_is_trained_on() -> None:
    linear = layer()
    optimizer = bayesbinn([("w", linear.weight)])
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["natural"] = state["state"][0]["natural"].bfloat16().t().contiguous().t()
    optimizer.load_state_dict(state)
    before = optimizer.posterior().natural["w"].clone()
    with optimizer.sampled_params(train=True):
        with pytest.raises(InvalidUse, match="inside"):
            optimizer.load_state_dict(state)
        linear(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, optimizer.posterior().natural["w"])


def test_gradients_that_float32_cannot_hold_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = bayesbinn([("w", weight)])
    with optimizer.sampled_params(train=True):
        (weight * 1e39).sum().backward()
    with pytest.raises(NonFiniteGradient, match="'w'"):
        optimizer.step()


def test_a_sparse_gradient_is_refused_by_name() -> None:
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = bayesbinn([("table", table.weight)])
    with optimizer.sampled_params(train=True):
        table(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidInput, match=r"'table'.*dense"):
        optimizer.step()
