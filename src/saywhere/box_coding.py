"""How a network writes, places, compares and cuts its boxes; for numpy arrays and torch tensors alike.

The published program does all of this in ways of its own (:mod:`saywhere.papers.densecap2016`); neither a network nor
the model layer sees which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.boxes import Array, array_namespace

MAX_LOG_SCALE = 4.135  # log(1000 / 16): a proposal is at most this much larger than its anchor


@dataclass(frozen=True)
class BoxCoder:
    """Encode and decode boxes ``x1 y1 x2 y2`` from 0, whose width is ``x2 - x1``.

    The boxes of all methods but :meth:`from_xyxy` and :meth:`to_xyxy` are in the network's format: here the same.

    Attributes:
        max_log_scale: bound on the growth of a box by its offsets; None for none.
    """

    max_log_scale: float | None = MAX_LOG_SCALE

    def from_xyxy(self, boxes: Array) -> Array:
        """Convert boxes ``(N, 4)`` ``x1 y1 x2 y2`` to the network's format."""
        return boxes

    def to_xyxy(self, boxes: Array) -> Array:
        """Convert boxes of the network's format to ``x1 y1 x2 y2``."""
        return boxes

    def encode(self, boxes: Array, references: Array) -> Array:
        """Return offsets ``(N, 4)`` from ``references`` to ``boxes`` (DenseCap, Eqs. 1 and 2)."""
        return geometry.encode(boxes, references)

    def decode(self, offsets: Array, references: Array) -> Array:
        """Return the boxes ``(N, 4)`` at ``offsets`` from ``references``."""
        return geometry.decode(offsets, references, self.max_log_scale)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: Any = np.float32
    ) -> np.ndarray:
        """Return the anchors ``(A, 4)`` of the k ``shapes`` on all cells of a map, in the order of :meth:`rows`."""
        return geometry.anchor_grid(shapes, height, width, stride, dtype)

    def rows(self, features: Array, k: int) -> Array:
        """Return ``(B, k * D, H, W)`` of a convolution as ``(B, A, D)``: by row, column, shape."""
        batch, channels = features.shape[:2]
        moved = array_namespace(features).permute_dims(features, (0, 2, 3, 1))
        return moved.reshape(batch, -1, channels // k)

    def iou(self, boxes: Array, truths: Array) -> Array:
        """Return the IoU ``(A, M)`` by which boxes are sampled for training."""
        return geometry.iou(boxes, truths)

    def inside(self, boxes: Array, width: float, height: float) -> Array:
        """Return the mask ``(A,)`` of the boxes that do not leave the image."""
        within = (boxes[:, 0] >= 0) & (boxes[:, 1] >= 0)
        return within & (boxes[:, 2] <= width) & (boxes[:, 3] <= height)

    def pick(self, values: Array, rows: Array) -> Array:
        """Return ``values[rows]``, of the boxes sampled for training."""
        return values[rows]

    def clip(self, boxes: Array, width: float, height: float) -> tuple[Array, Array]:
        """Cut boxes to the image; return them and a mask of those that are still a pixel wide and high."""
        cut = geometry.clip(boxes, width, height)
        return cut, ((cut[:, 2] - cut[:, 0]) >= 1) & ((cut[:, 3] - cut[:, 1]) >= 1)

    def suppress_proposals(self, boxes: Array, logits: Array, overlap: float, limit: int) -> Array:
        """Return the indices of the proposals that survive suppression, best first, at most ``limit``."""
        return geometry.nms(boxes, logits, overlap, limit)

    def suppress_final(self, boxes: Array, clipped: Array, logits: Array, overlap: float) -> Array:
        """Return the indices of the final boxes that survive suppression, best first.

        Args:
            boxes: in pixels of the network's input, not clipped.
            clipped: the same as ``x1 y1 x2 y2``, in pixels of the image and clipped to it.
            logits: second scores.
            overlap: largest IoU with a better box.
        """
        return geometry.nms(clipped, logits, overlap)


def propose(
    coder: BoxCoder,
    rpn: Any,
    size: tuple[float, float],
    nms_iou: float,
    pre_nms_top_n: int | None,
    post_nms_top_n: int,
) -> tuple[Array, Array]:
    """Return the best proposals of one image after clipping and suppression (DenseCap, section 3.1.2).

    Args:
        coder: format of the boxes.
        rpn: ``anchors (A, 4)``, ``logits (A,)``, ``offsets (A, 4)``, see :class:`saywhere.engines.engine.RpnOutput`.
        size: width and height of the network's input.
        nms_iou: proposals that overlap a better one by more are dropped.
        pre_nms_top_n: only so many of the best enter the suppression; all if None.
        post_nms_top_n: at most so many are returned.

    Returns:
        boxes ``(B, 4)`` in the network's format and pixels of its input, and logits ``(B,)``, best first.
    """
    logits, offsets, anchors = rpn.logits, rpn.offsets, rpn.anchors
    if pre_nms_top_n is not None and len(logits) > 0:
        order = geometry.largest(logits, pre_nms_top_n)
        logits, offsets, anchors = logits[order], offsets[order], anchors[order]
    found, solid = coder.clip(coder.decode(offsets, anchors), *size)
    found, logits = found[solid], logits[solid]
    kept = coder.suppress_proposals(found, logits, nms_iou, post_nms_top_n)
    return found[kept], logits[kept]
