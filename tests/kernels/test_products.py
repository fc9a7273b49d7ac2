"""Products with matrices of signs are those of torch, forward and backward; anything else is left to torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import bayesbinn as bb
from bayesbinn.kernels import native, products
from bayesbinn.methods import METHODS

needs_lookup = pytest.mark.skipif(not native.multiplies_signs, reason="no products of signs: they need AVX2")

SHAPES = [
    (1, 1, 1),
    (2, 3, 5),
    (9, 31, 17),
    (10, 32, 16),
    (11, 33, 15),
    (100, 784, 130),
    (23, 65, 2049),
    (1, 257, 1025),
    (5, 2081, 70),
]
"""Examples, inputs and outputs, around every border of the kernel's blocks."""


@pytest.fixture
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(products, "LEAST_SIDE", 1)
    monkeypatch.setattr(products, "LEAST_EXAMPLES", 1)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def signs(rows: int, columns: int, seed: int = 1) -> Tensor:
    return drawn(rows, columns, seed=seed).sign()


def is_looked_up(output: Tensor) -> bool:
    """Whether the output, or what a bias was added to, was looked up."""
    step = output.grad_fn
    assert step is not None
    return "SignLinear" in type(step).__name__ or any("SignLinear" in type(f).__name__ for f, _ in step.next_functions)


