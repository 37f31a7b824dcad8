"""The engine with torch: trained networks on a shared trunk, on any device; arrays in, arrays out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.calibration import Calibration
from saywhere.engines.arrays import layers
from saywhere.engines.arrays.layers import Ngrams
from saywhere.engines.engine import (
    TEXT_WEIGHTS,
    BoundImages,
    EncodedText,
    Hubness,
    RegionHeadOutput,
    RpnOutput,
    Typical,
)
from saywhere.errors import UserError
from saywhere.images import Preprocess
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap, StartLayers
from saywhere.networks.language.decoders.attention import AttentionDecoder
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import Trunk


class TorchEngine:
    """Run networks that share one trunk; see :class:`saywhere.engines.engine.Engine`.

    Args:
        networks: networks by part: any of ``densecap``, ``aligner``, ``captioner`` and ``nouns``; put into eval mode.
        calibration: logistic regressions fitted after training. Default: those of :class:`Calibration`.
    """

    def __init__(self, networks: Mapping[str, nn.Module], calibration: Calibration | None = None) -> None:
        self.networks, self.calibration = dict(networks), calibration or Calibration()
        for network in self.networks.values():
            network.eval()
        self._wrap()

    def _wrap(self) -> None:
        densecap, aligner, captioner, nouns = (self.networks.get(part) for part in checkpoint.NETWORKS)
        trunk = next(network.get_submodule("trunk") for network in self.networks.values())
        assert isinstance(trunk, Trunk)
        self._trunk: Trunk = trunk
        self.trunk = TorchTrunk(self._trunk)
        self.densecap = TorchDenseCap(densecap) if isinstance(densecap, DenseCap) else None
        self.aligner = TorchAligner(aligner) if isinstance(aligner, Aligner) else None
        self.captioner = TorchCaptioner(captioner) if isinstance(captioner, Captioner) else None
        self.nouns = TorchNouns(nouns) if isinstance(nouns, Nouns) else None

    @property
    def device(self) -> str:
        return str(_weight(self._trunk).device)

    def to(self, device: str) -> None:
        found = checkpoint.find_device(device)
        if found == _weight(self._trunk).device:
            return
        for network in self.networks.values():
            network.to(found)
        self._wrap()

    def digest(self) -> str:
        digest = hashlib.blake2b(repr(asdict(self.trunk.preprocess)).encode(), digest_size=16)
        digest.update(repr(self.calibration.to_dict()).encode())
        _add_weights(digest, "trunk", self._trunk.state_dict())
        digest.update(self._trunk.tower_digest.encode())
        for part, network in sorted(self.networks.items()):
            assert isinstance(network, DenseCap | Aligner | Captioner | Nouns)
            digest.update(json.dumps([network.config.to_dict(), network.vocabulary.tokens], sort_keys=True).encode())
            weights = {name: value for name, value in network.state_dict().items() if not name.startswith("trunk.")}
            _add_weights(digest, part, weights)
        return digest.hexdigest()

    def vectors_digest(self) -> str:
        network = self.networks["aligner"]
        assert isinstance(network, Aligner)
        facts = [asdict(self.trunk.preprocess), network.config.vector_options()]
        digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
        weights = network.state_dict().items()
        _add_weights(digest, "aligner", {key: value for key, value in weights if not key.startswith(TEXT_WEIGHTS)})
        digest.update(self._trunk.tower_digest.encode())
        return digest.hexdigest()


def _add_weights(digest: Any, part: str, weights: Mapping[str, Tensor]) -> None:
    for name, value in sorted(weights.items()):
        digest.update(f"{part}.{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(dtype=torch.uint8).numpy().data)


def load(
    name_or_folder: str | Path,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "float32",
) -> TorchEngine:
    """Return the engine of a model.

    Args:
        name_or_folder: name of a bundled model, a model folder, or ``hub:OWNER/NAME``.
        device: see :func:`saywhere.networks.checkpoint.find_device`.
        options: changes to the configuration, by dotted name.
        threads: number of CPU threads per computation, for the whole process. Default: torch's own number.

    Raises:
        UserError: there is no such model or device, a file is missing or damaged, an option is invalid, the model has
            no part for this engine, or the precision is not ``float32``.
    """
    if precision != "float32":
        raise UserError(f"the engine torch computes in float32, not in {precision}: choose the engine onnx")
    if threads is not None:
        torch.set_num_threads(threads)
    networks = checkpoint.load_networks(name_or_folder, checkpoint.find_device(device), options)
    if unknown := [part for part in networks if part not in checkpoint.NETWORKS]:
        raise UserError(f"{name_or_folder} is a {unknown[0]}, which only saywhere papers runs")
    bundle = Bundle.read(name_or_folder)
    return TorchEngine(networks, bundle.calibration)


class TorchTrunk:
    """The trunk; see :class:`saywhere.engines.engine.Trunk`. Its maps are :class:`ImageMaps` on the trunk's device."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk

    @property
    def preprocess(self) -> Preprocess:
        return self._trunk.preprocess

    @torch.inference_mode()
    def encode(self, pixels: Sequence[np.ndarray]) -> list[ImageMaps]:
        """Return the maps of images ``(3, h, w)`` of any sizes; on a CPU the backbone runs on one image at a time."""
        like = _weight(self._trunk)
        return ImageMaps.look(self._trunk, [torch.tensor(image).to(like) for image in pixels])

    @torch.inference_mode()
    def propose(self, maps: ImageMaps) -> RpnOutput:
        (rpn,) = ImageMaps.rpns([maps])
        return RpnOutput(_array(rpn.anchors), _array(rpn.logits), _array(rpn.offsets))


