"""Parameters, bytes and multiply-adds, counted exactly."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from bayesbinn.errors import InvalidInput
from bayesbinn.models import mnist_mlp
from bayesbinn.packing.sizes import LayerSummary, summary


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 5, bias=False),
    )


def test_the_mnist_network_to_the_byte() -> None:
    found = summary(mnist_mlp(), torch.zeros(3, 784))
    weights = 784 * 2048 + 2 * 2048 * 2048 + 2048 * 10
    channels = 3 * 2048 + 10
    total = found.total
    assert (total.binary, total.real, total.macs) == (weights, 0, weights)
    # BatchNorm keeps a mean and a variance per channel, or a scale and a shift.
    assert total.float32_bytes == 4 * weights + 8 * channels == 40_108_112
    assert total.packed_bytes == weights // 8 + 8 * channels == 1_301_072
    assert found.compression == pytest.approx(40_108_112 / 1_301_072)
    assert [layer.kind for layer in found.layers] == ["Linear", "BatchNorm1d"] * 4


def test_a_convolution_with_groups_stride_and_bias() -> None:
    found = summary(small_cnn(), torch.zeros(2, 4, 6, 6))
    convolution, norm, linear = found.layers
    # [6, 2, 3, 3]: 18 weights per output channel, 3 bytes; the bias is real; outputs are 6×3×3.
    assert convolution == LayerSummary("0", "Conv2d", 108, 6, 4 * 114, 6 * 3 + 4 * 6, 6 * 9 * 18)
    # Gain and bias are parameters, mean and variance are not; folded, two numbers per channel remain.
    assert norm == LayerSummary("1", "BatchNorm2d", 0, 12, 4 * 24, 8 * 6, 0)
    # 54 weights per row need 7 bytes.
    assert linear == LayerSummary("4", "Linear", 270, 0, 4 * 270, 5 * 7, 270)
    assert found.total == LayerSummary("total", "", 378, 18, 456 + 96 + 1080, 42 + 48 + 35, 972 + 270)


def test_a_transposed_convolution() -> None:
    (layer,) = summary(nn.ConvTranspose2d(3, 2, 2, stride=2, bias=False), torch.zeros(4, 3, 5, 5)).layers
    # Each of 3·5·5 inputs is multiplied by 2·2·2 weights.
    assert (layer.binary, layer.macs, layer.packed_bytes) == (24, 75 * 8, 3)


def test_a_sequence_counts_every_position() -> None:
    (layer,) = summary(nn.Linear(8, 4, bias=False), torch.zeros(2, 7, 8)).layers
    assert layer.macs == 7 * 32


class Shared(nn.Module):
    """One module used twice, and a weight tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.again = self.layer
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tied(self.again(self.layer(input=x)))
        return y


def test_what_is_shared_counts_once_but_computes_every_time() -> None:
    found = summary(Shared(), torch.zeros(2, 4))
    assert [(layer.name, layer.binary, layer.macs) for layer in found.layers] == [("layer", 16, 32), ("tied", 0, 16)]
    assert (found.total.float32_bytes, found.total.packed_bytes) == (64, 4)
    assert summary(Shared()).total.binary == 16


def test_the_rule_for_what_is_binary_can_be_given() -> None:
    found = summary(small_cnn(), binary=["4.weight"])
    assert (found.total.binary, found.total.real) == (270, 126)
    assert found.layers[0].packed_bytes == found.layers[0].float32_bytes == 4 * 114


def test_real_buffers_count_and_batchnorm_without_statistics_is_not_folded() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2, track_running_stats=False))
    model.register_buffer("offset", torch.zeros(5))
    found = summary(model)
    assert [(layer.name, layer.float32_bytes, layer.packed_bytes) for layer in found.layers] == [
        ("", 20, 20),
        ("0", 24, 2),
        ("1", 16, 16),
    ]


def test_the_model_is_not_changed() -> None:
    model = small_cnn()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    summary(model, torch.randn(2, 4, 6, 6))
    with pytest.raises(RuntimeError):
        summary(model, torch.randn(2, 5, 6, 6))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert not any(module._forward_hooks for module in model.modules())


def test_wrappers_do_not_show() -> None:
    plain = summary(small_cnn(), torch.zeros(1, 4, 6, 6))
    for wrapped in (nn.DataParallel(small_cnn()), torch.compile(small_cnn(), backend="eager")):
        assert summary(wrapped, torch.zeros(1, 4, 6, 6)) == plain


def test_the_table_is_aligned_and_the_dictionary_plain() -> None:
    found = summary(small_cnn(), torch.zeros(1, 4, 6, 6))
    assert str(found).splitlines() == [
        "layer  type         binary  real  float32 bytes  packed bytes  multiply-adds",
        "----------------------------------------------------------------------------",
        "0      Conv2d          108     6            456            42            972",
        "1      BatchNorm2d       0    12             96            48              0",
        "4      Linear          270     0          1,080            35            270",
        "----------------------------------------------------------------------------",
        "total                  378    18          1,632           125          1,242",
        "13.1 times smaller than float32",
    ]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["total"]["packed_bytes"] == 125
    assert plain["layers"][2]["name"] == "4"
    assert plain["compression"] == pytest.approx(1632 / 125)


def test_without_an_example_there_are_no_multiply_adds() -> None:
    found = summary(small_cnn())
    assert found.total.macs is None
    assert {layer.macs for layer in found.layers} == {None}


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(InvalidInput, match=r"example_input has shape \(0, 4, 6, 6\)"):
        summary(small_cnn(), torch.zeros(0, 4, 6, 6))
    with pytest.raises(InvalidInput, match="ReLU has no parameters"):
        summary(nn.ReLU())
    with pytest.raises(InvalidInput, match=r"no parameter '5.weight'. Did you mean '4.weight'"):
        summary(small_cnn(), binary=["5.weight"])
