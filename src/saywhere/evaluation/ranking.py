"""Image-sentence ranking: how often the right sentence, or the right image, is found (Alignments, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import ArrayLike

from saywhere.configs.aligner import Score
from saywhere.errors import UserError
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session, embed_images
from saywhere.models.aligner import BLOCK, ImageVectors, TextVectors, hubness_of, similarities, similarity_blocks
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.report import counted

AT = (1, 5, 10)
ROUNDING = 1e-5
"""Scores with a smaller relative difference count as equal: they may come from products of different shapes."""

Part = tuple[slice, slice, np.ndarray]


@dataclass(frozen=True)
class Recall:
    """Retrieval figures of one direction.

    Attributes:
        r1, r5, r10: share of queries whose best true answer is among the first 1, 5, 10.
        median_rank: median rank of the best true answer, counted from 1.
    """

    r1: float
    r5: float
    r10: float
    median_rank: float
    queries: int

    @classmethod
    def of(cls, ranks: ArrayLike) -> Recall:
        """Compute the figures from the rank, counted from 1, of each query's best true answer."""
        values = np.asarray(ranks)
        if len(values) == 0:
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        r1, r5, r10 = (float((values <= k).mean()) for k in AT)
        return cls(r1, r5, r10, float(np.median(values)), len(values))

    def __str__(self) -> str:
        ranks = f"R@1 {self.r1:.3f}, R@5 {self.r5:.3f}, R@10 {self.r10:.3f}, median rank {self.median_rank:g}"
        return f"{ranks} ({counted(self.queries, 'query')})"


@dataclass(frozen=True)
class RankingResult:
    """Retrieval figures of both directions; the paper's "Image Annotation" and "Image Search".

    Attributes:
        image_to_text: sentences ranked for each image.
        text_to_image: images ranked for each sentence.
    """

    image_to_text: Recall
    text_to_image: Recall


def rank(own: ArrayLike, owner: ArrayLike, images: int, parts: Iterable[Part]) -> RankingResult:
    """Rank all sentences for each image and all images for each sentence, one block of scores at a time.

    The full matrix is never needed. A wrong answer with the same score as the right one, up to rounding, ranks before
    it, so constant scores earn nothing. An image without sentences is not a query.

    Args:
        own: ``(L,)`` score of each sentence with its own image.
        owner: ``(L,)`` row of that image.
        images: number K of images.
        parts: blocks of the scores ``(K, L)`` as rows, columns and values; together they have each pair once.
    """
    own, owner = np.asarray(own), np.asarray(owner, np.int64)
    before_image = np.zeros(len(owner), np.int64)  # other images that beat the sentence's own
    before_sentence = np.zeros(images, np.int64)  # other sentences that beat the best of the image's own
    best = np.full(images, -np.inf, own.dtype)
    np.maximum.at(best, owner, own)
    own_bar, best_bar = own - ROUNDING * np.abs(own), best - ROUNDING * np.abs(best)
    for rows, columns, scores in parts:
        others = owner[columns] != np.arange(rows.start, rows.stop)[:, None]
        before_image[columns] += ((scores >= own_bar[columns]) & others).sum(axis=0)
        before_sentence[rows] += ((scores >= best_bar[rows, None]) & others).sum(axis=1)
    asked = np.isfinite(best)
    return RankingResult(Recall.of(before_sentence[asked] + 1), Recall.of(before_image + 1))


def rank_matrix(scores: ArrayLike, owner: ArrayLike) -> RankingResult:
    """Rank as :func:`rank`, given the whole matrix ``(K, L)``.

    Example:
        >>> rank_matrix([[0.9, 0.1], [0.2, 0.3]], owner=[0, 1]).text_to_image.r1
        1.0
    """
    scores, owner = np.asarray(scores), np.asarray(owner, np.int64)
    own = scores[owner, np.arange(len(owner))]
    return rank(own, owner, len(scores), [(slice(0, len(scores)), slice(0, scores.shape[1]), scores)])


def run(model: Model, session: Session) -> RankingResult:
    """Rank the sentences of a data set for each image, and the images for each sentence (Alignments, section 4.1).

    Raises:
        UserError: the model has no aligner, no image is readable, or none has a sentence.
    """
    aligner = model.require("aligner", "rank sentences and images")
    samples = session.read()
    sources = session.sources(samples)
    sentences, _ = session.texts(samples)
    if not any(sentences.values()):
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence")
    images = embed_images(model, session, sources, {"data": samples.name, "split": samples.split})
    pairs = [(row, text) for row, image in enumerate(images) for text in sentences[image.image]]
    texts = model.embed_text([text for _, text in pairs])
    result = rank_embedded(images, texts, [row for row, _ in pairs], aligner.config.score)
    known = session.known(samples.name, images=len(images), sentences=result.text_to_image.queries)
    write_report(session.out, {"task": "rank", **asdict(result), **known})
    return result


def rank_embedded(
    images: Sequence[ImageVectors],
    texts: Sequence[TextVectors],
    owner: Sequence[int],
    score: Score = "max",
    block: int = BLOCK,
) -> RankingResult:
    """Rank all sentences for each image and all images for each sentence; ``owner`` is each sentence's image.

    ``score`` and ``block`` are those of :func:`saywhere.models.aligner.similarity_blocks`.
    """
    regions, words = [image.vectors for image in images], [text.vectors for text in texts]
    of_images, of_texts = hubness_of(images), hubness_of(texts)
    rows = np.array(owner, np.int64)
    own = np.zeros(len(words), np.float32)
    for number in np.unique(rows).tolist():
        mine = np.flatnonzero(rows == number)
        own[mine] = similarities([images[number]], [texts[i] for i in mine.tolist()], score)[0]

    def parts() -> Iterator[Part]:
        for row, column, values in similarity_blocks(regions, words, score, block):
            yield row, column, values - of_images[row][:, None] - of_texts[column]

    return rank(own, rows, len(images), parts())
