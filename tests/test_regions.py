import io
import json
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuses

from saywhere import ImageError, Region, Regions, UserError
from saywhere.drawing import draw_boxes
from saywhere.regions import check_boxes

BOXES = [[0.0, 0.0, 10.0, 20.0], [5.0, 6.0, 30.0, 20.0], [1.5, 2.25, 3.0, 4.0]]
CAPTIONS = ("a dog", "", "the sky")


def regions(**changes):
    parts = {"scores": [0.9, 0.5, 0.25], "captions": CAPTIONS, "features": np.eye(3), "image": "a.jpg", **changes}
    return Regions(30, 20, np.array(BOXES), **parts)


def test_rows_are_plain_values():
    rows = list(regions())
    assert len(rows) == len(regions()) == 3
    assert rows[1] == Region((5.0, 6.0, 30.0, 20.0), 0.5, "")
    assert next(iter(Regions(30, 20, BOXES))) == Region((0.0, 0.0, 10.0, 20.0), None, None)


def test_rows_print_short_numbers_and_keep_whole_ones():
    row = Regions(30, 20, [[1 / 3, 2, 10.1, 20]], [0.7], ["a dog"])[0]
    assert str(row.box) == f"{row.box}" == "(0.33, 2.0, 10.1, 20.0)"
    assert repr(row) == "Region(box=(0.33, 2.0, 10.1, 20.0), score=0.7, caption='a dog')"
    assert row.box[0] == np.float32(1 / 3) and row.score == np.float32(0.7)
    assert json.loads(json.dumps(row.box)) == list(row.box) and pickle.loads(pickle.dumps(row)) == row


def test_the_words_have_a_probability_beside_that_of_the_box():
    made = regions(caption_scores=[0.25, 0.5, 1])
    assert made[0].caption_score == 0.25 and regions()[0].caption_score is None
    assert [(region.score, region.caption_score) for region in made[1:]] == [(0.5, 0.5), (0.25, 1)]
    assert made.to_dict()["caption_scores"] == [0.25, 0.5, 1]
    assert Regions.from_dict(made.to_dict()).caption_scores.tolist() == [0.25, 0.5, 1]
    assert Regions.merge([made, made[:1]]).caption_scores.tolist() == [0.25, 0.5, 1, 0.25]
    assert Regions.merge([made, regions()]).caption_scores is None
    assert made.to_coco(7)[0]["phrase_score"] == 0.25
    row = made[0]._replace(caption="a cat")
    assert (row, row.caption_score) == (Region(made[0].box, made[0].score, "a cat"), 0.25)
    assert made[0]._replace(caption_score=0.75).caption_score == 0.75
    assert made[0].__replace__(score=None).caption_score == 0.25
    box, score, caption = made[0]
    assert (len(box), score, caption) == (4, pytest.approx(0.9), "a dog")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"caption_scores": [0.1, 1.1, 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [0.9]}, "a.jpg: 1 scores for 3 boxes"),
        ({"captions": ["x"] * 4}, "a.jpg: 4 captions for 3 boxes"),
        ({"features": np.zeros((2, 5))}, "a.jpg: 2 features for 3 boxes"),
        ({"scores": [0.1, 1.1, 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [0.1, -0.1, 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [0.1, float("nan"), 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [2.0, 0.1, 0.2], "image": None}, "a score is not a probability"),
    ],
)
def test_parts_that_do_not_fit(changes, message):
    with pytest.raises(ValueError) as caught:
        regions(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[0, 0, 1, float("nan")]], "a box has a number that is not finite"),
        ([[0, 0, float("inf"), 1]], "a box has a number that is not finite"),
        ([[0, 0, 1, 1], [0, 0, 31, 5]], "box 1 [0.0, 0.0, 31.0, 5.0] is not inside the 30 x 20 image"),
        ([[0, 0, 5, 21]], "box 0 [0.0, 0.0, 5.0, 21.0] is not inside the 30 x 20 image"),
        ([[-1, 0, 5, 5]], "box 0 [-1.0, 0.0, 5.0, 5.0] is not inside the 30 x 20 image"),
        ([[0, -2, 5, 5]], "box 0 [0.0, -2.0, 5.0, 5.0] is not inside the 30 x 20 image"),
        ([[6, 0, 5, 5]], "box 0 [6.0, 0.0, 5.0, 5.0] is not inside the 30 x 20 image"),
        ([[0, 6, 5, 5]], "box 0 [0.0, 6.0, 5.0, 5.0] is not inside the 30 x 20 image"),
        (np.zeros((4, 5)), "boxes need four numbers each, (N, 4); these are (4, 5)"),
        (np.zeros(8), "boxes need four numbers each, (N, 4); these are (8,)"),
    ],
)
def test_boxes_that_cannot_be(boxes, message):
    with pytest.raises(ValueError) as caught:
        Regions(30, 20, boxes)
    assert str(caught.value) == message


