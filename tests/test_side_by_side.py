"""Networks side by side are as many networks: in training, prediction, calibration and in a model file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.methods.registry import METHODS
from bayesbinn.models import SideBySide
from bayesbinn.models.side_by_side import together
from bayesbinn.runtime import reference
from bayesbinn.train.loop import Totals, train_batches

SIZES, NETWORKS, COPIES = (5, 7, 6, 3), 3, 4


def randomised() -> SideBySide:
    """Networks whose weights are ±1, and whose statistics, gains and shifts differ from their start."""
    torch.manual_seed(0)
    model = SideBySide(SIZES, NETWORKS, COPIES)
    with torch.no_grad():
        for layer in model.layers:
            layer.weight.copy_(bb.sign(torch.randn_like(layer.weight)))
        for norm in model.norms:
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                tensor.copy_(torch.randn_like(tensor))
            norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return model


def alone(model: SideBySide, index: int) -> nn.Sequential:
    """One of the networks, built of torch's layers."""
    modules: list[nn.Module] = []
    for place, (layer, norm) in enumerate(zip(model.layers, model.norms, strict=True)):
        units = SIZES[place + 1]
        own = slice(index * units, (index + 1) * units)
        linear = nn.Linear(layer.in_features, units, bias=False)
        batchnorm = nn.BatchNorm1d(units)
        linear.load_state_dict({"weight": layer.weight[own]})
        state = norm.state_dict()
        batchnorm.load_state_dict({key: value[own] if value.dim() else value for key, value in state.items()})
        modules += [linear, batchnorm, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval()


def separate(model: SideBySide, x: Tensor) -> Tensor:
    return torch.stack([alone(model, i)(x.repeat(1, COPIES)) for i in range(NETWORKS)])


def test_each_network_computes_what_it_computes_alone() -> None:
    model, x = randomised().eval(), torch.randn(11, 5)
    with torch.no_grad():
        expected = separate(model, x)
        torch.testing.assert_close(model(x).transpose(0, 1), expected)
        torch.testing.assert_close(model.outputs(x), expected)
        torch.testing.assert_close(model.first(2).eval()(x).transpose(0, 1), expected[:2])


def test_settled_statistics_are_those_of_the_rows() -> None:
    model, x = randomised(), torch.randn(40, 5)
    model.settle(x)
    settled = model.outputs(x).transpose(0, 1)
    with torch.no_grad():
        in_training = model.train()(x)
    torch.testing.assert_close(settled, in_training, rtol=1e-4, atol=1e-4)
    weights = torch.rand(40)
    model.settle(x.repeat_interleave(2, 0), (weights / weights.sum() / 2).repeat_interleave(2))
    twice = model.outputs(x)
    model.settle(x, weights / weights.sum())
    torch.testing.assert_close(model.outputs(x), twice, rtol=1e-4, atol=1e-4)


def test_prediction_averages_probabilities_and_reports_disagreement() -> None:
    model, x = randomised(), torch.randn(9, 5)
    prediction = bb.predict(model, None, x)
    expected = separate(model, x).softmax(-1).mean(0)
    torch.testing.assert_close(prediction.probabilities, expected.detach(), rtol=1e-5, atol=1e-6)
    assert float(prediction.mutual_information.max()) > 1e-3
    torch.testing.assert_close(together(model.eval()(x)).exp(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("samples", [0, 2])
def test_a_file_holds_every_network_of_every_sample(samples: int, tmp_path: Path) -> None:
    model, x = randomised(), torch.randn(9, 5)
    named = dict(bb.split_parameters(model)[0])
    natural = {name: torch.randn_like(value) for name, value in named.items()}
    posterior = bb.BernoulliPosterior(natural)
    packed = bb.pack(model, tmp_path / "m.safetensors", posterior, samples=samples)
    assert packed.graph.networks == NETWORKS * max(1, samples)
    found = torch.from_numpy(reference.run(packed, x.numpy())).double().softmax(-1).mean(0)
    expected = bb.predict(model, posterior, x, samples=samples).probabilities
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "ewc"])
def test_every_method_trains_them_each_as_if_it_were_alone(method: str) -> None:
    torch.manual_seed(0)
    model = SideBySide((4, 16, 2), networks=3, copies=2)
    x = torch.randn(64, 4)
    y = (x[:, 0] > x[:, 1]).long()
    binary, real = bb.split_parameters(model)
    assert [name for name, _ in binary] == ["layers.0.weight", "layers.1.weight"]
    given = {"certainty": 100.0} if method == "bayesbinn" else {}
    optimizer = METHODS[method].create(binary, train_set_size=64, seed=0, **given)
    adam = torch.optim.Adam([parameter for _, parameter in real], lr=1e-2)
    totals = [Totals() for _ in range(15)]
    for total in totals:
        train_batches(model, optimizer, [(x, y)] * 4, total, real_optimizer=adam)
    assert totals[-1].mean_loss < totals[0].mean_loss and totals[-1].accuracy > 75


def test_a_networks_gradient_does_not_depend_on_how_many_stand_beside_it() -> None:
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    model = randomised().train()
    single = alone(model, 1).train()
    F.cross_entropy(single(x.repeat(1, COPIES)), y).backward()

    class Still(bb.FloatAdam):
        """Leaves the weights and their gradients as they are."""

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            return None

    optimizer = Still(bb.split_parameters(model)[0], lr=1e-3)
    train_batches(model, optimizer, [(x, y)], Totals())
    own = model.layers[1].weight.grad.view(NETWORKS, -1, 7)[1]
    torch.testing.assert_close(own, single[3].weight.grad, rtol=1e-4, atol=1e-5)
