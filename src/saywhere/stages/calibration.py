"""Everything that ``saywhere calibrate`` and a calibration stage fit, with one entry per question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from saywhere import data as datasets
from saywhere.data import sample
from saywhere.data.sample import Sample, Samples, evenly
from saywhere.errors import UserError
from saywhere.evaluation import search
from saywhere.loading import load
from saywhere.models.bundle import Bundle
from saywhere.models.model import Model
from saywhere.training import calibration as training
from saywhere.training.calibration import Fitted

FEW = 300
"""Default number of images of each data set to fit boxes and phrases to."""
FEW_SEARCHED = 500
"""Fewer images than this make hits too probable in other indexes."""
UNSEEN = ("dev", "val")
"""Splits that a model was not trained on; hits and numbers are fitted to the first that a data set has."""


class Fit(NamedTuple):
    """How the answer to a question is fitted.

    Attributes:
        needs: the parts of a model that it needs.
        heading: of the section of the model card.
        fit: takes the model, the data sets and their description.
        limit: default maximum number of images of each data set; None for all.
    """

    needs: tuple[str, ...]
    heading: str
    fit: Callable[[Model, Sequence[Sequence[Sample]], str], Fitted]
    limit: int | None = None


def _fit_hubness(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    from saywhere.training import hubness  # needs torch

    return hubness.fit_hubness(model, sets, source)


FITS = {
    "box": Fit(("densecap",), "## Calibration", training.fit_boxes, FEW),
    "word": Fit(("densecap", "aligner"), "## People and colours", training.fit_words),
    "caption": Fit(("densecap",), "## Captions of regions", training.fit_captions),
    "phrase": Fit(("aligner",), "## Grounding", training.fit_grounding, FEW),
    "similarity": Fit(("aligner",), "## Hubness", _fit_hubness),
    "hit": Fit(("aligner",), "## Hits of a search", search.fit_hits),
    "number": Fit(("densecap", "aligner", "nouns"), "## Numbers of things", training.fit_numbers),
}
"""What can be calibrated, in the required order."""
USUAL = tuple(what for what in FITS if what != "number")
"""What is calibrated if nothing is named. Numbers need data in which every thing has a box, which no file tells."""


Place = tuple[str | Path, str | None, str]
"""Root, format and split of a data set."""


def read_sets(places: Iterable[Place]) -> tuple[list[Samples], str]:
    """Read the samples of data sets; return them and a joint description. Missing or broken data is reported."""
    sets = [datasets.read(*place) for place in places]
    for samples in sets:
        samples.report.leave_out(samples.split)
    return sets, "; ".join(f"{samples.name}, split {samples.split}" for samples in sets)


def possible(parts: Iterable[str]) -> list[str]:
    """Return what can be calibrated for a model with some parts."""
    return [what for what, each in FITS.items() if set(each.needs) <= set(parts)]


def default_split(what: str, root: str | Path, format: str | None = None) -> str:
    """Return the default split for a question: ``train``; for hits and numbers one that taught no model.

    ``UserError`` if the data set has no such split.
    """
    if what not in ("hit", "number"):
        return "train"
    there = datasets.splits(root, format)
    if found := next((name for name in UNSEEN for other in there if other.startswith(name)), None):
        return found
    raise UserError(f"{root} has no split {' or '.join(UNSEEN)}: name one that did not teach the model with --split")


def fit(
    what: str,
    folder: Path,
    sets: Sequence[Sequence[Sample]],
    source: str,
    limits: Sequence[int | None],
    device: str | None = None,
) -> Fitted:
    """Fit the answer to one of :data:`FITS`, and store it in a user's model folder and its card.

    ``limits`` has the maximum number of images per data set; None for the default. ``UserError`` if the model lacks a
    part or the data is insufficient.
    """
    asked = FITS[what]
    bundle = Bundle.read_own(folder, *asked.needs)
    given = sum(map(len, sets))
    if what in ("word", "caption") or (what == "phrase" and "nouns" in bundle.configs):
        sets = [[each for each in samples if sample.is_held_out(each.image)] for samples in sets]
    left = sum(map(len, sets))
    sets = [evenly(samples, asked.limit if n is None else n) for samples, n in zip(sets, limits, strict=True)]
    try:
        made = asked.fit(load(bundle.folder, device), sets, source)
    except UserError as error:
        if left == given:
            raise
        part = f"{left} of {given:,} images can be used, the tenth that the part nouns is not trained on"
        raise UserError(f"{error} ({part})") from error
    made.store(bundle.folder, asked.heading)
    return made
