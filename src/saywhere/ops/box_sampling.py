"""Which boxes train a detector ("Box Sampling" in DenseCap, section 3.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampledBoxes:
    """Boxes sampled for training: indices of positives ``(P,)``, the truth of each ``(P,)``, indices of negatives."""

    positive: Tensor
    truth: Tensor
    negative: Tensor

    @property
    def rows(self) -> Tensor:
        """All sampled indices, positives first."""
        return torch.cat((self.positive, self.negative))


@dataclass(frozen=True)
class RegionSampler:
    """Samples positives and negatives by their IoU with the truth.

    Attributes:
        size: boxes sampled for each image.
        fg_iou, bg_iou: a box is positive if its best IoU is above ``fg_iou``, negative if below ``bg_iou``.
        positive_share: at most this share of ``size`` is positive.
        best_is_positive: the best box of every truth counts as positive whatever its IoU.
        fill: where negatives are too few, they are sampled with replacement.
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
        """Sample from boxes with ``ious (A, M)`` to M truths.

        Args:
            ious: IoU of each box with each truth.
            inside: ``(A,)`` mask of the boxes that may be sampled (the best box of a truth always may).
            generator: source of randomness, on the CPU.
        """
        allowed = torch.ones(len(ious), dtype=torch.bool, device=ious.device) if inside is None else inside
        if ious.shape[1] == 0:
            none = torch.zeros(0, dtype=torch.long, device=ious.device)
            return SampledBoxes(none, none, self._sample(allowed, self.size, generator))
        positive, truth, negative = self.candidates(ious, allowed)
        rows = self._sample(positive, int(self.size * self.positive_share), generator)
        return SampledBoxes(rows, truth[rows], self._sample(negative, self.size - len(rows), generator, self.fill))

    def candidates(self, ious: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is sampled from: masks ``(A,)`` of positives, the best truth ``(A,)`` of each, and negatives."""
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
