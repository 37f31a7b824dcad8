"""Dense captioning from files of lines to scores, without Java; values by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from saywhere.errors import UserError
from saywhere.evaluation.dense import CalibrationMeter, Ranked, score, score_files
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.session import Session

CAT, DOG = [0, 0, 10, 10], [20, 20, 40, 40]


def equal_words(pairs):
    """In place of METEOR: 1 for the very words, else 0."""
    return [float(caption in references) for caption, references in pairs]


class StubMeteor:
    """:func:`equal_words` in the form of METEOR."""

    version = "stub"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def score(self, pairs):
        return equal_words(pairs)


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files(folder: Path, predictions: list[dict], truth: list[dict], ordered: bool = True) -> tuple:
    found = RegionLines(lines(folder / "p.jsonl", *predictions), ("scores", "captions"), ordered=ordered)
    return found, RegionLines(lines(folder / "t.jsonl", *truth), several=True, ordered=ordered)


def test_scores_by_hand(tmp_path):
    """Two truths; the best detection finds the cat and names it, the next finds the dog and misnames it."""
    predictions = [{"image": "a.jpg", "boxes": [DOG, CAT], "scores": [-3, 7], "captions": ["a cow", "a cat"]}]
    truth = [{"image": "a.jpg", "boxes": [CAT, DOG], "captions": ["a cat", "a dog"]}]
    result, ranking = score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)
    # Precision is 1 up to a recall of 1/2, that is at 51 of 101 recalls, and 0 beyond.
    assert result.ap["iou_0.3/meteor_0"] == result.ap["iou_0.7/meteor_0.25"] == pytest.approx(51 / 101)
    assert (result.map, result.detection_map) == (pytest.approx(51 / 101), 1)
    assert result.language_meteor == pytest.approx(1 / 2)
    assert ranking == [Ranked("a.jpg", pytest.approx(51 / 101), 1)]


def test_equal_boxes_of_several_lines_are_references(tmp_path):
    predictions = [{"image": "a.jpg", "boxes": [CAT], "scores": [0.5], "captions": ["a kitten"]}]
    one = [{"image": "a.jpg", "boxes": [CAT, CAT], "captions": ["a cat", "a kitten"]}]
    two = [{"image": "a.jpg", "boxes": [CAT], "captions": [text]} for text in ("a cat", "a kitten")]
    for truth in (one, two):
        result, _ = score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)
        assert (result.truths, result.map, result.language_meteor) == (1, 1, 1)


def test_images_without_a_prediction_lower_the_recall_and_stand_last(tmp_path):
    predictions = [{"image": "./b.jpg", "boxes": [CAT], "scores": [0.5], "captions": ["a cat"]}]
    truth = [{"image": name, "boxes": [CAT], "captions": ["a cat"]} for name in ("a.jpg", "b.jpg")]
    truth.append({"image": "empty.jpg", "boxes": [], "captions": []})
    counted = []
    result, ranking = score(
        *files(tmp_path, predictions, truth),
        ["a.jpg", "b.jpg", "empty.jpg"],
        "clean",
        equal_words,
        lambda: counted.append(1),
    )
    assert (result.images, result.truths, len(counted)) == (3, 2, 3)
    assert result.detection_map == pytest.approx(51 / 101)
    assert [(one.name, one.map) for one in ranking] == [("b.jpg", 1), ("a.jpg", 0)], "one without a truth has no rank"


def test_original_takes_boxes_as_they_stand(tmp_path):
    """Corners name the first and the last pixel: x2 < x1 by one is an empty box, and one pixel is 1 x 1."""
    predictions = [
        {"image": "a.jpg", "boxes": [[5, 5, 5, 5], [-9, 3, -10, 3]], "scores": [2.5, 1], "captions": ["x", "y"]}
    ]
    truth = [{"image": "a.jpg", "boxes": [[5, 5, 5, 6]], "captions": ["x"]}]
    found, true = files(tmp_path, predictions, truth, ordered=False)
    result, _ = score(found, true, ["a.jpg"], "original", equal_words)
    # 1 of 2 pixels: IoU 0.5 reaches 0.3, 0.4 and 0.5; 0.6 and 0.7 not.
    assert list(result.detection_ap.values()) == [1, 1, 1, 0, 0]
    with pytest.raises(UserError, match=r"p\.jsonl line 1: the box \[-9, 3, -10, 3\] is inside out"):
        files(tmp_path, predictions, truth)


def test_different_sizes_are_refused(tmp_path):
    size = {"width": 50, "height": 50}
    predictions = [{"image": "a.jpg", **size, "boxes": [CAT], "scores": [1], "captions": ["x"]}]
    truth = [{"image": "a.jpg", "width": 100, "height": 50, "boxes": [CAT], "captions": ["x"]}]
    with pytest.raises(UserError, match=r"a\.jpg is 50 x 50 in .*p\.jsonl but 100 x 50 in .*t\.jsonl"):
        score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)


def test_the_calibration_meter_is_given_all_boxes(tmp_path):
    predictions = [{"image": "a.jpg", "boxes": [CAT, DOG], "scores": [0.75, 0.25], "captions": ["x", "y"]}]
    meter = CalibrationMeter()
    truth = [{"image": name, "boxes": [CAT], "captions": ["x"]} for name in ("a.jpg", "b.jpg")]
    score(*files(tmp_path, predictions, truth), ["a.jpg", "b.jpg"], "clean", equal_words, calibration=meter)
    found = meter.result()
    assert found and (found.boxes, found.ece, found.brier) == (2, 0.25, 0.0625)


@pytest.fixture
def stub_meteor(monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra evaluate")
    monkeypatch.setattr("saywhere.evaluation.meteor.Meteor", StubMeteor)


def test_files_of_any_program_are_scored_and_reported(tmp_path, stub_meteor):
    predictions = [
        {"image": "a.jpg", "boxes": [DOG, CAT], "scores": [-3, 7], "captions": ["a cow", "a cat"]},
        {"image": "c.jpg", "boxes": [], "captions": []},
    ]
    truth = [{"image": name, "boxes": [CAT, DOG], "captions": ["a cat", "a dog"]} for name in ("a.jpg", "b.jpg")]
    found = lines(tmp_path / "p.jsonl", *predictions)
    session = Session(lines(tmp_path / "t.jsonl", *truth), tmp_path / "out", command="saywhere x")
    result = score_files(found, session)
    assert (result.images, result.detections, result.truths) == (2, 2, 4)
    assert result.map == pytest.approx(26 / 101), "precision 1 up to a recall of 1/4"
    row = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (row["map"], row["data"], row["model"], row["split"]) == (result.map, str(session.data), None, None)
    assert (row["without_prediction"], row["without_truth"], row["predictions"]) == (1, 1, str(found))
    assert row["calibration"] is None, "scores are no probabilities"
    assert session.notes == [
        f"1 images have no line in {found}: no region predicted",
        f"1 images in {found} have no truth, and do not count",
    ]
    names = {"report.json", "report.md", "ap.png", "examples.html", "examples"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    first = score_files(found, Session(session.data, tmp_path / "one", split="val", limit=1), "original")
    assert (first.images, first.protocol) == (1, "original")
    assert json.loads((tmp_path / "one" / "report.json").read_text())["split"] == "val"


def test_files_without_a_common_image_are_refused(tmp_path, stub_meteor):
    found = lines(tmp_path / "p.jsonl", {"image": "x/a.jpg", "boxes": [], "captions": []})
    session = Session(lines(tmp_path / "t.jsonl", {"image": "a.jpg", "boxes": [], "captions": []}))
    with pytest.raises(
        UserError, match=r"p\.jsonl: has none of the 1 images of .*names 'x/a\.jpg', the truth 'a\.jpg'"
    ):
        score_files(found, session)


# Calibration

BOXES = np.array([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [50, 50, 60, 60]])


def test_a_box_matches_a_true_one_at_an_iou_of_a_half_whoever_else_does():
    meter = CalibrationMeter()
    meter.add(BOXES, np.array([0.75, 0.75, 0.25, 0.25]), np.array([[0.0, 0, 10, 10], [50, 50, 90, 90]]))
    meter.add(BOXES[:1], np.array([0.75]), np.empty((0, 4)))
    meter.add(np.empty((0, 4)), None, BOXES)
    found = meter.result()
    assert found and found.boxes == 5
    assert [(one.count, one.score, one.matched) for one in found.bins] == [
        (2, 0.25, 0),
        (3, 0.75, pytest.approx(2 / 3)),
    ]


def test_scores_that_are_no_probabilities_are_not_measured():
    meter = CalibrationMeter()
    assert meter.result() is None
    meter.add(BOXES, np.array([0.5, 0.5, 0.5, 0.5]), BOXES)
    assert meter.result() is not None
    meter.add(BOXES[:1], np.array([1.5]), BOXES)
    meter.add(BOXES[:1], np.array([0.5]), BOXES)
    assert meter.result() is None
