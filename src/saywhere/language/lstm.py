"""The LSTM speaker of DenseCap (section 3.1.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.language.decoding import NEVER_SAID, State
from saywhere.text import PAD, RESERVED, START, UNKNOWN


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of rows ``(N, D)`` that takes the running statistics for a batch of fewer than two."""

    def forward(self, input: Tensor) -> Tensor:
        """``(N, D)`` to ``(N, D)``."""
        if len(input) > 1 or not self.training:
            return super().forward(input)
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class LstmSpeaker(nn.Module):
    """Says words of a region code: the LSTM hears the code, then START, then each word it said.

    The encoded code is normalised over the batch before its ReLU. Codes of different regions have most of their length
    in common; without that part taken away the LSTM learns for epochs to say the same of all regions.

    Args:
        code_size: D of the codes.
        vocabulary_size: V, reserved tokens included.
        word_size: of the word vectors, and of the encoded code.
        hidden_size: of the LSTM.
        dropout: on the LSTM's inputs and outputs.

    Attributes:
        never_said, unknown: words that are not said, and how the unknown word is written.
    """

    never_said = NEVER_SAID
    unknown = RESERVED[UNKNOWN]

    def __init__(self, code_size: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(code_size, word_size), BatchNorm(word_size), nn.ReLU())
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
            input_bias[self.lstm.hidden_size : 2 * self.lstm.hidden_size] = 1  # the forget gate: remember at first

    def forward(self, codes: Tensor, words: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits ``(N, T + 1, V)`` of each word of ``words (N, T)`` and of the END after it, given those before.

        ``words`` has neither START nor END and is padded on the right; logits after the END mean nothing. With a mask
        ``real (N, T + 1)`` only its K places are computed, in their order: ``(K, V)``.
        """
        start = torch.full((len(words), 1), START, device=words.device)
        heard = self.words(torch.cat((start, words), dim=1))
        inputs = torch.cat((self.encode(codes)[:, None], heard), dim=1)
        hidden = self.lstm(self.dropout(inputs))[0][:, 1:]
        return self.output(self.dropout(hidden if real is None else hidden[real]))

    def start(self, codes: Tensor) -> State:
        """The state (h, c), each ``(N, hidden_size)``, after hearing ``codes (N, D)``."""
        _, (h, c) = self.lstm(self.encode(codes)[:, None])
        return h[0], c[0]

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N, V)`` of the word after ``words (N,)``, and the next state."""
        h, c = (part[None].contiguous() for part in state)
        hidden, (h, c) = self.lstm(self.words(words)[:, None], (h, c))
        return self.output(hidden[:, 0]).log_softmax(dim=1), (h[0], c[0])
