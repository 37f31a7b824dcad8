"""Time by stage of all systems of a comparison, in one run and by turns (Table 1 of DenseCap, right)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import torch

from saywhere.evaluation.comparison.speakers import rpn_proposals
from saywhere.images import open_picture
from saywhere.models.densecap import DenseCap
from saywhere.models.region_rnn import RegionRnn
from saywhere.vision.proposals import Proposer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from saywhere.images import Picture
    from saywhere.models.encoding import Encoding

STAGES = ("proposals", "network", "language")


@dataclass
class Watch:
    """Milliseconds of the stages of one system on one picture: wall clock, and processor time of the process."""

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
    """What is timed: FCLN and the Region RNN, with external proposals and the RPN's; ``limit`` boxes for each.

    The Full Image RNN is the same network.
    """

    fcln: DenseCap
    region: RegionRnn
    proposer: Proposer
    nms: float
    limit: int

    def systems(self) -> dict[str, Callable[[Path, Watch], None]]:
        """By row and column what describes a picture file; opening the file is no stage of any."""
        return {
            "fcln/rpn": self._fcln,
            "fcln/external": self._fcln_external,
            "region-rnn/rpn": self._crops,
            "region-rnn/external": self._crops_external,
        }

    def _fcln(self, path: Path, watch: Watch) -> None:
        picture = open_picture(path)
        with watch.stage("network"):
            encoding = self.fcln.encode(picture)
        with watch.stage("proposals"):
            boxes = self.fcln.propose([encoding], self.limit)[0]
        self._second_stage(encoding, boxes, watch)

    def _fcln_external(self, path: Path, watch: Watch) -> None:
        picture = open_picture(path)
        with watch.stage("proposals"):
            boxes = self.proposer(picture).suppressed(self.nms, self.limit).boxes
        with watch.stage("network"):
            encoding = self.fcln.encode(picture)
        self._second_stage(encoding, encoding.to_input(boxes), watch)

    def _second_stage(self, encoding: Encoding, boxes: Tensor, watch: Watch) -> None:
        with watch.stage("network"):
            found = self.fcln.recognise([encoding], [boxes])[0]
            _, rows = self.fcln.select(encoding, boxes, found)
        with watch.stage("language"):
            self.fcln.speak(found.codes[rows])

    def _crops(self, path: Path, watch: Watch) -> None:
        picture = open_picture(path)
        with watch.stage("proposals"):
            boxes = rpn_proposals(self.fcln, self.fcln.encode(picture), self.nms, self.limit).boxes
        self._describe(picture, boxes, watch)

    def _crops_external(self, path: Path, watch: Watch) -> None:
        picture = open_picture(path)
        with watch.stage("proposals"):
            boxes = self.proposer(picture).suppressed(self.nms, self.limit).boxes
        self._describe(picture, boxes, watch)

    def _describe(self, picture: Picture, boxes: Tensor, watch: Watch) -> None:
        with watch.stage("network"):
            features = self.region.features(picture, boxes)
        with watch.stage("language"):
            self.region.speak(features)


@torch.no_grad()
def take_times(
    timed: Timed, pictures: Sequence[Path], rounds: int, done: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds a picture: by system ``wall`` and ``processor``, of each stage and their ``total``.

    Every system describes every picture in every round, one after the other, after one picture to warm up; the median
    over the rounds is taken for each picture, then the mean over the pictures.
    """
    systems = timed.systems()
    for describe in systems.values():
        describe(pictures[0], Watch())
    watches: dict[str, list[list[Watch]]] = {name: [] for name in systems}
    for path in pictures:
        for name in systems:
            watches[name].append([])
        for _ in range(rounds):
            for name, describe in systems.items():
                watch = Watch()
                describe(path, watch)
                watches[name][-1].append(watch)
                done()
    return {name: {"wall": _means(of, "wall"), "processor": _means(of, "processor")} for name, of in watches.items()}


def _means(pictures: Sequence[Sequence[Watch]], clock: str) -> dict[str, float]:
    stages = {
        stage: sum(median(getattr(watch, clock).get(stage, 0.0) for watch in rounds) for rounds in pictures)
        / len(pictures)
        for stage in STAGES
    }
    return {**stages, "total": sum(stages.values())}
