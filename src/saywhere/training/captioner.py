"""Training of captioners: sentences of whole images, or phrases of boxes (Alignments, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from saywhere.configs.captioner import CaptionerConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.models.nouns import noun_tree
from saywhere.networks.captioner.loss import CaptionCriterion, CaptionTarget, Cider, InventedNouns, RewardCriterion
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.checkpoint import new_network, take_localizer
from saywhere.options import dataclass
from saywhere.text import END, Vocabulary, pad, tokenize
from saywhere.training.dataset import System, mirror_phrase
from saywhere.training.densecap import PhraseTargets
from saywhere.training.densecap import usable as usable_regions


@dataclass(frozen=True)
class CaptionTargets:
    """Make targets for captioning images: ``count`` sentences per image, drawn anew in each epoch.

    Sentences are repeated if an image has fewer.

    Attributes:
        count: None takes all sentences.
    """

    vocabulary: Vocabulary
    count: int | None

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: np.random.Generator
    ) -> CaptionTarget:
        order = random.permutation(len(sample.sentences)).tolist()
        count = len(order) if self.count is None else self.count
        texts = [sample.sentences[order[i % len(order)]] for i in range(count)]
        token_ids = [self.vocabulary.encode(mirror_phrase(text) if flipped else text) for text in texts]
        return CaptionTarget(torch.from_numpy(pad(token_ids)), *size)


@dataclass(frozen=True)
class BoxTargets:
    """Make targets for captioning boxes: the boxes of an image, each with one of its phrases."""

    vocabulary: Vocabulary

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: np.random.Generator
    ) -> CaptionTarget:
        target = PhraseTargets(self.vocabulary)(sample, size, flipped, random)
        return CaptionTarget(target.token_ids, *size, target.boxes)


class CaptionerSystem(System):
    """Training of a captioner."""

    about = "captions images with sentences, or their regions with phrases"
    unit = "texts"
    presets: ClassVar = {"default": CaptionerConfig, "original": CaptionerConfig.original}

    def losses(self, config: CaptionerConfig) -> tuple[str, ...]:
        return ("cider",) if config.reward == "cider" else ("caption",)

    def usable(self, samples: Sequence[Sample], config: CaptionerConfig) -> list[Sample]:
        """Return the samples reduced to their sentences or, with ``describe_boxes``, to their boxes and phrases.

        Texts of no word or of more than ``config.decoding.max_words`` are dropped.
        """
        longest = config.decoding.max_words
        if config.describe_boxes:
            return [replace(sample, sentences=()) for sample in usable_regions(samples, longest)]
        kept = [
            replace(
                sample,
                boxes=sample.boxes[:0],
                phrases=(),
                sentences=tuple(text for text in sample.sentences if 1 <= len(tokenize(text)) <= longest),
            )
            for sample in samples
        ]
        return [sample for sample in kept if sample.sentences]

    def texts(self, sample: Sample) -> Iterable[str]:
        """Return the sentences or, if there are none, all references of all boxes."""
        return sample.sentences or super().texts(sample)

    def build(self, config: CaptionerConfig, vocabulary: Vocabulary, pretrained: bool) -> Captioner:
        """Build the untrained network. Proposals are not trained; their trunk comes from ``config.localizer``.

        Raises:
            UserError: ``config`` has n-grams, which are added to a captioner after training.
        """
        if config.ngrams.count:
            raise UserError("model.ngrams.count must be 0 in a recipe: a stage of the kind ngrams stores them")
        proposes = config.uses_proposals
        network = new_network(Captioner, config, vocabulary, pretrained and not proposes)
        if proposes:
            take_localizer(network, pretrained)
            for part in (network.trunk.pyramid, network.trunk.localization):
                if part is not None:
                    part.requires_grad_(False)
        return network

    def criterion(self, network: Captioner, samples: Sequence[Sample]) -> CaptionCriterion | RewardCriterion:
        """Return the cross entropy per word or, with a reward, the reward's shortfall.

        The sentences of ``samples`` are the corpus from which CIDEr-D takes its document frequencies.
        """
        config = network.config
        if config.reward == "none":
            return CaptionCriterion(config.smoothing)
        encode = network.vocabulary.encode
        cider = Cider([[*encode(text), END] for text in sample.sentences] for sample in samples)
        invented = InventedNouns(network.vocabulary, noun_tree()) if config.invented_weight else None
        return RewardCriterion(cider, config.word_weight, config.smoothing, invented, config.invented_weight)

    def targets(self, network: Captioner) -> CaptionTargets | BoxTargets:
        config = network.config
        if config.describe_boxes:
            return BoxTargets(network.vocabulary)
        return CaptionTargets(network.vocabulary, config.sentences if config.reward == "none" else None)
