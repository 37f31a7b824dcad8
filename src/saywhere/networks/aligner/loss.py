"""The losses that rank a sentence and its own image above all other pairs (Alignments, Eq. 9)."""

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
    """The sentences of one image.

    Attributes:
        token_ids: ``(N, T)``, one row per sentence, padded on the right.
        spans: ``(P, 3)`` of the phrases with known boxes: sentence, first word, and the word after the last.
        boxes: ``(P, 4)`` of these phrases, in pixels of the network's input.
    """

    token_ids: Tensor
    spans: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.long))
    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))

    def to(self, device: torch.device) -> SentenceTarget:
        """Return the same target on ``device``."""
        return SentenceTarget(self.token_ids.to(device), self.spans.to(device), self.boxes.to(device))


def phrase_products(
    regions: Tensor, region_mask: Tensor, boxes: Sequence[Tensor], words: Tensor, targets: Sequence[SentenceTarget]
) -> tuple[Tensor, Tensor]:
    """Return the products of all phrases with the regions of their image, and the IoU of phrase boxes and regions.

    The product of a phrase is the sum of its words' products.

    Args:
        regions: ``(K, R, D)``. region_mask: ``(K, R)``, True for real regions.
        boxes: one ``(R_k, 4)`` per image, its regions.
        words: ``(L, T, D)``, the words of all targets' sentences in order.
        targets: one per image.

    Returns:
        ``products (P, R)``, minus infinity for padded regions, and ``overlaps (P, R)``.
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
"""A region fits a phrase if its IoU with the phrase's box is at least this."""


class AlignmentOutput(NamedTuple):
    """The inputs of a batch's losses.

    Attributes:
        scores: ``(K, L)`` of K images and L sentences.
        owner: ``(L,)``, the image (row of ``scores``) that each sentence belongs to.
        products: ``(P, R)`` of each phrase with a known box and each region of its image; minus infinity for padded
            regions.
        overlaps: ``(P, R)`` IoU of the phrase's box with the regions.
    """

    scores: Tensor
    owner: Tensor
    products: Tensor | None = None
    overlaps: Tensor | None = None


class AlignmentCriterion(nn.Module):
    """Compute the losses ``images`` and ``sentences`` of a batch, and ``phrases`` if ``phrase_weight`` is not 0.

    Args:
        config: supplies ``loss``, ``margin`` and ``phrase_weight``.
    """

    def __init__(self, config: AlignerConfig):
        super().__init__()
        self.config = config

    def forward(self, outputs: Sequence[AlignmentOutput]) -> dict[str, Tensor]:
        """Return each loss averaged over ``outputs``.

        With M encoders each one's gradient is divided by M. AdamW and RMSprop are invariant to that scale.
        """
        losses = [self.losses(output) for output in outputs]
        return {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}

    def losses(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """Return the losses of one encoder, or of all encoders together."""
        losses = contrastive(output) if self.config.loss == "contrastive" else max_margin(output, self.config.margin)
        if self.config.phrase_weight:
            losses["phrases"] = self.config.phrase_weight * phrase_loss(output)
        return losses


def _positives(output: AlignmentOutput) -> tuple[Tensor, Tensor]:
    """Return the score ``(L,)`` of each sentence with its own image, and the mask ``(K, L)`` of such pairs."""
    columns = torch.arange(len(output.owner), device=output.owner.device)
    rows = torch.arange(len(output.scores), device=output.owner.device)
    return output.scores[output.owner, columns], rows[:, None] == output.owner


def max_margin(output: AlignmentOutput, margin: float = 1.0) -> dict[str, Tensor]:
    """Return the losses of Eq. 9: a true pair must outscore every other pair of its sentence or image by ``margin``.

    Eq. 9 sums over all pairs. The true pair is left out here, since its term is the constant ``margin``. Other
    sentences of the same image are not negatives.

    Args:
        margin: 1 in Eq. 9.

    Returns:
        ``images`` (other images for a sentence) and ``sentences`` (other sentences for an image), both divided by the
        number of sentences.
    """
    own, true = _positives(output)
    images = torch.relu(output.scores - own + margin).masked_fill(true, 0.0)  # (K, L)
    rivals, same = output.scores[output.owner], true[output.owner]  # (L, L): row l is the image of sentence l
    sentences = torch.relu(rivals - own[:, None] + margin).masked_fill(same, 0.0)
    return {"images": images.sum(dim=0).mean(), "sentences": sentences.sum(dim=1).mean()}


def phrase_loss(output: AlignmentOutput) -> Tensor:
    """Return the mean negative log-probability that a phrase falls on a region that fits its box.

    Region probabilities are the softmax of the products with the phrase. Phrases whose box no region fits are ignored.
    """
    assert output.products is not None and output.overlaps is not None
    fits = (output.overlaps >= FITS) & torch.isfinite(output.products)
    counted = fits.any(dim=1)
    if not bool(counted.any()):
        return output.scores.sum() * 0
    log_probs = output.products[counted].log_softmax(dim=1)
    return -log_probs.masked_fill(~fits[counted], -torch.inf).logsumexp(dim=1).mean()


def contrastive(output: AlignmentOutput) -> dict[str, Tensor]:
    """Return the cross entropy of the true image among all images, and of the true sentence among its negatives.

    Each sentence is compared only with sentences of other images.

    Args:
        output: with scores already divided by the temperature.

    Returns:
        ``images`` and ``sentences``, each a mean over the sentences.
    """
    own, true = _positives(output)
    images = functional.cross_entropy(output.scores.T, output.owner)
    rivals = output.scores[output.owner].masked_fill(true[output.owner], -torch.inf)
    alone = torch.cat((own[:, None], rivals), dim=1)  # the true sentence first
    loss = alone.logsumexp(dim=1) - own
    return {"images": images, "sentences": loss.mean()}
