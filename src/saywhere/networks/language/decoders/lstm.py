"""The LSTM decoder of DenseCap (section 3.1.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.networks.language.decoders.protocol import State, TensorDecoder, after_start
from saywhere.networks.normalisation import BatchNorm
from saywhere.text import PAD


class LstmDecoder(nn.Module, TensorDecoder):
    """Decode a region's embedding: the LSTM's inputs are the encoded embedding, START, and then each word.

    The encoded embedding is batch-normalised before its ReLU. Embeddings of different regions share a large common
    component; unless it is removed, the LSTM gives all regions similar captions for many epochs.

    Args:
        embed_dim: size D of the embeddings.
        vocabulary_size: V, reserved tokens included.
        word_size: size of the word vectors and of the encoded embedding.
        dropout: dropout probability on the LSTM's inputs and outputs.
    """

    def __init__(self, embed_dim: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(embed_dim, word_size), BatchNorm(word_size), nn.ReLU())
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.lstm = nn.LSTM(word_size, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self._initialise()

    def _initialise(self) -> None:
        with torch.no_grad():
            self.words.weight.normal_(std=0.5)
            self.words.weight[PAD] = 0
            input_bias, hidden_bias = self.lstm.get_parameter("bias_ih_l0"), self.lstm.get_parameter("bias_hh_l0")
            input_bias.zero_()
            hidden_bias.zero_()
            input_bias[self.lstm.hidden_size : 2 * self.lstm.hidden_size] = 1  # forget gate: remember at first

    def forward(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the logits ``(N, T + 1, V)`` of each of ``token_ids (N, T)`` and of the END, given the tokens before.

        ``token_ids`` have neither START nor END and are padded on the right; logits after the END are undefined. With a
        mask ``real (N, T + 1)`` only its K positions are computed, in order: ``(K, V)``.
        """
        inputs = self.words(after_start(token_ids))
        inputs = torch.cat((self.encode(embeddings)[:, None], inputs), dim=1)
        hidden = self.lstm(self.dropout(inputs))[0][:, 1:]
        return self.output(self.dropout(hidden if real is None else hidden[real]))

    def start(self, embeddings: Tensor) -> State:
        """Return the state (h, c), each ``(N, hidden_size)``, after ``embeddings (N, D)``."""
        _, (h, c) = self.lstm(self.encode(embeddings)[:, None])
        return h[0], c[0]

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = (part[None].contiguous() for part in state)
        hidden, (h, c) = self.lstm(self.words(token_ids)[:, None], (h, c))
        return self.output(hidden[:, 0]).log_softmax(dim=1), (h[0], c[0])
