"""The baseline of captioning: the sentence of the training image that looks most alike (Alignments, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from saywhere import data as datasets
from saywhere.engines.engine import Captioner
from saywhere.errors import UserError
from saywhere.evaluation.region_store import ArrayStore
from saywhere.evaluation.session import Session, image_sources
from saywhere.images import LoadedImage
from saywhere.models.captioning import Caption
from saywhere.models.model import Model

TRAIN = "train"
"""The split whose images are neighbours."""
NEIGHBOURS = "neighbours"
"""The folder of a run with the training images' vectors."""


class NearestNeighbour:
    """Caption an image with the first sentence of the training image whose vector is nearest.

    Args:
        model: whose captioner's image network sees the images.
        vectors: ``(N, D)`` of the training images, from :func:`image_vectors`.
        sentences: one of each.
    """

    def __init__(self, model: Model, vectors: np.ndarray, sentences: Sequence[str]) -> None:
        if len(vectors) != len(sentences) or not sentences:
            raise ValueError(f"{len(vectors)} vectors and {len(sentences)} sentences")
        self.long_side = model.long_side
        self._model, self._sentences = model, tuple(sentences)
        self._vectors = np.asarray(vectors, np.float64)

    def caption(self, images: Sequence[LoadedImage], *, beam_size: int | None = None) -> list[Caption]:
        """Return a sentence for each image; there is no search, so ``beam_size`` changes nothing."""
        if not images:
            return []
        vectors = image_vectors(self._model, images).astype(np.float64)
        squares = (self._vectors**2).sum(axis=1) - 2 * vectors @ self._vectors.T  # and a constant for each image
        texts = [self._sentences[row] for row in squares.argmin(axis=1).tolist()]
        return [
            Caption(text, tuple(text.split()), image.width, image.height, image.name)
            for image, text in zip(images, texts, strict=True)
        ]


def image_vectors(model: Model, images: Sequence[Any]) -> np.ndarray:
    """Return what the captioner sees of whole images ``(N, D)``."""
    captioner: Captioner = model.require("captioner", "see images as a captioner does")
    encodings = model.encode(list(images))
    bound = captioner.bind_images([e.maps for e in encodings], [None] * len(encodings))
    return np.asarray(bound.embeddings, np.float32)


def learn_neighbours(model: Model, session: Session) -> NearestNeighbour:
    """Return the neighbours of the training images with sentences; their vectors are kept in ``session.out``.

    Training images that cannot be read are left out.

    Raises:
        UserError: there are no such images, or none can be read.
    """
    samples = datasets.read(session.data, session.format, TRAIN)
    sources = {source.path: source for source in image_sources(samples, session.data)}
    sentences: dict[str, str] = {}
    for sample in samples:
        if sample.sentences:
            sentences.setdefault(sources[sample.image].name, sample.sentences[0])
    if not sentences:
        raise UserError("nearest: the training split has no image with a sentence")
    store = ArrayStore(session.out / NEIGHBOURS / model.digest())
    lookup = Session(session.data, session.out, batch=session.batch, progress=session.progress)
    seen = lookup.each(
        lambda images, _: list(image_vectors(model, images)),
        [source for source in sources.values() if source.name in sentences],
        store,
        lambda name, vector: store.write(name, {"vector": vector}),
        long_side=model.long_side,
        what="looking at training images",
    )
    vectors = np.stack([store.read(source.name)["vector"] for source in seen])
    return NearestNeighbour(model, vectors, [sentences[source.name] for source in seen])
