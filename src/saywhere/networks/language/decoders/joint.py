"""The joint distribution over words and regions of Areas of Attention (section 3.2, Eqs. 4 and 5), and its marginals.

The score of a word, a region and a state is a sum of three parts::

    s(w, r, h) = a(w, h) + m(w, r) + c(r, h)
    a(w, h) = w' W theta_wh h + w' W theta_w      word-state, word
    m(w, r) = w' W theta_wr R' r                  word-region: the same in every state
    c(r, h) = r' R theta_rh h + r' R theta_r      region-state, region

so that both marginals are products with one table ``exp m`` an image, shared by all its states::

    p(w | h) ~ exp a(w) * sum_r exp c(r) exp m(w, r)
    p(r | h) ~ exp c(r) * sum_w exp a(w) exp m(w, r)

Shapes: N images, K states each, R regions, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 512
"""Words at a time where the sums are made of logarithms."""


def log_joint(words: Tensor, word_region: Tensor, regions: Tensor) -> Tensor:
    """Return ``ln p(w, r | h)`` ``(N, K, R, V)`` literally by Eq. 4: for reading and checking, not for large tables.

    Args:
        words: a, ``(N, K, V)``.
        word_region: m, ``(N, R, V)``.
        regions: c, ``(N, K, R)``; minus infinity where an image has fewer regions.
    """
    scores = words[:, :, None] + word_region[:, None] + regions[..., None]
    return scores - scores.flatten(2).logsumexp(dim=2)[..., None, None]


@dataclass(frozen=True, eq=False)
class WordRegion:
    """The word-region part m of some images, computed once and used in every step.

    Attributes:
        peak: ``(N, V)`` the largest m of each word over the image's regions; nothing is differentiated in it.
        table: ``(N, R, V)`` exp(m - peak): at most 1, and 0 where an image has fewer regions.
        scores: ``(N, R, V)`` m - peak, kept only if m varies so much over the regions that sums of the table's products
            could vanish; the marginal over regions is then made of logarithms.
    """

    peak: Tensor
    table: Tensor
    scores: Tensor | None

    @classmethod
    def of(cls, word_region: Tensor, mask: Tensor) -> WordRegion:
        """Make the table of m ``(N, R, V)`` and the regions that exist ``(N, R)``, at least one an image."""
        word_region, absent = _single(word_region), ~mask[..., None]
        with torch.no_grad():
            peak = word_region.masked_fill(absent, -torch.inf).amax(dim=1)
            least = word_region.masked_fill(absent, torch.inf).amin(dim=1)
            wide = bool(((peak - least) > _limit(peak.dtype)).any())
        scores = word_region - peak[:, None]
        table = scores.masked_fill(absent, -torch.inf).exp()
        return cls(peak, table, scores if wide else None)


def log_words(words: Tensor, regions: Tensor, word_region: WordRegion) -> Tensor:
    """Return ``ln p(w | h)``, ``(N, K, V)``: the marginal distribution of the next word.

    Args:
        words: a, ``(N, K, V)``.
        regions: c, ``(N, K, R)``; minus infinity where an image has fewer regions.
        word_region: m.
    """
    words, regions = _single(words), _single(regions)
    top = regions.detach().amax(dim=2, keepdim=True)
    least = regions.detach().masked_fill(regions == -torch.inf, torch.inf).amin(dim=2, keepdim=True)
    if word_region.scores is not None and bool((top - least > _limit(regions.dtype)).any()):
        summed = _log_over_regions(regions, word_region.scores)
    else:  # the region of the largest c, or that of the largest m, keeps each sum above what could vanish
        summed = _product((regions - top).exp(), word_region.table).log()
    return (words + word_region.peak[:, None] + summed).log_softmax(dim=2)


def log_regions(words: Tensor, regions: Tensor, word_region: WordRegion) -> Tensor:
    """Return ``ln p(r | h)``, ``(N, K, R)``: the weights of the regions in Eq. 6; arguments as :func:`log_words`."""
    regions, heights = _single(regions), _single(words) + word_region.peak[:, None]
    if word_region.scores is not None:
        summed = _log_over_words(heights, word_region.scores)
    else:
        top = heights.detach().amax(dim=2, keepdim=True)
        summed = _product((heights - top).exp(), word_region.table.transpose(1, 2)).clamp(min=_tiny(top.dtype)).log()
    return (regions + summed).log_softmax(dim=2)


def _log_over_regions(regions: Tensor, scores: Tensor) -> Tensor:
    """``ln sum_r exp(c + m - peak)``, ``(N, K, V)``, in blocks of words that the backward pass computes again."""

    def block(regions: Tensor, scores: Tensor) -> Tensor:
        return (regions[..., None] + scores[:, None]).logsumexp(dim=2)

    return torch.cat([_again(block, regions, part) for part in scores.split(BLOCK, dim=2)], dim=2)


def _log_over_words(heights: Tensor, scores: Tensor) -> Tensor:
    """``ln sum_w exp(a + m)``, ``(N, K, R)`` up to a constant, in blocks as :func:`_log_over_regions`."""

    def block(heights: Tensor, scores: Tensor) -> Tensor:
        return (heights[:, :, None] + scores[:, None]).logsumexp(dim=3)

    parts = zip(heights.split(BLOCK, dim=2), scores.split(BLOCK, dim=2), strict=True)
    return torch.stack([_again(block, *part) for part in parts]).logsumexp(dim=0)


def _again(block: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """The block's value; what it holds in between is not kept for the backward pass."""
    result = checkpoint(block, a, b, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result


def _single(scores: Tensor) -> Tensor:
    """At least single precision: half has too few digits for sums over a vocabulary."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product in the precision of its factors, also where automatic mixed precision would lower it."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _tiny(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).tiny


def _limit(dtype: torch.dtype) -> float:
    """Where sums of exponentials stay exact: exp(-limit) is 5e11 times the smallest normal number of the type."""
    return -math.log(_tiny(dtype)) - 27
