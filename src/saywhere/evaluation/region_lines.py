"""Results for many images as JSON lines from any program: regions, or one sentence about the whole image.

Unlike :class:`saywhere.regions.Regions`, :class:`RegionLines` accepts scores of any range and boxes beyond the image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from saywhere.errors import UserError
from saywhere.files import parse_json, printable
from saywhere.options import dataclass
from saywhere.report import counted

Array = NDArray[Any]

NAMED = 5
"""Maximum number of images to list that only one of two files has."""
LARGEST = 1e300
"""Numbers beyond this are refused, like those that are not finite."""


@dataclass(frozen=True, eq=False)
class ImageRegions:
    """Regions of one image in a file.

    Attributes:
        boxes: ``(N, 4)`` float64 ``x1 y1 x2 y2``.
        scores: ``(N,)`` float64 of any range; None if a line has none.
        captions: N texts; None if a line has none.
        size: width and height of the image, if the file has them.
    """

    boxes: Array
    scores: Array | None
    captions: tuple[str, ...] | None
    size: tuple[float, float] | None


NOTHING = ImageRegions(np.empty((0, 4)), np.empty(0), (), None)
"""The regions of an image that is not in the file."""


class RegionLines:
    """Regions of images by name, read from a file of JSON lines.

    A line is ``{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}``, with ``scores``, ``captions``, and the image's
    ``width`` and ``height`` if known, as written by ``saywhere describe``. A line of training data, with ``regions``
    (docs/data.md), is read as well; a box with several phrases becomes several.

    Args:
        needs: fields that each line with a box must have: ``"scores"``, ``"captions"``.
        several: allow several lines per image; their regions are joined, in the order of the file.
        ordered: refuse boxes with x2 < x1 or y2 < y1.
        split: skip lines that name a different split.

    Raises:
        UserError: the file cannot be read or is empty, its lines are of several splits, or a line is malformed; the
            message names the line.

    Example:
        >>> predictions = RegionLines(Path("predictions.jsonl"), ("scores", "captions"))  # doctest: +SKIP
        >>> [len(predictions[name].boxes) for name in predictions.names]  # doctest: +SKIP
    """

    def __init__(
        self,
        path: Path,
        needs: Sequence[str] = ("captions",),
        several: bool = False,
        ordered: bool = True,
        split: str | None = None,
    ) -> None:
        self.path = path
        self._found: dict[str, ImageRegions] = {}
        first: dict[str, int] = {}
        for number, row in _rows(path, split):
            name, regions = _regions(row, f"{path} line {number}", needs, ordered)
            if name in first:
                if not several:
                    raise UserError(f"{path} line {number}: {name} is already in line {first[name]}")
                regions = _joined(self._found[name], regions)
            first.setdefault(name, number)
            self._found[name] = regions

    @property
    def names(self) -> list[str]:
        """The images, in the order of their first lines."""
        return list(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: str) -> bool:
        return os.path.normpath(name) in self._found

    def __getitem__(self, name: str) -> ImageRegions:
        """Return the regions of an image; none if it is not in the file."""
        return self._found.get(os.path.normpath(name), NOTHING)


def _joined(one: ImageRegions, other: ImageRegions) -> ImageRegions:
    scores = None if one.scores is None or other.scores is None else np.concatenate((one.scores, other.scores))
    captions = None if one.captions is None or other.captions is None else one.captions + other.captions
    return ImageRegions(np.concatenate((one.boxes, other.boxes)), scores, captions, one.size or other.size)


def _regions(row: Any, where: str, needs: Sequence[str], ordered: bool) -> tuple[str, ImageRegions]:
    """Return the image name and the regions of a line."""
    row = _with_boxes(row, where)
    if not isinstance(row, dict) or not isinstance(row.get("image"), str) or not isinstance(row.get("boxes"), list):
        raise UserError(f'{where}: not {{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}}')
    boxes, scores, captions = row["boxes"], row.get("scores"), row.get("captions")
    for box in boxes:
        if not (isinstance(box, list) and len(box) == 4 and _finite(box)):
            raise UserError(f"{where}: {json.dumps(box)} is not a box [x1, y1, x2, y2]")
        if ordered and (box[2] < box[0] or box[3] < box[1]):
            raise UserError(f"{where}: the box {json.dumps(box)} is inside out; x1 <= x2 and y1 <= y2 are needed")
    for part, values in (("scores", scores), ("captions", captions)):
        if values is None and part in needs and boxes:
            raise UserError(f"{where}: has boxes but no {part}")
        if values is not None and (not isinstance(values, list) or len(values) != len(boxes)):
            raise UserError(f"{where}: {part} are not a list of {len(boxes)}, as many as boxes")
    if scores is not None and not _finite(scores):
        raise UserError(f"{where}: a score is not a number")
    if captions is not None and not all(isinstance(caption, str) for caption in captions):
        raise UserError(f"{where}: a caption is not a text")
    return os.path.normpath(row["image"]), ImageRegions(
        np.array(boxes, dtype=np.float64).reshape(-1, 4),
        None if scores is None and boxes else np.array(scores or [], dtype=np.float64),
        tuple(captions) if captions is not None else () if not boxes else None,
        _size(row, where),
    )


def _with_boxes(row: Any, where: str) -> Any:
    """Convert a line of training data to ``boxes`` and ``captions``; return any other unchanged."""
    regions = row.get("regions") if isinstance(row, dict) and "boxes" not in row else None
    if not isinstance(regions, list) or not all(isinstance(region, dict) for region in regions):
        return row
    phrases = [each.get("phrases", [each.get("phrase")]) for each in regions]
    if odd := [given for given in phrases if not isinstance(given, list)]:
        raise UserError(f"{where}: the phrases {json.dumps(odd[0])} are not a list of texts")
    rows = [(each.get("box"), text) for each, texts in zip(regions, phrases, strict=True) for text in texts]
    return {**row, "boxes": [box for box, _ in rows], "captions": [text for _, text in rows]}


def matched(
    predictions: Path, truth: Path, found: Collection[str], true: Collection[str], names: Sequence[str], empty: str
) -> tuple[dict[str, int], list[str]]:
    """Return how many images only one of two files has, as facts of a report, and lines that name them.

    ``names`` are the true images to use; ``empty`` says what an image without a prediction counts as.
    """
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in true]
    if len(missing) == len(names):
        alike = {normalize("NFC", name) for name in found} & {normalize("NFC", name) for name in names}
        why = "; their accents are encoded in another way (Unicode NFC and NFD)" if alike else ""
        raise UserError(
            f"{predictions}: has none of {truth}'s {counted(len(missing), 'image')}; "
            f"it names {next(iter(found))!r}, the truth {names[0]!r}{why}"
        )
    notes: list[str] = []
    if missing:
        notes.append(f"no line in {predictions} for {counted(len(missing), 'image')}: {empty}: {_few(missing)}")
    if unknown:
        notes.append(f"no truth for {counted(len(unknown), 'image')} in {predictions}, left out: {_few(unknown)}")
    return {"without_prediction": len(missing), "without_truth": len(unknown)}, notes


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(printable, names[:NAMED])) + more


def read_captions(path: Path) -> dict[str, str]:
    """Read one sentence about each image, by image name.

    A line is ``{"image": NAME, "caption": TEXT}``, or one of ``saywhere describe`` with a single region.

    Raises:
        UserError: the file cannot be read or is empty, a line is neither, or an image has two lines.
    """
    found: dict[str, str] = {}
    for where, name, texts in _sentences(path):
        if len(texts) != 1:
            raise UserError(f"{where}: {name} has {len(texts)} captions; one sentence about the image is needed")
        if name in found:
            raise UserError(f"{where}: a second line for {name}")
        found[name] = texts[0]
    return found


def read_references(path: Path, split: str | None = None) -> dict[str, list[str]]:
    """Read the true sentences of each image: ``{"image": NAME, "captions": [TEXT, ...]}``, or a line for each sentence.

    The ``sentences`` of training data are read as well. Lines that name a split other than ``split`` are skipped.

    Raises:
        UserError: the file cannot be read or is empty, its lines are of several splits, or a line is malformed.
    """
    found: dict[str, list[str]] = {}
    for _, name, texts in _sentences(path, split, ("captions", "sentences")):
        found.setdefault(name, []).extend(texts)
    return found


def _sentences(
    path: Path, split: str | None = None, several: Sequence[str] = ("captions",)
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield position, image and sentences of each line."""
    for number, row in _rows(path, split):
        where, row = f"{path} line {number}", row if isinstance(row, dict) else {}
        texts: Any = [row["caption"]] if "caption" in row else next((row[key] for key in several if key in row), None)
        texts = [] if texts is None and "regions" in row and "sentences" in several else texts
        good = isinstance(row.get("image"), str) and isinstance(texts, list) and all(isinstance(t, str) for t in texts)
        if not good:
            raise UserError(f'{where}: neither {{"image": NAME, "caption": TEXT}} nor "captions": [TEXT, ...]')
        yield where, os.path.normpath(row["image"]), texts


