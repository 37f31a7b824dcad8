"""Proposals from outside the network: Selective Search, from OpenCV's contributed modules.

It works on pixels alone, without training. The baselines of DenseCap's Table 1 describe its boxes, and it is the
comparison for the localization layer. This module does not need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.options import dataclass

if TYPE_CHECKING:
    from saywhere.images import ImageLike, LoadedImage

LONG_SIDE = 500
"""Larger images are shrunk to this long side before the search, as in the published Selective Search."""

NAME = "selective-search"
"""The method's name in tables."""


@dataclass(frozen=True, eq=False)
class Proposed:
    """Boxes of one image, best first: ``boxes (N, 4)`` in pixels of the image, ``scores (N,)`` from 0 to 1."""

    boxes: np.ndarray
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, rows: slice | np.ndarray) -> Proposed:
        return Proposed(self.boxes[rows], self.scores[rows])

    def suppressed(self, threshold: float, limit: int | None = None) -> Proposed:
        """Drop boxes with an IoU above ``threshold`` with a better one (NMS); keep at most ``limit``, best first."""
        return self[geometry.nms(self.boxes, self.scores, threshold, limit)]


class SelectiveSearch:
    """Selective Search (Uijlings et al., 2013): similar segments are merged step by step, and each one gives a box.

    The published order is kept: the position in the hierarchy, whole image first, times a random number. OpenCV's own
    order is not reproducible, since its random numbers have no seed, and starts with the smallest segments. So the rank
    by area replaces the position in the hierarchy, and the random numbers are the same for all images. The n-th of N
    boxes scores ``1 - n / N``, with n from 0. Colour spaces and similarities are those of the "fast" mode.

    Raises:
        UserError: OpenCV with the contributed modules is not installed.
    """

    def __init__(self) -> None:
        try:
            module: Any = import_module("cv2").ximgproc
        except (ImportError, AttributeError):
            raise UserError(
                "Selective Search needs OpenCV with the contributed modules, which is not installed: "
                "pip install 'saywhere[proposals]'"
            ) from None
        self._segmentation = module.segmentation

    def __call__(self, image: ImageLike | LoadedImage) -> Proposed:
        """Return the boxes of an image; ``ImageError`` if it cannot be read."""
        image = open_image(image, LONG_SIDE)
        pixels = _shrunk(image.pixels)
        search = self._segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(np.asarray(pixels)[:, :, ::-1]))  # OpenCV's B G R
        search.switchToSelectiveSearchFast()
        found = np.asarray(search.process(), dtype=np.float32).reshape(-1, 4)
        boxes = _published_order(np.unique(geometry.from_size(found), axis=0))
        scores = 1 - np.arange(len(boxes), dtype=np.float32) / max(len(boxes), 1)
        scaled = geometry.scale(boxes, image.width / pixels.width, image.height / pixels.height)
        return Proposed(geometry.clip(scaled, image.width, image.height), scores)


def _shrunk(pixels: Image.Image) -> Image.Image:
    factor = LONG_SIDE / max(pixels.size)
    if factor >= 1:
        return pixels
    width, height = (max(1, round(side * factor)) for side in pixels.size)
    return pixels.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)


def _published_order(boxes: np.ndarray) -> np.ndarray:
    """Return boxes sorted by (rank by area, the largest 1) x (a random number), in ascending order."""
    boxes = boxes[np.argsort(-geometry.area(boxes), kind="stable")]
    ranks = np.random.default_rng(0).random(len(boxes)) * np.arange(1, len(boxes) + 1)
    return boxes[np.argsort(ranks, kind="stable")]
