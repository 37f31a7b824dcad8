"""How well a sentence fits an image: the scores of Eqs. 7 and 8 of Deep Visual-Semantic Alignments, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere.configs.aligner import Score


def pair_scores(
    regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor, score: Score = "max", mean: bool = False
) -> Tensor:
    """Return the scores ``S_kl`` of all images k with all sentences l, as one masked contraction.

    ``max`` is Eq. 8, the sum over the words of their best region; ``fragments`` is Eq. 7, the sum of all positive
    products. Padded regions are minus infinity before the maximum and padded words are left out of the sum, so that
    neither can change a score. An image without regions scores 0. :mod:`saywhere.models.aligner` computes the same
    in use.

    Args:
        regions: ``(K, R, D)``. region_mask: ``(K, R)``, which are real.
        words: ``(L, T, D)``. word_mask: ``(L, T)``, which are real.
        score: see above.
        mean: divide by the number of the sentence's words.

    Returns:
        ``(K, L)``, differentiable in regions and words.
    """
    real = words[word_mask]  # (W, D): padding costs no products
    sentence = torch.arange(len(words), device=words.device)[:, None].expand(word_mask.shape)[word_mask]
    products = (regions.flatten(0, 1) @ real.T).unflatten(0, regions.shape[:2])  # (K, R, W)
    hidden = ~region_mask[..., None]
    if score == "fragments":
        best = (
            torch.relu(products)
            .masked_fill(hidden, 0.0)
            .sum(dim=1, dtype=torch.promote_types(products.dtype, torch.float32))
        )
    elif regions.shape[1] == 0:
        best = products.sum(dim=1)
    else:
        best = products.masked_fill(hidden, -torch.inf).amax(dim=1)
        best = best.where(region_mask.any(dim=1, keepdim=True), 0.0)
    best = best.to(torch.promote_types(best.dtype, torch.float32))  # half precision is too coarse for long sums
    scores = best.new_zeros(len(regions), len(words)).index_add(1, sentence, best)
    return scores / word_mask.sum(dim=1).clamp(min=1) if mean else scores
