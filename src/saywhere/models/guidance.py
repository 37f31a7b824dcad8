"""Words that similar images were described with are likelier: guided decoding of captions.

A decoder that learnt from few images knows which sentence is usual; what people said of the training images that are
most like this one (Devlin et al., *Exploring nearest neighbor approaches for image captioning*, 2015) knows the scene
and its words. Both are asked at every word w after the words h, as a language model and its nearest neighbours are
(Khandelwal et al., *Generalization through memorization*, 2020):

    log p(w | h) + λ Σₙ log(1 + fₙ(w | h) / ε),   n = 1 to 4

fₙ is the share of the nearest sentences that somewhere have the last n - 1 words of h with w behind them; f₁ of those
that have w at all. λ is ``captioner.neighbours.weight``, ε :data:`FLOOR`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from saywhere.engines.arrays.neighbours import Neighbours
from saywhere.engines.engine import Decoder, State
from saywhere.text import END, START

ORDER = 4
"""Words of the longest sequences that are compared."""
FLOOR = 0.05
"""ε: a share that is no surprise."""


class Support:
    """Tell what some sentences have after which words.

    Args:
        sentences: token ids of each.
        vocabulary_size: V.
    """

    def __init__(self, sentences: Sequence[np.ndarray], vocabulary_size: int) -> None:
        share = 1 / max(len(sentences), 1)
        shares = np.zeros(vocabulary_size, np.float32)
        self._after: dict[tuple[int, ...], dict[int, float]] = {}
        for sentence in sentences:
            ids = [START, *sentence.tolist(), END]
            shares[sorted(set(ids[1:-1]))] += np.float32(share)
            runs = {tuple(ids[i : i + n]) for n in range(2, ORDER + 1) for i in range(len(ids) - n + 1)}
            for *before, word in runs:
                following = self._after.setdefault(tuple(before), {})
                following[word] = following.get(word, 0.0) + share
        self._anywhere = np.log1p(shares / np.float32(FLOOR))

    def add(self, log_probs: np.ndarray, before: Sequence[int], weight: float) -> None:
        """Add what the sentences say of each word ``(V,)``, times ``weight``, after the words ``before``."""
        log_probs += np.float32(weight) * self._anywhere
        for start in range(len(before)):
            for word, share in self._after.get(tuple(before[start:]), {}).items():
                log_probs[word] += np.float32(weight * math.log1p(share / FLOOR))


class GuidedDecoder:
    """Decode with the support of sentences; what it gives are no log-probabilities, but beam search takes them.

    A state is that of the decoder, the number of each row's item, and its last words.

    Args:
        decoder: of N items.
        supports: of each item.
        weight: of the support, λ.
    """

    def __init__(self, decoder: Decoder, supports: Sequence[Support], weight: float) -> None:
        self._decoder, self._supports, self._weight = decoder, supports, weight
        self.never, self.unknown, self.independent = decoder.never, decoder.unknown, decoder.independent

    def start(self, embeddings: Any) -> State:
        """Return the state after the embeddings ``(N, D)``."""
        count = len(self._supports)
        return self._decoder.start(embeddings), np.arange(count), np.zeros((count, 0), np.int64)

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return supported log-probabilities ``(M, V)`` of the word after ``token_ids (M,)``, and the next state."""
        inner, items, before = state
        before = np.concatenate((before, token_ids[:, None]), axis=1)[:, 1 - ORDER :]
        log_probs, inner = self._decoder.step(token_ids, inner)
        supported = np.array(log_probs, np.float32)
        for row, item, words in zip(supported, items.tolist(), before.tolist(), strict=True):
            self._supports[item].add(row, words, self._weight)
        return supported, (inner, items, before)

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state."""
        inner, items, before = state
        return self._decoder.select(inner, rows), items[rows], before[rows]

    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
        inner, items, before = zip(*states, strict=True)
        return self._decoder.join(inner), np.concatenate(items), np.concatenate(before)


def guided(
    decoder: Decoder, neighbours: Neighbours, embeddings: np.ndarray, vocabulary_size: int, count: int, weight: float
) -> GuidedDecoder:
    """Return the decoder of N images with the support of the ``count`` nearest sentences of each.

    Args:
        decoder: of the images.
        neighbours: the sentences.
        embeddings: ``(N, F)`` of the images.
        vocabulary_size: V.
        count, weight: of the configuration.
    """
    found = neighbours.nearest(embeddings, count)
    return GuidedDecoder(decoder, [Support(sentences, vocabulary_size) for sentences in found], weight)
