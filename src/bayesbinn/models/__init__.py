"""Networks as plain modules that know nothing about methods, and the registry by which experiments name them."""

from bayesbinn.models.networks import (
    Order,
    Scaled,
    continual_mlp,
    lrnet_cifar10,
    lrnet_mnist,
    mnist_mlp,
    synthetic_mlp,
    table_mlp,
    vgg,
)
from bayesbinn.models.registry import REGISTRY, Data, Fit, Network, fitted, loss_for, named, network
from bayesbinn.models.side_by_side import SideBySide, table_ensemble

NETWORKS = {name: each.fits for name, each in REGISTRY.items()}
"""The networks that experiments can name, and the data they fit."""

__all__ = [
    "NETWORKS",
    "REGISTRY",
    "Data",
    "Fit",
    "Network",
    "Order",
    "Scaled",
    "SideBySide",
    "continual_mlp",
    "fitted",
    "loss_for",
    "lrnet_cifar10",
    "lrnet_mnist",
    "mnist_mlp",
    "named",
    "network",
    "synthetic_mlp",
    "table_ensemble",
    "table_mlp",
    "vgg",
]
