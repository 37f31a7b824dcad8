"""The conventions of the published DenseCap program, converted to and from ours.

Everything else in saywhere counts pixels from 0, continuously, in boxes ``x1 y1 x2 y2``. The program counts from 1 and
writes boxes as centre and size. Its boxes extend from the centre of the first pixel to the centre of the last. The
functions here keep its formats, quirks and names, so that its numbers can be reproduced, and call ours for the
mathematics.

There are three box formats, all 1-based: ``xcycwh`` (centre and size, inside the network), ``x1y1x2y2`` (centres of the
first and last pixel; "corners" below) and ``xywh`` (first pixel and size). A box of one pixel has size 1 and equal
corners: corners are ``(w - 1) / 2`` from the centre and areas are ``(x2 - x1 + 1) (y2 - y1 + 1)``. Functions of boxes
accept any leading shape unless noted otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from saywhere import boxes as ours
from saywhere.boxes import BoxCoder
from saywhere.images import LoadedImage, Preprocess
from saywhere.networks.vision.spatial_transformer import bilinear
from saywhere.options import dataclass
from saywhere.papers.densecap2016 import evaluator

# Boxes


def xcycwh_to_ours(boxes: Tensor) -> Tensor:
    """Convert ``xcycwh`` to our ``x1 y1 x2 y2``, losslessly: pixel 1 is the interval from 0 to 1 with centre 0.5."""
    return ours.from_center(boxes - boxes.new_tensor([0.5, 0.5, 0, 0]))


def ours_to_xcycwh(boxes: Tensor) -> Tensor:
    """Invert :func:`xcycwh_to_ours`."""
    return ours.to_center(boxes) + boxes.new_tensor([0.5, 0.5, 0, 0])


def corners_to_ours(boxes: Tensor) -> Tensor:
    """Convert inclusive 1-based corners to our boxes: our width is their ``x2 - x1 + 1``."""
    return boxes - boxes.new_tensor([1, 1, 0, 0])


def ours_to_corners(boxes: Tensor) -> Tensor:
    """Invert :func:`corners_to_ours`."""
    return boxes + boxes.new_tensor([1, 1, 0, 0])


def xcycwh_to_x1y1x2y2(boxes: Tensor) -> Tensor:
    """Return corners ``(w - 1) / 2`` from the centre; ours are ``w / 2`` from it."""
    return ours_to_corners(xcycwh_to_ours(boxes))


def x1y1x2y2_to_xcycwh(boxes: Tensor) -> Tensor:
    """Return centre and size ``x2 - x1``, without the 1 that :func:`xcycwh_to_x1y1x2y2` subtracts: a pixel is lost."""
    return ours.to_center(boxes)


def x1y1x2y2_to_xywh(boxes: Tensor) -> Tensor:
    """Return first pixel and size of corners: the last pixel of a box is ``x + w - 1``; ours ends at ``x + w``."""
    return ours.to_size(boxes + boxes.new_tensor([0, 0, 1, 1]))


def clip_boxes(boxes: Tensor, x_max: float, y_max: float) -> tuple[Tensor, Tensor]:
    """Return ``xcycwh`` boxes clipped to the image, and a mask of those that keep a positive size.

    The first pixel is clamped to ``[1, max - 1]`` and the last to ``[2, max]``. A box outside thus becomes a valid one
    on the border, where ours becomes empty. Only boxes of at most one pixel that are not on the border are invalid. All
    shrink by 1 pixel, even unclipped ones, because of :func:`x1y1x2y2_to_xcycwh`.
    """
    x1, y1, x2, y2 = xcycwh_to_x1y1x2y2(boxes).unbind(-1)
    x1, x2 = x1.clamp(1, x_max - 1), x2.clamp(2, x_max)
    y1, y2 = y1.clamp(1, y_max - 1), y2.clamp(2, y_max)
    return x1y1x2y2_to_xcycwh(torch.stack((x1, y1, x2, y2), dim=-1)), (x2 > x1) & (y2 > y1)


def apply_box_transform(boxes: Tensor, offsets: Tensor) -> Tensor:
    """Return ``xcycwh`` boxes transformed by ``offsets`` (DenseCap, Eqs. 1 and 2), without a bound."""
    return ours.to_center(ours.decode(offsets, ours.from_center(boxes)))


def invert_box_transform(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return the offsets that turn ``anchors`` into ``boxes`` (both ``xcycwh``); a size of 0 gives infinities."""
    return ours.encode(ours.from_center(boxes), ours.from_center(anchors))


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the training sampler's IoU ``(..., N, M)`` of ``xcycwh`` boxes ``a (..., N, 4)`` and ``b (..., M, 4)``.

    Areas are ``w h``, but the intersection is between inclusive corners without the 1 that they require: a box of 10 x
    10 pixels has an IoU of 0.68 with itself. NMS, merging and evaluation add the 1.
    """
    corners_a, corners_b = xcycwh_to_x1y1x2y2(a).unsqueeze(-2), xcycwh_to_x1y1x2y2(b).unsqueeze(-3)
    top_left = torch.maximum(corners_a[..., :2], corners_b[..., :2])
    bottom_right = torch.minimum(corners_a[..., 2:], corners_b[..., 2:])
    intersection = (bottom_right - top_left).clamp(min=0).prod(dim=-1)
    areas = a[..., 2:].prod(dim=-1).unsqueeze(-1) + b[..., 2:].prod(dim=-1).unsqueeze(-2)
    return intersection / (areas - intersection)


def nms(boxes: Tensor, scores: Tensor, overlap: float, max_boxes: int | None = None) -> Tensor:
    """Return the indices of corner boxes that survive NMS with "+1" areas, best first, in the program's tie order.

    Scores are compared as float32 and read from the end of an ascending sort. Boxes with IoU <= ``overlap`` survive.
    """
    best_first = ascending_order(scores.detach().float()).flip(0)
    ranks = torch.arange(len(boxes), 0, -1, device=boxes.device)
    kept = ours.nms(corners_to_ours(boxes)[best_first], ranks, overlap, max_boxes)
    return best_first[kept]


def ascending_order(values: Tensor) -> Tensor:
    """Return indices ``(N,)`` that sort ``values (N,)`` in ascending order, with ties in the order of Torch7."""
    return torch.from_numpy(evaluator.ascending_order(values.detach().cpu().numpy())).to(values.device)


# Anchors


def field_center(stride: float) -> float:
    """Return the centre of a map's first cell: 8.5 for stride 16. Ours is 8, since pixel 1 is centred at 0.5."""
    return stride / 2 + 0.5


