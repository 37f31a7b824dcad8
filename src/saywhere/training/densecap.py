"""Training of DenseCap: phrases of boxes (section 3.3 of the DenseCap paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from saywhere import boxes as geometry
from saywhere.configs.densecap import DenseCapConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.networks.checkpoint import new_network
from saywhere.networks.densecap.loss import DenseCapCriterion
from saywhere.networks.densecap.network import DenseCap, Target
from saywhere.options import dataclass
from saywhere.text import Vocabulary, pad, tokenize
from saywhere.training.dataset import System, mirror_phrase


@dataclass(frozen=True)
class PhraseTargets:
    """Make DenseCap targets: the boxes of an image, each with one of its phrases, drawn anew in each epoch."""

    vocabulary: Vocabulary

    def __call__(self, sample: Sample, size: tuple[int, int], flipped: bool, random: np.random.Generator) -> Target:
        width, height = size
        boxes = geometry.scale(sample.boxes, width / sample.width, height / sample.height)
        if flipped:
            boxes = geometry.flip(boxes, width)
        token_ids: list[list[int]] = []
        for references in sample.phrases:
            phrase = references[int(random.integers(len(references)))]
            token_ids.append(self.vocabulary.encode(mirror_phrase(phrase) if flipped else phrase))
        weights = None if sample.phrase_weights is None else torch.from_numpy(sample.phrase_weights)
        return Target(width, height, torch.from_numpy(boxes), torch.from_numpy(pad(token_ids)), weights)


class DenseCapSystem(System):
    """Training of a dense captioner."""

    about = "finds regions in images and describes them with phrases"
    unit = "regions"
    presets: ClassVar = {"default": DenseCapConfig, "original": DenseCapConfig.original}

    def losses(self, config: DenseCapConfig) -> tuple[str, ...]:
        return ("rpn_score", "rpn_box", "score", "box", "caption")

    def usable(self, samples: Sequence[Sample], config: DenseCapConfig) -> list[Sample]:
        """Return the samples without phrases that have no word or exceed the model's maximum length.

        Boxes without phrases and images without boxes are dropped too.
        """
        return usable(samples, config.decoding.max_words)

    def count(self, sample: Sample) -> int:
        return len(sample.boxes)

    def build(self, config: DenseCapConfig, vocabulary: Vocabulary, pretrained: bool) -> DenseCap:
        if config.ngrams.count:
            raise UserError("model.ngrams.count must be 0 in a recipe: a stage of the kind ngrams stores them")
        return new_network(DenseCap, config, vocabulary, pretrained)

    def criterion(self, network: DenseCap, samples: Sequence[Sample]) -> DenseCapCriterion:
        return DenseCapCriterion(network.config)

    def targets(self, network: DenseCap) -> PhraseTargets:
        return PhraseTargets(network.vocabulary)


def usable(samples: Sequence[Sample], longest: int | None = None) -> list[Sample]:
    """Return the samples with boxes whose phrases have 1 to ``longest`` words; drop everything else."""
    kept: list[Sample] = []
    for sample in samples:
        phrases = [tuple(p for p in each if 1 <= len(tokenize(p)) <= (longest or math.inf)) for each in sample.phrases]
        rows = [i for i, references in enumerate(phrases) if references]
        if rows:
            weights = None if sample.phrase_weights is None else sample.phrase_weights[rows]
            kept.append(
                replace(
                    sample, boxes=sample.boxes[rows], phrases=tuple(phrases[i] for i in rows), phrase_weights=weights
                )
            )
    return kept
