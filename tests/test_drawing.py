"""Drawings of boxes, captions and attention."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from skimage import data

from saywhere import drawing
from saywhere.drawing import COLOURS, PANEL, WIDEST, draw_attention, draw_boxes


def regions(width: int, height: int, boxes, scores=None, captions=None) -> dict[str, Any]:
    return {"boxes": boxes, "size": (width, height), "captions": captions, "scores": scores}


def spy_labels(monkeypatch) -> list[tuple[str, tuple[float, ...]]]:
    """The labels that are drawn: text and rectangle, in the order of drawing."""
    drawn = []
    real = drawing.draw_label

    def spy(draw, label, place, *options):
        drawn.append((label.text, place))
        real(draw, label, place, *options)

    monkeypatch.setattr(drawing, "draw_label", spy)
    return drawn


def overlap(a, b) -> float:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


def test_lines_are_on_the_box_and_nowhere_else():
    image = Image.new("RGB", (100, 80))
    drawn = np.asarray(draw_boxes(image, **regions(100, 80, [[20, 10, 60, 50]])))
    assert tuple(drawn[10, 40]) == tuple(drawn[49, 40]) == tuple(drawn[30, 20]) == tuple(drawn[30, 59]) == COLOURS[0]
    coloured = drawn.any(axis=2)
    assert coloured[10:50, 20:60].sum() == coloured.sum()
    assert not coloured[14:46, 24:56].any()
    assert not np.asarray(image).any(), "the given image is not touched"


def test_boxes_are_scaled_to_the_image():
    half = draw_boxes(Image.new("RGB", (200, 100)), **regions(400, 300, [[40, 30, 200, 150]]))
    whole = draw_boxes(Image.new("RGB", (200, 100)), **regions(200, 100, [[20, 10, 100, 50]]))
    assert half.tobytes() == whole.tobytes()
    assert half.getpixel((60, 10)) == COLOURS[0]


def test_the_best_region_is_drawn_on_top():
    boxes, silent = [[10, 10, 50, 50]] * 3, ("",) * 3
    image = draw_boxes(Image.new("RGB", (60, 60)), **regions(60, 60, boxes, [0.2, 0.9, 0.5], silent))
    assert image.getpixel((30, 49)) == COLOURS[0]
    boxes[1] = [5, 5, 55, 55]
    image = draw_boxes(Image.new("RGB", (60, 60)), **regions(60, 60, boxes, [0.2, 0.9, 0.5], silent))
    assert image.getpixel((30, 54)) == COLOURS[0]
    assert image.getpixel((30, 49)) == COLOURS[1]


def test_captions_stay_inside_and_apart(monkeypatch):
    labels = spy_labels(monkeypatch)
    boxes = [[0, 0, 30, 30], [270, 0, 300, 30], [0, 170, 30, 200], [270, 170, 300, 200], [100, 60, 200, 140]]
    captions = ("a red kite in the sky", "the corner of a house", "a dog", "green grass on the ground", "a man running")
    draw_boxes(Image.new("RGB", (600, 400)), **regions(300, 200, boxes, [0.9, 0.8, 0.7, 0.6, 0.5], captions))
    assert sorted(text.replace("\n", " ") for text, _ in labels) == sorted(captions)
    for _, (x1, y1, x2, y2) in labels:
        assert 0 <= x1 < x2 <= 600 and 0 <= y1 < y2 <= 400
    for (_, a), (_, b) in itertools.combinations(labels, 2):
        assert overlap(a, b) == 0


def test_a_caption_does_not_hide_a_small_box(monkeypatch):
    labels = spy_labels(monkeypatch)
    boxes = [[100, 100, 400, 300], [102, 80, 140, 99]]
    draw_boxes(Image.new("RGB", (500, 400)), **regions(500, 400, boxes, [0.9, 0.8], ("a large thing here", "x")))
    first = next(place for text, place in labels if text.startswith("a large"))
    assert overlap(first, boxes[1]) == 0


def test_long_captions_are_broken_and_cut(monkeypatch):
    labels = spy_labels(monkeypatch)
    long = " ".join(["word"] * 200)
    draw_boxes(Image.new("RGB", (300, 200)), **regions(300, 200, [[10, 10, 200, 150]], [0.5], (long,)))
    draw_boxes(Image.new("RGB", (300, 200)), **regions(300, 200, [[10, 10, 200, 150]], [0.5], ("w" * 400,)))
    for text, (x1, y1, x2, y2) in labels:
        assert text.endswith("…") and text.count("\n") <= 2
        assert 0 <= x1 < x2 <= 300 and 0 <= y1 < y2 <= 200
    assert labels[0][1][2] - labels[0][1][0] > 200


def test_scores_where_there_are_no_captions(monkeypatch):
    labels = spy_labels(monkeypatch)
    draw_boxes(Image.new("RGB", (300, 200)), **regions(300, 200, [[10, 40, 200, 150]], [0.256]))
    draw_boxes(Image.new("RGB", (300, 200)), **regions(300, 200, [[10, 40, 200, 150]]))
    draw_boxes(Image.new("RGB", (300, 200)), **regions(300, 200, [[10, 40, 200, 150]], [0.5], ("",)))
    assert [text for text, _ in labels] == ["0.26"]


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (7, 5), (30, 20), (4000, 3000)])
def test_any_size(size):
    boxes = [[0, 0, *size], [size[0] / 4, size[1] / 4, size[0] / 2, size[1] / 2]]
    image = draw_boxes(Image.new("L", size, 128), **regions(*size, boxes, [0.9, 0.2], ("a thing with a name", "b")))
    assert image.size == size and image.mode == "RGB"
    assert image.getpixel((0, size[1] - 1)) != (128, 128, 128)


def test_no_regions_change_nothing():
    image = Image.fromarray(data.astronaut())
    assert draw_boxes(image, **regions(512, 512, [])).tobytes() == image.tobytes()


def test_letters_contrast_with_their_plate(monkeypatch):
    inks = {}
    real = ImageDraw.ImageDraw.rounded_rectangle

    def spy(self, xy, radius, fill, outline):
        inks["plate"] = fill
        return real(self, xy, radius, fill=fill, outline=outline)

    text = ImageDraw.ImageDraw.text

    def spy_text(self, xy, words, fill, **options):
        def linear(value: int) -> float:
            return ((value / 255 + 0.055) / 1.055) ** 2.4

        light, dark = (
            sum(w * linear(v) for w, v in zip((0.2126, 0.7152, 0.0722), colour, strict=True))
            for colour in (inks["plate"], fill)
        )
        inks.setdefault("contrast", []).append((max(light, dark) + 0.05) / (min(light, dark) + 0.05))
        return text(self, xy, words, fill=fill, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "rounded_rectangle", spy)
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", spy_text)
    boxes = [[10 + 70 * i, 50, 60 + 70 * i, 100] for i in range(7)]
    draw_boxes(Image.new("RGB", (600, 200)), **regions(600, 200, boxes, [0.5] * 7, ("a",) * 7))
    assert len(inks["contrast"]) == 7
    assert min(inks["contrast"]) >= 4.5, "WCAG AA"


def test_phrases_of_one_box_stand_together(monkeypatch):
    labels = spy_labels(monkeypatch)
    boxes = [[10, 110, 200, 190], [210, 20, 390, 190], [10, 110, 200, 190]]
    drawn = draw_boxes(Image.new("RGB", (400, 200)), **regions(400, 200, boxes, None, ("a dog", "grass", "a pet")))
    assert sorted(text.replace("\n", " ") for text, _ in labels) == ["a dog; a pet", "grass"]
    assert drawn.getpixel((10, 150)) == COLOURS[0] and drawn.getpixel((210, 100)) == COLOURS[1]


def test_captions_that_are_not_sure_are_pale(monkeypatch):
    labels = spy_labels(monkeypatch)
    boxes = [[10, 40, 190, 190], [210, 40, 390, 190]]
    words = {**regions(400, 200, boxes, [0.9, 0.8], ("a dog", "a cat")), "caption_scores": [0.9, 0.1]}
    drawn = draw_boxes(Image.new("RGB", (400, 200)), **words)
    plates = {text: drawn.getpixel((int(place[0]) + 3, int(place[1]) + 2)) for text, place in labels}
    assert plates["a dog"] == COLOURS[0]
    assert min(plates["a cat"]) > 170 and plates["a cat"] != COLOURS[1]


GREY = (90, 90, 90)
SIZE = (320, 240)
BOXES = np.array([[40.0, 40, 120, 200], [200, 40, 280, 200]])
GAP = PANEL // 60
STRIP = round(1.6 * (PANEL // 14))


def panel(sheet: Image.Image, column: int = 0, row: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """The image under one word, without the word."""
    left, top = GAP + column * (size[0] + GAP), GAP + row * (size[1] + STRIP + GAP) + STRIP
    return np.asarray(sheet.crop((left, top, left + size[0], top + size[1])))


def coloured(pixels: np.ndarray) -> np.ndarray:
    return (pixels == COLOURS[0]).all(axis=-1)


def sheet_of(weights, regions=BOXES, words=("a", "dog"), size=SIZE) -> Image.Image:
    return draw_attention(Image.new("RGB", SIZE, GREY), words, np.array(weights), regions, size)


def test_lines_are_as_wide_as_the_weights():
    sheet = sheet_of([[0.75, 0.25], [0.0, 0.5]])
    widest = PANEL / WIDEST
    for column, weights in enumerate(((0.75, 0.25), (0, 0.5))):
        middle = coloured(panel(sheet, column)[120])
        for x, weight in zip((40, 200), weights, strict=True):
            assert abs(middle[x - 15 : x + 15].sum() - widest * weight / 0.75) <= 1
    assert not coloured(panel(sheet, 1)[:, :150]).any()  # no weight, no line
    lines = np.flatnonzero(coloured(panel(sheet)[120]))
    assert abs(lines[lines < 80].mean() - 40) <= 1  # on the edge of the box


def test_weak_regions_are_left_out_and_the_image_stays():
    sheet = sheet_of([[0.97, 0.03], [0.5, 0.5]])  # 0.03 has a line of 0.41 pixels
    pixels = panel(sheet)
    assert not coloured(pixels[:, 160:]).any()
    assert (pixels[:, 160:] == GREY).all()


def test_boxes_are_scaled_from_the_networks_input():
    once, twice = sheet_of([[0.6, 0.4]], words=("dog",)), sheet_of([[0.6, 0.4]], 2 * BOXES, ("dog",), (640, 480))
    assert np.array_equal(np.asarray(once), np.asarray(twice))
    large = draw_attention(Image.new("RGB", (1280, 960), GREY), ["dog"], np.array([[0.6, 0.4]]), 4 * BOXES, (1280, 960))
    assert large.size == once.size
    assert np.array_equal(coloured(np.asarray(once)), coloured(np.asarray(large)))


def test_warped_regions_are_drawn_along_their_edges():
    diamond = np.array([[[160.0, 20], [260, 120], [160, 220], [60, 120]]])
    pixels = coloured(panel(sheet_of([[1.0]], diamond, ("dog",))))
    for x, y in ((160, 21), (210, 70), (258, 120), (110, 170), (62, 120)):
        assert pixels[y, x]
    assert not pixels[120, 160] and not pixels[40, 80]
    box = BOXES[:1]
    upright = box[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(1, 4, 2)
    as_box, as_corners = sheet_of([[1.0]], box, ("dog",)), sheet_of([[1.0]], upright, ("dog",))
    assert np.array_equal(np.asarray(as_box), np.asarray(as_corners))


def test_a_sheet_has_a_panel_with_its_word_for_each_word():
    weights = [[0.5, 0.5]] * 6  # five words and the END
    sheet = sheet_of(weights, words=("a", "dog", "in", "the", "snow"))
    assert sheet.size == (3 * (320 + GAP) + GAP, 2 * (240 + STRIP + GAP) + GAP)
    dark = np.asarray(sheet.convert("L")) < 60
    for column in range(3):
        left = GAP + column * (320 + GAP)
        assert dark[GAP : GAP + STRIP, left + 60 : left + 260].any()
    last = np.asarray(sheet)[GAP + 240 + STRIP + GAP :, 2 * (320 + GAP) + GAP :]
    assert (last == 255).all()  # the sixth place is empty


def test_without_words_regions_or_weight_the_image_remains():
    assert draw_attention(Image.new("L", (50, 40)), [], np.zeros((0, 2)), BOXES, SIZE).size == (50, 40)
    for weights, regions in ((np.zeros((1, 0)), np.zeros((0, 4))), (np.zeros((1, 2)), BOXES)):
        sheet = draw_attention(Image.new("RGB", SIZE, GREY), ["dog"], weights, regions, SIZE)
        assert (panel(sheet) == GREY).all()


def test_letters_with_accents_are_drawn_without_them() -> None:
    """Pillow's own font has no accents: "Tässchen" was drawn with a box in place of its second letter."""
    assert drawing.drawable("Omas Tässchen – un café, Łódź") == "Omas Tasschen - un cafe, Lodz"
    marked, plain = (draw_boxes(Image.new("RGB", (200, 100)), BOXES[:1] / 2, (200, 100), [text]) for text in ("é", "e"))
    assert marked.tobytes() == plain.tobytes()
    words = [draw_attention(Image.new("RGB", (60, 40)), [text], [[1.0]], BOXES[:1], (60, 40)) for text in ("ß", "ss")]
    assert words[0].tobytes() == words[1].tobytes()
