"""The text encoder: a vector for each word in the context of its sentence (Alignments, section 3.1.2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from saywhere.configs.aligner import Cell
from saywhere.text import PAD


class EncodedText(NamedTuple):
    """Encoded sentences: ``vectors (S, T, D)``, zero where padded, and ``mask (S, T)`` of the tokens that are real."""

    vectors: Tensor
    mask: Tensor


class ReluContext(nn.Module):
    """One direction of Eqs. 4 and 5: ``h_t = f(e_t + W h_(t-1) + b)`` with f the rectifier, h before the start 0.

    Args:
        size: of ``e`` and ``h``.
    """

    def __init__(self, size: int):
        super().__init__()
        self.recurrent = nn.Linear(size, size)
        with torch.no_grad():  # a rectified recurrence neither dies nor explodes when it starts near the identity
            self.recurrent.weight.normal_(std=0.01)
            self.recurrent.weight.add_(0.5 * torch.eye(size))
            self.recurrent.bias.zero_()

    def forward(self, inputs: Tensor, mask: Tensor, backward: bool) -> Tensor:
        """Return the states ``(S, T, H)`` after ``inputs (S, T, H)``; padding keeps the state 0 and changes nothing."""
        state = inputs.new_zeros(inputs.shape[0], inputs.shape[2])
        states: list[Tensor] = []
        times = range(inputs.shape[1])
        for t in reversed(times) if backward else times:
            state = torch.relu(inputs[:, t] + self.recurrent(state)).where(mask[:, t, None], 0.0)
            states.append(state)
        if not states:
            return inputs
        return torch.stack(states[::-1] if backward else states, dim=1)


class TextEncoder(nn.Module):
    """Encode words as vectors in the space of the regions.

    With ``cell="relu"`` the bidirectional network of Eqs. 2 to 6; ``gru`` and ``lstm`` put such cells in the place of
    Eqs. 4 and 5; ``none`` leaves them out, so that each word is encoded alone.

    Args:
        vocabulary_size: V, reserved tokens included.
        word_size: of the word vectors x (Eq. 2).
        hidden_size: of e and h (Eqs. 3 to 5).
        out_size: D of the vectors s.
        cell: see above.
        dropout: on x, e, and h, not on the recurrence.
        rectified: f in Eq. 6 is the rectifier; without it s may have any sign.
        residual: with a GRU or LSTM the e of a word is added to its states, as it is in Eqs. 4 and 5.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        out_size: int,
        cell: Cell = "relu",
        dropout: float = 0.0,
        rectified: bool = True,
        residual: bool = False,
    ):
        super().__init__()
        self.cell, self.rectified, self.residual = cell, rectified, residual
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.encode = nn.Linear(word_size, hidden_size)
        if cell == "relu":
            self.forwards, self.backwards = ReluContext(hidden_size), ReluContext(hidden_size)
        elif cell != "none":
            kind = nn.GRU if cell == "gru" else nn.LSTM
            self.context = kind(hidden_size, hidden_size, batch_first=True, bidirectional=True)
        self.decode = nn.Linear(hidden_size, out_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.2)
            self.words.weight[PAD] = 0

    def forward(self, token_ids: Tensor) -> EncodedText:
        """Encode sentences of ``token_ids (S, T)``, padded on the right.

        More padding changes nothing; a sentence of no words has no vectors.
        """
        mask = token_ids != PAD
        inputs = torch.relu(self.encode(self.dropout(self.words(token_ids))))  # Eqs. 2 and 3
        states = self._context(self.dropout(inputs), mask)
        vectors = self.decode(self.dropout(states))  # Eq. 6
        vectors = torch.relu(vectors) if self.rectified else vectors
        return EncodedText(vectors.where(mask[..., None], 0.0), mask)

    def _context(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """The sum ``(S, T, H)`` of the states of both directions."""
        if self.cell == "none":
            return inputs
        if self.cell == "relu":
            return self.forwards(inputs, mask, backward=False) + self.backwards(inputs, mask, backward=True)
        if not mask.any():
            return torch.zeros_like(inputs)  # there is nothing to pack
        lengths = mask.sum(dim=1).clamp(min=1).cpu()  # an empty sentence counts as one padded word, masked afterwards
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.context(packed)[0], batch_first=True, total_length=inputs.shape[1])
        left, right = states.chunk(2, dim=-1)
        return left + right + inputs if self.residual else left + right
