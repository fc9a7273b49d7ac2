"""Packing: the file gives the torch model's outputs, and what cannot be packed is rejected by name."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import models, runtime
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.export import export_onnx
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.runs.evaluate import predict_file
from bayesbinn.runs.ship import pack_run
from bayesbinn.runs.single import Run
from bayesbinn.runs.trained import load_trained
from bayesbinn.runtime import reference


def prepared(model: nn.Module, *, binary: bool = True) -> nn.Module:
    """With weights of ±1 and random statistics, gains (of either sign) and biases."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_()
            if binary and parameter.ndim > 1 and "real" not in name:
                parameter.copy_(bb.sign(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            elif name.endswith("running_var"):
                buffer.uniform_(0.3, 3)
    return model


def outputs(packed: ModelFile, x: Tensor) -> Tensor:
    return torch.from_numpy(reference.run(packed, x.numpy()))


def agree(model: nn.Module, path: Path, x: Tensor, **options: Any) -> ModelFile:
    """Pack without the built-in verification, read the file again and compare with torch."""
    bb.pack(model, path, example_input=x, verify=False, **options)
    packed = model_file.read(path)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x)
    found = outputs(packed, x)[0].reshape(expected.shape)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5 * float(expected.abs().max()))
    return packed


def ops(packed: ModelFile) -> list[str]:
    return [node.op for node in packed.graph.nodes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# ---- networks ------------------------------------------------------------------------------------------

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_mlp": (lambda: models.mnist_mlp(width=0.02), (1, 28, 28)),
    "mnist_mlp, paper": (lambda: models.mnist_mlp(width=0.02, order="paper"), (1, 28, 28)),
    "continual_mlp": (lambda: models.continual_mlp(width=0.3), (784,)),
    "vgg": (lambda: models.vgg(width=0.04), (3, 32, 32)),
    "vgg, paper": (lambda: models.vgg(width=0.04, order="paper", image_size=16), (3, 16, 16)),
    "lrnet_mnist": (lambda: models.lrnet_mnist(width=0.1), (1, 28, 28)),
    "lrnet_mnist, paper": (lambda: models.lrnet_mnist(width=0.1, order="paper"), (1, 28, 28)),
    "lrnet_cifar10": (lambda: models.lrnet_cifar10(width=0.04), (3, 32, 32)),
    "synthetic_mlp": (lambda: models.synthetic_mlp(2), (2,)),
    "synthetic_mlp, BatchNorm": (lambda: models.synthetic_mlp(1, output_batchnorm=True), (1,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_networks(name: str, path: Path) -> None:
    make, shape = NETWORKS[name]
    packed = agree(prepared(make()), path, torch.randn(3, *shape))
    weights = [packed.tensors[node.tensors["weight"]] for node in packed.graph.nodes if "weight" in node.tensors]
    assert all(weight.dtype == np.uint8 for weight in weights)


def test_batchnorm_is_folded_into_its_layer_but_not_after_pooling(path: Path) -> None:
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3)]
    packed = agree(prepared(nn.Sequential(*layers)), path, torch.randn(2, 2, 8, 8))
    assert ops(packed) == ["conv2d", "max_pool2d", "affine", "relu", "affine"]
    assert set(packed.graph.nodes[0].tensors) == {"weight", "scale", "shift"}


class Residual(nn.Module):
    """A value with two users, a concatenation, and a BatchNorm that cannot be folded into its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding="same")
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2, bias=False)
        self.pool = nn.AdaptiveAvgPool2d((2, None))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 2 * 5, 6), nn.Hardtanh(-2, 3), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.second(torch.relu(self.norm(y)))
        z += y
        return torch.softmax(self.head(self.pool(torch.cat([y, torch.add(z, y)], dim=1))), dim=-1)


def test_residual_and_concatenation(path: Path) -> None:
    packed = agree(prepared(Residual()), path, torch.randn(2, 3, 7, 5))
    assert ops(packed)[:4] == ["conv2d", "affine", "relu", "conv2d"] and "concat" in ops(packed)


class Functional(nn.Module):
    """Parameters without modules; weights are signs of latent weights; forward uses the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 2, 3, 3))
        self.real_weight = nn.Parameter(torch.randn(5, 32))
        self.bias = nn.Parameter(torch.randn(5))
        self.register_buffer("running_mean", torch.randn(5))
        self.register_buffer("running_var", torch.rand(5) + 0.5)

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x = x * mask
        x = F.conv2d(x, torch.sign(self.kernel), stride=(2, 1), padding=1, dilation=(1, 2))
        x = F.relu6(F.max_pool2d(x, 2, stride=1))
        x = F.dropout(F.avg_pool2d(x, (2, 1), ceil_mode=True), training=self.training)
        x = x.contiguous().view(x.size(0), -1)
        x = F.linear(x, self.real_weight, self.bias)
        x = F.batch_norm(x, self.running_mean, self.running_var, eps=1e-3)
        x = F.hardtanh(x).tanh().sigmoid().clamp(0.2, 0.9).relu()
        return x.unsqueeze(1).flatten(1).reshape(-1, 5).softmax(1)


