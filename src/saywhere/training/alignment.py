"""How the aligner is trained: sentences about whole pictures (Alignments, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy

from saywhere.data.sample import Sample
from saywhere.images import Picture
from saywhere.language.word_vectors import load_word_vectors, read_word_vectors
from saywhere.models import checkpoint
from saywhere.models.aligner import Aligner, SentenceTarget
from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_criterion import AlignmentCriterion
from saywhere.text import END, Vocabulary, pad, tokenize
from saywhere.training.dataset import mirror_phrase


@dataclass(frozen=True)
class SentenceTargets:
    """Targets of the aligner: sentences of a picture, drawn anew in each epoch.

    Attributes:
        vocabulary: of the model.
        count: sentences a picture; one that has fewer gives all it has.
        end: each sentence ends with END.
    """

    vocabulary: Vocabulary
    count: int
    end: bool

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator
    ) -> SentenceTarget:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        chosen = random.permutation(len(sample.sentences))[: self.count].tolist()
        texts = [sample.sentences[i] for i in chosen]
        words = [self.vocabulary.encode(mirror_phrase(text) if flipped else text) for text in texts]
        return SentenceTarget(pad([row + [END] * self.end for row in words]))


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
        return [sample for sample in kept if sample.sentences]

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
            load_word_vectors(model.reader.words.weight, read_word_vectors(config.word_vectors, vocabulary))
        return model

    def criterion(self, model: Aligner) -> AlignmentCriterion:
        """The two directions of Eq. 9, or of the contrastive loss."""
        return AlignmentCriterion(model.config)

    def targets(self, model: Aligner) -> SentenceTargets:
        """Sentences."""
        return SentenceTargets(model.vocabulary, model.config.sentences, model.config.sentence)

    def draw(self, model: Aligner, picture: Picture) -> None:
        """Nothing: without a sentence there is nothing to align."""
        return None
