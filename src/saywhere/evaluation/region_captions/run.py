"""Phrases of the true boxes of a data set by a model, against those of people."""

from __future__ import annotations

from saywhere.data import PhraseOptions
from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.captions import metrics
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.session import Session
from saywhere.inference import ResultsFile
from saywhere.models.model import Model

PREDICTIONS = "predictions.jsonl"
"""The file of a run: the boxes with the model's phrases."""


def run(model: Model, session: Session, merge: float = 0.7) -> metrics.CaptionScores:
    """Describe the true boxes of a data set and score the phrases: BLEU, METEOR, ROUGE-L and CIDEr-D.

    Args:
        model: with a dense captioner, or a captioner without attention.
        session: the data and the results.
        merge: boxes with at least this IoU are one.

    Raises:
        UserError: the model describes no boxes, no image can be read, or what measures is not installed.
    """
    if model.captioner is None or model.captioner.config.decoder == "attention":
        model.require("densecap", "describe given boxes")
    with meteor.Meteor() as scorer:
        samples = session.read(PhraseOptions(merge=merge))
        sources = {source.path: source for source in session.sources(samples)}
        pairs = [(sources[sample.image], sample) for sample in samples if len(sample.boxes)]
        if not pairs:
            raise UserError(f"{session.data}: the split {samples.split} has no image with a box and a phrase")
        boxes = {source.name: sample.boxes for source, sample in pairs}
        session.resume(
            {"model": model.digest(), "data": samples.name, "split": samples.split, "merge": merge}, PREDICTIONS
        )
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
        scores = metrics.score_captions(found, true, scorer)
    _write(session, samples.name, merge, len(found), scores)
    return scores


def _write(session: Session, data: str, merge: float, boxes: int, scores: metrics.CaptionScores) -> None:
    known = session.known(data, merge=merge, boxes=boxes)
    row = {"task": "region-captions", "protocol": "coco", **scores.metrics, **known}
    figures = table(list(scores.metrics), [[f"{value:.4f}" for value in scores.metrics.values()]])
    about = facts(known | {"command": f"`{known['command']}`"})
    write_report(session.out, row, ["# Captions of given boxes", "", *figures, "", *about])
