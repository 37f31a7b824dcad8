"""What an aligner is taught of one picture."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SentenceTarget:
    """What is said of one picture.

    Attributes:
        words: ``(N, T)`` of N sentences, padded on the right.
        spans: ``(P, 3)`` of each phrase whose box is known its sentence, its first word, and the word after its last.
        boxes: ``(P, 4)`` of those phrases, in pixels of the network's input.
    """

    words: Tensor
    spans: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.long))
    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))

    def to(self, device: torch.device) -> SentenceTarget:
        """The same on ``device``."""
        return SentenceTarget(self.words.to(device), self.spans.to(device), self.boxes.to(device))
