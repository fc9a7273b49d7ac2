"""Dropout draws torch's own masks, and torch's generator then continues from the same state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.kernels import dropout as kernel
from bayesbinn.kernels import native
from bayesbinn.train import dropout as training
from bayesbinn.train.loop import Totals, train_batches

needs_native = pytest.mark.skipif(not native.available, reason=f"no native kernels: {native.reason}")


@needs_native
def test_this_torch_is_known() -> None:
    assert kernel.draws_like_torch()


@needs_native
@pytest.mark.parametrize("probability", [0.0, 1e-9, 0.2, 0.3, 0.5, 0.8, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("before", [0, 1, 2, 311, 312, 622, 623, 624, 625, 1000])
def test_the_same_values_and_the_same_state(probability: float, before: int) -> None:
    ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
    for generator in (ours, theirs):
        torch.randint(2**31, (before,), generator=generator)
        torch.randn(1, generator=generator)  # keeps a second number for the next call
    for size in (1, 2, 311, 312, 313, 623, 624, 625, 5000):
        values = torch.empty(size)
        kernel.bernoulli_(values, probability, ours)
        assert torch.equal(values, torch.empty(size).bernoulli_(probability, generator=theirs))
        assert torch.equal(ours.get_state(), theirs.get_state())
    assert torch.equal(torch.randn(3, generator=ours), torch.randn(3, generator=theirs))


@needs_native
@pytest.mark.parametrize("p", [0.0, 0.1, 0.2, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("shape", [(3, 5), (100, 200), (2, 3, 40, 50)])
def test_the_same_outputs_and_gradients(p: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for dropout in (kernel.dropout, F.dropout):
        torch.manual_seed(3)
        given = x.clone().requires_grad_()
        y = dropout(given, p)
        y.pow(2).sum().backward()
        assert given.grad is not None
        found.append((y, given.grad, torch.rand(1)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    "x",
    [torch.randn(100, 100, dtype=torch.float64), torch.randn(100, 100).to(torch.bfloat16), torch.randn(90, 100).t()],
)
def test_other_tensors_are_left_to_torch(x: Tensor) -> None:
    torch.manual_seed(3)
    ours = kernel.dropout(x, 0.2)
    torch.manual_seed(3)
    assert torch.equal(ours, F.dropout(x, 0.2))


def test_works_under_vmap() -> None:
    x = torch.randn(3, 100, 100)
    y = torch.func.vmap(lambda each: kernel.dropout(each, 0.2), randomness="different")(x)
    assert 0.7 < float((y != 0).float().mean()) < 0.9


def trained(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Tensor], int]:
    """λ after five steps, and how many masks our kernel drew."""
    calls: list[float] = []
    draw = native.bernoulli

    def counted(state: Tensor, probability: float, values: Tensor) -> None:
        calls.append(probability)
        draw(state, probability, values)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(80, 70, bias=False), nn.ReLU(), nn.Dropout(), nn.Linear(70, 3))
    binary, _ = bb.split_parameters(model)
    optimizer = bb.BayesBiNN(binary, lr=1e-3, train_set_size=100, temperature=1e-10, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(native, "bernoulli", counted)
        train_batches(model, optimizer, [(torch.randn(100, 80), torch.arange(100) % 3)] * 5, Totals())
    return dict(optimizer.posterior().natural), len(calls)


@needs_native
def test_training_gives_the_same_bits_as_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, masks = trained(monkeypatch)
    assert masks == 10
    monkeypatch.setattr(training, "draws_like_torch", lambda: False)
    theirs, masks = trained(monkeypatch)
    assert masks == 0
    assert all(torch.equal(natural, theirs[name]) for name, natural in ours.items())


@needs_native
def test_foreign_states_are_refused() -> None:
    with pytest.raises(ValueError, match="not the state"):
        native.bernoulli(torch.zeros(100, dtype=torch.uint8), 0.5, torch.empty(3))
    with pytest.raises(ValueError, match="not the state"):
        native.bernoulli(torch.zeros(5056, dtype=torch.uint8), 0.5, torch.empty(3))
    with pytest.raises(ValueError, match="probability"):
        native.bernoulli(torch.Generator().get_state(), 1.5, torch.empty(3))
    forged = torch.Generator().get_state()
    forged[8:12], forged[16:24] = (torch.tensor([n], dtype=t).view(torch.uint8) for n, t in FORGED)
    with pytest.raises(ValueError, match="not the state"):
        native.bernoulli(forged, 0.5, torch.empty(3))
    for values in (torch.empty(3, dtype=torch.float64), torch.empty(6)[::2]):
        with pytest.raises(ValueError, match="float32"):
            native.bernoulli(torch.Generator().get_state(), 0.5, values)


FORGED = ((1_000_000, torch.int32), (-999_375, torch.int64))
"""How many numbers are left and where the next one is: their sum is right, but both lie far outside."""


@needs_native
def test_threads_draw_different_masks() -> None:
    x = torch.ones(1 << 16)
    with ThreadPoolExecutor(4) as pool:
        masks = list(pool.map(lambda _: kernel.dropout(x, 0.5), range(40)))
    assert len({mask.numpy().tobytes() for mask in masks}) == 40


def test_small_masks_are_left_to_torch() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.2))
    assert isinstance(training.faster_dropout(model, 16), nullcontext)
    assert isinstance(training.faster_dropout(model, 64), nullcontext) != native.available
    assert isinstance(training.faster_dropout(nn.Linear(64, 64), 1000), nullcontext)
