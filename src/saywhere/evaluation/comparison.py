"""Several models beside each other: one table of what their reports say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.evaluation.report import facts, table, write_report

FIGURES: dict[str, dict[str, str]] = {
    "dense": {"mAP": "map", "boxes alone": "detection_map", "language METEOR": "language_meteor"},
    "caption": {"BLEU-1": "bleu_1", "BLEU-4": "bleu_4", "METEOR": "meteor", "ROUGE-L": "rouge_l", "CIDEr-D": "cider"},
    "ground": {
        "IoU ≥ 0.5": "accuracy", "pointing": "pointing", "there or not, AUC": "presence.auc",
        "calibration error": "presence.calibration_error",
    },
    "rank": {
        "annotation R@1": "image_to_text.r1", "annotation R@10": "image_to_text.r10", "search R@1": "text_to_image.r1",
        "search R@10": "text_to_image.r10",
    },
}  # fmt: skip
"""For each task that compares models: a column's name, and where a report has its figure."""
PROTOCOLS = {"ground": "IoU of at least 0.5 with a true box", "rank": "Alignments, section 4.1"}
"""Of tasks whose reports name none, as there is only one."""
COSTS = {
    "images": "images",
    "seconds": "seconds",
    "memory, MB": "peak_memory_mb",
    "of the GPU, MB": "peak_gpu_memory_mb",
}
SHARED = ("data", "split", "protocol", "images")


@dataclass(frozen=True, eq=False)
class Compared:
    """Reports of several models on one task.

    Attributes:
        task: one of :data:`FIGURES`.
        reports: of each model, by its name.
        resumed: models of which an earlier run had done some images, so that the seconds are of the rest only.
    """

    task: str
    reports: Mapping[str, Mapping[str, Any]]
    resumed: Sequence[str] = field(default=())

    @property
    def header(self) -> list[str]:
        """The names of the columns; one that no report has a figure for is left out."""
        return ["model", *(name for name in self._columns)]

    @property
    def rows(self) -> list[list[str]]:
        """A row for each model."""
        return [
            [name, *(self._cell(name, report, path) for path in self._columns.values())]
            for name, report in self.reports.items()
        ]

    @property
    def facts(self) -> dict[str, object]:
        """What all have in common: data, split, protocol and number of images."""
        first = {"protocol": PROTOCOLS.get(self.task), **next(iter(self.reports.values()), {})}
        known = {name: first.get(name) for name in SHARED}
        return {
            k: v for k, v in known.items() if all(r.get(k, v) == v for r in self.reports.values()) and v is not None
        }

    @property
    def _columns(self) -> dict[str, str]:
        columns, reports = {**FIGURES[self.task], **COSTS}, self.reports.values()
        return {name: path for name, path in columns.items() if any(figure_of(r, path) is not None for r in reports)}

    def _cell(self, name: str, report: Mapping[str, Any], path: str) -> str:
        value = figure_of(report, path)
        if path == "seconds" and value is not None:
            return f"{value:.1f}" + ("*" if name in self.resumed else "")
        return "" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value:,}"

    def write(self, folder: Path, command: str) -> None:
        """Write ``report.json`` and ``report.md``, see :func:`saywhere.evaluation.report.write_report`."""
        paths = [*FIGURES[self.task].values(), *COSTS.values()]
        models = [
            {"model": name, **{path: figure_of(report, path) for path in paths}, "resumed": name in self.resumed}
            for name, report in self.reports.items()
        ]
        lines = ["# Models compared", "", *table(self.header, self.rows), ""]
        lines += ["\\* of the images that an earlier run had not done", ""] if self.resumed else []
        row = {"task": f"compare {self.task}", **self.facts, "models": models, "command": command}
        write_report(folder, row, [*lines, *facts({**self.facts, "command": f"`{command}`"})])


def read_report(folder: Path) -> dict[str, Any]:
    """Return what ``report.json`` of a model's folder says.

    Raises:
        UserError: it is missing or damaged.
    """
    path = folder / "report.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a report: {error}") from error
    if not isinstance(stored, dict):
        raise UserError(f"{path}: is not a report")
    return stored


def figure_of(report: Mapping[str, Any], path: str) -> Any:
    """The value at a path with dots; None if there is none."""
    value: Any = report
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
