"""Where the weights of :mod:`saywhere.engines.arrays.ngrams` stand in a captioner."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.configs.captioner import NgramsConfig


class Ngrams(nn.Module):
    """Predictor of the likely n-grams of an image's captions; its weights do not train with the captioner.

    Args:
        embed_dim: of the embedding of an image.
        config: how much there is to hold.

    Attributes:
        query: the embedding in few dimensions, in the unit of the keys.
        keys: ``(G, D)`` int8 of the n-grams.
        offsets, rarity: ``(G,)`` of the n-grams.
        lengths: ``(G,)`` uint8, words of each.
        token_ids: int16, of all n-grams, one after the other.
    """

    keys: Tensor
    offsets: Tensor
    rarity: Tensor
    lengths: Tensor
    token_ids: Tensor

    def __init__(self, embed_dim: int, config: NgramsConfig) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, config.size)
        self.register_buffer("keys", torch.zeros((config.count, config.size), dtype=torch.int8))
        self.register_buffer("offsets", torch.zeros(config.count))
        self.register_buffer("rarity", torch.zeros(config.count))
        self.register_buffer("lengths", torch.zeros(config.count, dtype=torch.uint8))
        self.register_buffer("token_ids", torch.zeros(config.words, dtype=torch.int16))
        self.requires_grad_(False)
