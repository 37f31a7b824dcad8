"""Dense captioning of a data set by a model: its regions on disk, then their scores."""

from __future__ import annotations

from saywhere.evaluation import meteor
from saywhere.evaluation.dense.metric import DenseCaptioningResult
from saywhere.evaluation.dense.proposals import find_proposals, proposals_digest, write_truth
from saywhere.evaluation.dense.scoring import Comparison, check_plots, compare
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.session import Session
from saywhere.inference import ResultsFile
from saywhere.models.model import Model

PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run: the regions of the model, and the true ones."""


def run(model: Model, session: Session, proposals: str = "rpn", protocol: str = "clean") -> DenseCaptioningResult:
    """Describe a data set and score the regions: mean average precision of boxes with captions (section 4.1).

    Args:
        model: with a dense captioner.
        session: the data and the results.
        proposals: the boxes to describe, see :func:`saywhere.evaluation.dense.proposals.find_proposals`.
        protocol: ``clean``, or ``original``: as the published program counts.

    Raises:
        UserError: the model has no dense captioner, no image can be read, or what measures is not installed.
    """
    model.check("densecap", "find regions")
    check_plots()
    with meteor.Meteor() as scorer:  # before the work: it reports at once if pycocoevalcap is missing
        samples = session.read()
        sources = session.sources(samples)
        write_truth(samples, session.data, session.out / TRUTH)
        truth = RegionLines(session.out / TRUTH, several=True)
        boxes = find_proposals(proposals, truth, sources)
        settings = {"model": model.digest(), "data": samples.name, "split": samples.split}
        session.resume(settings | {"proposals": proposals_digest(proposals)}, PREDICTIONS)
        with ResultsFile(session.out / PREDICTIONS) as lines:
            seen = session.each(
                model.describe, sources, lines.done, lambda name, regions: lines.append(regions.to_dict(), name),
                boxes, model.long_side,
            )  # fmt: skip
        predictions = RegionLines(session.out / PREDICTIONS, needs=("scores", "captions"))
        names, facts = [source.name for source in seen], {"proposals": proposals}
        files = Comparison(samples.name, predictions, truth, names, [session.folder], facts)
        return compare(session, files, protocol, scorer)
