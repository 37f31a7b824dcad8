"""From samples to batches; every random choice depends only on (seed, epoch, image index)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError, Preprocess
from saywhere.networks import checkpoint
from saywhere.options import dataclass
from saywhere.text import Vocabulary
from saywhere.training.cache import FeatureCache, read_pixels

Key = tuple[int, int]
"""Epoch and image index."""
Digest = tuple[str | None, int, str]
"""Name, number of images and hash of a split, see :func:`saywhere.data.sample.digest_of`."""

_SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
_SIDE = re.compile(r"\b(?:left|right)(?:most)?\b", re.IGNORECASE)


Target = Any
"""The ground truth of an image that a system's losses compare the network's output with: a dataclass of tensors."""


def to_device(target: Target, device: torch.device) -> Target:
    """Return a target with its tensors on ``device``."""
    values = {field.name: getattr(target, field.name) for field in fields(target)}
    return replace(target, **{name: v.to(device) for name, v in values.items() if isinstance(v, torch.Tensor)})


class TargetMaker(Protocol):
    """A function that makes the target of an image for one epoch."""

    def __call__(self, sample: Sample, size: tuple[int, int], flipped: bool, random: np.random.Generator) -> Target:
        """Return the target of an image.

        Args:
            size: width and height of the network's input.
            flipped: whether the input is mirrored left to right.
            random: source of all random choices.
        """
        ...


class System:
    """A kind of model and its training data; the parts of a model have subclasses.

    Its network has ``config``, ``vocabulary`` and ``trunk``. It is called with the extractor's outputs and the target
    of each image, and a generator. The criterion turns its output into named losses, whose sum is minimised.

    Attributes:
        about: what its models do, for the card: "A model that ...".
        unit: what the card counts, such as ``regions``.
        presets: named configurations for ``model.preset`` of a recipe; one is ``default``.
        save: writes what is kept of a network, see :func:`saywhere.networks.checkpoint.save`.
    """

    about: ClassVar[str]
    unit: ClassVar[str]
    presets: ClassVar[Mapping[str, Callable[[], Any]]]
    save: Callable[[Any, Path, str, str, torch.dtype], object] = staticmethod(checkpoint.save)

    def losses(self, config: Any) -> tuple[str, ...]:
        """Return the names of the criterion's losses in validation."""
        raise TypeError

    def usable(self, samples: Sequence[Sample], config: Any) -> list[Sample]:
        """Return the samples, or parts of them, that can be trained on."""
        raise TypeError

    def texts(self, sample: Sample) -> Iterable[str]:
        """Return the texts that the vocabulary is built from: all references of all boxes."""
        return chain.from_iterable(sample.phrases)

    def count(self, sample: Sample) -> int:
        """Return how many ``unit`` a sample has: its texts."""
        return sum(1 for _ in self.texts(sample))

    def build(self, config: Any, vocabulary: Vocabulary, pretrained: bool) -> Any:
        """Build the untrained network; ``pretrained``: its trunk gets published weights.

        ``UserError`` if published weights, a localizer or word vectors are not available or do not fit.
        """
        raise TypeError

    def extractor(self, network: Any) -> nn.Module:
        """Return the part of a network that may be frozen and its outputs cached: the extractor of the trunk.

        It maps a list of pixels ``(3, h, w)`` to one tuple of three-dimensional tensors each. If its weights do not
        fully determine its outputs, its attribute ``settings`` tells the rest.
        """
        return network.trunk.extractor

    def criterion(self, network: Any, samples: Sequence[Sample]) -> nn.Module:
        """Return the losses; ``samples`` are the training samples."""
        raise TypeError

    def targets(self, network: Any) -> TargetMaker:
        """Return the function that makes an image's target."""
        raise TypeError


