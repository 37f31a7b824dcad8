"""From samples to batches; every random choice follows from (seed, epoch, number of the picture)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError, Preprocess, open_picture

Key = tuple[int, int]
"""Epoch and number of the picture."""

_SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
_SIDE = re.compile(r"\b(?:left|right)(?:most)?\b", re.IGNORECASE)


class FeatureSource(Protocol):
    """Where the features of a frozen backbone come from, such as :class:`saywhere.training.cache.FeatureCache`."""

    def read(self, index: int, flipped: bool) -> tuple[Tensor, ...]:
        """The maps ``(C_l, H_l, W_l)`` of picture ``index``, finest first."""
        ...


class Target(Protocol):
    """What a system's losses compare a picture with."""

    def to(self, device: torch.device) -> Self:
        """The same on ``device``."""
        ...


class TargetMaker(Protocol):
    """Makes the target of a picture for one epoch."""

    def __call__(self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator) -> Target:
        """The target of ``sample`` as the network sees it: ``size`` (width, height) wide and high, maybe mirrored.

        Every random choice is drawn from ``random``.
        """
        ...


@dataclass(frozen=True)
class Item:
    """One picture of a batch: ``inputs`` are its feature maps, or one tensor ``(3, h, w)`` of pixels."""

    inputs: tuple[Tensor, ...]
    target: Target
    image: Path


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures of any shapes.

    Attributes:
        features: for each picture its maps ``(C_l, H_l, W_l)``; None if ``pixels`` are given.
        pixels: for each picture ``(3, h, w)``; None if ``features`` are given.
        targets: for each picture what the system's :class:`TargetMaker` made of it.
        images: for each picture its file.
    """

    features: list[tuple[Tensor, ...]] | None
    pixels: list[Tensor] | None
    targets: list[Target]
    images: list[Path]

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """The batch on ``device``, features as float32 whatever they were stored as."""
        features, pixels = self.features, self.pixels
        if features is not None:
            features = [tuple(m.to(device, non_blocking=True).float() for m in maps) for maps in features]
        if pixels is not None:
            pixels = [picture.to(device, non_blocking=True) for picture in pixels]
        return Batch(features, pixels, [target.to(device) for target in self.targets], self.images)


def collate(items: Sequence[Item], cached: bool) -> Batch:
    """Items as one batch, of features if ``cached`` and of pixels otherwise."""
    targets, images = [item.target for item in items], [item.image for item in items]
    if cached:
        return Batch([item.inputs for item in items], None, targets, images)
    return Batch(None, [item.inputs[0] for item in items], targets, images)


def mirror_phrase(phrase: str) -> str:
    """The phrase for the mirrored picture: left and right change places."""
    return _SIDE.sub(lambda match: _SIDES[match[0].lower()], phrase)


class PictureDataset(Dataset[Item]):
    """Pictures with their targets, asked for by ``(epoch, number)``.

    A picture's target, and whether it is mirrored, follow from (seed, epoch, number); the dataset itself never changes.

    Args:
        samples: the pictures.
        target: makes the target of a picture.
        preprocess: the network's way to look at pictures.
        seed: of the run.
        features: cached features by number of the picture, or None for pixels.
        cached_epochs: ``features`` serve epochs before this one (the backbone is trained from then on); None for all.
        flip: mirror half of the pictures.
        fixed: the same targets, unmirrored, in all epochs: for validation.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        target: TargetMaker,
        preprocess: Preprocess,
        seed: int,
        features: FeatureSource | None = None,
        cached_epochs: int | None = None,
        flip: bool = False,
        fixed: bool = False,
    ):
        self.samples, self.target, self.preprocess, self.seed = samples, target, preprocess, seed
        self.features, self.cached_epochs = features, cached_epochs
        self.flip, self.fixed = flip and not fixed, fixed

    def __len__(self) -> int:
        return len(self.samples)

    def cached(self, epoch: int) -> bool:
        """Whether items of ``epoch`` (counted from 0) hold features rather than pixels."""
        return self.features is not None and (self.cached_epochs is None or epoch < self.cached_epochs)

    def __getitem__(self, key: Key) -> Item:
        epoch, index = key
        sample = self.samples[index]
        random = numpy.random.default_rng((self.seed, 0 if self.fixed else epoch + 1, index))
        flipped = self.flip and bool(random.integers(2))
        if self.features is not None and self.cached(epoch):
            inputs = self.features.read(index, flipped)
        else:
            picture = open_picture(sample.image, self.preprocess.long_side)
            pixels = self.preprocess(picture)
            inputs = (pixels.flip(-1) if flipped else pixels,)
        size = self.preprocess.size(sample.width, sample.height)
        return Item(inputs, self.target(sample, size, flipped, random), sample.image)

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        """A whole batch; all keys are of one epoch. A damaged picture is replaced by the next good one."""
        return collate([self._readable(key) for key in keys], self.cached(keys[0][0]))

    def _readable(self, key: Key) -> Item:
        epoch, number = key
        for step in range(len(self)):
            try:
                return self[epoch, (number + step) % len(self)]
            except ImageError as error:
                warnings.warn(f"skipped: {error}", stacklevel=2)  # Python shows each picture's warning once
        raise UserError("not one picture can be read")


def evenly(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """At most ``limit`` samples at even distances."""
    if limit is None or limit >= len(samples):
        return list(samples)
    return [samples[i * len(samples) // limit] for i in range(limit)]


class EpochSampler:
    """Batches of keys ``(epoch, number)`` whose order follows from (seed, epoch) alone.

    With several processes each takes its share of one common order, which is filled up from its beginning so that all
    have the same number of batches.

    Args:
        count: pictures in the data set.
        batch_size: pictures a batch in this process.
        seed: of the run.
        shuffle: another order in each epoch; without it the order is that of the data set.
        rank, world: this process, and how many there are.
        epoch, skip: where a resumed run goes on: the first ``skip`` batches of ``epoch`` are left out.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        epoch: int = 0,
        skip: int = 0,
    ):
        self.count, self.batch_size, self.seed, self.shuffle = count, batch_size, seed, shuffle
        self.rank, self.world = rank, world
        self.epoch, self._resumed = epoch, (epoch, skip)
        self.sampler = self  # Lightning calls set_epoch on the sampler of the batch sampler

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives the batches of ``epoch``."""
        self.epoch = epoch

    def __len__(self) -> int:
        share = -(-self.count // self.world)
        return -(-share // self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        order = torch.arange(self.count)
        if self.shuffle:
            random = numpy.random.default_rng((self.seed, epoch))
            order = torch.from_numpy(random.permutation(self.count))
        share = -(-self.count // self.world)
        numbers = order.repeat(self.world)[: share * self.world][self.rank :: self.world].tolist()
        skip = self._resumed[1] if epoch == self._resumed[0] else 0
        for start in range(skip * self.batch_size, len(numbers), self.batch_size):
            yield [(epoch, number) for number in numbers[start : start + self.batch_size]]
