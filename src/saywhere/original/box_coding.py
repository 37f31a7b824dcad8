"""The program's boxes in place of ours, for a network that is to be the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from saywhere.box_coding import BoxCoder
from saywhere.boxes import Array
from saywhere.original import boxes as program
from saywhere.original.anchors import make_anchors, reshape_box_features
from saywhere.original.sampler import inside_image, pick

Method = TypeVar("Method", bound=Callable[..., Any])


def _for_arrays(method: Method) -> Method:
    """Let a method of tensors take numpy arrays too, and then return such."""

    @wraps(method)
    def either(self: Any, *arguments: Any) -> Any:
        if not any(isinstance(a, np.ndarray) for a in arguments):
            return method(self, *arguments)
        tensors = [torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for a in arguments]
        result = method(self, *tensors)
        return tuple(r.numpy() for r in result) if isinstance(result, tuple) else result.numpy()

    return either  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class OriginalBoxCoder(BoxCoder):
    """Encode and decode the program's boxes: ``xcycwh`` from 1, anchors by shape before place.

    The quirks are those of the functions that its methods name.
    """

    max_log_scale: float | None = None

    @_for_arrays
    def from_xyxy(self, boxes: Array) -> Array:
        """See :func:`saywhere.original.boxes.ours_to_xcycwh`."""
        return program.ours_to_xcycwh(boxes)

    @_for_arrays
    def to_xyxy(self, boxes: Array) -> Array:
        """See :func:`saywhere.original.boxes.xcycwh_to_ours`."""
        return program.xcycwh_to_ours(boxes)

    @_for_arrays
    def encode(self, boxes: Array, references: Array) -> Array:
        """See :func:`saywhere.original.boxes.invert_box_transform`."""
        return program.invert_box_transform(references, boxes)

    @_for_arrays
    def decode(self, offsets: Array, references: Array) -> Array:
        """See :func:`saywhere.original.boxes.apply_box_transform`; sizes are not bounded."""
        return program.apply_box_transform(references, offsets)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: Any = np.float32
    ) -> np.ndarray:
        """See :func:`saywhere.original.anchors.make_anchors`."""
        kind = torch.float64 if dtype == np.float64 else torch.float32
        return make_anchors(shapes, height, width, (stride, stride), dtype=kind).numpy()

    @_for_arrays
    def rows(self, features: Array, k: int) -> Array:
        """See :func:`saywhere.original.anchors.reshape_box_features`: by shape, row, column."""
        return reshape_box_features(features, k)

    @_for_arrays
    def iou(self, boxes: Array, truths: Array) -> Array:
        """See :func:`saywhere.original.boxes.box_iou`."""
        return program.box_iou(boxes, truths)

    @_for_arrays
    def inside(self, boxes: Array, width: float, height: float) -> Array:
        """See :func:`saywhere.original.sampler.inside_image`."""
        return inside_image(boxes, width, height)

    def pick(self, values: Tensor, rows: Tensor) -> Tensor:
        """See :func:`saywhere.original.sampler.pick`."""
        return pick(values, rows)

    @_for_arrays
    def clip(self, boxes: Array, width: float, height: float) -> tuple[Array, Array]:
        """See :func:`saywhere.original.boxes.clip_boxes`."""
        return program.clip_boxes(boxes, width, height)

    @_for_arrays
    def suppress_proposals(self, boxes: Array, logits: Array, overlap: float, limit: int) -> Array:
        """See :func:`saywhere.original.boxes.nms`; by the probabilities of the two-way softmax.

        ``logits`` are the differences of its two logits.
        """
        return program.nms(program.xcycwh_to_x1y1x2y2(boxes), logits.sigmoid(), overlap, limit)

    @_for_arrays
    def suppress_final(self, boxes: Array, clipped: Array, logits: Array, overlap: float) -> Array:
        """See :func:`saywhere.original.boxes.nms`; boxes as they are, outside the image too, in single precision."""
        return program.nms(program.xcycwh_to_x1y1x2y2(boxes.float()), logits, overlap)