def test_a_rounding_error_outside_is_allowed():
    assert len(Regions(30, 20, [[-0.0005, 0.0, 30.0005, 20.0]])) == 1


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([1], [1]),
        (slice(None, 2), [0, 1]),
        (slice(None, None, -1), [2, 1, 0]),
        (slice(5, None), []),
        ([2, 0], [2, 0]),
        ([-1], [2]),
        ([], []),
        ([True, False, True], [0, 2]),
        (np.array([False, True, True]), [1, 2]),
        (np.array([False, False, False]), []),
        (np.array([1, 1]), [1, 1]),
        (np.array([2]), [2]),
    ],
)
def test_slicing(rows, chosen):
    part = regions()[rows]
    assert (part.width, part.height, part.image) == (30, 20, "a.jpg")
    assert part.boxes.tolist() == [BOXES[i] for i in chosen]
    assert part.captions == tuple(CAPTIONS[i] for i in chosen)
    assert part.scores.tolist() == np.array([0.9, 0.5, 0.25], np.float32)[chosen].tolist()
    assert part.features.tolist() == np.eye(3)[chosen].tolist()


@pytest.mark.parametrize("row", [0, 2, -1, -3, np.int64(1), np.uint8(2)])
def test_an_integer_gives_a_region_as_iteration_does(row):
    assert regions()[row] == list(regions())[row] and type(regions()[row]) is Region
    assert Regions(30, 20, BOXES)[row] == Region(tuple(BOXES[row]), None, None)


@pytest.mark.parametrize("rows", [3, -4, np.int64(3), [3], np.array([True, False])])
def test_slicing_beyond_the_end(rows):
    with pytest.raises(IndexError):
        regions()[rows]


def test_slicing_without_the_optional_parts():
    part = Regions(30, 20, BOXES)[1:]
    assert len(part) == 2 and part.scores is None and part.captions is None and part.features is None


@pytest.mark.parametrize("boxes", [[], np.zeros((0, 4))])
def test_none_at_all(boxes):
    empty = Regions(30, 20, boxes, [], [], np.zeros((0, 7)), image="a.jpg")
    assert len(empty) == 0 and list(empty) == [] and empty.boxes.shape == (0, 4)
    assert len(empty[[]]) == len(empty[:5]) == len(empty[np.zeros(0, bool)]) == 0
    assert empty[:0].features.shape == (0, 7)
    row = {"image": "a.jpg", "width": 30, "height": 20, "boxes": [], "scores": [], "captions": []}
    assert empty.to_dict() == row
    assert len(Regions.from_dict(row)) == 0
    made = Regions.empty(30, 20, "a.jpg")
    assert (len(made), made.boxes.shape, made.captions, made.image) == (0, (0, 4), (), "a.jpg")


