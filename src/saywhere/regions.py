"""Regions of an image with scores and captions: the result of most questions."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.options import require_probabilities

if TYPE_CHECKING:
    from PIL.Image import Image

SLACK = 1e-3
"""Tolerance in pixels by which a box may leave the image, because of rounding."""
LARGEST_SIDE = 1 << 31
"""Exclusive upper limit of an image side in pixels."""
SHOWN = 0.25
"""Default minimum probability that a region's box and caption are both right (docs/describe.md#which-regions)."""
COLUMNS = ("scores", "similarities", "captions", "labels", "caption_scores", "features")
NUMBERS = ("scores", "similarities", "caption_scores")
NAMES = ("captions", "labels")
TEXTS = ("not_found", "unused", "unknown", "judged_as")


class _Row(NamedTuple):
    box: tuple[float, float, float, float]
    score: float | None
    caption: str | None


class Box(tuple[float, float, float, float]):
    """A box whose ``repr`` is rounded like the JSON form; its values are not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(tuple(round(value, 2) for value in self))


class Region(_Row):
    """One row of :class:`Regions` as plain Python values; it unpacks into ``box, score, caption``.

    The ``repr`` is rounded to 2 decimals for pixels and 5 for scores; the values are not.

    Attributes:
        caption_score: probability that the caption names what is in the box, or None.

    Example:
        >>> regions = saywhere.Regions(100, 50, [[0, 0, 10, 10]], captions=["a cup"])
        >>> regions[0]
        Region(box=(0.0, 0.0, 10.0, 10.0), score=None, caption='a cup')
    """

    caption_score: float | None = None

    def _replace(self, **changes: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        sure = changes.pop("caption_score", self.caption_score)
        made = super()._replace(**changes)
        made.caption_score = sure
        return made

    __replace__ = _replace

    def __repr__(self) -> str:
        score = None if self.score is None else round(self.score, 5)
        return f"Region(box={self.box}, score={score}, caption={self.caption!r})"


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of one image; any number, including none.

    Attributes:
        width, height: image size as a viewer shows it, in pixels.
        boxes: ``(N, 4)`` float32 ``x1 y1 x2 y2`` in pixels of that image, inside it.
        scores: ``(N,)`` float32 probabilities, or None.
        captions: N texts, or None.
        features: ``(N, D)`` float32 region embeddings, or None.
        image: image name (a path as the user gave it), or None.
        caption_scores: ``(N,)`` float32 probabilities that the captions name what is in the boxes, or None.
        labels: N classes, as the file names them that the regions were read from, None where it does not; or None.
        similarities: ``(N,)`` float32 of any range, larger is better; or None.
        not_found: phrases that :meth:`saywhere.Model.ground` did not find in the image.
        unused: words of the sentence that placed no phrase, such as "wearing".
        unknown: words of the text that the model does not know and therefore ignored.
        judged_as: words of the text that are judged as their kind of thing, such as ``sparrow as bird``.

    Arrays are stored as NumPy arrays; anything that NumPy can convert is accepted. Those but the features are copies.

    Raises:
        ValueError: lengths differ, a number is not finite, a box has negative size or leaves the image, a score is no
            probability, a caption or the like is no text, or no image can have this name or size.

    Example:
        >>> boxes = [[0, 0, 10, 10], [5, 5, 90, 40]]
        >>> regions = saywhere.Regions(100, 50, boxes, scores=[0.25, 0.75], captions=["a cup", "a dog"])
        >>> regions
        Regions(2 of an image, 100 x 50; boxes, scores, captions)
        >>> regions[0].caption, regions[regions.scores > 0.5].captions
        ('a cup', ('a dog',))
        >>> tuple(round(region.score, 2) for region in regions)
        (0.25, 0.75)
    """

    width: int
    height: int
    boxes: np.ndarray
    scores: np.ndarray | None = None
    captions: tuple[str, ...] | None = None
    features: np.ndarray | None = None
    image: str | None = None
    similarities: np.ndarray | None = None
    not_found: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    judged_as: tuple[str, ...] = ()
    caption_scores: np.ndarray | None = None
    labels: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # _check refuses values that are not finite
            self._convert()
        self._check()

    def _convert(self) -> None:
        sizes = _whole_side(self.width), _whole_side(self.height)
        if None in sizes:
            raise ValueError(f"{self._prefix}{self.width!r} x {self.height!r} is not the size of an image")
        for name, side in zip(("width", "height"), sizes, strict=True):
            object.__setattr__(self, name, side)
        if isinstance(self.image, os.PathLike):
            object.__setattr__(self, "image", str(self.image))
        boxes = _copied(self.boxes)
        if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
            raise ValueError(f"boxes need four numbers each, (N, 4); these are {boxes.shape}")
        object.__setattr__(self, "boxes", boxes.reshape(-1, 4))
        for name in NUMBERS:
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, _copied(values).reshape(-1))
        if self.features is not None:
            object.__setattr__(self, "features", np.asarray(self.features, np.float32))
        for name in (*NAMES, *TEXTS):
            if getattr(self, name) is not None or name in TEXTS:
                object.__setattr__(self, name, self._checked_texts(name))

    def _checked_texts(self, name: str) -> tuple[str | None, ...]:
        given: Any = getattr(self, name)
        if isinstance(given, str):
            raise ValueError(f"{self._prefix}{name} must be a list of texts, not one text: {given!r}")
        texts: tuple[Any, ...] = tuple(given)
        if wrong := [one for one in texts if not isinstance(one, str) and (one is not None or name != "labels")]:
            raise ValueError(f"{self._prefix}the {name.removesuffix('s')} {wrong[0]!r} is not a text")
        return texts

    @property
    def _prefix(self) -> str:
        return f"{self.image}: " if self.image else ""

    def _check(self) -> None:
        name = self._prefix
        if not isinstance(self.image, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{self.image!r} is not the name of an image")
        for column in COLUMNS:
            value = getattr(self, column)
            if value is not None and len(value) != len(self.boxes):
                raise ValueError(f"{name}{len(value)} {column} for {len(self.boxes)} boxes")
        if not np.isfinite(self.boxes).all():
            raise ValueError(f"{name}a box has a number that is not finite")
        bad = np.flatnonzero(~boxes_inside(self.boxes, self.width, self.height))
        if len(bad):
            box = [round(v, 2) for v in self.boxes[bad[0]].tolist()]
            raise ValueError(f"{name}box {bad[0]} {box} is not inside the {self.width} x {self.height} image")
        for values in (self.scores, self.caption_scores):
            if values is not None and not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"{name}a score is not a probability")
        if self.similarities is not None and not np.isfinite(self.similarities).all():
            raise ValueError(f"{name}a similarity is not finite")

    @classmethod
    def empty(cls, width: int, height: int, image: str | None = None) -> Self:
        """Return an empty result for an image."""
        return cls(width, height, np.zeros((0, 4)), [], (), None, image)  # pyright: ignore[reportArgumentType]

    @classmethod
    def merge(cls, parts: Iterable[Regions]) -> Regions:
        """Concatenate several results for one image.

        Columns that some results lack (scores, captions, ...) are dropped; results without rows count as complete. The
        texts beside them (``not_found``, ``unused``, ...) are joined in order, each once. A phrase that one result has
        found, as the caption of a region, is not in ``not_found``.

        Raises:
            ValueError: there are no results, or they differ in image size or name.
        """
        parts = list(parts)
        if len({(part.width, part.height, part.image) for part in parts}) != 1:
            raise ValueError("only regions of one image can be merged")
        full = [part for part in parts if len(part)] or list(parts[:1])
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            values = [getattr(part, name) for part in full]
            if all(value is not None for value in values):
                together = sum(values, ()) if name in NAMES else np.concatenate(values)
                columns[name] = together
        first = parts[0]
        boxes = np.concatenate([part.boxes for part in full])
        found = {caption for part in parts for caption in part.captions or ()}
        for name in TEXTS:
            texts = dict.fromkeys(text for part in parts for text in getattr(part, name))
            columns[name] = tuple(text for text in texts if name != "not_found" or text not in found)
        return Regions(first.width, first.height, boxes, image=first.image, **columns)

    def __repr__(self) -> str:
        have = [name for name in COLUMNS if getattr(self, name) is not None]
        size = f"{self.width} x {self.height}"
        return f"Regions({len(self)} of {self.image or 'an image'}, {size}; {', '.join(['boxes', *have])})"

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[Region]:
        for row in range(len(self)):
            yield self[row]

    @overload
    def __getitem__(self, rows: int | np.integer) -> Region: ...
    @overload
    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> Regions: ...
    def __getitem__(self, rows: int | np.integer | slice | Sequence[int] | np.ndarray) -> Region | Regions:
        """Return a :class:`Region` for an integer, and :class:`Regions` for a slice, a list of indices or a mask."""
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of {len(self)} regions")
            score, sure = (None if v is None else v[rows].item() for v in (self.scores, self.caption_scores))
            caption = None if self.captions is None else self.captions[rows]
            region = Region(Box(self.boxes[rows].tolist()), score, caption)
            region.caption_score = sure
            return region
        chosen = rows if isinstance(rows, slice) else np.asarray(rows).reshape(-1)
        if not isinstance(chosen, slice) and not len(chosen):
            chosen = chosen.astype(int)  # an empty list makes a float array
        index = np.arange(len(self))[chosen]
        arrays = {name: v[index] for name in (*NUMBERS, "features") if (v := getattr(self, name)) is not None}
        texts = {name: tuple(v[i] for i in index) for name in NAMES if (v := getattr(self, name)) is not None}
        return replace(self, boxes=self.boxes[index], **texts, **arrays)

    def at_least(self, probability: float | None = None) -> Regions:
        """Return the regions whose box and caption are both right with at least this probability.

        It is the product of score and caption score, or the score alone if there are no caption scores.

        Args:
            probability: from 0 to 1. Default: :data:`SHOWN`.

        Raises:
            UserError: it is no probability, or the regions have no scores.
        """
        require_probabilities(probability=probability)
        if not len(self):
            return self
        if self.scores is None:
            raise UserError(f"{self.image}: its regions have no scores, so a threshold cannot choose")
        both = self.scores if self.caption_scores is None else self.scores * self.caption_scores
        return self[both >= (SHOWN if probability is None else probability)]

    def nms(self, threshold: float) -> Regions:
        """Return the regions that survive non-maximum suppression, best first.

        Args:
            threshold: maximum IoU with a better region, from 0 to 1.

        Raises:
            ValueError: there are neither scores nor similarities to rank by, or ``threshold`` is no probability.
        """
        require_probabilities(threshold=threshold)
        order = self.similarities if self.scores is None else self.scores
        if order is None:
            raise ValueError("suppression needs scores or similarities")
        return self[geometry.nms(self.boxes, order, threshold)]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all attributes except ``features`` and those that are None or empty."""
        row: dict[str, Any] = {"image": self.image, "width": self.width, "height": self.height}
        row["boxes"] = [[round(v, 2) for v in box] for box in self.boxes.tolist()]
        for name in NUMBERS:
            if (values := getattr(self, name)) is not None:
                row[name] = [round(v, 5) for v in values.tolist()]
        row |= {name: list(texts) for name in NAMES if (texts := getattr(self, name)) is not None}
        return row | {name: list(texts) for name in TEXTS if (texts := getattr(self, name))}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Regions:
        """Read the result of :meth:`to_dict`; ``ValueError`` says what is missing or has a wrong type."""
        try:
            width, height, boxes = row["width"], row["height"], row["boxes"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"regions need width, height and boxes; missing: {error}") from error
        names = ("image", *NUMBERS, *NAMES, *TEXTS)
        optional: dict[str, Any] = {name: row[name] for name in names if name in row}
        try:
            return cls(width, height, boxes, **optional)
        except (OverflowError, TypeError) as error:
            raise ValueError(f"regions of {row.get('image')}: {error}") from error

    def to_coco(self, image_id: int | str, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return COCO results: ``image_id, category_id, bbox`` (x, y, width, height) of each region.

        If present, they also have ``score``, ``phrase`` and ``phrase_score``.

        Args:
            image_id: id of the image in the file of the truth.
            category_ids: N ids of categories in that file. Default: 1 for all, because phrases are no classes; evaluate
                without categories (``COCOeval.params.useCats = 0``) and with a truth that has a category 1. The format
                ``coco-results`` of :func:`saywhere.describe` has the numbers of nouns.
        """
        rows: list[dict[str, Any]] = []
        numbers = [1] * len(self) if category_ids is None else category_ids
        for region, number, box in zip(self, numbers, geometry.to_size(self.boxes).tolist(), strict=True):
            row: dict[str, Any] = {"image_id": image_id, "category_id": number, "bbox": [round(v, 2) for v in box]}
            if region.score is not None:
                row["score"] = round(region.score, 5)
            if region.caption is not None:
                row["phrase"] = region.caption
            if region.caption_score is not None:
                row["phrase_score"] = round(region.caption_score, 5)
            rows.append(row)
        return rows

    def to_supervision(self) -> Any:
        """Return a ``supervision.Detections`` with the captions in ``data["caption"]``.

        Raises:
            UserError: the package ``supervision`` is not installed.
        """
        try:
            import supervision  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError("to_supervision needs the package supervision: pip install supervision") from None
        data = {} if self.captions is None else {"caption": np.array(self.captions, dtype=object)}
        kinds = np.zeros(len(self), int)
        return supervision.Detections(xyxy=self.boxes, confidence=self.scores, class_id=kinds, data=data)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with one row per region.

        The columns are ``image``, ``width``, ``height``, ``x1``, ``y1``, ``x2``, ``y2`` and, if present, ``score``,
        ``similarity``, ``caption``, ``label`` and ``caption_score``.

        Raises:
            UserError: the package ``pandas`` is not installed.
        """
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError:
            raise UserError("to_pandas needs the package pandas: pip install pandas") from None
        columns: dict[str, Any] = {name: [getattr(self, name)] * len(self) for name in ("image", "width", "height")}
        columns |= {name: self.boxes[:, i] for i, name in enumerate(("x1", "y1", "x2", "y2"))}
        named = {"score": self.scores, "similarity": self.similarities, "caption": self.captions}
        named["label"], named["caption_score"] = self.labels, self.caption_scores
        columns |= {name: values for name, values in named.items() if values is not None}
        return pandas.DataFrame(columns)

    def draw(self, image: Image | str | Path | np.ndarray | None = None) -> Image:
        """Return a copy of the image with the boxes and captions drawn on it.

        Args:
            image: PIL image, array or path of any size, with the same aspect ratio. Default: the file ``self.image``.

        Raises:
            ImageError: the image cannot be read.
            UserError: no image is given and ``self.image`` is not a file, or the aspect ratio is another.
        """
        from saywhere.drawing import draw_boxes

        size = (self.width, self.height)
        pixels = open_pixels(self.image, image, size)
        return draw_boxes(pixels, self.boxes, size, self.captions, self.scores, self.caption_scores)

    def show(self, image: Image | str | Path | np.ndarray | None = None) -> None:
        """Show :meth:`draw` below the notebook cell, or else in the system's image viewer; errors as :meth:`draw`."""
        show_image(self.draw(image))

    def _repr_png_(self) -> bytes | None:
        """Return the drawing for a notebook. None if the image cannot be read: the notebook then shows the ``repr``."""
        return drawn_png(self.draw)


