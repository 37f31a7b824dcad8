"""Decoders in NumPy: DenseCap's, and the one with attention to regions (Areas of Attention, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saywhere.configs.captioner import CaptionerConfig
from saywhere.engines.arrays.layers import (
    BatchNorm,
    Gru,
    Linear,
    Lstm,
    Shapes,
    Weights,
    WordGates,
    WordVectors,
    in_single,
    log_softmax,
    product,
    recurrent_shapes,
    relu,
)
from saywhere.engines.engine import State
from saywhere.options import dataclass
from saywhere.text import END, PAD, RESERVED, START, UNKNOWN


class ArrayDecoder:
    """Base of the decoders in NumPy, see :class:`saywhere.engines.engine.Decoder`; states are tuples of arrays."""

    never: Sequence[int] = (PAD, START, UNKNOWN)
    unknown = RESERVED[UNKNOWN]
    independent = True

    def select(self, state: State, rows: np.ndarray) -> State:
        return tuple(part[rows] for part in state)

    def join(self, states: Sequence[State]) -> State:
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))


class LstmDecoder(ArrayDecoder):
    """DenseCap's decoder (section 3.1.4), see :class:`saywhere.networks.language.decoders.lstm.LstmDecoder`."""

    def __init__(self, weights: Weights) -> None:
        self.encode, self.normalise = Linear(weights.below("encode.0")), BatchNorm(weights.below("encode.1"))
        self.words, self.lstm = weights.stored("words.weight"), Lstm(weights.below("lstm"))
        self.output = Linear(weights.below("output"))
        self._inputs = np.zeros((len(self.words), 4 * self.lstm.size), np.float32)
        self._known = np.zeros(len(self.words), bool)

    @staticmethod
    def shapes(embedding: int | str, words: int, word_size: int, hidden_size: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name."""
        normalisation = ("weight", "bias", "running_mean", "running_var")
        return {
            **Linear.shapes("decoder.encode.0", word_size, embedding),
            **{f"decoder.encode.1.{kind}": (word_size,) for kind in normalisation},
            "decoder.words.weight": (words, word_size),
            **recurrent_shapes("decoder.lstm", 4, word_size, hidden_size),
            **Linear.shapes("decoder.output", words, hidden_size),
        }

    def start(self, embeddings: np.ndarray) -> State:
        """Return the state (h, c), each ``(N, H)``, after the embeddings ``(N, D)``."""
        inputs = self.lstm.inputs(relu(self.normalise(self.encode(embeddings))))
        zeros = np.zeros((len(inputs), self.lstm.size), np.float32)
        return self.lstm.step(inputs, zeros, zeros)

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        h, c = self.lstm.step(self._word_inputs(token_ids), *state)
        return log_softmax(self.output(h)), (h, c)

    def _word_inputs(self, token_ids: np.ndarray) -> np.ndarray:
        """Return what words ``(N,)`` add to the gates ``(N, 4 H)``; cached, because few words are frequent."""
        asked = np.zeros_like(self._known)
        asked[token_ids] = True
        new = np.flatnonzero(asked & ~self._known)  # np.unique would import modules that nothing else needs
        if len(new):
            self._inputs[new] = self.lstm.inputs(in_single(self.words[new]))
            self._known[new] = True
        return self._inputs[token_ids]


LIMIT = 60.0
"""Range of exponents within which sums of exponentials stay exact in single precision."""


@dataclass(frozen=True, eq=False)
class _Table:
    """The word-region term m of the score for one image (Eq. 5), computed once for all steps.

    Attributes:
        count: number of the image's regions.
        regions: ``(R, D)`` descriptors; one row of zeros for an image without regions.
        known: ``(V,)`` what all regions add to the score of each word.
        scores: ``(R, V)`` m minus its maximum for each word, or None without this term.
    """

    count: int
    regions: np.ndarray
    known: np.ndarray
    scores: np.ndarray | None = None


class AttentionDecoder:
    """Weights of :class:`saywhere.networks.language.decoders.attention.AttentionDecoder`, without feedback.

    Regions have a bias but no term that depends on the state, so what they add to words is the same in all steps.
    """

    def __init__(self, weights: Weights, config: CaptionerConfig) -> None:
        terms = config.terms
        self.begin, self.gru = Linear(weights.below("begin")), Gru(weights.below("gru"))
        self.words = WordVectors(weights)
        self.word_gates = WordGates(self.words, self.gru.w_in, self.gru.b_in)
        self.word_state = Linear(weights.below("word_state")) if "word-state" in terms else None
        self.word_region = Linear(weights.below("word_region")) if "word-region" in terms else None
        self.word_bias = weights["word_bias"] if "word" in terms else None
        self.region_bias = weights["region_bias"] if "region" in terms else None

    @staticmethod
    def shapes(config: CaptionerConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name; ``words`` is V."""
        word, region, hidden = config.word_size, config.region_size, config.hidden_size
        terms: dict[str, Shapes] = {
            "word-state": Linear.shapes("decoder.word_state", word, hidden, bias=False),
            "word-region": Linear.shapes("decoder.word_region", word, region, bias=False),
            "word": {"decoder.word_bias": (word,)},
            "region": {"decoder.region_bias": (region,)},
        }
        shapes: Shapes = {"decoder.words.weight": (words, word)} | Linear.shapes("decoder.begin", hidden, "features")
        shapes |= recurrent_shapes("decoder.gru", 3, word, hidden)
        for term in config.terms:
            shapes |= terms[term]
        return shapes

    def bind(self, regions: Sequence[np.ndarray]) -> BoundDecoder:
        """Return the decoder for images with these regions ``(R, D)``; an image may have none."""
        return BoundDecoder(self, [self._table(rows) for rows in regions])

    def _table(self, regions: np.ndarray) -> _Table:
        count = len(regions)
        if not count:  # a zero region gives the words of the decoder without attention
            regions = np.zeros((1, regions.shape[1]), np.float32)
        if self.word_region is None:
            return _Table(count, regions, np.zeros(1, np.float32))
        scores = self.word_region(regions) @ self.words.columns
        peak = scores.max(axis=0)
        scores -= peak
        bias = self.region_scores(regions)
        least, top = bias.min(), bias.max()
        if bool((-scores.min(axis=0) > LIMIT).any()) and top - least > LIMIT:  # sums of products could underflow
            sums = bias[:, None] + scores
            high = sums.max(axis=0)
            summed = high + np.log(np.exp(sums - high).sum(axis=0))
        else:
            summed = np.log(product(np.exp(bias - top)[None], np.exp(scores)))[0]
        return _Table(count, regions, peak + summed, scores)

    def word_scores(self, states: np.ndarray) -> np.ndarray:
        """Return the state's part of the word scores ``(K, V)`` for states ``(K, H)``, the same for all images."""
        word = np.zeros((len(states), self.words.size), np.float32)
        word = word if self.word_state is None else word + self.word_state(states)
        word = word if self.word_bias is None else word + self.word_bias
        return product(word, self.words.columns)

    def region_scores(self, regions: np.ndarray) -> np.ndarray:
        """Return the region bias ``(R,)``, the same in every state."""
        return np.zeros(len(regions), np.float32) if self.region_bias is None else regions @ self.region_bias


class BoundDecoder(ArrayDecoder):
    """Decode for N images; a state holds h and the image index of each row."""

    def __init__(self, decoder: AttentionDecoder, tables: Sequence[_Table]) -> None:
        self._decoder, self._tables = decoder, tables

    def start(self, embeddings: np.ndarray) -> State:
        return self._decoder.begin(np.asarray(embeddings)), np.arange(len(embeddings))

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        hidden, image = self._decoder.gru.step(self._decoder.word_gates[token_ids], state[0]), state[1]
        scores = self._decoder.word_scores(hidden)
        log_probs = np.empty_like(scores)
        for table, rows in self._groups(image):
            log_probs[rows] = log_softmax(scores[rows] + table.known)
        return log_probs, (hidden, image)

    def _groups(self, image: np.ndarray) -> list[tuple[_Table, np.ndarray | slice]]:
        """Return the table and rows of each image."""
        if len(self._tables) == 1:
            return [(self._tables[0], slice(None))]
        return [(self._tables[number], np.flatnonzero(image == number)) for number in sorted(set(image.tolist()))]

    def attention(self, token_ids: np.ndarray) -> np.ndarray:
        """Return p(r | w, h) for each image's regions at each of ``token_ids (N, T)``, and at END: ``(N, T + 1, R)``.

        Without region-state it is the same in every state. Missing regions are padded with zeros; an image without
        regions has only zeros.
        """
        words = np.concatenate((token_ids, np.full((len(token_ids), 1), END)), axis=1)
        weights = np.zeros((*words.shape, max(table.count for table in self._tables)), np.float32)
        for number, (said, table) in enumerate(zip(words, self._tables, strict=True)):
            scores = np.tile(self._decoder.region_scores(table.regions), (len(said), 1))
            scores = scores if table.scores is None else scores + table.scores[:, said].T
            weights[number, :, : table.count] = np.exp(log_softmax(scores))[:, : table.count]
        return weights
