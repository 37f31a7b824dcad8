"""Phrases that are found or not: what ``saywhere calibrate --part aligner`` fits to a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from saywhere import boxes as geometry
from saywhere.configs.aligner import GroundingConfig, Presence
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.model import Model
from saywhere.models.placing import Evidence, noun_words
from saywhere.text import tokenize
from saywhere.training.progress import track

RIGHT = 0.5
"""A box is right from this IoU with a true one on."""
PHRASES = 8
"""Phrases of an image at most, and as many of others."""
WEIGHTS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Weights of the classes that are tried."""
SIMILARITY_WEIGHTS = (0.0, 10.0, 20.0, 30.0, 50.0, 80.0)
"""The same beside similarities."""
FEW = 20
"""Phrases with rare nouns have weights of their own if there are at least so many, in their images and not."""
HEADING = "## Grounding"


@dataclass(frozen=True, eq=False)
class Collected:
    """Hold the evidence of an image's phrases.

    Attributes:
        evidence: of the image's own phrases, then of as many of other images that it does not show.
        right: ``(R, P)`` for the P own phrases, whether the box of each region is right.
    """

    evidence: Evidence
    right: np.ndarray


def absent(own: Sequence[Sequence[str]], words: Sequence[set[str]], seed: int = 0) -> Iterator[list[str]]:
    """Yield for each image phrases of other images that it does not show, as many as it has itself if there are any.

    A phrase is not shown if none of the words of its noun is said of the image.

    Args:
        own: the phrases of each image.
        words: all words that are said of each image.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    pool = [phrase for phrases in own for phrase in phrases]
    nouns = [noun_words(phrase) for phrase in pool]
    for phrases, said in zip(own, words, strict=True):
        found: list[str] = []
        for number in generator.permutation(len(pool))[: 20 * len(phrases)].tolist():
            if len(found) < len(phrases) and not said.intersection(nouns[number]):
                found.append(pool[number])
        yield found


def held_out(folder: str | Path, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the images that taught a model's classes nothing: of their own images classes are too sure.

    They are all if the model has no classes, and one of ten otherwise, see :func:`saywhere.training.classes.collect`.
    """
    if "classes" not in Bundle.read(folder).configs:
        return samples
    from saywhere.training.classes import is_held_out  # this needs torch

    return [sample for sample in samples if is_held_out(sample.image)]


def collect(
    model: Model, samples: Sequence[Sample], part: Literal["aligner", "densecap"] | None = None, seed: int = 0
) -> list[Collected]:
    """Return the evidence of phrases of images, and of phrases of other images that they do not show.

    Images that cannot be read are passed over. A progress bar is shown.

    Args:
        model: that is asked.
        samples: the images with their phrases.
        part: that places phrases, see :meth:`saywhere.Model.placer`.
        seed: of the draws.

    Raises:
        UserError: no image has a phrase, or none can be read.
    """
    placer, generator = model.placer(part), np.random.default_rng(seed)
    phrases = [[p for references in sample.phrases for p in references] for sample in samples]
    own = [[each[i] for i in generator.permutation(len(each))[:PHRASES]] for each in phrases]
    texts = [(*each, *sample.sentences) for each, sample in zip(phrases, samples, strict=True)]
    words = [{word for text in each for word in tokenize(text)} for each in texts]
    found: list[Collected] = []
    with track("grounding", len(samples)) as progress:
        for sample, mine, others in zip(samples, own, absent(own, words, seed), strict=True):
            progress.advance(1)
            if mine:
                try:
                    evidence = placer.evidence(model.encode(sample.image), [*mine, *others])
                except ImageError:
                    continue
                right = [_right(evidence.regions.boxes, sample, phrase) for phrase in mine]
                found.append(Collected(evidence, np.stack(right, axis=1)))
    if not found:
        raise UserError("calibration needs images with phrases, and not one can be read")
    return found


def _right(boxes: np.ndarray, sample: Sample, phrase: str) -> np.ndarray:
    """Whether each of boxes ``(R, 4)`` is right for a phrase: with one of its true boxes, if it has several."""
    true = sample.boxes[[phrase in references for references in sample.phrases]]
    return geometry.iou(boxes, true).max(axis=1, initial=0) >= RIGHT


def accuracy(rows: Sequence[Collected], config: GroundingConfig, rare: bool | None = None) -> tuple[float, int]:
    """Return the share of own phrases that are placed right, of rare nouns, of others or of all; and their number.

    Phrases that the classes have no say in are left out.
    """
    marks: list[bool] = []
    for row in rows:
        chosen = row.evidence.rows(config)[: row.right.shape[1]]
        asked = row.evidence.named[: len(chosen)]
        if rare is not None:
            asked = asked & (row.evidence.rare[: len(chosen)] == rare)
        marks += row.right[chosen, np.arange(len(chosen))][asked].tolist()
    return float(np.mean(marks)) if marks else 0.0, len(marks)


