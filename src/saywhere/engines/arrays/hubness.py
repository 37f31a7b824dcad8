"""Hubs: images that resemble every sentence, and sentences that resemble every image.

In spaces of many dimensions some points are near to very many others (Radovanović et al., 2010): such an image comes
first for sentences of other images. How near a point is to points at large can be known beforehand, and taken off
(Smith et al., 2017; Bogolin et al., 2022, who keep a bank of queries). Here typical texts and typical images stand for
the bank; they were fitted to what a bank says (:mod:`saywhere.training.hubness`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saywhere.configs.aligner import AlignerConfig
from saywhere.engines.arrays.layers import Linear, Shapes, Weights


@dataclass(frozen=True, eq=False)
class Typical:
    """Typical vectors; similarity with the bank: ``temperature * log(sum over j of exp(vector_j · x + constant_j))``.

    Attributes:
        vectors: ``(J, D)`` typical members of the bank, divided by the temperature.
        constants: ``(J,)``.
        temperature: of similarities.
    """

    vectors: np.ndarray
    constants: np.ndarray
    temperature: float

    def hubness(self, products: np.ndarray) -> float:
        """Return how similar to the bank that is whose products with the vectors are given ``(J,)``."""
        logits = products + self.constants
        top = logits.max()
        return float(self.temperature * (top + np.log(np.exp(logits - top).sum())))


@dataclass(frozen=True, eq=False)
class Hubness:
    """Typical ``texts`` and ``images`` of an aligner."""

    texts: Typical
    images: Typical

    @classmethod
    def read(cls, weights: Weights) -> Hubness:
        """Make it of the weights of a model."""
        parts = zip((weights.below("texts"), weights.below("images")), weights["temperatures"].tolist(), strict=True)
        return cls(*(Typical(layer["weight"], layer["bias"], temperature) for layer, temperature in parts))

    @staticmethod
    def shapes(config: AlignerConfig) -> Shapes:
        """Return the shapes of the arrays that it reads, by their names."""
        shapes: Shapes = {"hubs.temperatures": (2,)}
        for side in ("texts", "images"):
            shapes |= Linear.shapes(f"hubs.{side}", config.hubs, config.embed_dim)
        return shapes

    def of_image(self, vectors: np.ndarray) -> float:
        """Return how similar an image, by the vectors ``(R, D)`` of its regions, is to texts at large.

        As in Eq. 8 the best region counts for each text. An image without regions is similar to none: 0.
        """
        return self.texts.hubness((vectors @ self.texts.vectors.T).max(axis=0)) if len(vectors) else 0.0

    def of_text(self, vectors: np.ndarray) -> float:
        """Return how similar a text, by the weighted vectors ``(T, D)`` of its words, is to images at large."""
        return self.images.hubness(self.images.vectors @ vectors.sum(axis=0))
