"""Network, loss and optimizers of an experiment."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn import models
from bayesbinn.binary import split_parameters
from bayesbinn.data import Dataset
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import Experiment, MethodSettings, TrainingSettings
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


def loss_of(training: TrainingSettings) -> Loss:
    """The loss of the training batches."""
    if training.label_smoothing == 0:
        return LOSSES[training.loss]
    if training.loss != "cross_entropy":
        raise InvalidInput(
            f"training.label_smoothing={training.label_smoothing}: only for cross_entropy; remove it for "
            f"{training.loss!r}"
        )
    return partial(F.cross_entropy, label_smoothing=training.label_smoothing)


def check_batch_size(experiment: Experiment, model: nn.Module) -> None:
    """Reject batches of one example if the network has BatchNorm."""
    if experiment.training.batch_size > 1:
        return
    if name := next((name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)), None):
        hint = " or model.batchnorm=false" if experiment.model.name == "continual_mlp" else ""
        raise InvalidInput(
            f"training.batch_size=1: BatchNorm (layer {name} of {experiment.model.name}) has no statistics for a "
            f"single example; use 2 or more{hint}"
        )


def build_model(experiment: Experiment, dataset: Dataset | DataCard) -> nn.Module:
    """The experiment's network, fitted to the data's shape and classes."""
    if is_own(experiment.model.name):
        return build_own(experiment.model.name, dataset)
    return models.fitted(experiment.model.name, experiment.model, dataset)


def check_loss(experiment: Experiment, dataset: Dataset | DataCard) -> None:
    """Reject a loss that does not suit the data's task and the network's outputs."""
    name, loss = experiment.model.name, experiment.training.loss
    if is_own(name):
        wanted = "cross_entropy" if dataset.task == "classification" else "mse"
    else:
        wanted = models.loss_for(name, dataset.task)
    if loss != wanted:
        raise InvalidInput(
            f"training.loss is {loss!r}: {dataset.name} is {dataset.task}, for which {name} "
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
