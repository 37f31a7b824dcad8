"""The program's boxes in place of ours, for a network that is to be the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere.original import boxes as program
from saywhere.original.anchors import make_anchors, reshape_box_features
from saywhere.original.sampler import inside_picture, pick
from saywhere.original.sampling import roi_pooling
from saywhere.vision.conventions import Conventions
from saywhere.vision.sampling import Pooling


@dataclass(frozen=True)
class OriginalConventions(Conventions):
    """The program's: ``xcycwh`` from 1, anchors by shape before place; the quirks are those of the functions called."""

    max_log_scale: float | None = None

    def from_ours(self, boxes: Tensor) -> Tensor:
        """See :func:`ours_to_xcycwh`."""
        return program.ours_to_xcycwh(boxes)

    def to_ours(self, boxes: Tensor) -> Tensor:
        """See :func:`xcycwh_to_ours`."""
        return program.xcycwh_to_ours(boxes)

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """See :func:`invert_box_transform`."""
        return program.invert_box_transform(references, boxes)

    def decode(self, offsets: Tensor, references: Tensor) -> Tensor:
        """See :func:`apply_box_transform`; sizes are not bounded."""
        return program.apply_box_transform(references, offsets)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: torch.dtype
    ) -> Tensor:
        """See :func:`make_anchors`."""
        return make_anchors(shapes, height, width, (stride, stride), dtype=dtype)

    def rows(self, features: Tensor, k: int) -> Tensor:
        """By shape, row, column: see :func:`reshape_box_features`."""
        return reshape_box_features(features, k)

    def iou(self, boxes: Tensor, truths: Tensor) -> Tensor:
        """See :func:`box_iou`."""
        return program.box_iou(boxes, truths)

    def inside(self, boxes: Tensor, width: float, height: float) -> Tensor:
        """See :func:`inside_picture`."""
        return inside_picture(boxes, width, height)

    def pick(self, values: Tensor, rows: Tensor) -> Tensor:
        """See :func:`saywhere.original.sampler.pick`."""
        return pick(values, rows)

    def clip(self, boxes: Tensor, width: float, height: float) -> tuple[Tensor, Tensor]:
        """See :func:`clip_boxes`."""
        return program.clip_boxes(boxes, width, height)

    def suppress_proposals(self, boxes: Tensor, logits: Tensor, overlap: float, limit: int) -> Tensor:
        """See :func:`nms`; by the probabilities of the two-way softmax, whose difference of logits ``logits`` are."""
        return program.nms(program.xcycwh_to_x1y1x2y2(boxes), logits.sigmoid(), overlap, limit)

    def suppress_final(self, boxes: Tensor, clipped: Tensor, logits: Tensor, overlap: float) -> Tensor:
        """See :func:`nms`; boxes as they are, outside the picture too, in single precision."""
        return program.nms(program.xcycwh_to_x1y1x2y2(boxes.float()), logits, overlap)

    def pool(
        self,
        maps: tuple[Tensor, ...],
        strides: tuple[int, ...],
        boxes: Tensor,
        size: int,
        how: Pooling,
        picture: tuple[int, int],
    ) -> Tensor:
        """See :func:`roi_pooling`; there is one map."""
        width, height = picture
        return roi_pooling(maps[0], boxes, height, width, size)
