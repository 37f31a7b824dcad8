"""Selective Search and Edge Boxes find the boxes that are there, in a known order, at any size of the image."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image
from structured_forest import write_forest

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.papers.external_proposals import (
    EdgeBoxes,
    Proposed,
    SelectiveSearch,
    find_proposal_method,
    published_order,
)

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


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forest(tmp_path_factory.mktemp("forest") / "model.yml.gz")


def test_selective_search_finds_the_square() -> None:
    boxes = SelectiveSearch()(square()).boxes
    assert float(geometry.iou(boxes, np.array([SQUARE], np.float32)).max()) > 0.9


def test_selective_search_covers_what_is_in_a_photograph(found: Proposed) -> None:
    # The astronaut, her face, the helmet, the flag; in pixels of the photograph at half its size.
    things = np.array([[6.0, 0, 207, 256], [87, 32, 138, 98], [160, 165, 240, 256], [0, 0, 68, 140]])
    best = geometry.iou(found.boxes, things).max(axis=0)
    assert (best > 0.5).all(), best


def test_boxes_are_inside_the_image_and_distinct(found: Proposed) -> None:
    assert len(found) > 200
    assert found.boxes.dtype == np.float32
    assert float(found.boxes.min()) >= 0 and float(found.boxes.max()) <= 256
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    assert len(np.unique(found.boxes, axis=0)) == len(found)


def test_scores_follow_the_order(found: Proposed) -> None:
    assert float(found.scores[0]) == 1
    np.testing.assert_allclose(found.scores, 1 - np.arange(len(found)) / len(found), atol=1e-6)


def test_the_same_image_gives_the_same_boxes_in_the_same_order(astronaut: Image.Image, found: Proposed) -> None:
    assert np.array_equal(SelectiveSearch()(astronaut).boxes, found.boxes)
    other = SelectiveSearch(seed=1)(astronaut).boxes
    assert not np.array_equal(other, found.boxes)
    assert np.array_equal(np.unique(other, axis=0), np.unique(found.boxes, axis=0))


def test_large_boxes_come_first_as_in_the_published_order(found: Proposed) -> None:
    areas = geometry.area(found.boxes)
    half = len(found) // 2
    assert np.median(areas[:half]) > 2 * np.median(areas[half:])


def test_rank_is_the_place_by_area_times_a_random_number() -> None:
    boxes = np.array([[0.0, 0, 1, 1], [0, 0, 3, 3], [0, 0, 2, 2]])
    ranks = np.random.default_rng(5).random(3) * [1, 2, 3]
    expected = boxes[[1, 2, 0]][ranks.argsort()]
    assert np.array_equal(published_order(boxes, 5), expected)


def test_quality_searches_more_than_fast(astronaut: Image.Image, found: Proposed) -> None:
    assert len(SelectiveSearch("quality")(astronaut)) > 1.5 * len(found)


def test_boxes_are_in_pixels_of_an_image_that_was_searched_smaller() -> None:
    boxes = SelectiveSearch(long_side=200)(square(factor=4)).boxes
    assert float(geometry.iou(boxes, 4 * np.array([SQUARE], np.float32)).max()) > 0.9


def test_a_large_file_is_searched_smaller_too(tmp_path: Path) -> None:
    square(factor=5).save(tmp_path / "square.jpg", quality=95)
    boxes = SelectiveSearch(long_side=100)(tmp_path / "square.jpg").boxes
    assert float(boxes.max()) > 900
    assert float(geometry.iou(boxes, 5 * np.array([SQUARE], np.float32)).max()) > 0.8


def test_an_image_of_one_colour_has_at_most_the_whole_image() -> None:
    boxes = SelectiveSearch()(Image.new("RGB", (64, 48), (9, 9, 9))).boxes
    assert boxes.tolist() in ([], [[0, 0, 64, 48]])


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"none\.jpg: no such file"):
        SelectiveSearch()(tmp_path / "none.jpg")


def test_suppression_keeps_the_better_of_two() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]], np.float32)
    proposed = Proposed(boxes, np.array([0.2, 0.9, 0.5], np.float32))
    assert proposed.suppressed(0.5).boxes.tolist() == boxes[[1, 2]].tolist()
    assert proposed.suppressed(0.95).scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert len(proposed.suppressed(0.5, limit=1)) == 1


def test_edge_boxes_find_the_square(forest: Path) -> None:
    found = EdgeBoxes(forest)(square())
    assert float(geometry.iou(found.boxes, np.array([SQUARE], np.float32)).max()) > 0.6
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    assert 0 < float(found.scores.min()) < float(found.scores.max()) < 1


def test_edge_boxes_are_where_the_edges_are(forest: Path) -> None:
    image = Image.new("RGB", (300, 160), (230, 225, 220))
    image.paste((40, 60, 90), (190, 40, 270, 120))
    assert float(EdgeBoxes(forest)(image).boxes[:20, 2].min()) > 190  # all reach the square


def test_edge_boxes_in_pixels_of_the_image_and_limited(forest: Path) -> None:
    small, large = EdgeBoxes(forest, limit=7)(square()), EdgeBoxes(forest, limit=7, long_side=200)(square(factor=3))
    assert len(small) == len(large) == 7
    assert float(geometry.iou(3 * small.boxes, large.boxes).max(axis=1).min()) > 0.8


def test_an_image_without_edges_has_no_edge_boxes(forest: Path) -> None:
    found = EdgeBoxes(forest)(Image.new("RGB", (120, 90), (9, 9, 9)))
    assert (found.boxes.shape, found.scores.shape) == ((0, 4), (0,))


def test_edge_boxes_say_where_their_model_comes_from(tmp_path: Path) -> None:
    for missing in ("", str(tmp_path / "model.yml.gz")):
        with pytest.raises(UserError, match=r"is none: give edge-boxes:PATH.*OpenCV project keeps"):
            EdgeBoxes(missing)


@pytest.mark.parametrize(
    "text", ["not: a forest\n", "%YAML:1.0\n---\noptions:\n   numberOfTrees: 8\n", "", "\x89PNG", "{]"]
)
def test_a_file_that_is_no_forest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.yml").write_text(text)
    with pytest.raises(UserError, match=r"model\.yml is not a structured edge forest"):
        EdgeBoxes(tmp_path / "model.yml")


@pytest.mark.parametrize("module", [None, types.ModuleType("cv2")])
def test_without_the_contributed_modules_the_extra_is_named(
    module: object, forest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", module)
    for make in (SelectiveSearch, lambda: EdgeBoxes(forest)):
        with pytest.raises(UserError, match=r"pip install 'saywhere\[proposals\]'"):
            make()


def test_methods_by_name(forest: Path) -> None:
    made = {kind: find_proposal_method(kind) for kind in ("selective-search", "selective-search:quality")}
    assert [made[kind].mode for kind in made] == ["fast", "quality"]
    assert isinstance(find_proposal_method(f"edge-boxes:{forest}"), EdgeBoxes)


@pytest.mark.parametrize("kind", ["selective-search:slow", "edges", "rpn", ""])
def test_an_unknown_method_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"are not known; there are selective-search, selective-search:fast"):
        find_proposal_method(kind)
