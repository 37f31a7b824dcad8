"""Arrays of many images on disk, a file each: what an interrupted run has done is taken over by the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from saywhere.errors import UserError
from saywhere.files import write_atomically
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
