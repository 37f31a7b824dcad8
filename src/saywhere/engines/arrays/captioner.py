"""The captioner in numpy: what its decoder is given of an image or of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from saywhere.configs.captioner import CaptionerConfig
from saywhere.engines.arrays.attention import AttentionDecoder
from saywhere.engines.arrays.decoders import GruDecoder, LstmDecoder, RnnDecoder
from saywhere.engines.arrays.image_maps import ImageMaps, box_features, grid_features, require_size, whole_image
from saywhere.engines.arrays.layers import (
    Linear,
    Weights,
    layer_norm,
    relu,
)
from saywhere.engines.arrays.ngrams import Ngrams
from saywhere.engines.engine import BoundImages, Decoder
from saywhere.text import Vocabulary


class Captioner:
    """The captioner; see :class:`saywhere.engines.engine.Captioner`."""

    def __init__(self, config: CaptionerConfig, vocabulary: Vocabulary, weights: Weights) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights

    @cached_property
    def _attention(self) -> AttentionDecoder:
        return AttentionDecoder(self._weights.below("decoder"), self.config)

    @cached_property
    def _plain(self) -> Decoder:
        kinds = {"rnn": RnnDecoder, "gru": GruDecoder, "lstm": LstmDecoder}
        return kinds[self.config.decoder](self._weights.below("decoder"))

    @cached_property
    def _narrow(self) -> Linear:
        return Linear(self._weights.below("narrow"))

    @cached_property
    def _feature_size(self) -> int:
        first = {"rnn": "decoder.image.weight", "lstm": "decoder.encode.0.weight"}
        return self._weights.shape(first.get(self.config.decoder, "decoder.begin.weight"))[1]

    @cached_property
    def ngrams(self) -> Ngrams | None:
        """What people would say of an image; None if there is nothing, or it is not to be asked."""
        return Ngrams.read(self._weights.below("ngrams"), len(self.vocabulary)) if self.config.ngrams.asked else None

    def prepare(self) -> None:
        """Read the weights."""
        _ = self.ngrams, (self._attention, self._narrow) if self.config.decoder == "attention" else self._plain

    def bind_images(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray | None]) -> BoundImages:
        """Return the decoder of images; ``boxes`` are the regions to attend to, None to let the network choose."""
        if self.config.describe_boxes:
            wholes = self.box_embeddings(maps, [whole_image(image) for image in maps])[1]
        else:
            wholes = np.concatenate([self._grid(image, 1)[0] for image in maps])
        corners: list[np.ndarray | None] = [None] * len(maps)
        if self.config.decoder != "attention":
            return BoundImages(self._plain, wholes, [np.zeros((0, 4), np.float32)] * len(maps), corners, None)
        rows = [self._attended(image, given) for image, given in zip(maps, boxes, strict=True)]
        bound = self._attention.bind([relu(self._narrow(features)) for features, _ in rows])
        attention = partial(bound.attention, wholes)
        return BoundImages(bound, wholes, [found for _, found in rows], corners, attention)

    def _grid(self, image: ImageMaps, cells: int) -> tuple[np.ndarray, np.ndarray]:
        features, boxes = grid_features(image, cells, self.config.levels, self.config.head)
        require_size(features, self._feature_size)
        return layer_norm(features), boxes

    def _attended(self, image: ImageMaps, given: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and boxes of the regions that an image's words attend to."""
        if self.config.attend_to == "grid":
            return self._grid(image, self.config.grid)
        if given is None:
            raise ValueError("the regions of a captioner that attends to proposals are given")
        return layer_norm(box_features(image, given, self.config.levels, self.config.head)), given

    def box_embeddings(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> tuple[Decoder, np.ndarray]:
        """Return the decoder, and embeddings of all images' boxes one after the other."""
        rows: list[np.ndarray] = []
        for image, given in zip(maps, boxes, strict=True):
            features = layer_norm(box_features(image, given, self.config.levels, self.config.head))
            if self.config.context:
                whole = box_features(image, whole_image(image), self.config.levels, self.config.head)
                behind = np.broadcast_to(layer_norm(whole), features.shape)
                features = np.concatenate((features, behind), axis=1)
            require_size(features, self._feature_size)
            rows.append(features)
        return self._plain, np.concatenate(rows)
