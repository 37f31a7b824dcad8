"""Captions on plates: how large they are, where they go, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import ImageDraw, ImageFont

COLOURS = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (204, 121, 167),
    (213, 94, 0),
    (0, 114, 178),
)
"""Okabe and Ito's colours, which people with any kind of colour vision can tell apart; used in turn, best box first."""

Rectangle = tuple[float, float, float, float]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Label:
    """A caption broken into lines, and the size of its plate in pixels."""

    text: str
    width: int
    height: int


@dataclass(frozen=True)
class Style:
    """Sizes that follow from the size of the image, in pixels."""

    line: int
    padding: int
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    line_height: int

    @classmethod
    def of(cls, width: int, height: int, count: int) -> Style:
        """Return the style for an image of this size with ``count`` boxes: many captions are written smaller."""
        side = min(max(width, height), 2 * min(width, height) + 200)  # a long strip is not a big image
        size = max(11, round(side / (45 if count <= 15 else 55)))
        font = ImageFont.load_default(size)
        return cls(max(1, round(side / 260)), max(2, round(size / 4)), font, round(size * 1.2))


def fit_label(text: str, box: Sequence[float], size: tuple[int, int], style: Style) -> Label | None:
    """Return ``text`` in lines about as wide as the box, at least a third of the image; None if not one letter fits."""
    margin = 2 * style.padding
    room = (size[0] - margin, (size[1] - margin) // style.line_height)
    if not text or room[1] < 1 or style.font.getlength(text[0] + "…") > room[0]:
        return None
    limit = min(room[0], max(box[2] - box[0] - margin, size[0] / 3, 12 * style.line_height / 2))
    lines = _break(text, limit, style)
    if len(lines) > min(3, room[1]):
        lines = _break(text, room[0], style)[: min(3, room[1])]
        if " ".join(lines) != text:
            lines[-1] = _shorten(lines[-1] + "…", room[0], style)
    width = max(style.font.getlength(line) for line in lines)
    return Label("\n".join(lines), int(width) + 1 + margin, len(lines) * style.line_height + margin)


def one_line(text: str, limit: int, style: Style) -> Label:
    """Return ``text`` in one line on a plate, cut short where the letters would be wider than ``limit`` pixels."""
    text = _shorten(text, limit, style)
    return Label(text, int(style.font.getlength(text)) + 1 + 2 * style.padding, style.line_height + style.padding)


def _break(text: str, limit: float, style: Style) -> list[str]:
    """Lines of whole words at most ``limit`` pixels long; a longer word is cut short."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and style.font.getlength(longer) <= limit:
            lines[-1] = longer
        else:
            lines.append(_shorten(word, limit, style))
    return lines


def _shorten(line: str, limit: float, style: Style) -> str:
    if style.font.getlength(line) <= limit:
        return line
    while len(line) > 1 and style.font.getlength(line + "…") > limit:
        line = line[:-1]
    return line + "…"


def place_labels(
    labels: Sequence[Label | None], boxes: np.ndarray, size: tuple[int, int], style: Style
) -> list[Rectangle | None]:
    """Return a rectangle inside the image for each label, greedily: of the candidates the one that hides the least.

    Hiding a label counts by the part of this one that lies on it, hiding a box by the part of the box that is hidden:
    small boxes are kept free, in large ones a caption does no harm.

    Args:
        labels: of the boxes, the most important first; None for a box without one.
        boxes: ``(N, 4)`` float64 ``x1 y1 x2 y2`` in pixels of the image that is drawn on.
        size: of that image.
        style: of the labels.
    """
    places: list[Rectangle | None] = []
    taken = np.zeros((0, 4))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).clip(min=1)
    for label, box in zip(labels, boxes.tolist(), strict=True):
        if label is None:
            places.append(None)
            continue
        candidates = _candidates(label, box, size, style)
        hidden = _overlap(candidates, taken).sum(axis=1) / (label.width * label.height)
        hidden += 0.2 * (_overlap(candidates, boxes) / areas).sum(axis=1)
        best = candidates[int(np.argmin(hidden + 0.005 * np.arange(len(candidates))))]
        places.append(tuple(best.tolist()))
        taken = np.concatenate((taken, best[None]))
    return places


def _candidates(label: Label, box: Sequence[float], size: tuple[int, int], style: Style) -> np.ndarray:
    """Places ``(K, 4)`` for a label, the most natural first: on the box, in its corners, under it, along its sides."""
    x1, y1, x2, y2 = box
    w, h, line = label.width, label.height, style.line
    right, middle = x2 - w, (x1 + x2 - w) / 2
    above, below, top, bottom = y1 - h, y2, y1 + line, y2 - h - line
    corners = [(x1, above), (x1 + line, top), (x1, below), (x1 + line, bottom)]
    corners += [(right, above), (right - line, top), (right, below), (right - line, bottom)]
    sides = [(middle, y) for y in (above, top, below, bottom)]
    sides += [(x, y1 + (y2 - y1 - h) * t) for t in (0.25, 0.5, 0.75) for x in (x1 + line, right - line, middle)]
    sides += [(x, y) for y in (y1 - 2 * h, y2 + h) for x in (x1, right)]
    corner = np.array(corners + sides, dtype=float)
    corner[:, 0] = corner[:, 0].clip(0, max(size[0] - w, 0))
    corner[:, 1] = corner[:, 1].clip(0, max(size[1] - h, 0))
    return np.concatenate((corner, corner + np.array([w, h])), axis=1).round()


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Areas ``(K, M)`` in square pixels that rectangles ``a (K, 4)`` and ``b (M, 4)`` share."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(min=0).prod(axis=2)


def draw_label(draw: ImageDraw.ImageDraw, label: Label, place: Rectangle, colour: Colour, style: Style) -> None:
    """Draw the caption, black or white, whichever is clearer, on a plate in the colour of its box."""
    x1, y1, x2, y2 = place
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = (0, 0, 0) if luminance > 100 else (255, 255, 255)
    draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), style.padding, fill=colour, outline=(20, 20, 20))
    for number, line in enumerate(label.text.split("\n")):
        middle = y1 + style.padding + (number + 0.5) * style.line_height
        draw.text((x1 + style.padding, middle), line, fill=ink, font=style.font, anchor="lm")
