"""``report.json`` and ``report.md`` of ranking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.ranking.metric import RankingResult
from saywhere.evaluation.report import facts, table, write_report


def write_ranking_report(folder: Path, result: RankingResult, known: Mapping[str, Any]) -> list[Path]:
    """Write both files into ``folder``, and return their paths.

    Args:
        folder: where to.
        result: the figures; recalls are fractions.
        known: how they came about, by name.
    """
    head = ("", "R@1", "R@5", "R@10", "median rank", "queries")
    directions = {
        "annotation (image to sentences)": result.image_to_text,
        "search (sentence to images)": result.text_to_image,
    }
    rows = [
        (title, f"{recall.r1:.3f}", f"{recall.r5:.3f}", f"{recall.r10:.3f}", f"{recall.median_rank:g}", recall.queries)
        for title, recall in directions.items()
    ]
    lines = ["# Ranking", "", *table(head, rows), "", *facts(known)]
    return write_report(folder, {"task": "rank", **result.to_dict(), **known}, lines)
