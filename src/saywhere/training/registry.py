"""What training knows of each system; all else is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from saywhere.configs.parts import Config
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.text import Vocabulary
from saywhere.training.aligner import AlignerSystem
from saywhere.training.branch import BranchSystem
from saywhere.training.captioner import CaptionerSystem
from saywhere.training.dataset import TargetMaker
from saywhere.training.densecap import DenseCapSystem

if TYPE_CHECKING:
    from PIL.Image import Image


class System(Protocol):
    """A kind of model and what it is trained on.

    Its network has ``config``, ``vocabulary`` and ``trunk``, and is called with the extractor's outputs of each image,
    the targets of each, and a generator; what it returns goes to the criterion, which gives named losses whose sum is
    minimised.
    """

    @property
    def about(self) -> str:
        """What its models do, for the card: "A model that ..."."""
        ...

    @property
    def unit(self) -> str:
        """What is counted in the card, such as ``regions``."""
        ...

    @property
    def presets(self) -> Mapping[str, Callable[[], Config]]:
        """Named configurations that ``model.preset`` of a recipe chooses from; one is ``default``."""
        ...

    def usable(self, samples: Sequence[Sample], config: Any) -> list[Sample]:
        """Return what of the samples can be learnt."""
        ...

    def texts(self, sample: Sample) -> Iterable[str]:
        """Return the texts that the vocabulary is built from."""
        ...

    def count(self, sample: Sample) -> int:
        """Return how many ``unit`` a sample has."""
        ...

    def build(self, config: Any, vocabulary: Vocabulary, pretrained: bool) -> Any:
        """Return the untrained network; its trunk with published weights if ``pretrained``.

        Raises:
            UserError: published weights, a localizer or word vectors cannot be had or do not fit.
        """
        ...

    def extractor(self, network: Any) -> nn.Module:
        """Return the part of a network that may stay frozen, and whose outputs may then be cached.

        It turns a list of pixels ``(3, h, w)`` into a tuple of tensors with three dimensions each. If its weights alone
        do not say what it does, its attribute ``settings`` does.
        """
        ...

    def criterion(self, network: Any, samples: Sequence[Sample]) -> nn.Module:
        """Return the losses; ``samples`` are those that the network learns from."""
        ...

    def targets(self, network: Any) -> TargetMaker:
        """Return what makes an image's target."""
        ...

    def draw(self, network: Any, image: LoadedImage) -> Image | None:
        """Return a drawing of what a network finds in an image; None if there is nothing to draw."""
        ...

    def save(self, network: Any, folder: Path, card: str, description: str, dtype: torch.dtype, /) -> object:
        """Write what is kept of a network, see :func:`saywhere.networks.checkpoint.save`."""
        ...


SYSTEMS: dict[str, System] = {
    "densecap": DenseCapSystem(), "aligner": AlignerSystem(), "captioner": CaptionerSystem(), "branch": BranchSystem(),
}  # fmt: skip


def find_system(name: str) -> System:
    """Return the system of a recipe; ``UserError`` if there is none of this name."""
    if name not in SYSTEMS:
        raise UserError(f"system is {name!r}, but must be one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def build_vocabulary(system: System, samples: Sequence[Sample], min_count: int) -> Vocabulary:
    """Return the words that occur at least ``min_count`` times in the samples' texts.

    Raises:
        UserError: there are none.
    """
    texts = [text for sample in samples for text in system.texts(sample)]
    vocabulary = Vocabulary.build(texts, min_count)
    if texts and not vocabulary.counts:
        raise UserError(f"no word occurs {min_count} times in the training texts; lower data.min_count")
    return vocabulary
