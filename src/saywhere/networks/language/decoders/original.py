"""The published program's decoder, with this package's token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhere.networks.language.decoders.protocol import State
from saywhere.original.language_model import LanguageModel
from saywhere.text import END, PAD, RESERVED, START, UNKNOWN


class OriginalDecoder(nn.Module):
    """Wrap :class:`LanguageModel`: token ids from 4 on are its tokens from 1, its last word is the unknown one.

    It can choose the unknown word, and PAD and START have probability 0.

    Args:
        embed_dim: D of the embeddings.
        vocabulary_size: V of this package, with the four reserved tokens: three more than the program's.
        word_size, hidden_size, dropout: see :class:`LanguageModel`.

    Attributes:
        never, unknown: token ids that decoding never chooses, and how the unknown word is written.
        independent: rows of a state may be dropped.
    """

    never = (PAD, START)
    unknown = "<UNK>"
    independent = True

    def __init__(self, embed_dim: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        words = vocabulary_size - len(RESERVED) + 1
        self.model = LanguageModel(embed_dim, words, word_size, hidden_size, dropout)
        tokens = torch.arange(vocabulary_size) - len(RESERVED) + 1
        tokens[PAD], tokens[START], tokens[END], tokens[UNKNOWN] = 0, words + 1, words + 1, words
        self.register_buffer("tokens", tokens, persistent=False)

    @property
    def lstm(self) -> nn.LSTM:
        """The model's LSTM."""
        return self.model.lstm

    @property
    def words(self) -> nn.Embedding:
        """The model's word vectors: of the program's tokens, from 1, and one row more that stands for nothing."""
        return self.model.words

    @property
    def output(self) -> nn.Linear:
        """The model's output: a score for each word, the last for END."""
        return self.model.output

    def to_tokens(self, token_ids: Tensor) -> Tensor:
        """Convert token ids to the program's tokens, of the same shape."""
        return self.get_buffer("tokens")[token_ids]

    def _scores(self, scores: Tensor) -> Tensor:
        """The program's scores ``(..., V' + 1)`` in columns of token ids ``(..., V)``; PAD and START have none."""
        known, unknown, end = scores[..., :-2], scores[..., -2:-1], scores[..., -1:]
        never = torch.full_like(end, -torch.inf).expand(*end.shape[:-1], 2)
        return torch.cat((never, end, unknown, known), dim=-1)

    def forward(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """See :meth:`saywhere.networks.language.decoders.lstm.LstmDecoder.forward`."""
        scores = self._scores(self.model(embeddings, self.to_tokens(token_ids))[:, 1:])
        return scores if real is None else scores[real]

    def start(self, embeddings: Tensor) -> State:
        """Return the state (h, c), each ``(N, hidden_size)``, after ``embeddings (N, D)``."""
        return self.model.begin(embeddings)

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        h, c = state
        scores, state = self.model.step(self.to_tokens(token_ids), (h, c))
        return self._scores(scores.log_softmax(dim=1)), state
