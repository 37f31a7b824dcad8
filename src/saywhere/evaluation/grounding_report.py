"""``report.json`` and ``report.md`` of grounding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.grounding import GroundingResult
from saywhere.evaluation.task_report import facts, table, write_report


def write_grounding_report(
    folder: Path, result: GroundingResult, controls: Mapping[str, GroundingResult], known: Mapping[str, Any]
) -> None:
    """Write both files into ``folder``: the model's figures, those of the ``controls``, and what is ``known``."""
    rows = [
        (name, f"{each.accuracy:.3f}", f"{each.pointing:.3f}", each.phrases)
        for name, each in {"model": result, **controls}.items()
    ]
    types = [
        (name, score.phrases, f"{score.accuracy:.3f}", f"{score.pointing:.3f}")
        for name, score in result.by_type.items()
    ]
    lengths = {"skipped", "data_problems"}
    shown = {name.replace("_", " "): len(v) if name in lengths else v for name, v in known.items()}
    lines = ["# Grounding", ""]
    lines += table(("", "IoU ≥ 0.5", "pointing", "phrases"), rows)
    lines += ["", *table(("type of entity", "phrases", "IoU ≥ 0.5", "pointing"), types), "", *facts(shown)]
    row = {"task": "ground", **result.to_dict(), "controls": {name: each.to_dict() for name, each in controls.items()}}
    write_report(folder, {**row, **known}, lines)
