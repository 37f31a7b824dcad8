"""Which boxes the program trains on, and how gradients come back from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saywhere.ops.box_sampling import RegionSampler, SampledBoxes
from saywhere.original.boxes import box_iou, xcycwh_to_x1y1x2y2


def inside_image(boxes: Tensor, width: float, height: float) -> Tensor:
    """Return the mask ``(N,)`` of ``xcycwh`` boxes whose first and last pixels are in the image, from 1 to its size."""
    corners = xcycwh_to_x1y1x2y2(boxes)
    return (corners[..., :2] >= 1).all(dim=-1) & (corners[..., 2:] <= corners.new_tensor([width, height])).all(dim=-1)


@dataclass(frozen=True)
class BoxSampler:
    """Samples positives and negatives among boxes by their :func:`box_iou` with the truths.

    A box is positive above ``high``, negative below ``low``, neither if it leaves the image (when one is given). The
    best box of each truth is positive in any case; its own best truth, which may be another one, is what it learns.
    Positives are at most half of ``size``, sampled without replacement; negatives fill the rest, with replacement where
    they are too few. If there are none, all that is not positive is negative.
    """

    size: int = 256
    high: float = 0.7
    low: float = 0.3

    def __call__(
        self,
        boxes: Tensor,
        truths: Tensor,
        image: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
    ) -> SampledBoxes:
        """Return indices from 0 of ``boxes (A, 4)``, positives with those of their ``truths (M, 4)``; all ``xcycwh``.

        ``image`` is its (width, height); without it boxes outside are sampled too.
        """
        inside = None if image is None else inside_image(boxes, *image)
        return self._sampler()(box_iou(boxes, truths), inside, generator)

    def candidates(
        self, boxes: Tensor, truths: Tensor, image: tuple[float, float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return masks ``(A,)`` of the positive and the negative boxes that are sampled from."""
        inside = None if image is None else inside_image(boxes, *image)
        positive, _, negative = self._sampler().candidates(box_iou(boxes, truths), inside)
        return positive, negative

    def _sampler(self) -> RegionSampler:
        return RegionSampler(self.size, self.high, self.low, fill=True)


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
    """Return ``values[rows]``; a row picked twice gets the gradient of the last time only, not the sum."""
    return _Pick.apply(values, rows)  # pyright: ignore[reportReturnType]
