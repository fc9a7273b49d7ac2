"""Batches of a part of a data set, made on the fly from (seed, epoch) only.

No state is kept between epochs: each epoch draws its order and augmentation at the start from a separate generator. A
run killed in the middle of an epoch can restart at any batch and gets exactly the same data, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.augment import Draws
from bayesbinn.data.distort import Distortions
from bayesbinn.data.normalise import Normaliser
from bayesbinn.errors import InvalidInput


def generator_of(seed: int, epoch: int) -> torch.Generator:
    """The random stream of one epoch. The pair is hashed, so that (seed + 1, epoch) differs from (seed, epoch + 1).

    >>> generator_of(1, 2).initial_seed() == generator_of(2, 1).initial_seed()
    False
    """
    if seed < 0 or epoch < 0:
        raise InvalidInput(f"seed={seed}, epoch={epoch}: both must be 0 or more")
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def share_of(count: int, rank: int, world: int) -> slice:
    """The part of `count` examples that one of `world` ranks takes: contiguous, with at least two examples.

    If there are fewer than two per rank, every rank takes all of them: BatchNorm needs more than one example.

    >>> share_of(5, 0, 2), share_of(5, 1, 2), share_of(3, 1, 2)
    (slice(0, 2, None), slice(2, 5, None), slice(0, 3, None))
    """
    if count < 2 * world:
        return slice(0, count)
    return slice(count * rank // world, count * (rank + 1) // world)


class Part:
    """A subset of a data set: the examples for training, validation or testing.

    Several parts share one tensor of inputs; `rows` lists those in this part (None: all).
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        normaliser: Normaliser,
        rows: Tensor | None = None,
        augmentable: bool = False,
    ) -> None:
        self.rows = rows
        self.targets = targets if rows is None else targets[rows]
        self.augmentable = augmentable
        self._inputs = inputs
        self._normaliser = normaliser

    def __len__(self) -> int:
        return len(self.targets)

    def whole(self) -> tuple[Tensor, Tensor]:
        """All inputs, normalized and not augmented, and all targets."""
        inputs = self._inputs if self.rows is None else self._inputs[self.rows]
        return self._normaliser(inputs), self.targets

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        start: int = 0,
        augment: bool = False,
        drop_single: bool = False,
        shard: tuple[int, int] = (0, 1),
        shift: int = 0,
        distort: float = 0.0,
    ) -> Batches:
        """Pairs of (inputs, targets), normalized; the last batch may be smaller.

        With a `seed`, the order is random for this `epoch`; without it, the order of the data. `augment` crops and
        flips at random if the data set allows it (photographs, not digits), and needs a seed. `start` skips that many
        batches at no cost. `drop_single` omits a last batch of one example, for which BatchNorm has no statistics.
        `shard` = (rank, world) gives one rank's share of every batch (`share_of`). `shift` moves images at random by up
        to that many pixels in each direction, instead of `augment`, and needs a seed; so does `distort`, the strength
        of `Distortions`.
        """
        return Batches(self, batch_size, seed, epoch, start, augment, drop_single, shard, shift, distort)

    @property
    def shows_images(self) -> bool:
        """Whether the inputs are images (channels, height, width), which can be shifted."""
        return self._inputs.dim() == 4

    def gather(self, rows: Tensor, draws: Draws | Distortions | None = None) -> Tensor:
        """Inputs at positions of this part, normalized; cropped and flipped, or distorted, if `draws` is given."""
        if self.rows is not None:
            rows = self.rows[rows]
        if draws is not None:
            return self._normaliser(draws.applied(self._inputs, rows.numpy()))
        return self._normaliser(self._inputs.index_select(0, rows))


class Batches:
    """One pass over a part. `len()` counts the batches from `start` on."""

    def __init__(
        self,
        part: Part,
        batch_size: int,
        seed: int | None,
        epoch: int,
        start: int,
        augment: bool,
        drop_single: bool,
        shard: tuple[int, int],
        shift: int = 0,
        distort: float = 0.0,
    ) -> None:
        rank, world = shard
        if not 0 <= rank < world:
            raise InvalidInput(f"shard={shard}: must be (rank, world) with rank from 0 to world - 1")
        if batch_size < 1:
            raise InvalidInput(f"batch_size={batch_size}: must be 1 or more")
        if augment and seed is None:
            raise InvalidInput("augment=True needs a seed because augmentation is random; give seed= and epoch=")
        if shift and (seed is None or not part.shows_images):
            what = "without a seed" if part.shows_images else "for inputs that are not images"
            raise InvalidInput(f"shift={shift} {what}: only images can be shifted, at random; use 0")
        if distort and (seed is None or not part.shows_images or shift or augment):
            what = "without a seed" if seed is None else "for inputs that are not images"
            what = f"with shift={shift} and augment={augment}" if shift or augment else what
            raise InvalidInput(f"distort={distort} {what}: only images can be distorted, at random, instead; use 0")
        self._shift, self._distort = shift, distort
        self._part, self._size, self._start, self._shard = part, batch_size, start, shard
        self._seed, self._epoch, self._augment = seed, epoch, augment and part.augmentable
        full, rest = divmod(len(part), batch_size)
        self._stop = full + (rest > 1 if drop_single and batch_size > 1 else rest > 0)
        if not 0 <= start <= self._stop:
            raise InvalidInput(f"start={start}: an epoch has {self._stop} batches; start must be 0 to {self._stop}")

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def sizes(self) -> list[int]:
        """The number of examples in each batch, over all shards."""
        return [min(self._size, len(self._part) - index * self._size) for index in range(self._start, self._stop)]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        part, count = self._part, len(self._part)
        order = torch.arange(count)
        draws: Draws | Distortions | None = None
        if self._seed is not None:
            generator = generator_of(self._seed, self._epoch)
            order = torch.randperm(count, generator=generator)
            if self._distort:
                draws = Distortions.random(count, generator, self._distort)
            elif self._shift:
                draws = Draws.shifts(count, generator, self._shift)
            elif self._augment:
                draws = Draws.random(count, generator)
        for index, size in zip(range(self._start, self._stop), self.sizes, strict=True):
            own, first = share_of(size, *self._shard), index * self._size
            here = slice(first + own.start, first + own.stop)
            rows = order[here]
            yield part.gather(rows, None if draws is None else draws[here]), part.targets.index_select(0, rows)
