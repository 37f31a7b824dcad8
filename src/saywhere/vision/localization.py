"""DenseCap's localization layer (section 3.1.2): anchors, proposals and the choice of regions to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhere.vision.backbones import by_shape
from saywhere.vision.conventions import Conventions


class AnchorGenerator:
    """k anchors of given shapes on every cell of every level.

    Args:
        shapes: for each level its k pairs (w, h) in input pixels.
        strides: of each level.
        conventions: format and order of the anchors.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[tuple[float, float]]],
        strides: Sequence[int],
        conventions: Conventions | None = None,
    ):
        if len(shapes) != len(strides) or len({len(level) for level in shapes}) != 1:
            raise ValueError("anchors need the same number of shapes on every level")
        self.shapes, self.strides = shapes, strides
        self.per_cell = len(shapes[0])
        self.conventions = conventions or Conventions()

    def __call__(self, maps: Sequence[Tensor]) -> Tensor:
        """Anchors ``(A, 4)`` of the maps ``(C, H_l, W_l)`` of one picture: by level, row, column, shape.

        They are float32 for maps in half precision, which could not hold them.
        """
        dtype = torch.promote_types(maps[0].dtype, torch.float32)
        grids = [
            self.conventions.anchors(shapes, level.shape[-2], level.shape[-1], stride, dtype)
            for shapes, level, stride in zip(self.shapes, maps, self.strides, strict=True)
        ]
        return torch.cat(grids).to(maps[0].device)


@dataclass(frozen=True)
class Choice:
    """Boxes chosen for training: indices of positives ``(P,)``, the truth of each ``(P,)``, indices of negatives."""

    positive: Tensor
    truth: Tensor
    negative: Tensor

    @property
    def rows(self) -> Tensor:
        """All chosen indices, positives first."""
        return torch.cat((self.positive, self.negative))


