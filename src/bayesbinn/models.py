"""The paper's networks, as plain modules that know nothing of methods.

``order="authors"`` is the layer order of the authors' code, which produced the published numbers:
BatchNorm before ReLU, and max-pooling before both. ``order="paper"`` is that of the paper's
tables: ReLU, max-pooling, BatchNorm. BatchNorm has no gain and no bias, and there are no biases
(except in the synthetic networks), so that every parameter is a binary weight.

`width` multiplies the number of hidden units and channels, for small machines.

`table_mlp` and `output_affine` are not the paper's: they are for other people's data, whose classes need not be
equally frequent. A BatchNorm without a shift gives every class the same mean logit, so no network that ends in one can
say that a class is rare.

Each network states above its function which data it fits and which settings of an experiment it takes, so that a new
one touches no other file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor, nn

from bayesbinn.errors import InvalidInput, nearest

Order = Literal["authors", "paper"]

# BatchNorm's momentum and ε as the authors set them.
_MLP = (0.15, 1e-4)
_CONVOLUTION = (0.2, 1e-5)
_AFTER_CONVOLUTIONS = (0.1, 1e-5)  # their fully connected layers ignore the flag: torch's defaults
_TABLE = (0.1, 1e-5)

Parts = tuple[str, ...]
_ORDERS: dict[str, Parts] = {"authors": ("pool", "norm", "relu"), "paper": ("relu", "pool", "norm")}
_LRNET_ORDERS: dict[str, Parts] = {"authors": ("norm", "relu", "pool"), "paper": _ORDERS["paper"]}


# ---- how a network fits data and loss --------------------------------------------------------------


class Data(Protocol):
    """What a network is fitted to: a data set, or what a run remembers of one."""

    @property
    def name(self) -> str: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def task(self) -> str: ...


Fit = Callable[[str, Data], dict[str, Any]]
"""From a network's name and the data to the arguments that the data decide; data that do not fit are refused."""


@dataclass(frozen=True)
class Network:
    """A network that experiments name."""

    make: Callable[..., nn.Sequential]
    fits: str
    """Which data, in words."""
    fit: Fit
    settings: tuple[str, ...]
    """Of an experiment's `model` section: those that `make` takes."""
    single: bool
    """Whether it has one output, so that one logit stands for two classes."""


REGISTRY: dict[str, Network] = {}
_Maker = TypeVar("_Maker", bound=Callable[..., nn.Sequential])


def network(fits: str, fit: Fit, *settings: str, single: bool = False) -> Callable[[_Maker], _Maker]:
    """Register the function below as a network that experiments can name."""

    def register(make: _Maker) -> _Maker:
        REGISTRY[make.__name__] = Network(make, fits, fit, settings, single)
        return make

    return register


def named(name: str) -> Network:
    """A network of the registry."""
    if name not in REGISTRY:
        raise InvalidInput(f"there is no network {name!r}.{nearest(name, REGISTRY)}")
    return REGISTRY[name]


def fitted(name: str, settings: Any, data: Data) -> nn.Sequential:
    """A network by name, with these settings (those that it does not take do not matter), fitted to the data."""
    found = named(name)
    chosen = {setting: getattr(settings, setting) for setting in found.settings}
    return found.make(**found.fit(name, data), **chosen)


def loss_for(name: str, task: str) -> str:
    """The loss that a task asks for and that the network's output fits."""
    if task == "regression":
        return "mse"
    return "binary_cross_entropy" if named(name).single else "cross_entropy"


def _outputs(data: Data) -> int:
    return max(data.num_classes, 1)


def _any_shape(name: str, data: Data) -> dict[str, Any]:
    return {"classes": _outputs(data), "inputs": prod(data.input_shape)}


def _two_classes(name: str, data: Data) -> dict[str, Any]:
    if data.num_classes > 2:
        raise InvalidInput(f"{data.name}: {data.num_classes} classes; {name} has one output, for 2")
    return {"inputs": prod(data.input_shape)}


