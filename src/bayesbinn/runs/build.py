"""Network, loss and optimizers of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bayesbinn import models
from bayesbinn.binary import split_parameters
from bayesbinn.data import Dataset
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.experiments.config import Experiment, MethodSettings
from bayesbinn.methods import get_method
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.runs.own_model import build_own, is_own
from bayesbinn.train.loop import (
    Loss,
)

LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy": lambda output, y: F.binary_cross_entropy_with_logits(output.flatten(), y.float()),
    "mse": F.mse_loss,
}


def build_model(experiment: Experiment, dataset: Dataset | DataCard) -> nn.Module:
    """The experiment's network, fitted to the data's shape and classes."""
    settings = experiment.model
    if is_own(settings.name):
        return build_own(settings.name, dataset)
    if settings.name not in models.NETWORKS:
        hint = nearest(settings.name, models.NETWORKS)
        raise InvalidInput(f"there is no network {settings.name!r}.{hint} Your own is named as package.module:function")
    maker: Callable[..., nn.Sequential] = getattr(models, settings.name)
    size = dataset.input_shape
    if settings.name == "synthetic_mlp":
        if dataset.num_classes > 2:
            raise InvalidInput(f"{dataset.name}: {dataset.num_classes} classes; synthetic_mlp has one output, for 2")
        return maker(prod(size), output_batchnorm=settings.output_batchnorm, width=settings.width)
    if settings.name == "table_mlp":
        plan = {"hidden": settings.hidden, "layers": settings.layers, "width": settings.width}
        return maker(max(dataset.num_classes, 1), inputs=prod(size), **plan)
    shape: dict[str, Any] = {}
    if settings.name == "continual_mlp":
        shape = {"inputs": prod(size), "batchnorm": settings.batchnorm}
    elif settings.name.endswith("_mlp"):
        shape = {"inputs": prod(size)}
    elif settings.name == "vgg":
        if len(size) != 3:
            raise InvalidInput(f"{dataset.name}: vgg needs images (channels, height, width), these examples are {size}")
        shape = {"channels": size[0], "image_size": size[1:], "output_affine": settings.output_affine}
    elif size != (wanted := (1, 28, 28) if settings.name == "lrnet_mnist" else (3, 32, 32)):
        raise InvalidInput(f"{dataset.name}: {settings.name} takes images of {wanted}, these examples are {size}")
    return maker(max(dataset.num_classes, 1), order=settings.order, width=settings.width, **shape)


def check_loss(experiment: Experiment, dataset: Dataset | DataCard) -> None:
    """Refuse a loss that does not fit what the data ask for and what the network puts out."""
    loss, single = experiment.training.loss, experiment.model.name == "synthetic_mlp"
    wanted = "mse" if dataset.task == "regression" else "binary_cross_entropy" if single else "cross_entropy"
    if loss != wanted:
        raise InvalidInput(
            f"training.loss is {loss!r}: {dataset.name} is {dataset.task}, for which {experiment.model.name} "
            f"needs {wanted!r}; add --set training.loss={wanted}"
        )


def make_optimizers(
    experiment: Experiment, model: nn.Module, dataset: Dataset | DataCard
) -> tuple[BinaryOptimizer, torch.optim.Optimizer | None]:
    settings = experiment.method
    binary, real = split_parameters(model, biases=settings.binary_biases)
    count = dataset.train_rows if isinstance(dataset, DataCard) else len(dataset.train_inputs)
    size = (count - int(experiment.data.validation * count)) * settings.train_set_scale  # the paper's N
    noise = {"independent_noise": True} if experiment.training.independent_noise else {}
    optimizer = get_method(settings.name).create(
        binary, train_set_size=int(size), seed=experiment.training.seed, **settings.settings, **noise
    )
    return optimizer, _real_optimizer([p for _, p in real], settings) if real else None


def _real_optimizer(parameters: list[nn.Parameter], settings: MethodSettings) -> torch.optim.Optimizer:
    adam = torch.optim.Adam(parameters, lr=settings.real_lr)
    bound = settings.real_clip
    if bound is not None:

        def clip(*_: Any) -> None:
            with torch.no_grad():
                for parameter in parameters:
                    parameter.clamp_(-bound, bound)

        adam.register_step_post_hook(clip)
    return adam
