"""What the systems have of their own in training; all else is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import Picture
from saywhere.models.config import Config
from saywhere.text import Vocabulary
from saywhere.training.alignment import AlignerSystem
from saywhere.training.captions import CaptionerSystem
from saywhere.training.dataset import TargetMaker
from saywhere.training.regions import DenseCapSystem

if TYPE_CHECKING:
    from PIL.Image import Image


class System(Protocol):
    """A kind of model and what it is trained on.

    Its model has ``config``, ``vocabulary`` and ``preprocess``, and is called with the extractor's outputs of each
    picture, the targets of each, and a generator; what it returns goes to the criterion, which gives named losses whose
    sum is minimised.
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
    def extractor(self) -> str:
        """Name of the model's part that may stay frozen, and whose outputs may then be cached.

        It turns a list of pixels ``(3, h, w)`` into a tuple of tensors with three dimensions each.
        """
        ...

    @property
    def presets(self) -> Mapping[str, Callable[[], Config]]:
        """Named configurations that ``model.preset`` of a recipe chooses from; one is ``default``."""
        ...

    def usable(self, samples: Sequence[Sample], config: Any) -> list[Sample]:
        """The samples, or what of each, that can be learnt."""
        ...

    def texts(self, sample: Sample) -> Iterable[str]:
        """What the vocabulary is built from."""
        ...

    def count(self, sample: Sample) -> int:
        """How many ``unit`` a sample has."""
        ...

    def build(self, config: Any, vocabulary: Vocabulary, pretrained: bool) -> Any:
        """The untrained model; its extractor from published weights if ``pretrained``."""
        ...

    def criterion(self, model: Any, samples: Sequence[Sample]) -> nn.Module:
        """The losses; ``samples`` are those that the model learns from."""
        ...

    def targets(self, model: Any) -> TargetMaker:
        """What makes a picture's target."""
        ...

    def draw(self, model: Any, picture: Picture) -> Image | None:
        """What the model sees in a picture, for the eye; None if there is nothing to see."""
        ...


SYSTEMS: dict[str, System] = {"densecap": DenseCapSystem(), "aligner": AlignerSystem(), "captioner": CaptionerSystem()}


def find_system(name: str) -> System:
    """The system of a recipe; ``UserError`` if there is none of this name."""
    if name not in SYSTEMS:
        raise UserError(f"system is {name!r}, but must be one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def build_vocabulary(system: System, samples: Sequence[Sample], min_count: int) -> Vocabulary:
    """Words of all texts of the samples that occur ``min_count`` times, each text counted once."""
    vocabulary = Vocabulary.build((text for sample in samples for text in system.texts(sample)), min_count)
    if not vocabulary.counts:
        raise UserError(f"no word occurs {min_count} times in the training texts; lower data.min_count")
    return vocabulary
