"""The recognition network of DenseCap (section 3.1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Recognised:
    """Of N regions: ``codes (N, D)``, second score ``logits (N,)``, second ``offsets (N, 4)``."""

    codes: Tensor
    logits: Tensor
    offsets: Tensor


class Recognition(nn.Module):
    """The recognition network (section 3.1.3): a code of each region, its second score and second offset.

    Args:
        channels, pool_size: of the features, ``(N, channels, pool_size, pool_size)``.
        code_size: D of the codes.
        dropout: after each of the two layers.
        context: add to the code of a region what is linear in the code of its whole picture; nothing at first.
    """

    def __init__(
        self,
        channels: int,
        pool_size: int,
        code_size: int,
        dropout: float,
        context: bool = False,
        hidden: int | None = None,
    ):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * pool_size**2, hidden or code_size),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden or code_size, code_size),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.score = nn.Linear(code_size, 1)
        self.offset = nn.Linear(code_size, 4)
        self.context = nn.Linear(code_size, code_size) if context else None
        if self.context is not None:
            nn.init.zeros_(self.context.weight)
            nn.init.zeros_(self.context.bias)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.zeros_(self.score.bias)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(
        self, features: Tensor, wholes: Tensor | None = None, counts: Sequence[int] | None = None
    ) -> Recognised:
        """What comes of N regions.

        Args:
            features: ``(N, C, size, size)`` of the regions of all pictures, in order.
            wholes: ``(P, C, size, size)`` of the whole pictures; not without ``context``.
            counts: of each of the P pictures its regions.
        """
        codes = self.layers(features)
        out = Recognised(codes, self.score(codes).squeeze(1), self.offset(codes))
        if self.context is None or wholes is None or counts is None:
            return out
        contexts = self.context(self.layers(wholes))
        return replace(out, codes=codes + contexts.repeat_interleave(torch.tensor(counts, device=codes.device), dim=0))
