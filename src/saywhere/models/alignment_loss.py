"""What makes a sentence and its picture score higher than any other pair (Eq. 9 of Deep Visual-Semantic Alignments)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class AlignmentOutput(NamedTuple):
    """What the losses of a batch need.

    Attributes:
        scores: ``(K, L)`` of its pictures with its sentences.
        owner: ``(L,)`` of each sentence its picture's row.
        products: ``(P, R)`` of each phrase whose box is known with each area of its picture, minus infinity where there
            is none.
        overlaps: ``(P, R)`` IoU of the phrase's box with the areas.
    """

    scores: Tensor
    owner: Tensor
    products: Tensor | None = None
    overlaps: Tensor | None = None


def _positives(output: AlignmentOutput) -> tuple[Tensor, Tensor]:
    """The score ``(L,)`` of each sentence with its own picture, and the mask ``(K, L)`` of such pairs."""
    columns = torch.arange(len(output.owner), device=output.owner.device)
    rows = torch.arange(len(output.scores), device=output.owner.device)
    return output.scores[output.owner, columns], rows[:, None] == output.owner


def max_margin(output: AlignmentOutput, margin: float = 1.0, hardest: bool = False) -> dict[str, Tensor]:
    """Eq. 9: the true pair is to lead any pair with another picture, and any with another sentence, by ``margin``.

    The paper sums over all negatives; the true pair itself, whose term is the constant ``margin``, is left out. With
    several sentences a picture, another sentence of the same picture is no negative.

    Args:
        output: see :class:`AlignmentOutput`.
        margin: Eq. 9 has 1.
        hardest: only the negative that comes closest counts, instead of the sum over all.

    Returns:
        ``pictures`` (other pictures for a sentence) and ``sentences`` (other sentences for a picture), both divided by
        the number of sentences.
    """
    own, true = _positives(output)
    pictures = torch.relu(output.scores - own + margin).masked_fill(true, 0.0)  # (K, L)
    rivals, same = output.scores[output.owner], true[output.owner]  # (L, L): row l is the picture of sentence l
    sentences = torch.relu(rivals - own[:, None] + margin).masked_fill(same, 0.0)
    if hardest:
        return {"pictures": pictures.amax(dim=0).mean(), "sentences": sentences.amax(dim=1).mean()}
    return {"pictures": pictures.sum(dim=0).mean(), "sentences": sentences.sum(dim=1).mean()}


def placed(output: AlignmentOutput, right: float = 0.5) -> Tensor:
    """Minus the log of the chance that a phrase falls on an area that fits its box; the mean over the phrases.

    The chance of an area is the softmax of its product with the phrase. Phrases whose box no area fits are left out.

    Args:
        output: see :class:`AlignmentOutput`; it has phrases.
        right: IoU from which on an area fits.
    """
    assert output.products is not None and output.overlaps is not None
    fits = (output.overlaps >= right) & torch.isfinite(output.products)
    asked = fits.any(dim=1)
    if not bool(asked.any()):
        return output.scores.sum() * 0
    chances = output.products[asked].log_softmax(dim=1)
    return -chances.masked_fill(~fits[asked], -torch.inf).logsumexp(dim=1).mean()


def contrastive(output: AlignmentOutput, smoothing: float = 0.0) -> dict[str, Tensor]:
    """Cross-entropy of the true picture among the batch's pictures, and of the true sentence among its sentences.

    Of several sentences of one picture each is compared with the sentences of other pictures alone.

    Args:
        output: scores already divided by the temperature.
        smoothing: this share of the target is spread over all candidates.

    Returns:
        ``pictures`` and ``sentences``, means over the sentences.
    """
    own, true = _positives(output)
    pictures = functional.cross_entropy(output.scores.T, output.owner, label_smoothing=smoothing)
    rivals = output.scores[output.owner].masked_fill(true[output.owner], -torch.inf)
    alone = torch.cat((own[:, None], rivals), dim=1)  # the true sentence first
    loss = alone.logsumexp(dim=1) - own
    if smoothing:
        others = torch.isfinite(alone)
        spread = alone.logsumexp(dim=1) - alone.where(others, 0.0).sum(dim=1) / others.sum(dim=1)
        loss = (1 - smoothing) * loss + smoothing * spread
    return {"pictures": pictures, "sentences": loss.mean()}
