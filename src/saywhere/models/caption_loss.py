"""What captioners learn from, and the loss of what they say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class CaptionTarget:
    """What is said of one picture.

    Attributes:
        words: ``(K, T)`` the numbers of K sentences, without START and END, padded.
        width, height: of the network's input.
        boxes: ``(K, 4)`` in its pixels, which each of them is about; None if about the whole picture.
    """

    words: Tensor
    width: int
    height: int
    boxes: Tensor | None = None

    def to(self, device: torch.device) -> CaptionTarget:
        """The same on ``device``."""
        boxes = None if self.boxes is None else self.boxes.to(device)
        return CaptionTarget(self.words.to(device), self.width, self.height, boxes)

    def some(self, count: int) -> CaptionTarget:
        """The first ``count`` of the sentences; if there are fewer, some of them again."""
        rows = torch.arange(count, device=self.words.device) % len(self.words)
        return CaptionTarget(self.words[rows], self.width, self.height)


@dataclass(frozen=True, eq=False)
class CaptionOutput:
    """What is said of all pictures of a batch, one word after the other.

    Attributes:
        log_probs: ``(K, V)`` natural logarithms of probabilities.
        words: ``(K,)`` what people said, ENDs included; words that the vocabulary does not have are left out.
    """

    log_probs: Tensor
    words: Tensor


class CaptionCriterion(nn.Module):
    """The cross entropy of a word, one loss named ``caption``.

    Args:
        smoothing: share of the probability that is given to all words alike; in training only.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, output: CaptionOutput) -> dict[str, Tensor]:
        """The mean over the words; 0 if there are none."""
        log_probs = output.log_probs.float()
        if len(output.words) == 0:
            return {"caption": log_probs.sum()}
        loss = functional.nll_loss(log_probs, output.words)
        if self.training and self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * log_probs.mean()
        return {"caption": loss}
