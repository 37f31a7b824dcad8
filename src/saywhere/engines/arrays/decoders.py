"""Decoders without attention: one word at a time from an embedding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saywhere.engines.arrays.layers import (
    BatchNorm,
    Gru,
    Linear,
    Lstm,
    Shapes,
    Weights,
    WordVectors,
    in_single,
    log_softmax,
    product,
    recurrent_shapes,
    relu,
)
from saywhere.engines.engine import State
from saywhere.text import PAD, RESERVED, START, UNKNOWN

NEVER = (PAD, START, UNKNOWN)


class ArrayDecoder:
    """What all decoders in numpy share: states are tuples of arrays whose rows can be picked freely."""

    never: Sequence[int] = NEVER
    unknown = RESERVED[UNKNOWN]
    independent = True

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state: with repetitions, and in any order."""
        return tuple(part[rows] for part in state)

    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
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
        """Return the shapes of the arrays that it reads, by their names."""
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
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        h, c = self.lstm.step(self._word_inputs(token_ids), *state)
        return log_softmax(self.output(h)), (h, c)

    def _word_inputs(self, token_ids: np.ndarray) -> np.ndarray:
        """What words ``(N,)`` add to the gates ``(N, 4 H)``, kept for the next time: few words are said often."""
        asked = np.zeros_like(self._known)
        asked[token_ids] = True
        new = np.flatnonzero(asked & ~self._known)  # np.unique would import what else nobody needs
        if len(new):
            self._inputs[new] = self.lstm.inputs(in_single(self.words[new]))
            self._known[new] = True
        return self._inputs[token_ids]


class GruDecoder(ArrayDecoder):
    """The encoder-decoder of Areas of Attention (Eqs. 1 to 3), see the torch class of that name."""

    def __init__(self, weights: Weights) -> None:
        self.begin, self.words = Linear(weights.below("begin")), WordVectors(weights)
        self.gru, self.output = Gru(weights.below("gru")), Linear(weights.below("output"))

    @staticmethod
    def shapes(words: int, word_size: int, hidden_size: int) -> Shapes:
        """Return the shapes of the arrays that it reads, by their names."""
        shapes: Shapes = {"decoder.words.weight": (words, word_size)}
        shapes |= Linear.shapes("decoder.begin", hidden_size, "features")
        shapes |= recurrent_shapes("decoder.gru", 3, word_size, hidden_size)
        return shapes | Linear.shapes("decoder.output", word_size, hidden_size)

    def start(self, embeddings: np.ndarray) -> State:
        """Return the state ``(N, H)`` made of the embeddings ``(N, D)``."""
        return (self.begin(embeddings),)

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        h = self.gru.step(self.gru.inputs(self.words[token_ids]), state[0])
        return log_softmax(product(self.output(h), self.words.columns)), (h,)