def open_pixels(name: str | None, image: Image | str | Path | np.ndarray | None, size: tuple[int, int]) -> Image:
    """Return the image to draw a result on: ``image``, or the file ``name``.

    ``UserError`` without either, or if the image has not the aspect ratio of ``size``, for which the result is.
    """
    from saywhere.images import NAMELESS, open_image

    if image is None and name in (None, NAMELESS):
        raise UserError("draw needs the image, because this result does not name its file: draw(image)")
    pixels = open_image(name if image is None else image).pixels  # pyright: ignore[reportArgumentType]
    width, height = pixels.size
    rounding = sum(size) + width * size[1] / 100  # of each side by a pixel, and an aspect ratio that differs by 1 %
    if abs(height * size[0] - width * size[1]) > rounding:
        of = f"{size[0]} x {size[1]}"
        raise UserError(
            f"draw: the image is {width} x {height}, but the result is of one of {of}, as a viewer shows it"
        )
    return pixels


def show_image(image: Image) -> None:
    """Show an image below the notebook cell, or else in the system's image viewer."""
    if "ipykernel" in sys.modules:
        from IPython.display import display  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

        display(image)
    else:
        image.show()


def drawn_png(draw: Callable[[], Image]) -> bytes | None:
    """Return the drawn image as PNG; None if the image is unknown or cannot be read."""
    try:
        image = draw()
    except UserError:
        return None
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def _whole_side(side: Any) -> int | None:
    """Return a side in pixels as an ``int``; None if it is no whole number, or not in range."""
    if not isinstance(side, Integral | float | np.floating) or isinstance(side, bool):
        return None
    whole: Any = side
    return int(whole) if 1 <= whole < LARGEST_SIDE and whole == int(whole) else None


