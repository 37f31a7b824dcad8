"""What an aligner is trained on: sentences of images and, if they are known, the boxes of their phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saywhere import boxes as geometry


@dataclass(frozen=True, eq=False)
class SentenceTarget:
    """Sentences of one image.

    Attributes:
        token_ids: ``(N, T)`` of N sentences, padded on the right.
        spans: ``(P, 3)`` of each phrase whose box is known its sentence, its first word, and the word after its last.
        boxes: ``(P, 4)`` of those phrases, in pixels of the network's input.
    """

    token_ids: Tensor
    spans: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.long))
    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))

    def to(self, device: torch.device) -> SentenceTarget:
        """Return the same on ``device``."""
        return SentenceTarget(self.token_ids.to(device), self.spans.to(device), self.boxes.to(device))


def phrase_products(
    regions: Tensor, region_mask: Tensor, boxes: Sequence[Tensor], words: Tensor, targets: Sequence[SentenceTarget]
) -> tuple[Tensor, Tensor]:
    """Return the products of all phrases of all images with the regions, and the IoU of their boxes with them.

    The product of a phrase is the sum over its words.

    Args:
        regions: ``(K, R, D)``. region_mask: ``(K, R)``, which are real.
        boxes: of each image its regions' boxes ``(R_k, 4)``.
        words: ``(L, T, D)`` of the sentences of all targets in order.
        targets: one an image.

    Returns:
        ``products (P, R)``, minus infinity where there is no region, and ``overlaps (P, R)``.
    """
    first, products, overlaps = 0, [regions.new_zeros(0, regions.shape[1])], [regions.new_zeros(regions.shape[1], 0)]
    times = torch.arange(words.shape[1], device=words.device)
    for image, target in enumerate(targets):
        if len(target.spans):
            sentence, start, stop = target.spans.unbind(1)
            inside = (times >= start[:, None]) & (times < stop[:, None])
            phrases = (words[first + sentence] * inside[..., None]).sum(dim=1)
            rows = phrases.float() @ regions[image].float().T
            products.append(rows.masked_fill(~region_mask[image], -torch.inf))
            ious = regions.new_zeros(regions.shape[1], len(target.boxes), dtype=torch.float32)
            ious[: len(boxes[image])] = geometry.iou(boxes[image].float(), target.boxes.float())
            overlaps.append(ious)
        first += len(target.token_ids)
    return torch.cat(products), torch.cat(overlaps, dim=1).T
