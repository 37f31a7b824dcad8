"""The cells of the table on disk: the captions of one system for one kind of boxes, and their scores.

A cell is a file of JSON lines whose name ends with a hash of all that it depends on: a changed model or option makes
another file, and a run that was stopped is resumed with the cells that are missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhere.evaluation.dense import DenseCaptioning, Scorer
from saywhere.evaluation.region_lines import RegionLines
from saywhere.files import write_text
from saywhere.models.bundle import FILES

PROTOCOL = "clean"
SCORES = ("map", "detection_map", "language_meteor")


@dataclass(frozen=True)
class Cell:
    """One cell of one seed.

    Attributes:
        row: the system, such as ``region-rnn``.
        column: whose boxes: ``external``, ``rpn`` or ``gt``.
        seed: of the system.
        path: of the lines; the scores stand beside it.
    """

    row: str
    column: str
    seed: int
    path: Path

    @classmethod
    def of(cls, folder: Path, row: str, column: str, seed: int, depends: Any) -> Cell:
        """Return the cell in ``folder`` that was or will be made from ``depends`` (plain values)."""
        name = f"{row}-{column}-{seed}-{digest([row, column, seed, depends])[:10]}.jsonl"
        return cls(row, column, seed, folder / name)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write the regions of all images, whole or not at all."""
        write_lines(self.path, lines)

    def score(self, truth: RegionLines, names: Sequence[str], scorer: Scorer) -> dict[str, float]:
        """Return ``map``, ``detection_map`` and ``language_meteor`` over the images ``names``, from disk if there."""
        place = self.path.with_suffix(".json")
        if place.is_file():
            return json.loads(place.read_text())
        metric, found = DenseCaptioning(PROTOCOL), RegionLines(self.path, needs=("scores", "captions"))
        for name in names:
            ours, true = found[name], truth[name]
            scores = () if ours.scores is None else ours.scores
            phrases = [[caption] for caption in true.captions or ()]
            metric.add_arrays(ours.boxes, scores, ours.captions or (), true.boxes, phrases, name)
        result = metric.result(scorer).to_dict()
        scores = {key: result[key] for key in SCORES}
        write_text(place, json.dumps(scores, indent=2) + "\n")
        return scores


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line; the file is whole or not there."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def digest(values: Any) -> str:
    """Return a hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def checkpoint_digest(folder: Path) -> str:
    """Return a hash of the files of a model folder."""
    total = hashlib.sha256()
    for name in FILES:
        with (folder / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
