"""DenseCap's localization layer (section 3.1.2): anchors, proposals and the choice of regions to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhere import boxes as geometry
from saywhere.vision.backbones import by_shape

MAX_LOG_SCALE = 4.135  # log(1000 / 16): a proposal is at most this much larger than its anchor


class AnchorGenerator:
    """k anchors of given shapes on every cell of every level.

    Args:
        shapes: for each level its k pairs (w, h) in input pixels.
        strides: of each level.
    """

    def __init__(self, shapes: Sequence[Sequence[tuple[float, float]]], strides: Sequence[int]):
        if len(shapes) != len(strides) or len({len(level) for level in shapes}) != 1:
            raise ValueError("anchors need the same number of shapes on every level")
        self.shapes, self.strides = shapes, strides
        self.per_cell = len(shapes[0])

    def __call__(self, maps: Sequence[Tensor]) -> Tensor:
        """Anchors ``(A, 4)`` of the maps ``(C, H_l, W_l)`` of one picture: by level, row, column, shape."""
        grids = [
            geometry.anchor_grid(shapes, level.shape[-2], level.shape[-1], stride)
            for shapes, level, stride in zip(self.shapes, maps, self.strides, strict=True)
        ]
        return torch.cat(grids).to(maps[0].device)


@dataclass(frozen=True)
class BoxCoder:
    """Offsets relative to reference boxes (Eqs. 1 and 2), with an optional bound on the growth."""

    max_log_scale: float | None = MAX_LOG_SCALE

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Offsets ``(N, 4)`` from ``references`` to ``boxes``."""
        return geometry.encode(boxes, references)

    def decode(self, offsets: Tensor, references: Tensor) -> Tensor:
        """Boxes ``(N, 4)`` at ``offsets`` from ``references``."""
        return geometry.decode(offsets, references, self.max_log_scale)


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
    """

    size: int
    positive: float
    negative: float
    positive_share: float = 0.5
    best_is_positive: bool = True

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
        best, truth = ious.max(dim=1)
        positive = (best > self.positive) & allowed
        negative = (best < self.negative) & allowed
        if self.best_is_positive:
            forced = ious.argmax(dim=0)
            positive[forced] = True
            negative[forced] = False
        chosen = self._draw(positive, int(self.size * self.positive_share), generator)
        if not negative.any():
            negative = ~positive
        return Choice(chosen, truth[chosen], self._draw(negative, self.size - len(chosen), generator))

    @staticmethod
    def _draw(mask: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        rows = mask.nonzero().flatten()
        if len(rows) <= n:
            return rows
        return rows[torch.randperm(len(rows), generator=generator)[:n].to(rows.device)]


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

    def __init__(self, channels: int, hidden: int, per_cell: int, two_way: bool):
        super().__init__()
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
        logits, offsets = [], []
        for features in maps:
            hidden = torch.relu(self.conv(features))
            score = self.score(hidden).permute(0, 2, 3, 1)
            if self.two_way:
                score = score[..., 0::2] - score[..., 1::2]
            logits.append(score.flatten(1))
            offsets.append(self.offset(hidden).permute(0, 2, 3, 1).reshape(len(features), -1, 4))
        return torch.cat(logits, dim=1), torch.cat(offsets, dim=1)


class LocalizationLayer(nn.Module):
    """Proposes regions of interest from feature maps.

    Args:
        head: scores and offsets of every anchor.
        anchors, coder: see :class:`AnchorGenerator`, :class:`BoxCoder`.
        nms: proposals that overlap a better one by more than this IoU are dropped.
        before_nms: only this many best proposals enter the suppression (all if None).
    """

    def __init__(
        self, head: RpnHead, anchors: AnchorGenerator, coder: BoxCoder, nms: float, before_nms: int | None = None
    ):
        super().__init__()
        self.head, self.anchors, self.coder = head, anchors, coder
        self.nms, self.before_nms = nms, before_nms

    def forward(self, pictures: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Scores and offsets of every anchor, for pictures of any sizes given by their maps."""
        scored = by_shape(self.head, pictures)
        return [RpnOutput(self.anchors(maps), *out) for maps, out in zip(pictures, scored, strict=True)]

    def boxes(self, rpn: RpnOutput) -> Tensor:
        """The regressed box of every anchor ``(A, 4)``, not clipped."""
        return self.coder.decode(rpn.offsets, rpn.anchors)

    def propose(self, rpn: RpnOutput, width: float, height: float, limit: int) -> tuple[Tensor, Tensor]:
        """The ``limit`` best proposals of one picture after clipping and suppression.

        Returns boxes ``(B, 4)`` in input pixels and logits ``(B,)``, best first.
        """
        count = len(rpn.logits) if self.before_nms is None else min(self.before_nms, len(rpn.logits))
        logits, rows = rpn.logits.topk(count)
        found = geometry.clip(self.coder.decode(rpn.offsets[rows], rpn.anchors[rows]), width, height)
        solid = ((found[:, 2:] - found[:, :2]) >= 1).all(dim=1).nonzero().flatten()
        kept = solid[geometry.nms(found[solid], logits[solid], self.nms, limit)]
        return found[kept], logits[kept]
