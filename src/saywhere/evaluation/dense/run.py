"""Dense captioning of a data set by a model: the boxes to describe, its regions on disk, then their scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import reproductions
from saywhere.data import Samples
from saywhere.evaluation import meteor
from saywhere.evaluation.dense.metric import DenseCaptioningResult
from saywhere.evaluation.dense.protocols import CLEAN
from saywhere.evaluation.dense.scoring import Comparison, check_plots, compare
from saywhere.evaluation.region_lines import Box, Proposals, RegionLines
from saywhere.evaluation.session import Session, image_name
from saywhere.files import write_atomically
from saywhere.inference import ResultsFile, Source
from saywhere.models.model import Model

PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run: the regions of the model, and the true ones."""


def run(model: Model, session: Session, proposals: str = "rpn", protocol: str = "clean") -> DenseCaptioningResult:
    """Describe a data set and score the regions: mean average precision of boxes with captions (section 4.1).

    Args:
        model: with a dense captioner.
        session: the data and the results.
        proposals: the boxes to describe, see :func:`find_proposals`.
        protocol: ``clean``, or ``original``: as the published program counts.

    Raises:
        UserError: the model has no dense captioner, no image can be read, or what measures is not installed.
    """
    model.check("densecap", "find regions")
    check_plots()
    with meteor.Meteor() as scorer:  # before the work: it reports at once if pycocoevalcap is missing
        samples = session.read()
        sources = session.sources(samples)
        write_truth(samples, session.data, session.out / TRUTH)
        truth = RegionLines(session.out / TRUTH, several=True)
        boxes = find_proposals(proposals, truth, sources)
        settings = {"model": model.digest(), "data": samples.name, "split": samples.split}
        session.resume(settings | {"proposals": proposals_digest(proposals)}, PREDICTIONS)
        with ResultsFile(session.out / PREDICTIONS) as lines:
            seen = session.each(
                model.describe, sources, lines.done, lambda name, regions: lines.append(regions.to_dict(), name),
                boxes, model.long_side,
            )  # fmt: skip
        predictions = RegionLines(session.out / PREDICTIONS, needs=("scores", "captions"))
        names, facts = [source.name for source in seen], {"proposals": proposals}
        files = Comparison(samples.name, predictions, truth, names, [session.folder], facts)
        return compare(session, files, protocol, scorer)


def write_truth(samples: Samples, root: Path, path: Path) -> None:
    """Write the true boxes of ``samples`` as lines of JSON, a box once for each of its phrases; atomically."""
    folder = root if root.is_dir() else root.parent

    def write(stream: Any) -> None:
        for sample in samples:
            boxes = sample.boxes.tolist()
            pairs = [(box, text) for box, phrases in zip(boxes, sample.phrases, strict=True) for text in phrases]
            row = {"image": image_name(sample.image, folder), "width": sample.width, "height": sample.height}
            row |= {"boxes": [box for box, _ in pairs], "captions": [text for _, text in pairs]}
            stream.write((json.dumps(row) + "\n").encode())

    write_atomically(path, write)


class TrueBoxes(Proposals):
    """The true boxes as proposals: merged as the metric merges them (protocol clean), each once."""

    def __getitem__(self, image: str) -> list[Box]:
        rows = np.array(super().__getitem__(image), dtype=np.float64).reshape(-1, 4)
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in CLEAN.merge(rows)[0].tolist()]


def find_proposals(kind: str, truth: RegionLines, sources: Sequence[Source]) -> Mapping[str, Sequence[Box]] | None:
    """Return the boxes to describe, by name of the image.

    Args:
        kind: ``rpn`` (the model's own: None is returned), ``gt`` (the true ones), a file of lines with boxes, or a
            method of external proposals, such as ``selective-search``.
        truth: the true boxes.
        sources: the images.

    Raises:
        UserError: the method is not installed, or the file cannot be read or has none of the images.
    """
    if kind == "rpn":
        return None
    names = {source.name: (source.name, str(source.path)) for source in sources}
    if kind == "gt":
        return TrueBoxes(truth, names)
    if Path(kind).is_file():
        return Proposals(RegionLines(Path(kind), needs=(), several=True), names)
    return reproductions.find("proposals=METHOD")(kind, sources)


def proposals_digest(kind: str) -> str:
    """Return what tells these proposals from others: the hash of a file, else the kind."""
    if not Path(kind).is_file():
        return kind
    with open(kind, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
