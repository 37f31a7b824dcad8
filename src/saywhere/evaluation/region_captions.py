"""A model's phrases for the true boxes of a data set, compared with human ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from saywhere.data import PhraseOptions
from saywhere.errors import UserError
from saywhere.evaluation import captions as metrics
from saywhere.evaluation import meteor
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session
from saywhere.inference import ResultsFile
from saywhere.models.model import Model
from saywhere.models.nouns import colour_of
from saywhere.models.phrases import SEXES
from saywhere.options import dataclass
from saywhere.text import tokenize

MERGE = 0.7
"""Boxes with at least this IoU are merged."""
PREDICTIONS = "predictions.jsonl"
"""Results file of a run: the boxes with the model's phrases."""


@dataclass(frozen=True)
class WordFacts:
    """Statistics of phrases besides how well they match the true ones.

    Attributes:
        words: mean number of words per phrase.
        distinct: number of distinct phrases.
        distinct_true: number of distinct first true phrases of the same boxes.
        sex_boxes: boxes whose true phrases name a man, woman, boy or girl.
        sex_said: share of them whose phrase names one as well.
        sex_right: share of these phrases whose first such word has the right sex.
        colour_boxes: boxes whose true phrases name a colour.
        colour_said: share of them whose phrase names a colour as well.
        colour_right: share of the colours of these phrases that a true phrase names.

    Shares of an empty set are None.
    """

    words: float
    distinct: int
    distinct_true: int
    sex_boxes: int
    sex_said: float | None
    sex_right: float | None
    colour_boxes: int
    colour_said: float | None
    colour_right: float | None


@dataclass(frozen=True)
class RegionCaptionScores(metrics.CaptionScores):
    """Scores of the phrases of boxes, and statistics of their words."""

    words: WordFacts


def word_facts(found: Mapping[str, str], true: Mapping[str, Sequence[str]]) -> WordFacts:
    """Count words, distinct phrases, and how often words for sex and colour are right, for the same boxes.

    Example:
        >>> found = {"1": "a man in a red coat", "2": "a person", "3": "a blue car"}
        >>> facts = word_facts(found, {"1": ["a woman in red"], "2": ["a boy"], "3": ["a car"]})
        >>> facts.sex_boxes, facts.sex_said, facts.sex_right, facts.colour_boxes, facts.colour_right
        (2, 0.5, 0.0, 1, 1.0)
    """
    texts = {key: tokenize(phrase) for key, phrase in found.items()}
    truth = {key: [tokenize(phrase) for phrase in true[key]] for key in found}
    sexes = {key: {word for text in truth[key] for word in _sexes(text)[:1]} for key in found}
    colours = {key: {colour for text in truth[key] for colour in _colours(text)} for key in found}
    sex = [(_sexes(texts[key])[:1], sexes[key]) for key in found if sexes[key]]
    colour = [(_colours(texts[key]), colours[key]) for key in found if colours[key]]
    return WordFacts(
        words=sum(map(len, texts.values())) / max(len(texts), 1),
        distinct=len({" ".join(text) for text in texts.values()}),
        distinct_true=len({" ".join(references[0]) for references in truth.values()}),
        sex_boxes=len(sex),
        sex_said=_share([bool(said) for said, _ in sex]),
        sex_right=_share([word in right for said, right in sex for word in said]),
        colour_boxes=len(colour),
        colour_said=_share([bool(said) for said, _ in colour]),
        colour_right=_share([word in right for said, right in colour for word in said]),
    )


def _sexes(words: Sequence[str]) -> list[str]:
    return [SEXES[word.removesuffix("'s")] for word in words if word.removesuffix("'s") in SEXES]


def _colours(words: Sequence[str]) -> list[str]:
    named = (colour_of(words, place) for place in range(len(words)))
    return list(dict.fromkeys(colour for colour in named if colour is not None))


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None


def run(model: Model, session: Session) -> RegionCaptionScores:
    """Describe the true boxes of a data set and score the phrases: BLEU, METEOR, ROUGE-L, CIDEr-D and word statistics.

    Raises:
        UserError: the model cannot describe boxes, no image is readable, or the metrics are not installed.
    """
    if model.captioner is None or model.captioner.config.decoder == "attention":
        model.require("densecap", "describe given boxes")
    scorer = meteor.Meteor()
    samples = session.read(PhraseOptions(merge=MERGE))
    sources = {source.path: source for source in session.sources(samples)}
    pairs = [(sources[sample.image], sample) for sample in samples if len(sample.boxes)]
    if not pairs:
        raise UserError(f"{session.data}: the split {samples.split} has no image with a box and a phrase")
    boxes = {source.name: sample.boxes for source, sample in pairs}
    session.resume({"model": model.digest(), "data": samples.name, "split": samples.split, "merge": MERGE}, PREDICTIONS)
    found: dict[str, str] = {}
    true: dict[str, tuple[str, ...]] = {}
    with ResultsFile(session.out / PREDICTIONS) as lines:
        chosen = [source for source, _ in pairs]
        session.each(
            model.describe, chosen, lines.done, lambda name, regions: lines.append(regions.to_dict(), name),
            boxes, model.long_side,
        )  # fmt: skip
        for source, sample in pairs:
            if source.name not in session.skipped:
                for i, caption in enumerate(lines[source.name]["captions"]):
                    found[f"{source.name}#{i}"], true[f"{source.name}#{i}"] = caption, sample.phrases[i]
    captions = metrics.score_captions(found, true, scorer)
    scores = RegionCaptionScores(captions.metrics, captions.cider, word_facts(found, true))
    known = session.known(samples.name, merge=MERGE, boxes=len(found))
    row = {"task": "region-captions", "protocol": "coco", **scores.metrics, **asdict(scores.words), **known}
    write_report(session.out, row)
    return scores
