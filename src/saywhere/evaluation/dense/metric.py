"""The metric of dense captioning (DenseCap, section 4.1): mean AP over thresholds of IoU and of METEOR.

A detection is true at (IoU t, METEOR m) if its IoU with the true box that it overlaps most is at least t, its caption
scores above m against the phrases of that box, and no better detection has taken the box. True boxes are merged at IoU
0.7 first. There are two protocols: ``clean`` is this definition, ``original`` equals the evaluator of the published
program digit for digit. ``docs/evaluation.md`` has the differences and their effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saywhere.errors import UserError
from saywhere.evaluation.dense.protocols import Rules, find_rules, sum_in_order
from saywhere.regions import Regions

Array = NDArray[Any]
Scorer = Callable[[Sequence[tuple[str, Sequence[str]]]], Sequence[float]]
"""A function that scores pairs of a caption and its references, in order, from 0 to 1: METEOR."""

IOUS = (0.3, 0.4, 0.5, 0.6, 0.7)
METEORS = (0, 0.05, 0.1, 0.15, 0.2, 0.25)
CHUNK = 1 << 16
"""Pairs that are passed to the scorer at once."""


@dataclass(frozen=True)
class DenseCaptioningResult:
    """Scores of a data set, all between 0 and 1.

    Attributes:
        protocol: name of the rules.
        images: number of images, including those without a true box or a detection.
        detections, truths: number of predicted regions, and of true boxes after merging.
        map: the mean of the 30 values in ``ap``.
        detection_map: the mean of the 5 values in ``detection_ap``.
        language_meteor: mean METEOR of all predicted captions, each against all phrases of its image wherever they
            are; images without a phrase are left out. None if it was not asked for.
        ap: average precision at each pair of thresholds: ``{"iou_0.3/meteor_0": ...}``.
        detection_ap: average precision of the boxes alone: ``{"iou_0.3": ...}``.
    """

    protocol: str
    images: int
    detections: int
    truths: int
    map: float
    detection_map: float
    language_meteor: float | None
    ap: dict[str, float]
    detection_ap: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: every attribute by its name."""
        return asdict(self)


class DenseCaptioning:
    """Collect the predictions of one image at a time, then score all of them.

    Memory: of a detection its score, its overlap and two indices; of captions each distinct one.

    Args:
        protocol: ``"clean"``, ``"original"``, or other rules.

    Raises:
        UserError: no protocol has this name.
    """

    def __init__(self, protocol: str | Rules = "clean") -> None:
        self.rules = find_rules(protocol) if isinstance(protocol, str) else protocol
        self._captions: dict[str, int] = {}
        self._references: list[tuple[str, ...]] = []
        self._bags: list[tuple[str, ...]] = []
        self._scores: list[Array] = []
        self._overlaps: list[Array] = []
        self._claims: list[Array] = []
        self._caption_ids: list[Array] = []

    def add(self, predicted: Regions, truth_boxes: ArrayLike, references: Sequence[Sequence[str]]) -> None:
        """Add one image.

        Args:
            predicted: its regions, with scores and captions, in any order.
            truth_boxes: ``(M, 4)`` true boxes ``x1 y1 x2 y2`` in the same pixels; M may be 0.
            references: the phrases of each true box, one or more. In merging, a box with several phrases counts as
                several boxes, as if the data set listed it once for each phrase.

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
        """Add one image in numbers that :class:`Regions` would refuse, such as logits or boxes that leave the image.

        Args:
            boxes: ``(N, 4)`` predicted ``x1 y1 x2 y2``; with the original protocol corners of the first and last pixel.
            scores: ``(N,)`` of any range; only their order counts.
            captions: N texts.
            truth_boxes, references: as for :meth:`add`.
            name: of the image, for messages.

        Raises:
            ValueError: lengths differ, a number is not finite, or a true box has no phrase.
        """
        predicted, truth = _rows(boxes, 4, "boxes", name), _rows(truth_boxes, 4, "true boxes", name)
        ranks = _rows(scores, 1, "scores", name)[:, 0]
        where = f"{name}: " if name else ""
        if not len(predicted) == len(ranks) == len(captions):
            raise ValueError(f"{where}{len(predicted)} boxes, {len(ranks)} scores, {len(captions)} captions")
        if len(truth) != len(references):
            raise ValueError(f"{where}{len(truth)} true boxes, {len(references)} sets of phrases")
        if any(isinstance(phrases, str) or not len(phrases) for phrases in references):
            raise ValueError(f"{where}every true box needs a list of one phrase or more")
        rows = np.repeat(truth, [len(phrases) for phrases in references], axis=0)
        phrases = [phrase for several in references for phrase in several]
        merged, groups = self.rules.merge(rows)
        matches = self.rules.match(predicted, ranks, merged)
        self._scores.append(ranks[matches.order])
        self._overlaps.append(matches.overlap)
        self._claims.append(np.where(matches.claim < 0, -1, matches.claim + len(self._references)))
        order: list[int] = matches.order.tolist()
        ids = [self._captions.setdefault(captions[i], len(self._captions)) for i in order]
        self._caption_ids.append(np.array(ids, dtype=np.int64))
        self._references += [tuple(phrases[i] for i in group) for group in groups]
        self._bags.append(tuple(dict.fromkeys(phrases)))

    def result(self, scorer: Scorer, language: bool = True) -> DenseCaptioningResult:
        """Return the scores of all images so far.

        Args:
            scorer: is called with many pairs at once, with each pair once, and only with pairs that the result depends
                on: captions whose box overlaps a true box by 0.3 or more and, for ``language``, every caption with all
                phrases of its image.
            language: also compute ``language_meteor``.

        Raises:
            ValueError: the scorer returned too few scores, too many, or one that is not a finite number.
        """
        scores, overlap = _joined(self._scores, np.float64), _joined(self._overlaps, np.float64)
        claim, caption = _joined(self._claims, np.int64), _joined(self._caption_ids, np.int64)
        claimants = self.rules.claimants(claim)
        decides = claimants & (overlap >= min(IOUS))
        meteor = np.zeros(len(scores))
        meteor[decides] = self._score(scorer, caption[decides], claim[decides], self._references)
        order = self.rules.order(scores)

        def ap(qualifies: Array) -> float:
            hits = self.rules.hits(qualifies, overlap, claim, claimants)
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
            language_meteor=self._language(scorer, caption) if language else None,
            ap=cells,
            detection_ap=detection,
        )

    def _language(self, scorer: Scorer, caption: Array) -> float:
        image = np.repeat(np.arange(len(self._bags)), [len(scores) for scores in self._scores])
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
    """Return ``values``, ``(N,)`` for one column, as doubles ``(N, columns)``."""
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


def _joined(parts: list[Array], dtype: type[np.generic]) -> Array:
    return np.concatenate([np.empty(0, dtype=dtype), *parts])