def test_json_form():
    row = regions(scores=[0.123456789, 1, 0]).to_dict()
    assert list(row) == ["image", "width", "height", "boxes", "scores", "captions"]
    assert row["boxes"] == BOXES and row["scores"] == [0.12346, 1.0, 0.0] and row["captions"] == list(CAPTIONS)
    assert Regions(30, 20, BOXES).to_dict() == {"image": None, "width": 30, "height": 20, "boxes": BOXES}


hundredths = st.integers(0, 6400).map(lambda n: n / 100)


@given(
    st.lists(
        st.tuples(
            st.lists(hundredths, min_size=2, max_size=2).map(sorted),
            st.lists(hundredths, min_size=2, max_size=2).map(sorted),
            st.integers(0, 100000).map(lambda n: n / 100000),
            st.text(),
        ),
        max_size=6,
    )
)
def test_json_round_trip(rows):
    boxes = [[x1, y1, x2, y2] for (x1, x2), (y1, y2), _, _ in rows]
    before = Regions(64, 64, boxes, [row[2] for row in rows], [row[3] for row in rows], image="photo ü.jpg")
    after = Regions.from_dict(json.loads(json.dumps(before.to_dict())))
    assert (after.width, after.height, after.image, after.captions) == (64, 64, "photo ü.jpg", before.captions)
    assert np.array_equal(after.boxes, before.boxes) and np.array_equal(after.scores, before.scores)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"width": 3, "boxes": []}, "height"),
        ({}, "width"),
        (None, "missing"),
        ({"width": 3, "height": 3, "boxes": "none"}, "could not convert string"),
        ({"width": "3", "height": 3, "boxes": []}, "^'3' x 3 is not the size of an image$"),
        ({"width": float("nan"), "height": 3, "boxes": []}, "^nan x 3 is not the size of an image$"),
        ({"width": 3, "height": float("inf"), "boxes": []}, "^3 x inf is not the size of an image$"),
        ({"width": 3, "height": -1, "boxes": []}, "^3 x -1 is not the size of an image$"),
        ({"width": True, "height": 3, "boxes": []}, "^True x 3 is not the size of an image$"),
        ({"width": 3.5, "height": 3, "boxes": [], "image": "a.jpg"}, "^a.jpg: 3.5 x 3 is not the size of an image$"),
        ({"width": 3, "height": 3, "boxes": [], "image": 5}, "^5 is not the name of an image$"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1, 1]], "captions": "a"}, "^captions must be a list of .*: 'a'$"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1, 1]], "captions": [5]}, "^the caption 5 is not a text$"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1, 1]], "labels": [5]}, "^the label 5 is not a text$"),
        ({"width": 3, "height": 3, "boxes": [], "not_found": "a"}, "^not_found must be a list of texts, not one text"),
        ({"width": 3, "height": 3, "boxes": [], "unknown": None}, "iterable"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1, 1]], "captions": 7}, "iterable"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1]]}, r"\(1, 3\)"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 9, 1]]}, "not inside the 3 x 3 image"),
    ],
)
def test_json_that_is_something_else(row, message):
    with pytest.raises(ValueError, match=message):
        Regions.from_dict(row)


def test_sizes_are_whole_numbers_and_names_are_texts_for_json():
    for side, name in ((np.int64(30), Path("a.jpg")), (30.0, "a.jpg"), (np.float32(30), "a.jpg")):
        made = Regions(side, side, BOXES, image=name)
        assert json.loads(json.dumps(made.to_dict())) == {"image": "a.jpg", "width": 30, "height": 30, "boxes": BOXES}


def test_numbers_that_were_checked_do_not_change_with_the_arrays_that_were_given():
    boxes, scores = np.float32(BOXES), np.float32([0.5, 0.5, 0.5])
    made = Regions(30, 20, boxes, scores, caption_scores=scores, similarities=scores)
    boxes += 100
    scores += 100
    assert made.boxes.tolist() == BOXES
    assert made.scores.max() == made.caption_scores.max() == made.similarities.max() == 0.5


