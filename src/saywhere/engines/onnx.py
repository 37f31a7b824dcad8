"""The engine without torch: the trunk as one graph in ONNX Runtime, everything else in numpy.

The graph turns pixels ``(1, 3, H, W)`` into the maps of the backbone, ``map8`` and so on by their strides, and, where
the trunk has them, into ``head``, the maps of the pyramid (``region8`` ...), and ``logits`` and ``offsets`` of anchors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.box_coding import BoxCoder
from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.nouns import NounsConfig
from saywhere.engines.arrays.attention import AttentionDecoder
from saywhere.engines.arrays.decoders import GruDecoder, LstmDecoder, RnnDecoder
from saywhere.engines.arrays.hubness import Hubness
from saywhere.engines.arrays.image_maps import (
    ImageMaps,
    box_features,
    class_features,
    grid_features,
    require_size,
    whole_image,
)
from saywhere.engines.arrays.layers import BatchNorm, Linear, Weights, in_single, layer_norm, relu, side_by_side
from saywhere.engines.arrays.ngrams import Ngrams
from saywhere.engines.arrays.requirements import refused_options, require_shapes
from saywhere.engines.arrays.text_encoder import TextEncoder
from saywhere.engines.engine import BoundImages, Decoder, EncodedText, RegionHeadOutput
from saywhere.engines.onnx_trunk import OnnxTrunk
from saywhere.engines.session import PRECISIONS, weights_digest
from saywhere.errors import UserError
from saywhere.models.bundle import GRAPH, GRAPH_INT8, WEIGHTS, Bundle, weight_prefix
from saywhere.text import PAD, Vocabulary


def load(
    name_or_folder: str | Path,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "float32",
) -> OnnxEngine:
    """Return the engine of a model folder that has a graph, as ``saywhere export`` writes it.

    Args:
        name_or_folder: name of a bundled model, a model folder, or a hub id ``owner/name``.
        device: None or ``cpu``.
        options: of its configuration, to be others than the stored ones, by name with dots.
        threads: of a computation; as many as the process may use if None.
        precision: of the trunk: ``float32``, or ``int8`` if the folder has that graph.

    Raises:
        UserError: the folder has no such graph, its files do not belong together, the device is not a CPU, or an option
            does not fit.
    """
    if device not in (None, "cpu"):
        raise UserError(f"the engine onnx runs on the CPU, not on {device}: choose the engine torch")
    stored = Bundle.read(name_or_folder)
    bundle = stored.with_options(options or {})
    for option in ("backbone", "strides", "vgg_channels"):
        if getattr(bundle.trunk, option) != getattr(stored.trunk, option):
            raise UserError(f"{stored.folder / GRAPH} is the graph of another trunk.{option}, which cannot be changed")
    return OnnxEngine(bundle, threads, precision)


class OnnxEngine:
    """Run a bundle on a CPU; see :class:`saywhere.engines.engine.Engine`. Parts are read when they are first used.

    Args:
        bundle: with a graph.
        threads: of a computation; as many as the process may use if None.
        precision: of the trunk: ``float32``, or ``int8`` if the bundle has that graph.

    Raises:
        UserError: there is no such graph, the weights do not fit the options, or only the engine torch runs one.
            (That the graph belongs to the weights is checked before the first image.)
    """

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str = "float32") -> None:
        if refused := refused_options(bundle.trunk, bundle.configs):
            raise UserError(f"{bundle.folder}: only the engine torch runs {' and '.join(refused)}")
        if not (bundle.folder / GRAPH).is_file():
            raise UserError(f"{bundle.folder} has no {GRAPH}: make it with saywhere export, or use the engine torch")
        if precision not in PRECISIONS:
            raise UserError(f"no precision {precision!r}; there are {' and '.join(PRECISIONS)}")
        if precision == "int8" and not (bundle.folder / GRAPH_INT8).is_file():
            raise UserError(f"{bundle.folder} has no {GRAPH_INT8}: make it with saywhere export --int8")
        self._bundle, self._precision, self.calibration = bundle, precision, bundle.calibration
        self._weights = Weights.open(bundle.folder / WEIGHTS)
        try:
            for part, config in bundle.configs.items():
                require_shapes(part, config, len(bundle.vocabularies[part]), self._weights.below(weight_prefix(part)))
        except UserError as error:
            raise UserError(f"{bundle.folder}: {error}") from None
        self.trunk = OnnxTrunk(bundle, self._weights.below("trunk"), threads, precision)
        have = bundle.configs
        parts = {
            "densecap": OnnxDenseCap,
            "aligner": OnnxAligner,
            "captioner": OnnxCaptioner,
            "nouns": OnnxNouns,
        }
        self.densecap, self.aligner, self.captioner, self.nouns = (
            kind(have[part], bundle.vocabularies[part], self._weights.below(weight_prefix(part)))
            if part in have
            else None
            for part, kind in parts.items()
        )

    def prepare(self, parts: Collection[str]) -> None:
        """Read the weights of some parts, which are otherwise read when they are first used.

        ``aligner.last`` is what captions need of the aligner.
        """
        readers = {
            "densecap": self.densecap,
            "aligner": self.aligner,
            "aligner.last": None if self.aligner is None else self.aligner.last,
            "captioner": self.captioner,
            "nouns": self.nouns,
        }
        for part in parts:
            if (reader := readers[part]) is not None:
                reader.prepare()

    def digest(self) -> str:
        """Return a hash of the weights, the configurations, the calibration and the precision."""
        configs = {part: config.to_dict() for part, config in self._bundle.configs.items()}
        words = {part: vocabulary.tokens for part, vocabulary in self._bundle.vocabularies.items()}
        digest = self._hash([configs, words, self.calibration.to_dict()])
        with open(self._bundle.folder / WEIGHTS, "rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
        return digest.hexdigest()

    def vectors_digest(self) -> str:
        """Return a hash of the weights and options on which the aligner's vectors depend, and of the precision."""
        config, words = self._bundle.configs["aligner"], self._bundle.vocabularies["aligner"].tokens
        assert isinstance(config, AlignerConfig)
        digest = self._hash([config.vector_options(), words])
        for part in ("trunk", "aligner"):
            digest.update(weights_digest(self._weights.below(part)).encode())
        return digest.hexdigest()

    def _hash(self, facts: list[Any]) -> hashlib.blake2b:
        """A hash that knows facts, the precision, and how pixels are scaled."""
        digest = hashlib.blake2b(b"onnx", digest_size=16)
        if self._precision == "int8":
            digest.update((self._bundle.folder / GRAPH_INT8).read_bytes())
        pixels = [self._bundle.mean, self._bundle.std]
        digest.update(json.dumps([*facts, pixels], sort_keys=True).encode())
        return digest


