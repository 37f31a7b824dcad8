"""Which hypothesis of the beam is the caption: a likely sentence that fits the image (docs/captioning.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from saywhere.configs.captioner import CaptionerConfig, NgramsConfig
from saywhere.engines.arrays.ngrams import Ngrams, consensus
from saywhere.engines.engine import Aligner, Captioner, Detector
from saywhere.models import grounding
from saywhere.models.caption_nouns import Witness
from saywhere.models.class_evidence import ClassEvidence
from saywhere.models.decoding import Hypotheses
from saywhere.models.encoding import Encoding
from saywhere.text import END, PAD

JUDGED = 10
"""Hypotheses that the judges compare: with more a caption takes longer, and is hardly better (docs/experiments.md)."""

Judge = Callable[[Sequence[Sequence[str]]], Sequence[np.ndarray]]
"""Returns for each image how well each of its sentences fits it."""
Correct = Callable[[Sequence[str]], Sequence[str]]
"""Returns for each image its sentence, or one that fits better."""


def choose(
    captioner: Captioner, embeddings: np.ndarray, found: Hypotheses, judges: Sequence[tuple[float, Judge]]
) -> np.ndarray:
    """Return the ranks ``(N, B)`` of hypotheses with what speaks for them beside their probability.

    A captioner knows which sentence is usual. If it has n-grams, what people would say of the image, and what the
    hypotheses have in common, has a say, too. Judges, such as the aligner, which was trained to tell images apart, are
    asked about the best :data:`JUDGED`; then the others have the rank -inf.

    Args:
        captioner: whose hypotheses they are.
        embeddings: ``(N, F)`` of the images.
        found: the hypotheses.
        judges: with the weight that what each says has.
    """
    ranks, count = found.ranks, found.ranks.shape[1]
    if count > 1 and captioner.ngrams is not None:
        ranks = ranks + _agreement(captioner.ngrams, captioner.config.ngrams, embeddings, found)
    if count == 1 or not judges:
        return ranks
    best = np.argsort(-ranks, axis=1, kind="stable")[:, :JUDGED]
    judged: list[dict[int, str]] = []
    for rows, columns in zip(found.token_ids, best.tolist(), strict=True):
        texts = {column: captioner.vocabulary.decode(rows[column].tolist()) for column in columns}
        judged.append({column: text for column, text in texts.items() if text})
    ranks, others = np.full_like(ranks, -np.inf), ranks
    np.put_along_axis(ranks, best, np.take_along_axis(others, best, axis=1), axis=1)
    for weight, judge in judges:
        fits = judge([list(texts.values()) for texts in judged])
        for row, texts, values in zip(ranks, judged, fits, strict=True):
            row[list(texts)] += np.float32(weight) * values
    return ranks


def judges_of(
    config: CaptionerConfig,
    encodings: Sequence[Encoding],
    aligner: Aligner | None,
    detector: Detector | None,
    classes: ClassEvidence | None,
) -> tuple[list[tuple[float, Judge]], Correct | None]:
    """Return what the other parts of a model have to say of captions of images, by weights, and who has the last word.

    Args:
        config: of the captioner.
        encodings: of the images.
        aligner, detector, classes: of the model; None for those that it lacks.
    """
    judges = list[tuple[float, Judge]]()
    if aligner is not None and config.similarity_weight:
        judges.append((config.similarity_weight, partial(similarities, aligner, encodings)))
    if not config.nouns or detector is None or classes is None:
        return judges, None
    witness = Witness(detector, classes, encodings)
    if config.seen_weight:
        judges.append((config.seen_weight, witness.support))
    return judges, witness.correct


def similarities(aligner: Aligner, encodings: Sequence[Encoding], texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return how well each of its sentences fits each image; a caption may be one that fits many images."""
    known = iter(grounding.embed_texts(aligner, [text for its in texts for text in its], plain=True))
    pairs = zip(grounding.embed_images(aligner, encodings, plain=True), texts, strict=True)
    score = aligner.config.score
    return [grounding.plain_similarities(image, [next(known) for _ in its], score) for image, its in pairs]


def _agreement(ngrams: Ngrams, config: NgramsConfig, embeddings: np.ndarray, found: Hypotheses) -> np.ndarray:
    """Return what people would say of images, and what the other hypotheses say, for each hypothesis ``(N, B)``."""
    vectors = [[ngrams.vector(row[(row != END) & (row != PAD)].tolist()) for row in rows] for rows in found.token_ids]
    agreement, consensuses = ngrams.agreement(embeddings, vectors), [consensus(own) for own in vectors]
    return np.float32(config.weight) * np.stack(agreement) + np.float32(config.consensus) * np.stack(consensuses)
