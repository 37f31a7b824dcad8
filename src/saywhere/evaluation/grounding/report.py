"""``report.json`` and ``report.md`` of grounding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.grounding.metric import GroundingResult
from saywhere.evaluation.grounding.presence import PresenceResult
from saywhere.evaluation.report import facts, table, write_report


def write_grounding_report(
    folder: Path,
    result: GroundingResult,
    controls: Mapping[str, GroundingResult],
    known: Mapping[str, Any],
    presence: PresenceResult | None = None,
) -> list[Path]:
    """Write both files into ``folder``, and return their paths.

    Args:
        folder: where to.
        result: the figures of the model.
        controls: those of answers that do not read the phrase, by name.
        known: how they came about, by name.
        presence: how well phrases that are there are told from others.
    """
    rows = [
        (name, f"{each.accuracy:.3f}", f"{each.pointing:.3f}", each.phrases)
        for name, each in {"model": result, **controls}.items()
    ]
    types = [
        (name, kind, score.phrases, f"{score.accuracy:.3f}", f"{score.pointing:.3f}")
        for name, each in {"model": result, **controls}.items()
        for kind, score in each.by_type.items()
    ]
    found = {} if presence is None else presence.to_dict()
    lines = [
        "# Grounding",
        "",
        *table(("", "IoU ≥ 0.5", "pointing", "phrases"), rows),
        "",
        *(
            ["## Found or not", "", *facts({name: _rounded(value) for name, value in found.items()}), ""]
            if found
            else []
        ),
        "## By type of phrase",
        "",
        *table(("", "type", "phrases", "IoU ≥ 0.5", "pointing"), types),
        "",
        *facts(known),
    ]
    row = {"task": "ground", **result.to_dict(), "controls": {name: each.to_dict() for name, each in controls.items()}}
    row |= {"presence": found} if found else {}
    return write_report(folder, {**row, **known}, lines)


def _rounded(value: object) -> object:
    return f"{value:.3f}" if isinstance(value, float) else value
