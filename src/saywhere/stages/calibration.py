"""Everything that ``saywhere calibrate`` and a calibration stage fit, with one entry per question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from saywhere import data as datasets
from saywhere.data.sample import Sample, Samples, evenly
from saywhere.errors import UserError
from saywhere.loading import load
from saywhere.models.bundle import Bundle

FEW = 300
"""Default number of images of each data set to fit boxes and phrases to."""
FEW_SEARCHED = 500
"""Fewer images than this make hits too probable in other indexes."""
UNSEEN = ("dev", "val")
"""Splits that a model was not trained on; hits and numbers are fitted to the first that a data set has."""
NEEDS = {
    "box": ("densecap",),
    "word": ("densecap", "aligner"),
    "caption": ("densecap",),
    "phrase": ("aligner",),
    "similarity": ("aligner",),
    "hit": ("aligner",),
    "number": ("densecap", "aligner", "nouns"),
}
"""What can be calibrated, in the required order, and the parts of a model that it needs."""
USUAL = tuple(what for what in NEEDS if what != "number")
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
    return [what for what, needed in NEEDS.items() if set(needed) <= set(parts)]


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
    model: Path,
    sets: Sequence[Sequence[Sample]],
    source: str,
    limits: Sequence[int | None],
    device: str | None = None,
) -> str:
    """Fit the answer to one of :data:`NEEDS`, store it in a model folder, and return a description of the fit.

    ``limits`` has the maximum number of images per data set; None for the default. ``UserError`` if the model lacks a
    part or the data is insufficient.
    """
    from saywhere.data.sample import is_held_out
    from saywhere.training import calibration

    given = sum(map(len, sets))
    if what in ("word", "caption") or (what == "phrase" and "nouns" in Bundle.read(model).configs):
        sets = [[sample for sample in samples if is_held_out(sample.image)] for samples in sets]
    left = sum(map(len, sets))
    usual = FEW if what in ("box", "phrase") else None
    sets = [evenly(samples, usual if n is None else n) for samples, n in zip(sets, limits, strict=True)]
    if what == "similarity":
        from saywhere.training import hubness

        hubness.calibrate(model, sets, source, device)
        return f"similarity: hubness of images and texts, fitted to {source}"
    bundle = Bundle.read_own(model, *NEEDS[what])
    if what == "hit":
        return _fit_hits(bundle, sets, source, device)
    try:
        return str(calibration.calibrate(what, bundle, sets, source, device))
    except UserError as error:
        if left == given:
            raise
        part = f"{left} of {given:,} images can be used, the tenth that the part nouns is not trained on"
        raise UserError(f"{error} ({part})") from error


def _fit_hits(bundle: Bundle, sets: Sequence[Sequence[Sample]], source: str, device: str | None) -> str:
    from saywhere.evaluation.search import fit_hits
    from saywhere.training.calibration import Fitted

    made = Fitted(fit_hits(load(bundle.folder, device), sets), {}, f"searches in {source}")
    about = f"How probable hits are was fitted by `saywhere calibrate`: {made}.\n"
    made.store(bundle.folder, "## Hits of a search", about)
    return str(made)