def _copied(values: ArrayLike) -> np.ndarray:
    return np.array(np.asarray(values, np.float32))  # in two steps for tensors, which cannot copy


def boxes_inside(boxes: np.ndarray, width: float, height: float) -> np.ndarray:
    """Return the mask ``(N,)`` of boxes with nonnegative size that leave the image by no more than rounding."""
    x1, y1, x2, y2 = boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3]
    within = (x1 >= -SLACK) & (y1 >= -SLACK) & (x2 <= width + SLACK) & (y2 <= height + SLACK)
    return within & (x2 >= x1) & (y2 >= y1)


def check_boxes(boxes: ArrayLike, width: float, height: float, name: str) -> np.ndarray:
    """Return a user's boxes of an image as float32 ``(N, 4)``, clipped to it.

    All boxes from users pass this check, as arguments of :meth:`saywhere.Model.describe` etc. and in files.

    Args:
        boxes: ``(N, 4)`` in pixels of the image; N may be 0. Up to a pixel outside the image is clipped silently.

    Raises:
        UserError: the shape is wrong, a number is not finite, a box is empty or outside the image, or all lie within
            the first pixel.
    """
    try:
        with np.errstate(over="ignore"):
            given = np.asarray(boxes, np.float32)
    except (OverflowError, TypeError, ValueError):
        raise UserError(f"{name}: boxes need four numbers each, x1 y1 x2 y2") from None
    given = given.reshape(0, 4) if given.size == 0 else given
    if given.ndim != 2 or given.shape[1] != 4:
        raise UserError(f"{name}: boxes need four numbers each, (N, 4); these are {given.shape}")
    if len(given) and ((given >= 0) & (given <= 1)).all() and min(width, height) > 1:
        raise UserError(f"{name}: boxes are in pixels of the image, not in shares of its sides")
    cut = geometry.clip(given, width, height)
    near = np.isfinite(given).all(axis=1) & (np.abs(cut - given) <= 1).all(axis=1)
    bad = np.flatnonzero(~(near & (cut[:, 2:] > cut[:, :2]).all(axis=1)))
    if len(bad):
        box = [round(v, 2) for v in given[bad[0]].tolist()]
        right = not np.isfinite(box).all() or (box[2] > box[0] and box[3] > box[1])
        outside, turned = f"is not inside the {width} x {height} image", "is inside out or empty: give x1 y1 x2 y2"
        raise UserError(f"{name}: box {bad[0]} {box} {outside if right else turned}")
    return cut
