"""What the network sees in one frame: regions with phrases, and how the scene looks as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saywhere.images import LoadedImage
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.regions import Regions

CELLS = 3
"""The scene is compared in so many cells across and down."""


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen in one frame.

    Attributes:
        regions: with scores, captions and features ``(N, D)``.
        scene: ``(CELLS * CELLS, E)``, the trunk's map in the cells of a grid, as vectors of regions.
    """

    regions: Regions
    scene: np.ndarray


class Watcher:
    """Look at frames with a model, each encoded once.

    Args:
        model: with the part ``densecap``. If it has an aligner, scenes are compared by its region vectors, which tell
            a cut from a moving camera better than the dense captioner's embeddings do.
        top, threshold: of the regions, as :meth:`saywhere.Model.describe` takes them.

    Raises:
        UserError: the model describes no regions.
    """

    def __init__(self, model: Model, top: int | None = None, threshold: float | None = None) -> None:
        self._detector = model.require("densecap", "describe videos")
        self._model, self._top, self._threshold = model, top, threshold
        self.long_side = model.long_side

    def __call__(self, image: LoadedImage) -> Look:
        """Return what the model sees in ``image``."""
        seen = self._model.encode(image)
        regions = self._model.describe(seen, top=self._top, threshold=self._threshold)
        return Look(regions, self._scene(seen))

    def _scene(self, seen: Encoding) -> np.ndarray:
        steps = np.arange(CELLS, dtype=np.float32) / CELLS
        corners = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        cells = np.concatenate((corners, corners + np.float32(1 / CELLS)), axis=1)
        if self._model.aligner is not None:
            boxes = cells * np.array([seen.width, seen.height] * 2, np.float32)
            return self._model.embed(seen, boxes).vectors[1:]  # without the whole image
        boxes = cells * np.array([*seen.input_size] * 2, np.float32)
        return self._detector.region_head([seen.maps], [boxes])[0].embeddings