def test_functional_style(path: Path) -> None:
    model = Functional()
    packed = agree(model, path, torch.randn(2, 2, 7, 7))
    weights = [packed.tensors[node.tensors["weight"]].dtype for node in packed.graph.nodes if "weight" in node.tensors]
    assert weights == [np.uint8, np.float32]


def test_a_linear_layer_on_rows_of_rows_keeps_batchnorm_apart(path: Path) -> None:
    model = prepared(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)))
    assert ops(agree(model, path, torch.randn(2, 3, 6)))[:2] == ["linear", "affine"]


def test_shared_weights_are_stored_once(path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(9, 9), nn.Linear(9, 9), nn.BatchNorm1d(9)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.a(torch.tanh(self.norm(self.b(torch.relu(self.a(x)))))))

    model = prepared(Shared())
    packed = agree(model, path, torch.randn(2, 9))
    weights = [node.tensors["weight"] for node in packed.graph.nodes if "weight" in node.tensors]
    assert weights == ["a.weight"] * 3
    posterior = bb.BernoulliPosterior({"a.weight": torch.randn(9, 9)})
    x = torch.randn(5, 9)
    bb.pack(model, path, posterior, samples=2)
    ensemble_agrees(model, posterior, path, x, 2)


def test_a_single_layer_and_a_wrapped_one_are_models(path: Path) -> None:
    agree(prepared(nn.Linear(5, 3)), path, torch.randn(2, 5))
    wrapped = nn.DataParallel(prepared(nn.Sequential(nn.Linear(5, 3))))
    posterior = bb.BernoulliPosterior({"0.weight": torch.randn(3, 5)})
    bb.pack(wrapped, path, posterior)
    x = torch.randn(2, 5)
    expected = F.linear(x, posterior.mode()["0.weight"], wrapped.module[0].bias)
    torch.testing.assert_close(outputs(model_file.read(path), x)[0], expected)


