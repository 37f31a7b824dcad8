"""Box geometry for both NumPy arrays and torch tensors (array API standard).

Boxes are floating-point arrays ``(N, 4)`` of ``x1 y1 x2 y2`` in continuous pixels from 0: the width is ``x2 - x1``.
Functions return arrays of the same library and device as their arguments, and are differentiable. Another
:class:`BoxCoder` stands for other conventions (:mod:`saywhere.papers.densecap2016`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from saywhere.options import dataclass

Array = Any
"""A NumPy array or a torch tensor."""
MAX_LOG_SCALE = 4.135
"""log(1000 / 16): maximum log ratio of a proposal's size to its anchor's."""


def array_namespace(*arrays: Array) -> Any:
    """Return the array API namespace of arrays of one library.

    For NumPy this is NumPy itself, which needs no further import.
    """
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np
    from array_api_compat import array_namespace as namespace_of

    return namespace_of(*arrays)


def to_center(boxes: Array) -> Array:
    """Convert ``x1 y1 x2 y2`` to centre and size ``xc yc w h``; any leading shape."""
    x1, y1, x2, y2 = _columns(boxes)
    return _stack((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)


def from_center(boxes: Array) -> Array:
    """Convert centre and size ``xc yc w h`` to ``x1 y1 x2 y2``; any leading shape."""
    xc, yc, w, h = _columns(boxes)
    return _stack(xc - w / 2, yc - h / 2, xc + w / 2, yc + h / 2)


def to_size(boxes: Array) -> Array:
    """Convert ``x1 y1 x2 y2`` to corner and size ``x y w h``; any leading shape."""
    x1, y1, x2, y2 = _columns(boxes)
    return _stack(x1, y1, x2 - x1, y2 - y1)


def from_size(boxes: Array) -> Array:
    """Convert corner and size ``x y w h`` to ``x1 y1 x2 y2``; any leading shape."""
    x, y, w, h = _columns(boxes)
    return _stack(x, y, x + w, y + h)


def area(boxes: Array) -> Array:
    """Return areas ``(N,)`` in square pixels; a box of negative width or height has area 0."""
    xp = array_namespace(boxes)
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return xp.clip(width, 0, None) * xp.clip(height, 0, None)


def iou(a: Array, b: Array) -> Array:
    """Return intersection over union ``(N, M)`` of ``a (N, 4)`` and ``b (M, 4)``; 0 if both areas are 0."""
    return pair_iou(a[:, None], b[None])


def containment(boxes: np.ndarray) -> np.ndarray:
    """Return the intersection of each pair of boxes ``(N, 4)`` as a share of the smaller one's area, ``(N, N)``."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    common = np.clip(np.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - low, 0, None).prod(axis=2)
    areas = area(boxes)
    return common / np.maximum(np.minimum(areas[:, None], areas[None]), 1e-9)


def pair_iou(a: Array, b: Array) -> Array:
    """Return the IoU ``(...)`` of each pair of ``a (..., 4)`` and ``b (..., 4)``; 0 if both areas are 0."""
    xp = array_namespace(a, b)
    sides = xp.clip(xp.minimum(a[..., 2:], b[..., 2:]) - xp.maximum(a[..., :2], b[..., :2]), 0, None)
    intersection = sides[..., 0] * sides[..., 1]
    union = area(a) + area(b) - intersection
    smallest = float(xp.finfo(union.dtype).smallest_normal)
    return xp.where(union > 0, intersection / xp.clip(union, smallest, None), xp.zeros_like(union))


def clip(boxes: Array, width: float, height: float) -> Array:
    """Clip boxes to the image ``[0, width] x [0, height]``; a box outside becomes empty, on the border."""
    xp = array_namespace(boxes)
    x1, y1, x2, y2 = _columns(boxes)
    return _stack(xp.clip(x1, 0, width), xp.clip(y1, 0, height), xp.clip(x2, 0, width), xp.clip(y2, 0, height))


def scale(boxes: Array, sx: float, sy: float) -> Array:
    """Scale boxes as an image that is resized by ``sx`` horizontally and ``sy`` vertically."""
    x1, y1, x2, y2 = _columns(boxes)
    return _stack(x1 * sx, y1 * sy, x2 * sx, y2 * sy)


