"""Drawing of boxes, captions and attention on images."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image as images
from PIL import ImageDraw, ImageFont

from saywhere.options import dataclass
from saywhere.text import two_digits

if TYPE_CHECKING:
    from PIL.Image import Image


COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (204, 121, 167), (213, 94, 0), (0, 114, 178))
"""Colours by Okabe and Ito, which are safe for all kinds of colour vision; used in turn, best box first."""

UNSURE = 0.5
"""Captions with a lower probability are drawn pale."""
STEADY = 0.2
"""How much more of labels and boxes a label may hide to stay in its place of the previous frame."""

Rectangle = tuple[float, float, float, float]
Colour = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Label:
    """A caption broken into lines, with the size of its plate in pixels."""

    text: str
    width: int
    height: int


@dataclass(frozen=True)
class Style:
    """Sizes in pixels, derived from the image size."""

    line: int
    padding: int
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    line_height: int

    @classmethod
    def of(cls, width: int, height: int, count: int) -> Style:
        """Return the style for an image of this size; with many boxes (``count``) the font is smaller."""
        side = min(max(width, height), 2 * min(width, height) + 200)  # a long strip gets the sizes of a smaller image
        size = max(11, round(side / (45 if count <= 15 else 55)))
        font = ImageFont.load_default(size)
        return cls(max(1, round(side / 260)), max(2, round(size / 4)), font, round(size * 1.2))


def fit_label(text: str, box: Sequence[float], size: tuple[int, int], style: Style) -> Label | None:
    """Break a text into lines as wide as the box, or a third of the image if more; None if no letter fits."""
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


def _break(text: str, limit: float, style: Style) -> list[str]:
    """Break a text at spaces into lines of at most ``limit`` pixels; longer words are shortened."""
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


class Place(NamedTuple):
    """The place of a label, and the index of the chosen candidate."""

    rectangle: Rectangle
    number: int


def place_labels(
    labels: Sequence[Label | None],
    boxes: np.ndarray,
    size: tuple[int, int],
    style: Style,
    before: Sequence[int | None] | None = None,
) -> list[Place | None]:
    """Place each label inside the image, greedily, at the candidate that hides the least.

    Hiding a label costs the fraction of the new label that covers it. Hiding a box costs the hidden fraction of the
    box, so that small boxes stay visible, while a caption in a large box does no harm.

    Args:
        labels: one per box, most important first; None for a box without one.
        boxes: ``(N, 4)`` float64 in pixels of the drawn image, which has this ``size``.
        before: candidate index of each label in the previous frame; a label keeps it unless another candidate hides
            much less.
    """
    places: list[Place | None] = []
    taken = np.zeros((0, 4))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).clip(min=1)
    for row, (label, box) in enumerate(zip(labels, boxes.tolist(), strict=True)):
        if label is None:
            places.append(None)
            continue
        candidates = _candidates(label, box, size, style)
        hidden = _overlap(candidates, taken).sum(axis=1) / (label.width * label.height)
        hidden += 0.2 * (_overlap(candidates, boxes) / areas).sum(axis=1)
        hidden += 0.005 * np.arange(len(candidates))
        if before is not None and (kept := before[row]) is not None:
            hidden[kept] -= STEADY
        best = int(np.argmin(hidden))
        places.append(Place(tuple(candidates[best].tolist()), best))
        taken = np.concatenate((taken, candidates[best][None]))
    return places


def _candidates(label: Label, box: Sequence[float], size: tuple[int, int], style: Style) -> np.ndarray:
    """Return candidate places ``(K, 4)`` of a label, best first: above the box, in its corners, below, at its sides."""
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
    """Return the intersection areas ``(K, M)`` of rectangles ``a (K, 4)`` and ``b (M, 4)`` in square pixels."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(min=0).prod(axis=2)


