"""The baseline encoder-decoder of Areas of Attention (section 3.1, Eqs. 1 to 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.networks.language.decoders.protocol import State, TensorDecoder, after_start
from saywhere.text import PAD


class GruDecoder(nn.Module, TensorDecoder):
    """Decode an image's embedding, which initialises the state of the GRU.

    With ``theta_hi`` = ``begin``, ``W`` = ``words``, ``g`` = ``gru``, and ``theta_wh`` with the word bias ``theta_w``
    of Eq. 5 = ``output``::

        h_0 = theta_hi embedding
        p(w_t | h_t) ~ exp(w_t' W (theta_wh h_t + theta_w))     (1)
        h_{t+1} = g(h_t, W' w_t)                                (2)

    The word vectors ``W`` are both inputs and outputs. The first input is START.

    Args:
        embed_dim: size D of the embeddings.
        vocabulary_size: V, reserved tokens included.
        dropout: dropout probability on the embeddings and on the GRU's inputs and outputs.
    """

    def __init__(self, embed_dim: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        self.begin = nn.Linear(embed_dim, hidden_size)
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.gru = nn.GRU(word_size, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, word_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.1)
            self.words.weight[PAD] = 0

    def forward(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return logits, see :meth:`saywhere.networks.language.decoders.lstm.LstmDecoder.forward`."""
        inputs = self.dropout(self.words(after_start(token_ids)))
        hidden = self.gru(inputs, self.begin(self.dropout(embeddings))[None].contiguous())[0]
        return self.score(self.dropout(hidden if real is None else hidden[real]))

    def score(self, hidden: Tensor) -> Tensor:
        """Return the logits ``(..., V)`` of words in the states ``(..., hidden_size)`` (Eq. 1)."""
        return self.output(hidden) @ self.words.weight.T

    def start(self, embeddings: Tensor) -> State:
        return (self.begin(embeddings),)

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, _ = self.gru(self.words(token_ids)[:, None], state[0][None].contiguous())
        return self.score(hidden[:, 0]).log_softmax(dim=1), (hidden[:, 0],)
