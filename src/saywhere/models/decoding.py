"""Greedy and beam search for any number of items at once, and the reranking of hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from saywhere.configs.parts import MOST_HYPOTHESES, DecodingConfig
from saywhere.engines.engine import Decoder, State
from saywhere.errors import UserError
from saywhere.options import dataclass
from saywhere.text import END, PAD, START, Vocabulary


@dataclass(frozen=True, eq=False)
class Decoded:
    """One sentence for each of N items.

    Attributes:
        token_ids: ``(N, T)`` int64; the last word is followed by END, if it fits in T, and padding.
        log_probs: ``(N, T)`` float32 natural log-probability of each word and of END; 0 for padding.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Log-probability ``(N,)`` of each sentence."""
        return self.log_probs.sum(axis=1)

    @property
    def confidence(self) -> np.ndarray:
        """Mean log-probability ``(N,)`` of the tokens of each sentence, END included."""
        return self.total / np.maximum((self.token_ids != PAD).sum(axis=1), 1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """B sentences for each of N items.

    Attributes:
        token_ids, log_probs: ``(N, B, T)``, see :class:`Decoded`.
        ranks: ``(N, B)`` log-probability / length ** ``length_penalty``; -inf for missing hypotheses.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray
    ranks: np.ndarray

    def best(self, ranks: np.ndarray | None = None) -> Decoded:
        """Return the hypothesis of each item with the largest of ``ranks``; default: :attr:`ranks`."""
        rows = (self.ranks if ranks is None else ranks).argmax(axis=1)
        items = np.arange(len(rows))
        return Decoded(self.token_ids[items, rows], self.log_probs[items, rows])


def decode(decoder: Decoder, embeddings: Any, settings: DecodingConfig, beam_size: int | None = None) -> Decoded:
    """Return the best hypothesis of :func:`search` for each item; same arguments and errors."""
    return search(decoder, embeddings, settings, beam_size).best()


def search(
    decoder: Decoder,
    embeddings: Any,
    settings: DecodingConfig,
    beam_size: int | None = None,
    never: np.ndarray | None = None,
) -> Hypotheses:
    """Decode at most ``settings.max_words`` words per item, by greedy search for one hypothesis, else by beam search.

    A sentence that reaches ``max_words`` has no END.

    Args:
        embeddings: ``(N, D)`` inputs of the decoder; N may be 0.
        beam_size: hypotheses kept per item. Default: that of ``settings``.
        never: ``(N, V)`` bool mask of the words that each item must not contain, besides those that the decoder never
            chooses. None: no further words.

    Raises:
        UserError: ``beam_size`` is below 1 or above :data:`saywhere.configs.parts.MOST_HYPOTHESES`.
    """
    beam_size = settings.beam_size if beam_size is None else beam_size
    return search_each(decoder, [embeddings], settings, [beam_size], [never])[0]


def search_each(
    decoder: Decoder,
    embeddings: Sequence[Any],
    settings: DecodingConfig,
    beam_sizes: Sequence[int],
    never: Sequence[np.ndarray | None] | None = None,
) -> list[Hypotheses]:
    """Run :func:`search` for several groups of items, each with its own ``beam_size``.

    The groups advance together, so that the decoder's weights are read once for all of them. Several groups require an
    ``independent`` decoder. ``embeddings`` has one ``(N, D)`` array per group, ``never`` one mask or None per group.
    """
    for size in beam_sizes:
        if not 1 <= size <= MOST_HYPOTHESES:
            limit = "least 1" if size < 1 else f"most {MOST_HYPOTHESES}"
            raise UserError(f"beam_size must be at {limit}, not {size}")
    found: list[Hypotheses | None] = [None] * len(embeddings)
    refused = [None] * len(embeddings) if never is None else never
    searches: dict[int, _Search] = {}
    for number, (rows, size) in enumerate(zip(embeddings, beam_sizes, strict=True)):
        if len(rows) == 0:
            nothing = np.zeros((0, 1, 0), np.float32)
            found[number] = Hypotheses(nothing.astype(np.int64), nothing, nothing.sum(axis=2))
        elif size == 1:
            searches[number] = _greedy(decoder, len(rows), settings, refused[number])
        else:
            searches[number] = _beam(decoder, len(rows), settings, size, refused[number])
    if searches:
        parts = [embeddings[number] for number in searches]
        state = decoder.start(parts[0] if len(parts) == 1 else np.concatenate(parts))
        counts = {number: len(embeddings[number]) for number in searches}
        asked = {number: next(one) for number, one in searches.items()}
        while asked:
            state = _select(decoder, state, {number: rows for number, (_, rows) in asked.items()}, counts)
            counts = {number: len(last) for number, (last, _) in asked.items()}
            log_probs, state = decoder.step(np.concatenate([last for last, _ in asked.values()]), state)
            log_probs = np.array(log_probs, np.float32)
            log_probs[:, list(decoder.never)] = -np.inf
            ends = np.cumsum([*counts.values()]).tolist()
            for (number, count), end in zip(counts.items(), ends, strict=True):
                try:
                    asked[number] = searches[number].send(log_probs[end - count : end])
                except StopIteration as done:
                    found[number] = done.value
                    del asked[number]
    return [each for each in found if each is not None]


