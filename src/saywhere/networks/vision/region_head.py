"""The recognition network of DenseCap (section 3.1.3)."""

from __future__ import annotations

from torch import Tensor, nn

from saywhere.engines.engine import RegionHeadOutput


class RegionHead(nn.Module):
    """The recognition network (section 3.1.3): an embedding of each region, its second score and second offset.

    Args:
        channels, pool_size: of the features, ``(N, channels, pool_size, pool_size)``.
        embed_dim: D of the embeddings.
        dropout: after each of the two layers.
        fc_size: of the first of the two layers; ``embed_dim`` if not given.
    """

    def __init__(self, channels: int, pool_size: int, embed_dim: int, dropout: float, fc_size: int | None = None):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * pool_size**2, fc_size or embed_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(fc_size or embed_dim, embed_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.score = nn.Linear(embed_dim, 1)
        self.offset = nn.Linear(embed_dim, 4)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.zeros_(self.score.bias)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor) -> RegionHeadOutput:
        """Return embeddings, logits and offsets of N regions' features ``(N, C, size, size)``."""
        embeddings = self.layers(features)
        return RegionHeadOutput(embeddings, self.score(embeddings).squeeze(1), self.offset(embeddings))
