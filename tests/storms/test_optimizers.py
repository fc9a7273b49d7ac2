"""Random sequences of what a training loop may do with an optimizer, for every method.

Three optimizers go through each sequence: one with native kernels, one with the torch reference, and one that is saved
and replaced by a resumed copy again and again. All three end with the same bits; in between, weights are exactly −1 or
+1 and the state is finite.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.errors import BayesbinnError, InvalidUse, NonFiniteGradient
from bayesbinn.kernels import native
from bayesbinn.methods import METHODS, BinaryOptimizer
from tests.methods.test_conformance import BINARY, CASES, assert_same, batch, tensors, through_a_file, through_memory
from tests.storms.cases import count, run_cases

LAYERS = ("0", "2", "4")
LATE = "2"
"""This layer joins in the middle of some sequences."""


class Broken(Exception):
    """What goes wrong inside a block."""


def network(dtype: torch.dtype) -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    sizes = ((8, 12), (12, 12), (12, 3))
    layers = [layer for a, b in sizes for layer in (nn.Linear(a, b, bias=False), nn.Tanh())][:-1]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.to(dtype)


class Trainee:
    """A model and its optimizer, with operations called by name."""

    def __init__(self, case: str, dtype: torch.dtype, samples: int) -> None:
        self.case, self.dtype, self.samples = case, dtype, samples
        self.model = network(dtype)
        self.optimizer = self._create(self.model)
        self.has_late = False
        self.pending = 0

    def _create(self, model: nn.Module) -> BinaryOptimizer:
        method, settings = CASES[self.case]
        named = [(name, p) for name, p in model.named_parameters() if not name.startswith(LATE)]
        return METHODS[method].create(named, train_set_size=320, seed=11, mc_samples=self.samples, **settings)

    def weight(self, layer: str) -> nn.Parameter:
        found = self.model.get_parameter(f"{layer}.weight")
        assert isinstance(found, nn.Parameter)
        return found

    def loss(self, index: int) -> Tensor:
        x, y = batch(index, dtype=self.dtype)
        return F.cross_entropy(self.model(x).float() / 4, y)

    def do(self, name: str, *arguments: Any) -> str:
        """Run an operation; return the error it raised, so that all trainees can be compared."""
        try:
            getattr(self, name)(*arguments)
        except (BayesbinnError, Broken) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.weight(LATE).grad = None if not self.has_late else self.weight(LATE).grad
        return ""

    # ---- operations

    def sample(self, index: int) -> None:
        with self.optimizer.sampled_params(train=True):
            self.loss(index).backward()
        self.pending += 1

    def step(self) -> None:
        if not self.pending:
            with pytest.raises(InvalidUse, match="without a sample"):
                self.optimizer.step()
            return
        self.pending = 0
        self.optimizer.step()

    def closure(self, index: int) -> None:
        def one() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(index)
            loss.backward()
            return loss

        self.pending = 0
        self.optimizer.step(one)

    def evaluate(self, index: int) -> None:
        with self.optimizer.sampled_params(train=False), torch.no_grad():
            self.loss(index)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()
        self.pending = 0

    def fail_inside(self, train: bool, index: int) -> None:
        with self.optimizer.sampled_params(train=train):
            self.loss(index).backward()
            raise Broken
        raise AssertionError("unreachable")

    def nest(self, train: bool) -> None:
        with self.optimizer.sampled_params(train=False), self.optimizer.sampled_params(train=train):
            pass

    def explode(self, index: int, value: float) -> None:
        """A gradient that the step rejects or handles."""
        self.sample(index)
        for layer in LAYERS:
            gradient = self.weight(layer).grad
            if gradient is not None:
                gradient.view(-1)[0] = value
        self.step()

    def freeze(self, layer: str, frozen: bool) -> None:
        self.weight(layer).requires_grad_(not frozen)

    def join(self, lr: float) -> None:
        """The late layer becomes a new group."""
        if not self.has_late:
            self.optimizer.add_param_group({"params": [(f"{LATE}.weight", self.weight(LATE))], "lr": lr})
            self.has_late = True

    def change_rate(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def consolidate(self, index: int) -> None:
        if not self.pending:
            self.optimizer.consolidate(self.model, [batch(index, dtype=self.dtype)])

    def spoil(self, factor: float, index: int) -> None:
        """Overwrite the weights; the next sample and the next step write them again.

        Not through ``.data``: such a write goes unnoticed until the step (`Members.versions`).
        """
        if self.case in BINARY:
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        with torch.no_grad():
                            parameter.mul_(factor)
        self.sample(index)
        self.step()

    # ---- being replaced

    def resumed(self, carrier: Callable[[Any], Any]) -> Trainee:
        """A new trainee with this one's saved state."""
        saved = carrier({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})
        other = copy.copy(self)
        other.model = network(self.dtype)
        other.optimizer = self._create(other.model)
        if self.has_late:
            other.has_late = False
            other.join(0.5)
        other.model.load_state_dict(saved["model"])
        other.optimizer.load_state_dict(saved["optimizer"])
        for layer in LAYERS:
            other.weight(layer).requires_grad_(self.weight(layer).requires_grad)
        return other

    def replaced(self, way: str) -> Trainee:
        if way == "file":
            return self.resumed(through_a_file)
        if way == "memory":
            return self.resumed(through_memory)
        other = copy.copy(self)
        both = self.model, self.optimizer
        other.model, other.optimizer = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
        return other

    # ---- what must hold at any time outside of blocks

    def check(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if self.case in BINARY:
                    assert bool((parameter.detach().abs() == 1).all()), "a weight is neither -1 nor +1"
        for tensor in tensors(self.optimizer):
            assert bool(torch.isfinite(tensor).all()), "the state is not finite"


def operations(random: Random) -> list[tuple[Any, ...]]:
    """A random sequence, half of it ordinary training."""
    found: list[tuple[Any, ...]] = []
    for _ in range(random.randint(8, 25)):
        index = random.randrange(10)
        unusual: list[tuple[Any, ...]] = [
            ("sample", index),
            ("step",),
            ("closure", index),
            ("evaluate", index),
            ("zero_grad",),
            ("fail_inside", random.random() < 0.5, index),
            ("nest", random.random() < 0.5),
            ("explode", index, random.choice((float("nan"), float("inf"), -3e38, 1e30, 1e20, 1e-30))),
            ("freeze", random.choice(("0", "4")), random.random() < 0.5),
            ("join", random.choice((0.0, 1e-3, 0.05))),
            ("change_rate", random.choice((0.0, 0.5, 2.0))),
            ("consolidate", index),
            ("spoil", random.choice((0.5, 0.0, -3.0)), index),
        ]
        found += [random.choice(unusual)] if random.random() < 0.5 else [("sample", index), ("step",)]
    return found


def drive(case: str, random: Random) -> None:
    dtype, samples = random.choice((torch.float32, torch.float32, torch.bfloat16)), random.choice((1, 1, 2))
    compiled, plain, resumed = (Trainee(case, dtype, samples) for _ in range(3))
    done = []
    for operation in operations(random):
        done.append(operation)
        said = compiled.do(*operation)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "available", False)
            assert plain.do(*operation) == said, (done, "the reference gives a different result")
        assert resumed.do(*operation) == said, (done, "the resumed one gives a different result")
        for trainee in (compiled, plain, resumed):
            trainee.check()
        with_reference, after_resuming = tensors(plain.optimizer), tensors(resumed.optimizer)
        assert_same(tensors(compiled.optimizer), with_reference)
        assert_same(tensors(compiled.optimizer), after_resuming)
        if not resumed.pending and random.random() < 0.3:
            resumed = resumed.replaced(random.choice(("file", "memory", "deepcopy", "pickle")))
            assert_same(tensors(compiled.optimizer), tensors(resumed.optimizer))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_sequence_of_operations() -> None:
    names = list(CASES)

    def one(case: int, random: Random) -> int:
        drive(names[case % len(names)], random)
        return 1

    assert count("optimizers") >= len(names), "every method is tested"
    run_cases("optimizers", "sequences", one)


def test_a_wrong_weight_and_a_poisoned_state_are_found() -> None:
    """Test the storm's own check."""
    trainee = Trainee("ste", torch.float32, 1)
    trainee.check()
    trainee.weight("0").data[0, 0] = 0.5
    with pytest.raises(AssertionError, match="neither -1 nor"):
        trainee.check()
    trainee = Trainee("float", torch.float32, 1)
    with suppress(NonFiniteGradient):
        trainee.explode(0, float("nan"))
    trainee.check()
    trainee.weight("0").data[0, 0] = float("nan")
    with pytest.raises(AssertionError, match="not finite"):
        trainee.check()