def test_arrays_are_single_precision_whatever_is_given():
    torch = pytest.importorskip("torch")
    given = torch.tensor(BOXES, dtype=torch.float64)
    made = Regions(30, 20, given, torch.tensor([0.9, 0.5, 0.25]), list(CAPTIONS), torch.eye(3).half())
    for values in (made.boxes, made.scores, made.features):
        assert isinstance(values, np.ndarray) and values.dtype == np.float32
    assert made.boxes.tolist() == BOXES and made.captions == CAPTIONS


def test_similarities_have_any_range_but_are_finite():
    made = Regions(30, 20, BOXES, similarities=[-3, 7.25, 0])
    assert made[[1, 0]].similarities.tolist() == [7.25, -3]
    assert made.to_dict()["similarities"] == [-3, 7.25, 0]
    assert Regions.from_dict(made.to_dict()).similarities.tolist() == [-3, 7.25, 0]
    with pytest.raises(ValueError, match="a similarity is not finite"):
        Regions(30, 20, BOXES, similarities=[1, 2, np.inf])


def test_merge():
    merged = Regions.merge([regions(), regions()[:1], Regions.empty(30, 20, "a.jpg")])
    assert merged.boxes.tolist() == [*BOXES, BOXES[0]] and merged.captions == (*CAPTIONS, CAPTIONS[0])
    assert merged.scores.tolist() == pytest.approx([0.9, 0.5, 0.25, 0.9])
    assert merged.features.shape == (4, 3)
    part = Regions.merge([regions(), Regions(30, 20, BOXES, captions=CAPTIONS, image="a.jpg")])
    assert len(part) == 6 and part.scores is None and part.captions == CAPTIONS * 2
    assert len(Regions.merge(iter([Regions.empty(30, 20), Regions.empty(30, 20)]))) == 0
    for wrong in ([], [regions(), Regions(31, 20, BOXES, image="a.jpg")], [regions(), Regions(30, 20, BOXES)]):
        with pytest.raises(ValueError, match="only regions of one image"):
            Regions.merge(wrong)


def test_merge_joins_the_texts_beside_the_regions():
    one = regions(not_found=("a cat", "a cow"), unused=("big",), unknown=("zyx",), judged_as=("sparrow as bird",))
    other = regions(captions=("a cat", "a", "b"), not_found=("a hat", "a cow", "a dog"), unused=("old", "big"))
    merged = Regions.merge([one, other, Regions.empty(30, 20, "a.jpg")])
    assert merged.not_found == ("a cow", "a hat"), "one has found a dog, the other a cat"
    assert (merged.unused, merged.unknown, merged.judged_as) == (("big", "old"), ("zyx",), ("sparrow as bird",))


@pytest.mark.parametrize("wrong", [2, -1, float("nan"), "0.5"])
def test_what_is_no_probability_is_refused(wrong):
    for some in (regions(), regions()[:0]):
        refuses(rf"^threshold must be a (probability|number), not '?{wrong}'?$", some.nms, wrong)
        refuses(rf"^probability must be a (probability|number), not '?{wrong}'?$", some.at_least, wrong)


def test_suppression_keeps_the_best_first():
    boxes = [[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10]]
    made = Regions(30, 20, boxes, [0.2, 0.5, 0.9], ("a", "b", "c"))
    assert made.nms(0.8).captions == ("c", "b") and made.nms(0.95).captions == ("c", "b", "a")
    assert Regions(30, 20, boxes, similarities=[5, 4, 3], captions=("a", "b", "c")).nms(0.8).captions == ("a", "c")
    assert len(Regions.empty(3, 3).nms(0.5)) == 0
    with pytest.raises(ValueError, match="needs scores or similarities"):
        Regions(30, 20, boxes).nms(0.5)


def test_coco_results():
    rows = regions().to_coco(7)
    assert rows[1] == {"image_id": 7, "category_id": 1, "bbox": [5, 6, 25, 14], "score": 0.5, "phrase": ""}
    plain = {"image_id": "a", "category_id": 1, "bbox": [0, 0, 10, 20]}
    assert Regions(30, 20, BOXES[:1]).to_coco("a") == [plain]
    assert [row["category_id"] for row in regions().to_coco(7, [4, 5, 4])] == [4, 5, 4]
    with pytest.raises(ValueError, match="shorter"):
        regions().to_coco(7, [4])


