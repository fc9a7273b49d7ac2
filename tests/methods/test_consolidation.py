"""Between two tasks: what a method keeps from the first one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbinn as bb
from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.methods import METHODS

# The other methods do nothing between two tasks, and do not look at the data.
REMEMBERS = {"bayesbinn", "ewc"}


def layer() -> nn.Linear:
    return nn.Linear(6, 4, bias=False)


def make(linear: nn.Linear, **settings: Any) -> bb.BayesBiNN:
    defaults = {"lr": 0.1, "train_set_size": 10, "temperature": 0.5, "initial_strength": 1.0, "seed": 1}
    return bb.BayesBiNN([("w", linear.weight)], **{**defaults, **settings})


def train(linear: nn.Linear, optimizer: bb.BinaryOptimizer, steps: int = 3) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            linear(x).square().mean().backward()
        optimizer.step()


def rest(linear: nn.Linear, optimizer: bb.BinaryOptimizer, steps: int) -> None:
    """Steps without a loss: only the prior pulls."""
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            (linear.weight * 0).sum().backward()
        optimizer.step()


def natural(optimizer: bb.BinaryOptimizer) -> Tensor:
    return optimizer.posterior().natural["w"]


# ---- BayesBiNN: the prior changes ----------------------------------------------------------------


def test_a_new_prior_pulls_and_leaves_the_posterior_where_it_is() -> None:
    linear = layer()
    optimizer = make(linear, lr=0.5)
    before, prior = natural(optimizer), torch.randn(4, 6)
    optimizer.set_prior(bb.BernoulliPosterior({"w": prior}))
    assert torch.equal(natural(optimizer), before)
    rest(linear, optimizer, 1)
    torch.testing.assert_close(natural(optimizer), (before + prior) / 2)
    rest(linear, optimizer, 40)
    torch.testing.assert_close(natural(optimizer), prior, atol=1e-5, rtol=0)

    optimizer.set_prior(None)
    rest(linear, optimizer, 1)
    torch.testing.assert_close(natural(optimizer), prior / 2, atol=1e-5, rtol=0)
    assert "prior" not in optimizer.state[linear.weight]


def test_the_prior_is_a_copy() -> None:
    linear = layer()
    optimizer = make(linear)
    posterior = optimizer.posterior()
    kept = posterior.natural["w"].clone()
    optimizer.set_prior(posterior)
    train(linear, optimizer)
    assert torch.equal(posterior.natural["w"], kept)
    assert torch.equal(optimizer.state[linear.weight]["prior"], kept)


def test_a_prior_that_does_not_fit_changes_nothing() -> None:
    one, two = layer(), layer()
    settings = {"lr": 0.1, "train_set_size": 10, "temperature": 0.5}
    optimizer = bb.BayesBiNN([("a", one.weight), ("b", two.weight)], **settings)
    good = torch.zeros(4, 6)
    for bad, words in (
        ({"a": good}, "no entry for 'b'"),
        ({"a": good, "b": good.T}, r"\(6, 4\) for 'b'"),
        ({"a": good, "b": good + torch.inf}, "infinite for 'b'"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            optimizer.set_prior(bb.BernoulliPosterior(bad))
        assert "\n" not in str(caught.value)
        assert all("prior" not in state for state in optimizer.state.values())
    with pytest.raises(InvalidUse, match="inside"), optimizer.sampled_params(train=True):
        optimizer.set_prior(None)


def test_consolidating_makes_the_posterior_the_prior() -> None:
    linear = layer()
    optimizer = make(linear)
    train(linear, optimizer)
    learned = natural(optimizer)
    optimizer.consolidate(linear, [])
    rest(linear, optimizer, 5)
    assert torch.equal(natural(optimizer), learned)


def test_a_parameter_added_after_consolidating_has_the_uniform_prior() -> None:
    linear, head = layer(), layer()
    optimizer = make(linear, lr=0.5)
    optimizer.consolidate(linear, [])
    optimizer.add_param_group({"params": [("head", head.weight)]})
    before = optimizer.posterior().natural
    with optimizer.sampled_params(train=True):
        ((linear.weight + head.weight) * 0).sum().backward()
    optimizer.step()
    after = optimizer.posterior().natural
    assert torch.equal(after["w"], before["w"])
    assert torch.equal(after["head"], before["head"] / 2)


# ---- BayesBiNN: saving the prior -----------------------------------------------------------------


@pytest.mark.parametrize("saved_prior", [False, True])
@pytest.mark.parametrize("own_prior", [False, True])
def test_a_saved_state_decides_about_the_prior(saved_prior: bool, own_prior: bool) -> None:
    linear, other = layer(), layer()
    optimizer, resumed = make(linear), make(other, seed=9)
    train(linear, optimizer)
    if saved_prior:
        optimizer.consolidate(linear, [])
    if own_prior:
        resumed.set_prior(bb.BernoulliPosterior({"w": torch.randn(4, 6)}))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, net in ((optimizer, linear), (resumed, other)):
        train(net, each)
        assert ("prior" in each.state[net.weight]) == saved_prior
    assert torch.equal(natural(optimizer), natural(resumed))


def test_a_saved_prior_of_another_shape_is_refused() -> None:
    linear = layer()
    optimizer = make(linear)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["prior"] = torch.zeros(6, 4)
    with pytest.raises(InvalidInput, match=r"'prior' of 'w': expected \(4, 6\), found \(6, 4\)"):
        optimizer.load_state_dict(state)


# ---- the other methods ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(set(METHODS) - REMEMBERS))
def test_a_method_without_a_memory_does_nothing(method: str) -> None:
    def unread() -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("the batches were read")
        yield

    linear = layer()
    optimizer = METHODS[method].create([("w", linear.weight)], train_set_size=10, seed=1)
    train(linear, optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.consolidate(linear, unread())
    after = optimizer.state_dict()
    assert after["bayesbinn"] == before["bayesbinn"]
    assert after["state"][0].keys() == before["state"][0].keys()
    for key, value in after["state"][0].items():
        old = before["state"][0][key]
        assert torch.equal(value, old) if isinstance(value, Tensor) else value == old
