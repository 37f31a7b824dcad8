"""The losses that make a sentence and its image score higher than any other pair (Eq. 9 of Alignments)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.configs.aligner import AlignerConfig


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


FITS = 0.5
"""A region fits a phrase from this IoU with its box on."""


class AlignmentOutput(NamedTuple):
    """What the losses of a batch need.

    Attributes:
        scores: ``(K, L)`` of its images with its sentences.
        owner: ``(L,)`` of each sentence its image's row.
        products: ``(P, R)`` of each phrase whose box is known with each region of its image, minus infinity where there
            is none.
        overlaps: ``(P, R)`` IoU of the phrase's box with the regions.
    """

    scores: Tensor
    owner: Tensor
    products: Tensor | None = None
    overlaps: Tensor | None = None


class AlignmentCriterion(nn.Module):
    """Compute the losses ``images`` and ``sentences`` of a batch's scores, and ``phrases`` if their boxes are known.

    Args:
        config: its ``loss``, ``margin`` and ``phrase_weight`` count.
    """

    def __init__(self, config: AlignerConfig):
        super().__init__()
        self.config = config

    def forward(self, outputs: Sequence[AlignmentOutput]) -> dict[str, Tensor]:
        """Return the mean over the ``outputs`` of their losses.

        With M encoders the gradient of each is an M-th of what it is alone, which AdamW and RMSprop do not feel.
        """
        losses = [self.losses(output) for output in outputs]
        return {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}

    def losses(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """Return the losses of one encoder, or of all together."""
        losses = contrastive(output) if self.config.loss == "contrastive" else max_margin(output, self.config.margin)
        if self.config.phrase_weight:
            losses["phrases"] = self.config.phrase_weight * phrase_loss(output)
        return losses


def _positives(output: AlignmentOutput) -> tuple[Tensor, Tensor]:
    """The score ``(L,)`` of each sentence with its own image, and the mask ``(K, L)`` of such pairs."""
    columns = torch.arange(len(output.owner), device=output.owner.device)
    rows = torch.arange(len(output.scores), device=output.owner.device)
    return output.scores[output.owner, columns], rows[:, None] == output.owner


def max_margin(output: AlignmentOutput, margin: float = 1.0) -> dict[str, Tensor]:
    """Return the losses of Eq. 9: the true pair is to exceed any other of its sentence or image by ``margin``.

    The paper sums over all negatives; the true pair itself, whose term is the constant ``margin``, is left out. With
    several sentences an image, another sentence of the same image is no negative.

    Args:
        margin: Eq. 9 has 1.

    Returns:
        ``images`` (other images for a sentence) and ``sentences`` (other sentences for an image), both divided by
        the number of sentences.
    """
    own, true = _positives(output)
    images = torch.relu(output.scores - own + margin).masked_fill(true, 0.0)  # (K, L)
    rivals, same = output.scores[output.owner], true[output.owner]  # (L, L): row l is the image of sentence l
    sentences = torch.relu(rivals - own[:, None] + margin).masked_fill(same, 0.0)
    return {"images": images.sum(dim=0).mean(), "sentences": sentences.sum(dim=1).mean()}


def phrase_loss(output: AlignmentOutput) -> Tensor:
    """Return minus the log-probability that a phrase falls on a region that fits its box; the mean over the phrases.

    The probability of a region is the softmax of its product with the phrase. Phrases whose box no region fits are left
    out.
    """
    assert output.products is not None and output.overlaps is not None
    fits = (output.overlaps >= FITS) & torch.isfinite(output.products)
    counted = fits.any(dim=1)
    if not bool(counted.any()):
        return output.scores.sum() * 0
    log_probs = output.products[counted].log_softmax(dim=1)
    return -log_probs.masked_fill(~fits[counted], -torch.inf).logsumexp(dim=1).mean()


def contrastive(output: AlignmentOutput) -> dict[str, Tensor]:
    """Return the cross-entropies of the true image among the batch's images, and of the true sentence among its others.

    Of several sentences of one image each is compared with the sentences of other images alone.

    Args:
        output: scores already divided by the temperature.

    Returns:
        ``images`` and ``sentences``, means over the sentences.
    """
    own, true = _positives(output)
    images = functional.cross_entropy(output.scores.T, output.owner)
    rivals = output.scores[output.owner].masked_fill(true[output.owner], -torch.inf)
    alone = torch.cat((own[:, None], rivals), dim=1)  # the true sentence first
    loss = alone.logsumexp(dim=1) - own
    return {"images": images, "sentences": loss.mean()}
