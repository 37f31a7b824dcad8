"""What people would probably say of an image: a probability of each of some thousand words and runs of words.

An n-gram is a tuple of 1 to 4 token ids; those of two and more take in START and END. Its probability is that a
sentence of the image has it: a logistic function of the image's embedding in few dimensions.
:mod:`saywhere.training.ngrams` chooses the n-grams and learns them.
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
"""Words of the longest n-grams."""
SMALLEST = 1e-9
STORED = ("keys", "offsets", "rarity", "lengths", "token_ids")
"""The arrays of the n-grams in a model's weights."""

Ngram = tuple[int, ...]


def ngrams_of(token_ids: Sequence[int], size: int) -> list[Ngram]:
    """Return the runs of ``size`` words of a sentence, in their order; those of two and more with START and END."""
    ids = [START, *token_ids, END] if size > 1 else list(token_ids)
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """G n-grams, and the weights that predict their probabilities from an image.

    Attributes:
        projection: ``(F, D)`` of an image's embedding.
        bias: ``(D,)`` of it.
        keys: ``(G, D)`` of the n-grams, as whole numbers.
        offsets: ``(G,)`` what the log-odds are without an image.
        rarity: ``(G,)`` natural logarithm of 1 / the share of images of which the n-gram is said.
        lengths: ``(G,)`` words of each.
        rows: the number of each, and its rarity.
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
        """Make them of the weights of a model; ``UserError`` as :meth:`unpack`."""
        query, arrays = weights.below("query"), {name: weights[name] for name in STORED}
        return cls.unpack(query.transposed("weight"), query["bias"], arrays, vocabulary_size)

    @staticmethod
    def shapes(config: NgramsConfig) -> Shapes:
        """Return the shapes of the arrays that it reads, by their names."""
        shapes = Linear.shapes("ngrams.query", config.size, "features")
        shapes |= {"ngrams.keys": (config.count, config.size), "ngrams.token_ids": (config.words,)}
        return shapes | {f"ngrams.{kind}": (config.count,) for kind in ("offsets", "rarity", "lengths")}

    @classmethod
    def unpack(
        cls, projection: np.ndarray, bias: np.ndarray, arrays: Mapping[str, np.ndarray], vocabulary_size: int
    ) -> Ngrams:
        """Make them of :data:`STORED` arrays; ``UserError`` if words do not fit their lengths, or are none of the V."""
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
        """Return the probability ``(N, G)`` that each is said of images, by their embeddings ``(N, F)``."""
        log_odds = (embeddings @ self.projection + self.bias) @ self.keys.T + self.offsets
        return 1 / (1 + np.exp(-log_odds))

    def lifts(self, embeddings: np.ndarray) -> np.ndarray:
        """Return how many times as probable each is of images ``(N, G)`` as it is without a look at one."""
        return self.probabilities(embeddings) * (1 + np.exp(-self.offsets))

    def agreement(self, embeddings: np.ndarray, sentences: Sequence[WeighedNgrams]) -> list[np.ndarray]:
        """Return how well the sentences of N images agree with the probable n-grams of their images, between 0 and 1.

        The mean over n of the cosine between a sentence and the probabilities of its image, each by its rarity; longer
        n-grams count for more, as n says. ``embeddings`` are ``(N, F)``.
        """
        expected = self.probabilities(embeddings) * self.rarity
        for row in expected:
            norms = np.sqrt(np.bincount(self.lengths, row * row, ORDER + 1))
            row *= (np.arange(ORDER + 1) / sum(range(ORDER + 1)) / np.maximum(norms, SMALLEST))[self.lengths]
        of_each = zip(expected, sentences, strict=True)
        return [(own.weights @ np.where(own.rows >= 0, row[own.rows], 0)).astype(np.float32) for row, own in of_each]

    def weigh(self, sentences: Sequence[Sequence[int]]) -> WeighedNgrams:
        """Return the n-grams of several sentences without END.

        What was seldom said, and has no number, is as rare as the rarest that has one.
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
    """N-grams of B sentences with CIDEr's weights, by how rare they are; those of a length n have norm 1.

    Attributes:
        weights: ``(B, U)`` of the U different ones.
        rows: ``(U,)`` their numbers; -1 of those that have none.
    """

    weights: np.ndarray
    rows: np.ndarray
