"""Boxes and captions drawn on a picture so that they can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
from PIL import ImageDraw, ImageFont

if TYPE_CHECKING:
    from PIL.Image import Image

    from saywhere.regions import Regions

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


@dataclass(frozen=True)
class _Label:
    """A caption broken into lines, and the size of the plate that it is written on, in pixels."""

    text: str
    width: int
    height: int


@dataclass(frozen=True)
class _Style:
    """Sizes that follow from the size of the picture, in pixels."""

    line: int
    padding: int
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    line_height: int

    @classmethod
    def of(cls, width: int, height: int, count: int) -> _Style:
        """For a picture of this size with ``count`` boxes: many captions are written smaller."""
        side = min(max(width, height), 2 * min(width, height) + 200)  # a long strip is not a big picture
        size = max(11, round(side / (45 if count <= 15 else 55)))
        font = ImageFont.load_default(size)
        return cls(max(1, round(side / 260)), max(2, round(size / 4)), font, round(size * 1.2))


def draw_regions(image: Image, regions: Regions) -> Image:
    """An RGB copy of ``image`` with the boxes of ``regions`` and their captions (or else their scores).

    The image may have another size than ``regions.width x regions.height``: boxes are scaled to it. Lines and letters
    grow with the picture. The best region is drawn last, on top; its caption takes the best place, and each further one
    goes where it covers the least of the captions before it and of the boxes. Captions stay inside the picture, long
    ones are broken into lines, and in a picture too small for a single letter only the boxes are drawn.
    """
    canvas = image.copy() if image.mode == "RGB" else image.convert("RGB")
    if len(regions) == 0:
        return canvas
    draw = ImageDraw.Draw(canvas)
    style = _Style.of(*canvas.size, len(regions))
    order = list(range(len(regions)))
    if regions.scores is not None:
        order = regions.scores.argsort(descending=True, stable=True).tolist()
    factors = (canvas.width / max(regions.width, 1), canvas.height / max(regions.height, 1)) * 2
    rows = [regions[i] for i in order]
    boxes = [tuple(v * f for v, f in zip(row.boxes[0].tolist(), factors, strict=True)) for row in rows]
    labels = [_fit(_words(row), box, canvas.size, style) for row, box in zip(rows, boxes, strict=True)]
    places = _place(labels, boxes, canvas.size, style)
    for rank in reversed(range(len(rows))):
        _draw_box(draw, boxes[rank], COLOURS[rank % len(COLOURS)], style)
    for rank in reversed(range(len(rows))):
        label, place = labels[rank], places[rank]
        if label is not None and place is not None:
            _draw_label(draw, label, place, COLOURS[rank % len(COLOURS)], style)
    return canvas


def draw_sentence(image: Image, regions: Regions) -> Image:
    """An RGB copy of ``image`` with the boxes of ``regions`` and, on a strip below, their captions in the same colours.

    The captions stand in the order of ``regions``, each on a plate in the colour of its box; captions with one and the
    same box share its colour. For a sentence whose phrases have been placed in the picture.
    """
    canvas = image.copy() if image.mode == "RGB" else image.convert("RGB")
    if len(regions) == 0:
        return canvas
    style = _Style.of(*canvas.size, len(regions))
    boxes = [tuple(box) for box in regions.boxes.tolist()]
    colours = {box: COLOURS[i % len(COLOURS)] for i, box in enumerate(dict.fromkeys(boxes))}
    factors = (canvas.width / max(regions.width, 1), canvas.height / max(regions.height, 1)) * 2
    draw = ImageDraw.Draw(canvas)
    for box in reversed(colours):
        _draw_box(draw, tuple(v * f for v, f in zip(box, factors, strict=True)), colours[box], style)
    labels: list[tuple[_Label, tuple[int, int, int], float, float]] = []
    x = y = 0.0
    for row, box in zip(regions, boxes, strict=True):
        text = _shorten(" ".join((row.caption or "").split()), canvas.width - 2 * style.padding, style)
        label = _Label(text, int(style.font.getlength(text)) + 1 + 2 * style.padding, style.line_height + style.padding)
        if x and x + label.width > canvas.width:
            x, y = 0.0, y + label.height
        labels.append((label, colours[box], x, y))
        x += label.width
    sheet = canvas.crop((0, 0, canvas.width, canvas.height + round(y) + labels[-1][0].height))
    draw = ImageDraw.Draw(sheet)
    draw.rectangle((0, canvas.height, *sheet.size), fill=(255, 255, 255))
    for label, colour, left, top in labels:
        place = (left, canvas.height + top, left + label.width, canvas.height + top + label.height)
        _draw_label(draw, label, place, colour, style)
    return sheet


def _words(row: Regions) -> str:
    if row.captions is not None:
        return " ".join(row.captions[0].split())
    return "" if row.scores is None else f"{row.scores[0].item():.2f}"


def _fit(text: str, box: tuple[float, ...], size: tuple[int, int], style: _Style) -> _Label | None:
    """``text`` in lines about as wide as the box, at least a third of the picture; None if not one letter fits."""
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
    return _Label("\n".join(lines), int(width) + 1 + margin, len(lines) * style.line_height + margin)


def _break(text: str, limit: float, style: _Style) -> list[str]:
    """Lines of whole words at most ``limit`` pixels long; a longer word is cut short."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and style.font.getlength(longer) <= limit:
            lines[-1] = longer
        else:
            lines.append(_shorten(word, limit, style))
    return lines