_Search = Generator[tuple[np.ndarray, np.ndarray | None], np.ndarray, Hypotheses]
"""Yields the last words ``(N,)`` of the hypotheses and the previous row of each (None: the same rows). Is sent the
log-probabilities ``(N, V)`` of the next words."""


def _select(decoder: Decoder, state: State, rows: Mapping[int, np.ndarray | None], counts: Mapping[int, int]) -> State:
    """Return the state rows that the unfinished searches need; ``counts`` are the row counts of all searches before."""
    kept: list[np.ndarray] = []
    start = 0
    for number, count in counts.items():
        if number in rows:
            own = rows[number]
            kept.append(start + (np.arange(count) if own is None else own))
        start += count
    if len(kept) == len(counts) and all(own is None for own in rows.values()):
        return state
    return decoder.select(state, np.concatenate(kept))


def _greedy(decoder: Decoder, count: int, settings: DecodingConfig, never: np.ndarray | None) -> _Search:
    """Follow the most probable word until all items have ended; ended items leave the batch of independent decoders."""
    max_words = settings.max_words
    token_ids, chosen = np.full((count, max_words), PAD, np.int64), np.zeros((count, max_words), np.float32)
    last, rows, kept = np.full(count, START, np.int64), np.arange(count), None
    ended = np.zeros(count, bool)
    for step in range(max_words):
        log_probs = yield last, kept
        if never is not None:
            log_probs = np.where(never[rows], np.float32(-np.inf), log_probs)
        last, kept = log_probs.argmax(axis=1), None
        open_rows = rows[~ended[rows]]
        token_ids[open_rows, step] = last[~ended[rows]]
        chosen[open_rows, step] = log_probs.max(axis=1)[~ended[rows]]
        ended[rows] |= last == END
        if ended.all():
            token_ids, chosen = token_ids[:, : step + 1], chosen[:, : step + 1]
            break
        if decoder.independent and ended[rows].any():
            kept = np.flatnonzero(~ended[rows])
            last, rows = last[kept], rows[kept]
    return _hypotheses(token_ids[:, None], chosen[:, None], settings.length_penalty)


