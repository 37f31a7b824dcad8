"""Tracks drawn on the frames of a video: a colour a track, the boxes moving from look to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from saywhere.drawing.labels import COLOURS, Style, draw_label, fit_label


class Mark(NamedTuple):
    """A track at one time: its number, where it is, and its phrase."""

    track: int
    box: tuple[float, float, float, float]
    phrase: str


def between(before: Sequence[Mark], after: Sequence[Mark], share: float) -> list[Mark]:
    """Return the marks of ``before``, those that ``after`` has too moved towards there by ``share``, 0 to 1."""
    later = {mark.track: mark.box for mark in after}
    moved: list[Mark] = []
    for mark in before:
        ends = np.array([mark.box, later.get(mark.track, mark.box)])
        box = ends[0] + share * (ends[1] - ends[0])
        moved.append(mark._replace(box=tuple(box.tolist())))
    return moved


def draw_marks(image: Image.Image, marks: Sequence[Mark], size: tuple[int, int]) -> None:
    """Draw boxes, and their phrases on top of them, on a frame.

    Args:
        image: the frame in RGB; it is drawn on.
        marks: later ones lie over earlier ones.
        size: width and height in the pixels that the boxes are in.
    """
    style = Style.of(*image.size, len(marks))
    draw = ImageDraw.Draw(image)
    factors = np.array([image.width / size[0], image.height / size[1]] * 2)
    boxes = [(np.array(mark.box) * factors).round().astype(int).tolist() for mark in marks]
    colours = [COLOURS[mark.track % len(COLOURS)] for mark in marks]
    for (x1, y1, x2, y2), colour in zip(boxes, colours, strict=True):
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=max(2, style.line))
    for mark, box, colour in zip(marks, boxes, colours, strict=True):
        label = fit_label(mark.phrase, box, image.size, style)
        if label is None:
            continue
        x = min(max(0, box[0]), image.width - label.width)
        y = box[1] - label.height if box[1] >= label.height else box[1] + style.line
        y = min(max(0, y), image.height - label.height)
        draw_label(draw, label, (x, y, x + label.width, y + label.height), colour, style)
