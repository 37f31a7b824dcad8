"""The captioner in NumPy: the decoder's inputs for an image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from saywhere.configs.captioner import CaptionerConfig
from saywhere.engines.arrays.decoders import AttentionDecoder
from saywhere.engines.arrays.layers import Linear, Ngrams, Shapes, Weights, layer_norm, relu
from saywhere.engines.arrays.pooling import ImageMaps, require_size
from saywhere.engines.engine import BoundImages, Decoder
from saywhere.text import Vocabulary


class Captioner:
    """The captioner; see :class:`saywhere.engines.engine.Captioner`."""

    def __init__(self, config: CaptionerConfig, vocabulary: Vocabulary, weights: Weights) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights

    @staticmethod
    def shapes(config: CaptionerConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name; ``words`` is V."""
        shapes = AttentionDecoder.shapes(config, words) | Linear.shapes("narrow", config.region_size, "features")
        return shapes | Ngrams.shapes(config.ngrams)

    @cached_property
    def _attention(self) -> AttentionDecoder:
        return AttentionDecoder(self._weights.below("decoder"), self.config)

    @cached_property
    def _narrow(self) -> Linear:
        return Linear(self._weights.below("narrow"))

    @cached_property
    def ngrams(self) -> Ngrams | None:
        return Ngrams.read(self._weights.below("ngrams"), len(self.vocabulary)) if self.config.ngrams.count else None

    def prepare(self) -> None:
        """Read the weights."""
        _ = self.ngrams, self._attention, self._narrow

    def bind_images(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray | None]) -> BoundImages:
        wholes = np.concatenate([self._grid(image, 1)[0] for image in maps])
        rows = [self._attended(image, given) for image, given in zip(maps, boxes, strict=True)]
        bound = self._attention.bind([relu(self._narrow(features)) for features, _ in rows])
        return BoundImages(bound, wholes, [found for _, found in rows], [None] * len(maps), bound.attention)

    def _grid(self, image: ImageMaps, cells: int) -> tuple[np.ndarray, np.ndarray]:
        features, boxes = image.cells(cells, self.config)
        require_size(features, self._weights.shape("decoder.begin.weight")[1])
        return layer_norm(features), boxes

    def _attended(self, image: ImageMaps, given: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and boxes of the regions that the decoder attends to."""
        if self.config.attend_to == "grid":
            return self._grid(image, self.config.grid)
        if given is None:
            raise ValueError("the regions of a captioner that attends to proposals are given")
        return layer_norm(image.features(given, self.config)), given

    def box_embeddings(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> tuple[Decoder, np.ndarray]:
        raise ValueError("the decoder attention captions whole images")
