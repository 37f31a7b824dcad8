"""What people said of images that are like this one.

Images and sentences are compared in a space of few dimensions, in which a sentence is near to images that it fits. A
sentence that fits every image says nothing of this one: how common it is, the soft maximum of its products with images
at large (:mod:`saywhere.engines.arrays.hubness`), is taken off. :mod:`saywhere.training.neighbours` learns the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from saywhere.engines.arrays.layers import Weights
from saywhere.errors import UserError

SMALLEST = 1e-12
STORED = ("keys", "commonness", "lengths", "token_ids")
"""The arrays of the sentences in a model's weights."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Hold sentences of training images and the space in which they are found.

    Attributes:
        projection: ``(F, D)`` of an image's embedding.
        bias: ``(D,)`` of it.
        keys: ``(J, D)`` vectors of the sentences, as whole numbers.
        commonness: ``(J,)`` of the sentences, in the unit of products with the keys.
        sentences: ``(J,)`` arrays of the token ids of each.
    """

    projection: np.ndarray
    bias: np.ndarray
    keys: np.ndarray
    commonness: np.ndarray
    sentences: tuple[np.ndarray, ...]

    @classmethod
    def read(cls, weights: Weights, vocabulary_size: int) -> Neighbours:
        """Make them of the weights of a model; ``UserError`` as :meth:`unpack`."""
        query, arrays = weights.below("query"), {name: weights[name] for name in STORED}
        return cls.unpack(query.transposed("weight"), query["bias"], arrays, vocabulary_size)

    @classmethod
    def unpack(
        cls, projection: np.ndarray, bias: np.ndarray, arrays: Mapping[str, np.ndarray], vocabulary_size: int
    ) -> Neighbours:
        """Make them of arrays as they are stored.

        Args:
            projection, bias: see the attributes.
            arrays: those of :data:`STORED`: beside keys and commonness the lengths ``(J,)`` of the sentences, and the
                token ids of all of them, one after the other.
            vocabulary_size: V.

        Raises:
            UserError: the sentences have other words than their lengths say, or none of the vocabulary.
        """
        ends, token_ids = np.cumsum(arrays["lengths"], dtype=np.int64), arrays["token_ids"]
        if ends[-1] != len(token_ids) or not ((token_ids >= 0) & (token_ids < vocabulary_size)).all():
            raise UserError("the sentences of the part captioner do not fit their lengths or its vocabulary")
        sentences = tuple(np.split(token_ids.astype(np.int64), ends[:-1]))
        return cls(projection, bias, arrays["keys"].astype(np.float32), arrays["commonness"], sentences)

    def nearest(self, embeddings: np.ndarray, count: int) -> list[list[np.ndarray]]:
        """Return for each image, by its embedding ``(N, F)``, the ``count`` sentences that fit it best, best first."""
        queries = embeddings @ self.projection + self.bias
        queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), SMALLEST)
        fits = queries @ self.keys.T - self.commonness
        count = min(count, len(self.sentences))
        found = np.argpartition(-fits, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(fits, found, axis=1), axis=1, kind="stable")
        return [[self.sentences[j] for j in row] for row in np.take_along_axis(found, order, axis=1).tolist()]