def test_coco_evaluates_its_results_without_classes():
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    boxes = [[0, 0, 10, 20], [5, 6, 25, 14], [1.5, 2.25, 1.5, 1.75]]
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": 7, "width": 30, "height": 20}],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "sky"}],
        "annotations": [
            {"id": n + 1, "image_id": 7, "category_id": 1 + n % 2, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for n, box in enumerate(boxes)
        ],
    }
    truth.createIndex()
    evaluator = COCOeval(truth, truth.loadRes(regions().to_coco(7)), "bbox")
    evaluator.params.useCats = 0
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    assert evaluator.stats[0] == pytest.approx(1)


def test_supervision_detections(monkeypatch):
    made = types.SimpleNamespace(Detections=lambda **parts: types.SimpleNamespace(**parts))
    monkeypatch.setitem(sys.modules, "supervision", made)
    found = regions().to_supervision()
    assert found.xyxy.tolist() == BOXES and found.data["caption"].tolist() == list(CAPTIONS)
    assert len(found.confidence) == len(found.class_id) == 3
    monkeypatch.setitem(sys.modules, "supervision", None)
    refuses("pip install supervision", regions().to_supervision)


def test_drawing_opens_the_file_or_takes_an_image(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (60, 40)).save(path)
    made = regions(image=str(path))
    drawn = made.draw()
    assert drawn.size == (60, 40) and np.asarray(drawn).any()
    for image in (path, str(path), Image.new("RGB", (60, 40)), np.zeros((40, 60, 3), np.uint8)):
        assert made.draw(image).tobytes() == drawn.tobytes()
    expected = draw_boxes(Image.new("RGB", (60, 40)), BOXES, (30, 20), CAPTIONS, [0.9, 0.5, 0.25])
    assert drawn.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("named", "given", "message"),
    [
        ("x.jpg", "x.jpg", r"^x\.jpg: no such file$"),
        ("x.jpg", None, r"^x\.jpg: no such file$"),
        *((name, None, r"^draw needs the image, because this result does not name its file: draw\(image")
          for name in (None, "<image>")),
        (None, np.zeros((60, 40, 3), np.uint8), "^draw: the image is 40 x 60, but the result is of one of 30 x 20, "),
    ],
)  # fmt: skip
def test_drawing_needs_an_image_that_is_there(named, given, message):
    for draw in (Regions.draw, Regions.show):
        with pytest.raises(ImageError if named == "x.jpg" else UserError, match=message):
            draw(regions(image=named), given)


@pytest.mark.parametrize(("width", "height"), [(1, 1700), (13, 2001), (60, 9000), (3000, 1), (20001, 501)])
def test_thin_images_are_drawn_on_what_their_reduced_size_rounds_to(width: int, height: int):
    regions = Regions(width, height, [[0, 0, width, height / 2]], [0.5], ("a strip",))
    factor = 1600 / max(width, height)
    size = max(1, int(width * factor)), max(1, int(height * factor))
    assert regions.draw(Image.new("RGB", size)).size == size


def test_a_notebook_shows_the_drawn_image_while_its_file_is_there(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (60, 40)).save(path)
    made = regions(image=str(path))
    with Image.open(io.BytesIO(made._repr_png_())) as shown:
        assert shown.tobytes() == made.draw().tobytes()
    path.unlink()
    assert made._repr_png_() is None and regions(image=None)._repr_png_() is None


@pytest.mark.parametrize("notebook", [True, False])
def test_show(notebook, monkeypatch):
    shown, pixels = [], Image.new("RGB", (60, 40))
    monkeypatch.setattr(Image.Image, "show", lambda image: shown.append(("viewer", image.tobytes())))
    display = types.SimpleNamespace(display=lambda image: shown.append(("notebook", image.tobytes())))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=display))
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", types.SimpleNamespace())
    else:
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    regions().show(pixels)
    assert shown == [("notebook" if notebook else "viewer", regions().draw(pixels).tobytes())]


