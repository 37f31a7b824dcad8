"""Selective Search finds the boxes that are there, in a known order, at any size of the image."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image
from refusals import refuses

from saywhere import boxes as geometry
from saywhere.images import ImageError
from saywhere.papers.external_proposals import Proposed, SelectiveSearch

SQUARE = (60, 40, 140, 120)


def square(factor: int = 1) -> Image.Image:
    """A dark square on a light ground."""
    image = Image.new("RGB", (200 * factor, 160 * factor), (230, 225, 220))
    image.paste((40, 60, 90), tuple(side * factor for side in SQUARE))
    return image


@pytest.fixture(scope="module")
def astronaut() -> Image.Image:
    """A photograph of 256 x 256 pixels."""
    return Image.fromarray(skimage.data.astronaut()).resize((256, 256))


@pytest.fixture(scope="module")
def found(astronaut: Image.Image) -> Proposed:
    return SelectiveSearch()(astronaut)


def test_selective_search_finds_the_square() -> None:
    boxes = SelectiveSearch()(square()).boxes
    assert float(geometry.iou(boxes, np.array([SQUARE], np.float32)).max()) > 0.9


def test_boxes_are_distinct_inside_the_image_and_in_an_order_that_repeats_itself(
    astronaut: Image.Image, found: Proposed
) -> None:
    assert len(found) > 200 and found.boxes.dtype == np.float32
    assert float(found.boxes.min()) >= 0 and float(found.boxes.max()) <= 256
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    assert len(np.unique(found.boxes, axis=0)) == len(found)
    np.testing.assert_allclose(found.scores, 1 - np.arange(len(found)) / len(found), atol=1e-6)
    assert np.array_equal(SelectiveSearch()(astronaut).boxes, found.boxes)


def test_rank_is_the_place_by_area_times_a_random_number(found: Proposed) -> None:
    areas = geometry.area(found.boxes)
    places = np.empty(len(areas))
    places[np.argsort(-areas, kind="stable")] = np.arange(1, len(areas) + 1)
    half = len(found) // 2
    assert places.mean() == (len(areas) + 1) / 2 and places[:half].mean() < 0.75 * places[half:].mean()


def test_boxes_are_in_pixels_of_an_image_that_was_searched_smaller(tmp_path: Path) -> None:
    square(factor=5).save(tmp_path / "square.jpg", quality=95)
    for image in (square(factor=5), tmp_path / "square.jpg"):
        boxes = SelectiveSearch()(image).boxes
        assert float(boxes.max()) > 900
        assert float(geometry.iou(boxes, 5 * np.array([SQUARE], np.float32)).max()) > 0.8


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    refuses(r"none\.jpg: no such file", SelectiveSearch(), tmp_path / "none.jpg", kind=ImageError)


def test_suppression_keeps_the_better_of_two() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]], np.float32)
    proposed = Proposed(boxes, np.array([0.2, 0.9, 0.5], np.float32))
    assert proposed.suppressed(0.5).boxes.tolist() == boxes[[1, 2]].tolist()
    assert proposed.suppressed(0.95).scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert len(proposed.suppressed(0.5, limit=1)) == 1


@pytest.mark.parametrize("module", [None, types.ModuleType("cv2")])
def test_without_the_contributed_modules_the_extra_is_named(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", module)
    refuses(r"pip install 'saywhere\[proposals\]'", SelectiveSearch)
