"""The losses that rank a sentence and its own image above all other pairs (Alignments, Eq. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.aligner import AlignerConfig
from saywhere.options import dataclass


@dataclass(frozen=True, eq=False)
class SentenceTarget:
    """The sentences of one image.

    Attributes:
        token_ids: ``(N, T)``, one row per sentence, padded on the right.
    """

    token_ids: Tensor


class AlignmentOutput(NamedTuple):
    """The inputs of a batch's losses.

    Attributes:
        scores: ``(K, L)`` of K images and L sentences.
        owner: ``(L,)``, the image (row of ``scores``) that each sentence belongs to.
    """

    scores: Tensor
    owner: Tensor


class AlignmentCriterion(nn.Module):
    """Compute the losses ``images`` and ``sentences`` of a batch.

    Args:
        config: supplies ``loss`` and ``margin``.
    """

    def __init__(self, config: AlignerConfig):
        super().__init__()
        self.config = config

    def forward(self, outputs: Sequence[AlignmentOutput]) -> dict[str, Tensor]:
        """Return each loss averaged over ``outputs``.

        With M encoders each one's gradient is divided by M. Steps of AdamW and RMSprop do not depend on that scale, but
        clipping by the norm does.
        """
        losses = [self.losses(output) for output in outputs]
        return {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}

    def losses(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """Return the losses of one encoder, or of all encoders together."""
        return contrastive(output) if self.config.loss == "contrastive" else max_margin(output, self.config.margin)


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
