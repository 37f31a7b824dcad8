"""Ranking of the images and sentences of a data set by a model, a block of similarities at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from saywhere.configs.aligner import Score
from saywhere.errors import UserError
from saywhere.evaluation.embeddings import embed_images
from saywhere.evaluation.ranking.metric import Part, RankingResult, rank
from saywhere.evaluation.ranking.report import write_ranking_report
from saywhere.evaluation.session import Session
from saywhere.models.aligner import BLOCK, ImageVectors, TextVectors, hubness_of, similarities, similarity_blocks
from saywhere.models.model import Model


def run(model: Model, session: Session, regions: int | None = None) -> RankingResult:
    """Rank the sentences of a data set for each image, and the images for each sentence (Alignments, section 4.1).

    Args:
        model: with an aligner.
        session: the data and the results.
        regions: of an image at most so many beside the whole of it, instead of the model's own number.

    Raises:
        UserError: the model has no aligner, no image can be read, or none has a sentence.
    """
    aligner = model.require("aligner", "rank sentences and images")
    samples = session.read()
    sources = session.sources(samples)
    sentences: dict[str, list[str]] = {}
    for sample in samples:
        sentences.setdefault(str(sample.image), []).extend(sample.sentences)
    if not any(sentences.values()):
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence")
    images = embed_images(model, session, sources, {"data": samples.name, "split": samples.split}, regions)
    names = {source.name: str(source.path) for source in sources}
    pairs = [(row, text) for row, image in enumerate(images) for text in sentences[names[image.name]]]
    texts = model.embed_text([text for _, text in pairs])
    result = rank_embedded(images, texts, [row for row, _ in pairs], aligner.config.score)
    known = session.known(samples.name, images=len(images), sentences=result.text_to_image.queries, regions=regions)
    write_ranking_report(session.out, result, known)
    return result


def rank_embedded(
    images: Sequence[ImageVectors],
    texts: Sequence[TextVectors],
    owner: Sequence[int],
    score: Score = "max",
    block: int = BLOCK,
) -> RankingResult:
    """Rank all sentences for each image and all images for each sentence.

    Args:
        images, texts: as :meth:`saywhere.Model.embed` and :meth:`saywhere.Model.embed_text` return them.
        owner: of each sentence the index of its image.
        score: see :func:`saywhere.models.aligner.similarity_blocks`.
        block: bound on the products in memory, see there.
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
