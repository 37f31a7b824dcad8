"""Where the weights of :mod:`saywhere.engines.arrays.neighbours` stand in a captioner."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.configs.captioner import NeighboursConfig


class Neighbours(nn.Module):
    """Hold sentences of training images, and the space in which they are found; none of it trains with the captioner.

    Args:
        embed_dim: of the embedding of an image.
        config: how much there is to hold.

    Attributes:
        query: the embedding to the space.
        keys: ``(J, D)`` int8 vectors of the sentences.
        commonness: ``(J,)`` of the sentences, in the unit of products with the keys.
        lengths: ``(J,)`` uint8, words of each sentence.
        token_ids: int16, of all sentences, one after the other.
    """

    keys: Tensor
    commonness: Tensor
    lengths: Tensor
    token_ids: Tensor

    def __init__(self, embed_dim: int, config: NeighboursConfig) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, config.size)
        self.register_buffer("keys", torch.zeros((config.sentences, config.size), dtype=torch.int8))
        self.register_buffer("commonness", torch.zeros(config.sentences))
        self.register_buffer("lengths", torch.zeros(config.sentences, dtype=torch.uint8))
        self.register_buffer("token_ids", torch.zeros(config.words, dtype=torch.int16))
        self.requires_grad_(False)