def make_anchors(
    shapes: Sequence[tuple[float, float]],
    height: int,
    width: int,
    stride: tuple[float, float] = (16, 16),
    first: tuple[float, float] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return anchors ``(k * height * width, 4)`` as ``xcycwh``, by shape, row, column; ours are by row, column, shape.

    Args:
        shapes: k pairs (w, h) in pixels.
        height, width: cells of the map.
        stride: pixels per cell, horizontally and vertically.
        first: 1-based centre (x, y) of the first cell; None for the :func:`field_center` of ``stride``.
    """
    first = first or (field_center(stride[0]), field_center(stride[1]))
    kind = np.float64 if dtype == torch.float64 else np.float32
    cells = torch.from_numpy(ours.anchor_grid(shapes, height, width, 1, kind)).to(dtype)
    cells = ours.to_center(cells)  # centres at 0.5, 1.5, ...
    cells = cells.reshape(height, width, len(shapes), 4).permute(2, 0, 1, 3).reshape(-1, 4)
    centers = (cells[:, :2] - 0.5) * cells.new_tensor(stride) + cells.new_tensor(first)
    return torch.cat((centers, cells[:, 2:]), dim=1)


def reshape_box_features(features: Tensor, k: int) -> Tensor:
    """Return a convolution's output ``(N, k * D, H, W)``, by shape, as rows ``(N, k * H * W, D)``."""
    n, channels, height, width = features.shape
    rows = features.reshape(n, k, channels // k, height, width).permute(0, 1, 3, 4, 2)
    return rows.reshape(n, k * height * width, channels // k)


# Selection of boxes for training, and their gradients


def inside_image(boxes: Tensor, width: float, height: float) -> Tensor:
    """Return the mask ``(N,)`` of ``xcycwh`` boxes whose first and last pixels are in the image, from 1 to its size."""
    corners = xcycwh_to_x1y1x2y2(boxes)
    return (corners[..., :2] >= 1).all(dim=-1) & (corners[..., 2:] <= corners.new_tensor([width, height])).all(dim=-1)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = values.shape
        return values[rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        (gradient,) = gradients
        last = torch.full(ctx.shape[:1], -1, dtype=torch.long, device=rows.device)
        places = torch.arange(len(rows), device=rows.device)
        last.scatter_reduce_(0, rows, places, "amax")
        picked = last >= 0
        result = gradient.new_zeros(ctx.shape)
        result[picked] = gradient[last[picked]]
        return result, None


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """Return ``values[rows]``; a row picked several times gets the gradient of the last time, not the sum."""
    return _Pick.apply(values, rows)  # pyright: ignore[reportReturnType]


# Pooling


def box_to_affine(boxes: Tensor, image_height: int, image_width: int) -> Tensor:
    """Return the affine maps ``(N, 2, 3)`` from the square [-1, 1] to each ``xcycwh`` box, y before x.

    Centres run from -1 at pixel 1 to 1 at the last pixel, but sizes are divided by the image size, not by that minus 1.
    """
    xc, yc, w, h = boxes.unbind(-1)
    x, y = (2 * xc - image_width - 1) / (image_width - 1), (2 * yc - image_height - 1) / (image_height - 1)
    zero = torch.zeros_like(x)
    rows = torch.stack((h / image_height, zero, y), dim=-1), torch.stack((zero, w / image_width, x), dim=-1)
    return torch.stack(rows, dim=-2)


def roi_pooling(
    features: Tensor, boxes: Tensor, image_height: int, image_width: int, size: int | tuple[int, int] = 7
) -> Tensor:
    """Return features ``(N, C, rows, columns)`` in each ``xcycwh`` box: ``bilinear`` with another map to cells.

    The program puts the first cell on the image's first pixel, the last cell on its last pixel, and the others evenly
    between. Ours are at the centre of the pixels that they are computed from, exactly one stride apart. ``features (C,
    H, W)`` are of one image, ``boxes (N, 4)`` in its pixels.
    """
    affine = box_to_affine(boxes, image_height, image_width)
    height, width = features.shape[-2:]
    x, y = (affine[:, 1, 2] + 1) / 2 * (width - 1), (affine[:, 0, 2] + 1) / 2 * (height - 1)
    w, h = affine[:, 1, 1] * (width - 1), affine[:, 0, 0] * (height - 1)
    cells = ours.from_center(torch.stack((x + 0.5, y + 0.5, w, h), dim=-1))  # ours has the first cell's centre at 0.5
    return bilinear(features, cells, size, stride=1)


# The box coder of a network with the program's conventions


def _for_arrays(function: Callable[..., Any]) -> Any:
    """Make a static method of a function on tensors, which also takes NumPy arrays and then returns them."""

    @wraps(function)
    def either(*arguments: Any) -> Any:
        if not any(isinstance(a, np.ndarray) for a in arguments):
            return function(*arguments)
        tensors = [torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for a in arguments]
        result = function(*tensors)
        return tuple(r.numpy() for r in result) if isinstance(result, tuple) else result.numpy()

    return staticmethod(either)


def _suppress_proposals(boxes: Tensor, logits: Tensor, overlap: float, limit: int) -> Tensor:
    """Apply :func:`nms` with the probabilities of the two-way softmax, whose logit differences are ``logits``."""
    return nms(xcycwh_to_x1y1x2y2(boxes), logits.sigmoid(), overlap, limit)


def _suppress_final(boxes: Tensor, clipped: Tensor, logits: Tensor, overlap: float) -> Tensor:
    """Apply :func:`nms` to unclipped boxes in single precision."""
    return nms(xcycwh_to_x1y1x2y2(boxes.float()), logits, overlap)


@dataclass(frozen=True)
class OriginalBoxCoder(BoxCoder):
    """Encode and decode the program's boxes: 1-based ``xcycwh``, with anchors ordered by shape before position.

    The methods have the quirks of the functions above. Sizes are unbounded.
    """

    max_log_scale: float | None = None
    from_xyxy = _for_arrays(ours_to_xcycwh)
    to_xyxy = _for_arrays(xcycwh_to_ours)
    encode = _for_arrays(lambda boxes, references: invert_box_transform(references, boxes))
    decode = _for_arrays(lambda offsets, references: apply_box_transform(references, offsets))
    rows = _for_arrays(reshape_box_features)
    iou = _for_arrays(box_iou)
    inside = _for_arrays(inside_image)
    pick = _for_arrays(pick)
    clip = _for_arrays(clip_boxes)
    suppress_proposals = _for_arrays(_suppress_proposals)
    suppress_final = _for_arrays(_suppress_final)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: Any = np.float32
    ) -> np.ndarray:
        kind = torch.float64 if dtype == np.float64 else torch.float32
        return make_anchors(shapes, height, width, (stride, stride), dtype=kind).numpy()


# Images

BLUE_GREEN_RED_MEANS = (103.939, 116.779, 123.68)


def scaled_size(width: int, height: int, long_side: int) -> tuple[int, int]:
    """Return width and height after resizing to ``long_side``; the short side is rounded down."""
    longest = max(width, height)
    return max(1, width * long_side // longest), max(1, height * long_side // longest)


def scale_weights(source: int, target: int) -> Tensor:
    """Return the matrix ``(target, source)`` that resizes rows or columns from ``source`` to ``target`` pixels.

    Enlarging interpolates linearly between pixels; the first and last stay in place. Shrinking averages the source
    pixels that each new pixel covers. Positions are in single precision, as in the program.
    """
    places = np.arange(target + 1, dtype=np.float32)
    weights = np.zeros((target, source), np.float32)
    rows = np.arange(target)
    if target > source:
        places = places[:-1] * np.float32((source - 1) / (target - 1))
        places[-1] = source - 1
        left = places.astype(np.int64)
        weights[rows, left] += 1 - (places - left)
        weights[rows, np.minimum(left + 1, source - 1)] += places - left
    elif target < source:
        edges = places * np.float32(source / target)
        cells = np.arange(source, dtype=np.float32)
        covered = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
        weights = covered.clip(0, 1)
        weights /= weights.sum(axis=1, keepdims=True)
    else:
        weights[rows, rows] = 1
    return torch.from_numpy(weights)


def scale_image(pixels: Tensor, width: int, height: int) -> Tensor:
    """Resize ``pixels (C, h, w)`` as the program's image library does: columns first, then rows."""
    across = scale_weights(pixels.shape[2], width).to(pixels)
    down = scale_weights(pixels.shape[1], height).to(pixels)
    return down @ (pixels @ across.T)


def caffe_pixels(pixels: Tensor) -> Tensor:
    """Convert RGB ``pixels (3, h, w)`` from 0 to 1 to the input of Caffe's VGG-16: BGR, 0 to 255, minus the means."""
    return pixels.flip(0) * 255 - pixels.new_tensor(BLUE_GREEN_RED_MEANS)[:, None, None]


@dataclass(frozen=True)
class OriginalPreprocess(Preprocess):
    """The program's preprocessing; ``multiple`` is 1, ``mean`` and ``std`` are B G R, as shares of 255."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        return scaled_size(width, height, self.long_side)

    def __call__(self, image: LoadedImage) -> np.ndarray:
        width, height = self.size(image.width, image.height)
        values = torch.from_numpy(np.array(image.pixels)).permute(2, 0, 1).float() / 255
        return caffe_pixels(scale_image(values, width, height)).numpy()

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        shown = pixels.transpose(1, 2, 0) + np.asarray(BLUE_GREEN_RED_MEANS, np.float32)
        return np.round(shown[:, :, ::-1].clip(0, 255)).astype(np.uint8)


# The optimizer


class Adam(Optimizer):
    """Adam that adds ``eps`` to the root of the second moment before its bias correction.

    Where torch's Adam divides by ``sqrt(v / c) + eps``, with the correction ``c = 1 - beta2 ** t``, this divides by
    ``(sqrt(v) + eps) / sqrt(c)``: ``eps`` has more influence in the first steps. The weight decay is L2.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; ``closure``, if given, recomputes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        gradient = gradient + group["weight_decay"] * parameter
        beta1, beta2 = group["betas"]
        mean = state["mean"].lerp_(gradient, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction = (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
        parameter.addcdiv_(mean, square.sqrt() + group["eps"], value=-group["lr"] * correction)
