"""Arrays of many images on disk, a file each: what an interrupted run has done is taken over by the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from saywhere.errors import UserError
from saywhere.evaluation.session import Session
from saywhere.files import write_atomically
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models.aligner import ImageVectors
from saywhere.models.aligner import embed_images as embed_regions
from saywhere.models.model import Model
from saywhere.regions import Regions

REGIONS = "regions"
"""The folder of a run with a file for each image."""


class ArrayStore:
    """Store of named arrays of images, a file each below ``folder``.

    ``name in store`` tells whether an image is there; a file is whole or not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return self.folder / f"{digest}.safetensors"

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store the arrays of the image ``name``."""
        parts = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        write_atomically(self._path(name), lambda stream: stream.write(save(parts)))

    def read(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of an image that is there.

        Raises:
            UserError: its file is damaged.
        """
        path = self._path(name)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: is damaged; remove it and run the same command again") from error


class RegionStore(ArrayStore):
    """Store of the sizes, boxes, features and scores of images' regions; captions are left out."""

    def save(self, name: str, regions: Regions) -> None:
        """Store the regions of the image ``name``, which have features."""
        if regions.features is None:
            raise ValueError(f"the regions of {name} have no features")
        parts = {"size": np.array([regions.width, regions.height]), "boxes": regions.boxes}
        parts["features"] = regions.features
        if regions.scores is not None:
            parts["scores"] = regions.scores
        self.write(name, parts)

    def load(self, name: str) -> Regions:
        """Return the regions of an image that is there; raises as :meth:`read`."""
        parts = self.read(name)
        width, height = parts["size"].tolist()
        return Regions(width, height, parts["boxes"], parts.get("scores"), features=parts["features"], image=name)


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
