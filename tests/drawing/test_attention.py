from __future__ import annotations

import numpy as np
from PIL import Image

from saywhere.drawing import COLOURS, PANEL, WIDEST, draw_attention

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


def sheet_of(weights, regions=BOXES, words=("a", "dog"), size=SIZE, **options) -> Image.Image:
    return draw_attention(Image.new("RGB", SIZE, GREY), words, np.array(weights), regions, size, **options)


def test_lines_are_as_wide_as_the_weights():
    sheet = sheet_of([[0.75, 0.25], [0.0, 0.5]], columns=2)
    widest = PANEL / WIDEST
    for column, weights in enumerate(((0.75, 0.25), (0, 0.5))):
        middle = coloured(panel(sheet, column)[120])
        for x, weight in zip((40, 200), weights, strict=True):
            assert abs(middle[x - 15 : x + 15].sum() - widest * weight / 0.75) <= 1
    assert not coloured(panel(sheet, 1)[:, :150]).any()  # no weight, no line
    lines = np.flatnonzero(coloured(panel(sheet)[120]))
    assert abs(lines[lines < 80].mean() - 40) <= 1  # on the edge of the box


def test_weak_regions_are_left_out_and_the_image_stays():
    sheet = sheet_of([[0.97, 0.03], [0.5, 0.5]], columns=2)  # 0.03 has a line of 0.41 pixels
    pixels = panel(sheet)
    assert not coloured(pixels[:, 160:]).any()
    assert (pixels[:, 160:] == GREY).all()


def test_the_heavier_region_is_on_top():
    same = np.array([[40.0, 40, 120, 200], [40, 40, 120, 200]])
    for weights in ([[0.9, 0.1]], [[0.1, 0.9]]):
        middle = coloured(panel(sheet_of(weights, same, ("dog",)))[120])
        assert abs(middle[20:60].sum() - PANEL / WIDEST) <= 1


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
    sheet = sheet_of(weights, words=("a", "dog", "in", "the", "snow"), columns=3)
    assert sheet.size == (3 * (320 + GAP) + GAP, 2 * (240 + STRIP + GAP) + GAP)
    dark = np.asarray(sheet.convert("L")) < 60
    for column in range(3):
        left = GAP + column * (320 + GAP)
        assert dark[GAP : GAP + STRIP, left + 60 : left + 260].any()
    last = np.asarray(sheet)[GAP + 240 + STRIP + GAP :, 2 * (320 + GAP) + GAP :]
    assert (last == 255).all()  # the sixth place is empty
    assert sheet_of(weights, words=("a", "dog", "in", "the", "snow")).width > 3 * 320


def test_without_words_regions_or_weight_the_image_remains():
    assert draw_attention(Image.new("L", (50, 40)), [], np.zeros((0, 2)), BOXES, SIZE).size == (50, 40)
    for weights, regions in ((np.zeros((1, 0)), np.zeros((0, 4))), (np.zeros((1, 2)), BOXES)):
        sheet = draw_attention(Image.new("RGB", SIZE, GREY), ["dog"], weights, regions, SIZE)
        assert (panel(sheet) == GREY).all()
