"""The published program's speaker, for a model that counts words as ours do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.language.decoding import State
from saywhere.original.language_model import LanguageModel
from saywhere.text import END, PAD, RESERVED, START, UNKNOWN


class OriginalSpeaker(nn.Module):
    """:class:`LanguageModel` with our numbers of words: ours from 4 on are its tokens from 1, its last is the unknown.

    It can say the unknown word, and our numbers PAD and START have probability 0.

    Args:
        code_size: D of the codes.
        vocabulary_size: V of ours, with the four reserved tokens: three more than the program's.
        word_size, hidden_size, dropout: see :class:`LanguageModel`.
    """

    never_said = (PAD, START)
    unknown = "<UNK>"

    def __init__(self, code_size: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        words = vocabulary_size - len(RESERVED) + 1
        self.model = LanguageModel(code_size, words, word_size, hidden_size, dropout)
        tokens = torch.arange(vocabulary_size) - len(RESERVED) + 1
        tokens[PAD], tokens[START], tokens[END], tokens[UNKNOWN] = 0, words + 1, words + 1, words
        self.register_buffer("tokens", tokens, persistent=False)

    @property
    def lstm(self) -> nn.LSTM:
        """Of the model."""
        return self.model.lstm

    @property
    def words(self) -> nn.Embedding:
        """Of the model: the program's tokens, from 1, and one more that stands for nothing."""
        return self.model.words

    @property
    def output(self) -> nn.Linear:
        """Of the model: a score for each word, the last for END."""
        return self.model.output

    def to_tokens(self, words: Tensor) -> Tensor:
        """Our numbers as the program's tokens, of the same shape."""
        return self.get_buffer("tokens")[words]

    def _scores(self, scores: Tensor) -> Tensor:
        """The program's scores ``(..., V' + 1)`` in our columns ``(..., V)``; PAD and START have none."""
        known, unknown, end = scores[..., :-2], scores[..., -2:-1], scores[..., -1:]
        never = torch.full_like(end, -torch.inf).expand(*end.shape[:-1], 2)
        return torch.cat((never, end, unknown, known), dim=-1)

    def forward(self, codes: Tensor, words: Tensor, real: Tensor | None = None) -> Tensor:
        """See :meth:`saywhere.language.lstm.LstmSpeaker.forward`."""
        scores = self._scores(self.model(codes, self.to_tokens(words))[:, 1:])
        return scores if real is None else scores[real]

    def start(self, codes: Tensor) -> State:
        """The state (h, c), each ``(N, hidden_size)``, after hearing ``codes (N, D)``."""
        return self.model.begin(codes)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N, V)`` of the word after ``words (N,)``, and the next state."""
        h, c = state
        scores, state = self.model.step(self.to_tokens(words), (h, c))
        return self._scores(scores.log_softmax(dim=1)), state
