"""Several binary networks of one shape, trained side by side: one matrix product serves all of them.

Their outputs are [rows, networks, outputs]; each network learns as if it were alone, and predictions are the mean of
their probabilities. Inside, activations are [networks·units, rows], so that a product of small matrices needs no copy
and BatchNorm works along contiguous memory.

A binary unit can only add or subtract an input. So the first layer gets every input `copies` times: with 5 weights of
-1 and +1 for an input, a unit weights it by -5, -3, -1, 1, 3 or 5. In training the copies' weights are added before the
product, which costs nothing; in a model file the input is concatenated with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_variadic

from bayesbinn.models.networks import scaled
from bayesbinn.models.registry import any_shape, network

CONSTANT = 1e-7
"""A unit whose variance is below this is constant."""
EPSILON = 1e-5
"""Added to a variance."""
MOMENTUM = 0.1
"""Of BatchNorm's running statistics."""

Affine = tuple[Tensor, Tensor]
"""A scale and a shift for every unit."""


def copied_linear(input: Tensor, weight: Tensor, bias: None = None, copies: int = 1) -> Tensor:
    """weight @ [input; …; input], with the input [inputs, rows] given once and `weight` [units, copies·inputs].

    >>> copied_linear(torch.tensor([[2.0]]), torch.tensor([[1.0, 1.0, -1.0]]), copies=3)
    tensor([[2.]])
    """
    if has_torch_function_variadic(input, weight):
        found: Tensor = handle_torch_function(copied_linear, (input, weight), input, weight, bias, copies=copies)
        return found
    total: Tensor = weight.view(len(weight), copies, -1).sum(dim=1)
    return total @ input


def block_linear(input: Tensor, weight: Tensor, bias: None = None, networks: int = 1) -> Tensor:
    """The product of each network's block of `weight` [networks·units, inputs] with its block of the input.

    >>> block_linear(torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [-1.0]]), networks=2)
    tensor([[ 2.],
            [-3.]])
    """
    if has_torch_function_variadic(input, weight):
        found: Tensor = handle_torch_function(block_linear, (input, weight), input, weight, bias, networks=networks)
        return found
    fan_in = weight.shape[1]
    blocks = weight.view(networks, -1, fan_in)
    return torch.bmm(blocks, input.reshape(networks, fan_in, -1)).view(len(weight), -1)


class _Copied(nn.Linear):
    """The first layer: all networks see the same input, `copies` times."""

    def __init__(self, inputs: int, units: int, networks: int, copies: int) -> None:
        super().__init__(inputs * copies, networks * units, bias=False)
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        return copied_linear(x, self.weight, copies=self.copies)


class _Blocks(nn.Linear):
    """A later layer: each network has its own input."""

    def __init__(self, inputs: int, units: int, networks: int) -> None:
        super().__init__(inputs, networks * units, bias=False)
        self.networks = networks

    def forward(self, x: Tensor) -> Tensor:
        return block_linear(x, self.weight, networks=self.networks)


