"""Scores of other people's models made probabilities: what ``saywhere calibrate`` fits to them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from saywhere.adapters.adapter import Adapter, Question, ScoreCalibration, calibration_path, change_calibration, logit
from saywhere.adapters.sources import Adapted
from saywhere.calibration import Logistic
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.model import Model
from saywhere.training.calibration import Fitted, collect_phrases, matches
from saywhere.training.progress import track

WHAT = {"box": "regions", "phrase": "phrases"}


class Scored(NamedTuple):
    """Scores ``(N,)`` of a model, and whether the event ``(N,)`` occurred whose probability they are to be."""

    scores: np.ndarray
    true: np.ndarray


def calibrate(
    found: Adapted,
    name: str,
    question: Question,
    sets: Sequence[Sequence[Sample]],
    source: str,
    device: str | None = None,
) -> Fitted:
    """Fit the scores of a model of transformers, and write the fit to its file of calibrations.

    Args:
        found: the model.
        name: of it, as :func:`saywhere.load` takes it.
        question: ``box``: a region's score becomes the probability that its box has an IoU of 0.5 with a true one;
            ``phrase``: a phrase's that the image shows it.
        sets: images with phrases and boxes, of one data set or several; phrases that an image does not show are drawn
            from the same set.
        source: name of the images.
        device: where the model runs; the best there is if None.

    Raises:
        UserError: the model cannot be loaded or does not describe, no image can be read, or its scores tell nothing.
        OSError: the calibration cannot be written.
    """
    path = calibration_path(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):  # or the work would be in vain
        pass
    model = load(name, device)
    assert isinstance(model.engine, Adapter)
    model.engine.scores = ScoreCalibration()
    collect = score_regions if question == "box" else score_phrases
    parts = [collect(model, samples) for samples in sets]
    scored = Scored(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    made = fit(scored, name, WHAT[question])
    true, images = int(scored.true.sum()), sum(map(len, sets))
    about = f"{len(scored.true):,} {WHAT[question]}, {true:,} of them true, of {images:,} images of {source}"
    change_calibration(path, model.engine.weights_digest(), question, made, about)
    return Fitted({question: made}, {}, about)


def score_regions(model: Model, samples: Sequence[Sample]) -> Scored:
    """Return the scores of the regions that a model finds, and whether their boxes match true ones.

    Images that cannot be read are passed over. A progress bar is shown.

    Raises:
        UserError: the model does not describe, or no image can be read.
    """
    model.check("densecap", "find regions")
    rows: list[Scored] = []
    with track("calibration", len(samples)) as progress:
        for sample in samples:
            progress.advance(1)
            try:
                found = model.describe(sample.image)
            except ImageError:
                continue
            assert found.scores is not None
            rows.append(Scored(found.scores, matches(found.boxes, sample)))
    if not rows:
        raise UserError("calibration needs images, and not one can be read")
    return Scored(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def score_phrases(model: Model, samples: Sequence[Sample]) -> Scored:
    """Return the scores of phrases of images, and of phrases of others that they do not show.

    Raises:
        UserError: no image has a phrase, or none can be read.
    """
    placer, rows = model.placer(), collect_phrases(model, samples)
    scores = [row.evidence.presence(placer.calibration) for row in rows]
    scored = np.concatenate([each for each in scores if each is not None])
    return Scored(scored, np.concatenate([row.there for row in rows]))


def fit(scored: Scored, name: str, what: str) -> Logistic:
    """Return how probable scores are, by their logit.

    What has the score 0, for the model gives no box, is left out: it stays 0.

    Args:
        scored: what the model says, and what is true.
        name: of the model, for messages.
        what: it scores, for messages.

    Raises:
        UserError: all are true or none, or all have the same score.
    """
    there = scored.scores > 0
    logits, true = logit(scored.scores[there]), scored.true[there]
    if true.any() and np.ptp(logits) < 1e-6:
        score = scored.scores[there][0]
        raise UserError(f"all {len(true)} {what} of {name} have the score {score:g}: a constant cannot be calibrated")
    return Logistic.fit({"logit": logits}, true, what=f"{what} of {name}")
