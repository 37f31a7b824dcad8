"""Phrases whose boxes are known, against the areas of their pictures: for an aligner that is shown where they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.models.sentence_target import SentenceTarget


def phrase_products(
    areas: Tensor, areas_real: Tensor, boxes: Sequence[Tensor], words: Tensor, targets: Sequence[SentenceTarget]
) -> tuple[Tensor, Tensor]:
    """Of all phrases of all pictures the products with the areas, and the IoU of their boxes with them.

    The product of a phrase is the sum over its words.

    Args:
        areas: ``(K, R, D)``. areas_real: ``(K, R)``.
        boxes: of each picture its areas' boxes ``(R_k, 4)``.
        words: ``(L, T, D)`` of the sentences of all targets in order.
        targets: one a picture.

    Returns:
        ``products (P, R)``, minus infinity where there is no area, and ``overlaps (P, R)``.
    """
    first, products, overlaps = 0, [areas.new_zeros(0, areas.shape[1])], [areas.new_zeros(areas.shape[1], 0)]
    times = torch.arange(words.shape[1], device=words.device)
    for picture, target in enumerate(targets):
        if len(target.spans):
            sentence, start, stop = target.spans.unbind(1)
            inside = (times >= start[:, None]) & (times < stop[:, None])
            phrases = (words[first + sentence] * inside[..., None]).sum(dim=1)
            rows = phrases.float() @ areas[picture].float().T
            products.append(rows.masked_fill(~areas_real[picture], -torch.inf))
            found = areas.new_zeros(areas.shape[1], len(target.boxes), dtype=torch.float32)
            found[: len(boxes[picture])] = geometry.iou(boxes[picture].float(), target.boxes.float())
            overlaps.append(found)
        first += len(target.words)
    return torch.cat(products), torch.cat(overlaps, dim=1).T
