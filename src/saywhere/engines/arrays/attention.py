"""The decoder with attention to regions, Areas of Attention (section 3.2, Eqs. 4 to 7), in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from saywhere.configs.captioner import CaptionerConfig
from saywhere.engines.arrays.decoders import ArrayDecoder
from saywhere.engines.arrays.layers import (
    Gru,
    Linear,
    Shapes,
    Weights,
    WordGates,
    WordVectors,
    log_softmax,
    product,
    recurrent_shapes,
)
from saywhere.engines.engine import State
from saywhere.text import START

LIMIT = 60.0
"""Where sums of exponentials in single precision stay exact."""


@dataclass(frozen=True, eq=False)
class _Table:
    """The word-region part m of the score of one image (Eq. 5), made once and used in every step.

    Attributes:
        count: of the image's regions.
        regions: ``(R, D)`` descriptors; of an image without regions one of zeros.
        scores: ``(R, V)`` m less ``peak``, or None without this term.
        peak: ``(V,)`` the largest m of each word.
        exp: ``(R, V)`` exp(scores).
        wide: m varies so much over the regions that sums of products could vanish: logarithms are summed instead.
        known: ``(V,)`` what all regions add to the score of each word; None if that depends on the state.
    """

    count: int
    regions: np.ndarray
    scores: np.ndarray | None = None
    peak: np.ndarray | None = None
    exp: np.ndarray | None = None
    wide: bool = False
    known: np.ndarray | None = None


class AttentionDecoder:
    """Weights of :class:`saywhere.networks.language.decoders.attention.AttentionDecoder`."""

    def __init__(self, weights: Weights, config: CaptionerConfig) -> None:
        self.feedback, self.terms = config.feedback, config.terms
        self.begin, self.gru = Linear(weights.below("begin")), Gru(weights.below("gru"))
        self.words = WordVectors(weights)
        self.word_gates = WordGates(self.words, self.gru.w_in[: self.words.size], self.gru.b_in)
        self.word_state = Linear(weights.below("word_state")) if "word-state" in self.terms else None
        self.word_region = Linear(weights.below("word_region")) if "word-region" in self.terms else None
        self.region_state = Linear(weights.below("region_state")) if "region-state" in self.terms else None
        self.word_bias = weights["word_bias"] if "word" in self.terms else None
        self.region_bias = weights["region_bias"] if "region" in self.terms else None

    @staticmethod
    def shapes(config: CaptionerConfig, words: int) -> Shapes:
        """Return the shapes of the arrays that it reads, by their names; V is ``words``."""
        word, region, hidden = config.word_size, config.region_size, config.hidden_size
        terms: dict[str, Shapes] = {
            "word-state": Linear.shapes("decoder.word_state", word, hidden, bias=False),
            "word-region": Linear.shapes("decoder.word_region", word, region, bias=False),
            "region-state": Linear.shapes("decoder.region_state", region, hidden, bias=False),
            "word": {"decoder.word_bias": (word,)},
            "region": {"decoder.region_bias": (region,)},
        }
        shapes: Shapes = {"decoder.words.weight": (words, word)} | Linear.shapes("decoder.begin", hidden, "features")
        shapes |= recurrent_shapes("decoder.gru", 3, word + (region if config.feedback != "none" else 0), hidden)
        for term in config.terms:
            shapes |= terms[term]
        return shapes

    def bind(self, regions: Sequence[np.ndarray]) -> BoundDecoder:
        """Return the decoder of images with these regions ``(R, D)``; an image may have none."""
        return BoundDecoder(self, [self._table(rows) for rows in regions])

    def _table(self, regions: np.ndarray) -> _Table:
        count = len(regions)
        if not count:  # a region of zeros gives the words of the decoder without attention, and no feedback
            regions = np.zeros((1, regions.shape[1]), np.float32)
        if self.word_region is None:
            return _Table(count, regions)
        scores = self.word_region(regions) @ self.words.columns
        peak = scores.max(axis=0)
        scores -= peak
        table = _Table(count, regions, scores, peak, np.exp(scores), bool((-scores.min(axis=0) > LIMIT).any()))
        if self.region_state is not None:
            return table
        any_state = np.zeros((1, 0), np.float32)
        return replace(table, known=self.of_regions(self.region_scores(any_state, table), table)[0])

    def word_scores(self, states: np.ndarray) -> np.ndarray:
        """Return the part of the score of words ``(K, V)`` in the states ``(K, H)``; the same for all images."""
        word = np.zeros((len(states), self.words.size), np.float32)
        word = word if self.word_state is None else word + self.word_state(states)
        word = word if self.word_bias is None else word + self.word_bias
        return product(word, self.words.columns)

    def region_scores(self, states: np.ndarray, table: _Table) -> np.ndarray:
        """Return the part of the score of regions ``(K, R)`` in the states ``(K, H)``."""
        region = np.zeros((len(states), table.regions.shape[1]), np.float32)
        region = region if self.region_state is None else region + self.region_state(states)
        region = region if self.region_bias is None else region + self.region_bias
        return region @ table.regions.T

    def parts(self, states: np.ndarray, table: _Table) -> tuple[np.ndarray, np.ndarray]:
        """Return :meth:`word_scores` and :meth:`region_scores` together."""
        return self.word_scores(states), self.region_scores(states, table)

    def log_words(self, words: np.ndarray, states: np.ndarray, table: _Table) -> np.ndarray:
        """Return ``ln p(w | h)``, ``(K, V)``, of :meth:`word_scores` in the states (the marginal of Eq. 4)."""
        known = self.of_regions(self.region_scores(states, table), table) if table.known is None else table.known
        return log_softmax(words + known)

    def of_regions(self, regions: np.ndarray, table: _Table) -> np.ndarray:
        """Return ``ln sum_r exp(c(r) + m(w, r))``, ``(K, V)``, what regions add to the score of words.

        Without the term word-region it is 0; ``regions`` are :meth:`region_scores`.
        """
        if table.scores is None or table.exp is None or table.peak is None:
            return np.zeros((1, 1), np.float32)
        top = regions.max(axis=1, keepdims=True)
        if table.wide and (top - regions.min(axis=1, keepdims=True) > LIMIT).any():
            summed = np.stack([_log_sum_exp(row[:, None] + table.scores, axis=0) for row in regions])
        else:
            summed = np.log(product(np.exp(regions - top), table.exp))
        return table.peak + summed

    def log_regions(self, words: np.ndarray, regions: np.ndarray, table: _Table) -> np.ndarray:
        """Return ``ln p(r | h)``, ``(K, R)``, of the parts of the score (the marginal of Eq. 4)."""
        if table.scores is None or table.exp is None or table.peak is None:
            return log_softmax(regions)
        heights = words + table.peak
        if table.wide:
            summed = np.stack([_log_sum_exp(row[None] + table.scores, axis=1) for row in heights])
        else:
            weights = np.exp(heights - heights.max(axis=1, keepdims=True))
            summed = np.log(np.maximum(weights @ table.exp.T, np.finfo(np.float32).tiny))
        return log_softmax(regions + summed)

    def log_given(self, regions: np.ndarray, table: _Table, token_ids: np.ndarray) -> np.ndarray:
        """Return ``ln p(r | w, h)``, ``(K, R)``, of the words ``(K,)``."""
        if self.word_region is not None:
            regions = regions + self.words[token_ids] @ self.word_region(table.regions).T
        return log_softmax(regions)

    def attended(self, parts: tuple[np.ndarray, np.ndarray], table: _Table, token_ids: np.ndarray | None) -> np.ndarray:
        """Return ``v_t (K, D)`` (Eq. 6), by p(r | w, h) if there are words and feedback is conditional."""
        if self.feedback == "conditional" and token_ids is not None:
            return np.exp(self.log_given(parts[1], table, token_ids)) @ table.regions
        return np.exp(self.log_regions(*parts, table)) @ table.regions

    def next_state(self, token_ids: np.ndarray, state: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
        """Return the state ``(K, H)`` after words ``(K,)`` and the feedback (Eq. 7)."""
        gates = self.word_gates[token_ids]
        return self.gru.step(gates if seen is None else gates + product(seen, self.gru.w_in[self.words.size :]), state)


class BoundDecoder(ArrayDecoder):
    """Decode for N images; a state holds h, the feedback if it is marginal, and the number of each row's image."""

    def __init__(self, decoder: AttentionDecoder, tables: Sequence[_Table]) -> None:
        self._decoder, self._tables = decoder, tables

    def start(self, embeddings: np.ndarray) -> State:
        """Return the state of each of the N images after its embedding ``(N, D)``."""
        return self._state(self._decoder.begin(np.asarray(embeddings)), np.arange(len(embeddings)))[0]

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return log-probabilities ``(M, V)`` of the word after ``token_ids (M,)``, and the next state."""
        following, log_probs = self._state(self._hidden(token_ids, state), state[-1], words=True)
        assert log_probs is not None
        return log_probs, following

    def _hidden(self, token_ids: np.ndarray, state: State) -> np.ndarray:
        """Return h ``(M, H)`` after ``token_ids (M,)``."""
        decoder, hidden, image = self._decoder, state[0], state[-1]
        seen = state[1] if decoder.feedback == "marginal" else None
        if decoder.feedback == "conditional":
            seen = np.zeros((len(hidden), self._tables[0].regions.shape[1]), np.float32)
            for table, rows in self._groups(image):
                seen[rows] = decoder.attended(decoder.parts(hidden[rows], table), table, token_ids[rows])
        return decoder.next_state(token_ids, hidden, seen)

    def _state(self, hidden: np.ndarray, image: np.ndarray, words: bool = False) -> tuple[State, np.ndarray | None]:
        """Return the state with h ``(M, H)``, and the log-probabilities of words if they are wanted."""
        decoder = self._decoder
        marginal = decoder.feedback == "marginal"
        if not (words or marginal):
            return (hidden, image), None
        scores = decoder.word_scores(hidden)
        log_probs = np.empty_like(scores)
        seen = np.empty((len(hidden), self._tables[0].regions.shape[1]), np.float32)
        for table, rows in self._groups(image):
            if words:
                log_probs[rows] = decoder.log_words(scores[rows], hidden[rows], table)
            if marginal:
                parts = scores[rows], decoder.region_scores(hidden[rows], table)
                seen[rows] = decoder.attended(parts, table, None)
        return ((hidden, seen, image) if marginal else (hidden, image)), log_probs if words else None

    def _groups(self, image: np.ndarray) -> list[tuple[_Table, np.ndarray | slice]]:
        """Each image's table and rows."""
        if len(self._tables) == 1:
            return [(self._tables[0], slice(None))]
        return [(self._tables[number], np.flatnonzero(image == number)) for number in sorted(set(image.tolist()))]

    def attention(self, embeddings: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """Return p(r | h) of each image's regions at each of ``token_ids (N, T)``, and at END: ``(N, T + 1, R)``.

        Images with fewer regions have zeros behind them; one without regions has zeros only.
        """
        decoder, widest = self._decoder, max(table.count for table in self._tables)
        inputs = np.concatenate((np.full((len(token_ids), 1), START), token_ids), axis=1)
        state, passed = self.start(embeddings), list[np.ndarray]()
        for words in inputs.T:
            state, _ = self._state(self._hidden(words, state), state[-1])
            passed.append(state[0])
        weights = np.zeros((*inputs.shape, widest), np.float32)
        for number, (table, hidden) in enumerate(zip(self._tables, np.stack(passed, axis=1), strict=True)):
            log_regions = decoder.log_regions(*decoder.parts(hidden, table), table)
            weights[number, :, : table.count] = np.exp(log_regions[:, : table.count])
        return weights


def _log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    top = x.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))