def draw_label(
    draw: ImageDraw.ImageDraw, label: Label, place: Rectangle, colour: Colour, style: Style, unsure: bool = False
) -> None:
    """Draw a caption on a plate in its box's colour, in the more legible of black and white; pale if unsure."""
    x1, y1, x2, y2 = place
    plate = _mixed(colour, WHITE, 0.65) if unsure else colour
    luminance = 0.299 * plate[0] + 0.587 * plate[1] + 0.114 * plate[2]
    ink = BLACK if luminance > 100 else WHITE
    ink = _mixed(ink, plate, 0.45) if unsure else ink
    draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), style.padding, fill=plate, outline=(20, 20, 20))
    for number, line in enumerate(label.text.split("\n")):
        middle = y1 + style.padding + (number + 0.5) * style.line_height
        draw.text((x1 + style.padding, middle), line, fill=ink, font=style.font, anchor="lm")


def _mixed(colour: Colour, other: Colour, share: float) -> Colour:
    """Blend a colour with another, whose share is given."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(colour, other, strict=True))
    return red, green, blue


def draw_boxes(
    image: Image,
    boxes: ArrayLike,
    size: tuple[float, float],
    captions: Sequence[str] | None = None,
    scores: ArrayLike | None = None,
    caption_scores: ArrayLike | None = None,
) -> Image:
    """Return an RGB copy of an image with boxes and their captions (or scores, without captions).

    Line widths and font grow with the image. The best box is drawn last, on top. Its caption gets the best place; each
    following caption goes where it hides the least of earlier captions and of boxes. Captions of identical boxes share
    one label. Labels stay inside the image, and long captions are broken into lines. An image too small for a single
    letter gets only boxes.

    Args:
        boxes: ``(N, 4)`` ``x1 y1 x2 y2``; N may be 0.
        size: width and height of the image in the pixels of ``boxes``.
        captions: N texts.
        scores: ``(N,)``, larger is better. Default: boxes are in order, best first.
        caption_scores: ``(N,)`` probabilities of the captions; those below :data:`UNSURE` are pale.
    """
    canvas = image.copy() if image.mode == "RGB" else image.convert("RGB")
    corners = np.asarray(boxes, np.float32).reshape(-1, 4)
    if not len(corners):
        return canvas
    values = None if scores is None else np.asarray(scores, np.float32)
    order = np.arange(len(corners)) if values is None else np.argsort(-values, kind="stable")
    groups: dict[tuple[float, ...], list[int]] = {}
    for row in order.tolist():
        groups.setdefault(tuple(corners[row].tolist()), []).append(row)
    factors = np.array([canvas.width / max(size[0], 1), canvas.height / max(size[1], 1)] * 2)
    scaled = np.array([*groups], np.float64) * factors
    style = Style.of(*canvas.size, len(groups))
    texts = ["; ".join(dict.fromkeys(_text(i, captions, values) for i in rows)) for rows in groups.values()]
    sure = None if caption_scores is None else np.asarray(caption_scores) >= UNSURE
    unsure = [sure is not None and not sure[rows].any() for rows in groups.values()]
    labels = [fit_label(text, box, canvas.size, style) for text, box in zip(texts, scaled.tolist(), strict=True)]
    places = place_labels(labels, scaled, canvas.size, style)
    draw = ImageDraw.Draw(canvas)
    for rank in reversed(range(len(scaled))):
        _draw_box(draw, scaled[rank], COLOURS[rank % len(COLOURS)], style)
    for rank in reversed(range(len(scaled))):
        label, place = labels[rank], places[rank]
        if label is not None and place is not None:
            draw_label(draw, label, place.rectangle, COLOURS[rank % len(COLOURS)], style, unsure[rank])
    return canvas


LETTERS = str.maketrans({
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "–": "-", "—": "-",
})  # fmt: skip
"""Letters that no accent distinguishes from others, which Pillow's own font has."""


def drawable(text: str) -> str:
    """Return a text in letters that Pillow's own font has, as far as they are Latin: it has no accents.

    Example:
        >>> drawable("Omas Tässchen, un café, Łódź")
        'Omas Tasschen, un cafe, Lodz'
    """
    apart = unicodedata.normalize("NFKD", text.translate(LETTERS))
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def _text(row: int, captions: Sequence[str] | None, scores: np.ndarray | None) -> str:
    if captions is not None:
        return drawable(" ".join(captions[row].split()))
    return "" if scores is None else two_digits(float(scores[row]))