class TorchDenseCap:
    """DenseCap; see :class:`saywhere.engines.engine.DenseCap`."""

    def __init__(self, network: DenseCap, layers: StartLayers | None = None) -> None:
        self._network, self._layers = network, layers or network
        self._score = network.region_head.score if layers is None else layers.score
        self.config, self.vocabulary, self.box_coder = network.config, network.vocabulary, network.box_coder
        self.decoder = TorchDecoder(self._layers.decoder, self._layers.decoder.words.weight)
        self.ngrams = _ngrams(network)
        before = network.start if layers is None else None
        self.start: TorchDenseCap = self if before is None else TorchDenseCap(network, before)

    @torch.inference_mode()
    def region_head(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        rows = [_boxes(b, m) for b, m in zip(boxes, maps, strict=True)]
        out = self._network.apply_region_head(maps, rows)
        logits = [self._score(o.embeddings).squeeze(1) for o in out]
        return [
            RegionHeadOutput(_array(o.embeddings), _array(scores), _array(o.offsets))
            for o, scores in zip(out, logits, strict=True)
        ]

    @torch.inference_mode()
    def phrase_features(
        self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        rows = [_boxes(b, m) for b, m in zip(boxes, maps, strict=True)]
        if not rows:
            return []
        given = torch.from_numpy(np.concatenate(embeddings)).to(rows[0])
        return _split(_array(self._network.phrase_features(maps, rows, given)), rows)

    @torch.inference_mode()
    def phrase_embeddings(self, features: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not features:
            return []
        given = torch.from_numpy(np.concatenate(features)).to(_weight(self._network.trunk))
        return _split(_array(given if self._layers.phrase_head is None else self._layers.phrase_head(given)), features)


class TorchAligner:
    """The aligner; see :class:`saywhere.engines.engine.Aligner`."""

    def __init__(self, network: Aligner, last: bool = False) -> None:
        self._network, self._last = network, last
        self.config, self.vocabulary = network.config, network.vocabulary
        self.hubness = None if last else _hubness(network)

    @property
    def last(self) -> TorchAligner:
        return TorchAligner(self._network, last=True)

    @torch.inference_mode()
    def region_vectors(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not maps:
            return []
        features = [self._network.region_features(m, _boxes(b, m)) for m, b in zip(maps, boxes, strict=True)]
        vectors, _ = self._network.embed_regions(features, self._last)
        return [_array(rows[: len(own)]) for rows, own in zip(vectors, features, strict=True)]

    @torch.inference_mode()
    def text_vectors(self, token_ids: np.ndarray) -> EncodedText:
        token_rows = torch.tensor(token_ids, device=self._network.log_scale.device)
        encoded = self._network.encode_text(token_rows, self._last)
        return EncodedText(_array(encoded.vectors), encoded.mask.cpu().numpy())


def _hubness(network: Aligner) -> Hubness | None:
    hubs = network.hubs
    if hubs is None or not network.config.hubness:
        return None
    layers = zip((hubs.texts, hubs.images), hubs.temperatures.tolist(), strict=True)
    texts, images = (Typical(_array(layer.weight), _array(layer.bias), temperature) for layer, temperature in layers)
    return Hubness(texts, images)


class TorchCaptioner:
    """The captioner; see :class:`saywhere.engines.engine.Captioner`."""

    def __init__(self, network: Captioner) -> None:
        self._network = network
        self.config, self.vocabulary = network.config, network.vocabulary
        self.ngrams = _ngrams(network)

    @torch.inference_mode()
    def bind_images(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray | None]) -> BoundImages:
        network, decoder = self._network, self._network.decoder
        like = decoder.words.weight
        if not isinstance(decoder, AttentionDecoder):
            nowhere = [np.zeros((0, 4), np.float32) for _ in maps]
            bound, embeddings = network.bind(maps)
            return BoundImages(TorchDecoder(bound, like), _array(embeddings), nowhere, [None] * len(maps), None)
        given = [None if b is None else _boxes(b, m) for b, m in zip(boxes, maps, strict=True)]
        seen = network.attend(maps, given)

        @torch.inference_mode()
        def attention(token_ids: np.ndarray) -> np.ndarray:
            rows = torch.tensor(token_ids, device=like.device)
            return _array(decoder.attention(seen.embeddings, seen.features, rows, seen.mask, conditional=True))

        return BoundImages(
            TorchDecoder(decoder.bind(seen.features, seen.mask), like),
            _array(seen.embeddings),
            [_array(regions.boxes) for regions in seen.regions],
            [None if regions.corners is None else _array(regions.corners) for regions in seen.regions],
            attention,
        )

    @torch.inference_mode()
    def box_embeddings(self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray]) -> tuple[TorchDecoder, np.ndarray]:
        network = self._network
        assert not isinstance(network.decoder, AttentionDecoder), "the decoder attention captions whole images"
        rows = [network.embed(m, _boxes(b, m)) for m, b in zip(maps, boxes, strict=True)]
        return TorchDecoder(network.decoder, network.decoder.words.weight), _array(torch.cat(rows))


def _ngrams(network: DenseCap | Captioner) -> Ngrams | None:
    if (stored := network.ngrams) is None:
        return None
    arrays = {name: stored.get_buffer(name).cpu().numpy() for name in layers.STORED}
    used = [layer for layer in (stored.hidden, stored.query) if layer is not None]
    projections = tuple((_array(layer.weight.T), _array(layer.bias)) for layer in used)
    return Ngrams.unpack(projections, arrays, len(network.vocabulary))


def _split(rows: np.ndarray, parts: Sequence[Any]) -> list[np.ndarray]:
    """Return the rows of each of ``parts``, in order."""
    return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])


class TorchNouns:
    """The noun classifier of regions; see :class:`saywhere.engines.engine.Nouns`."""

    def __init__(self, network: Nouns) -> None:
        self._network = network
        self.config, self.vocabulary = network.config, network.vocabulary

    @torch.inference_mode()
    def classify(
        self, maps: Sequence[ImageMaps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [_boxes(b, m) for b, m in zip(boxes, maps, strict=True)]
        given = (
            None if embeddings is None else [torch.from_numpy(e).to(b) for e, b in zip(embeddings, rows, strict=True)]
        )
        return [(_array(classes), _array(kinds)) for classes, kinds in self._network(maps, rows, given)]


def _weight(module: nn.Module) -> Tensor:
    return next(module.parameters())


def _boxes(boxes: np.ndarray, maps: ImageMaps) -> Tensor:
    """Return boxes ``(R, 4)`` as a float32 tensor on the device of an image's maps."""
    return torch.tensor(np.asarray(boxes, np.float32).reshape(-1, 4), device=maps.maps[0].device)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()
