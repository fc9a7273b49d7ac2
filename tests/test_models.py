"""The paper's networks: exact weight counts, layer orders, BatchNorm settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bayesbinn import models
from bayesbinn.binary import split_parameters
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.models import continual_mlp, lrnet_cifar10, lrnet_mnist, mnist_mlp, synthetic_mlp, vgg
from bayesbinn.runs import Run
from bayesbinn.runs.build import build_model
from bayesbinn.runs.data import load_data

CLASSIFIERS: dict[Callable[..., nn.Sequential], tuple[int, ...]] = {
    mnist_mlp: (1, 28, 28),
    continual_mlp: (1, 28, 28),
    vgg: (3, 32, 32),
    lrnet_mnist: (1, 28, 28),
    lrnet_cifar10: (3, 32, 32),
}

SHORT = {
    "Flatten": "flat",
    "Dropout": "drop",
    "Linear": "fc",
    "Conv2d": "conv",
    "BatchNorm1d": "bn",
    "BatchNorm2d": "bn",
    "ReLU": "relu",
    "MaxPool2d": "pool",
    "Tanh": "tanh",
}


def layers(model: nn.Sequential) -> str:
    return " ".join(SHORT[type(layer).__name__] for layer in model)


@pytest.mark.parametrize("order", ["authors", "paper"])
@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda order: mnist_mlp(order=order), 10_014_720),
        (lambda order: vgg(order=order), 14_022_016),
        (lambda order: vgg(100, order=order), 14_114_176),
        (lambda order: continual_mlp(order=order), 89_400),
        (lambda order: lrnet_mnist(order=order), 800 + 51_200 + 1_605_632 + 5_120),
        (lambda order: lrnet_cifar10(order=order), 14_022_016 - 1024 * 1024),
        (lambda order: synthetic_mlp(1), 64 + 64 + 64 * 64 + 64 + 64 + 1),
        (lambda order: synthetic_mlp(2, output_batchnorm=True), 2 * 64 + 64 + 64 * 64 + 64 + 64 + 1),
    ],
)
def test_the_number_of_weights_is_exact(build: Callable[[str], nn.Module], count: int, order: str) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(order).parameters()) == count


@pytest.mark.parametrize(
    ("build", "order", "expected"),
    [
        (mnist_mlp, "authors", "flat" + " drop fc bn relu" * 3 + " drop fc bn"),
        (mnist_mlp, "paper", "flat" + " drop fc relu bn" * 3 + " drop fc bn"),
        (continual_mlp, "authors", "flat" + " fc bn relu" * 2 + " fc bn"),
        (continual_mlp, "paper", "flat" + " fc relu bn" * 2 + " fc bn"),
        (vgg, "authors", "conv bn relu conv pool bn relu " * 3 + "flat" + " fc bn relu" * 2 + " fc bn"),
        (vgg, "paper", "conv relu bn conv relu pool bn " * 3 + "flat" + " fc relu bn" * 2 + " fc bn"),
        (lrnet_mnist, "authors", "conv bn relu pool " * 2 + "flat fc bn relu fc bn"),
        (lrnet_mnist, "paper", "conv relu pool bn " * 2 + "flat fc relu bn fc bn"),
        (lrnet_cifar10, "authors", "conv bn relu conv bn relu pool " * 3 + "flat fc bn relu fc bn"),
    ],
)
def test_the_layers_stand_in_order(build: Callable[..., nn.Sequential], order: str, expected: str) -> None:
    assert layers(build(order=order, width=0.05)) == expected


def test_the_synthetic_network() -> None:
    assert layers(synthetic_mlp(2)) == "fc tanh fc tanh fc"
    assert layers(synthetic_mlp(1, output_batchnorm=True)) == "fc tanh fc tanh fc bn"
    assert all(layer.bias is not None for layer in synthetic_mlp(2) if isinstance(layer, nn.Linear))
    assert synthetic_mlp(2)(torch.zeros(5, 2)).shape == (5, 1)


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (mnist_mlp, [(0.15, 1e-4)] * 4),
        (continual_mlp, [(0.15, 1e-4)] * 3),
        (vgg, [(0.2, 1e-5)] * 6 + [(0.1, 1e-5)] * 3),
        (lrnet_mnist, [(0.15, 1e-4)] * 4),
        (lrnet_cifar10, [(0.2, 1e-5)] * 6 + [(0.1, 1e-5)] * 2),
        (lambda width: synthetic_mlp(1, output_batchnorm=True), [(0.15, 1e-4)]),
    ],
)
def test_batchnorm_as_the_authors_set_it(
    build: Callable[..., nn.Sequential], settings: list[tuple[float, float]]
) -> None:
    found = [layer for layer in build(width=0.05) if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert [(layer.momentum, layer.eps) for layer in found] == settings
    assert not any(layer.affine for layer in found)


def test_dropout_is_a_fifth_and_only_in_the_mnist_network() -> None:
    rates = {b: [layer.p for layer in b(width=0.05) if isinstance(layer, nn.Dropout)] for b in CLASSIFIERS}
    assert rates == {b: [0.2] * 4 if b is mnist_mlp else [] for b in CLASSIFIERS}


@pytest.mark.parametrize("order", ["authors", "paper"])
@pytest.mark.parametrize("build", CLASSIFIERS)
def test_classifiers_run_at_a_small_width_and_are_all_binary(build: Callable[..., nn.Sequential], order: str) -> None:
    model = build(7, order=order, width=0.03)
    assert model(torch.randn(2, *CLASSIFIERS[build])).shape == (2, 7)
    assert split_parameters(model)[1] == []


def test_a_quarter_of_the_width() -> None:
    sizes = [layer.out_features for layer in mnist_mlp(width=0.25) if isinstance(layer, nn.Linear)]
    assert sizes == [512, 512, 512, 10]


def test_other_inputs() -> None:
    assert mnist_mlp(3, inputs=64, width=0.01)(torch.zeros(2, 64)).shape == (2, 3)
    assert vgg(4, channels=1, image_size=16, width=0.02)(torch.zeros(2, 1, 16, 16)).shape == (2, 4)


@pytest.mark.parametrize("build", CLASSIFIERS)
def test_bad_settings_get_one_line(build: Callable[..., nn.Sequential]) -> None:
    with pytest.raises(InvalidInput, match="order='alphabetical': it must be 'authors' or 'paper'"):
        build(order="alphabetical", width=0.01)
    with pytest.raises(InvalidInput, match="width=0: it must be above 0"):
        build(width=0)


# ---- the registry ----------------------------------------------------------------------------------


def test_a_new_network_needs_no_other_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is registered can be named by an experiment, is fitted to its data, and trains."""
    monkeypatch.setattr(models, "REGISTRY", dict(models.REGISTRY))

    def squares(name: str, data: models.Data) -> dict[str, Any]:
        if data.input_shape != (64,):
            raise InvalidInput(f"{data.name}: {name} takes 64 columns")
        return {"classes": data.num_classes}

    @models.network("64 columns", squares, "hidden")
    def sixty_four(classes: int, hidden: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, hidden, bias=False), nn.BatchNorm1d(hidden), nn.Linear(hidden, classes))

    settings = {"model.name": "sixty_four", "model.hidden": 5, "training.epochs": 1, "training.batch_size": 500}
    Run.open(load_experiment("digits", overrides=settings), tmp_path).train()
    trained = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"]
    assert trained["0.weight"].shape == (5, 64) and trained["2.weight"].shape == (10, 5)
    with pytest.raises(InvalidInput, match=": sixty_four takes 64 columns"):
        load_and_build("moons", "sixty_four")


def load_and_build(preset: str, name: str) -> nn.Sequential:
    experiment = load_experiment(preset, overrides={"model.name": name})
    return build_model(experiment, load_data(experiment))


@pytest.mark.parametrize(
    ("preset", "name", "words"),
    [
        ("digits", "lrnet_mnist", r"digits: lrnet_mnist takes images of \(1, 28, 28\), these examples are"),
        ("digits", "synthetic_mlp", "digits: 10 classes; synthetic_mlp has one output, for 2"),
        ("moons", "vgg", r"vgg needs images \(channels, height, width\), these examples are \(2,\)"),
        ("digits", "lrnet_minst", "no network 'lrnet_minst'. Did you mean 'lrnet_mnist'"),
    ],
)
def test_data_that_do_not_fit_are_refused(preset: str, name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load_and_build(preset, name)


@pytest.mark.parametrize("name", models.REGISTRY)
def test_the_loss_follows_from_the_task_and_the_output(name: str) -> None:
    assert models.loss_for(name, "regression") == "mse"
    one_output = name == "synthetic_mlp"
    assert models.loss_for(name, "classification") == ("binary_cross_entropy" if one_output else "cross_entropy")
