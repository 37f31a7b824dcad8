"""How the aligner is trained: sentences about whole pictures (Alignments, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy
import torch

from saywhere import boxes as geometry
from saywhere.data.entities import find_marks, read_marks
from saywhere.data.sample import Sample
from saywhere.images import Picture, measure
from saywhere.language.word_vectors import load_word_vectors, read_word_vectors
from saywhere.models import checkpoint
from saywhere.models.aligner import Aligner
from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_criterion import AlignmentCriterion
from saywhere.models.sentence_target import SentenceTarget
from saywhere.text import END, Vocabulary, pad, tokenize
from saywhere.training.dataset import mirror_phrase


@dataclass(frozen=True)
class SentenceTargets:
    """Targets of the aligner: sentences of a picture, drawn anew in each epoch.

    Attributes:
        vocabulary: of the model.
        count: sentences a picture; one that has fewer gives all it has.
        end: each sentence ends with END.
        phrases: take the marked sentences of Flickr30k Entities, with their phrases' boxes.
    """

    vocabulary: Vocabulary
    count: int
    end: bool
    phrases: bool = False

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator
    ) -> SentenceTarget:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        if self.phrases:
            return self._marked(sample, size, flipped, random)
        chosen = random.permutation(len(sample.sentences))[: self.count].tolist()
        texts = [sample.sentences[i] for i in chosen]
        words = [self.vocabulary.encode(mirror_phrase(text) if flipped else text) for text in texts]
        return SentenceTarget(pad([row + [END] * self.end for row in words]))

    def _marked(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator
    ) -> SentenceTarget:
        marked = [s for s in read_marks(sample.image, measure(sample.image)) if s.words]
        chosen = [marked[i] for i in random.permutation(len(marked))[: self.count].tolist()]
        words = [self.vocabulary.encode(mirror_phrase(s.text) if flipped else s.text) for s in chosen]
        rows = [(i, p.start, p.stop, p.box) for i, s in enumerate(chosen) for p in s.phrases if p.box is not None]
        boxes = torch.stack([box for *_, box in rows]) if rows else torch.zeros(0, 4)
        boxes = geometry.scale(boxes, size[0] / sample.width, size[1] / sample.height)
        spans = torch.tensor([row[:3] for row in rows], dtype=torch.long).reshape(-1, 3)
        return SentenceTarget(
            pad([row + [END] * self.end for row in words]), spans, geometry.flip(boxes, size[0]) if flipped else boxes
        )


class AlignerSystem:
    """See :class:`saywhere.training.systems.System`."""

    about = "says which words of a sentence belong to which area of a picture, and which sentence to which picture"
    unit = "sentences"
    extractor = "extractor"
    presets: Mapping[str, Callable[[], AlignerConfig]] = MappingProxyType(
        {"default": AlignerConfig, "original": AlignerConfig.original}
    )

    def usable(self, samples: Sequence[Sample], config: AlignerConfig) -> list[Sample]:
        """The samples with sentences, without those sentences that have no word."""
        kept = [replace(s, sentences=tuple(t for t in s.sentences if tokenize(t))) for s in samples]
        kept = [sample for sample in kept if sample.sentences]
        if not config.phrase_weight:
            return kept
        return [sample for sample in kept if all(path.is_file() for path in find_marks(sample.image))]

    def texts(self, sample: Sample) -> Iterator[str]:
        """The sentences."""
        yield from sample.sentences

    def count(self, sample: Sample) -> int:
        """Sentences."""
        return len(sample.sentences)

    def build(self, config: AlignerConfig, vocabulary: Vocabulary, pretrained: bool) -> Aligner:
        """The untrained model; if ``pretrained``, with published weights and the proposals of ``config.localizer``."""
        alone = config.areas == "whole"
        model = Aligner(config, vocabulary, pretrained and alone)
        if pretrained and not alone:  # the backbone comes with the localizer, whose own it is
            model.take_localization(checkpoint.load(config.localizer))
            if model.provider.features.head is not None:
                model.provider.features.head.load_published(config.backbone)
        if config.word_vectors is not None:
            vectors = read_word_vectors(config.word_vectors, vocabulary)
            for words in model.word_vectors:
                load_word_vectors(words, vectors)
        return model

    def criterion(self, model: Aligner, samples: Sequence[Sample]) -> AlignmentCriterion:
        """The two directions of Eq. 9, or of the contrastive loss."""
        return AlignmentCriterion(model.config)

    def targets(self, model: Aligner) -> SentenceTargets:
        """Sentences."""
        return SentenceTargets(
            model.vocabulary, model.config.sentences, model.config.sentence, model.config.phrase_weight > 0
        )

    def draw(self, model: Aligner, picture: Picture) -> None:
        """Nothing: without a sentence there is nothing to align."""
        return None