def test_real_weights_of_either_size(path: Path) -> None:
    model = prepared(nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)), binary=False)
    x = torch.randn(4, 30)
    wide = agree(model, path, x)
    half = bb.pack(model, path, real="float16")
    assert {array.dtype.name for array in half.tensors.values()} == {"float16", "float32"}
    torch.testing.assert_close(outputs(half, x), outputs(wide, x), rtol=1e-2, atol=5e-2)
    with torch.no_grad():
        model[0].weight[0, 0] = 1e5
    with pytest.raises(InvalidInput, match=r"'0.weight' has a weight of 100000, too large for float16"):
        bb.pack(model, path, real="float16")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_convolution_and_pooling_modules(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, kernel, dilation = whole(1, 2), (whole(1, 3), whole(1, 4)), whole(1, 2)
    padding: Any = data.draw(st.sampled_from(["same", "valid", 1, (2, 0)]))
    stride = 1 if padding == "same" else (whole(1, 3), whole(1, 2))
    conv = nn.Conv2d(2 * groups, 3 * groups, kernel, stride, padding, dilation, groups, bias=data.draw(st.booleans()))
    size, ceil = whole(1, 3), data.draw(st.booleans())
    pool: nn.Module = data.draw(
        st.sampled_from(
            [
                nn.MaxPool2d(size, padding=size // 2, ceil_mode=ceil),
                nn.AvgPool2d(size, 2, size // 2, ceil, count_include_pad=not ceil),
                nn.AdaptiveMaxPool2d((size, None)),
                nn.AdaptiveAvgPool2d(size),
            ]
        )
    )
    x = torch.randn(2, 2 * groups, 9, 10)
    model = prepared(nn.Sequential(conv, nn.BatchNorm2d(3 * groups), pool, nn.Flatten()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same'")  # torch's note on even kernels
        try:
            model.eval()(x)
        except RuntimeError:
            assume(False)
        agree(model, tmp_path_factory.mktemp("pack") / "m.safetensors", x)


# ---- posteriors ------------------------------------------------------------------------------------------


def posterior_of(model: nn.Module, *, biases: bool = False, strength: float = 1.0) -> bb.BernoulliPosterior:
    binary, _ = bb.split_parameters(model, biases=biases)
    return bb.BernoulliPosterior({name: strength * torch.randn_like(p) for name, p in binary}, bb.LogitScale(2.0, 0.7))


def ensemble_agrees(
    model: nn.Module, posterior: bb.BernoulliPosterior, path: Path, x: Tensor, samples: int, **options: Any
) -> ModelFile:
    """The file's probabilities are those of `bb.predict`."""
    packed = model_file.read(path)
    assert packed.graph.networks == max(samples, 1)
    z = outputs(packed, x).double() * packed.graph.logit_scale
    expected = bb.predict(model, posterior, x, samples, **options).probabilities
    torch.testing.assert_close(z.softmax(-1).mean(0).float(), expected, rtol=1e-4, atol=1e-5)
    return packed


@pytest.mark.parametrize("samples", [0, 1, 4])
def test_ensembles_predict_as_predict_does(samples: int, path: Path) -> None:
    model = prepared(models.lrnet_mnist(width=0.1))
    posterior, x = posterior_of(model), torch.randn(5, 1, 28, 28)
    bb.pack(model, path, posterior, samples, seed=3, example_input=x)
    packed = ensemble_agrees(model, posterior, path, x, samples, seed=3)
    weight = packed.tensors["0.weight"]
    assert weight.shape == ((4, 3, 4) if samples == 4 else (3, 4)) and packed.tensors["0.scale"].shape == (3,)
    assert packed.graph.logit_scale == (0.7 if samples else 2.0)


HEADS: dict[str, tuple[nn.Module, ...]] = {
    "linear": (nn.Linear(9, 3, bias=False),),
    "with a bias": (nn.Linear(9, 3),),
    "BatchNorm": (nn.Linear(9, 3, bias=False), nn.BatchNorm1d(3, affine=False)),
    "one logit": (nn.Linear(9, 1, bias=False), nn.BatchNorm1d(1, affine=False)),
    "one flat logit": (nn.Linear(9, 1, bias=False), nn.Flatten(0)),
    "not linear": (nn.Linear(9, 3), nn.Tanh()),
}


@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("head", HEADS)
def test_shifts_reach_the_runtime_and_onnx(head: str, samples: int, path: Path) -> None:
    model = prepared(nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), *copy.deepcopy(HEADS[head])))
    shift = (0.7, -0.7) if "logit" in head else (1.5, -2.0, 0.5)
    scale = bb.LogitScale(1.7, 0.6, shift, tuple(-2 * each for each in shift))
    posterior = posterior_of(model, strength=0.4).with_logit_scale(scale)
    bb.pack(model, path, posterior, samples, example_input=torch.randn(2, 4))
    x = torch.randn(50, 4)
    expected = bb.predict(model, posterior, x, samples).probabilities.numpy()
    # Every instruction set sums logits of up to 10 in an order of its own, in float32.
    for backend in ("native", "reference"):
        found = runtime.load(path, backend=backend).predict_proba(x.numpy())
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    without = bb.predict(model, posterior.with_logit_scale(bb.LogitScale(1.7, 0.6)), x, samples).probabilities.numpy()
    assert np.abs(without - expected).max() > 0.1
    exported = pytest.importorskip("onnxruntime")
    export_onnx(model_file.read(path), path.with_suffix(".onnx"))
    session = exported.InferenceSession(str(path.with_suffix(".onnx")), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["probabilities"], {"input": x.numpy()})[0], expected, rtol=0, atol=2e-6)


def test_weights_without_a_posterior_are_packed_with_their_calibration(path: Path) -> None:
    model, x = prepared(nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))), torch.randn(20, 4)
    calibration = bb.LogitScale(2.5, mode_shift=(1.0, 0.5, -1.5))
    bb.pack(model, path, calibration=calibration)
    expected = bb.predict(model, None, x, calibration=calibration).probabilities.numpy()
    np.testing.assert_allclose(runtime.load(path).predict_proba(x.numpy()), expected, rtol=0, atol=1e-6)
    with pytest.raises(InvalidInput, match="shifts for 2 classes"):
        bb.pack(model, path, calibration=bb.LogitScale(mode_shift=(1.0, -1.0)))


