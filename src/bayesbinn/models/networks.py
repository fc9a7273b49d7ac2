"""The paper's networks, as plain modules that know nothing about methods.

``order="authors"`` is the layer order of the authors' code, which produced the published numbers:
BatchNorm before ReLU, and max-pooling before both. ``order="paper"`` is the order in the paper's
tables: ReLU, max-pooling, BatchNorm. BatchNorm has no gain or bias, and the layers have no biases
(except in the synthetic networks), so that every parameter is a binary weight.

`width` multiplies the number of hidden units and channels, for small machines.

`table_mlp` and `output_affine` are not in the paper: they are for other data, whose classes may not be equally
frequent. A BatchNorm without a shift gives every class the same mean logit, so a network that ends in one cannot
express that a class is rare.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from bayesbinn.errors import InvalidInput
from bayesbinn.models.registry import any_shape, images, images_of, network, two_classes

Order = Literal["authors", "paper"]

# BatchNorm's momentum and ε as the authors set them.
_MLP = (0.15, 1e-4)
_CONVOLUTION = (0.2, 1e-5)
_AFTER_CONVOLUTIONS = (0.1, 1e-5)  # their fully connected layers ignore the flag: torch's defaults
_TABLE = (0.1, 1e-5)

Parts = tuple[str, ...]
_ORDERS: dict[str, Parts] = {"authors": ("pool", "norm", "relu"), "paper": ("relu", "pool", "norm")}
_LRNET_ORDERS: dict[str, Parts] = {"authors": ("norm", "relu", "pool"), "paper": _ORDERS["paper"]}


# ---- the networks ----------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Multiply by a constant; replaces BatchNorm in networks without it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:.4g}"


@network("tables and arrays of any shape; classes or one quantity", any_shape, "hidden", "layers", "width")
def table_mlp(classes: int, *, inputs: int, hidden: int = 128, layers: int = 2, width: float = 1.0) -> nn.Sequential:
    """For tables: [Linear, BatchNorm, ReLU] × `layers` with binary weights, and no dropout.

    Every BatchNorm has a learned gain and shift. A binary layer can only add and subtract columns; the shifts let
    units with the same signs differ, which a table with few columns needs, and the last shift expresses how frequent a
    class is. Without dropout, the running statistics match the network that predicts.

    >>> binary = [p for p in table_mlp(3, inputs=13).parameters() if p.dim() == 2]
    >>> sum(p.numel() for p in binary)
    18432
    """
    sizes = [inputs, *[scaled(hidden, width)] * layers]
    modules: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes):
        norm = _batchnorm(nn.BatchNorm1d, fan_out, _TABLE, affine=True)
        modules += [nn.Linear(fan_in, fan_out, bias=False), norm, nn.ReLU()]
    return nn.Sequential(*modules, *_output(sizes[-1], classes, _TABLE, affine=True))


@network("arrays of any shape, flattened; classes or one quantity", any_shape, "order", "width", "affine")
def mnist_mlp(
    classes: int = 10, *, inputs: int = 784, order: Order = "authors", width: float = 1.0, affine: bool = False
) -> nn.Sequential:
    """Three hidden layers of 2048 units with dropout 0.2 before every layer: 10,014,720 weights.

    `affine`, which the paper does not have, gives every BatchNorm a learned gain and shift.

    >>> sum(p.numel() for p in mnist_mlp().parameters())
    10014720
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise([inputs, *[scaled(2048, width)] * 3]):
        layers += [nn.Dropout(0.2), *_hidden(fan_in, fan_out, _MLP, _chosen(_ORDERS, order), affine)]
    return nn.Sequential(*layers, nn.Dropout(0.2), *_output(scaled(2048, width), classes, _MLP, affine))


