"""Data sets as tensors in memory, and batches made from them.

>>> dataset = load("digits")
>>> parts = dataset.split(validation=0.1, seed=1)
>>> x, y = next(iter(parts.train.batches(100, seed=1, epoch=1, augment=True)))
>>> x.shape, y.shape
(torch.Size([100, 64]), torch.Size([100]))
"""

from bayesbinn.data.arrays import Split
from bayesbinn.data.batches import Batches, Part
from bayesbinn.data.catalog import Available, available, load
from bayesbinn.data.dataset import Dataset, Parts
from bayesbinn.data.own.inputs import load_inputs
from bayesbinn.data.published.digits import load_digits
from bayesbinn.data.streams import Stream, permuted, split, stream_of

__all__ = [
    "Available",
    "Batches",
    "Dataset",
    "Part",
    "Parts",
    "Split",
    "Stream",
    "available",
    "load",
    "load_digits",
    "load_inputs",
    "permuted",
    "split",
    "stream_of",
]
