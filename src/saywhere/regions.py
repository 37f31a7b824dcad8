"""The one kind of answer: areas of a picture with what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


class Region(NamedTuple):
    """One row of :class:`Regions`, in plain Python values."""

    box: tuple[float, float, float, float]
    score: float | None
    caption: str | None


@dataclass(frozen=True, eq=False)
class Regions:
    """Areas of one picture; any number of them, also none.

    Attributes:
        width, height: size of the picture as a viewer shows it, in pixels.
        boxes: ``(N, 4)`` float ``x1 y1 x2 y2`` in pixels of that picture, inside it.
        scores: ``(N,)`` probabilities, or None.
        captions: N plain texts, or None.
        features: ``(N, D)`` region codes, or None.
        image: name of the picture (a path as the user gave it), or None.

    Raises:
        ValueError: lengths differ, a number is not finite, a box is inside out or leaves the picture, a score is not a
            probability.
    """

    width: int
    height: int
    boxes: Tensor
    scores: Tensor | None = None
    captions: tuple[str, ...] | None = None
    features: Tensor | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        boxes = torch.as_tensor(self.boxes, dtype=torch.float32)
        if boxes.numel() and (boxes.ndim != 2 or boxes.shape[1] != 4):
            raise ValueError(f"boxes need four numbers each, (N, 4); these are {tuple(boxes.shape)}")
        object.__setattr__(self, "boxes", boxes.reshape(-1, 4))
        if self.scores is not None:
            object.__setattr__(self, "scores", torch.as_tensor(self.scores, dtype=torch.float32).reshape(-1))
        if self.captions is not None:
            object.__setattr__(self, "captions", tuple(self.captions))
        self._check()

    def _check(self) -> None:
        name = f"{self.image}: " if self.image else ""
        for field in ("scores", "captions", "features"):
            value = getattr(self, field)
            if value is not None and len(value) != len(self.boxes):
                raise ValueError(f"{name}{len(value)} {field} for {len(self.boxes)} boxes")
        if not torch.isfinite(self.boxes).all():
            raise ValueError(f"{name}a box has a number that is not finite")
        x1, y1, x2, y2 = self.boxes.unbind(1)
        slack = 1e-3
        outside = (x1 < -slack) | (y1 < -slack) | (x2 > self.width + slack) | (y2 > self.height + slack)
        if bad := (outside | (x2 < x1) | (y2 < y1)).nonzero().flatten().tolist():
            box = [round(v, 2) for v in self.boxes[bad[0]].tolist()]
            raise ValueError(f"{name}box {bad[0]} {box} is not inside the {self.width} x {self.height} picture")
        if self.scores is not None and not bool(((self.scores >= 0) & (self.scores <= 1)).all()):
            raise ValueError(f"{name}a score is not a probability")

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[Region]:
        scores = [None] * len(self) if self.scores is None else self.scores.tolist()
        captions = [None] * len(self) if self.captions is None else self.captions
        for box, score, caption in zip(self.boxes.tolist(), scores, captions, strict=True):
            yield Region(tuple(box), score, caption)

    def __getitem__(self, rows: int | slice | Sequence[int] | Sequence[bool] | Tensor) -> Regions:
        """The chosen rows as :class:`Regions`: an index, a slice, indices, or a mask."""
        if isinstance(rows, int):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of {len(self)} regions")
            rows = [rows]
        if isinstance(rows, slice):
            rows = range(len(self))[rows]  # tensors take no negative steps
        chosen = torch.as_tensor(rows, device="cpu").reshape(-1)
        index = torch.arange(len(self))[chosen if len(chosen) else chosen.long()]  # an empty list makes a float tensor
        return Regions(
            self.width,
            self.height,
            self.boxes[index],
            None if self.scores is None else self.scores[index],
            None if self.captions is None else tuple(self.captions[i] for i in index.tolist()),
            None if self.features is None else self.features[index],
            self.image,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: ``image, width, height, boxes, scores, captions``; absent parts are left out."""
        row: dict[str, Any] = {"image": self.image, "width": self.width, "height": self.height}
        row["boxes"] = [[round(v, 2) for v in box] for box in self.boxes.tolist()]
        if self.scores is not None:
            row["scores"] = [round(v, 5) for v in self.scores.tolist()]
        if self.captions is not None:
            row["captions"] = list(self.captions)
        return row

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Regions:
        """The inverse of :meth:`to_dict`; ``ValueError`` says which part is missing or of the wrong kind."""
        try:
            width, height, boxes = row["width"], row["height"], row["boxes"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"regions need width, height and boxes; missing: {error}") from error
        try:
            return cls(width, height, boxes, row.get("scores"), row.get("captions"), image=row.get("image"))
        except TypeError as error:
            raise ValueError(f"regions of {row.get('image')}: {error}") from error

    def draw(self, image: Image) -> Image:
        """A copy of ``image`` (of any size, same aspect) with the boxes and captions drawn legibly."""
        from saywhere.drawing import draw_regions

        return draw_regions(image, self)
