"""How DenseCap is trained: phrases of boxes (section 3.4 of the DenseCap paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy

from saywhere import boxes as geometry
from saywhere.data.sample import Sample
from saywhere.drawing import draw_regions
from saywhere.images import Picture
from saywhere.models.densecap import DenseCap, Target
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.densecap_loss import DenseCapCriterion
from saywhere.text import Vocabulary, pad, tokenize
from saywhere.training.dataset import mirror_phrase

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class PhraseTargets:
    """Targets of DenseCap: the boxes of a picture, each with one of its phrases, drawn anew in each epoch."""

    vocabulary: Vocabulary

    def __call__(self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator) -> Target:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        width, height = size
        boxes = geometry.scale(sample.boxes.float(), width / sample.width, height / sample.height)
        if flipped:
            boxes = geometry.flip(boxes, width)
        words: list[list[int]] = []
        for references in sample.phrases:
            phrase = references[int(random.integers(len(references)))]
            words.append(self.vocabulary.encode(mirror_phrase(phrase) if flipped else phrase))
        return Target(width, height, boxes, pad(words))


class DenseCapSystem:
    """See :class:`saywhere.training.systems.System`."""

    about = "finds regions in pictures and says what they are"
    unit = "regions"
    extractor = "backbone"
    presets: Mapping[str, Callable[[], DenseCapConfig]] = MappingProxyType(
        {"default": DenseCapConfig, "original": DenseCapConfig.original}
    )

    def usable(self, samples: Sequence[Sample], config: DenseCapConfig) -> list[Sample]:
        """The samples without wordless phrases, boxes without phrases and pictures without boxes.

        Phrases of more than ``config.max_words`` words are left out too: a model that cannot say them shall not be
        taught them.
        """
        return usable(samples, config.max_words)

    def texts(self, sample: Sample) -> Iterator[str]:
        """Every reference of every box."""
        for references in sample.phrases:
            yield from references

    def count(self, sample: Sample) -> int:
        """Boxes."""
        return len(sample.boxes)

    def build(self, config: DenseCapConfig, vocabulary: Vocabulary, pretrained: bool) -> DenseCap:
        """The untrained model."""
        return DenseCap(config, vocabulary, pretrained)

    def criterion(self, model: DenseCap, samples: Sequence[Sample]) -> DenseCapCriterion:
        """The five losses."""
        return DenseCapCriterion(model.config)

    def targets(self, model: DenseCap) -> PhraseTargets:
        """Boxes with phrases."""
        return PhraseTargets(model.vocabulary)

    def draw(self, model: DenseCap, picture: Picture) -> Image:
        """The best eight regions on the picture."""
        return draw_regions(picture.pixels, model.describe(picture, top=8))


def usable(samples: Sequence[Sample], longest: int | None = None) -> list[Sample]:
    """Samples with boxes whose phrases have one to ``longest`` words; all else is left out."""
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