@network(
    "arrays of any shape, flattened, in streams of tasks; classes or one quantity",
    any_shape,
    "order",
    "width",
    "batchnorm",
)
def continual_mlp(
    classes: int = 10, *, inputs: int = 784, order: Order = "authors", width: float = 1.0, batchnorm: bool = True
) -> nn.Sequential:
    """Two hidden layers of 100 units, for permuted MNIST: 89,400 weights.

    The paper's table has a ReLU after the last layer; the authors' code does not, since it would cut off logits.
    Without BatchNorm, each layer divides by √(fan-in) instead, so nothing in the network depends on the task.

    >>> sum(p.numel() for p in continual_mlp().parameters())
    89400
    """
    layers: list[nn.Module] = [nn.Flatten()]
    sizes = [inputs, *[scaled(100, width)] * 2]
    if not batchnorm:
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, bias=False), Scaled(fan_in**-0.5), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=False), Scaled(sizes[-1] ** -0.5))
    for fan_in, fan_out in pairwise(sizes):
        layers += _hidden(fan_in, fan_out, _MLP, _chosen(_ORDERS, order))
    return nn.Sequential(*layers, *_output(sizes[-1], classes, _MLP))


@network(
    "images (channels, height, width) of any size; classes or one quantity", images, "order", "width", "output_affine"
)
def vgg(
    classes: int = 10,
    *,
    channels: int = 3,
    image_size: int | tuple[int, int] = 32,
    order: Order = "authors",
    width: float = 1.0,
    output_affine: bool = False,
) -> nn.Sequential:
    """The BinaryConnect CNN for CIFAR: six 3×3 convolutions, two layers of 1024 units; 14,022,016 weights.

    Images of other sizes, (height, width), also work; a side of 1 is not halved again. `output_affine` gives the
    last BatchNorm a learned gain and shift.

    >>> sum(p.numel() for p in vgg().parameters()), sum(p.numel() for p in vgg(100).parameters())
    (14022016, 14114176)
    """
    plan = [128, -128, 256, -256, 512, -512]
    layers, features = _convolutions(plan, channels, image_size, 3, _CONVOLUTION, _chosen(_ORDERS, order), width)
    for fan_in, fan_out in pairwise([features, *[scaled(1024, width)] * 2]):
        layers += _hidden(fan_in, fan_out, _AFTER_CONVOLUTIONS, _chosen(_ORDERS, order))
    return nn.Sequential(*layers, *_output(scaled(1024, width), classes, _AFTER_CONVOLUTIONS, output_affine))


@network("images of 1×28×28 pixels; classes or one quantity", images_of(1, 28, 28), "order", "width")
def lrnet_mnist(classes: int = 10, *, order: Order = "authors", width: float = 1.0) -> nn.Sequential:
    """The network of the LR-net comparison on MNIST, 32C5-MP2-64C5-MP2-512FC-10: 1,662,752 weights.

    All layers are binary, BatchNorm also follows the fully connected layers, and there is no dropout.
    Here the authors' order is LR-net's: BatchNorm, ReLU, max-pooling. BatchNorm's settings are not
    published; we use those of the MNIST network.

    >>> sum(p.numel() for p in lrnet_mnist().parameters())
    1662752
    """
    layers, features = _convolutions([-32, -64], 1, 28, 5, _MLP, _chosen(_LRNET_ORDERS, order), width)
    layers += _hidden(features, scaled(512, width), _MLP, _chosen(_LRNET_ORDERS, order))
    return nn.Sequential(*layers, *_output(scaled(512, width), classes, _MLP))