def flip(boxes: Array, width: float) -> Array:
    """Mirror boxes horizontally in an image of this width."""
    x1, y1, x2, y2 = _columns(boxes)
    return _stack(width - x2, y1, width - x1, y2)


def place(boxes: Array, width: float, height: float) -> Array:
    """Return corners and area ``(R, 5)`` of boxes ``(R, 4)`` as fractions of the image."""
    xp = array_namespace(boxes)
    shares = boxes / xp.asarray([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    sides = xp.clip(shares[:, 2:] - shares[:, :2], 0, None)
    return xp.concat((shares, sides[:, :1] * sides[:, 1:]), axis=1)


def means(features: Array, boxes: Array, stride: Any) -> Array:
    """Return the mean ``(R, C)`` of a feature map over each box; cells count by their fraction inside the box.

    Args:
        features: ``(C, H, W)``.
        boxes: ``(R, 4)`` in pixels of the network input. The mean of a box outside the map, or without area, is 0.
        stride: input pixels per cell; the strides of x and y, twice, if cells are not square.
    """
    xp = array_namespace(features, boxes)
    channels, height, width = features.shape
    x1, y1, x2, y2 = _columns(boxes / stride)
    shares = _inside(y1, y2, height)[:, :, None] * _inside(x1, x2, width)[:, None, :]
    return xp.reshape(shares, (len(boxes), height * width)) @ xp.reshape(features, (channels, height * width)).T


def _inside(low: Array, high: Array, cells: int) -> Array:
    """Return the fraction of each interval ``(R,)`` within each cell: ``(R, cells)``, whose rows sum to 1 or 0."""
    xp = array_namespace(low)
    left = xp.arange(cells, dtype=low.dtype, device=low.device)
    lengths = xp.clip(xp.minimum(high[:, None], left + 1) - xp.maximum(low[:, None], left), 0, None)
    total = xp.sum(lengths, axis=1, keepdims=True)
    smallest = float(xp.finfo(low.dtype).smallest_normal)
    return xp.where(total > 0, lengths / xp.clip(total, smallest, None), xp.zeros_like(lengths))


def encode(boxes: Array, anchors: Array) -> Array:
    """Return offsets ``(..., 4)`` (tx, ty, tw, th) that turn ``anchors`` into ``boxes``: the inverse of :func:`decode`.

    Both are ``x1 y1 x2 y2`` with positive width and height.
    """
    xp = array_namespace(boxes, anchors)
    xa, ya, wa, ha = _columns(to_center(anchors))
    x, y, w, h = _columns(to_center(boxes))
    return _stack((x - xa) / wa, (y - ya) / ha, xp.log(w / wa), xp.log(h / ha))


def decode(offsets: Array, anchors: Array, max_log_scale: float | None = None) -> Array:
    """Return the boxes ``(..., 4)`` at ``offsets`` from ``anchors``: DenseCap's Eqs. 1 and 2.

    ``max_log_scale`` is an upper bound of tw and th before the exponential (the original has none). It keeps the boxes
    of an untrained network finite.
    """
    xp = array_namespace(offsets, anchors)
    xa, ya, wa, ha = _columns(to_center(anchors))
    tx, ty, tw, th = _columns(offsets)
    if max_log_scale is not None:
        tw, th = xp.clip(tw, None, max_log_scale), xp.clip(th, None, max_log_scale)
    return from_center(_stack(xa + tx * wa, ya + ty * ha, wa * xp.exp(tw), ha * xp.exp(th)))


def anchor_grid(
    shapes: Sequence[tuple[float, float]], height: int, width: int, stride: float, dtype: Any = np.float32
) -> np.ndarray:
    """Return the anchors of all cells of a feature map: ``(height * width * k, 4)``, ordered by row, column, shape.

    ``shapes`` are k pairs (w, h) in input pixels; the centre of cell (i, j) is ``((j + .5) stride, (i + .5) stride)``.
    """
    sizes = np.asarray(shapes, dtype).reshape(-1, 2)
    y, x = (np.arange(height, dtype=dtype) + dtype(0.5)) * stride, (np.arange(width, dtype=dtype) + dtype(0.5)) * stride
    yc, xc = np.meshgrid(y, x, indexing="ij")
    centers = np.broadcast_to(np.stack((xc, yc), axis=-1)[:, :, None, :], (height, width, len(sizes), 2))
    sizes = np.broadcast_to(sizes, (height, width, *sizes.shape))
    return from_center(np.concatenate((centers, sizes), axis=-1)).reshape(-1, 4).astype(dtype)


def largest(values: Array, count: int) -> Array:
    """Return the indices of the ``count`` largest of ``values (N,)``, best first; ties in order."""
    if isinstance(values, np.ndarray) and 0 < count < len(values):
        rows = np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
        return rows[np.argsort(-values[rows], kind="stable")][:count]
    return array_namespace(values).argsort(-values, stable=True)[:count]


def nms(boxes: Array, scores: Array, threshold: float, limit: int | None = None) -> Array:
    """Return the indices of the boxes that survive greedy non-maximum suppression, best first, at most ``limit``.

    A box is dropped if its IoU with a better kept box is above ``threshold``; with equal scores the first is better.
    """
    if not isinstance(boxes, np.ndarray):
        import torch
        from torchvision.ops import nms as torchvision_nms

        dtype = torch.promote_types(boxes.dtype, torch.float32)  # doubles stay doubles
        return torchvision_nms(boxes.detach().to(dtype), scores.detach().to(dtype), threshold)[:limit]
    order = np.argsort(-scores, kind="stable")
    limit = len(order) if limit is None else limit
    left = np.concatenate((boxes[order].T, area(boxes[order])[None]))  # rows: x1, y1, x2, y2, area
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        chosen = _survivors(left[:, :TOGETHER], threshold)
        kept += order[chosen].tolist()
        best, order, left = left[:, chosen], order[TOGETHER:], left[:, TOGETHER:]
        alive = ~_overlapping(best, left, threshold).any(axis=0)
        order, left = order[alive], left[:, alive]
    return np.array(kept[:limit], np.int64)


TOGETHER = 48
"""Number of boxes that :func:`nms` compares at a time; one at a time, NumPy's call overhead would dominate."""


def _survivors(best: np.ndarray, threshold: float) -> list[int]:
    """Return the indices of the kept ones of a few boxes, best first: those without a better kept box over them."""
    near = np.packbits(_overlapping(best, best, threshold), axis=1, bitorder="little")
    kept, dropped = [], 0
    for number, row in enumerate(near):
        if not dropped >> number & 1:
            kept.append(number)
            dropped |= int.from_bytes(row.tobytes(), "little")
    return kept


def _overlapping(one: np.ndarray, other: np.ndarray, threshold: float) -> np.ndarray:
    """Return the mask ``(N, M)`` of pairs with an IoU above a threshold; boxes are columns of x1, y1, x2, y2, area."""
    (x1, y1, x2, y2, size), (u1, v1, u2, v2, others) = one[:, :, None], other[:, None, :]
    width = np.maximum(np.minimum(x2, u2) - np.maximum(x1, u1), 0)
    height = np.maximum(np.minimum(y2, v2) - np.maximum(y1, v1), 0)
    overlap = width * height
    return overlap > threshold * (size + others - overlap)


def merge(boxes: np.ndarray, threshold: float) -> tuple[np.ndarray, list[list[int]]]:
    """Merge heavily overlapping boxes, as section 4 of DenseCap does with its ground truth.

    Repeatedly takes the box with the most neighbours of IoU >= ``threshold``, itself included (ties: the first), and
    replaces the group by its mean. Returns the means ``(G, 4)`` and the member indices of each group.
    """
    close = iou(boxes, boxes) >= threshold
    close |= np.eye(len(boxes), dtype=bool)
    means, groups = [], []
    while close.any():
        members = np.flatnonzero(close[int(close.sum(axis=1).argmax())])
        means.append(boxes[members].mean(axis=0))
        groups.append(members.tolist())
        close[members, :] = False
        close[:, members] = False
    return (np.stack(means) if means else np.zeros((0, 4), boxes.dtype)), groups


def _columns(boxes: Array) -> tuple[Array, Array, Array, Array]:
    return boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]


def _stack(*columns: Array) -> Array:
    return array_namespace(*columns).stack(columns, axis=-1)


@dataclass(frozen=True)
class BoxCoder:
    """Box format of a network, with its geometry: here ``x1 y1 x2 y2`` from 0, whose width is ``x2 - x1``.

    All methods take and return boxes in the network's format, except :meth:`from_xyxy` and :meth:`to_xyxy`.

    Attributes:
        max_log_scale: upper bound of the log growth of a box by its offsets; None: no bound.
    """

    max_log_scale: float | None = MAX_LOG_SCALE

    def from_xyxy(self, boxes: Array) -> Array:
        """Convert boxes ``(N, 4)`` ``x1 y1 x2 y2`` to the network's format."""
        return boxes

    def to_xyxy(self, boxes: Array) -> Array:
        """Convert boxes from the network's format to ``x1 y1 x2 y2``."""
        return boxes

    def encode(self, boxes: Array, references: Array) -> Array:
        """Return offsets ``(N, 4)`` from ``references`` to ``boxes`` (DenseCap, Eqs. 1 and 2)."""
        return encode(boxes, references)

    def decode(self, offsets: Array, references: Array) -> Array:
        """Return the boxes ``(N, 4)`` at ``offsets`` from ``references``."""
        return decode(offsets, references, self.max_log_scale)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: Any = np.float32
    ) -> np.ndarray:
        """Return the anchors ``(A, 4)`` of the k ``shapes`` in all cells of a map, in the order of :meth:`rows`."""
        return anchor_grid(shapes, height, width, stride, dtype)

    def rows(self, features: Array, k: int) -> Array:
        """Reshape a convolution's output ``(B, k * D, H, W)`` to ``(B, A, D)``, ordered by row, column, shape."""
        batch, channels = features.shape[:2]
        moved = array_namespace(features).permute_dims(features, (0, 2, 3, 1))
        return moved.reshape(batch, -1, channels // k)

    def iou(self, boxes: Array, truths: Array) -> Array:
        """Return the IoU ``(A, M)`` for sampling boxes in training."""
        return iou(boxes, truths)

    def inside(self, boxes: Array, width: float, height: float) -> Array:
        """Return the mask ``(A,)`` of the boxes that lie within the image."""
        within = (boxes[:, 0] >= 0) & (boxes[:, 1] >= 0)
        return within & (boxes[:, 2] <= width) & (boxes[:, 3] <= height)

    def pick(self, values: Array, rows: Array) -> Array:
        """Return ``values[rows]`` for the boxes sampled in training."""
        return values[rows]

    def clip(self, boxes: Array, width: float, height: float) -> tuple[Array, Array]:
        """Clip boxes to the image; return them and the mask of those at least a pixel wide and high."""
        cut = clip(boxes, width, height)
        return cut, ((cut[:, 2] - cut[:, 0]) >= 1) & ((cut[:, 3] - cut[:, 1]) >= 1)

    def suppress_proposals(self, boxes: Array, logits: Array, overlap: float, limit: int) -> Array:
        """Return the indices of the proposals that survive suppression, best first, at most ``limit``."""
        return nms(boxes, logits, overlap, limit)

    def suppress_final(self, boxes: Array, clipped: Array, logits: Array, overlap: float) -> Array:
        """Return the indices of the final boxes that survive suppression, best first.

        Args:
            boxes: boxes in pixels of the network input, not clipped.
            clipped: the same boxes as ``x1 y1 x2 y2`` in pixels of the image, clipped to it.
            logits: second scores.
            overlap: maximum IoU with a better box.
        """
        return nms(clipped, logits, overlap)


def propose(
    coder: BoxCoder, rpn: Any, size: tuple[float, float], nms_iou: float, pre_nms_top_n: int | None, post_nms_top_n: int
) -> tuple[Array, Array]:
    """Return the best proposals of an image after clipping and suppression (DenseCap, section 3.1.2).

    Args:
        coder: box format.
        rpn: see :class:`saywhere.engines.engine.RpnOutput`.
        size: width and height of the network input.
        nms_iou, pre_nms_top_n, post_nms_top_n: see :class:`saywhere.configs.parts.ProposalConfig`.

    Returns:
        boxes ``(B, 4)`` in the network's format and pixels of its input, and logits ``(B,)``, best first.
    """
    logits, offsets, anchors = rpn.logits, rpn.offsets, rpn.anchors
    if pre_nms_top_n is not None and len(logits) > 0:
        order = largest(logits, pre_nms_top_n)
        logits, offsets, anchors = logits[order], offsets[order], anchors[order]
    found, solid = coder.clip(coder.decode(offsets, anchors), *size)
    found, logits = found[solid], logits[solid]
    kept = coder.suppress_proposals(found, logits, nms_iou, post_nms_top_n)
    return found[kept], logits[kept]
