"""Boxes and captions drawn on an image so that they can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from PIL import ImageDraw

from saywhere.drawing.labels import (
    COLOURS,
    Colour,
    Label,
    Style,
    draw_label,
    fit_label,
    one_line,
    place_labels,
)

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_boxes(
    image: Image,
    boxes: ArrayLike,
    size: tuple[float, float],
    captions: Sequence[str] | None = None,
    scores: ArrayLike | None = None,
) -> Image:
    """Draw boxes and their captions (or else their scores) on a copy of an image.

    Lines and letters grow with the image. The best box is drawn last, on top; its caption takes the best place, and
    each further one goes where it covers the least of the captions before it and of the boxes. Captions stay inside
    the image, long ones are broken into lines, and in an image too small for a single letter only boxes are drawn.

    Args:
        image: in any mode and size; it is not changed.
        boxes: ``(N, 4)`` ``x1 y1 x2 y2``; N may be 0.
        size: width and height of the image in the pixels that ``boxes`` are in.
        captions: N texts.
        scores: ``(N,)``, larger is better; if not given, the first box is the best.

    Returns:
        an RGB image of the size of ``image``.
    """
    canvas = image.copy() if image.mode == "RGB" else image.convert("RGB")
    corners = np.asarray(boxes, np.float32).reshape(-1, 4)
    if not len(corners):
        return canvas
    values = None if scores is None else np.asarray(scores, np.float32)
    order = np.arange(len(corners)) if values is None else np.argsort(-values, kind="stable")
    scaled = corners[order].astype(np.float64) * _factors(canvas, size)
    style = Style.of(*canvas.size, len(corners))
    texts = [_text(i, captions, values) for i in order.tolist()]
    labels = [fit_label(text, box, canvas.size, style) for text, box in zip(texts, scaled.tolist(), strict=True)]
    places = place_labels(labels, scaled, canvas.size, style)
    draw = ImageDraw.Draw(canvas)
    for rank in reversed(range(len(scaled))):
        _draw_box(draw, scaled[rank], COLOURS[rank % len(COLOURS)], style)
    for rank in reversed(range(len(scaled))):
        label, place = labels[rank], places[rank]
        if label is not None and place is not None:
            draw_label(draw, label, place, COLOURS[rank % len(COLOURS)], style)
    return canvas


def draw_sentence(image: Image, boxes: ArrayLike, size: tuple[float, float], captions: Sequence[str]) -> Image:
    """Draw boxes on a copy of an image and, on a strip below, their captions in the same colours.

    The captions stand in their order, each on a plate in the colour of its box; captions with one and the same box
    share its colour. For a sentence whose phrases have been placed in the image.

    Args:
        image: in any mode and size; it is not changed.
        boxes: ``(N, 4)`` ``x1 y1 x2 y2``; N may be 0.
        size: width and height of the image in the pixels that ``boxes`` are in.
        captions: N texts.

    Returns:
        an RGB image, as wide as ``image`` and higher.
    """
    canvas = image.copy() if image.mode == "RGB" else image.convert("RGB")
    corners = np.asarray(boxes, np.float32).reshape(-1, 4)
    if not len(corners):
        return canvas
    style = Style.of(*canvas.size, len(corners))
    rows = [tuple(box) for box in corners.tolist()]
    colours = {box: COLOURS[i % len(COLOURS)] for i, box in enumerate(dict.fromkeys(rows))}
    draw = ImageDraw.Draw(canvas)
    for box in reversed(colours):
        _draw_box(draw, np.array(box) * _factors(canvas, size), colours[box], style)
    labels: list[tuple[Label, Colour, float, float]] = []
    x = y = 0.0
    for box, caption in zip(rows, captions, strict=True):
        label = one_line(" ".join(caption.split()), canvas.width - 2 * style.padding, style)
        if x and x + label.width > canvas.width:
            x, y = 0.0, y + label.height
        labels.append((label, colours[box], x, y))
        x += label.width
    sheet = canvas.crop((0, 0, canvas.width, canvas.height + round(y) + labels[-1][0].height))
    draw = ImageDraw.Draw(sheet)
    draw.rectangle((0, canvas.height, *sheet.size), fill=(255, 255, 255))
    for label, colour, left, top in labels:
        place = (left, canvas.height + top, left + label.width, canvas.height + top + label.height)
        draw_label(draw, label, place, colour, style)
    return sheet


def _factors(canvas: Image, size: tuple[float, float]) -> np.ndarray:
    """What the corners of a box are multiplied by to be in pixels of the canvas."""
    return np.array([canvas.width / max(size[0], 1), canvas.height / max(size[1], 1)] * 2)


def _text(row: int, captions: Sequence[str] | None, scores: np.ndarray | None) -> str:
    if captions is not None:
        return " ".join(captions[row].split())
    return "" if scores is None else f"{float(scores[row]):.2f}"


def _draw_box(draw: ImageDraw.ImageDraw, box: np.ndarray, colour: Colour, style: Style) -> None:
    """Draw the box in its colour between thin dark lines, so that it shows on any background."""
    left, top, right, bottom = box.tolist()
    x1, y1 = round(left), round(top)
    x2, y2 = max(x1, round(right) - 1), max(y1, round(bottom) - 1)
    rim = style.line // 3
    if rim:
        draw.rectangle((x1 - rim, y1 - rim, x2 + rim, y2 + rim), outline=(20, 20, 20), width=style.line + 2 * rim)
    draw.rectangle((x1, y1, x2, y2), outline=colour, width=style.line)
