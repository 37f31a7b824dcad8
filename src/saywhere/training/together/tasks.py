"""What each part of a model learns while the end of the backbone is trained with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.data.sample import Sample
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.image_maps import ImageMaps
from saywhere.networks.vision.region_features import whole_image
from saywhere.networks.vision.trunk import Trunk
from saywhere.training.systems.registry import find_system


@dataclass(frozen=True, eq=False)
class View:
    """Hold one view of an image.

    Attributes:
        image: the file.
        size: width and height of the network's input.
        flipped: the input is mirrored left to right.
        boxes: ``(R, 4)`` proposals in pixels of the input.
    """

    image: Path
    size: tuple[int, int]
    flipped: bool
    boxes: Tensor


@dataclass(frozen=True)
class Settings:
    """Hold how a part is trained by AdamW.

    Attributes:
        lr, betas, decay, clip: as in a recipe.
        images: of one step of the part; None for those of a whole batch.
        share: of the images of a batch, how many it learns from, at random.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.05
    clip: float = 10.0
    images: int | None = None
    share: float = 1.0


SETTINGS = {
    "densecap": Settings(5e-4, images=16, share=0.5),
    "aligner": Settings(5e-4, betas=(0.9, 0.98), clip=2.0),
    "captioner": Settings(5e-4, betas=(0.9, 0.99), decay=0.01, clip=5.0, images=64),
    "classes": Settings(2e-3, decay=0.1),
}
"""Of each part: those of its recipe, with half the learning rate, for it goes on from what it has learnt."""


class Task(Protocol):
    """One part's losses on images whose maps are there."""

    @property
    def name(self) -> str:
        """Of the part, a key of :data:`SETTINGS`."""
        ...

    @property
    def samples(self) -> dict[Path, Sample]:
        """The images that it learns from."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Return what the part's own optimiser trains."""
        ...

    def losses(
        self,
        images: Sequence[ImageMaps],
        views: Sequence[View],
        random: np.random.Generator,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return losses by name, whose sum is minimised.

        Args:
            images: N of them, all among ``samples``.
            views: of each image.
            random: chooses targets.
            generator: of the samplers.
        """
        ...


class PartTask:
    """Train a dense captioner, an aligner or a captioner by its own losses.

    Args:
        name: of the part.
        network: whose trunk all parts share. The dense captioner trains the trunk's pyramid and localization layer.
        samples: what it may learn from; texts that it cannot learn are left out.
        validation: images whose losses may be asked for beside these, in ``validation``.
    """

    def __init__(self, name: str, network: Any, samples: Sequence[Sample], validation: Sequence[Sample] = ()):
        system = find_system(name)
        usable = system.usable(samples, network.config)
        self.name, self.network = name, network
        self.samples = {sample.image: sample for sample in usable}
        self.validation = {sample.image: sample for sample in system.usable(validation, network.config)}
        self._targets, self._criterion = system.targets(network), system.criterion(network, usable)

    def parameters(self) -> list[nn.Parameter]:
        """See :class:`Task`."""
        trunk: Trunk = self.network.trunk
        shared = {id(p) for p in trunk.parameters()}
        own = [p for p in self.network.parameters() if id(p) not in shared and p.requires_grad]
        if isinstance(self.network, DenseCap):
            own += [
                p for module in (trunk.pyramid, trunk.localization) if module is not None for p in module.parameters()
            ]
        return own

    def losses(
        self,
        images: Sequence[ImageMaps],
        views: Sequence[View],
        random: np.random.Generator,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """See :class:`Task`."""
        self._criterion.train(self.network.training)
        known = self.samples if self.network.training else self.validation
        device = views[0].boxes.device
        targets = [self._targets(known[v.image], v.size, v.flipped, random).to(device) for v in views]
        return self._criterion(_call(self.network, images, views, targets, generator))


def _call(
    network: DenseCap | Aligner | Captioner,
    images: Sequence[ImageMaps],
    views: Sequence[View],
    targets: Sequence[Any],
    generator: torch.Generator,
) -> Any:
    """The output of a network for images whose maps are there."""
    if isinstance(network, DenseCap):
        return network([image.maps for image in images], targets, generator)
    if isinstance(network, Captioner):
        return network.learn(images, targets, generator)
    rows = [torch.cat((whole_image(image), view.boxes)) for image, view in zip(images, views, strict=True)]
    features = [
        (network.region_features(image, boxes)[None], boxes[None]) for image, boxes in zip(images, rows, strict=True)
    ]
    return network(features, targets, generator)
