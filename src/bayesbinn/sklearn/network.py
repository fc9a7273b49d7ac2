"""Several binary networks of one shape, trained side by side: one matrix product serves all of them.

Activations are [networks·units, rows], so that a product of small matrices needs no copy and BatchNorm works along
contiguous memory. Every layer is a binary linear map and BatchNorm with a learned gain and shift, as in
`bayesbinn.models.table_mlp`; the last one's shift says how frequent a class is.

A binary unit can only add or subtract an input. So the first layer gets every input `copies` times: with 5 weights of
-1 and +1 for it, a unit weighs it by -5, -3, -1, 1, 3 or 5. In training the copies' weights are added before the
product, which costs nothing; in a model file the input is joined to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import Graph, Node, Task

EPSILON = 1e-5
"""Added to a variance."""


class SideBySide(nn.Module):
    """`networks` networks with the layer sizes `sizes`, from inputs to outputs."""

    def __init__(
        self, sizes: Sequence[int], networks: int, copies: int, generator: torch.Generator, convolve: bool = False
    ) -> None:
        super().__init__()
        self.sizes, self.networks, self.copies = tuple(sizes), networks, copies
        self.convolve = convolve
        """LR-net sees a weight only in `linear` and convolutions, so its layers are grouped convolutions."""
        self.weights = nn.ParameterList()
        self.gains = nn.ParameterList()
        self.shifts = nn.ParameterList()
        for fan_in, fan_out in pairwise((self.sizes[0] * copies, *self.sizes[1:])):
            bound = (6 / (fan_in + fan_out)) ** 0.5
            start = (2 * torch.rand(networks * fan_out, fan_in, generator=generator) - 1) * bound
            self.weights.append(nn.Parameter(start.unsqueeze(-1) if convolve else start))
            self.gains.append(nn.Parameter(torch.ones(networks * fan_out)))
            self.shifts.append(nn.Parameter(torch.zeros(networks * fan_out)))

    @property
    def depth(self) -> int:
        """How many layers have weights."""
        return len(self.weights)

    def real_parameters(self) -> list[nn.Parameter]:
        """Gains and shifts."""
        return [*self.gains, *self.shifts]

    def product(self, layer: int, x: Tensor) -> Tensor:
        """[networks·units, rows] before BatchNorm. The first layer's x is [inputs, rows], the same for all networks."""
        weight, (fan_in, fan_out) = self.weights[layer], self.sizes[layer : layer + 2]
        if self.convolve:
            rows_first = (x.repeat(self.copies, 1) if layer == 0 else x).t().unsqueeze(-1)
            sums: Tensor = F.conv1d(rows_first, weight, groups=1 if layer == 0 else self.networks)
            return sums.squeeze(-1).t()
        if layer == 0:
            total: Tensor = weight.view(-1, self.copies, fan_in).sum(dim=1)
            return total @ x
        blocks = weight.view(self.networks, fan_out, fan_in)
        return torch.bmm(blocks, x.view(self.networks, fan_in, -1)).view(self.networks * fan_out, -1)

    def forward(self, x: Tensor, weights: Tensor | None) -> Tensor:
        """[networks, outputs, rows] for x [inputs, rows], normalised by the batch; `weights` of rows sum to 1."""
        for layer in range(self.depth):
            z = self.product(layer, x)
            x = _normalised(z, self.gains[layer], self.shifts[layer], weights)
            if layer + 1 < self.depth:
                x = x.relu_()
        return x.view(self.networks, self.sizes[-1], -1)

    @torch.no_grad()
    def folded(self, x: Tensor, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scale and shift of every unit: BatchNorm with the statistics of these rows, for the weights as they are."""
        found = []
        for layer in range(self.depth):
            z = self.product(layer, x)
            mean = z @ weights
            variance = (z - mean.unsqueeze(1)).square_() @ weights
            scale = self.gains[layer] / torch.sqrt(variance + EPSILON)
            shift = self.shifts[layer] - mean * scale
            found.append((scale, shift))
            x = z.mul_(scale.unsqueeze(1)).add_(shift.unsqueeze(1)).relu_()
        return found

    @torch.no_grad()
    def outputs(self, x: Tensor, folded: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """[networks, rows, outputs] with fixed scales and shifts."""
        for layer, (scale, shift) in enumerate(folded):
            x = self.product(layer, x) * scale.unsqueeze(1) + shift.unsqueeze(1)
            if layer + 1 < self.depth:
                x = x.relu_()
        return x.view(self.networks, self.sizes[-1], -1).transpose(1, 2)

    def packed(self, folded: Sequence[tuple[Tensor, Tensor]], task: Task) -> ModelFile:
        """The networks as a model file. Weights of -1 and +1 take a bit each, others stay float32."""
        tensors: dict[str, NDArray[np.generic]] = {}
        nodes = [Node("concat", (0,) * self.copies, "copies", {"axis": 0})] if self.copies > 1 else []
        for layer, (scale, shift) in enumerate(folded):
            fan_in, fan_out = self.sizes[layer : layer + 2]
            fan_in *= self.copies if layer == 0 else 1
            weight = self.weights[layer].detach().reshape(-1, fan_in).numpy().astype(np.float32)
            binary = bool((np.abs(weight) == 1).all())
            stored = pack_rows(weight) if binary else weight
            roles = {role: f"layer{layer}.{role}" for role in ("weight", "scale", "shift")}
            tensors[roles["weight"]] = _by_network(stored, self.networks)
            tensors[roles["scale"]] = _by_network(scale.numpy().astype(np.float32), self.networks)
            tensors[roles["shift"]] = _by_network(shift.numpy().astype(np.float32), self.networks)
            settings = {"shape": (fan_out, fan_in)}
            nodes.append(Node("linear", (len(nodes),), f"layer{layer}", settings, roles))
            if layer + 1 < self.depth:
                nodes.append(Node("relu", (len(nodes),)))
        return ModelFile(Graph((self.sizes[0],), tuple(nodes), networks=self.networks, task=task), tensors)


def _by_network(array: NDArray[np.generic], networks: int) -> NDArray[np.generic]:
    if networks == 1:
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array.reshape(networks, -1, *array.shape[1:]))


def _normalised(z: Tensor, gain: Tensor, shift: Tensor, weights: Tensor | None) -> Tensor:
    """BatchNorm along the rows, [units, rows]; weights of rows, if they differ, count in mean and variance."""
    if weights is None:
        return F.batch_norm(z.unsqueeze(0), None, None, gain, shift, training=True, eps=EPSILON).squeeze(0)
    centred = z - (z @ weights).unsqueeze(1)
    variance = centred.square() @ weights
    return centred * (gain / torch.sqrt(variance + EPSILON)).unsqueeze(1) + shift.unsqueeze(1)
