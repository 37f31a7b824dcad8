"""Probabilities of words and their runs in captions of an image or phrases of a region: some thousand n-grams.

An n-gram is a tuple of 1 to 4 token ids; from length 2 on it can include START and END. Its probability of occurring
in a text about the image or region is a logistic function of a low-dimensional projection of its features.
:mod:`saywhere.training.ngrams` chooses the n-grams and learns the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.configs.parts import NgramsConfig
from saywhere.engines.arrays.layers import Linear, Shapes, Weights
from saywhere.errors import UserError
from saywhere.text import END, START

ORDER = 4
"""Length of the longest n-grams in words."""
SMALLEST = 1e-9
STORED = ("keys", "offsets", "rarity", "lengths", "token_ids")
"""Names of the n-gram arrays in a model's weights."""

Ngram = tuple[int, ...]
Layers = tuple[tuple[np.ndarray, np.ndarray], ...]


def ngrams_of(token_ids: Sequence[int], size: int) -> list[Ngram]:
    """Return the n-grams of length ``size`` in a sentence, in order; from length 2 on with START and END."""
    ids = [START, *token_ids, END] if size > 1 else list(token_ids)
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """G n-grams, with the weights that predict their probabilities from an image or region.

    Attributes:
        layers: weight ``(F, D)`` and bias ``(D,)`` of each layer that projects the features; a ReLU between two layers.
        keys: ``(G, D)`` weights of the n-grams, stored as integers.
        offsets: ``(G,)`` log-odds without an image.
        rarity: ``(G,)`` natural log of 1 / the fraction of images or regions with the n-gram in their texts.
        lengths: ``(G,)`` number of words in each.
        rows: index and rarity of each n-gram.
    """

    layers: Layers
    keys: np.ndarray
    offsets: np.ndarray
    rarity: np.ndarray
    lengths: np.ndarray
    rows: Mapping[Ngram, tuple[int, float]]

    @classmethod
    def read(cls, weights: Weights, vocabulary_size: int) -> Ngrams:
        """Create them from the weights of a model; ``UserError`` as :meth:`unpack`."""
        names = [name for name in ("hidden", "query") if weights.has(f"{name}.weight")]
        layers = tuple((weights.transposed(f"{name}.weight"), weights[f"{name}.bias"]) for name in names)
        return cls.unpack(layers, {name: weights[name] for name in STORED}, vocabulary_size)

    @staticmethod
    def shapes(config: NgramsConfig) -> Shapes:
        """Return the shapes of the arrays it reads, by name; none without n-grams."""
        if not config.count:
            return {}
        shapes = Linear.shapes("ngrams.hidden", config.hidden, "features") if config.hidden else {}
        shapes |= Linear.shapes("ngrams.query", config.size, config.hidden or "features")
        shapes |= {"ngrams.keys": (config.count, config.size), "ngrams.token_ids": (config.words,)}
        return shapes | {f"ngrams.{kind}": (config.count,) for kind in ("offsets", "rarity", "lengths")}

    @classmethod
    def unpack(cls, layers: Layers, arrays: Mapping[str, np.ndarray], vocabulary_size: int) -> Ngrams:
        """Create them from the arrays :data:`STORED`; ``UserError`` if lengths or the V token ids do not fit."""
        lengths, token_ids = arrays["lengths"].astype(np.int64), arrays["token_ids"]
        fit = lengths.sum() == len(token_ids) and ((lengths > 0) & (lengths <= ORDER)).all()
        if not fit or not ((token_ids >= 0) & (token_ids < vocabulary_size)).all():
            raise UserError("the n-grams of a part do not fit their lengths or its vocabulary")
        keys, offsets, rarity = (arrays[name].astype(np.float32) for name in STORED[:3])
        ids, known = (
            token_ids.tolist(),
            zip(lengths.tolist(), np.cumsum(lengths).tolist(), rarity.tolist(), strict=True),
        )
        rows = {tuple(ids[end - n : end]): (row, rare) for row, (n, end, rare) in enumerate(known)}
        return cls(layers, keys, offsets, rarity, lengths, rows)

    @property
    def longest(self) -> int:
        """Length of the longest n-gram."""
        return int(self.lengths.max(initial=1))

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability ``(N, G)`` of each n-gram for images or regions with features ``(N, F)``."""
        rows = features
        for number, (weight, bias) in enumerate(self.layers):
            rows = (np.maximum(rows, 0) if number else rows) @ weight + bias
        return 1 / (1 + np.exp(-(rows @ self.keys.T + self.offsets)))

    def lifts(self, features: np.ndarray) -> np.ndarray:
        """Return the ratio ``(N, G)`` of each n-gram's probability to that without an image."""
        return self.probabilities(features) * (1 + np.exp(-self.offsets))

    def word_probabilities(self, expected: np.ndarray, token_ids: Sequence[int]) -> list[float | None]:
        """Return the probability of each of several words, given those of all n-grams ``(G,)``; None if not stored."""
        rows = [self.rows.get((number,)) for number in token_ids]
        return [None if row is None else float(expected[row[0]]) for row in rows]

    def agreement(self, features: np.ndarray, sentences: Sequence[WeighedNgrams]) -> list[np.ndarray]:
        """Return how well the texts of N images or regions agree with their probable n-grams, from 0 to 1.

        This is the cosine of a text's n-grams and the probabilities, both weighted by rarity, averaged over the length
        n with weight n. ``features`` are ``(N, F)``.
        """
        expected = self.probabilities(features) * self.rarity
        sizes = np.arange(self.longest + 1)
        for row in expected:
            norms = np.sqrt(np.bincount(self.lengths, row * row, len(sizes)))
            row *= (sizes / sizes.sum() / np.maximum(norms, SMALLEST))[self.lengths]
        of_each = zip(expected, sentences, strict=True)
        return [(own.weights @ np.where(own.rows >= 0, row[own.rows], 0)).astype(np.float32) for row, own in of_each]

    def weigh(self, sentences: Sequence[Sequence[int]], unknown: bool = True) -> WeighedNgrams:
        """Return the weighted n-grams of several sentences, given without END.

        ``unknown``: n-grams that are not stored count as rare as the rarest stored one. Otherwise they are left out.
        """
        places, sizes = dict[Ngram, int](), range(1, self.longest + 1)
        found = [
            [places.setdefault(ngram, len(places)) for size in sizes for ngram in ngrams_of(ids, size)]
            for ids in sentences
        ]
        weights = np.zeros((len(found), len(places)))
        for row, own in zip(weights, found, strict=True):
            row += np.bincount(np.array(own, np.int64), minlength=len(places))
        missing = -1, float(self.rarity.max(initial=0.0)) if unknown else 0.0
        known = [self.rows.get(ngram, missing) for ngram in places]
        weights *= np.array([rarity for _, rarity in known])
        of_size = np.array([len(ngram) for ngram in places], np.int64)
        for size in sizes:
            columns = of_size == size
            norms = np.linalg.norm(weights[:, columns], axis=1, keepdims=True)
            weights[:, columns] /= np.maximum(norms, SMALLEST)
        return WeighedNgrams(weights, np.array([row for row, _ in known], np.int64))


@dataclass(frozen=True, eq=False)
class WeighedNgrams:
    """N-grams of B sentences, weighted by rarity as in CIDEr; those of each length n have norm 1.

    Attributes:
        weights: ``(B, U)`` weights of the U distinct n-grams.
        rows: ``(U,)`` their indices; -1 for those not stored.
    """

    weights: np.ndarray
    rows: np.ndarray
