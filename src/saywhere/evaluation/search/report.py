"""What an evaluation of search leaves behind: a report, and a plot of how far its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhere.evaluation.ranking.metric import Recall
from saywhere.evaluation.report import facts, save_figure, table, write_report
from saywhere.evaluation.session import Session

if TYPE_CHECKING:
    from saywhere.evaluation.search.presence import PresenceInIndex
    from saywhere.evaluation.search.served import ServedResult

PLOT = "reliability.png"


@dataclass(frozen=True)
class SearchResult:
    """Figures of how well an index answers.

    Attributes:
        recall: of the image of each sentence, by whole vectors.
        code_recall: the same by nothing but codes.
        overlap: mean share of the ten best images by whole vectors that are in the first tenth (ten at least) by codes.
        hit: share of the phrases whose first image shows them, at a place that overlaps with theirs; None without
            phrases that have boxes.
        phrases: number of them.
        presence: whether it knows what is there; None if the model is not calibrated for phrases, or there is nothing
            to tell.
        served: whether a collection in Qdrant finds the same; None if none was asked.
    """

    recall: Recall
    code_recall: Recall
    overlap: float
    hit: float | None
    phrases: int
    presence: PresenceInIndex | None
    served: ServedResult | None = None


def write_search_report(session: Session, result: SearchResult, known: Mapping[str, Any]) -> None:
    """Write ``report.json``, ``report.md`` and, if it is known how probable hits are, ``reliability.png``."""
    rows = [(name, f"{whole:.3f}", f"{coded:.3f}") for name, whole, coded in _recalls(result)]
    lines = [*table(("", "whole vectors", "codes alone"), rows), "", *table(("", ""), _rows(result))]
    there = result.presence
    (session.out / PLOT).unlink(missing_ok=True)
    if there is not None:
        bins = [(f"{mean:.3f}", f"{share:.3f}", count) for mean, share, count in there.reliability]
        lines += ["", *table(("probability", "share of hits that show the query", "hits"), bins)]
        bins = [(f"{mean:.3f}", f"{share:.3f}", count) for mean, share, count in there.anywhere_reliability]
        lines += ["", *table(("probability", "share of queries that any image shows", "queries"), bins)]
        draw_reliability(there, session.out / PLOT)
    measured = {
        "recall": _shares(result.recall), "code_recall": _shares(result.code_recall), "overlap": result.overlap,
        "hit": result.hit, "phrases": result.phrases, "presence": None if there is None else asdict(there),
        "served": None if result.served is None else asdict(result.served),
    }  # fmt: skip
    write_report(session.out, {"task": "search", **measured, **known}, ["# Search", "", *lines, "", *facts(known)])


def _shares(recall: Recall) -> dict[str, float]:
    return {name: value for name, value in vars(recall).items() if name != "queries"}


def _recalls(result: SearchResult) -> list[tuple[str, float, float]]:
    whole, coded = result.recall, result.code_recall
    return [
        ("R@1", whole.r1, coded.r1),
        ("R@5", whole.r5, coded.r5),
        ("R@10", whole.r10, coded.r10),
        ("median rank", whole.median_rank, coded.median_rank),
    ]


def _rows(result: SearchResult) -> list[tuple[str, str]]:
    rows = [("ten best that are in the first tenth by codes", f"{result.overlap:.4f}")]
    if (served := result.served) is not None:
        what = f"ten best that Qdrant finds too ({served.url}, {served.queries:,} sentences)"
        rows.append((what, f"{served.overlap:.4f}"))
    if result.hit is not None:
        what = f"phrase first in an image that shows it, IoU at least 0.5 ({result.phrases:,} phrases)"
        rows.append((what, f"{result.hit:.3f}"))
    if (there := result.presence) is not None:
        rows += [
            ("a hit that shows its query is more probable than one that does not: AUC", f"{there.auc:.3f}"),
            ("calibration error of that probability", f"{there.calibration_error:.3f}"),
            ("the same of the model's own weights", "" if there.own_error is None else f"{there.own_error:.3f}"),
            ("whole queries that some image shows and those that none shows: AUC", f"{there.anywhere_auc:.3f}"),
            ("calibration error of their probability", f"{there.anywhere_error:.3f}"),
            ("queries about images of the index and those that none of them shows: AUC", f"{there.query_auc:.3f}"),
            ("of these said to be probably not found", f"{there.doubted:.3f}, {there.refused:.3f}"),
            ("the first of these and all queries about other images: AUC", f"{there.outside_auc:.3f}"),
            ("the same of a perfect answer", f"{there.outside_limit:.3f}"),
            *((f"weights of the probability `{question}`", str(fit)) for question, fit in there.fits.items()),
        ]
    return rows


def draw_reliability(there: PresenceInIndex, path: Path) -> None:
    """Draw as a PNG how often what has each probability is true, above its number: of hits, and of whole queries."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1))
    sides = (
        (there.reliability, there.auc, there.calibration_error, "share of hits that show the query", "hits"),
        (there.anywhere_reliability, there.anywhere_auc, there.anywhere_error,
         "share of queries that any image shows", "queries"),
    )  # fmt: skip
    for (upper, lower), (bins, area, error, share, what) in zip(axes.T, sides, strict=True):
        means, shares, counts = zip(*bins, strict=True)
        upper.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
        upper.plot(means, shares, "o-", color="#1f4e79")
        upper.set_ylabel(share)
        upper.set_ylim(0, 1)
        upper.set_title(f"AUC {area:.3f}, calibration error {error:.3f}")
        lower.bar(means, counts, 0.08, color="#bbbbbb")
        lower.set_ylabel(what)
        lower.set_xlabel("probability")
        lower.set_xlim(0, 1)
    save_figure(figure, path)
