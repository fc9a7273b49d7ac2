"""EWC: Fisher information and penalty against plain autograd, what it remembers, and resuming."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import kernels
from bayesbinn.errors import InvalidInput, InvalidUse, NonFiniteGradient
from bayesbinn.methods import ewc

Batches = list[tuple[Tensor, Tensor]]


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, outputs, bias=False)
    )


def batches(count: int = 40, size: int = 16) -> Batches:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    y = (x[:, :3] + 0.1 * torch.randn(count, 3, generator=generator)).argmax(1)
    return list(zip(x.split(size), y.split(size), strict=True))


def make(model: nn.Module, **settings: Any) -> bb.EWC:
    return bb.EWC(model.named_parameters(), **{"lr": 1e-2, "seed": 4, **settings})


def train(model: nn.Module, optimizer: bb.BinaryOptimizer, data: Batches, epochs: int = 1) -> None:
    for _ in range(epochs):
        for x, y in data:
            with optimizer.sampled_params(train=True):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()


def looped_fisher(model: nn.Module, data: Batches, u: Tensor) -> dict[str, Tensor]:
    """One example at a time, by autograd."""
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    x = torch.cat([inputs for inputs, _ in data])[: len(u)]
    model.eval()
    for row, chance in zip(x, u, strict=True):
        output = model(row.unsqueeze(0))
        if output.shape[-1] == 1:
            output = torch.cat([torch.zeros_like(output), output], 1)
        log_p = F.log_softmax(output, 1)[0]
        label = min(int((log_p.exp().cumsum(0) < chance).sum()), len(log_p) - 1)
        gradients = torch.autograd.grad(log_p[label], list(model.parameters()))
        for total, gradient in zip(totals.values(), gradients, strict=True):
            total += gradient.square()
    model.train()
    return {name: total / len(u) for name, total in totals.items()}


# ---- Fisher information ----------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("examples", [40, 25, 1000])
def test_the_information_is_that_of_a_loop_over_examples(outputs: int, examples: int) -> None:
    model, data = network(outputs), batches()
    model(data[0][0])  # statistics for BatchNorm
    optimizer = make(model, fisher_samples=examples)
    optimizer.consolidate(model, data)
    u = kernels.uniform(kernels.noise_key(4, "labels", "ewc"), 0, min(examples, 40))
    for name, expected in looped_fisher(model, data, u).items():
        state = optimizer.state[dict(model.named_parameters())[name]]
        torch.testing.assert_close(state["importance"], expected, rtol=1e-4, atol=1e-8)


def test_neither_batches_nor_chunks_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    results = []
    for size, most in ((16, 256), (7, 256), (40, 3)):
        monkeypatch.setattr(ewc, "_MAX_AT_ONCE", most)
        optimizer = make(model)
        optimizer.consolidate(model, batches(size=size))
        results.append(torch.cat([state["importance"].flatten() for state in optimizer.state.values()]))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_labels_follow_the_probabilities() -> None:
    p = torch.tensor([0.2, 0.5, 0.3])
    u = kernels.uniform(1, 0, 20_000)
    shares = ewc.draw_labels(p.expand(20_000, 3), u).bincount() / 20_000
    torch.testing.assert_close(shares, p, atol=0.02, rtol=0)


def test_consolidating_does_not_change_the_model_or_the_random_state() -> None:
    model = network()
    model[1].eval()
    optimizer = make(model)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    optimizer.consolidate(model, batches())
    assert [module.training for module in model] == [True, False, True, True, True]
    assert torch.equal(random, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_no_more_batches_are_read_than_needed() -> None:
    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        yield from batches()
        raise AssertionError("more was read")

    make(model := network(), fisher_samples=40).consolidate(model, endless())


def test_what_cannot_be_consolidated_is_refused_and_changes_nothing() -> None:
    model = network()
    optimizer = make(model)

    def refused(error: type[Exception], words: str, net: nn.Module, data: Batches) -> None:
        with pytest.raises(error, match=words) as caught:
            optimizer.consolidate(net, data)
        assert "\n" not in str(caught.value)
        assert all("importance" not in state for state in optimizer.state.values())

    x, y = batches()[0]
    refused(InvalidInput, "no examples", model, [])
    refused(InvalidInput, "no examples", model, [(x[:0], y[:0])])
    refused(InvalidInput, "float32", model, [(x, y.float())])
    refused(InvalidInput, "does not have the parameter '0.weight'", network(), [(x, y)])
    refused(NonFiniteGradient, "'0.weight'", model, [(x * torch.nan, y)])
    kept, model[1] = model[1], nn.BatchNorm1d(8, affine=False, track_running_stats=False)
    model[1].weight, model[1].bias = kept.weight, kept.bias
    refused(InvalidInput, "'1' uses batch statistics", model, [(x, y)])
    model[1] = kept
    with optimizer.sampled_params(train=True):
        refused(InvalidUse, "inside", model, [(x, y)])
    for settings in ({"strength": -1}, {"decay": 1.5}, {"decay": -1}, {"fisher_samples": 0}):
        with pytest.raises(InvalidInput, match="=".join(map(str, *settings.items()))):
            make(model, **settings)


# ---- the penalty -----------------------------------------------------------------------------------


def test_the_penalty_gradient_is_that_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, importance, anchor = torch.randn(3, 5, 4, generator=generator)
    weight.requires_grad_()
    (0.5 * 7.0 * (importance * (weight - anchor).square()).sum()).backward()
    torch.testing.assert_close(ewc.penalty_gradient(weight.detach(), importance, anchor, 7.0), weight.grad)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_step_is_adam_on_the_loss_with_the_penalty(samples: int) -> None:
    model, data = nn.Linear(6, 3), batches()
    optimizer = make(model, strength=50.0)
    train(model, optimizer, data)
    optimizer.consolidate(model, data)
    train(model, optimizer, data)
    peer = copy.deepcopy(model)
    reference = torch.optim.Adam(peer.parameters(), lr=1e-2)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        state = optimizer.state[p]
        reference.state[q] = {
            "step": torch.tensor(float(state["step"])),
            "exp_avg": state["first"].clone(),
            "exp_avg_sq": state["second"].clone(),
        }
    x, y = data[0]
    for _ in range(samples):
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x), y).backward()
    kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True) if p.grad is not None)
    loss = F.cross_entropy(peer(x), y)
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        state = optimizer.state[p]
        loss = loss + 0.5 * 50.0 * (state["importance"] * (q - state["anchor"]).square()).sum()
    reference.zero_grad()
    loss.backward()
    reference.step()
    for p, q in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_importance_adds_up_and_decays() -> None:
    data = batches()
    model = nn.Linear(6, 3)
    for decay in (1.0, 0.25):
        optimizer = make(model, decay=decay)
        optimizer.consolidate(model, data)
        first = optimizer.state[model.weight]["importance"].clone()
        optimizer.consolidate(model, data)
        torch.testing.assert_close(optimizer.state[model.weight]["importance"], (1 + decay) * first)
        assert torch.equal(optimizer.state[model.weight]["anchor"], model.weight)


def test_before_the_first_task_ends_it_is_adam() -> None:
    one, two, data = network(), network(), batches()
    one[2].p = two[2].p = 0.0
    train(one, make(one), data, 3)
    train(two, bb.FloatAdam(two.named_parameters(), lr=1e-2), data, 3)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)


# ---- remembering and resuming ------------------------------------------------------------------------


def task(number: int) -> Batches:
    """Two classes, separated by features 0 and 1 in the first task and by 2 and 3 in the second."""
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(number))
    mask = torch.zeros(4)
    mask[2 * number : 2 * number + 2] = 1
    x = x * (0.1 + mask)
    return list(zip(x.split(32), (x[:, 2 * number] > x[:, 2 * number + 1]).long().split(32), strict=True))


def accuracy(model: nn.Module, data: Batches) -> float:
    with torch.no_grad():
        return float(torch.cat([(model(x).argmax(1) == y).float() for x, y in data]).mean())


def test_less_is_forgotten_than_with_plain_adam() -> None:
    scores = {}
    for strength in (0.0, 100.0):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = make(model, strength=strength)
        train(model, optimizer, task(0), epochs=20)
        learned = accuracy(model, task(0))
        optimizer.consolidate(model, task(0))
        train(model, optimizer, task(1), epochs=20)
        scores[strength] = learned, accuracy(model, task(0)), accuracy(model, task(1))
    assert all(learned > 0.95 and second > 0.9 for learned, _, second in scores.values()), scores
    assert scores[100.0][1] > scores[0.0][1] + 0.05, scores


@pytest.mark.parametrize("tasks", [0, 1, 2])
@pytest.mark.parametrize("other_has_memory", [False, True])
def test_resuming_is_bit_exact(tasks: int, other_has_memory: bool) -> None:
    model, data = nn.Linear(6, 3), batches()
    optimizer = make(model)
    for _ in range(tasks):
        train(model, optimizer, data)
        optimizer.consolidate(model, data)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed_model = nn.Linear(6, 3)
    resumed = make(resumed_model, seed=99)
    if other_has_memory:
        resumed.consolidate(resumed_model, data)
    resumed_model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for net, each in ((model, optimizer), (resumed_model, resumed)):
        train(net, each, data)
        each.consolidate(net, data)
        train(net, each, data)
    for p, q in zip(model.parameters(), resumed_model.parameters(), strict=True):
        assert torch.equal(p, q)
        assert optimizer.state[p].keys() == resumed.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert (
                torch.equal(value, resumed.state[q][key])
                if isinstance(value, Tensor)
                else value == resumed.state[q][key]
            )