def test_statistics_per_sample(path: Path) -> None:
    model = prepared(models.lrnet_mnist(width=0.1))
    posterior, x = posterior_of(model, strength=0.2), torch.randn(6, 1, 28, 28)
    statistics = bb.recalibrate(model, posterior, [x], samples=3, seed=1)
    bb.pack(model, path, posterior, 3, 1, x, statistics=statistics)
    packed = ensemble_agrees(model, posterior, path, x, 3, seed=1, statistics=statistics)
    assert packed.tensors["0.scale"].shape == (3, 3)
    with pytest.raises(InvalidInput, match="statistics are for seed 1"):
        bb.pack(model, path, posterior, 3, 2, x, statistics=statistics)


def test_binary_biases_are_part_of_the_shift_of_each_network(path: Path) -> None:
    model = prepared(nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3)))
    posterior = posterior_of(model, biases=True, strength=0.3)
    bb.pack(model, path, posterior, samples=4)
    packed = ensemble_agrees(model, posterior, path, torch.randn(5, 4), 4)
    assert packed.tensors["0.shift"].shape == (4, 9) and packed.tensors["0.scale"].shape == (9,)


def test_signs_of_latent_weights_follow_the_posterior(path: Path) -> None:
    class Latent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 7))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, -self.weight.sign())

    model, posterior = Latent(), bb.BernoulliPosterior({"weight": torch.randn(3, 7)})
    bb.pack(model, path, posterior, samples=3)
    ensemble_agrees(model, posterior, path, torch.randn(5, 7), 3)


def test_regression_has_no_logit_scale(path: Path) -> None:
    model = prepared(models.synthetic_mlp(1))
    posterior, x = posterior_of(model, biases=True), torch.randn(4, 1)
    packed = bb.pack(model, path, posterior, 3, task="regression", target=(5.0, 2.0))
    assert packed.graph.logit_scale == 1.0 and packed.graph.nodes[-1].op == "affine"
    expected = bb.predict(model, posterior, x, 3, task="regression")
    found = outputs(packed, x)
    torch.testing.assert_close(found.mean(0), expected.mean * 2 + 5, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.std(0), expected.std * 2, rtol=1e-4, atol=1e-4)