def _images(name: str, data: Data) -> dict[str, Any]:
    size = data.input_shape
    if len(size) != 3:
        raise InvalidInput(f"{data.name}: {name} needs images (channels, height, width), these examples are {size}")
    return {"classes": _outputs(data), "channels": size[0], "image_size": size[1:]}


def _images_of(*wanted: int) -> Fit:
    def fit(name: str, data: Data) -> dict[str, Any]:
        if data.input_shape != wanted:
            raise InvalidInput(f"{data.name}: {name} takes images of {wanted}, these examples are {data.input_shape}")
        return {"classes": _outputs(data)}

    return fit


# ---- the networks ----------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Multiply by a constant: what stands in BatchNorm's place where there is none."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:.4g}"


@network("tables and arrays of any shape; classes or one quantity", _any_shape, "hidden", "layers", "width")
def table_mlp(classes: int, *, inputs: int, hidden: int = 128, layers: int = 2, width: float = 1.0) -> nn.Sequential:
    """For tables: [Linear, BatchNorm, ReLU] × `layers` with binary weights, and no dropout.

    Every BatchNorm has a learned gain and shift. A binary layer can only add and subtract columns; the shifts make
    units of the same signs differ, which a table of few columns needs, and the last one expresses how frequent a
    class is. Without dropout the running statistics are those of the network that predicts.

    >>> binary = [p for p in table_mlp(3, inputs=13).parameters() if p.dim() == 2]
    >>> sum(p.numel() for p in binary)
    18432
    """
    sizes = [inputs, *[_scaled(hidden, width)] * layers]
    modules: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes):
        norm = _batchnorm(nn.BatchNorm1d, fan_out, _TABLE, affine=True)
        modules += [nn.Linear(fan_in, fan_out, bias=False), norm, nn.ReLU()]
    return nn.Sequential(*modules, *_output(sizes[-1], classes, _TABLE, affine=True))


@network("arrays of any shape, flattened; classes or one quantity", _any_shape, "order", "width", "affine")
def mnist_mlp(
    classes: int = 10, *, inputs: int = 784, order: Order = "authors", width: float = 1.0, affine: bool = False
) -> nn.Sequential:
    """Three hidden layers of 2048 units with dropout 0.2 before every layer: 10,014,720 weights.

    `affine`, which the paper does not have, gives every BatchNorm a learned gain and shift.

    >>> sum(p.numel() for p in mnist_mlp().parameters())
    10014720
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise([inputs, *[_scaled(2048, width)] * 3]):
        layers += [nn.Dropout(0.2), *_hidden(fan_in, fan_out, _MLP, _chosen(_ORDERS, order), affine)]
    return nn.Sequential(*layers, nn.Dropout(0.2), *_output(_scaled(2048, width), classes, _MLP, affine))


@network(
    "arrays of any shape, flattened, in streams of tasks; classes or one quantity",
    _any_shape,
    "order",
    "width",
    "batchnorm",
)
def continual_mlp(
    classes: int = 10, *, inputs: int = 784, order: Order = "authors", width: float = 1.0, batchnorm: bool = True
) -> nn.Sequential:
    """Two hidden layers of 100 units, for permuted MNIST: 89,400 weights.

    The paper's table has a ReLU after the last layer, which the code has not: it would cut logits off.
    Without BatchNorm each layer divides by √(fan-in) instead: nothing then tells one task from another.

    >>> sum(p.numel() for p in continual_mlp().parameters())
    89400
    """
    layers: list[nn.Module] = [nn.Flatten()]
    sizes = [inputs, *[_scaled(100, width)] * 2]
    if not batchnorm:
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out, bias=False), Scaled(fan_in**-0.5), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=False), Scaled(sizes[-1] ** -0.5))
    for fan_in, fan_out in pairwise(sizes):
        layers += _hidden(fan_in, fan_out, _MLP, _chosen(_ORDERS, order))
    return nn.Sequential(*layers, *_output(sizes[-1], classes, _MLP))


@network(
    "images (channels, height, width) of any size; classes or one quantity", _images, "order", "width", "output_affine"
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

    Images of other sizes, (height, width), fit as well; a side of 1 is no longer halved. `output_affine` gives the
    last BatchNorm a learned gain and shift.

    >>> sum(p.numel() for p in vgg().parameters()), sum(p.numel() for p in vgg(100).parameters())
    (14022016, 14114176)
    """
    plan = [128, -128, 256, -256, 512, -512]
    layers, features = _convolutions(plan, channels, image_size, 3, _CONVOLUTION, _chosen(_ORDERS, order), width)
    for fan_in, fan_out in pairwise([features, *[_scaled(1024, width)] * 2]):
        layers += _hidden(fan_in, fan_out, _AFTER_CONVOLUTIONS, _chosen(_ORDERS, order))
    return nn.Sequential(*layers, *_output(_scaled(1024, width), classes, _AFTER_CONVOLUTIONS, output_affine))