@network("images of 3×32×32 pixels; classes or one quantity", images_of(3, 32, 32), "order", "width")
def lrnet_cifar10(classes: int = 10, *, order: Order = "authors", width: float = 1.0) -> nn.Sequential:
    """The network of the LR-net comparison on CIFAR-10, 2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-1024FC-10.

    12,973,440 weights. Like `lrnet_mnist`, with the BatchNorm settings of `vgg`.

    >>> sum(p.numel() for p in lrnet_cifar10().parameters())
    12973440
    """
    plan = [128, -128, 256, -256, 512, -512]
    layers, features = _convolutions(plan, 3, 32, 3, _CONVOLUTION, _chosen(_LRNET_ORDERS, order), width)
    layers += _hidden(features, scaled(1024, width), _AFTER_CONVOLUTIONS, _chosen(_LRNET_ORDERS, order))
    return nn.Sequential(*layers, *_output(scaled(1024, width), classes, _AFTER_CONVOLUTIONS))


@network(
    "tables and arrays of any shape; two classes or one quantity",
    two_classes,
    "output_batchnorm",
    "width",
    single=True,
)
def synthetic_mlp(inputs: int, *, output_batchnorm: bool = False, width: float = 1.0) -> nn.Sequential:
    """The tanh network of the toy problems, d-64-64-1 with biases, which are also binary in the paper.

    Two moons: `inputs` = 2, one logit. Snelson's regression: `inputs` = 1 and `output_batchnorm`.

    >>> sum(p.numel() for p in synthetic_mlp(2).parameters())
    4417
    """
    hidden = scaled(64, width)
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers, *([_batchnorm(nn.BatchNorm1d, 1, _MLP)] if output_batchnorm else []))


# ---- building blocks -------------------------------------------------------------------------------


def scaled(size: int, width: float) -> int:
    """A number of units or channels times `width`, at least 1."""
    if not width > 0:
        raise InvalidInput(f"width={width}: it must be above 0; 1 is the paper's network")
    return max(1, round(size * width))


def _batchnorm(
    kind: type[nn.BatchNorm1d | nn.BatchNorm2d], features: int, settings: tuple[float, float], affine: bool = False
) -> nn.BatchNorm1d | nn.BatchNorm2d:
    momentum, eps = settings
    return kind(features, momentum=momentum, eps=eps, affine=affine)


def _chosen(orders: dict[str, Parts], order: str) -> Parts:
    if order not in orders:
        raise InvalidInput(f"order={order!r}: it must be {' or '.join(map(repr, orders))}")
    return orders[order]


def _hidden(
    fan_in: int, fan_out: int, norm: tuple[float, float], order: Parts, affine: bool = False
) -> list[nn.Module]:
    parts: dict[str, nn.Module] = {"norm": _batchnorm(nn.BatchNorm1d, fan_out, norm, affine), "relu": nn.ReLU()}
    return [nn.Linear(fan_in, fan_out, bias=False), *(parts[name] for name in order if name in parts)]


def _output(fan_in: int, classes: int, norm: tuple[float, float], affine: bool = False) -> list[nn.Module]:
    return [nn.Linear(fan_in, classes, bias=False), _batchnorm(nn.BatchNorm1d, classes, norm, affine)]


def _convolutions(
    plan: list[int],
    channels: int,
    image_size: int | tuple[int, int],
    kernel: int,
    norm: tuple[float, float],
    order: Parts,
    width: float,
) -> tuple[list[nn.Module], int]:
    """Convolutions with "same" padding, flattened, and the number of output features.

    `plan` lists the output channels of each; a minus sign adds 2×2 max-pooling.
    """
    height, breadth = (image_size, image_size) if isinstance(image_size, int) else image_size
    layers: list[nn.Module] = []
    for entry in plan:
        out = scaled(abs(entry), width)
        parts: dict[str, nn.Module] = {"norm": _batchnorm(nn.BatchNorm2d, out, norm), "relu": nn.ReLU()}
        if entry < 0:
            steps = min(2, height), min(2, breadth)
            parts["pool"] = nn.MaxPool2d(2 if steps == (2, 2) else steps)
            height, breadth = height // steps[0], breadth // steps[1]
        layers += [
            nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False),
            *(parts[name] for name in order if name in parts),
        ]
        channels = out
    return [*layers, nn.Flatten()], channels * height * breadth
