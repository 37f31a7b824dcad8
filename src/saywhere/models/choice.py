"""Which hypothesis of the beam is the caption: a likely sentence that fits the image (docs/captioning.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from saywhere.configs.captioner import CaptionerConfig, NgramsConfig
from saywhere.engines.arrays.ngrams import Ngrams
from saywhere.engines.engine import Aligner, Captioner, Detector
from saywhere.models import grounding
from saywhere.models.caption_nouns import Witness
from saywhere.models.class_evidence import ClassEvidence
from saywhere.models.decoding import Hypotheses
from saywhere.models.encoding import Encoding
from saywhere.text import END, PAD

JUDGED = 10
"""Hypotheses that the aligner compares: with more a caption takes longer, and is hardly better."""

Ask = Callable[[Sequence[Sequence[str]]], Sequence[np.ndarray]]
"""Returns for each image how well each of its sentences fits it."""
Correct = Callable[[Sequence[str]], Sequence[str]]
"""Returns for each image its sentence, or one that fits better."""


@dataclass(frozen=True)
class Judge:
    """Say how well hypotheses fit their images.

    Attributes:
        ask: about sentences.
        weight: of what it says.
        most: it is asked about so many of the best hypotheses of an image, and the others are no longer chosen from;
            about all if None.
    """

    ask: Ask
    weight: float
    most: int | None = None


def choose(captioner: Captioner, embeddings: np.ndarray, found: Hypotheses, judges: Sequence[Judge]) -> np.ndarray:
    """Return the ranks ``(N, B)`` of hypotheses with what speaks for them beside their probability.

    A captioner knows which sentence is usual. If it has n-grams, what people would say of the image has a say, too.
    Then the judges have, one after the other.

    Args:
        captioner: whose hypotheses they are.
        embeddings: ``(N, F)`` of the images.
        found: the hypotheses.
        judges: of the same images.
    """
    ranks = found.ranks
    if ranks.shape[1] == 1:
        return ranks
    if captioner.ngrams is not None:
        ranks = ranks + _agreement(captioner.ngrams, captioner.config.ngrams, embeddings, found)
    texts = [[captioner.vocabulary.decode(row) for row in rows] for rows in found.token_ids.tolist()]
    for judge in judges:
        ranks = _judged(judge, ranks, texts)
    return ranks


def _judged(judge: Judge, ranks: np.ndarray, texts: Sequence[list[str]]) -> np.ndarray:
    """Return ranks ``(N, B)`` with what a judge says of sentences, but for empty ones; those left out have -inf."""
    best = np.argsort(-ranks, axis=1, kind="stable")[:, : judge.most]
    columns = [[b for b in sorted(row) if of_image[b]] for row, of_image in zip(best.tolist(), texts, strict=True)]
    judged = np.full_like(ranks, -np.inf)
    np.put_along_axis(judged, best, np.take_along_axis(ranks, best, axis=1), axis=1)
    fits = judge.ask([[of_image[b] for b in row] for row, of_image in zip(columns, texts, strict=True)])
    for row, asked, values in zip(judged, columns, fits, strict=True):
        row[asked] += np.float32(judge.weight) * values
    return judged


def judges_of(
    config: CaptionerConfig,
    encodings: Sequence[Encoding],
    aligner: Aligner | None,
    detector: Detector | None,
    classes: ClassEvidence | None,
) -> tuple[list[Judge], Correct | None]:
    """Return who judges captions of images by the other parts of a model, and who has the last word.

    Args:
        config: of the captioner.
        encodings: of the images.
        aligner, detector, classes: of the model; None for those that it lacks.
    """
    judges, witness = list[Judge](), None
    if config.nouns and detector is not None and classes is not None:
        witness = Witness(detector, classes, encodings)
        if config.seen_weight:
            judges.append(Judge(witness.support, config.seen_weight))
    if aligner is not None and config.similarity_weight:
        judges.append(Judge(partial(similarities, aligner, encodings), config.similarity_weight, JUDGED))
    return judges, None if witness is None else witness.correct


def similarities(aligner: Aligner, encodings: Sequence[Encoding], texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return how well each of its sentences fits each image, by the last encoder.

    Hubness is left out, for a caption may be one that fits many images.
    """
    aligner = aligner.last
    known = iter(grounding.embed_texts(aligner, [text for its in texts for text in its], plain=True))
    pairs = zip(grounding.embed_images(aligner, encodings, plain=True), texts, strict=True)
    score = aligner.config.score
    return [grounding.plain_similarities(image, [next(known) for _ in its], score) for image, its in pairs]


def _agreement(ngrams: Ngrams, config: NgramsConfig, embeddings: np.ndarray, found: Hypotheses) -> np.ndarray:
    """Return what people would say of images for each hypothesis ``(N, B)``."""
    sentences = [ngrams.weigh([row[(row != END) & (row != PAD)].tolist() for row in rows]) for rows in found.token_ids]
    return np.float32(config.weight) * np.stack(ngrams.agreement(embeddings, sentences))