@dataclass(frozen=True)
class Item:
    """One image of a batch; ``inputs`` are its feature maps, or one tensor ``(3, h, w)`` of pixels."""

    inputs: tuple[Tensor, ...]
    target: Target
    image: Path


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of images of any sizes.

    Attributes:
        features: maps ``(C_l, H_l, W_l)`` per image; None if ``pixels`` are given.
        pixels: ``(3, h, w)`` per image; None if ``features`` are given.
        targets: one per image, from the system's :class:`TargetMaker`.
        images: file of each image.
        skipped: one line per unreadable image; another image takes its place.
    """

    features: list[tuple[Tensor, ...]] | None
    pixels: list[Tensor] | None
    targets: list[Target]
    images: list[Path]
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on ``device``, with features converted to float32."""
        features, pixels = self.features, self.pixels
        if features is not None:
            features = [tuple(m.to(device, non_blocking=True).float() for m in maps) for maps in features]
        if pixels is not None:
            pixels = [image.to(device, non_blocking=True) for image in pixels]
        targets = [to_device(target, device) for target in self.targets]
        return Batch(features, pixels, targets, self.images, self.skipped)


def mirror_phrase(phrase: str) -> str:
    """Return the phrase for the mirrored image, with left and right swapped."""
    return _SIDE.sub(lambda match: _SIDES[match[0].lower()], phrase)


class ImageDataset(Dataset[Item]):
    """A dataset of images with their targets, indexed by ``(epoch, index)``.

    The target of an image, and whether it is mirrored, depend only on (seed, epoch, index); the dataset has no state.

    Args:
        features: cached features by image index; None for pixels.
        cached_epochs: use ``features`` only in epochs before this one, after which the backbone is trained; None for
            all.
        flip: mirror half of the images.
        fixed: same targets in all epochs, never mirrored: for validation.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        target: TargetMaker,
        preprocess: Preprocess,
        seed: int,
        features: FeatureCache | None = None,
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
        """Return whether items of ``epoch`` (counted from 0) hold features rather than pixels."""
        return self.features is not None and (self.cached_epochs is None or epoch < self.cached_epochs)

    def __getitem__(self, key: Key) -> Item:
        epoch, index = key
        sample = self.samples[index]
        random = np.random.default_rng((self.seed, 0 if self.fixed else epoch + 1, index))
        flipped = self.flip and bool(random.integers(2))
        if self.features is not None and self.cached(epoch):
            inputs = self.features.read(index, flipped)
        else:
            pixels = read_pixels(sample, self.preprocess)
            inputs = (pixels.flip(-1) if flipped else pixels,)
        size = self.preprocess.size(sample.width, sample.height)
        return Item(inputs, self.target(sample, size, flipped, random), sample.image)

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        """Return a batch; all keys have the same epoch. An unreadable image is replaced by the next readable one."""
        skipped: list[str] = []
        items, cached = [self._readable(key, skipped) for key in keys], self.cached(keys[0][0])
        features = [item.inputs for item in items] if cached else None
        pixels = None if cached else [item.inputs[0] for item in items]
        targets, images = [item.target for item in items], [item.image for item in items]
        return Batch(features, pixels, targets, images, tuple(skipped))

    def _readable(self, key: Key, skipped: list[str]) -> Item:
        epoch, number = key
        for step in range(len(self)):
            try:
                return self[epoch, (number + step) % len(self)]
            except ImageError as error:
                skipped.append(str(error))
        raise UserError(f"not one image can be read; the first: {skipped[0]}")


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int, shuffle: bool = True) -> list[list[Key]]:
    """Return the batches of an epoch, as ``(epoch, index)``, in an order that depends only on (seed, epoch).

    ``epoch`` is counted from 0. Without ``shuffle`` the order is that of the data set.
    """
    numbers = np.random.default_rng((seed, epoch)).permutation(count) if shuffle else np.arange(count)
    keys = [(epoch, number) for number in numbers.tolist()]
    return [keys[start : start + batch_size] for start in range(0, count, batch_size)]