def _rows(path: Path, split: str | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the number, from 1, and the JSON of each line that is not blank.

    Lines that name a split other than ``split`` are skipped; if it is None, all must name the same one.
    """
    empty, splits = True, set[str]()
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                empty = False
                try:
                    row = parse_json(line)
                except ValueError as error:
                    raise UserError(f"{path} line {number}: not JSON ({error})") from error
                own = str(row["split"]) if isinstance(row, dict) and "split" in row else None
                splits |= set() if own is None else {own}
                if split is None or own in (None, split):
                    yield number, row
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if empty:
        raise UserError(f"{path}: is empty")
    if (split is None and len(splits) > 1) or (split is not None and splits and split not in splits):
        lacking = "" if split is None else f"has no image of the split {split}: "
        raise UserError(f"{path}: {lacking}its images are of {', '.join(sorted(splits))}: name one with --split")


def _finite(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) and abs(value) <= LARGEST for value in values)


def _size(row: dict[str, Any], where: str) -> tuple[float, float] | None:
    values = [row[side] for side in ("width", "height") if row.get(side) is not None]
    if not values:
        return None
    if len(values) < 2 or not _finite(values) or min(values) <= 0:
        raise UserError(f"{where}: width and height {json.dumps(values)} are not two positive numbers")
    return values[0], values[1]
