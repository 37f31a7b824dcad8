"""From a decoder to words: greedy and beam search, for any number of items at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhere.configs.parts import MOST_HYPOTHESES, DecodingConfig
from saywhere.engines.engine import Decoder, State
from saywhere.errors import UserError
from saywhere.text import END, PAD, START


@dataclass(frozen=True, eq=False)
class Decoded:
    """One sentence for each of N items.

    Attributes:
        token_ids: ``(N, T)`` int64; END and then padding after the last word, if that fits in T.
        log_probs: ``(N, T)`` float32 natural log-probability of each word and of END; 0 where padded.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Log-probability ``(N,)`` of each whole sentence."""
        return self.log_probs.sum(axis=1)

    @property
    def confidence(self) -> np.ndarray:
        """Mean log-probability ``(N,)`` of the words of each sentence, its END included."""
        return self.total / np.maximum((self.token_ids != PAD).sum(axis=1), 1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """B sentences for each of N items.

    Attributes:
        token_ids, log_probs: ``(N, B, T)``, see :class:`Decoded`.
        ranks: ``(N, B)`` log-probability / length ** ``length_penalty``; -inf of those that there are not.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray
    ranks: np.ndarray

    def best(self, ranks: np.ndarray | None = None) -> Decoded:
        """Return for each item the hypothesis with the largest of ``ranks``, :attr:`ranks` if not given."""
        rows = (self.ranks if ranks is None else ranks).argmax(axis=1)
        items = np.arange(len(rows))
        return Decoded(self.token_ids[items, rows], self.log_probs[items, rows])


def decode(decoder: Decoder, embeddings: Any, settings: DecodingConfig, beam_size: int | None = None) -> Decoded:
    """Return the best hypothesis of :func:`search` for each item; arguments and errors are the same."""
    return search(decoder, embeddings, settings, beam_size).best()


def search(decoder: Decoder, embeddings: Any, settings: DecodingConfig, beam_size: int | None = None) -> Hypotheses:
    """Decode at most ``settings.max_words`` words for each item: greedy with one hypothesis, else beam search.

    A sentence that reaches ``max_words`` has no END.

    Args:
        decoder: the language model.
        embeddings: ``(N, D)`` that it starts from; N may be 0.
        settings: of the decoding.
        beam_size: hypotheses kept for each item, instead of those of ``settings``.

    Raises:
        UserError: ``beam_size`` is below 1 or above :data:`saywhere.configs.parts.MOST_HYPOTHESES`.
    """
    beam_size = settings.beam_size if beam_size is None else beam_size
    if not 1 <= beam_size <= MOST_HYPOTHESES:
        limit = "least 1" if beam_size < 1 else f"most {MOST_HYPOTHESES}"
        raise UserError(f"beam_size must be at {limit}, not {beam_size}")
    if len(embeddings) == 0:
        nothing = np.zeros((0, 1, 0), np.float32)
        return Hypotheses(nothing.astype(np.int64), nothing, nothing.sum(axis=2))
    if beam_size == 1:
        return _greedy(decoder, embeddings, settings.max_words, settings.length_penalty)
    return _beam(decoder, embeddings, settings.max_words, beam_size, settings.length_penalty)


def _next(decoder: Decoder, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
    log_probs, state = decoder.step(token_ids, state)
    log_probs = np.array(log_probs, np.float32)
    log_probs[:, list(decoder.never)] = -np.inf
    return log_probs, state


def _greedy(decoder: Decoder, embeddings: Any, max_words: int, length_penalty: float) -> Hypotheses:
    """Follow the likeliest word of each item until all have ended; ended items leave the batch if they may."""
    count = len(embeddings)
    token_ids, chosen = np.full((count, max_words), PAD, np.int64), np.zeros((count, max_words), np.float32)
    state, last, rows = decoder.start(embeddings), np.full(count, START, np.int64), np.arange(count)
    ended = np.zeros(count, bool)
    for step in range(max_words):
        log_probs, state = _next(decoder, last, state)
        last = log_probs.argmax(axis=1)
        open_rows = rows[~ended[rows]]
        token_ids[open_rows, step] = last[~ended[rows]]
        chosen[open_rows, step] = log_probs.max(axis=1)[~ended[rows]]
        ended[rows] |= last == END
        if ended.all():
            token_ids, chosen = token_ids[:, : step + 1], chosen[:, : step + 1]
            break
        if decoder.independent and ended[rows].any():
            left = np.flatnonzero(~ended[rows])
            state, last, rows = decoder.select(state, left), last[left], rows[left]
    return _hypotheses(token_ids[:, None], chosen[:, None], length_penalty)


def _beam(decoder: Decoder, embeddings: Any, max_words: int, beam_size: int, length_penalty: float) -> Hypotheses:
    """Keep hypotheses of an item in neighbouring rows: one at first, then ``beam_size``.

    One that has ended goes on with PAD at no cost.
    """
    n = len(embeddings)
    items = np.arange(n)[:, None]
    state, last = decoder.start(embeddings), np.full(n, START, np.int64)
    total, ended = np.zeros((n, 1), np.float32), np.zeros((n, 1), bool)
    token_ids, chosen = np.zeros((n, 1, 0), np.int64), np.zeros((n, 1, 0), np.float32)
    for _ in range(max_words):
        log_probs, state = _next(decoder, last, state)
        log_probs = log_probs.reshape(n, ended.shape[1], -1)
        vocabulary_size = log_probs.shape[2]
        log_probs[ended] = -np.inf
        log_probs[ended, PAD] = 0
        lengths = (token_ids != PAD).sum(axis=2, keepdims=True) + ~ended[..., None]
        ranking = (total[..., None] + log_probs) / _penalty(lengths, length_penalty)
        best = _largest(ranking.reshape(n, -1), beam_size)
        parent, word = best // vocabulary_size, best % vocabulary_size
        picked = np.take_along_axis(log_probs.reshape(n, -1), best, axis=1)
        state = decoder.select(state, (items * ended.shape[1] + parent).reshape(-1))
        total = total[items, parent] + picked
        token_ids = np.concatenate((token_ids[items, parent], word[..., None]), axis=2)
        chosen = np.concatenate((chosen[items, parent], picked[..., None]), axis=2)
        ended = ended[items, parent] | (word == END)
        last = word.reshape(-1)
        if ended.all():
            break
    return _hypotheses(token_ids, chosen, length_penalty)


def _hypotheses(token_ids: np.ndarray, log_probs: np.ndarray, length_penalty: float) -> Hypotheses:
    lengths = np.maximum((token_ids != PAD).sum(axis=2), 1)
    return Hypotheses(token_ids, log_probs, log_probs.sum(axis=2) / _penalty(lengths, length_penalty))


def _penalty(lengths: np.ndarray, length_penalty: float) -> np.ndarray:
    return lengths.astype(np.float32) ** np.float32(length_penalty)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places ``(N, count)`` of the largest of each row, best first; of equal ones the first.

    Each row is cut into parts: all that it has of the largest are at least as large as the ``count``-th largest of the
    parts' maxima, as few others are.
    """
    rows, length = values.shape
    count = min(count, length)
    parts = min(length, 8 * count)
    tops = values[:, : length // parts * parts].reshape(rows, parts, -1).max(axis=2)
    places = np.empty((rows, count), np.int64)
    for row, floor, found in zip(values, np.partition(tops, -count, axis=1)[:, -count], places, strict=True):
        candidates = np.flatnonzero(~(row < floor))
        found[:] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
    return places