@network("images of 1×28×28 pixels; classes or one quantity", _images_of(1, 28, 28), "order", "width")
def lrnet_mnist(classes: int = 10, *, order: Order = "authors", width: float = 1.0) -> nn.Sequential:
    """The network of the LR-net comparison on MNIST, 32C5-MP2-64C5-MP2-512FC-10: 1,662,752 weights.

    All layers binary, BatchNorm after the fully connected layers too, no dropout. The authors'
    order is LR-net's here: BatchNorm, ReLU, max-pooling. BatchNorm's settings are not stated
    anywhere; those of the MNIST network are taken.

    >>> sum(p.numel() for p in lrnet_mnist().parameters())
    1662752
    """
    layers, features = _convolutions([-32, -64], 1, 28, 5, _MLP, _chosen(_LRNET_ORDERS, order), width)
    layers += _hidden(features, _scaled(512, width), _MLP, _chosen(_LRNET_ORDERS, order))
    return nn.Sequential(*layers, *_output(_scaled(512, width), classes, _MLP))


@network("images of 3×32×32 pixels; classes or one quantity", _images_of(3, 32, 32), "order", "width")
def lrnet_cifar10(classes: int = 10, *, order: Order = "authors", width: float = 1.0) -> nn.Sequential:
    """The network of the LR-net comparison on CIFAR-10, 2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-1024FC-10.

    12,973,440 weights. As `lrnet_mnist`, with the BatchNorm settings of `vgg`.

    >>> sum(p.numel() for p in lrnet_cifar10().parameters())
    12973440
    """
    plan = [128, -128, 256, -256, 512, -512]
    layers, features = _convolutions(plan, 3, 32, 3, _CONVOLUTION, _chosen(_LRNET_ORDERS, order), width)
    layers += _hidden(features, _scaled(1024, width), _AFTER_CONVOLUTIONS, _chosen(_LRNET_ORDERS, order))
    return nn.Sequential(*layers, *_output(_scaled(1024, width), classes, _AFTER_CONVOLUTIONS))


@network(
    "tables and arrays of any shape; two classes or one quantity",
    _two_classes,
    "output_batchnorm",
    "width",
    single=True,
)
def synthetic_mlp(inputs: int, *, output_batchnorm: bool = False, width: float = 1.0) -> nn.Sequential:
    """The tanh network of the toy problems, d-64-64-1 with biases, which are binary too in the paper.

    Two moons: `inputs` = 2, one logit. Snelson's regression: `inputs` = 1 and `output_batchnorm`.

    >>> sum(p.numel() for p in synthetic_mlp(2).parameters())
    4417
    """
    hidden = _scaled(64, width)
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers, *([_batchnorm(nn.BatchNorm1d, 1, _MLP)] if output_batchnorm else []))


NETWORKS = {name: each.fits for name, each in REGISTRY.items()}
"""The networks that experiments name, and the data that they fit."""


# ---- building blocks -------------------------------------------------------------------------------


def _scaled(size: int, width: float) -> int:
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
    """Convolutions with "same" padding, flattened, and the number of features that come out.

    `plan` has the output channels of each; a minus sign adds 2×2 max-pooling.
    """
    height, breadth = (image_size, image_size) if isinstance(image_size, int) else image_size
    layers: list[nn.Module] = []
    for entry in plan:
        out = _scaled(abs(entry), width)
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
