"""``saywhere calibrate``: turn scores into probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import DataFormat, Device
from saywhere.errors import UserError
from saywhere.report import collect_left_out, leave_out

if TYPE_CHECKING:
    from saywhere.adapters.sources import Adapted
    from saywhere.data import Sample


class What(StrEnum):
    """The scores that can be calibrated, in the order in which they are fitted."""

    box = "box"
    word = "word"
    caption = "caption"
    phrase = "phrase"
    similarity = "similarity"
    hit = "hit"
    number = "number"


def calibrate(
    model: Path = typer.Argument(metavar="MODEL", help="Model folder, such as runs/NAME/model, or hub:OWNER/NAME."),
    data: list[Path] = typer.Option(
        ..., metavar="ROOT", help="Folder of the data set, or a .jsonl file; may be repeated."
    ),
    what: list[What] | None = typer.Option(
        None,
        help="What to fit. box: a region's box is right. word: its words for a person's sex and for colours are right. "
        "caption: its phrase names what is in the box. phrase: the image shows a phrase, and its box is right. "
        "similarity: the hubness correction. hit: an image that a search found shows the query. number: there are as "
        "many things as a phrase says. May be repeated.",
        show_default="all but number that the model has parts for",
    ),
    format: DataFormat = None,
    split: str | None = typer.Option(
        None,
        help="Split of the data set; not the one that scores are to be measured on.",
        show_default="train; dev or val for hit and number",
    ),
    limit: int | None = typer.Option(
        None,
        min=1,
        metavar="N",
        help="Maximum number of images per data set, evenly spaced.",
        show_default="300 for box and phrase, else all",
    ),
    device: Device = None,
) -> None:
    """Turn scores into probabilities: fit logistic regressions on images with ground truth (Platt scaling).

    The fits are stored in the model folder's calibration.json; the weights do not change. For fine-tuning, box also
    writes information.safetensors. Only similarity adds weights, the aligner's hubness correction: make search indexes
    again after it.

    The scores word and caption are fitted on the tenth of the training images that the part nouns was not trained on,
    and so is phrase if the model has this part. A box is right if its IoU with a true one is at least 0.5.

    For a model of the library transformers, only box and phrase can be calibrated. The fits are stored beside its
    weights, or in the user's cache for hub:OWNER/NAME.

    Exit code: 0 success; 1 something was left out (images that are missing or broken, or a score for which the data
    have no truth); 2 error.
    """
    from saywhere.adapters.sources import find_adapted
    from saywhere.stages.calibration import default_split, read_sets

    adapted = find_adapted(model.as_posix())
    if adapted is not None:
        possible, fit = _fitter_of_adapted(adapted, model.as_posix(), device)
    else:
        possible, fit = _fitter(model, device)
    if not (chosen := [each for each in What if each in (what or possible)]):
        raise UserError(f"{model}: has no part that can be calibrated (densecap or aligner)")
    failed: dict[What, UserError] = {}
    with collect_left_out() as left_out:
        for each in chosen:
            try:
                sets, source = read_sets((root, format, split or default_split(each, root, format)) for root in data)
                typer.echo(f"{model}: {fit(each, sets, source, limit)}")
            except UserError as error:
                if what:
                    raise
                failed[each] = error
        wrong = failed.popitem()[1] if len(failed) == len(chosen) else None
        for each, error in failed.items():
            if str(error) != str(wrong):
                leave_out(f"left out: {each}: {error}")
    if wrong is not None:
        raise wrong
    if left_out:
        raise typer.Exit(1)


Fitter = Callable[[What, Sequence["Sequence[Sample]"], str, int | None], object]
"""Fits a score to data sets, given their source and the maximum number of images of each; returns what to print."""


def _fitter(model: Path, device: str | None) -> tuple[list[What], Fitter]:
    """Return the scores that a model has parts for, and the function that fits them."""
    from saywhere.models.bundle import Bundle
    from saywhere.stages import calibration

    def fit(what: What, sets: Sequence[Sequence[Sample]], source: str, limit: int | None) -> object:
        made = calibration.fit(what.value, model, sets, source, [limit] * len(sets), device)
        images = sum(len(samples) if limit is None else min(limit, len(samples)) for samples in sets)
        if what == What.hit and images < calibration.FEW_SEARCHED:
            few = f"{images} images are few for hits: things that other indexes lack may become probable"
            typer.echo(f"{model}: {few}", err=True)
        return made

    able = calibration.possible(Bundle.read_own(model).configs)
    return [What(what) for what in able if what in calibration.USUAL], fit


def _fitter_of_adapted(found: Adapted, name: str, device: str | None) -> tuple[list[What], Fitter]:
    """Return the scores that a model of transformers has, and the function that fits them."""
    from saywhere.data.sample import evenly
    from saywhere.stages.calibration import FEW
    from saywhere.training.calibration import calibrate_adapted

    possible = [What.box, What.phrase] if found.family.describes else [What.phrase]

    def fit(what: What, sets: Sequence[Sequence[Sample]], source: str, limit: int | None) -> object:
        if what not in (What.box, What.phrase):
            raise UserError(f"{name}: for a model of transformers only box and phrase can be calibrated, not {what}")
        chosen = [evenly(samples, FEW if limit is None else limit) for samples in sets]
        made = calibrate_adapted(found, name, what.value, chosen, source, device)
        if any(fit.weights["logit"] <= 0 for fit in made.fits.values() if fit is not None):
            typer.echo(
                f"{name}: on these images higher scores are not right more often; the order is reversed", err=True
            )
        return made

    return possible, fit
