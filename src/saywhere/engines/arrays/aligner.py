"""Deep Visual-Semantic Alignments in NumPy: regions (Eq. 1) and words (Eqs. 2 to 6) in one space."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from saywhere.configs.aligner import AlignerConfig
from saywhere.engines.arrays.layers import (
    BatchNorm,
    Gru,
    Linear,
    Shapes,
    Weights,
    in_single,
    recurrent_shapes,
    relu,
    side_by_side,
)
from saywhere.engines.arrays.pooling import ImageMaps, require_size
from saywhere.engines.engine import EncodedText, Hubness, Typical
from saywhere.text import PAD, Vocabulary


class Aligner:
    """The aligner; see :class:`saywhere.engines.engine.Aligner`."""

    def __init__(
        self, config: AlignerConfig, vocabulary: Vocabulary, weights: Weights, last: _AlignerEncoder | None = None
    ) -> None:
        self.config, self.vocabulary, self._weights, self._is_last = config, vocabulary, weights, last is not None
        numbers = range(config.encoders)
        self._encoders = [_AlignerEncoder(config, weights, n) for n in numbers] if last is None else [last]

    @staticmethod
    def shapes(config: AlignerConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name; ``words`` is V."""
        shapes: Shapes = {f"standardise.{kind}": ("features",) for kind in ("running_mean", "running_var")}
        for number in range(config.encoders):
            shapes |= Linear.shapes(f"projects.{number}", config.embed_dim // config.encoders, "features")
            shapes |= TextEncoder.shapes(f"encoders.{number}", config, words)
        if config.hubs:
            shapes["hubs.temperatures"] = (2,)
            for side in ("texts", "images"):
                shapes |= Linear.shapes(f"hubs.{side}", config.hubs, config.embed_dim)
        return shapes

    @cached_property
    def _standardise(self) -> BatchNorm:
        return BatchNorm(self._weights.below("standardise"))

    @cached_property
    def hubness(self) -> Hubness | None:
        if not self.config.hubs or not self.config.hubness or self._is_last:
            return None
        weights = self._weights.below("hubs")
        parts = zip((weights.below("texts"), weights.below("images")), weights["temperatures"].tolist(), strict=True)
        return Hubness(*(Typical(layer["weight"], layer["bias"], temperature) for layer, temperature in parts))

    @cached_property
    def last(self) -> Aligner:
        return Aligner(self.config, self.vocabulary, self._weights, self._encoders[-1])

    def prepare(self) -> None:
        """Read the weights."""
        _ = self._standardise, self.hubness, [(encoder.text, encoder.project) for encoder in self._encoders]

    def region_vectors(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[np.ndarray]:
        standardise, vectors, config = self._standardise, list[np.ndarray](), self.config
        for image, rows in zip(maps, boxes, strict=True):
            features = image.features(rows, config)
            require_size(features, len(standardise.scale))
            if self.config.signed_sqrt:
                features = np.sign(features) * np.sqrt(np.abs(features))
            features = standardise(features)
            parts = [encoder.project(features) for encoder in self._encoders]
            vectors.append(side_by_side(parts))
        return vectors

    def text_vectors(self, token_ids: np.ndarray) -> EncodedText:
        parts = [encoder.text(token_ids) for encoder in self._encoders]
        return EncodedText(side_by_side(parts), token_ids != PAD)


class _AlignerEncoder:
    """One text encoder of an aligner, with the projection of regions into its space."""

    def __init__(self, config: AlignerConfig, weights: Weights, number: int) -> None:
        self._config, self._weights, self._number = config, weights, number

    @cached_property
    def text(self) -> TextEncoder:
        return TextEncoder(self._weights.below(f"encoders.{self._number}"), self._config)

    @cached_property
    def project(self) -> Linear:
        return Linear(self._weights.below(f"projects.{self._number}"))


SUFFIXES = ("l0", "l0_reverse")
"""Suffixes of the weights of both directions."""


class TextEncoder:
    """Encode sentences by a GRU, see :class:`saywhere.networks.aligner.network.TextEncoder`."""

    def __init__(self, weights: Weights, config: AlignerConfig) -> None:
        self.config = config
        self.words = weights.stored("words.weight")
        self.encode, self.decode = Linear(weights.below("encode")), Linear(weights.below("decode"))
        self.cells = [Gru(weights.below("context"), suffix) for suffix in SUFFIXES]

    @staticmethod
    def shapes(name: str, config: AlignerConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name with the prefix ``name``; ``words`` is V."""
        hidden, size = config.hidden_size, config.embed_dim // config.encoders
        shapes: Shapes = {f"{name}.words.weight": (words, config.word_size)}
        shapes |= Linear.shapes(f"{name}.encode", hidden, config.word_size)
        shapes |= Linear.shapes(f"{name}.decode", size, hidden)
        for suffix in SUFFIXES:
            shapes |= recurrent_shapes(f"{name}.context", 3, hidden, hidden, suffix)
        return shapes

    def __call__(self, token_ids: np.ndarray) -> np.ndarray:
        """Return vectors ``(S, T, D)`` of token ids ``(S, T)``, padded on the right; zero for padding.

        Everything independent of the sentence is computed once per distinct word.
        """
        mask = token_ids != PAD
        unique, words = np.unique(token_ids, return_inverse=True)
        words = words.reshape(token_ids.shape)
        inputs = relu(self.encode(in_single(self.words[unique])))  # Eqs. 2 and 3
        back = _backwards(mask)
        forwards = self._direction(0, inputs, words, mask)  # Eqs. 4 and 5
        backwards = self._direction(1, inputs, np.take_along_axis(words, back, axis=1), mask)
        context = forwards + np.take_along_axis(backwards, back[..., None], axis=1)
        vectors = self.decode(context + inputs[words] if self.config.residual else context)  # Eq. 6
        vectors = relu(vectors) if self.config.rectified else vectors
        return vectors * mask[..., None]

    def _direction(self, number: int, inputs: np.ndarray, words: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the states ``(S, T, H)`` of one direction for the words ``(S, T)``, which index ``inputs (U, H)``.

        The words are in the order of that direction. Sentences with equal beginnings share their states, which are
        computed once.
        """
        size = inputs.shape[1]
        states = np.zeros((*words.shape, size), np.float32)
        h = np.zeros((1, size), np.float32)
        cell = self.cells[number]
        gates = cell.inputs(inputs)
        same = np.zeros(len(words), np.int64)  # the row of h with the state of each sentence
        for t in range(words.shape[1]):
            rows = np.flatnonzero(mask[:, t])
            before, now = same[rows], words[rows, t]
            _, first, same[rows] = np.unique(before * len(inputs) + now, return_index=True, return_inverse=True)
            h = cell.step(gates[now[first]], h[before[first]])
            states[rows, t] = h[same[rows]]
        return states


def _backwards(mask: np.ndarray) -> np.ndarray:
    """Return the indices ``(S, T)`` that reverse the words of each sentence; padding stays in place."""
    places = np.arange(mask.shape[1])
    return np.where(mask, mask.sum(axis=1, keepdims=True) - 1 - places, places)
