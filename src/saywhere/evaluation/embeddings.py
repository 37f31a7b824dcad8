"""The images of a data set as an aligner embeds them, on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhere.evaluation.region_store import REGIONS, ArrayStore
from saywhere.evaluation.session import Session
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models.aligner import ImageVectors
from saywhere.models.aligner import embed_images as embed_regions
from saywhere.models.model import Model


class VectorStore(ArrayStore):
    """Store of the vectors of images' regions."""

    def save(self, name: str, vectors: ImageVectors) -> None:
        """Store the vectors of the image ``name``."""
        self.write(name, to_arrays(vectors))

    def load(self, name: str) -> ImageVectors:
        """Return the vectors of an image that is there; raises as :meth:`read`."""
        return of_arrays(name, self.read(name))


def to_arrays(vectors: ImageVectors) -> dict[str, np.ndarray]:
    """Return the vectors of an image as named arrays."""
    parts = {"boxes": vectors.boxes, "vectors": vectors.vectors, "logits": vectors.logits, "hubness": vectors.hubness}
    arrays = {key: np.asarray(value, np.float32) for key, value in parts.items()}
    return {"size": np.array([vectors.width, vectors.height]), **arrays}


def of_arrays(name: str, parts: Mapping[str, np.ndarray]) -> ImageVectors:
    """Return the vectors of an image of its named arrays."""
    width, height = parts["size"].tolist()
    return ImageVectors(width, height, parts["boxes"], parts["vectors"], name, parts["logits"], parts["hubness"].item())


def embed_images(
    model: Model,
    session: Session,
    sources: Sequence[Source],
    facts: Mapping[str, object],
    regions: int | None,
) -> list[ImageVectors]:
    """Return the vectors of all images that can be read; those of an earlier run are taken over.

    Args:
        model: with an aligner.
        session: of the evaluation; images that cannot be read are added to ``skipped``.
        sources: the images.
        facts: what the images depend on, such as the data set.
        regions: at most so many beside the whole image, instead of the model's own number.

    Raises:
        UserError: no image can be read, or ``out`` has the vectors of another run.
    """
    aligner = model.require("aligner", "embed images")
    session.resume({"model": model.engine.vectors_digest(), **facts, "regions": regions}, REGIONS)
    store = VectorStore(session.out / REGIONS)

    def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[ImageVectors]:
        return embed_regions(aligner, model.encode(images), None, regions)

    seen = session.each(ask, sources, store, store.save, long_side=model.long_side)
    return [store.load(source.name) for source in seen]
