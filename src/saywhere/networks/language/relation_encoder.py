"""The encoder of relations: a vector for each relation between two words of a parsed sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.networks.language.text_encoder import EncodedText
from saywhere.text import PAD


class RelationEncoder(nn.Module):
    """Encode relations ``(R, w1, w2)`` as ``s = f(W_R [x1, x2] + b_R)`` in the space of the regions.

    W_R and b_R belong to the kind of the relation, x1 and x2 are the vectors of the head and of the word that depends
    on it; in the place of a root's head stands START. These are the sentence fragments of Karpathy, Joulin and Fei-Fei
    (2014), which the rows "DepTree edges" of Alignments use with Eq. 8.

    Args:
        vocabulary_size: V, reserved tokens included.
        word_size: of the word vectors x.
        out_size: D of the vectors s.
        kinds: of relations, with the one that rare kinds share.
        dropout: on x.
        rectified: f is the rectifier; without it s is linear in x, of any sign.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_size: int,
        out_size: int,
        kinds: int,
        dropout: float = 0.0,
        rectified: bool = True,
    ):
        super().__init__()
        self.rectified = rectified
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.maps = nn.ModuleList(nn.Linear(2 * word_size, out_size) for _ in range(kinds))
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.2)
            self.words.weight[PAD] = 0

    def forward(self, relations: Tensor) -> EncodedText:
        """Encode relations ``(S, T, 3)`` of sentences, padded on the right: the word, its head and the kind of each.

        More padding changes nothing; a sentence of no relations has no vectors.
        """
        mask = relations[..., 0] != PAD
        words, heads, kinds = relations[mask].unbind(1)  # (N,): padding costs no products
        pairs = self.dropout(self.words(torch.stack((heads, words), dim=1))).flatten(1)  # (N, 2E)
        order = kinds.argsort(stable=True)
        parts = pairs[order].split(kinds.bincount(minlength=len(self.maps)).tolist())
        rows = torch.cat([apply(part) for apply, part in zip(self.maps, parts, strict=True)])
        rows = functional.relu(rows) if self.rectified else rows
        vectors = rows.new_zeros(*mask.shape, rows.shape[1])
        vectors[mask] = rows[order.argsort()]
        return EncodedText(vectors, mask)
