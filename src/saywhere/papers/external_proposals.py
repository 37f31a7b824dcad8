"""Proposals from outside the network: Selective Search and Edge Boxes, as OpenCV's contributed modules have them.

They use the pixels of an image and are not trained on what is to be described: the baselines of DenseCap's Table 1
describe their boxes, and the localization layer is compared with them. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import open_image

if TYPE_CHECKING:
    from saywhere.images import ImageLike, LoadedImage

LONG_SIDE = 500
"""Larger images are made smaller before the search, as the published Selective Search does."""

FOREST = ("childs", "featureIds", "thresholds", "edgeBoundaries", "edgeBins")
KINDS = "selective-search or edge-boxes:MODEL"
MOST_EDGE_BOXES = 1000


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
        """Drop boxes that overlap a better one by an IoU above ``threshold``; keep at most ``limit``, best first."""
        return self[geometry.nms(self.boxes, self.scores, threshold, limit)]


ProposalMethod = Callable[["ImageLike | LoadedImage"], Proposed]
"""Returns the proposals of a path, PIL image, array or :class:`saywhere.images.LoadedImage`."""


def find_proposal_method(kind: str) -> ProposalMethod:
    """Return the method that ``kind`` names: ``selective-search`` or ``edge-boxes:MODEL``.

    Raises:
        UserError: no such method, no OpenCV with the contributed modules, or no such file MODEL.
    """
    name, _, model = kind.partition(":")
    if kind == "selective-search":
        return SelectiveSearch()
    if name == "edge-boxes":
        return EdgeBoxes(model)
    raise UserError(f"proposals {kind!r} are not known; there are {KINDS}")


class SelectiveSearch:
    """Selective Search (Uijlings et al., 2013): segments that are alike grow together, and each on the way is a box.

    The published order is kept: the place in the hierarchy, the whole image first, times a random number. OpenCV's
    own order cannot be repeated, as its random numbers have no seed, and begins with the smallest segments; so the
    place in the order of areas stands for that in the hierarchy, and the numbers are the same for all images. The score
    of the n-th of N boxes is ``1 - n / N``, n counted from 0. Colour spaces and similarities are those of the "fast"
    mode.

    Raises:
        UserError: there is no OpenCV with the contributed modules.
    """

    def __init__(self) -> None:
        self._segmentation = _ximgproc("Selective Search").segmentation

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
        return Proposed(_to_image(boxes, pixels, image), scores)


class EdgeBoxes:
    """Edge Boxes (Zitnick and Dollár, 2014): boxes that hold many whole contours; the method of DenseCap's Table 1.

    Args:
        model: file of the structured forest that finds the edges, ``model.yml.gz``; no package carries one.

    Raises:
        UserError: there is no OpenCV with the contributed modules, or the file is missing or something else.
    """

    def __init__(self, model: str | Path) -> None:
        if not str(model) or not Path(model).is_file():
            raise UserError(
                f"Edge Boxes need the file of a structured edge forest, and {str(model)!r} is none: give "
                "edge-boxes:PATH/TO/model.yml.gz, which is among the test data that the OpenCV project keeps for the "
                "module ximgproc (or convert one that was trained with the authors' Matlab program)"
            )
        self._ximgproc = _ximgproc("Edge Boxes")
        _check_forest(str(model))
        self._edges = self._ximgproc.createStructuredEdgeDetection(str(model))

    def __call__(self, image: ImageLike | LoadedImage) -> Proposed:
        """Return the boxes of an image, OpenCV's scores s as s / (1 + s); ``ImageError`` if it cannot be read."""
        image = open_image(image, LONG_SIDE)
        pixels = _shrunk(image.pixels)
        edges = self._edges.detectEdges(np.asarray(pixels, dtype=np.float32) / 255)
        turns = self._edges.computeOrientation(edges)
        thin = self._edges.edgesNms(edges, turns)
        found, scores = self._ximgproc.createEdgeBoxes(maxBoxes=MOST_EDGE_BOXES).getBoundingBoxes(thin, turns)
        boxes = geometry.from_size(np.asarray(found, dtype=np.float32).reshape(-1, 4))
        if not len(boxes):  # then its scores are None, or one that is not a number
            return Proposed(boxes, np.zeros(0, np.float32))
        ranks = np.asarray(scores, dtype=np.float32).reshape(-1).clip(min=0)
        order = np.argsort(-ranks, kind="stable")
        return Proposed(_to_image(boxes, pixels, image), ranks / (1 + ranks))[order]


def _check_forest(path: str) -> None:
    """Refuse a file without the parts of a structured edge forest, on which OpenCV would end the program."""
    cv2 = import_module("cv2")
    try:
        storage = cv2.FileStorage(path, cv2.FileStorage_READ)
        trees = storage.getNode("options").getNode("numberOfTrees")
        whole = not trees.empty() and trees.real() >= 1
        whole = whole and all(storage.getNode(part).isSeq() for part in FOREST)
    except (cv2.error, SystemError):  # the second is how OpenCV's Python says that it could not make an object
        whole = False
    if not whole:
        raise UserError(f"{path} is not a structured edge forest, as OpenCV's module ximgproc reads it")


def _ximgproc(method: str) -> Any:
    """OpenCV's module of both methods."""
    try:
        module = getattr(import_module("cv2"), "ximgproc", None)
    except ImportError:
        module = None
    if module is None:
        raise UserError(
            f"{method} needs OpenCV with the contributed modules, which is not installed: "
            "pip install 'saywhere[proposals]'"
        )
    return module


def _shrunk(pixels: Image.Image) -> Image.Image:
    factor = LONG_SIDE / max(pixels.size)
    if factor >= 1:
        return pixels
    width, height = (max(1, round(side * factor)) for side in pixels.size)
    return pixels.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)


def _published_order(boxes: np.ndarray) -> np.ndarray:
    """Return boxes by (place in the order of their areas, the largest 1) x (a random number), smallest first."""
    boxes = boxes[np.argsort(-geometry.area(boxes), kind="stable")]
    ranks = np.random.default_rng(0).random(len(boxes)) * np.arange(1, len(boxes) + 1)
    return boxes[np.argsort(ranks, kind="stable")]


def _to_image(boxes: np.ndarray, pixels: Image.Image, image: LoadedImage) -> np.ndarray:
    """Boxes of the searched pixels in pixels of the image, inside it."""
    scaled = geometry.scale(boxes, image.width / pixels.width, image.height / pixels.height)
    return geometry.clip(scaled, image.width, image.height)
