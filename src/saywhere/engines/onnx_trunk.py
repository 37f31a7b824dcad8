"""The trunk in ONNX Runtime: maps of images, and what the localization layer says of their anchors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from saywhere.boxes import anchor_grid
from saywhere.engines.arrays.image_maps import ImageMaps
from saywhere.engines.arrays.layers import Weights
from saywhere.engines.engine import RpnOutput
from saywhere.engines.session import open_session
from saywhere.errors import UserError
from saywhere.images import Preprocess
from saywhere.models.bundle import GRAPH, Bundle


class OnnxTrunk:
    """The graph in ONNX Runtime; the session is made for the first image."""

    def __init__(self, bundle: Bundle, weights: Weights, threads: int | None, precision: str) -> None:
        self._bundle, self._weights, self._threads, self._precision = bundle, weights, threads, precision
        config = bundle.trunk
        self.preprocess = Preprocess(config.long_side, config.multiple, bundle.mean, bundle.std)
        shapes = {part: c.proposals.anchors for part, c in bundle.configs.items() if c.uses_proposals}
        if len(set(shapes.values())) > 1:
            raise UserError(f"{bundle.folder}: {' and '.join(shapes)} share a trunk but differ in proposals.anchors")
        self._shapes = next(iter(shapes.values()), ())
        self._anchors: dict[tuple[int, int], np.ndarray] = {}
        self._opening = threading.Lock()

    @property
    def _session(self) -> Any:
        with self._opening:  # from Python 3.12 on several threads may compute a cached property
            return self._opened

    @cached_property
    def _opened(self) -> Any:
        return open_session(self._bundle, self._weights, self._threads, self._precision)

    def encode(self, pixels: Sequence[np.ndarray]) -> list[ImageMaps]:
        """Return the maps of images ``(3, h, w)``, one at a time: the maps of several leave a CPU's caches."""
        names = [output.name for output in self._session.get_outputs()]
        return [
            ImageMaps(
                dict(zip(names, self._session.run(names, {"pixels": image[None]}), strict=True)),
                self._bundle.trunk.strides,
                (image.shape[2], image.shape[1]),
            )
            for image in pixels
        ]

    def propose(self, maps: ImageMaps) -> RpnOutput:
        """Return what the localization layer says of an image's anchors."""
        if maps.input_size not in self._anchors:
            self._anchors[maps.input_size] = self._make_anchors(maps)
        return RpnOutput(self._anchors[maps.input_size], maps.output("logits"), maps.output("offsets"))

    def _make_anchors(self, maps: ImageMaps) -> np.ndarray:
        sizes = [maps.output(f"region{stride}").shape[1:] for stride in maps.strides]
        levels = zip(self._shapes, sizes, maps.strides, strict=True)
        anchors = np.concatenate([anchor_grid(kinds, size[0], size[1], stride) for kinds, size, stride in levels])
        if len(anchors) != len(maps.output("logits")):
            raise UserError(f"proposals.anchors has other numbers of shapes than when {GRAPH} was made")
        return anchors
