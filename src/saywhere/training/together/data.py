"""Images of a run that trains all parts together: views of them, and the maps of each."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saywhere import data as datasets
from saywhere.data import PhraseOptions, Sample
from saywhere.errors import UserError
from saywhere.images import Preprocess
from saywhere.training import cache
from saywhere.training.together.backbone import Front
from saywhere.training.together.tasks import View

SCALES = (1.0, 0.85, 1.15)
"""Long sides of the views of an image, as shares of the network's."""
PHRASES = {"max_words": 10, "merge": 0.8}
"""How phrases of boxes are read, as in the recipes of the dense captioner."""


def read_all(roots: Sequence[Path], split: str) -> list[Sample]:
    """Return the images of several data sets, each at its whole path; problems are printed.

    Raises:
        UserError: no such data set or split.
    """
    found: list[Sample] = []
    for root in roots:
        samples = datasets.read(root, split=split, options=PhraseOptions.from_dict(PHRASES))
        for line in samples.report.lines():
            print(f"{root}, {split}: {line}", file=sys.stderr)
        found += [dataclasses.replace(sample, image=sample.image.resolve()) for sample in samples]
    return found


@dataclass(frozen=True, eq=False)
class Views:
    """Hold the maps of all views of some images.

    Attributes:
        images: the files that can be read.
        caches: of each scale the preprocessing, and the maps and proposals of the images, as they are and mirrored.
        sizes: of each image its width and height.
        device: where views are wanted.
    """

    images: list[Path]
    caches: list[tuple[Preprocess, cache.FeatureView]]
    sizes: dict[Path, tuple[int, int]]
    device: torch.device

    @classmethod
    def of(
        cls, root: Path, front: Front, samples: Mapping[Path, Sample], scales: Sequence[float], flip: bool, title: str
    ) -> Views:
        """Return the views of images; their maps are computed unless they are in the cache ``root``.

        Args:
            root: folder of all caches.
            front: makes the maps.
            samples: images by file.
            scales: see :data:`SCALES`.
            flip: also mirrored.
            title: of the progress bar.

        Raises:
            UserError: the disk is full, or no image can be read.
        """
        given, usual = list(samples.values()), front.trunk.preprocess
        device = next(front.parameters()).device
        built: list[tuple[Preprocess, cache.FeatureCache]] = []
        for scale in scales:
            preprocess = dataclasses.replace(usual, long_side=round(usual.long_side * scale))
            name = f"{title}, {preprocess.long_side} pixels"
            features = cache.build(root, front.settings, front, preprocess, given, flip, device, title=name)
            built.append((preprocess, features))
        damaged = {i: why for _, features in built for i, why in features.damaged.items()}
        for why in damaged.values():
            print(f"skipped: {why}", file=sys.stderr)
        good = [i for i in range(len(given)) if i not in damaged]
        if not good:
            raise UserError(f"{title}: not one image can be read")
        sizes = {sample.image: (sample.width, sample.height) for sample in given}
        return cls([given[i].image for i in good], [(p, features.subset(good)) for p, features in built], sizes, device)

    def read(self, number: int, scale: int = 0, flipped: bool = False) -> tuple[View, tuple[Tensor, ...]]:
        """Return a view of an image, and its maps but the coarsest, finest first."""
        image = self.images[number]
        preprocess, features = self.caches[scale]
        *maps, boxes = (each.to(self.device).float() for each in features.read(number, flipped))
        return View(image, preprocess.size(*self.sizes[image]), flipped, boxes[0]), tuple(maps)

    def choose(self, number: int, random: np.random.Generator) -> tuple[View, tuple[Tensor, ...]]:
        """Return a view of an image by chance."""
        return self.read(number, int(random.integers(len(self.caches))), bool(random.integers(2)))


def batches(
    counts: tuple[int, int], sizes: tuple[int, int], seed: int, epoch: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches of an epoch: numbers of images, and of images that have nothing but names of boxes.

    Args:
        counts: of both kinds of images.
        sizes: of both in a batch. An epoch ends with the first kind; of the second, others come in each epoch.
        seed, epoch: the order depends on these alone.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(counts[0])
    steps = max(1, round(len(order) / sizes[0]))
    beside = [random.choice(counts[1], min(sizes[1], counts[1]), replace=False) for _ in range(steps)]
    return list(zip(np.array_split(order, steps), beside, strict=True))


def generator_of(seed: int, epoch: int, step: int) -> tuple[np.random.Generator, torch.Generator]:
    """Return the randomness of a step, and seed torch's own, so that a resumed run equals an uninterrupted one."""
    random = np.random.default_rng((seed, epoch + 1, step))
    number = int(random.integers(1 << 62))
    torch.manual_seed(number)
    return random, torch.Generator().manual_seed(number)
