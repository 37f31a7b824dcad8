"""The parts of DenseCap that the published program implements differently: boxes, pooling, anchor sampling, decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from saywhere import reproductions
from saywhere.boxes import BoxCoder
from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.vision.spatial_transformer import bilinear
from saywhere.options import dataclass


@dataclass(frozen=True)
class SampledBoxes:
    """Boxes sampled for training: indices of positives and of their true boxes ``(P,)``, and of negatives."""

    positive: Tensor
    truth: Tensor
    negative: Tensor

    @property
    def rows(self) -> Tensor:
        """All sampled indices, positives first."""
        return torch.cat((self.positive, self.negative))


@dataclass(frozen=True)
class RegionSampler:
    """Sample positive and negative boxes by their IoU with the true boxes.

    Attributes:
        size: boxes to sample per image.
        fg_iou, bg_iou: a box is positive if its highest IoU exceeds ``fg_iou``, negative if it is below ``bg_iou``.
        positive_share: maximum share of positives in ``size``.
        best_is_positive: make the best box of each true box positive, whatever its IoU.
        fill: sample the negatives with replacement if there are too few.
    """

    size: int
    fg_iou: float
    bg_iou: float
    positive_share: float = 0.5
    best_is_positive: bool = True
    fill: bool = False

    def __call__(
        self, ious: Tensor, inside: Tensor | None = None, generator: torch.Generator | None = None
    ) -> SampledBoxes:
        """Sample from A boxes, given their IoU with M true boxes, ``ious (A, M)``.

        ``inside (A,)`` masks the boxes that may be sampled. The best box of each true box is always allowed.
        ``generator`` must be on the CPU.
        """
        allowed = torch.ones(len(ious), dtype=torch.bool, device=ious.device) if inside is None else inside
        if ious.shape[1] == 0:
            none = torch.zeros(0, dtype=torch.long, device=ious.device)
            return SampledBoxes(none, none, self._sample(allowed, self.size, generator))
        positive, truth, negative = self.candidates(ious, allowed)
        rows = self._sample(positive, int(self.size * self.positive_share), generator)
        return SampledBoxes(rows, truth[rows], self._sample(negative, self.size - len(rows), generator, self.fill))

    def candidates(self, ious: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return masks ``(A,)`` of positives and negatives (if none, all others); in between, each best true box."""
        best, truth = ious.max(dim=1)
        positive, negative = best > self.fg_iou, best < self.bg_iou
        if inside is not None:
            positive, negative = positive & inside, negative & inside
        if self.best_is_positive:
            forced = ious.argmax(dim=0)
            positive[forced] = True
            negative[forced] = False
        return positive, truth, negative if negative.any() else ~positive

    @staticmethod
    def _sample(mask: Tensor, n: int, generator: torch.Generator | None, fill: bool = False) -> Tensor:
        rows = mask.nonzero().flatten()
        if len(rows) > n:
            return rows[torch.randperm(len(rows), generator=generator)[:n].to(rows.device)]
        if fill and 0 < len(rows) < n:
            return rows[torch.randint(len(rows), (n,), generator=generator).to(rows.device)]
        return rows


Pool = Callable[[Sequence[Tensor], Tensor, tuple[int, int]], Tensor]
"""Function of maps, boxes ``(N, 4)`` in the box coder's format, and input size; returns ``(N, C, size, size)``."""


class Conventions:
    """Factory for the box coder, pooling, anchor sampler and decoder of a DenseCap configuration."""

    def box_coder(self, config: DenseCapConfig) -> BoxCoder:
        """Return the box coder: the format of boxes, and how they are placed, compared and clipped."""
        return BoxCoder(config.max_log_scale)

    def pooling(self, config: DenseCapConfig) -> Pool:
        """Return the function that pools boxes from feature maps."""
        strides = config.trunk.strides
        return lambda maps, boxes, size: pool_pyramid(maps, strides, boxes, config.pool_size)

    def rpn_sampler(self, config: DenseCapConfig) -> RegionSampler:
        """Return the sampler of the anchors that train the RPN."""
        return RegionSampler(config.rpn_batch, config.rpn_fg_iou, config.rpn_bg_iou)

    def decoder(self, config: DenseCapConfig, vocabulary_size: int) -> Any:
        """Return the decoder of region embeddings, such as :class:`LstmDecoder`."""
        sizes = config.word_size, config.hidden_size
        return LstmDecoder(config.embed_dim, vocabulary_size, *sizes, config.decoder_dropout)


def find_conventions(config: DenseCapConfig) -> Conventions:
    """Return the conventions named by ``config.conventions``."""
    if config.conventions == "saywhere":
        return Conventions()
    return reproductions.find(f"conventions={config.conventions}")()


CELLS = 8
"""A box is pooled from the next coarser level once its side reaches this many strides of that level."""


def pool_pyramid(maps: Sequence[Tensor], strides: Sequence[int], boxes: Tensor, size: int) -> Tensor:
    """Pool each of ``boxes (N, 4)``, in input pixels, from the level that suits its size: ``(N, C, size, size)``.

    That is the coarsest level whose stride is at most an eighth of the square root of the box area, or else the finest.
    A box then covers about as many cells as points are sampled. ``maps (C, H_l, W_l)`` and ``strides`` are ordered from
    fine to coarse.
    """
    if len(maps) == 1:
        return bilinear(maps[0], boxes, size, strides[0])
    sides = (boxes.detach()[:, 2:] - boxes.detach()[:, :2]).clamp(min=0).prod(dim=1).sqrt()
    level = sum((sides >= CELLS * s).long() for s in strides[1:]) + torch.zeros_like(sides, dtype=torch.long)
    parts, order = [], []
    for i, (features, stride) in enumerate(zip(maps, strides, strict=True)):
        rows = (level == i).nonzero().flatten()
        parts.append(bilinear(features, boxes[rows], size, stride))
        order.append(rows)
    return torch.cat(parts)[torch.cat(order).argsort()]
