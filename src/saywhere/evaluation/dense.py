"""Dense captioning (DenseCap, section 4.1): mean AP over thresholds of IoU and METEOR.

A detection is correct at (IoU t, METEOR m) if its IoU with the true box that it overlaps most is at least t, its
caption scores above m against that box's phrases, and no better detection has claimed the box. True boxes are first
merged at IoU 0.7. The protocol ``clean`` is this definition, ``original`` the published program's (docs/evaluation.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere import reproductions
from saywhere.calibration import MATCH, Reliability, reliability
from saywhere.data import Samples
from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.examples import of_regions, write_examples
from saywhere.evaluation.region_lines import Array, RegionLines, matched
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session, image_name
from saywhere.files import write_atomically
from saywhere.inference import ResultsFile
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.report import counted

MERGE_IOU = 0.7
"""True boxes with at least this IoU are merged, with all their phrases."""
PROTOCOLS = ("clean", *reproductions.values("protocol"))


@dataclass(frozen=True, eq=False)
class Matches:
    """The detections of one image, best first.

    Attributes:
        order: ``(N,)`` their indices in the input.
        overlap: ``(N,)`` IoU with the true box that each overlaps most; 0 if none.
        truth: ``(N,)`` index of that true box (the first among equals); -1 if none.
        claim: ``(N,)`` index of the true box that each may claim: ``truth``, unless a protocol differs.
    """

    order: Array
    overlap: Array
    truth: Array
    claim: Array


@dataclass(frozen=True)
class Rules:
    """The definition of the paper, step by step; other protocols override some of the steps.

    Attributes:
        ordered: refuse boxes with x2 < x1 or y2 < y1.
    """

    name: str = "clean"
    ordered: ClassVar[bool] = True

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """NumPy dtype of the computation."""
        return np.float64

    def merge(self, boxes: Array) -> tuple[Array, list[list[int]]]:
        """Merge true boxes ``(N, 4)`` at IoU ``MERGE_IOU``; return the mean boxes ``(G, 4)`` and group members."""
        with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
            return geometry.merge(boxes, MERGE_IOU)

    def order(self, scores: Array) -> Array:
        """Return the indices that sort ``scores (N,)`` in descending order; the sort is stable."""
        return np.argsort(-scores, kind="stable")

    def overlaps(self, boxes: Array, truths: Array) -> Array:
        """Return the IoU ``(N, M)`` of detections ``boxes (N, 4)`` and true boxes ``truths (M, 4)``."""
        with np.errstate(over="ignore", invalid="ignore"):
            return geometry.iou(boxes, truths)

    def match(self, boxes: Array, scores: Array, truths: Array) -> Matches:
        """Match detections ``boxes (N, 4)`` with the merged ``truths (M, 4)`` that they overlap most."""
        order = self.order(scores)
        if not len(truths):
            none = np.full(len(order), -1)
            return Matches(order, np.zeros(len(order)), none, none)
        table = self.overlaps(boxes[order], truths)
        overlap = np.maximum(table.max(axis=1), 0)
        truth = np.where(overlap > 0, table.argmax(axis=1), -1)
        return Matches(order, overlap, truth, self.claims(truth, len(truths)))

    def claims(self, truth: Array, truths: int) -> Array:
        """Return the index ``(N,)`` of the true box, out of ``truths``, that each detection may claim; -1 for none."""
        return truth

    def claimants(self, claim: Array) -> Array:
        """Return the mask ``(N,)`` of detections that may be correct, given the ``claim (N,)`` of all, best first."""
        return claim >= 0

    def hits(self, qualifies: Array, claim: Array, claimants: Array) -> Array:
        """Return the mask ``(N,)`` of correct detections: for each true box the first that reaches the thresholds.

        ``qualifies`` masks those that reach the thresholds; ``claimants`` is from :meth:`claimants`.
        """
        return first_claims(claim, qualifies)

    def recall_starts(self, hits: Array, positives: int) -> Array:
        """Return for each recall 0, 0.01, ... 1 how many of the best detections ``hits (N,)`` stay below it."""
        # In integers, so that k / 100 is reached exactly.
        return np.searchsorted(100 * np.cumsum(hits), np.arange(101) * positives)

    def total(self, values: Sequence[float]) -> float:
        """Return the sum of precisions."""
        return math.fsum(values)

    def average_precision(self, hits: Array, positives: int) -> float:
        """Return the mean over recalls of the best precision at that recall or a higher one; 0 without true boxes.

        ``hits (N,)`` is the mask of correct detections, best first.
        """
        if not positives or not len(hits):
            return 0.0
        starts = self.recall_starts(hits, positives)
        precision = np.cumsum(hits).astype(self.dtype) / np.arange(1, len(hits) + 1, dtype=self.dtype)
        best = np.maximum.accumulate(precision[::-1].astype(np.float64))[::-1]
        return self.total(best[starts[starts < len(hits)]].tolist()) / len(starts)


CLEAN = Rules()


def find_rules(protocol: str) -> Rules:
    """Return the rules of a protocol; ``UserError`` if there is none of this name."""
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol {protocol!r}; there are {' and '.join(PROTOCOLS)}")
    return CLEAN if protocol == "clean" else reproductions.find(f"protocol={protocol}")


def first_claims(claim: Array, claimants: Array) -> Array:
    """Return the mask ``(N,)`` of the first of the ``claimants (N,)`` (a mask) for each true box in ``claim (N,)``."""
    rows = np.flatnonzero(claimants)
    first = np.zeros(len(claim), dtype=bool)
    first[rows[np.unique(claim[rows], return_index=True)[1]]] = True
    return first


def sum_in_order(values: Sequence[float]) -> float:
    """Return the sum rounded at each step, as in a plain loop; Python's ``sum`` compensates from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


