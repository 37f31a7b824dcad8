"""DenseCap in NumPy: the recognition network and the region decoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np

from saywhere.boxes import BoxCoder
from saywhere.configs.densecap import DenseCapConfig
from saywhere.engines.arrays.decoders import LstmDecoder
from saywhere.engines.arrays.layers import BatchNorm, Linear, Ngrams, Shapes, Weights, relu
from saywhere.engines.arrays.pooling import ImageMaps, require_size
from saywhere.engines.engine import RegionHeadOutput
from saywhere.text import Vocabulary


class DenseCap:
    """DenseCap's region head and decoder; see :class:`saywhere.engines.engine.DenseCap`."""

    def __init__(
        self, config: DenseCapConfig, vocabulary: Vocabulary, weights: Weights, layers: Weights | None = None
    ) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights
        self._layers = weights if layers is None else layers  # that write phrases
        self._score = (weights.below("region_head") if layers is None else layers).below("score")
        self.box_coder = BoxCoder(config.max_log_scale)

    @staticmethod
    def shapes(config: DenseCapConfig, words: int) -> Shapes:
        """Return the shapes of the arrays it reads, by name; ``words`` is V."""
        size, first = config.embed_dim, config.fc_size or config.embed_dim
        channels = config.proposals.pyramid_channels
        layers = LstmDecoder.shapes(size, words, config.word_size, config.hidden_size)
        if config.phrase_levels:
            layers |= {f"phrase_head.0.{kind}": ("features",) for kind in ("running_mean", "running_var")}
            layers |= Linear.shapes("phrase_head.2", size, "features")
        before = layers | Linear.shapes("score", 1, size) if config.finetuned else {}
        start: Shapes = {f"start.{name}": shape for name, shape in before.items()}
        head: Shapes = {
            **Linear.shapes("region_head.layers.1", first, channels * config.pool_size**2 or "pooled"),
            **Linear.shapes("region_head.layers.4", size, first),
            **Linear.shapes("region_head.score", 1, size),
            **Linear.shapes("region_head.offset", 4, size),
        }
        return head | layers | start | Ngrams.shapes(config.ngrams)

    @cached_property
    def decoder(self) -> LstmDecoder:
        return LstmDecoder(self._layers.below("decoder"))

    @cached_property
    def start(self) -> Self:
        if not self.config.finetuned:
            return self
        return type(self)(self.config, self.vocabulary, self._weights, self._weights.below("start"))

    @cached_property
    def _head(self) -> tuple[Linear, Linear, Linear, Linear]:
        head = self._weights.below("region_head")
        stored = head.stored("layers.1.weight")
        by_channel = stored.reshape(len(stored), -1, self.config.pool_size**2)
        by_point = np.ascontiguousarray(by_channel.transpose(0, 2, 1))  # in the order of the pooling
        weight = by_point.reshape(len(stored), -1)
        first = Linear(Weights.of({"weight": weight, "bias": head.stored("layers.1.bias")}))
        second, offset = (Linear(head.below(name)) for name in ("layers.4", "offset"))
        return first, second, Linear(self._score), offset

    def prepare(self) -> None:
        """Read the weights."""
        _ = self.decoder, self._head, self._phrase_head, self.ngrams

    @cached_property
    def _phrase_head(self) -> tuple[BatchNorm, Linear] | None:
        if not self.config.phrase_levels:
            return None
        head = self._layers.below("phrase_head")
        return BatchNorm(head.below("0")), Linear(head.below("2"))

    @cached_property
    def ngrams(self) -> Ngrams | None:
        return Ngrams.read(self._weights.below("ngrams"), len(self.vocabulary)) if self.config.ngrams.count else None

    def phrase_features(
        self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        if self._phrase_head is None or not maps:
            return list(embeddings)
        each, levels = zip(maps, boxes, embeddings, strict=True), self.config.phrase_levels
        features = np.concatenate([image.phrase_features(rows, levels, own) for image, rows, own in each])
        require_size(features, len(self._phrase_head[0].scale))
        return _split(features, boxes)

    def phrase_embeddings(self, features: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._phrase_head is None or not features:
            return list(features)
        standardise, layer = self._phrase_head
        return _split(relu(layer(standardise(np.concatenate(features)))), features)

    def region_head(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        if not maps:
            return []
        first, second, score, offset = self._head
        size, ends = self.config.pool_size, np.cumsum([0, *(len(rows) for rows in boxes)])
        pooled = np.empty((ends[-1], size * size, maps[0].regions.cells.shape[1]), np.float32)
        for image, rows, start in zip(maps, boxes, ends.tolist(), strict=False):
            image.regions.pool(rows, size, pooled[start : start + len(rows)])
        inputs = pooled.reshape(-1, first.weight.shape[0])  # all images together, to read the weights only once
        embeddings = relu(second(relu(first(inputs))))
        ends = ends[1:-1]
        parts = (np.split(part, ends) for part in (embeddings, score(embeddings)[:, 0], offset(embeddings)))
        return [RegionHeadOutput(*output) for output in zip(*parts, strict=True)]


def _split(rows: np.ndarray, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of each of ``parts``, in order."""
    return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])
