"""From a model and a data set to scores of dense captioning, by way of two files of JSON lines.

Predictions and truth lie on disk; in memory is one batch of pictures, and a few numbers a region for the metric.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saywhere.data import Samples
from saywhere.describing import Source
from saywhere.errors import UserError
from saywhere.evaluation.calibration import CalibrationMeter
from saywhere.evaluation.dense_captioning import DenseCaptioning, DenseCaptioningResult, Scorer
from saywhere.evaluation.dense_rules import CLEAN, merge
from saywhere.evaluation.region_lines import Box, PictureRegions, Proposals, RegionLines
from saywhere.evaluation.resuming import model_digest
from saywhere.files import write_atomically
from saywhere.images import ImageError
from saywhere.vision.proposals import KINDS, Proposer, find_proposer, is_proposer

if TYPE_CHECKING:
    from saywhere.models.densecap import DenseCap

PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run with a model: what it said, and what is true."""

EXTERNAL = 300
"""External proposals of a picture, at most, as in the paper."""

RANKED = 1000
"""At most so many pictures, evenly spread, are scored one by one to find the best and the worst."""


def picture_sources(samples: Samples, root: Path) -> list[Source]:
    """The pictures of a data set, each once, named by their place below its folder."""
    folder = root if root.is_dir() else root.parent
    names = {_below(sample.image, folder): sample.image for sample in samples}
    return [Source(path, name, Path(name)) for name, path in names.items()]


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def write_truth(samples: Samples, root: Path, path: Path) -> None:
    """Write the true boxes of ``samples`` as lines of JSON, a box once for each of its phrases; atomically."""
    folder = root if root.is_dir() else root.parent

    def write(stream: Any) -> None:
        for sample in samples:
            boxes = sample.boxes.tolist()
            pairs = [(b, said) for b, phrases in zip(boxes, sample.phrases, strict=True) for said in phrases]
            row = {"image": _below(sample.image, folder), "width": sample.width, "height": sample.height}
            row |= {"boxes": [box for box, _ in pairs], "captions": [said for _, said in pairs]}
            stream.write((json.dumps(row) + "\n").encode())

    write_atomically(path, write)


class TrueBoxes(Proposals):
    """The true boxes as proposals: merged as the metric merges them (protocol clean), each once."""

    def __getitem__(self, picture: str) -> list[Box]:
        rows = np.array(super().__getitem__(picture), dtype=np.float64).reshape(-1, 4)
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in merge(CLEAN, rows)[0].tolist()]


class ExternalBoxes(Mapping[str, Sequence[Box]]):
    """The best ``EXTERNAL`` boxes of a method of :mod:`saywhere.vision.proposals`, found when they are asked for.

    A picture that cannot be read has none; who describes it will say so.
    """

    def __init__(self, proposer: Proposer, sources: Sequence[Source]) -> None:
        self._proposer = proposer
        self._files = {source.name: source.path for source in sources}

    def __getitem__(self, picture: str) -> list[Box]:
        try:
            found = self._proposer(self._files[picture])[:EXTERNAL]
        except ImageError:
            return []
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in found.boxes.tolist()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def find_proposals(kind: str, truth: RegionLines, sources: Sequence[Source]) -> Mapping[str, Sequence[Box]] | None:
    """Boxes to describe: None for ``"rpn"`` (the model's own), the true ones for ``"gt"``, else those of a method of
    :mod:`saywhere.vision.proposals` or of a file.

    Raises:
        UserError: the method is not installed, or the file cannot be read or has none of the pictures.
    """
    if kind == "rpn":
        return None
    names = {source.name: (source.name, str(source.path)) for source in sources}
    if kind == "gt":
        return TrueBoxes(truth, names)
    if is_proposer(kind):
        return ExternalBoxes(find_proposer(kind), sources)
    if not Path(kind).is_file():
        raise UserError(f"--proposals {kind}: neither rpn, gt nor {KINDS}, and no such file")
    return Proposals(RegionLines(Path(kind), needs=(), several=True), names)


def settings(model: DenseCap, samples: Samples, proposals: str) -> dict[str, str]:
    """What predictions depend on: weights and configuration of the model, the data, the boxes."""
    boxes = proposals
    if proposals not in ("rpn", "gt") and not is_proposer(proposals):
        with open(proposals, "rb") as file:
            boxes = hashlib.file_digest(file, "sha256").hexdigest()
    return {"model": model_digest(model), "data": samples.name, "split": samples.split, "proposals": boxes}


@dataclass(frozen=True)
class Ranked:
    """A picture and its mean average precision, as if it were the whole data set."""

    name: str
    map: float
    detection_map: float


def score(
    predictions: RegionLines,
    truth: RegionLines,
    names: Iterable[str],
    protocol: str,
    scorer: Scorer,
    done: Callable[[], None] = lambda: None,
    calibration: CalibrationMeter | None = None,
) -> tuple[DenseCaptioningResult, list[Ranked]]:
    """Scores of the pictures ``names``, and up to ``RANKED`` of them that have a truth, best first.

    A picture that is not among the predictions counts as one without regions. ``done`` is called after each, and
    ``calibration`` is given its boxes.

    Raises:
        UserError: the two files have different sizes for a picture.
    """
    names = list(names)
    step = -(-len(names) // RANKED)
    metric, ranking = DenseCaptioning(protocol), []
    for number, name in enumerate(names):
        said, true = predictions[name], truth[name]
        if said.size and true.size and said.size != true.size:
            ours, theirs = (f"{width:g} x {height:g}" for width, height in (said.size, true.size))
            raise UserError(
                f"{name} is {ours} in {predictions.path} but {theirs} in {truth.path}; boxes must be in the same pixels"
            )
        _add(metric, said, true, name)
        if calibration:
            calibration.add(said.boxes, said.scores, true.boxes)
        if number % step == 0 and len(true.boxes):
            alone = DenseCaptioning(protocol)
            _add(alone, said, true, name)
            result = alone.result(scorer, language=False)
            ranking.append(Ranked(name, result.map, result.detection_map))
        done()
    ranking.sort(key=lambda one: (-one.map, -one.detection_map))
    return metric.result(scorer), ranking


def _add(metric: DenseCaptioning, said: PictureRegions, true: PictureRegions, name: str) -> None:
    scores = () if said.scores is None else said.scores
    phrases = [[caption] for caption in true.captions or ()]
    metric.add_arrays(said.boxes, scores, said.captions or (), true.boxes, phrases, name)
