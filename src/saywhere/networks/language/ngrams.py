"""Probabilities of the n-grams in a region's phrases or an image's captions, for reranking hypotheses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.configs.parts import NgramsConfig


class Ngrams(nn.Module):
    """Predictor of likely n-grams; not trained together with the decoder. See :mod:`saywhere.engines.arrays.layers`.

    Args:
        features: number of features of a region or image.

    Attributes:
        hidden: layer before ``query``, followed by a ReLU; None without.
        query: projects its output, or the features, to the space and scale of the keys.
        keys: ``(G, D)`` int8, one row per n-gram.
        offsets, rarity: ``(G,)`` of the n-grams.
        lengths: ``(G,)`` uint8, number of words.
        token_ids: int16, the words of all n-grams in a row.
    """

    keys: Tensor
    offsets: Tensor
    rarity: Tensor
    lengths: Tensor
    token_ids: Tensor

    def __init__(self, features: int, config: NgramsConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, config.hidden) if config.hidden else None
        self.query = nn.Linear(config.hidden or features, config.size)
        self.register_buffer("keys", torch.zeros((config.count, config.size), dtype=torch.int8))
        self.register_buffer("offsets", torch.zeros(config.count))
        self.register_buffer("rarity", torch.zeros(config.count))
        self.register_buffer("lengths", torch.zeros(config.count, dtype=torch.uint8))
        self.register_buffer("token_ids", torch.zeros(config.words, dtype=torch.int16))
        self.requires_grad_(False)
