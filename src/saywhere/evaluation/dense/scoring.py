"""Scores of dense captions on disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.calibration import MATCH, Reliability, reliability
from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.dense.examples import RANKED, Ranked, write_examples
from saywhere.evaluation.dense.metric import DenseCaptioning, DenseCaptioningResult, Scorer
from saywhere.evaluation.dense.protocols import find_rules
from saywhere.evaluation.dense.report import write_dense_report
from saywhere.evaluation.region_lines import ImageRegions, RegionLines
from saywhere.evaluation.session import Session


def check_plots() -> None:
    """Raise a ``UserError`` if there is nothing to draw plots with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("evaluation needs matplotlib, which is not installed: pip install 'saywhere[evaluate]'")


def score_files(predictions: Path, session: Session, protocol: str = "clean") -> DenseCaptioningResult:
    """Score the regions that any program has written, and write the report; needs no network.

    Args:
        predictions: lines with boxes, scores and captions of each image.
        session: its ``data`` is the file of the truth, whose first ``limit`` images count; ``split`` is a name for the
            report. Images that only one of the files has are named in ``notes``.
        protocol: ``clean`` or ``original``; with ``original`` boxes are taken as they stand, also inside out.

    Raises:
        UserError: a file cannot be read, they have no image in common, or what measures is not installed.
    """
    check_plots()
    with meteor.Meteor() as scorer:  # before the work: it reports at once if pycocoevalcap is missing
        ordered = find_rules(protocol).ordered
        found = RegionLines(predictions, needs=("scores", "captions"), ordered=ordered)
        truth = RegionLines(session.data, several=True, ordered=ordered)
        names = truth.names[: session.limit]
        missing, unknown = sum(name not in found for name in names), sum(name not in truth for name in found.names)
        if missing == len(names):
            raise UserError(
                f"{predictions}: has none of the {missing} images of {session.data}; "
                f"it names {found.names[0]!r}, the truth {names[0]!r}"
            )
        if missing:
            session.notes.append(f"{missing} images have no line in {predictions}: no region predicted")
        if unknown:
            session.notes.append(f"{unknown} images in {predictions} have no truth, and do not count")
        facts = {"model": None, "split": session.split, "without_prediction": missing, "without_truth": unknown}
        files = Comparison(str(session.data), found, truth, names, [Path(), session.folder], facts)
        return compare(session, files, protocol, scorer)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predictions and ground truth to compare.

    Attributes:
        data: name of the data set, for the report.
        predictions, truth: the two files.
        names: of the images that count.
        images: folders that the names of the images may start from.
        facts: of the report.
    """

    data: str
    predictions: RegionLines
    truth: RegionLines
    names: Sequence[str]
    images: Sequence[Path]
    facts: Mapping[str, Any]


def compare(session: Session, files: Comparison, protocol: str, scorer: meteor.Meteor) -> DenseCaptioningResult:
    """Score predictions by the truth, and write the report with its plots and its page of examples."""
    meter = CalibrationMeter()
    # One step more: the captions, which are scored together at the end.
    with session.steps("scoring", len(files.names) + 1) as advance:
        result, ranking = score(
            files.predictions, files.truth, files.names, protocol, scorer.score, advance, calibration=meter
        )
        advance()
    write_examples(session.out, ranking, files.predictions, files.truth, files.images, protocol)
    facts = {"predictions": str(files.predictions.path), **files.facts, "meteor_version": scorer.version}
    write_dense_report(session.out, result, session.known(files.data, **facts), meter.result())
    return result


def score(
    predictions: RegionLines,
    truth: RegionLines,
    names: Iterable[str],
    protocol: str,
    scorer: Scorer,
    done: Callable[[], None] = lambda: None,
    calibration: CalibrationMeter | None = None,
) -> tuple[DenseCaptioningResult, list[Ranked]]:
    """Score the predictions for some images; an image without predictions counts as one without regions.

    Args:
        predictions: lines with scores and captions.
        truth: lines with captions.
        names: the images.
        protocol: ``"clean"`` or ``"original"``.
        scorer: METEOR.
        done: called after each image.
        calibration: takes the boxes of each image.

    Returns:
        The scores, and up to ``RANKED`` of the images that have a true region, best first.

    Raises:
        UserError: the two files have different sizes for an image.
    """
    names = list(names)
    step = -(-len(names) // RANKED)
    metric, ranking = DenseCaptioning(protocol), []
    for number, name in enumerate(names):
        predicted, true = predictions[name], truth[name]
        if predicted.size and true.size and predicted.size != true.size:
            sizes = [f"{width:g} x {height:g}" for width, height in (predicted.size, true.size)]
            raise UserError(
                f"{name} is {sizes[0]} in {predictions.path} but {sizes[1]} in {truth.path}; "
                "boxes must be in the same pixels"
            )
        _add(metric, predicted, true, name)
        if calibration:
            calibration.add(predicted.boxes, predicted.scores, true.boxes)
        if number % step == 0 and len(true.boxes):
            alone = DenseCaptioning(protocol)
            _add(alone, predicted, true, name)
            result = alone.result(scorer, language=False)
            ranking.append(Ranked(name, result.map, result.detection_map))
        done()
    ranking.sort(key=lambda one: (-one.map, -one.detection_map))
    return metric.result(scorer), ranking


def _add(metric: DenseCaptioning, predicted: ImageRegions, true: ImageRegions, name: str) -> None:
    scores = () if predicted.scores is None else predicted.scores
    phrases = [[caption] for caption in true.captions or ()]
    metric.add_arrays(predicted.boxes, scores, predicted.captions or (), true.boxes, phrases, name)


class CalibrationMeter:
    """Collect the boxes of one image at a time; nine bytes of each box are kept."""

    def __init__(self) -> None:
        self._scores, self._matches = list[np.ndarray](), list[np.ndarray]()
        self._probabilities = True

    def add(self, boxes: np.ndarray, scores: np.ndarray | None, truths: np.ndarray) -> None:
        """Add an image: predicted ``boxes (N, 4)`` with ``scores (N,)`` (None: left out), and true boxes ``(M, 4)``."""
        if scores is None or not len(boxes):
            return
        self._probabilities &= bool(((scores >= 0) & (scores <= 1)).all())
        if not self._probabilities:  # another program's logits: nothing to measure
            return
        with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
            overlap = geometry.iou(boxes, truths)
        self._scores.append(scores)
        self._matches.append(np.asarray((overlap >= MATCH).any(axis=1)))

    def result(self) -> Reliability | None:
        """Return the reliability so far; None if there is no box, or a score is not in 0 to 1."""
        if not self._probabilities or not self._scores:
            return None
        return reliability(np.concatenate(self._scores), np.concatenate(self._matches))