class OnnxDenseCap:
    """DenseCap's region head and decoder; see :class:`saywhere.engines.engine.DenseCap`."""

    def __init__(self, config: DenseCapConfig, vocabulary: Vocabulary, weights: Weights) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights
        self.box_coder = BoxCoder(config.max_log_scale)

    @cached_property
    def decoder(self) -> LstmDecoder:
        """The region decoder."""
        return LstmDecoder(self._weights.below("decoder"))

    @cached_property
    def _head(self) -> tuple[Linear, Linear, Linear, Linear]:
        head = self._weights.below("region_head")
        stored = head.stored("layers.1.weight")
        by_channel = stored.reshape(len(stored), -1, self.config.pool_size**2)
        by_point = in_single(by_channel.transpose(0, 2, 1))  # as the pooling gives them
        weight = by_point.reshape(len(stored), -1)
        first = Linear(Weights.of({"weight": weight, "bias": head.stored("layers.1.bias")}), many_rows=True)
        second, score, offset = (Linear(head.below(name)) for name in ("layers.4", "score", "offset"))
        return first, second, score, offset

    def prepare(self) -> None:
        """Read the weights."""
        _ = self.decoder, self._head

    def region_head(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        """Return embeddings, logits and offsets of each image's boxes."""
        if not maps:
            return []
        first, second, score, offset = self._head
        size, ends = self.config.pool_size, np.cumsum([0, *(len(rows) for rows in boxes)])
        pooled = np.empty((ends[-1], size * size, maps[0].regions.cells.shape[1]), np.float32)
        for image, rows, start in zip(maps, boxes, ends.tolist(), strict=False):
            image.regions.pool(rows, size, pooled[start : start + len(rows)])
        inputs = pooled.reshape(-1, first.weight.shape[0])  # of all images together: weights are read once
        embeddings = relu(second(relu(first(inputs))))
        ends = ends[1:-1]
        parts = (np.split(part, ends) for part in (embeddings, score(embeddings)[:, 0], offset(embeddings)))
        return [RegionHeadOutput(*output) for output in zip(*parts, strict=True)]


class OnnxAligner:
    """The aligner; see :class:`saywhere.engines.engine.Aligner`."""

    def __init__(
        self,
        config: AlignerConfig,
        vocabulary: Vocabulary,
        weights: Weights,
        last: _AlignerEncoder | None = None,
    ) -> None:
        self.config, self.vocabulary, self._weights, self._is_last = config, vocabulary, weights, last is not None
        numbers = range(config.encoders)
        self._encoders = [_AlignerEncoder(config, weights, n) for n in numbers] if last is None else [last]

    @cached_property
    def _standardise(self) -> BatchNorm:
        return BatchNorm(self._weights.below("standardise"))

    @cached_property
    def hubness(self) -> Hubness | None:
        """What tells images and texts that resemble everything; None if it was not fitted."""
        known = self.config.hubs and self.config.hubness and not self._is_last
        return Hubness.read(self._weights.below("hubs")) if known else None

    @cached_property
    def last(self) -> OnnxAligner:
        """The last of its encoders alone, whose weights both have."""
        return OnnxAligner(self.config, self.vocabulary, self._weights, self._encoders[-1])

    def prepare(self) -> None:
        """Read the weights."""
        _ = self._standardise, self.hubness, [(encoder.text, encoder.project) for encoder in self._encoders]

    def region_vectors(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return vectors ``(R, D)`` of each image's boxes (Eq. 1)."""
        standardise, vectors = self._standardise, list[np.ndarray]()
        for image, rows in zip(maps, boxes, strict=True):
            features = box_features(image, rows, self.config.levels, self.config.head)
            require_size(features, len(standardise.scale))
            if self.config.signed_sqrt:
                features = np.sign(features) * np.sqrt(np.abs(features))
            features = standardise(features)
            parts = [encoder.project(features) for encoder in self._encoders]
            vectors.append(side_by_side(parts, self.config.normalize != "none"))
        return vectors

    def text_vectors(self, token_ids: np.ndarray) -> EncodedText:
        """Return the vectors of the words of sentences ``(S, T)``, padded on the right (Eqs. 2 to 6)."""
        parts = [encoder.text(token_ids) for encoder in self._encoders]
        return EncodedText(side_by_side(parts, self.config.normalize == "both"), token_ids != PAD)


class _AlignerEncoder:
    """One of an aligner's encoders, with the projection of regions into its space."""

    def __init__(self, config: AlignerConfig, weights: Weights, number: int) -> None:
        self._config, self._weights, self._number = config, weights, number

    @cached_property
    def text(self) -> TextEncoder:
        return TextEncoder(self._weights.below(f"encoders.{self._number}"), self._config)

    @cached_property
    def project(self) -> Linear:
        return Linear(self._weights.below(f"projects.{self._number}"))


class OnnxCaptioner:
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


class OnnxNouns:
    """The classifier of regions; see :class:`saywhere.engines.engine.Nouns`."""

    def __init__(self, config: NounsConfig, vocabulary: Vocabulary, weights: Weights) -> None:
        self.config, self.vocabulary, self._weights = config, vocabulary, weights

    @cached_property
    def _layers(self) -> tuple[Linear, Linear]:
        return Linear(self._weights.below("imagenet")), Linear(self._weights.below("kinds"))

    def prepare(self) -> None:
        """Read the weights."""
        _ = self._layers

    def classify(
        self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return logits of ImageNet's classes and of kinds of each image's boxes."""
        if not maps:
            return []
        classes, kinds = self._layers
        features = class_features(self.config, maps, boxes, embeddings)  # of all images: weights are read once
        require_size(features, len(kinds.weight))
        last = features[:, self.config.last_layer(features.shape[1])]
        ends = np.cumsum([len(rows) for rows in boxes])[:-1]
        return list(zip(np.split(classes(last), ends), np.split(kinds(features), ends), strict=True))
