"""The recognition network of DenseCap (section 3.1.3)."""

from __future__ import annotations

from dataclasses import dataclass

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
        hidden: of the first of the two layers; ``code_size`` if not given.
    """

    def __init__(self, channels: int, pool_size: int, code_size: int, dropout: float, hidden: int | None = None):
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
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.zeros_(self.score.bias)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor) -> Recognised:
        """Features ``(N, C, size, size)`` of N regions."""
        codes = self.layers(features)
        return Recognised(codes, self.score(codes).squeeze(1), self.offset(codes))