class SideBySide(nn.Module):
    """`networks` networks with the layer sizes `sizes`, from inputs to outputs: [Linear, BatchNorm, ReLU] each.

    Every BatchNorm has a learned gain and shift, as in `table_mlp`; the last one's shift says how frequent a class is.

    >>> SideBySide((13, 80, 80, 3), networks=4)(torch.zeros(10, 13)).shape
    torch.Size([10, 4, 3])
    """

    def __init__(self, sizes: Sequence[int], networks: int = 1, copies: int = 1) -> None:
        super().__init__()
        self.sizes, self.networks, self.copies = tuple(sizes), networks, copies
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for place, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            layer = _Blocks(fan_in, fan_out, networks) if place else _Copied(fan_in, fan_out, networks, copies)
            self.layers.append(layer)
            self.norms.append(nn.BatchNorm1d(networks * fan_out, eps=EPSILON, momentum=MOMENTUM))

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """[rows, networks, outputs] for x [rows, inputs].

        In training, `weights` of rows, which sum to 1, count in BatchNorm's mean and variance; None: all equal.
        """
        x = x.flatten(1).t()
        for place, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            z = layer(x)
            x = norm(z.unsqueeze(0)).squeeze(0) if weights is None else _weighted(z, norm, weights)
            if place + 1 < len(self.layers):
                x = x.relu()
        outputs: Tensor = x.t().unflatten(1, (self.networks, self.sizes[-1]))
        return outputs

    def affine(self) -> list[Affine]:
        """Scale and shift of every unit: BatchNorm with its running statistics."""
        return [_affine(norm) for norm in self.norms]

    def first(self, networks: int) -> SideBySide:
        """The first networks alone, with copies of their weights and statistics."""
        with torch.random.fork_rng([]):  # the initial weights do not matter
            found = SideBySide(self.sizes, networks, self.copies)
        own = self.state_dict()
        found.load_state_dict(
            {key: own[key][: len(value)] if value.dim() else own[key] for key, value in found.state_dict().items()}
        )
        return found

    @torch.no_grad()
    def settle(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Set BatchNorm's running statistics to those of these rows, for the weights as they are.

        In training they come from weights that keep changing. `weights` of rows sum to 1; None: all equal.
        """
        share = torch.full((len(x),), 1 / len(x), device=x.device) if weights is None else weights
        x = x.flatten(1).t()
        for layer, norm in zip(self.layers, self.norms, strict=True):
            z = layer(x)
            mean = z @ share
            variance = (z - mean.unsqueeze(1)).square_() @ share
            # A unit that never varied would be scaled up 300 times, and turn a row that differs into noise.
            variance.masked_fill_(variance < CONSTANT, 1 / CONSTANT)
            norm.get_buffer("running_mean").copy_(mean)
            norm.get_buffer("running_var").copy_(variance)
            scale, shift = _affine(norm)
            x = z.mul_(scale.unsqueeze(1)).add_(shift.unsqueeze(1)).relu_()

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """[networks, rows, outputs] with BatchNorm's running statistics."""
        x = x.t()
        for place, (layer, (scale, shift)) in enumerate(zip(self.layers, self.affine(), strict=True)):
            x = layer(x).mul_(scale.unsqueeze(1)).add_(shift.unsqueeze(1))
            if place + 1 < len(self.layers):
                x = x.relu_()
        return x.view(self.networks, self.sizes[-1], -1).transpose(1, 2)


def _weighted(z: Tensor, norm: nn.Module, weights: Tensor) -> Tensor:
    """BatchNorm along weighted rows, [units, rows]."""
    centred = z - (z @ weights).unsqueeze(1)
    variance = centred.square() @ weights
    gain, shift = norm.get_parameter("weight"), norm.get_parameter("bias")
    return centred * (gain / torch.sqrt(variance + EPSILON)).unsqueeze(1) + shift.unsqueeze(1)


@torch.no_grad()
def _affine(norm: nn.Module) -> Affine:
    scale = norm.get_parameter("weight") / torch.sqrt(norm.get_buffer("running_var") + EPSILON)
    return scale, norm.get_parameter("bias") - norm.get_buffer("running_mean") * scale


# ---- outputs of networks side by side ------------------------------------------------------------------


def is_side_by_side(model: nn.Module) -> bool:
    """Whether a model, perhaps wrapped for data-parallel training, is several networks."""
    return isinstance(model, SideBySide) or isinstance(getattr(model, "module", None), SideBySide)


def each_alone(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[rows·networks, outputs] and as many targets, for a loss that handles one network.

    >>> outputs, targets = each_alone(torch.zeros(5, 4, 3), torch.arange(5))
    >>> outputs.shape, targets.tolist()[:6]
    (torch.Size([20, 3]), [0, 0, 0, 0, 1, 1])
    """
    return outputs.flatten(0, 1), targets.repeat_interleave(outputs.shape[1], dim=0)


def together(outputs: Tensor) -> Tensor:
    """[rows, outputs]: the logarithm of the networks' mean probability, or the mean of one quantity."""
    if outputs.shape[-1] == 1:
        return outputs.mean(dim=1)
    return outputs.log_softmax(dim=-1).logsumexp(dim=1) - torch.tensor(float(outputs.shape[1])).log()


@network(
    "tables and arrays of any shape; classes or one quantity",
    any_shape,
    "hidden",
    "layers",
    "networks",
    "copies",
    "width",
)
def table_ensemble(
    classes: int,
    *,
    inputs: int,
    hidden: int = 80,
    layers: int = 2,
    networks: int = 4,
    copies: int = 1,
    width: float = 1.0,
) -> SideBySide:
    """For tables: several networks like `table_mlp` side by side. Their mean predicts; how they differ is uncertainty.

    >>> binary = [p for p in table_ensemble(3, inputs=13, copies=5).parameters() if p.dim() == 2]
    >>> sum(p.numel() for p in binary)
    47360
    """
    return SideBySide((inputs, *[scaled(hidden, width)] * layers, classes), networks, copies)
