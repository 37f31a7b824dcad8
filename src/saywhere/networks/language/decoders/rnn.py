"""The multimodal RNN of Deep Visual-Semantic Alignments (section 3.2, Eqs. 13 to 15)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.networks.language.decoders.protocol import State, TensorDecoder, after_start
from saywhere.text import END, PAD, Vocabulary

SPREAD = 0.1
"""Weights are initialised uniformly between minus and plus this value, those of the output with a tenth of it."""


def log_frequencies(vocabulary: Vocabulary) -> Tensor:
    """Return the natural logarithm ``(V,)`` of each token's frequency, to initialise the output bias.

    END, which vocabularies do not count, is taken to be as frequent as the most frequent word. Tokens that are never
    decoded count as seen once.
    """
    counts = torch.tensor([1.0, 1.0, 1.0, 1.0, *vocabulary.counts.values()])
    counts[END] = counts.max()
    return (counts / counts.sum()).log()


class RnnDecoder(nn.Module, TensorDecoder):
    """Decode an image's or region's embedding, which enters the first step only.

    With ``W_hi`` = ``image``, ``W_hx`` = ``heard``, ``W_hh`` and ``b_h`` = ``again``, ``W_oh`` and ``b_o`` =
    ``output``, ``f`` = ReLU, ``x_1`` the vector of START and ``h_0`` = 0::

        b_v = W_hi embedding                                       (13)
        h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1(t = 1) b_v)      (14)
        y_t = softmax(W_oh h_t + b_o)                              (15)

    Args:
        embed_dim: size D of the embeddings.
        vocabulary_size: V, reserved tokens included.
        dropout: dropout probability on embedding, word vectors and the state before the output; not on the recurrence.
        bias: ``(V,)`` initial bias of the output, such as :func:`log_frequencies`; None for 0.
    """

    def __init__(
        self,
        embed_dim: int,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        bias: Tensor | None = None,
    ):
        super().__init__()
        self.image = nn.Linear(embed_dim, hidden_size, bias=False)
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.heard = nn.Linear(word_size, hidden_size, bias=False)
        self.again = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self._initialise(bias)

    def _initialise(self, bias: Tensor | None) -> None:
        with torch.no_grad():
            for weight in (self.image.weight, self.words.weight, self.heard.weight, self.again.weight):
                weight.uniform_(-SPREAD, SPREAD)
            self.words.weight[PAD] = 0
            self.output.weight.uniform_(-SPREAD / 10, SPREAD / 10)
            self.again.bias.zero_()
            self.output.bias.zero_() if bias is None else self.output.bias.copy_(bias)

    def forward(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return logits, see :meth:`saywhere.networks.language.decoders.lstm.LstmDecoder.forward`."""
        inputs = self.heard(self.dropout(self.words(after_start(token_ids))))
        image = self.image(self.dropout(embeddings))
        states = [torch.relu(inputs[:, 0] + self.again.bias + image)]
        for x in inputs.unbind(dim=1)[1:]:
            states.append(torch.relu(x + self.again(states[-1])))
        hidden = torch.stack(states, dim=1)
        return self.output(self.dropout(hidden if real is None else hidden[real]))

    def start(self, embeddings: Tensor) -> State:
        """Return the state before the first word, ``h_0`` = 0 and ``b_v``, each ``(N, hidden_size)``."""
        image = self.image(embeddings)
        return torch.zeros_like(image), image

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        h, image = state
        h = torch.relu(self.heard(self.words(token_ids)) + self.again(h) + image)
        return self.output(h).log_softmax(dim=1), (h, torch.zeros_like(image))
