"""Where a captioner looked, word by word (Areas of Attention, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image as images
from PIL import ImageDraw, ImageFont

from saywhere.drawing.labels import COLOURS

if TYPE_CHECKING:
    from PIL.Image import Image

PANEL = 320
"""Longest side in pixels of the image under each word; a smaller image stays as it is."""
WIDEST = 24
"""The line around the region of most weight is the panel's longest side divided by this."""

Point = tuple[float, float]


def draw_attention(
    image: Image,
    words: Sequence[str],
    weights: ArrayLike,
    regions: ArrayLike,
    size: tuple[float, float],
    columns: int | None = None,
) -> Image:
    """Draw a sheet with the image once for each word, and on it the regions in lines as wide as their weights.

    Line widths are proportional to the weights on all of the sheet: the largest has the widest line, and regions whose
    line would be less than half a pixel wide are not drawn. Heavier regions are drawn over lighter ones.

    Args:
        image: the image, in any mode and size.
        words: of the caption; without any the sheet is the bare image.
        weights: ``(T, R)`` of the regions for each word, or for more steps than words (the END).
        regions: boxes ``(R, 4)`` or corners of warped regions ``(R, 4, 2)``; parts outside the image are not seen.
        size: width and height of the image in the pixels that ``regions`` are in.
        columns: of the sheet; None for as many as make it about twice as wide as high.

    Returns:
        an RGB image.
    """
    panel = image.convert("RGB")
    panel.thumbnail((PANEL, PANEL))
    if not words:
        return panel
    font = ImageFont.load_default(max(10, max(panel.size) // 14))
    strip = round(font.size * 1.6) if isinstance(font, ImageFont.FreeTypeFont) else 20
    gap = max(2, max(panel.size) // 60)
    wide, high = panel.width + gap, panel.height + strip + gap
    columns = columns or min(len(words), max(1, round((2 * len(words) * high / wide) ** 0.5)))
    rows = -(-len(words) // columns)
    sheet = images.new("RGB", (columns * wide + gap, rows * high + gap), "white")
    scale = (panel.width / size[0], panel.height / size[1])
    outlines = _outlines(np.asarray(regions), scale)
    shown = np.asarray(weights)[: len(words)].tolist()
    heaviest = max((weight for row in shown for weight in row), default=0.0) or 1.0
    unit = max(panel.size) / WIDEST / heaviest
    draw = ImageDraw.Draw(sheet)
    for number, (word, row) in enumerate(zip(words, shown, strict=True)):
        left, top = gap + number % columns * wide, gap + number // columns * high
        sheet.paste(_with_outlines(panel, outlines, [weight * unit for weight in row]), (left, top + strip))
        draw.text((left + panel.width / 2, top + strip / 2), word, fill="black", font=font, anchor="mm")
    return sheet


def _outlines(regions: np.ndarray, scale: Point) -> list[list[Point]]:
    """The four corners of each region in pixels of the panel."""
    corners = regions if regions.ndim == 3 else regions[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    return [[(x * scale[0], y * scale[1]) for x, y in quad] for quad in corners.tolist()]


def _with_outlines(panel: Image, outlines: list[list[Point]], widths: list[float]) -> Image:
    """A copy of the panel with the outlines in lines of so many pixels, between thin dark ones where they are wide."""
    canvas = panel.copy()
    draw = ImageDraw.Draw(canvas)
    for width, corners in sorted(zip(widths, outlines, strict=True), key=lambda pair: pair[0]):
        line = round(width)
        if width < 0.5:
            continue
        around = [*corners, *corners[:2]]  # past the first corner again, so that the joint there is drawn too
        if line >= 3:
            draw.line(around, fill=(20, 20, 20), width=line + 2, joint="curve")
        draw.line(around, fill=COLOURS[0], width=max(1, line), joint="curve")
    return canvas
