"""Probabilities of words and phrases in captions of an image: one for each of some thousand n-grams.

An n-gram is a tuple of 1 to 4 token ids; from length 2 on it can include START and END. Its probability of occurring
in a caption of the image is a logistic function of a low-dimensional projection of the image's embedding.
:mod:`saywhere.training.ngrams` chooses the n-grams and learns the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.configs.captioner import NgramsConfig
from saywhere.engines.arrays.layers import Linear, Shapes, Weights
from saywhere.errors import UserError
from saywhere.text import END, START

ORDER = 4
"""Length of the longest n-grams in words."""
SMALLEST = 1e-9
STORED = ("keys", "offsets", "rarity", "lengths", "token_ids")
"""Names of the n-gram arrays in a model's weights."""

Ngram = tuple[int, ...]


def ngrams_of(token_ids: Sequence[int], size: int) -> list[Ngram]:
    """Return the n-grams of length ``size`` in a sentence, in order; from length 2 on with START and END."""
    ids = [START, *token_ids, END] if size > 1 else list(token_ids)
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """G n-grams, with the weights that predict their probabilities from an image.

    Attributes:
        projection: ``(F, D)`` projection of an image's embedding.
        bias: ``(D,)`` its bias.
        keys: ``(G, D)`` weights of the n-grams, stored as integers.
        offsets: ``(G,)`` log-odds without an image.
        rarity: ``(G,)`` natural log of 1 / the fraction of images with the n-gram in their captions.
        lengths: ``(G,)`` number of words in each.
        rows: index and rarity of each n-gram.
    """

    projection: np.ndarray
    bias: np.ndarray
    keys: np.ndarray
    offsets: np.ndarray
    rarity: np.ndarray
    lengths: np.ndarray
    rows: Mapping[Ngram, tuple[int, float]]

    @classmethod
    def read(cls, weights: Weights, vocabulary_size: int) -> Ngrams:
        """Create them from the weights of a model; ``UserError`` as :meth:`unpack`."""
        query, arrays = weights.below("query"), {name: weights[name] for name in STORED}
        return cls.unpack(query.transposed("weight"), query["bias"], arrays, vocabulary_size)

    @staticmethod
    def shapes(config: NgramsConfig) -> Shapes:
        """Return the shapes of the arrays it reads, by name."""
        shapes = Linear.shapes("ngrams.query", config.size, "features")
        shapes |= {"ngrams.keys": (config.count, config.size), "ngrams.token_ids": (config.words,)}
        return shapes | {f"ngrams.{kind}": (config.count,) for kind in ("offsets", "rarity", "lengths")}

    @classmethod
    def unpack(
        cls, projection: np.ndarray, bias: np.ndarray, arrays: Mapping[str, np.ndarray], vocabulary_size: int
    ) -> Ngrams:
        """Create them from the arrays :data:`STORED`; ``UserError`` if lengths or the V token ids do not fit."""
        lengths, token_ids = arrays["lengths"].astype(np.int64), arrays["token_ids"]
        fit = lengths.sum() == len(token_ids) and ((lengths > 0) & (lengths <= ORDER)).all()
        if not fit or not ((token_ids >= 0) & (token_ids < vocabulary_size)).all():
            raise UserError("the n-grams of the part captioner do not fit their lengths or its vocabulary")
        keys, offsets, rarity = (arrays[name].astype(np.float32) for name in STORED[:3])
        ids, known = (
            token_ids.tolist(),
            zip(lengths.tolist(), np.cumsum(lengths).tolist(), rarity.tolist(), strict=True),
        )
        rows = {tuple(ids[end - n : end]): (row, rare) for row, (n, end, rare) in enumerate(known)}
        return cls(projection, bias, keys, offsets, rarity, lengths, rows)

    def probabilities(self, embeddings: np.ndarray) -> np.ndarray:
        """Return the probability ``(N, G)`` of each n-gram for images with embeddings ``(N, F)``."""
        log_odds = (embeddings @ self.projection + self.bias) @ self.keys.T + self.offsets
        return 1 / (1 + np.exp(-log_odds))

    def lifts(self, embeddings: np.ndarray) -> np.ndarray:
        """Return the ratio ``(N, G)`` of each n-gram's probability for images to that without an image."""
        return self.probabilities(embeddings) * (1 + np.exp(-self.offsets))

    def agreement(self, embeddings: np.ndarray, sentences: Sequence[WeighedNgrams]) -> list[np.ndarray]:
        """Return how well the sentences of N images agree with the probable n-grams of their images, from 0 to 1.

        This is the cosine of a sentence's n-grams and the image's probabilities, both weighted by rarity, averaged over
        the length n with weight n. ``embeddings`` are ``(N, F)``.
        """
        expected = self.probabilities(embeddings) * self.rarity
        for row in expected:
            norms = np.sqrt(np.bincount(self.lengths, row * row, ORDER + 1))
            row *= (np.arange(ORDER + 1) / sum(range(ORDER + 1)) / np.maximum(norms, SMALLEST))[self.lengths]
        of_each = zip(expected, sentences, strict=True)
        return [(own.weights @ np.where(own.rows >= 0, row[own.rows], 0)).astype(np.float32) for row, own in of_each]

    def weigh(self, sentences: Sequence[Sequence[int]]) -> WeighedNgrams:
        """Return the weighted n-grams of several sentences, given without END.

        N-grams that are not stored count as rare as the rarest stored one.
        """
        places, sizes = dict[Ngram, int](), range(1, ORDER + 1)
        found = [
            [places.setdefault(ngram, len(places)) for size in sizes for ngram in ngrams_of(ids, size)]
            for ids in sentences
        ]
        weights = np.zeros((len(found), len(places)))
        for row, own in zip(weights, found, strict=True):
            row += np.bincount(np.array(own, np.int64), minlength=len(places))
        unknown = -1, float(self.rarity.max(initial=0.0))
        known = [self.rows.get(ngram, unknown) for ngram in places]
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
