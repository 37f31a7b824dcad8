"""Training of the aligner: sentences about whole images (Alignments, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from saywhere import reproductions
from saywhere.configs.aligner import AlignerConfig
from saywhere.data.sample import Sample
from saywhere.networks.aligner.loss import AlignmentCriterion, SentenceTarget
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.checkpoint import new_network, take_localizer
from saywhere.options import dataclass
from saywhere.text import END, Vocabulary, pad, tokenize
from saywhere.training.dataset import System, mirror_phrase


@dataclass(frozen=True)
class SentenceTargets:
    """Make aligner targets: sentences of an image and phrases of its regions, drawn anew in each epoch.

    Attributes:
        count: maximum number of texts per image.
        end: append END to each sentence.
        parses: parses of the sentences, to encode them as relations; None encodes them as words.
        kinds: kinds of relations.
    """

    vocabulary: Vocabulary
    count: int
    end: bool
    parses: Any = None
    kinds: tuple[str, ...] = ()

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: np.random.Generator
    ) -> SentenceTarget:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        return SentenceTarget(self._encode(self._draw(sample, random), flipped))

    def _draw(self, sample: Sample, random: np.random.Generator) -> list[str]:
        """Choose texts of an image. If it has sentences and phrases, either kind is equally likely for each text."""
        kinds = [texts for texts in (sample.sentences, _phrases(sample)) if texts]
        counts = np.bincount(random.integers(2, size=self.count), minlength=2) if len(kinds) > 1 else [self.count]
        return [
            texts[i]
            for texts, count in zip(kinds, counts, strict=True)
            for i in random.permutation(len(texts))[:count].tolist()
        ]

    def _encode(self, texts: Sequence[str], flipped: bool) -> torch.Tensor:
        if self.parses is not None:
            change = (mirror_phrase,) if flipped else ()
            return torch.from_numpy(self.parses.encode(texts, self.kinds, self.vocabulary, *change))
        rows = [self.vocabulary.encode(mirror_phrase(text) if flipped else text) for text in texts]
        return torch.from_numpy(pad([row + [END] * self.end for row in rows]))


def _read_parses(config: AlignerConfig) -> Any:
    """Return the parsed sentences of ``config.parses``; None without them."""
    return None if config.parses is None else reproductions.find("parses=FILE")(config.parses)


def _with_words(sample: Sample, phrases: bool) -> Sample:
    """Return the sample without texts that have no word, and without its regions unless ``phrases`` is set."""
    sentences = tuple(text for text in sample.sentences if tokenize(text))
    kept = [i for i, references in enumerate(sample.phrases) if phrases and any(map(tokenize, references))]
    references = tuple(tuple(text for text in sample.phrases[i] if tokenize(text)) for i in kept)
    weights = None if sample.phrase_weights is None else sample.phrase_weights[kept]
    return replace(sample, boxes=sample.boxes[kept], phrases=references, sentences=sentences, phrase_weights=weights)


def _phrases(sample: Sample) -> tuple[str, ...]:
    """Return the phrases of a sample's regions, except those of weight 0."""
    weights = sample.phrase_weights
    rows = [each for i, each in enumerate(sample.phrases) if weights is None or weights[i] > 0]
    return tuple(chain.from_iterable(rows))


class AlignerSystem(System):
    """Training of an aligner."""

    about = "finds which words of a sentence belong to which region of an image, and which sentence to which image"
    unit = "sentences"
    presets: ClassVar = {"default": AlignerConfig, "original": AlignerConfig.original}

    def losses(self, config: AlignerConfig) -> tuple[str, ...]:
        return ("images", "sentences")

    def usable(self, samples: Sequence[Sample], config: AlignerConfig) -> list[Sample]:
        """Return the samples that have sentences or, with ``config.region_phrases``, phrases of regions.

        Texts without a word are dropped.

        Raises:
            UserError: a sentence is missing from ``config.parses``.
        """
        kept = [_with_words(sample, config.region_phrases) for sample in samples]
        kept = [sample for sample in kept if sample.sentences or sample.phrases]
        if (parses := _read_parses(config)) is not None:
            for text in chain.from_iterable(map(self.texts, kept)):
                parses.find(text)
        return kept

    def texts(self, sample: Sample) -> tuple[str, ...]:
        """Return the sentences, and the phrases of regions if they are trained on."""
        return (*sample.sentences, *_phrases(sample))

    def build(self, config: AlignerConfig, vocabulary: Vocabulary, pretrained: bool) -> Aligner:
        """Build the untrained network; ``pretrained``: with published weights or the trunk of ``config.localizer``."""
        if config.parses is not None and not config.relations:
            config = replace(config, relations=_read_parses(config).frequent_kinds())
        proposes = config.uses_proposals
        network = new_network(Aligner, config, vocabulary, pretrained and not proposes)
        if pretrained and proposes:
            take_localizer(network, pretrained)
        return network

    def extractor(self, network: Aligner) -> nn.Module:
        """Return the module that computes region features from pixels."""
        return network.extractor

    def criterion(self, network: Aligner, samples: Sequence[Sample]) -> AlignmentCriterion:
        """Return the losses: both directions of Eq. 9, or of the contrastive loss."""
        return AlignmentCriterion(network.config)

    def targets(self, network: Aligner) -> SentenceTargets:
        """Return the target maker for sentences."""
        config = network.config
        return SentenceTargets(
            network.vocabulary, config.sentences, config.sentence_token, _read_parses(config), config.relations
        )