Scorer = Callable[[Sequence[tuple[str, Sequence[str]]]], Sequence[float]]
"""Function that scores pairs of a caption and its references, in order, from 0 to 1, such as METEOR."""

IOUS = (0.3, 0.4, 0.5, 0.6, 0.7)
METEORS = (0, 0.05, 0.1, 0.15, 0.2, 0.25)
CHUNK = 1 << 16
"""Pairs per call of the scorer."""


@dataclass(frozen=True)
class DenseCaptioningResult:
    """Scores of a data set, all between 0 and 1.

    Attributes:
        images: number of images, including those without true boxes or detections.
        detections, truths: number of predicted regions, and of true boxes after merging.
        map: mean of the 30 values in ``ap``.
        detection_map: mean of the 5 values in ``detection_ap``.
        language_meteor: mean METEOR of all predicted captions against all phrases of their image, wherever they are.
            Images without a phrase are ignored.
        ap: average precision at each pair of thresholds: ``{"iou_0.3/meteor_0": ...}``.
        detection_ap: average precision of the boxes alone: ``{"iou_0.3": ...}``.
    """

    protocol: str
    images: int
    detections: int
    truths: int
    map: float
    detection_map: float
    language_meteor: float
    ap: dict[str, float]
    detection_ap: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: every attribute by its name."""
        return asdict(self)


class DenseCaptioning:
    """Collect predictions image by image, then score all of them by a protocol's name or by rules.

    Memory: per detection its score, overlap and two indices; each distinct caption once.
    """

    def __init__(self, protocol: str | Rules = "clean") -> None:
        self.rules = find_rules(protocol) if isinstance(protocol, str) else protocol
        self._captions: dict[str, int] = {}
        self._references: list[tuple[str, ...]] = []
        self._bags: list[tuple[str, ...]] = []
        self._found: list[tuple[Array, Array, Array, Array]] = []  # score, overlap, claim, caption; of each image

    def add(self, predicted: Regions, truth_boxes: ArrayLike, references: Sequence[Sequence[str]]) -> None:
        """Add one image.

        Args:
            predicted: regions with scores and captions, in any order.
            truth_boxes: ``(M, 4)`` true boxes ``x1 y1 x2 y2`` in the same pixels; M may be 0.
            references: one or more phrases for each true box. In merging, a box with several phrases counts as several
                boxes, as if listed once per phrase.

        Raises:
            UserError: scores or captions are missing.
            ValueError: as :meth:`add_arrays`.
        """
        if predicted.scores is None or predicted.captions is None:
            missing = "scores" if predicted.scores is None else "captions"
            raise UserError(f"{predicted.image or 'an image'}: predicted regions without {missing} cannot be scored")
        self.add_arrays(
            predicted.boxes, predicted.scores, predicted.captions, truth_boxes, references, predicted.image or ""
        )

    def add_arrays(
        self,
        boxes: ArrayLike,
        scores: ArrayLike,
        captions: Sequence[str],
        truth_boxes: ArrayLike,
        references: Sequence[Sequence[str]],
        name: str = "",
    ) -> None:
        """Add one image as arrays that :class:`Regions` would refuse, such as logits or boxes beyond the image.

        Args:
            boxes: ``(N, 4)`` predicted ``x1 y1 x2 y2``; in the original protocol, corners are the first and last pixel.
            scores: ``(N,)`` of any range; only their order matters.
            truth_boxes, references: as for :meth:`add`.

        Raises:
            ValueError: lengths differ, a number is not finite, or a true box has no phrase.
        """
        predicted, truth = _rows(boxes, 4, "boxes", name), _rows(truth_boxes, 4, "true boxes", name)
        ranks = _rows(scores, 1, "scores", name)[:, 0]
        where = f"{name}: " if name else ""
        if not len(predicted) == len(ranks) == len(captions):
            parts = {"box": predicted, "score": ranks, "caption": captions}
            raise ValueError(where + ", ".join(counted(len(values), name) for name, values in parts.items()))
        if len(truth) != len(references):
            raise ValueError(f"{where}{len(truth)} true boxes, {len(references)} sets of phrases")
        if any(isinstance(phrases, str) or not len(phrases) for phrases in references):
            raise ValueError(f"{where}every true box needs a list of one phrase or more")
        rows = np.repeat(truth, [len(phrases) for phrases in references], axis=0)
        phrases = [phrase for several in references for phrase in several]
        merged, groups = self.rules.merge(rows)
        matches = self.rules.match(predicted, ranks, merged)
        claim = np.where(matches.claim < 0, -1, matches.claim + len(self._references))
        order: list[int] = matches.order.tolist()
        ids = [self._captions.setdefault(captions[i], len(self._captions)) for i in order]
        self._found.append((ranks[matches.order], matches.overlap, claim, np.array(ids, dtype=np.int64)))
        self._references += [tuple(phrases[i] for i in group) for group in groups]
        self._bags.append(tuple(dict.fromkeys(phrases)))

    def result(self, scorer: Scorer) -> DenseCaptioningResult:
        """Return the scores of all images so far.

        Args:
            scorer: called with many pairs at a time, and only those that the result depends on: each caption whose box
                overlaps a true box by 0.3 or more, once, and then every caption with all phrases of its image.

        Raises:
            ValueError: the scorer returned too few scores, too many, or one that is not a finite number.
        """
        none = (np.empty(0), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
        scores, overlap, claim, caption = map(np.concatenate, zip(none, *self._found, strict=True))
        claimants = self.rules.claimants(claim)
        decides = claimants & (overlap >= min(IOUS))
        meteor = np.zeros(len(scores))
        meteor[decides] = self._score(scorer, caption[decides], claim[decides], self._references)
        order = self.rules.order(scores)

        def ap(qualifies: Array) -> float:
            hits = self.rules.hits(qualifies, claim, claimants)
            return self.rules.average_precision(hits[order], len(self._references))

        detection = {f"iou_{iou}": ap(overlap >= iou) for iou in IOUS}
        cells = {f"iou_{t}/meteor_{m}": ap((overlap >= t) & (meteor > m)) for t in IOUS for m in METEORS}
        return DenseCaptioningResult(
            protocol=self.rules.name,
            images=len(self._bags),
            detections=len(scores),
            truths=len(self._references),
            map=sum_in_order(list(cells.values())) / len(cells),
            detection_map=sum_in_order(list(detection.values())) / len(detection),
            language_meteor=self._language(scorer, caption),
            ap=cells,
            detection_ap=detection,
        )

    def _language(self, scorer: Scorer, caption: Array) -> float:
        image = np.repeat(np.arange(len(self._bags)), [len(scores) for scores, *_ in self._found])
        judged = np.array([bool(bag) for bag in self._bags], dtype=bool)[image]
        values = self._score(scorer, caption[judged], image[judged], self._bags)
        return float(values.mean()) if len(values) else 0.0

    def _score(self, scorer: Scorer, caption: Array, sets: Array, references: Sequence[tuple[str, ...]]) -> Array:
        """Return the scores ``(K,)`` of captions ``caption (K,)`` against the ``references`` at ``sets (K,)``."""
        keys, inverse = np.unique(caption * len(references) + sets, return_inverse=True)
        captions, values = list(self._captions), np.empty(len(keys))
        for start in range(0, len(keys), CHUNK):
            asked = [divmod(key, len(references)) for key in keys[start : start + CHUNK].tolist()]
            given = scorer([(captions[number], references[which]) for number, which in asked])
            if len(given) != len(asked):
                raise ValueError(f"the scorer returned {len(given)} scores for {len(asked)} pairs")
            values[start : start + CHUNK] = given
        if not np.isfinite(values).all():
            raise ValueError("the scorer returned a score that is not a finite number")
        return values[inverse]


def _rows(values: ArrayLike, columns: int, what: str, name: str) -> Array:
    """Return ``values`` as float64 ``(N, columns)``; one column may be given as ``(N,)``."""
    array = np.asarray(values, dtype=np.float64)
    where = f"{name}: " if name else ""
    shape = (len(array),) if columns == 1 and array.ndim else (*array.shape[:1], columns)
    if array.size and array.shape != shape:
        raise ValueError(
            f"{where}{what} of shape {array.shape}; {'(N,)' if columns == 1 else f'(N, {columns})'} needed"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{where}{what} with a number that is not finite")
    return array.reshape(-1, columns)


def score_files(predictions: Path, session: Session, protocol: str = "clean") -> DenseCaptioningResult:
    """Score regions written by any program, and write the report; needs no network.

    Args:
        predictions: JSON lines with boxes, scores and captions of each image.
        session: ``data`` is the file of the truth, whose first ``limit`` images count; ``split`` is a name for the
            report. Images in only one of the files are listed in ``notes``.
        protocol: ``clean`` or ``original``; ``original`` takes boxes as they are, even with x2 < x1 or y2 < y1.

    Raises:
        UserError: a file cannot be read, they have no image in common, or the metrics are not installed.
    """
    scorer = meteor.Meteor()  # early: it raises if pycocoevalcap is missing
    ordered = find_rules(protocol).ordered
    found = RegionLines(predictions, needs=("scores", "captions"), ordered=ordered)
    truth = RegionLines(session.data, several=True, ordered=ordered, split=session.split)
    names = truth.names[: session.limit]
    counts, notes = matched(predictions, session.data, found.names, truth.names, names, "no region predicted")
    session.notes += notes
    facts = {"model": None, "split": session.split, **counts}
    return compare(session, found, truth, names, protocol, scorer, str(session.data), facts)


def compare(
    session: Session, predictions: RegionLines, truth: RegionLines, names: Sequence[str], protocol: str,
    scorer: meteor.Meteor, data: str, facts: Mapping[str, Any] = MappingProxyType({}),
) -> DenseCaptioningResult:  # fmt: skip
    """Score predictions for some images against the truth; write the report and a page of examples.

    A note tells if the protocol is the published program's, and the true boxes are not.
    """
    if protocol == "original" and any((truth[name].boxes % 1).any() for name in names):
        session.notes.append(
            "the protocol original takes true boxes as first and last pixels, at the size that the program saw (720 "
            "pixels); these have fractions of pixels, so the figures are not the program's"
        )
    # One more step: the captions, which are scored together at the end.
    with session.steps("scoring", len(names) + 1) as advance:
        result = score(predictions, truth, names, protocol, scorer.score, advance)
        advance()
    found = box_reliability((predictions[n].boxes, predictions[n].scores, truth[n].boxes) for n in names)
    scores = {"calibration": found and found.to_dict(), **result.to_dict()}
    known = session.known(data, predictions=str(predictions.path), **facts, meteor_version=scorer.version)
    write_report(session.out, {"task": "dense", **scores, **known})
    columns = {"true": of_regions(truth), session.model or "predicted": of_regions(predictions)}
    write_examples(session.out, session.folder, list(names), columns)
    return result


def score(
    predictions: RegionLines,
    truth: RegionLines,
    names: Iterable[str],
    protocol: str,
    scorer: Scorer,
    done: Callable[[], None] = lambda: None,
) -> DenseCaptioningResult:
    """Score the predictions for some images; an image without predictions counts as one without regions.

    ``UserError`` if the two files give different sizes for an image.
    """
    metric = DenseCaptioning(protocol)
    for name in names:
        predicted, true = predictions[name], truth[name]
        if predicted.size and true.size and predicted.size != true.size:
            sizes = [f"{width:g} x {height:g}" for width, height in (predicted.size, true.size)]
            raise UserError(
                f"{name} is {sizes[0]} in {predictions.path} but {sizes[1]} in {truth.path}; "
                "boxes must be in the same pixels"
            )
        scores = () if predicted.scores is None else predicted.scores
        phrases = [[caption] for caption in true.captions or ()]
        metric.add_arrays(predicted.boxes, scores, predicted.captions or (), true.boxes, phrases, name)
        done()
    return metric.result(scorer)


def box_reliability(images: Iterable[tuple[Array, Array | None, Array]]) -> Reliability | None:
    """Return how well the scores of boxes agree with the share that matches a true box, regardless of other boxes.

    None if there is no box, or a score is not in 0 to 1, such as another program's logit. ``images`` yields predicted
    boxes ``(N, 4)``, scores ``(N,)`` (None: ignored) and true boxes ``(M, 4)`` of each.
    """
    rows = [(boxes, scores, truths) for boxes, scores, truths in images if scores is not None and len(boxes)]
    if not rows or not all(((scores >= 0) & (scores <= 1)).all() for _, scores, _ in rows):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
        matches = [(geometry.iou(boxes, truths) >= MATCH).any(axis=1) for boxes, _, truths in rows]
    return reliability(np.concatenate([scores for _, scores, _ in rows]), np.concatenate(matches))


PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run: the regions of the model, and the true ones."""