def _shorten(line: str, limit: float, style: _Style) -> str:
    if style.font.getlength(line) <= limit:
        return line
    while len(line) > 1 and style.font.getlength(line + "…") > limit:
        line = line[:-1]
    return line + "…"


def _place(
    labels: list[_Label | None], boxes: list[tuple[float, ...]], size: tuple[int, int], style: _Style
) -> list[Rectangle | None]:
    """A rectangle inside the picture for each label, greedily: the candidate that hides the least.

    Hiding a label counts by the part of this one that lies on it, hiding a box by the part of the box that is hidden:
    small boxes are kept free, in large ones a caption does no harm.
    """
    places: list[Rectangle | None] = []
    taken = numpy.zeros((0, 4))
    shown = numpy.array(boxes)
    areas = (shown[:, 2:] - shown[:, :2]).prod(axis=1).clip(min=1)
    for label, box in zip(labels, boxes, strict=True):
        if label is None:
            places.append(None)
            continue
        candidates = _candidates(label, box, size, style)
        hidden = _overlap(candidates, taken).sum(axis=1) / (label.width * label.height)
        hidden += 0.2 * (_overlap(candidates, shown) / areas).sum(axis=1)
        best = candidates[int(numpy.argmin(hidden + 0.005 * numpy.arange(len(candidates))))]
        places.append(tuple(best.tolist()))
        taken = numpy.concatenate((taken, best[None]))
    return places


def _candidates(label: _Label, box: tuple[float, ...], size: tuple[int, int], style: _Style) -> numpy.ndarray:
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
    corner = numpy.array(corners + sides, dtype=float)
    corner[:, 0] = corner[:, 0].clip(0, max(size[0] - w, 0))
    corner[:, 1] = corner[:, 1].clip(0, max(size[1] - h, 0))
    return numpy.concatenate((corner, corner + numpy.array([w, h])), axis=1).round()


def _overlap(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """Areas ``(K, M)`` in square pixels that rectangles ``a (K, 4)`` and ``b (M, 4)`` share."""
    low = numpy.maximum(a[:, None, :2], b[None, :, :2])
    high = numpy.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(min=0).prod(axis=2)


def _draw_box(draw: ImageDraw.ImageDraw, box: tuple[float, ...], colour: tuple[int, int, int], style: _Style) -> None:
    """The box in its colour between thin dark lines, so that it shows on any background."""
    x1, y1 = round(box[0]), round(box[1])
    x2, y2 = max(x1, round(box[2]) - 1), max(y1, round(box[3]) - 1)
    rim = style.line // 3
    if rim:
        draw.rectangle((x1 - rim, y1 - rim, x2 + rim, y2 + rim), outline=(20, 20, 20), width=style.line + 2 * rim)
    draw.rectangle((x1, y1, x2, y2), outline=colour, width=style.line)


def _draw_label(
    draw: ImageDraw.ImageDraw, label: _Label, place: Rectangle, colour: tuple[int, int, int], style: _Style
) -> None:
    """The caption, black or white, whichever is clearer, on a plate in the colour of its box."""
    x1, y1, x2, y2 = place
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = (0, 0, 0) if luminance > 100 else (255, 255, 255)
    draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), style.padding, fill=colour, outline=(20, 20, 20))
    for number, line in enumerate(label.text.split("\n")):
        middle = y1 + style.padding + (number + 0.5) * style.line_height
        draw.text((x1 + style.padding, middle), line, fill=ink, font=style.font, anchor="lm")