@dataclass(frozen=True)
class RegionSampler:
    """Draws positives and negatives by their IoU with the truth ("Box Sampling" in section 3.1.2).

    Attributes:
        size: boxes drawn for each picture.
        positive, negative: a box is positive if its best IoU is above ``positive``, negative if below ``negative``.
        positive_share: at most this share of ``size`` is positive.
        best_is_positive: the best box of every truth counts as positive whatever its IoU.
        fill: where negatives are too few, they are drawn with replacement.
    """

    size: int
    positive: float
    negative: float
    positive_share: float = 0.5
    best_is_positive: bool = True
    fill: bool = False

    def __call__(self, ious: Tensor, inside: Tensor | None = None, generator: torch.Generator | None = None) -> Choice:
        """Draw from boxes with ``ious (A, M)`` to M truths.

        Args:
            ious: IoU of each box with each truth.
            inside: ``(A,)`` mask of the boxes that may be drawn (the best box of a truth always may).
            generator: source of randomness, on the CPU.
        """
        allowed = torch.ones(len(ious), dtype=torch.bool, device=ious.device) if inside is None else inside
        if ious.shape[1] == 0:
            none = torch.zeros(0, dtype=torch.long, device=ious.device)
            return Choice(none, none, self._draw(allowed, self.size, generator))
        positive, truth, negative = self.candidates(ious, allowed)
        chosen = self._draw(positive, int(self.size * self.positive_share), generator)
        return Choice(chosen, truth[chosen], self._draw(negative, self.size - len(chosen), generator, self.fill))

    def candidates(self, ious: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What is drawn from: masks ``(A,)`` of positives, the best truth ``(A,)`` of each box, masks of negatives."""
        best, truth = ious.max(dim=1)
        positive, negative = best > self.positive, best < self.negative
        if inside is not None:
            positive, negative = positive & inside, negative & inside
        if self.best_is_positive:
            forced = ious.argmax(dim=0)
            positive[forced] = True
            negative[forced] = False
        return positive, truth, negative if negative.any() else ~positive

    @staticmethod
    def _draw(mask: Tensor, n: int, generator: torch.Generator | None, fill: bool = False) -> Tensor:
        rows = mask.nonzero().flatten()
        if len(rows) > n:
            return rows[torch.randperm(len(rows), generator=generator)[:n].to(rows.device)]
        if fill and 0 < len(rows) < n:
            return rows[torch.randint(len(rows), (n,), generator=generator).to(rows.device)]
        return rows


@dataclass(frozen=True)
class RpnOutput:
    """What the layer says of every anchor of one picture: ``anchors (A, 4)``, ``logits (A,)``, ``offsets (A, 4)``."""

    anchors: Tensor
    logits: Tensor
    offsets: Tensor


class RpnHead(nn.Module):
    """3x3 convolution, ReLU, then scores and offsets of k anchors by 1x1 convolutions; shared by all levels.

    Offsets start at zero, so that the first proposals are the anchors. With ``two_way`` an anchor has two logits, for
    "region" and "background", whose difference is its score.
    """

    def __init__(
        self, channels: int, hidden: int, per_cell: int, two_way: bool, conventions: Conventions | None = None
    ):
        super().__init__()
        self.per_cell, self.conventions = per_cell, conventions or Conventions()
        self.conv = nn.Conv2d(channels, hidden, 3, padding=1)
        self.score = nn.Conv2d(hidden, per_cell * (2 if two_way else 1), 1)
        self.offset = nn.Conv2d(hidden, per_cell * 4, 1)
        self.two_way = two_way
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.zero_()
                if name in ("conv.weight", "score.weight"):
                    parameter.normal_(std=0.01)

    def forward(self, *maps: Tensor) -> tuple[Tensor, Tensor]:
        """Maps ``(B, C, H_l, W_l)`` to logits ``(B, A)`` and offsets ``(B, A, 4)``, in the anchors' order."""
        scores, offsets = zip(*(self.score_and_offset(features) for features in maps), strict=True)
        both = torch.cat(scores, dim=1)
        return both[..., 0] - both[..., 1] if self.two_way else both[..., 0], torch.cat(offsets, dim=1)

    def score_and_offset(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``(B, A, 1 or 2)`` and offsets ``(B, A, 4)`` of the anchors of a map ``(B, C, H, W)``."""
        hidden = torch.relu(self.conv(features))
        rows, k = self.conventions.rows, self.per_cell
        return rows(self.score(hidden), k), rows(self.offset(hidden), k)


class LocalizationLayer(nn.Module):
    """Proposes regions of interest from feature maps.

    Args:
        head: scores and offsets of every anchor.
        anchors: see :class:`AnchorGenerator`.
        conventions: of boxes, the same in all parts.
        nms: proposals that overlap a better one by more than this IoU are dropped.
        before_nms: only this many best proposals enter the suppression (all if None).
    """

    def __init__(
        self,
        head: RpnHead,
        anchors: AnchorGenerator,
        conventions: Conventions,
        nms: float,
        before_nms: int | None = None,
    ):
        super().__init__()
        self.head, self.anchors, self.conventions = head, anchors, conventions
        self.nms, self.before_nms = nms, before_nms

    def forward(self, pictures: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Scores and offsets of every anchor, for pictures of any sizes given by their maps."""
        scored = by_shape(self.head, pictures)
        return [RpnOutput(self.anchors(maps), *out) for maps, out in zip(pictures, scored, strict=True)]

    def boxes(self, rpn: RpnOutput) -> Tensor:
        """The regressed box of every anchor ``(A, 4)``, not clipped."""
        return self.conventions.decode(rpn.offsets, rpn.anchors)

    def propose(self, rpn: RpnOutput, width: float, height: float, limit: int) -> tuple[Tensor, Tensor]:
        """The ``limit`` best proposals of one picture after clipping and suppression.

        Returns boxes ``(B, 4)`` in input pixels and logits ``(B,)``, best first.
        """
        logits, offsets, anchors = rpn.logits, rpn.offsets, rpn.anchors
        if self.before_nms is not None:
            logits, rows = logits.topk(min(self.before_nms, len(logits)))
            offsets, anchors = offsets[rows], anchors[rows]
        found, solid = self.conventions.clip(self.conventions.decode(offsets, anchors), width, height)
        found, logits = found[solid], logits[solid]
        kept = self.conventions.suppress_proposals(found, logits, self.nms, limit)
        return found[kept], logits[kept]
