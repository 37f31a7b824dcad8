"""Time by stage of all systems of a comparison, in one run and by turns (Table 1 of DenseCap, right)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch

from saywhere.engines.engine import DenseCap
from saywhere.images import open_image
from saywhere.models.decoding import decode
from saywhere.models.densecap import select
from saywhere.models.encoding import propose_boxes
from saywhere.models.model import Model
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.papers.external_proposals import ProposalMethod
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.papers.table1.systems import rpn_proposals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from saywhere.images import LoadedImage
    from saywhere.models.encoding import Encoding

STAGES = ("proposals", "network", "language")


@dataclass
class Watch:
    """Milliseconds of one system's stages on one image: wall clock, and processor time of the process."""

    wall: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        wall, processor = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + 1000 * (time.perf_counter() - wall)
        self.processor[name] = self.processor.get(name, 0.0) + 1000 * (time.process_time() - processor)


@dataclass(frozen=True)
class Timed:
    """Systems to time: FCLN and the Region RNN, with external proposals and the RPN's; ``limit`` boxes for each.

    The Full Image RNN is the same network.
    """

    fcln: Model
    region: RegionRnn
    proposer: ProposalMethod
    nms: float
    limit: int

    def systems(self) -> dict[str, Callable[[Path, Watch], None]]:
        """Return by row and column what describes an image file; opening the file is no stage of any."""
        return {
            "fcln/rpn": self._fcln,
            "fcln/external": self._fcln_external,
            "region-rnn/rpn": self._crops,
            "region-rnn/external": self._crops_external,
        }

    @property
    def _detector(self) -> DenseCap:
        return self.fcln.require("densecap", "be FCLN")

    def _encode(self, image: LoadedImage) -> Encoding:
        """The backbone and the pyramid, which otherwise waits until it is needed."""
        encoding = self.fcln.encode(image)
        ImageMaps.pyramids([encoding.maps])
        return encoding

    def _fcln(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("network"):
            encoding = self._encode(image)
        with watch.stage("proposals"):
            detector = self._detector
            boxes, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, self.limit)
        self._second_stage(encoding, boxes, watch)

    def _fcln_external(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = self.proposer(image).suppressed(self.nms, self.limit).boxes
        with watch.stage("network"):
            encoding = self._encode(image)
        self._second_stage(encoding, encoding.to_input(boxes), watch)

    def _second_stage(self, encoding: Encoding, boxes: np.ndarray, watch: Watch) -> None:
        detector = self._detector
        with watch.stage("network"):
            (found,) = detector.region_head([encoding.maps], [boxes])
            _, rows = select(detector.box_coder, encoding, boxes, found, detector.config.final_nms)
        with watch.stage("language"):
            decoded = decode(detector.decoder, found.embeddings[rows], detector.config.decoding)
            for token_ids in decoded.token_ids.tolist():
                detector.vocabulary.decode(token_ids, detector.decoder.unknown)

    def _crops(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = rpn_proposals(self._detector, self.fcln.encode(image), self.nms, self.limit).boxes
        self._describe(image, boxes, watch)

    def _crops_external(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = self.proposer(image).suppressed(self.nms, self.limit).boxes
        self._describe(image, boxes, watch)

    def _describe(self, image: LoadedImage, boxes: np.ndarray, watch: Watch) -> None:
        with watch.stage("network"):
            features = self.region.features(image, torch.from_numpy(boxes))
        with watch.stage("language"):
            self.region.caption(features)


@torch.no_grad()
def take_times(
    timed: Timed, images: Sequence[Path], rounds: int, done: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Return milliseconds an image: by system ``wall`` and ``processor``, of each stage and their ``total``.

    Every system describes every image in every round, one after the other, after one image to warm up; the median
    over the rounds is taken for each image, then the mean over the images.
    """
    systems = timed.systems()
    for describe in systems.values():
        describe(images[0], Watch())
    watches: dict[str, list[list[Watch]]] = {name: [] for name in systems}
    for path in images:
        for name in systems:
            watches[name].append([])
        for _ in range(rounds):
            for name, describe in systems.items():
                watch = Watch()
                describe(path, watch)
                watches[name][-1].append(watch)
                done()
    return {name: {"wall": _means(of, "wall"), "processor": _means(of, "processor")} for name, of in watches.items()}


def _means(images: Sequence[Sequence[Watch]], clock: str) -> dict[str, float]:
    stages = {
        stage: sum(median(getattr(watch, clock).get(stage, 0.0) for watch in rounds) for rounds in images) / len(images)
        for stage in STAGES
    }
    return {**stages, "total": sum(stages.values())}