def _draw_box(draw: ImageDraw.ImageDraw, box: np.ndarray, colour: Colour, style: Style) -> None:
    """Draw a box in its colour between thin dark lines, visible on any background."""
    left, top, right, bottom = box.tolist()
    x1, y1 = round(left), round(top)
    x2, y2 = max(x1, round(right) - 1), max(y1, round(bottom) - 1)
    rim = style.line // 3
    if rim:
        draw.rectangle((x1 - rim, y1 - rim, x2 + rim, y2 + rim), outline=(20, 20, 20), width=style.line + 2 * rim)
    draw.rectangle((x1, y1, x2, y2), outline=colour, width=style.line)


PANEL = 320
"""Maximum side in pixels of the image for each word; a smaller image keeps its size."""
WIDEST = 24
"""The widest outline, for the largest weight, is the longer side of the image divided by this."""

Point = tuple[float, float]


def draw_attention(
    image: Image, words: Sequence[str], weights: ArrayLike, regions: ArrayLike, size: tuple[float, float]
) -> Image:
    """Return an RGB sheet that shows the image once per word, with regions outlined in proportion to their weights.

    The sheet is about twice as wide as high. All its line widths are proportional to the weights: the largest weight
    gets the widest line, and lines below half a pixel are left out. Larger weights are drawn over smaller ones.

    Args:
        words: words of the caption; without any, the sheet is just the image.
        weights: ``(T, R)`` weights of the regions for each word; further rows (END) are ignored.
        regions: boxes ``(R, 4)`` or corners of warped regions ``(R, 4, 2)``; parts outside the image are cut off.
        size: width and height of the image in the pixels of ``regions``.
    """
    panel = image.convert("RGB")
    panel.thumbnail((PANEL, PANEL))
    if not words:
        return panel
    font = ImageFont.load_default(max(10, max(panel.size) // 14))
    strip = round(font.size * 1.6) if isinstance(font, ImageFont.FreeTypeFont) else 20
    gap = max(2, max(panel.size) // 60)
    wide, high = panel.width + gap, panel.height + strip + gap
    columns = min(len(words), max(1, round((2 * len(words) * high / wide) ** 0.5)))
    rows = -(-len(words) // columns)
    sheet = images.new("RGB", (columns * wide + gap, rows * high + gap), "white")
    scale = (panel.width / size[0], panel.height / size[1])
    corners = np.asarray(regions)
    corners = corners if corners.ndim == 3 else corners[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    outlines = [[(x * scale[0], y * scale[1]) for x, y in quad] for quad in corners.tolist()]
    shown = np.asarray(weights)[: len(words)].tolist()
    heaviest = max((weight for row in shown for weight in row), default=0.0) or 1.0
    unit = max(panel.size) / WIDEST / heaviest
    draw = ImageDraw.Draw(sheet)
    for number, (word, row) in enumerate(zip(words, shown, strict=True)):
        left, top = gap + number % columns * wide, gap + number // columns * high
        sheet.paste(_with_outlines(panel, outlines, [weight * unit for weight in row]), (left, top + strip))
        draw.text((left + panel.width / 2, top + strip / 2), drawable(word), fill="black", font=font, anchor="mm")
    return sheet


def _with_outlines(panel: Image, outlines: list[list[Point]], widths: list[float]) -> Image:
    """Return a copy of the image with outlines of these widths in pixels, wide ones between thin dark lines."""
    canvas = panel.copy()
    draw = ImageDraw.Draw(canvas)
    for width, corners in sorted(zip(widths, outlines, strict=True), key=lambda pair: pair[0]):
        line = round(width)
        if width < 0.5:
            continue
        around = [*corners, *corners[:2]]  # continue past the first corner, to draw its joint too
        if line >= 3:
            draw.line(around, fill=(20, 20, 20), width=line + 2, joint="curve")
        draw.line(around, fill=COLOURS[0], width=max(1, line), joint="curve")
    return canvas
