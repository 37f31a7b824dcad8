"""What captioners are trained on, and their supervised loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class CaptionTarget:
    """The captions of one image.

    Attributes:
        token_ids: ``(K, T)`` of K sentences, without START and END, padded.
        width, height: of the network's input.
        boxes: ``(K, 4)`` in its pixels, which each of them is about; None if about the whole image.
    """

    token_ids: Tensor
    width: int
    height: int
    boxes: Tensor | None = None

    def to(self, device: torch.device) -> CaptionTarget:
        """Return the same on ``device``."""
        boxes = None if self.boxes is None else self.boxes.to(device)
        return CaptionTarget(self.token_ids.to(device), self.width, self.height, boxes)

    def first(self, count: int) -> CaptionTarget:
        """Return the first ``count`` of the sentences; if there are fewer, some of them again."""
        rows = torch.arange(count, device=self.token_ids.device) % len(self.token_ids)
        return CaptionTarget(self.token_ids[rows], self.width, self.height)


@dataclass(frozen=True, eq=False)
class CaptionOutput:
    """The words of all images of a batch, one after the other.

    Attributes:
        log_probs: ``(K, V)`` natural logarithms of probabilities.
        token_ids: ``(K,)`` of people's words, ENDs included; words that the vocabulary does not have are left out.
    """

    log_probs: Tensor
    token_ids: Tensor


class CaptionCriterion(nn.Module):
    """Compute the cross entropy of a word, one loss named ``caption``.

    Args:
        smoothing: share of the probability that is given to all words alike; in training only.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, output: CaptionOutput) -> dict[str, Tensor]:
        """Return the mean over the words; 0 if there are none."""
        log_probs = output.log_probs.float()
        if len(output.token_ids) == 0:
            return {"caption": log_probs.sum()}
        loss = functional.nll_loss(log_probs, output.token_ids)
        if self.training and self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * log_probs.mean()
        return {"caption": loss}
