"""``report.json`` and ``report.md`` of ranking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.ranking import RankingResult
from saywhere.evaluation.task_report import facts, table, write_report

DIRECTIONS = {"image_to_text": "annotation (picture to sentences)", "text_to_image": "search (sentence to pictures)"}


def write_ranking_report(folder: Path, result: RankingResult, known: Mapping[str, Any]) -> None:
    """Write both files into ``folder``; shares are fractions, ``known`` says how they came about."""
    rows = [
        (title, f"{recall.r1:.3f}", f"{recall.r5:.3f}", f"{recall.r10:.3f}", f"{recall.median_rank:g}", recall.queries)
        for title, recall in ((title, getattr(result, name)) for name, title in DIRECTIONS.items())
    ]
    head = ("", "R@1", "R@5", "R@10", "median rank", "queries")
    lines = ["# Ranking", "", *table(head, rows), "", *facts(_shown(known))]
    write_report(folder, {"task": "rank", **result.to_dict(), **known}, lines)


def _shown(known: Mapping[str, Any]) -> dict[str, Any]:
    lengths = {"skipped", "data_problems"}
    return {name.replace("_", " "): len(v) if name in lengths else v for name, v in known.items()}
