"""From samples to batches; every random choice follows from (seed, epoch, number of the picture)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from saywhere import boxes as box_geometry
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError, Preprocess, open_picture
from saywhere.models.densecap import Target
from saywhere.text import Vocabulary, pad, tokenize

Key = tuple[int, int]
"""Epoch and number of the picture."""

_SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
_SIDE = re.compile(r"\b(?:left|right)(?:most)?\b", re.IGNORECASE)


class FeatureSource(Protocol):
    """Where the features of a frozen backbone come from, such as :class:`saywhere.training.cache.FeatureCache`."""

    def read(self, index: int, flipped: bool) -> tuple[Tensor, ...]:
        """The maps ``(C_l, H_l, W_l)`` of picture ``index``, finest first."""
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
        targets: for each picture its boxes and one phrase a box.
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
        targets = [replace(t, boxes=t.boxes.to(device), words=t.words.to(device)) for t in self.targets]
        return Batch(features, pixels, targets, self.images)


def collate(items: Sequence[Item], cached: bool) -> Batch:
    """Items as one batch, of features if ``cached`` and of pixels otherwise."""
    targets, images = [item.target for item in items], [item.image for item in items]
    if cached:
        return Batch([item.inputs for item in items], None, targets, images)
    return Batch(None, [item.inputs[0] for item in items], targets, images)


def mirror_phrase(phrase: str) -> str:
    """The phrase for the mirrored picture: left and right change places."""
    return _SIDE.sub(lambda match: _SIDES[match[0].lower()], phrase)


class RegionDataset(Dataset[Item]):
    """Pictures with boxes and phrases, asked for by ``(epoch, number)``.

    A picture's phrases (one a box), and whether it is mirrored, follow from (seed, epoch, number); the dataset itself
    never changes. Boxes whose phrases have no word are left out.

    Args:
        samples: pictures with at least one box, all readable.
        vocabulary: numbers for the words.
        preprocess: the network's way to look at pictures.
        seed: of the run.
        features: cached features by number of the picture, or None for pixels.
        cached_epochs: ``features`` serve epochs before this one (the backbone is trained from then on); None for all.
        flip: mirror half of the pictures.
        fixed: the same phrases, unmirrored, in all epochs: for validation.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        vocabulary: Vocabulary,
        preprocess: Preprocess,
        seed: int,
        features: FeatureSource | None = None,
        cached_epochs: int | None = None,
        flip: bool = False,
        fixed: bool = False,
    ):
        self.samples, self.vocabulary, self.preprocess, self.seed = samples, vocabulary, preprocess, seed
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
        return Item(inputs, self._target(sample, random, flipped), sample.image)

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

    def _target(self, sample: Sample, random: numpy.random.Generator, flipped: bool) -> Target:
        width, height = self.preprocess.size(sample.width, sample.height)
        boxes = box_geometry.scale(sample.boxes.float(), width / sample.width, height / sample.height)
        if flipped:
            boxes = box_geometry.flip(boxes, width)
        words: list[list[int]] = []
        for references in sample.phrases:
            phrase = references[int(random.integers(len(references)))]
            words.append(self.vocabulary.encode(mirror_phrase(phrase) if flipped else phrase))
        return Target(width, height, boxes, pad(words))


def usable(samples: Sequence[Sample], longest: int | None = None) -> list[Sample]:
    """The samples without wordless phrases, boxes without phrases and pictures without boxes.

    Phrases of more than ``longest`` words are left out too: a model that cannot say them shall not be taught them.
    """
    kept: list[Sample] = []
    for sample in samples:
        phrases = [tuple(phrase for phrase in each if _sayable(phrase, longest)) for each in sample.phrases]
        rows = [i for i, references in enumerate(phrases) if references]
        if rows:
            kept.append(replace(sample, boxes=sample.boxes[rows], phrases=tuple(phrases[i] for i in rows)))
    return kept


def _sayable(phrase: str, longest: int | None) -> bool:
    words = len(tokenize(phrase))
    return words > 0 and (longest is None or words <= longest)


def evenly(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """At most ``limit`` samples at even distances."""
    if limit is None or limit >= len(samples):
        return list(samples)
    return [samples[i * len(samples) // limit] for i in range(limit)]


def build_vocabulary(samples: Sequence[Sample], min_count: int) -> Vocabulary:
    """Words of all phrases, each reference counted once."""
    vocabulary = Vocabulary.build((p for s in samples for references in s.phrases for p in references), min_count)
    if not vocabulary.counts:
        raise UserError(f"no word occurs {min_count} times in the training phrases; lower data.min_count")
    return vocabulary


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