def test_pandas_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
    table = regions().to_pandas()
    assert list(table) == ["image", "width", "height", "x1", "y1", "x2", "y2", "score", "caption"]
    assert np.stack([table[name] for name in ("x1", "y1", "x2", "y2")], axis=1).tolist() == BOXES
    assert table["image"] == ["a.jpg"] * 3 and table["caption"] == CAPTIONS and table["score"][1] == 0.5
    assert "similarity" in regions(similarities=[1, 2, 3], scores=None).to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", None)
    refuses("pip install pandas", regions().to_pandas)


@pytest.mark.parametrize(
    ("boxes", "cut"),
    [
        ([], []),
        (np.zeros((0, 4)), []),
        ([[1, 2, 3, 4]], [[1, 2, 3, 4]]),
        ([[-0.75, -1, 31, 20.5]], [[0, 0, 30, 20]]),
        (np.array([[1, 2, 3, 4]], np.int64), [[1, 2, 3, 4]]),
    ],
)
def test_boxes_of_a_user_are_cut_to_the_image(boxes, cut):
    checked = check_boxes(boxes, 30, 20, "a.jpg")
    assert checked.tolist() == cut and checked.dtype == np.float32 and checked.shape == (len(cut), 4)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([1, 2, 3, 4], "a.jpg: boxes need four numbers each, (N, 4); these are (4,)"),
        ([[1, 2, 3]], "a.jpg: boxes need four numbers each, (N, 4); these are (1, 3)"),
        ([[1, 2, 3], [1, 2, 3, 4]], "a.jpg: boxes need four numbers each, x1 y1 x2 y2"),
        ([["a", 2, 3, 4]], "a.jpg: boxes need four numbers each, x1 y1 x2 y2"),
        ([[0, 0, 1, 1], [0, 0, 32, 5]], "a.jpg: box 1 [0.0, 0.0, 32.0, 5.0] is not inside the 30 x 20 image"),
        ([[0.1, 0, 0.5, 0.3], [0, 0, 1, 1]], "a.jpg: boxes are in pixels of the image, not in shares of its sides"),
        ([[5, 5, 5, 9]], "a.jpg: box 0 [5.0, 5.0, 5.0, 9.0] is inside out or empty: give x1 y1 x2 y2"),
        ([[5, 9, 8, 6]], "a.jpg: box 0 [5.0, 9.0, 8.0, 6.0] is inside out or empty: give x1 y1 x2 y2"),
        ([[30, 0, 31, 5]], "a.jpg: box 0 [30.0, 0.0, 31.0, 5.0] is not inside the 30 x 20 image"),
        ([[0, 0, float("nan"), 5]], "a.jpg: box 0 [0.0, 0.0, nan, 5.0] is not inside the 30 x 20 image"),
    ],
)
def test_boxes_of_a_user_that_cannot_be(boxes, message):
    assert refuses("", check_boxes, boxes, 30, 20, "a.jpg") == message


def test_regions_that_are_probable_enough_by_box_and_by_words() -> None:
    regions = Regions(9, 9, [[0, 0, 5, 5]] * 3, [0.9, 0.5, 0.2], ("a", "b", "c"), caption_scores=[0.1, 0.5, 0.9])
    assert regions.at_least(0.2).captions == ("b",), "box and words are both right with .09, .25 and .18"
    assert regions.at_least().captions == ("b",) and regions.at_least(0.26).captions == ()
    assert replace(regions, caption_scores=None).at_least(0.3).captions == ("a", "b")
    assert regions[:0].at_least(0.3).captions == ()
    refuses("its regions have no scores, so a threshold cannot choose", replace(regions, scores=None).at_least, 0.3)