def _beam(decoder: Decoder, n: int, settings: DecodingConfig, beam_size: int, never: np.ndarray | None) -> _Search:
    """Run beam search with the hypotheses of an item in adjacent rows: one at first, then ``beam_size``.

    An ended hypothesis continues with PAD at no cost, and leaves the batch of an independent decoder.
    """
    items, length_penalty = np.arange(n)[:, None], settings.length_penalty
    last, rows, going = np.full(n, START, np.int64), None, np.arange(n)
    total: np.ndarray = np.zeros((n, 1), np.float32)
    ended: np.ndarray = np.zeros((n, 1), bool)
    token_ids: np.ndarray = np.zeros((n, 1, 0), np.int64)
    chosen: np.ndarray = np.zeros((n, 1, 0), np.float32)
    for _ in range(settings.max_words):
        log_probs = yield last, rows
        vocabulary_size, count = log_probs.shape[1], ended.size
        if ended.any():
            of_going, log_probs = log_probs, np.full((count, vocabulary_size), -np.inf, np.float32)
            log_probs[going] = of_going
            log_probs[ended.reshape(-1)] = -np.inf
            log_probs[ended.reshape(-1), PAD] = 0
        log_probs = log_probs.reshape(n, -1, vocabulary_size)
        if never is not None:
            log_probs = np.where(never[:, None], np.float32(-np.inf), log_probs)
        lengths = (token_ids != PAD).sum(axis=2, keepdims=True) + ~ended[..., None]
        ranking = (total[..., None] + log_probs) / _penalty(lengths, length_penalty)
        best = largest(ranking.reshape(n, -1), beam_size)
        parent, word = best // vocabulary_size, best % vocabulary_size
        picked = np.take_along_axis(log_probs.reshape(n, -1), best, axis=1)
        parents = (items * ended.shape[1] + parent).reshape(-1)
        total = total[items, parent] + picked
        token_ids = np.concatenate((token_ids[items, parent], word[..., None]), axis=2)
        chosen = np.concatenate((chosen[items, parent], picked[..., None]), axis=2)
        ended = ended[items, parent] | (word == END)
        if ended.all():
            break
        asked = np.empty(count, np.int64)  # row of each previous hypothesis in the decoder's batch
        asked[going] = np.arange(len(going))
        going = np.flatnonzero(~ended) if decoder.independent else np.arange(ended.size)
        last, rows = word.reshape(-1)[going], asked[parents[going]]
    return _hypotheses(token_ids, chosen, length_penalty)


def _hypotheses(token_ids: np.ndarray, log_probs: np.ndarray, length_penalty: float) -> Hypotheses:
    lengths = np.maximum((token_ids != PAD).sum(axis=2), 1)
    return Hypotheses(token_ids, log_probs, log_probs.sum(axis=2) / _penalty(lengths, length_penalty))


def _penalty(lengths: np.ndarray, length_penalty: float) -> np.ndarray:
    return lengths.astype(np.float32) ** np.float32(length_penalty)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the column indices ``(N, count)`` of the largest values per row, best first; ties in column order.

    Each row is cut into parts. The largest values are all at least the ``count``-th largest of the parts' maxima, and
    few other values are, so that only few need sorting.
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


@dataclass(frozen=True)
class Sentence:
    """A hypothesis as text and as token ids without END."""

    text: str
    token_ids: list[int]


Score = Callable[[Sequence[Sequence[Sentence]]], Sequence[np.ndarray]]
"""Returns the values of each image's sentences, one array per image; no sentence is empty."""


@dataclass(frozen=True)
class Reason:
    """A term of the reranking score, besides the log-probability.

    Attributes:
        score: the term's values before they are weighted.
        shortlist: number of hypotheses per image to score: the best so far. The others drop out. None: all.
    """

    score: Score
    weight: float
    shortlist: int | None = None


class Reranker:
    """Rank hypotheses by length-normalised log-probability plus weighted terms (:class:`Reason`).

    The terms are added in the given order. An expensive term comes last and can be limited to a shortlist.
    """

    def __init__(self, reasons: Sequence[Reason]) -> None:
        self.reasons = tuple(reasons)

    def rank(self, found: Hypotheses, vocabulary: Vocabulary) -> np.ndarray:
        """Return the scores ``(N, B)``; -inf for hypotheses off a shortlist. A single hypothesis is not rescored."""
        sums = found.ranks
        if sums.shape[1] == 1 or not self.reasons:
            return sums
        rows = [[row[(row != END) & (row != PAD)].tolist() for row in rows] for rows in found.token_ids]
        sentences = [[Sentence(vocabulary.decode(ids), ids) for ids in of_image] for of_image in rows]
        for reason in self.reasons:
            sums = _add(reason, sums, sentences)
        return sums


def _add(reason: Reason, sums: np.ndarray, sentences: Sequence[Sequence[Sentence]]) -> np.ndarray:
    best = np.argsort(-sums, axis=1, kind="stable")[:, : reason.shortlist]
    scored = [
        [b for b in sorted(row) if of_image[b].text] for row, of_image in zip(best.tolist(), sentences, strict=True)
    ]
    added = np.full_like(sums, -np.inf)
    np.put_along_axis(added, best, np.take_along_axis(sums, best, axis=1), axis=1)
    scores = reason.score([[of_image[b] for b in row] for row, of_image in zip(scored, sentences, strict=True)])
    for row, columns, values in zip(added, scored, scores, strict=True):
        row[columns] += np.float32(reason.weight) * values
    return added
