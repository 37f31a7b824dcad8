"""Regions of many pictures in lines of JSON, as ``saywhere describe`` writes them, read one picture at a time.

Unlike :class:`saywhere.regions.Regions` this takes any program's numbers: scores of any range, boxes that leave the
picture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saywhere.errors import UserError

Array = NDArray[Any]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class PictureRegions:
    """What a file says of one picture.

    Attributes:
        boxes: ``(N, 4)`` doubles ``x1 y1 x2 y2``.
        scores: ``(N,)`` doubles, or None if a line has none.
        captions: N texts, or None if a line has none.
        size: width and height of the picture, if the file has them.
    """

    boxes: Array
    scores: Array | None
    captions: tuple[str, ...] | None
    size: tuple[float, float] | None


LARGEST = 1e300
"""Numbers beyond this are refused, as those are that are not finite."""

NOTHING = PictureRegions(np.empty((0, 4)), np.empty(0), (), None)
"""For a picture that is not in the file."""


class RegionLines:
    """A file of lines ``{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}``, with ``scores``, ``captions``, and the
    picture's ``width`` and ``height``; it is checked at once, but only the places of the lines are kept in memory.

    Args:
        path: the file.
        needs: parts that each line with a box must have: ``"scores"``, ``"captions"``.
        several: a picture may have several lines; their regions are joined, in the order of the file.
        ordered: boxes with x2 < x1 or y2 < y1 are refused.

    Raises:
        UserError: the file cannot be read or is empty, or a line is malformed; the message names the line.
    """

    def __init__(
        self, path: Path, needs: Sequence[str] = ("captions",), several: bool = False, ordered: bool = True
    ) -> None:
        self.path = path
        self._needs, self._ordered = needs, ordered
        self._places: dict[str, list[tuple[int, int]]] = {}
        start = 0
        try:
            with open(path, "rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        name, _ = self._parse(line, number)
                        places = self._places.setdefault(name, [])
                        if places and not several:
                            raise UserError(f"{path} line {number}: {name} is already in line {places[0][1]}")
                        places.append((start, number))
                    start += len(line)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        if not self._places:
            raise UserError(f"{path}: is empty")

    @property
    def names(self) -> list[str]:
        """The pictures, in the order of their first lines."""
        return list(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return os.path.normpath(name) in self._places

    def __getitem__(self, name: str) -> PictureRegions:
        """The regions of a picture; none if it is not in the file."""
        parts = []
        with open(self.path, "rb") as lines:
            for start, number in self._places.get(os.path.normpath(name), []):
                lines.seek(start)
                parts.append(self._parse(lines.readline(), number)[1])
        if len(parts) < 2:
            return parts[0] if parts else NOTHING
        scores = [part.scores for part in parts if part.scores is not None]
        captions = [part.captions for part in parts if part.captions is not None]
        return PictureRegions(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate(scores) if len(scores) == len(parts) else None,
            sum(captions, ()) if len(captions) == len(parts) else None,
            next((part.size for part in parts if part.size), None),
        )

    def _parse(self, line: bytes, number: int) -> tuple[str, PictureRegions]:
        where = f"{self.path} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("image"), str) or not isinstance(row.get("boxes"), list):
            raise UserError(f'{where}: not {{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}}')
        boxes, scores, captions = row["boxes"], row.get("scores"), row.get("captions")
        for box in boxes:
            if not (isinstance(box, list) and len(box) == 4 and _finite(box)):
                raise UserError(f"{where}: {json.dumps(box)} is not a box [x1, y1, x2, y2]")
            if self._ordered and (box[2] < box[0] or box[3] < box[1]):
                raise UserError(f"{where}: the box {json.dumps(box)} is inside out; x1 <= x2 and y1 <= y2 are needed")
        for part, values in (("scores", scores), ("captions", captions)):
            if values is None and part in self._needs and boxes:
                raise UserError(f"{where}: has boxes but no {part}")
            if values is not None and (not isinstance(values, list) or len(values) != len(boxes)):
                raise UserError(f"{where}: {part} are not a list of {len(boxes)}, as many as boxes")
        if scores is not None and not _finite(scores):
            raise UserError(f"{where}: a score is not a number")
        if captions is not None and not all(isinstance(caption, str) for caption in captions):
            raise UserError(f"{where}: a caption is not a text")
        return os.path.normpath(row["image"]), PictureRegions(
            np.array(boxes, dtype=np.float64).reshape(-1, 4),
            np.array(scores, dtype=np.float64) if scores is not None or not boxes else None,
            tuple(captions) if captions is not None else () if not boxes else None,
            _size(row, where),
        )


def _finite(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) and abs(value) <= LARGEST for value in values)


def _size(row: dict[str, Any], where: str) -> tuple[float, float] | None:
    values = [row[side] for side in ("width", "height") if row.get(side) is not None]
    if not values:
        return None
    if len(values) < 2 or not _finite(values) or min(values) <= 0:
        raise UserError(f"{where}: width and height {json.dumps(values)} are not two positive numbers")
    return values[0], values[1]


class Proposals(Mapping[str, Sequence[Box]]):
    """The boxes in a file of lines, by the names that a run has for its pictures; a picture may have none.

    Args:
        lines: the file.
        pictures: for each picture its names in the file, the first that is there counts.

    Raises:
        UserError: no picture is in the file.
    """

    def __init__(self, lines: RegionLines, pictures: Mapping[str, Sequence[str]]) -> None:
        self.lines, self._pictures = lines, pictures
        if pictures and not any(self._names(name) for name in pictures):
            raise UserError(
                f"{lines.path}: has no boxes for any of the {len(pictures)} pictures; "
                f"it names {lines.names[0]!r}, the data {next(iter(pictures))!r}"
            )

    def _names(self, picture: str) -> list[str]:
        return [name for name in self._pictures[picture] if name in self.lines]

    def __getitem__(self, picture: str) -> list[Box]:
        names = self._names(picture)
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in self.lines[names[0]].boxes.tolist()] if names else []

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)