def run(model: Model, session: Session, protocol: str = "clean") -> DenseCaptioningResult:
    """Describe a data set and score the regions: mean average precision of boxes with captions (section 4.1).

    Raises:
        UserError: the model has no dense captioner, no image is readable, or the metrics are not installed.
    """
    model.check("densecap", "find regions")
    scorer = meteor.Meteor()  # early: it raises if pycocoevalcap is missing
    samples = session.read()
    sources = session.sources(samples)
    write_truth(samples, session.data, session.out / TRUTH)
    truth = RegionLines(session.out / TRUTH, several=True)
    session.resume({"model": model.digest(), "data": samples.name, "split": samples.split}, PREDICTIONS)
    with ResultsFile(session.out / PREDICTIONS) as lines:
        seen = session.each(
            model.describe, sources, lines.done, lambda name, regions: lines.append(regions.to_dict(), name),
            long_side=model.long_side,
        )  # fmt: skip
    predictions = RegionLines(session.out / PREDICTIONS, needs=("scores", "captions"))
    names = [source.name for source in seen]
    return compare(session, predictions, truth, names, protocol, scorer, samples.name)


def write_truth(samples: Samples, root: Path, path: Path) -> None:
    """Write the true boxes of ``samples`` as JSON lines, a box once for each of its phrases; atomically."""
    folder = root if root.is_dir() else root.parent

    def write(stream: Any) -> None:
        for sample in samples:
            boxes = sample.boxes.tolist()
            pairs = [(box, text) for box, phrases in zip(boxes, sample.phrases, strict=True) for text in phrases]
            row = {"image": image_name(sample.image, folder), "width": sample.width, "height": sample.height}
            row |= {"boxes": [box for box, _ in pairs], "captions": [text for _, text in pairs]}
            stream.write((json.dumps(row) + "\n").encode())

    write_atomically(path, write)