def choose(rows: Sequence[Collected], config: GroundingConfig, by_aligner: Sequence[Collected] = ()) -> GroundingConfig:
    """Return the configuration with the weights of the classes that place most phrases right; the smaller of equals.

    Args:
        rows: the evidence.
        config: the other options.
        by_aligner: the evidence where the aligner places phrases, if a model has another part for it.
    """
    for option, rare in (("kind_weight", False), ("rare_kind_weight", True)):
        tried = [replace(config, **{option: weight}) for weight in WEIGHTS]
        config = max(tried, key=lambda each: accuracy(rows, each, rare)[0])
    tried = [replace(config, similarity_kind_weight=weight) for weight in SIMILARITY_WEIGHTS]
    config = max(tried, key=lambda each: accuracy(by_aligner or rows, each)[0])
    evidence = np.concatenate([row.evidence.inputs for row in rows])
    there = np.concatenate([np.arange(len(row.evidence.named)) < row.right.shape[1] for row in rows])
    rarely = np.concatenate([row.evidence.rare for row in rows])
    few = min(int((rarely & there).sum()), int((rarely & ~there).sum())) < FEW
    of_rare = None if few else fit(evidence[rarely], there[rarely])
    common = slice(None) if few else ~rarely
    return replace(config, presence=fit(evidence[common], there[common]), rare_presence=of_rare)


def fit(evidence: np.ndarray, there: np.ndarray) -> Presence:
    """Return the weights of evidence ``(N, 4)`` for what is ``there (N,)``, see :func:`logistic_weights`.

    Raises:
        UserError: all phrases are in their images, or none.
    """
    if there.all() or not there.any():
        raise UserError(f"calibration needs phrases that are there and others, and all {len(there)} are of one kind")
    return tuple(logistic_weights(evidence, there))  # pyright: ignore[reportReturnType]


def logistic_weights(evidence: np.ndarray, true: np.ndarray, ridge: float = 1e-4, steps: int = 50) -> list[float]:
    """Return the weights of the largest likelihood: logistic regression by Newton's method, with a little ridge.

    Args:
        evidence: ``(N, F)``, the last column 1.
        true: ``(N,)`` what is to be predicted; neither all nor none are.
        ridge: on the weights of the columns, which are scaled to a standard deviation of 1 for it.
        steps: of the iteration.
    """
    mean, spread = evidence[:, :-1].mean(axis=0), evidence[:, :-1].std(axis=0)
    scale = np.where(spread > 0, spread, 1)
    columns = np.concatenate(((evidence[:, :-1] - mean) / scale, evidence[:, -1:]), axis=1)
    penalty = np.diag([*[ridge] * len(mean), 0])
    weights = np.zeros(columns.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-columns @ weights))
        slope = columns.T @ (p - true) / len(true) + penalty @ weights
        curve = (columns.T * (p * (1 - p))) @ columns / len(true) + penalty
        weights -= np.linalg.solve(curve, slope)
    plain = weights[:-1] / scale
    constant = weights[-1] - plain @ mean
    return [round(value, 5) for value in (*plain.tolist(), float(constant))]


def calibrate(
    folder: str | Path, sets: Sequence[Sequence[Sample]], source: str, device: str | None = None
) -> GroundingConfig:
    """Fit how phrases are placed and found by the model in a folder, and write it to the aligner's configuration.

    Args:
        folder: of a model with an aligner; weights stay as they are, the card gets a section.
        sets: images with phrases and boxes, of one data set or several; phrases that an image does not show are drawn
            from the same set.
        source: name of the images, for the card.
        device: where the model runs; the best there is if None.

    Raises:
        UserError: there is no such model, it has no aligner, and what :func:`collect` and :func:`fit` raise.
    """
    bundle = Bundle.read_own(folder)
    if "aligner" not in bundle.configs:
        raise UserError(f"{folder} has no aligner, which says what is in an image; it has {', '.join(bundle.configs)}")
    model = load(bundle.folder, device)
    rows = [row for samples in sets for row in collect(model, samples)]
    both = model.detector is not None and model.classes is not None
    by_aligner = [row for samples in sets for row in collect(model, samples, "aligner")] if both else []
    config = choose(rows, bundle.configs["aligner"].grounding, by_aligner)
    from saywhere.networks import checkpoint  # these need torch, and what else is here does not
    from saywhere.training.card import replace_section

    checkpoint.change_options(bundle.folder, {"aligner.grounding": config.to_dict()})
    replace_section(bundle.folder / CARD, HEADING, _section(config, rows, source))
    return config


def _section(config: GroundingConfig, rows: Sequence[Collected], source: str) -> str:
    own, total = sum(row.right.shape[1] for row in rows), sum(len(row.evidence.named) for row in rows)
    weights = (config.presence, config.rare_presence or config.presence)
    common, rare = (", ".join(f"{value:g}" for value in each or ()) for each in weights)
    return f"""The probability that an image shows what a phrase names is the logistic function of a weighted sum of the
phrase's similarity with the image, the log-probability of the kind that it names, 1 if it names one, and 1. Weights
{common}, of phrases with a rare noun {rare},
fitted by `saywhere calibrate` to {own:,} phrases of {len(rows):,} images of {source},
and {total - own:,} phrases of other images. Weights of the classes in placing, of
{", ".join(f"{weight:g}" for weight in WEIGHTS)} those that place most of these phrases right: {config.kind_weight:g},
of rare nouns {config.rare_kind_weight:g}; where the aligner places them, of
{", ".join(f"{weight:g}" for weight in SIMILARITY_WEIGHTS)}, {config.similarity_kind_weight:g}.
"""
