"""The multimodal RNN of Deep Visual-Semantic Alignments (section 3.2, Eqs. 13 to 15)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.language.decoding import State
from saywhere.text import END, PAD, START, Vocabulary

SPREAD = 0.1
"""Weights are drawn evenly from minus to plus this, those of the output from a tenth of it."""


def log_frequencies(vocabulary: Vocabulary) -> Tensor:
    """Natural logarithm of how often each token is to be said, ``(V,)``: where the output's bias begins.

    A vocabulary does not count sentences: END is taken to be as frequent as the most frequent word, and the tokens that
    are never said as one word that was seen once.
    """
    counts = torch.tensor([1.0, 1.0, 1.0, 1.0, *vocabulary.counts.values()])
    counts[END] = counts.max()
    return (counts / counts.sum()).log()


class RnnSpeaker(nn.Module):
    """Says words of a picture's or region's code, which it sees in the first step only.

    With ``W_hi`` = ``image``, ``W_hx`` = ``heard``, ``W_hh`` and ``b_h`` = ``again``, ``W_oh`` and ``b_o`` =
    ``output``, ``f`` = ReLU, ``x_1`` the vector of START and ``h_0`` = 0::

        b_v = W_hi code                                            (13)
        h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1(t = 1) b_v)      (14)
        y_t = softmax(W_oh h_t + b_o)                              (15)

    Args:
        code_size: D of the codes.
        vocabulary_size: V, reserved tokens included.
        word_size: of the word vectors.
        hidden_size: of the state.
        dropout: on the code, the word vectors and the state that is read out; never from step to step.
        bias: ``(V,)`` where the output's bias begins, such as :func:`log_frequencies`; 0 if None.
    """

    def __init__(
        self,
        code_size: int,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        bias: Tensor | None = None,
    ):
        super().__init__()
        self.image = nn.Linear(code_size, hidden_size, bias=False)
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

    def forward(self, codes: Tensor, words: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits ``(N, T + 1, V)`` of each word of ``words (N, T)`` and of the END after it, given those before.

        ``words`` has neither START nor END and is padded on the right; logits after the END mean nothing. With a mask
        ``real (N, T + 1)`` only its K places are computed, in their order: ``(K, V)``.
        """
        start = torch.full((len(words), 1), START, device=words.device)
        inputs = self.heard(self.dropout(self.words(torch.cat((start, words), dim=1))))
        seen = self.image(self.dropout(codes))
        states = [torch.relu(inputs[:, 0] + self.again.bias + seen)]
        for x in inputs.unbind(dim=1)[1:]:
            states.append(torch.relu(x + self.again(states[-1])))
        hidden = torch.stack(states, dim=1)
        return self.output(self.dropout(hidden if real is None else hidden[real]))

    def start(self, codes: Tensor) -> State:
        """The state before the first word, each ``(N, hidden_size)``: ``h_0`` = 0, and ``b_v`` still to be seen."""
        seen = self.image(codes)
        return torch.zeros_like(seen), seen

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N, V)`` of the word after ``words (N,)``, and the next state."""
        h, seen = state
        h = torch.relu(self.heard(self.words(words)) + self.again(h) + seen)
        return self.output(h).log_softmax(dim=1), (h, torch.zeros_like(seen))
