"""Preprocessing of regions and their phrases (DenseCap, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere import options as user_options
from saywhere.errors import UserError
from saywhere.report import Report
from saywhere.text import strip_lead_in, tokenize

Box = tuple[float, float, float, float]
Labelled = tuple[Box, str]
"""A box ``x1 y1 x2 y2`` and one phrase for it."""


@dataclass(frozen=True)
class PhraseOptions:
    """Options of which regions of a data set are kept, and how their phrases are preprocessed.

    The paper's training data is ``PhraseOptions(max_words=10, strip_lead_ins=True, min_regions=20, max_regions=50)``,
    its test data the same with ``merge=0.7``.

    Attributes:
        max_words: longer phrases are dropped.
        strip_lead_ins: remove openings such as "there is" from phrases, before the words are counted.
        min_regions, max_regions: images with fewer or more regions are dropped. As in the paper, a region here is one
            annotation: a box and a phrase, counted after the options above and before any boxes are merged.
        merge: boxes of at least this IoU become one, their mean, with all their references
            (:func:`saywhere.boxes.merge`). None: only identical boxes are joined.

    Raises:
        UserError: a value out of range.
    """

    max_words: int | None = None
    strip_lead_ins: bool = False
    min_regions: int = 0
    max_regions: int | None = None
    merge: float | None = None

    def __post_init__(self) -> None:
        if self.max_words is not None and self.max_words < 1:
            raise UserError(f"max_words must be at least 1, not {self.max_words}")
        if self.min_regions < 0:
            raise UserError(f"min_regions must be at least 0, not {self.min_regions}")
        if self.max_regions is not None and self.max_regions < self.min_regions:
            raise UserError(f"max_regions {self.max_regions} is less than min_regions {self.min_regions}")
        if self.merge is not None and not 0 < self.merge <= 1:
            raise UserError(f"merge must be an IoU above 0 and at most 1, not {self.merge}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "data.phrases.") -> PhraseOptions:
        """Read the options of a recipe, which messages name with ``prefix``.

        Raises:
            UserError: an unknown key or a wrong value.
        """
        return user_options.from_dict(cls, values, prefix=prefix)


def clean(labelled: Sequence[Labelled], options: PhraseOptions, report: Report, name: str) -> list[Labelled]:
    """Preprocess the phrases of pairs; phrases without a word or with too many are left out, and counted in ``report``.

    Args:
        labelled: boxes and phrases of one image.
        options: the preprocessing.
        report: takes what is left out.
        name: of the image, for the report.
    """
    kept = []
    for box, phrase in labelled:
        text = " ".join(phrase.split())
        if options.strip_lead_ins:
            text = strip_lead_in(text)
        words = len(tokenize(text))
        if words == 0:
            report.problem("phrase without a word", name)
        elif options.max_words is not None and words > options.max_words:
            report.left_out[f"phrases of more than {options.max_words} words"] += 1
        else:
            kept.append((box, text))
    return kept


def join(
    boxes: np.ndarray, phrases: Sequence[str], threshold: float | None
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Join boxes ``(N, 4)`` with one phrase each into fewer boxes ``(M, 4)`` with the distinct phrases of each.

    Boxes of at least ``threshold`` IoU become one, their mean; with None only equal boxes do, in the order of their
    first mention.
    """
    if threshold is None:
        groups: dict[Box, list[int]] = {}
        for i, box in enumerate(boxes.tolist()):
            groups.setdefault(tuple(box), []).append(i)
        members = list(groups.values())
        joined = boxes[[group[0] for group in members]]
    else:
        joined, members = geometry.merge(boxes, threshold)
    return joined, [distinct([phrases[i] for i in group]) for group in members]


def distinct(phrases: Iterable[str]) -> tuple[str, ...]:
    """Return the phrases that differ in their words, each as it is first spelt."""
    found: dict[str, str] = {}
    for phrase in phrases:
        found.setdefault(" ".join(tokenize(phrase)), phrase)
    return tuple(found.values())


def unique(labelled: Iterable[Labelled]) -> list[Labelled]:
    """Return the pairs without those that repeat the box and the words of an earlier one."""
    found: dict[tuple[Box, str], Labelled] = {}
    for box, phrase in labelled:
        found.setdefault((box, " ".join(tokenize(phrase))), (box, phrase))
    return list(found.values())
