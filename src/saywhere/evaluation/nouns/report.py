"""``report.json`` and ``report.md`` of right nouns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.nouns.metric import NounResult
from saywhere.evaluation.report import facts, table, write_report


def write_noun_report(folder: Path, result: NounResult, known: Mapping[str, Any]) -> list[Path]:
    """Write both files into ``folder``, and return their paths.

    Args:
        folder: where to.
        result: the shares.
        known: how they came about, by name.
    """
    ways = list(result.objects)
    means = [(way, f"{result.kinds[way]:.3f}", f"{result.objects[way]:.3f}") for way in ways]
    kinds = [(name, count, *(f"{shares[way]:.2f}" for way in ways)) for name, (count, shares) in result.by_kind.items()]
    lines = [
        "# Right nouns, given the boxes",
        "",
        *table(("", f"mean over {len(kinds)} kinds", "of all boxes"), means),
        "",
        *table(("kind", "boxes", *ways), kinds),
        "",
        *facts(known),
    ]
    row = {
        "task": "nouns",
        "kinds": dict(result.kinds),
        "objects": dict(result.objects),
        "by_kind": {name: {"boxes": count, **shares} for name, (count, shares) in result.by_kind.items()},
    }
    return write_report(folder, {**row, **known}, lines)
