"""An image after one pass of the network, to be asked several times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.box_coding import BoxCoder, propose
from saywhere.configs.parts import ProposalConfig
from saywhere.engines.engine import Maps, Trunk
from saywhere.regions import check_boxes


@dataclass(frozen=True, eq=False)
class Encoding:
    """Feature maps of one image.

    Attributes:
        maps: as the engine keeps them.
        width, height: of the image as a viewer shows it, in pixels.
        input_width, input_height: of the network's input.
        name: of the image.
        trunk: the network that made the maps; no other can read them.
    """

    maps: Maps
    width: int
    height: int
    input_width: int
    input_height: int
    name: str
    trunk: Trunk

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network's input."""
        return self.input_width, self.input_height

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the image in one of the network's input, across and down."""
        return self.width / self.input_width, self.height / self.input_height

    def check(self, boxes: ArrayLike) -> np.ndarray:
        """Return a user's boxes in pixels of the image; raises as :func:`saywhere.regions.check_boxes`."""
        return check_boxes(boxes, self.width, self.height, self.name)

    def to_input(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes of the image in pixels of the network's input."""
        return geometry.scale(boxes, self.input_width / self.width, self.input_height / self.height)

    def to_image(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes of the network's input in pixels of the image, clipped to it."""
        return geometry.clip(geometry.scale(boxes, *self.scale), self.width, self.height)


def propose_boxes(
    encoding: Encoding, settings: ProposalConfig, coder: BoxCoder, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best proposals of an image and their logits ``(B,)``, best first.

    Args:
        encoding: of the image.
        settings: of the suppression.
        coder: format of the network's boxes.
        limit: at most so many, instead of ``settings.post_nms_top_n``.

    Returns:
        boxes ``(B, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input, and logits.
    """
    limit = settings.post_nms_top_n if limit is None else limit
    rpn = encoding.trunk.propose(encoding.maps)
    boxes, logits = propose(coder, rpn, encoding.input_size, settings.nms_iou, settings.pre_nms_top_n, limit)
    return coder.to_xyxy(boxes), logits