def assert_close(ours: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


@needs_lookup
class TestLookup:
    @pytest.mark.parametrize(("examples", "inputs", "outputs"), SHAPES)
    def test_agrees_with_double_precision(self, examples: int, inputs: int, outputs: int) -> None:
        weight, x, y = signs(outputs, inputs), drawn(examples, inputs), drawn(examples, outputs, seed=2)
        packed = native.packed_signs(weight)
        assert packed is not None
        assert_close(packed.times_transposed(x), x.double() @ weight.double().T)
        assert_close(packed.times(y), y.double() @ weight.double())

    def test_long_sums_are_as_precise_as_torch_s(self) -> None:
        weight, x = torch.ones(64, 16384), torch.full((3, 16384), 0.1)
        packed = native.packed_signs(weight)
        assert packed is not None
        exact = x.double().sum(1, keepdim=True)
        assert float(((packed.times_transposed(x) - exact) / exact).abs().max()) < 3e-6

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_the_default_dtype_does_not_matter(self, dtype: torch.dtype) -> None:
        weight, x = signs(70, 65), drawn(3, 65)
        torch.set_default_dtype(dtype)
        try:
            packed = native.packed_signs(weight)
            assert packed is not None
            found = packed.times_transposed(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, x @ weight.T)

    def test_small_whole_numbers_are_exact(self) -> None:
        weight, x = signs(130, 300), drawn(23, 300).mul(8).round()
        packed = native.packed_signs(weight)
        assert packed is not None
        assert torch.equal(packed.times_transposed(x), x @ weight.T)

    def test_does_not_depend_on_threads_or_other_examples(self) -> None:
        weight, x = signs(2100, 300), drawn(37, 300)
        packed = native.packed_signs(weight)
        assert packed is not None
        before = torch.get_num_threads()
        try:
            found = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(packed.times_transposed(x))
        finally:
            torch.set_num_threads(before)
        alone = torch.cat([packed.times_transposed(x[i : i + 1]) for i in range(len(x))])
        assert all(torch.equal(each, alone) for each in found)

    @pytest.mark.parametrize("value", [0.0, -0.0, 1.0000001, -0.99999994, 2.0, float("nan"), float("inf")])
    @pytest.mark.parametrize("place", [(0, 0), (32, 40), (64, 72)])
    def test_only_signs_are_packed(self, value: float, place: tuple[int, int]) -> None:
        weight = signs(65, 73)
        assert native.packed_signs(weight) is not None
        weight[place] = value
        assert native.packed_signs(weight) is None

    def test_a_nan_reaches_only_its_own_example(self) -> None:
        x = drawn(12, 64)
        x[3, 7], x[5, 9] = float("nan"), float("inf")
        packed = native.packed_signs(signs(40, 64))
        assert packed is not None
        finite = packed.times_transposed(x).isfinite().all(1)
        assert finite.tolist() == [i not in (3, 5) for i in range(12)]

    def test_wrong_shapes_are_refused(self) -> None:
        packed = native.packed_signs(signs(40, 64))
        assert packed is not None
        for wrong in (drawn(3, 65), drawn(3, 64).double(), drawn(64, 3).t()):
            with pytest.raises(ValueError, match="64 contiguous ones of float32 are needed"):
                packed.times_transposed(wrong)


OUTER_SHAPES = [
    (1, 1, 1),
    (3, 5, 63),
    (99, 6, 64),
    (100, 7, 65),
    (101, 767, 15),
    (250, 769, 130),
    (2, 1540, 17),
]
"""Examples, rows and columns, around every border of the kernel's tiles and pieces."""


@pytest.mark.skipif(not native.multiplies_outer, reason="no outer products: they need AVX-512")
class TestOuterProduct:
    @pytest.mark.parametrize(("examples", "rows", "columns"), OUTER_SHAPES)
    def test_agrees_with_double_precision(self, examples: int, rows: int, columns: int) -> None:
        gradients, inputs = drawn(examples, rows), drawn(examples, columns, seed=1)
        assert_close(native.outer(gradients, inputs), gradients.double().T @ inputs.double())

    def test_small_whole_numbers_are_exact(self) -> None:
        gradients, inputs = drawn(230, 50).mul(8).round(), drawn(230, 70, seed=1).mul(8).round()
        assert torch.equal(native.outer(gradients, inputs), gradients.T @ inputs)

    def test_does_not_depend_on_threads_or_other_rows_and_columns(self) -> None:
        gradients, inputs = drawn(130, 1600), drawn(130, 200, seed=1)
        before = torch.get_num_threads()
        try:
            found = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(native.outer(gradients, inputs))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
        part = native.outer(gradients[:, 11:900].contiguous(), inputs[:, 7:150].contiguous())
        assert torch.equal(part, found[0][11:900, 7:150])

    def test_without_examples_it_is_zero(self) -> None:
        assert torch.equal(native.outer(drawn(0, 7), drawn(0, 65)), torch.zeros(7, 65))
        assert native.outer(drawn(3, 0), drawn(3, 65)).shape == (0, 65)

    def test_a_nan_reaches_only_its_own_row_and_column(self) -> None:
        gradients, inputs = drawn(12, 10), drawn(12, 70)
        gradients[3, 9], inputs[5, 69] = float("nan"), float("inf")
        finite = native.outer(gradients, inputs).isfinite()
        assert finite[:9, :69].all() and not finite[9].any() and not finite[:, 69].any()

    def test_wrong_matrices_are_refused(self) -> None:
        good = drawn(3, 65)
        for wrong in (drawn(4, 65), drawn(3), drawn(3, 65).double(), drawn(65, 3).t()):
            with pytest.raises(ValueError, match="contiguous float32 rows are needed"):
                native.outer(good, wrong)

    @pytest.mark.usefixtures("_any_size")
    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_it_takes_the_gradient_of_the_weight(self, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
        outer, seen = native.outer, []

        def seeing(gradients: Tensor, inputs: Tensor) -> Tensor:
            seen.append((gradients.shape, inputs.shape))
            return outer(gradients, inputs)

        monkeypatch.setattr(native, "outer", seeing)
        x, weight = drawn(4, 20, 50), (scale * signs(30, 50)).requires_grad_()
        y = products.linear(x, weight)
        assert is_looked_up(y) == (scale == 1)
        torch.testing.assert_close(y, F.linear(x, weight), rtol=1e-5, atol=1e-4)
        (found,) = torch.autograd.grad(y, weight, drawn(4, 20, 30, seed=2), retain_graph=True)
        assert seen.pop() == ((80, 30), (80, 50)) and not seen
        torch.testing.assert_close(
            found, drawn(4, 20, 30, seed=2).reshape(80, 30).T @ x.reshape(80, 50), rtol=1e-5, atol=1e-4
        )
        with FlopCounterMode(display=False) as flops:
            torch.autograd.grad(y, weight, drawn(4, 20, 30, seed=2))
        assert not seen and flops.get_total_flops() == 2 * 80 * 30 * 50, "somebody watches"
        x.requires_grad_()
        (found,) = torch.autograd.grad(products.linear(x, weight), x, drawn(4, 20, 30, seed=2))
        assert seen[:-1] == ([] if scale == 1 else [((30, 80), (30, 50))]), "signs are looked up"
        torch.testing.assert_close(found, drawn(4, 20, 30, seed=2) @ weight, rtol=1e-5, atol=1e-4)


@needs_lookup
@pytest.mark.usefixtures("_any_size")
class TestLinear:
    @pytest.mark.parametrize("shape", [(20, 50), (4, 5, 50), (2, 3, 4, 50)])
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_gradients_are_those_of_torch(self, shape: tuple[int, ...], with_bias: bool, scale: float) -> None:
        x, weight = drawn(*shape).requires_grad_(), (scale * signs(30, 50)).requires_grad_()
        bias = drawn(30, seed=3).requires_grad_() if with_bias else None
        given = [x, weight] + ([bias] if bias is not None else [])
        ours, theirs = products.linear(x, weight, bias), F.linear(x, weight, bias)
        assert is_looked_up(ours) == (scale == 1)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
        weights = drawn(*ours.shape, seed=4)
        for mine, expected in zip(
            torch.autograd.grad(ours, given, weights), torch.autograd.grad(theirs, given, weights), strict=True
        ):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-4)

    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_the_gradient_can_be_differentiated_again(self, scale: float) -> None:
        x, weight = drawn(20, 50).requires_grad_(), (scale * signs(30, 50)).requires_grad_()
        found = []
        for linear in (products.linear, F.linear):
            (slope,) = torch.autograd.grad(linear(x, weight).pow(2).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.pow(2).sum(), weight)[0])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-2)

    def test_a_gradient_with_a_stride_is_read_in_order(self) -> None:
        x, weight = drawn(20, 50).requires_grad_(), signs(30, 50)
        strided = drawn(30, 20, seed=5).t()
        (ours,) = torch.autograd.grad(products.linear(x, weight), x, strided)
        torch.testing.assert_close(ours, strided @ weight, rtol=1e-5, atol=1e-4)

    @pytest.mark.parametrize("scale", [1.0, 0.5])
    def test_changing_the_weight_before_backward_is_an_error(self, scale: float) -> None:
        x, weight = drawn(20, 50).requires_grad_(), (scale * signs(30, 50)).requires_grad_().clone()
        y = products.linear(x, weight)
        weight.neg_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_leaves_to_torch_what_it_cannot_do(self) -> None:
        x, weight = drawn(20, 50).requires_grad_(), signs(30, 50)
        assert is_looked_up(products.linear(x, weight))
        soft = weight.clone()
        soft[29, 49] = 0.5
        unsuited = [
            (x, soft),
            (x.double(), weight.double()),
            (x[0], weight),
            (drawn(50, 20).requires_grad_().t(), weight),
        ]
        for inputs, matrix in unsuited:
            y = products.linear(inputs, matrix)
            assert torch.equal(y, F.linear(inputs, matrix))
            assert not is_looked_up(y)
        with torch.autocast("cpu", torch.bfloat16):
            assert products.linear(x, weight).dtype is torch.bfloat16
        with torch.no_grad():
            assert torch.equal(products.linear(x, weight), F.linear(x, weight))
        with pytest.raises(RuntimeError):
            products.linear(x, weight, drawn(30).double())
        assert torch.equal(products.linear(x, weight, drawn(20, 30)), F.linear(x, weight, drawn(20, 30)))
        plain = drawn(20, 50)
        for odd in (plain.to_sparse(), plain.to_mkldnn()):
            assert not products._suits(odd, weight, None)

    @pytest.mark.parametrize("with_bias", [True, False])
    def test_without_gradients_there_is_a_function_of_its_own(self, with_bias: bool) -> None:
        x, weight, bias = drawn(4, 20, 50), signs(30, 50), drawn(30, seed=3) if with_bias else None
        exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert torch.equal(products.linear_without_gradients(x, weight, bias), F.linear(x, weight, bias))
        packed = native.packed_signs(weight)
        assert packed is not None
        looked_up = packed.times_transposed(x)
        with torch.no_grad():
            found = products.linear_without_gradients(x, weight, bias)
        assert torch.equal(found, looked_up if bias is None else looked_up + bias)
        assert_close(found, exact)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert products.linear_without_gradients(x, weight).dtype is torch.bfloat16
        with torch.inference_mode():
            soft = weight / 2
            assert torch.equal(products.linear_without_gradients(x, soft), F.linear(x, soft))

    @pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")
    @pytest.mark.filterwarnings("ignore:TF32")
    @pytest.mark.parametrize("shape", [(20, 50), (2, 3, 4, 50)])
    def test_onednn_multiplies_as_torch_does(self, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        x, weight = drawn(*shape), drawn(30, 50, seed=1)
        monkeypatch.setattr(products, "_prefers_onednn", False)
        assert torch.equal(products._times_transposed(x, weight), F.linear(x, weight))
        monkeypatch.setattr(products, "_prefers_onednn", True)
        with torch.no_grad():
            assert_close(products._times_transposed(x, weight), x.double() @ weight.double().T)
            with torch.backends.mkldnn.flags(enabled=False):
                assert torch.equal(products._times_transposed(x, weight), F.linear(x, weight))

    def test_narrow_layers_are_left_to_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        assert products.worthwhile(signs(512, 512))
        assert not products.worthwhile(signs(10, 30_000)) and not products.worthwhile(signs(30_000, 10))

    def test_works_under_vmap(self) -> None:
        x, weight = drawn(6, 20, 50), signs(30, 50)
        ours = torch.func.vmap(products.linear, (0, None))(x, weight)
        torch.testing.assert_close(ours, F.linear(x, weight))


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.linear = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.linear += func is F.linear
        return func(*args, **(kwargs or {}))


@pytest.fixture
def inside() -> Iterator[nn.Sequential]:
    """A network of three layers, two of them large, inside a training block."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(600, 512, bias=False), nn.Tanh(), nn.Linear(512, 512, bias=False), nn.Tanh()),
        nn.Linear(512, 10, bias=False),
    )
    binary, _ = bb.split_parameters(model)
    optimizer = bb.STEAdam(binary, lr=1e-3)
    with optimizer.sampled_params(train=True):
        yield model


class TestWatched:
    """Whatever else watches or transforms torch's calls sees torch's own."""

    def test_it_is_used_otherwise(self, inside: nn.Sequential) -> None:
        assert is_looked_up(inside[0](drawn(50, 600))) == native.multiplies_signs

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_checkpoints(self, inside: nn.Sequential, reentrant: bool) -> None:
        x = drawn(50, 600).requires_grad_()
        checkpoint(inside, x, use_reentrant=reentrant).pow(2).mean().backward()
        assert x.grad is not None
        expected = torch.autograd.grad(inside(x).pow(2).mean(), x)[0]
        assert float((x.grad - expected).abs().max()) < 1e-4 * float(expected.abs().max())

    def test_batches_of_gradients(self, inside: nn.Sequential) -> None:
        x, batch = drawn(50, 600).requires_grad_(), drawn(4, 50, 10, seed=1)
        y = inside(x)
        (found,) = torch.autograd.grad(y, x, batch, is_grads_batched=True, retain_graph=True)
        expected = torch.stack([torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in batch])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)

    def test_tangents(self, inside: nn.Sequential) -> None:
        x, direction, weight = drawn(50, 600), drawn(50, 600, seed=6), inside[0].weight.detach()
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(inside[0](forward_ad.make_dual(x, direction))).tangent
        torch.testing.assert_close(tangent, direction @ weight.T)
        x.requires_grad_()
        y = inside[0](x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(drawn(50, 512), drawn(50, 512, seed=7))
            (slope,) = torch.autograd.grad(y, x, dual)
            tangent = forward_ad.unpack_dual(slope).tangent
        torch.testing.assert_close(tangent, drawn(50, 512, seed=7) @ weight)

    def test_tracers(self, inside: nn.Sequential) -> None:
        other = drawn(50, 600, seed=8)
        for traced in (make_fx(lambda x: inside(x))(drawn(50, 600)), torch.jit.trace(inside, drawn(50, 600))):
            torch.testing.assert_close(traced(other), inside(other), rtol=1e-4, atol=1e-3)

    def test_modes(self, inside: nn.Sequential) -> None:
        with _Counting() as counting:
            inside(drawn(50, 600))
        assert counting.linear == 3
        with FlopCounterMode(display=False) as flops:
            inside(drawn(50, 600))
        assert flops.get_total_flops() == 2 * 50 * (600 * 512 + 512 * 512 + 512 * 10)

    def test_a_torch_with_other_internals(self, inside: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
        assert not is_looked_up(inside[0](drawn(50, 600)))

    def test_other_arguments(self, inside: nn.Sequential) -> None:
        out = torch.empty(50, 512)
        with torch.no_grad():
            F.linear(drawn(50, 600), inside[0].weight, out=out)
        torch.testing.assert_close(out, inside[0](drawn(50, 600)).detach(), rtol=1e-4, atol=1e-3)


class TestTraining:
    """What a method makes of it."""

    @staticmethod
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(600, 512, bias=False), nn.Tanh(), nn.Linear(512, 10, bias=False))

    @pytest.mark.parametrize("method", ["bayesbinn", "ste", "bop", "pmf", "float"])
    def test_only_hard_weights_are_looked_up(self, method: str) -> None:
        model = self.network()
        binary, _ = bb.split_parameters(model)
        settings = {"bayesbinn": {"temperature": 1e-10}, "bop": {"threshold": 1e-8}}.get(method, {})
        optimizer = METHODS[method].create(binary, train_set_size=100, lr=1e-3, **settings)
        with optimizer.sampled_params(train=True):
            assert is_looked_up(model[0](drawn(50, 600))) == (
                native.multiplies_signs and method not in ("pmf", "float")
            )
            assert not is_looked_up(model[2](drawn(50, 512))), "a small layer"
        assert not is_looked_up(model[0](drawn(50, 600)))

    @pytest.mark.skipif(not native.multiplies_outer, reason="no outer products: they need AVX-512")
    @pytest.mark.parametrize("method", ["pmf", "float"])
    def test_the_gradients_of_real_weights_are_summed_in_registers(self, method: str) -> None:
        model = self.network()
        binary, _ = bb.split_parameters(model)
        optimizer = METHODS[method].create(binary, train_set_size=100, lr=1e-3)
        with optimizer.sampled_params(train=True):
            assert "RealLinear" in type(model[0](drawn(50, 600)).grad_fn).__name__
        assert "RealLinear" not in type(model[0](drawn(50, 600)).grad_fn).__name__

    def test_a_step_is_that_of_the_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        naturals = []
        for lookup in (native.multiplies_signs, False):
            monkeypatch.setattr(native, "multiplies_signs", lookup)
            model = self.network()
            binary, _ = bb.split_parameters(model)
            optimizer = bb.BayesBiNN(binary, lr=1e-4, train_set_size=1000, temperature=1e-10, seed=0)
            with optimizer.sampled_params(train=True):
                F.cross_entropy(model(drawn(50, 600)), torch.arange(50) % 10).backward()
            optimizer.step()
            naturals.append(optimizer.posterior().natural)
        for name, natural in naturals[0].items():
            scale = float(natural.abs().max())
            torch.testing.assert_close(natural / scale, naturals[1][name] / scale, rtol=1e-4, atol=1e-5)

    def test_a_compiled_model_trains(self) -> None:
        model = self.network()
        binary, _ = bb.split_parameters(model)
        optimizer = bb.STEAdam(binary, lr=1e-3)
        compiled = torch.compile(model, backend="eager")
        with optimizer.sampled_params(train=True):
            loss = compiled(drawn(50, 600)).pow(2).mean()
            torch.testing.assert_close(loss, model(drawn(50, 600)).pow(2).mean(), rtol=1e-4, atol=1e-4)
            loss.backward()
        optimizer.step()
        bb.check_binary(model)


def test_other_instruction_sets_leave_it_to_torch() -> None:
    code = "from bayesbinn.kernels import native, products; import torch; "
    code += (
        "w = torch.ones(600, 600); print(native.multiplies_signs, native.multiplies_outer, products.worthwhile(w), "
        "products.linear(w, w)[0, 0])"
    )
    environment = {"BAYESBINN_ISA": "portable", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.split() == ["False", "False", "False", "tensor(600.)"]
