"""The noun classifier of regions in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import LAST_CHANNELS, places
from saywhere.engines.arrays.layers import Linear, Shapes, Weights
from saywhere.engines.arrays.pooling import ImageMaps, require_size
from saywhere.text import RESERVED, Vocabulary


class Nouns:
    """The noun classifier of regions; see :class:`saywhere.engines.engine.Nouns`."""

    def __init__(self, config: NounsConfig, vocabulary: Vocabulary, weights: Weights) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights

    @staticmethod
    def shapes(_: NounsConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name; its words are the kinds."""
        kinds = words - len(RESERVED) + 2
        return Linear.shapes("imagenet", 1000, LAST_CHANNELS) | Linear.shapes("kinds", kinds, "features")

    @cached_property
    def _layers(self) -> tuple[Linear, Linear]:
        return Linear(self._weights.below("imagenet")), Linear(self._weights.below("kinds"))

    def prepare(self) -> None:
        """Read the weights."""
        _ = self._layers

    def classify(
        self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        if not maps:
            return []
        classes, kinds = self._layers
        given = embeddings or [np.zeros((len(rows), 0), np.float32) for rows in boxes]
        each = zip(maps, boxes, given, strict=True)
        features = np.concatenate([image.class_features(rows, self.config, own) for image, rows, own in each])
        require_size(features, kinds.weight.shape[0])
        last = features[:, places(self.config.layout, features.shape[1])["head"]]
        ends = np.cumsum([len(rows) for rows in boxes])[:-1]
        return list(zip(np.split(classes(last), ends), np.split(kinds(features), ends), strict=True))