# ---- raw inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_normalisation_lets_the_file_take_pixels(count: int, path: Path) -> None:
    model = prepared(models.vgg(width=0.04, image_size=8))
    pixels = torch.randint(0, 256, (4, 3, 8, 8)).float()
    mean, std = torch.rand(count) * 100 + 50, torch.rand(count) * 50 + 20
    x = (pixels - mean[:, None, None]) / std[:, None, None]
    packed = bb.pack(model, path, None, example_input=x, normalisation=(mean, std), classes=[*"abcdefghij"])
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(outputs(packed, pixels)[0], expected, rtol=1e-4, atol=1e-4)
    assert ops(packed)[0] == "affine" and packed.graph.classes == tuple("abcdefghij")


# ---- the model does not change ------------------------------------------------------------------------------


def test_the_model_is_not_changed(path: Path) -> None:
    model = prepared(models.lrnet_mnist(width=0.1))
    model[1].eval()
    before, flags = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    posterior, x = posterior_of(model), torch.randn(2, 1, 28, 28)
    state = torch.get_rng_state()
    bb.pack(model, path, posterior, 2, example_input=x)
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in model.modules()] == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


class Remembers(nn.Module):
    """Counts its calls in a buffer and keeps what it saw last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.last: Any = "nothing"

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        return self.layer(x)


def test_what_a_forward_assigns_is_not_the_tracers(path: Path) -> None:
    model = Remembers()
    bb.pack(model, path, verify=False)
    assert model.calls.item() == 0 and model.last == "nothing"
    bb.pack(model, path)
    assert model.calls.item() == 0 and isinstance(model(torch.randn(2, 3)), Tensor)


def test_a_model_in_half_precision(path: Path) -> None:
    model = prepared(nn.Sequential(nn.Linear(40, 3), nn.BatchNorm1d(3))).bfloat16()
    assert bb.pack(model, path).tensors["0.weight"].dtype == np.uint8


def test_made_up_examples_do_not_change_the_random_state(path: Path) -> None:
    model = prepared(models.continual_mlp(width=0.1))
    state = torch.get_rng_state()
    bb.pack(model, path)
    assert torch.equal(state, torch.get_rng_state())


# ---- what is rejected ---------------------------------------------------------------------------------------


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "module": (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.GELU())), "GELU in module '1.1' is not"),
    "transposed": (nn.Sequential(nn.Linear(4, 4), nn.ConvTranspose2d(1, 1, 1)), "ConvTranspose2d in module '1' is not"),
    "function": (
        Calls(lambda x: torch.log(x)),
        r"log in .*test_packing.py, line \d+: `.*torch.log.*` is not supported",
    ),
    "method": (Calls(lambda x: x.exp()), r"Tensor.exp in .*test_packing.py, line \d+: `.*x\.exp\(\).*` is not"),
    "operator": (Calls(lambda x: x * 2), r"mul in .*test_packing.py"),
    "indexing": (Calls(lambda x: x[:, :2]), r"getitem in .*test_packing.py"),
    "several": (Calls(lambda x: x.chunk(2, dim=1)[0]), r"Tensor.chunk in .*test_packing.py"),
    "scalar": (Calls(lambda x: x + 1), "add in .* is not supported with 1 where"),
    "broadcast": (Calls(lambda x: x + x.view(-1, 1, 4)), "two values of the same shape"),
    "alpha": (Calls(lambda x: torch.add(x, x, alpha=2)), "two values of the same shape"),
    "batch mixed": (Calls(lambda x: x.view(-1, 2)), "is the batch and must not change"),
    "batch concatenated": (Calls(lambda x: torch.cat([x, x], 0)), r"cat in .* along dim=0"),
    "batch softmax": (Calls(lambda x: x.softmax(0)), r"along dim=0: an axis after the batch axis"),
    "computed weight": (Calls(lambda x: F.linear(x, x)), "as its weight, which must be a parameter"),
    "tuple": (Calls(lambda x: (x, x)), "returns a tuple; pack needs a model that returns one tensor"),
    "control flow": (Calls(lambda x: x if x.sum() > 0 else -x), "Calls cannot be traced .*fixed sequence"),
    "loop over the batch": (Calls(lambda x: torch.stack([row for row in x])), "Calls cannot be traced"),  # noqa: C416
    "own statistics": (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
        "BatchNorm1d in module '1' is not supported with batch statistics",
    ),
    "dropout that is on": (Calls(lambda x: F.dropout(x, training=True)), "pass training=self.training"),
    "no layer": (nn.Identity(), "pass a batch as example_input"),
    "convolution first": (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(4, 4)), "pass a batch as example_input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_packed_is_refused_by_name_and_place(case: str, path: Path) -> None:
    model, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message) as caught:
        bb.pack(model, path)
    assert "\n" not in str(caught.value)
    assert not path.exists()


IMAGES: dict[str, tuple[nn.Module, str]] = {
    "padding mode": (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "padding_mode='circular'; only 'zeros'"),
    "divisor": (
        nn.AvgPool2d(2, divisor_override=3),
        "AvgPool2d in module '0' is not supported with a divisor_override",
    ),
    "pooling of three axes": (nn.Sequential(nn.Flatten(2), nn.MaxPool1d(2)), r"MaxPool1d in module '0\.1' is not"),
    "no layer": (nn.Identity(), "does not return the output of a layer"),
    "wrong channels": (nn.Conv2d(3, 1, 1), r"cannot run on a batch of 3 examples of shape \(1, 6, 6\)"),
}


@pytest.mark.parametrize("case", IMAGES)
def test_refused_on_images(case: str, path: Path) -> None:
    layer, message = IMAGES[case]
    with pytest.raises(InvalidInput, match=message):
        bb.pack(nn.Sequential(layer), path, example_input=torch.randn(2, 1, 6, 6))


def test_a_fixed_batch_size_is_noticed(path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot run on a batch of 3"):
        bb.pack(Calls(lambda x: x.view(2, 4)), path, example_input=torch.randn(2, 4))


def test_what_the_tracer_does_not_see_is_found_by_the_proof(path: Path) -> None:
    model = nn.Sequential(prepared(nn.Linear(4, 4)), nn.ReLU())
    model[1].register_forward_hook(lambda module, args, output: output * 1.01)
    with pytest.raises(InvalidInput, match=r"does something that packing cannot see: .* look for hooks"):
        bb.pack(model, path)
    assert not path.exists()
    bb.pack(model, path, verify=False)
    assert path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": -1}, "samples=-1"),
        ({"samples": 2}, "samples=2 without a posterior"),
        ({"task": "ranking"}, "task='ranking'"),
        ({"real": "float8"}, "real='float8'"),
        ({"target": (0.0, 1.0)}, "only for regression"),
        ({"classes": ["a", "b"]}, "2 class names for 3 classes"),
        ({"features": ["a", "b"]}, "2 column names"),
        ({"normalisation": (torch.zeros(2), torch.ones(2))}, "mean has shape .2,.; 1 or 4 values are needed"),
        ({"normalisation": (torch.zeros(4), torch.zeros(4))}, "has NaN or infinite values"),
        ({"posterior": bb.BernoulliPosterior({"w": torch.ones(2)})}, "this posterior belongs to a different model"),
        ({"example_input": torch.randn(4)}, "pass a batch"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        bb.pack(nn.Linear(4, 3), path, **options)
    assert not path.exists()


def test_nan_weights_are_refused_by_name(path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(InvalidInput, match=r"Sequential cannot be packed: tensor '0.weight' has NaN"):
        bb.pack(model, path)


# ---- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "most"),
    [(models.mnist_mlp, (1, 28, 28), 1_310_000), (models.vgg, (3, 32, 32), 1_790_000)],
)
def test_the_summary_predicts_the_size_of_the_file(
    make: Callable[[], nn.Module], shape: tuple[int, ...], most: int, path: Path
) -> None:
    model = prepared(make())
    bb.pack(model, path, example_input=torch.randn(1, *shape), verify=False)
    size = path.stat().st_size
    assert size <= most
    assert bb.summary(model).total.packed_bytes == pytest.approx(size, rel=0.01)
    assert int.from_bytes(path.read_bytes()[:8], "little") < 6000


# ---- runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "samples"), [("bayesbinn", 0), ("bayesbinn", 3), ("float", 0)])
def test_a_run_becomes_a_file_that_takes_raw_columns(method: str, samples: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(80, 3)) * [1, 10, 100] + [0, 5, -50]
    labels = np.where(table[:, 0] + table[:, 1] / 10 > 0.5, "yes", "no")
    lines = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(table, labels, strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    overrides = {"training.epochs": 2, "model.width": 0.01}
    experiment, _ = choose_for_file(str(tmp_path / "own.csv"), "label", method, overrides)
    Run.open(experiment, tmp_path / "run").train()

    packed = pack_run(tmp_path / "run", samples=samples)
    assert packed.encoding is not None
    assert packed.graph.classes == ("no", "yes") and packed.encoding.names == ("a", "b", "c")
    assert packed.graph.networks == 4 * max(1, samples)
    (tmp_path / "new.csv").write_text("\n".join(["a,b,c", *(line.rpartition(",")[0] for line in lines)]) + "\n")
    predict_file(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.json", samples, None)
    rows = json.loads((tmp_path / "out.json").read_text())
    expected = torch.tensor([row["p(yes)"] for row in rows], dtype=torch.float64)
    read = model_file.read(tmp_path / "run" / "model.safetensors")
    codes = packed.encoding.encode_array(table)
    z = torch.from_numpy(reference.run(read, codes)).double() * read.graph.logit_scale
    torch.testing.assert_close(z.softmax(-1).mean(0)[:, 1], expected, rtol=1e-3, atol=1e-4)
    if method == "float":
        with pytest.raises(InvalidInput, match="has no posterior to draw 2 samples from"):
            pack_run(tmp_path / "run", samples=2)


def test_a_regression_run_gives_the_unit_of_its_targets(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a},{b},{300 + 20 * a + 0.1 * i}" for i, (a, b) in enumerate(x)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,price", *lines]) + "\n")
    overrides = {"training.epochs": 2, "model.width": 0.01}
    experiment, _ = choose_for_file(str(tmp_path / "own.csv"), "price", "bayesbinn", overrides)
    Run.open(experiment, tmp_path / "run").train()

    packed = pack_run(tmp_path / "run", tmp_path / "elsewhere.safetensors")
    _, dataset, model, posterior = load_trained(tmp_path / "run")
    rows = dataset.train_inputs[:5]
    mean = bb.predict(model, posterior, dataset.normaliser(rows), task="regression").mean
    expected = mean * dataset.target_std + dataset.target_mean
    assert packed.graph.task == "regression" and bool((expected > 200).all())
    torch.testing.assert_close(outputs(packed, rows).mean(0), expected, rtol=1e-4, atol=1e-2)


def test_a_run_on_images_gives_a_file_that_takes_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (rng.integers(0, 120, size=(40, 3, 16, 16)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=images, y=labels)
    overrides = {"training.epochs": 1, "model.width": 0.02}
    experiment, _ = choose_for_file(str(tmp_path / "own.npz"), None, "bayesbinn", overrides)
    Run.open(experiment, tmp_path / "run").train()

    packed = pack_run(tmp_path / "run", fit_scale=False)
    _, dataset, model, posterior = load_trained(tmp_path / "run")
    assert packed.graph.input_shape == (3, 16, 16) and packed.graph.features == ()
    expected = bb.predict(model, posterior, dataset.normaliser(torch.from_numpy(images))).probabilities
    found = outputs(packed, torch.from_numpy(images.astype(np.float32)))[0].softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
