"""Scores of captions on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.captions import metrics
from saywhere.evaluation.captions.invented import count_invented
from saywhere.evaluation.captions.report import write_caption_examples, write_caption_report
from saywhere.evaluation.region_lines import read_captions, read_references
from saywhere.evaluation.session import Session
from saywhere.models.noun_tree import noun_tree


def score_files(predictions: Path, session: Session) -> metrics.CaptionScores:
    """Score the captions that any program has written, and write the report; needs no network.

    Args:
        predictions: lines with a caption of each image.
        session: its ``data`` is the file of the truth, whose first ``limit`` images count; ``split`` is a name for the
            report. Images that only one of the files has are named in ``notes``.

    Raises:
        UserError: a file cannot be read, they have no image in common, or what measures is not installed.
    """
    with meteor.Meteor() as scorer:
        found, true = read_captions(predictions), read_references(session.data)
        names = [name for name, texts in true.items() if texts][: session.limit]
        if not names:
            raise UserError(f"{session.data}: no image has a caption")
        missing, unknown = sum(name not in found for name in names), sum(name not in true for name in found)
        if missing == len(names):
            raise UserError(
                f"{predictions}: has none of the {missing} images of {session.data}; "
                f"it names {next(iter(found))!r}, the truth {names[0]!r}"
            )
        if missing:
            session.notes.append(f"{missing} images have no line in {predictions}: an empty caption")
        if unknown:
            session.notes.append(f"{unknown} images in {predictions} have no truth, and do not count")
        captions, references = {n: found.get(n, "") for n in names}, {n: true[n] for n in names}
        facts = {"predictions": str(predictions), "without_prediction": missing, "without_truth": unknown}
        pairs = Comparison(str(session.data), captions, references, [Path(), session.folder], facts)
        return compare(session, pairs, scorer)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Captions and references to compare.

    Attributes:
        data: name of the data set, for the report.
        captions, references: of each image.
        images: folders that the names of the images may start from.
        facts: of the report.
        phrases: of the boxes of each image, where they are known: what they name is not invented.
    """

    data: str
    captions: Mapping[str, str]
    references: Mapping[str, Sequence[str]]
    images: Sequence[Path]
    facts: Mapping[str, Any]
    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)


def compare(session: Session, pairs: Comparison, scorer: meteor.Meteor) -> metrics.CaptionScores:
    """Score captions by the references, and write the report with its page of examples."""
    scores = metrics.score_captions(pairs.captions, pairs.references, scorer)
    mentions = {name: (*texts, *pairs.phrases.get(name, ())) for name, texts in pairs.references.items()}
    invented = count_invented(pairs.captions, mentions, noun_tree())
    facts = {"invented_nouns": invented.nouns, "sentences_with_invented_nouns": invented.sentences}
    known = session.known(pairs.data, **pairs.facts, **facts, meteor_version=scorer.version)
    write_caption_examples(session.out, scores, pairs.captions, pairs.references, pairs.images)
    write_caption_report(session.out, scores, known)
    return scores
