"""The scale of the inputs: one mean and one standard deviation per channel or column."""

from __future__ import annotations

import torch
from torch import Tensor

WHITE = 255
"""The largest pixel value. Image means and deviations are given for pixels in [0, 1], as in the literature."""


def statistics(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (unbiased) standard deviation of each channel, or of each column of a table.

    A constant channel gets the deviation 1, so that it becomes 0 and not NaN.

    >>> statistics(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
    (tensor([1., 5.]), tensor([1.4142, 1.0000]))
    """
    count = inputs.numel() // inputs.shape[1]
    if inputs.dtype == torch.uint8:
        # A histogram is exact and needs no floating-point copy of the images.
        values = torch.arange(WHITE + 1, dtype=torch.float64) / WHITE
        counts = torch.stack([torch.bincount(c.reshape(-1), minlength=WHITE + 1) for c in inputs.transpose(0, 1)])
        mean = counts.double() @ values / count
        squares = (counts * (values - mean[:, None]).square()).sum(1)
    else:
        columns = inputs.transpose(0, 1).reshape(inputs.shape[1], -1).double()
        mean = columns.mean(1)
        squares = (columns - mean[:, None]).square().sum(1)
    std = (squares / max(count - 1, 1)).sqrt()
    return mean.float(), torch.where(std > 0, std, 1.0).float()


class Normaliser:
    """x ↦ (x − mean) / std along axis 1; pixels (uint8) are divided by 255 first.

    >>> Normaliser(torch.tensor([0.5]), torch.tensor([0.25]))(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[-2.,  2.]])
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self._mean = mean.double()
        self._std = std.double()
        self._ready: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """A new float32 tensor of the same shape."""
        key = inputs.dtype, inputs.dim()
        if key not in self._ready:
            self._ready[key] = self._shift_and_factor(*key)
        shift, factor = self._ready[key]
        return inputs.to(torch.float32, copy=True).sub_(shift).mul_(factor)

    def _shift_and_factor(self, dtype: torch.dtype, axes: int) -> tuple[Tensor, Tensor]:
        """Mean and 1 / std in the units of the inputs, shaped to fit them."""
        unit = WHITE if dtype == torch.uint8 else 1
        shape = (1, -1) + (1,) * (axes - 2)
        return (self._mean * unit).float().view(shape), (1 / (self._std * unit)).float().view(shape)
