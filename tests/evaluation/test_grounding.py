"""Grounding of phrases: the metric, presence, the report, and the command."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
from commands import error_of, report, run
from flickr_entities import XML
from photographs import noise
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner

from saywhere.data.flickr import MarkedPhrase, MarkedSentence
from saywhere.evaluation.grounding import area_under_curve, best_regions, judge, measure, measure_presence
from saywhere.models.aligner import ImageVectors

BOX = np.array([0, 0, 40, 40], np.float32)
FOUND = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [20, 20, 30, 30]], np.float32)
TRUTH = np.array([[[0, 0, 10, 10]], [[0, 0, 10, 5]], [[0, 0, 10, 4.9]], [[0, 0, 10, 10]]], np.float32)


def test_right_is_an_iou_of_at_least_a_half_and_pointing_goes_by_the_centre():
    right, inside = judge(FOUND, TRUTH)
    assert right.tolist() == [True, True, False, False]
    assert inside.tolist() == [True, True, False, False]


def test_any_of_a_phrases_boxes_is_right():
    """The centre may be in another box than the one that overlaps most."""
    around, large = [4, 4, 6, 6], [0, 0, 10, 4.9]
    right, inside = judge(FOUND[:3], [np.array(boxes, np.float32) for boxes in ([around, large], [large], [around])])
    assert right.tolist() == [False, False, False] and inside.tolist() == [True, False, True]
    right, _ = judge(FOUND[:1], [np.array([around, large, [0, 0, 10, 9]], np.float32)])
    assert right.tolist() == [True]


def test_shares_in_all_and_by_type():
    result = measure(FOUND, TRUTH, [("people",), ("people", "clothing"), ("clothing",), ("people",)])
    assert (result.accuracy, result.pointing, result.phrases) == (0.5, 0.5, 4)
    assert {name: (s.phrases, s.accuracy, s.pointing) for name, s in result.by_type.items()} == {
        "people": (3, pytest.approx(2 / 3), pytest.approx(2 / 3)),
        "clothing": (2, 0.5, 0.5),
    }
    assert list(result.by_type) == ["people", "clothing"], "the most frequent first"
    nothing = measure([], [], [])
    assert (nothing.phrases, nothing.accuracy, nothing.by_type) == (0, 0, {})


def test_the_area_is_the_share_of_pairs_in_order():
    assert area_under_curve(np.array([0.9, 0.4]), np.array([0.1, 0.4, 0.5])) == pytest.approx((3 + 1.5) / 6)
    assert area_under_curve(np.zeros(0), np.ones(3)) is None


def test_what_is_found_right_and_what_is_refused():
    presence, scores = np.array([0.9, 0.6, 0.2, 0.1, 0.5]), np.array([0.8, 0.1, 0.2, 0.1, 0.4])
    there, right = np.arange(5) < 3, np.array([True, False, True, False, False])
    result = measure_presence(presence, scores, there, right, 0.5)
    assert (result.found, result.refused, result.accuracy) == pytest.approx((2 / 3, 1 / 2, 1 / 3))
    assert result.calibration_error == pytest.approx((0.1 + 0.4 + 0.8 + 0.1 + 0.5) / 5)  # each in a bin of its own
    assert (result.phrases, result.others) == (3, 2) and result.auc == pytest.approx(5 / 6)
    assert result.boxes.boxes == 3 and result.box_auc == 1
    assert result.boxes.ece == pytest.approx((0.2 + 0.1 + 0.4) / 3)  # of the three that are found
    nothing = measure_presence(presence, scores, there, right, 1.0)
    assert (nothing.boxes, nothing.box_auc, nothing.found) == (None, None, 0)
    alone = measure_presence(presence, scores, np.ones(5, bool), np.ones(5, bool), 0.5)
    assert (alone.auc, alone.refused, alone.box_auc) == (None, None, None)


BOXES = [[0.0, 0, 100, 50], [0, 0, 40, 40], [60, 10, 90, 30]]
SENTENCE = MarkedSentence(
    ("red", "shirt", "green", "grass", "white", "house"),
    tuple(MarkedPhrase(2 * i, 2 * i + 2, str(i), ("other",), box) for i, box in enumerate((BOX, BOX, None))),
)
"""Three phrases, two of them with boxes."""


def found(vectors: np.ndarray, kinds: dict[str, np.ndarray] | None = None, **options) -> list[int]:
    """The regions of an image that are chosen for the phrases of the sentence."""
    kinds = {"red shirt": np.zeros(3, np.float32), "green grass": np.zeros(3, np.float32)} | (kinds or {})
    seen = ImageVectors(100, 50, np.array(BOXES, np.float32), vectors, "a", np.zeros(3, np.float32))
    return best_regions(aligner_model(tiny_aligner(**options)).aligner, seen, SENTENCE, kinds)


def test_the_region_that_fits_the_words_best_is_the_answer():
    sentence = aligner_model(tiny_aligner()).embed_text(" ".join(SENTENCE.words)).vectors
    both = np.stack((sentence[:2].sum(axis=0), sentence[2:4].sum(axis=0)))
    apart = np.linalg.pinv(both) @ np.array([1.0, -1.0])  # product 1 with one phrase, -1 with the other
    assert found(np.stack((0 * apart, apart, -apart)).astype(np.float32)) == [1, 2]


@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_classes_have_a_say_where_the_aligner_places_phrases(row):
    kinds = {"red shirt": np.where(np.arange(3) == row, -1, -9).astype(np.float32)}
    vectors = np.random.default_rng(0).standard_normal((3, 16), np.float32)
    asked, of_no_kind = (found(vectors, kinds, grounding={"similarity_kind_weight": weight}) for weight in (1e4, 0))
    assert asked[0] == row and asked[1] == of_no_kind[1]
    assert of_no_kind == found(vectors)


evaluate = partial(run, "evaluate", "ground")


def test_it_is_measured_beside_its_controls(aligner, flickr, tmp_path):
    evaluate("--model", aligner, "--part", "aligner", "--data", flickr, "--out", tmp_path)
    row = report(tmp_path)
    assert (row["task"], row["phrases"], row["part"]) == ("ground", 4, "aligner")
    assert row["by_type"]["people"]["phrases"] == 4
    assert set(row["controls"]) == {"whole image", "largest region", "highest prior"}
    assert row["controls"]["whole image"]["pointing"] == 0.0  # its centre is at x = 48, the truth ends at 40
    assert "| largest region | " in (tmp_path / "report.md").read_text()


def test_the_controls_do_not_read(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "whole")
    for path in (root / "Entities/Annotations").iterdir():  # what is asked for fills the image
        path.write_text(XML.replace("<xmax>40", "<xmax>96").replace("<ymax>60", "<ymax>64"))
    for bonus, accuracy in ((99, 1.0), (-99, 0.0)):
        out, change = tmp_path / f"out{bonus}", f"size_bonus={bonus}"
        command = ("--model", aligner, "--data", root, "--set", change)
        evaluate(*command, "--out", out)
        row = report(out)
        assert (row["set"], row["accuracy"]) == ([change], accuracy)
        evaluate(*command, "--out", tmp_path / f"part{bonus}", "--part", "aligner")
        controls = report(tmp_path / f"part{bonus}")["controls"]
        assert controls["whole image"]["accuracy"] == 1.0 and controls["highest prior"]["accuracy"] == accuracy


def test_a_run_goes_on(aligner, flickr, tmp_path):
    arguments = ("--model", aligner, "--part", "aligner", "--data", flickr, "--out", tmp_path / "out")
    evaluate(*arguments)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/regions").iterdir()}
    evaluate(*arguments)
    assert len(times) == 4
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_without_a_part_it_is_measured_as_the_model_answers(aligner, flickr, tmp_path):
    sure = shutil.copytree(aligner, tmp_path / "sure")
    calibrated(phrase=(0, 0, 0, 9), aligner_place=(0, 0, 0)).write(sure)
    result = evaluate("--model", sure, "--data", flickr, "--out", tmp_path)
    row = report(tmp_path)
    assert set(row["controls"]) == {"whole image", "largest region"} and row["phrases"] == 4
    assert row["by_type"]["people"]["phrases"] == 4 and "rare nouns" in row["by_type"]
    assert (row["presence"]["found"], row["presence"]["refused"]) == (1.0, 0.0)
    assert row["presence"]["accuracy"] == row["accuracy"]
    (only,) = row["presence"]["boxes"]["bins"]
    assert (only["count"], only["score"]) == (8, pytest.approx(0.5, abs=1e-3))
    assert "found phrases: calibration error" in result.output and "phrases found or not" in result.output
    assert "## presence boxes bins" in (tmp_path / "report.md").read_text()


def test_a_phrase_of_the_data_that_names_nothing_is_asked_like_the_others(aligner, tmp_path):
    noise(64, 48, 1).save(tmp_path / "image.png")
    regions = [{"box": [0, 0, 20, 20], "phrase": "a"}, {"box": [10, 10, 40, 40], "phrase": "a dog"}]
    (tmp_path / "data.jsonl").write_text(json.dumps({"image": "image.png", "split": "dev", "regions": regions}))
    result = evaluate("--model", aligner, "--data", tmp_path / "data.jsonl", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert report(tmp_path)["phrases"] == 2


def test_a_figure_of_nothing_is_a_hyphen(aligner, tmp_path):
    noise(64, 48, 1).save(tmp_path / "image.png")
    regions = [{"box": [0, 0, 20, 20], "phrase": "a dog"}]  # of one image, so there are no phrases of others
    (tmp_path / "data.jsonl").write_text(json.dumps({"image": "image.png", "split": "train", "regions": regions}))
    sure = shutil.copytree(aligner, tmp_path / "sure")
    calibrated(phrase=(0, 0, 0, 9), aligner_place=(0, 0, 0)).write(sure)
    asked = ("--model", sure, "--data", tmp_path / "data.jsonl", "--out", tmp_path / "out")
    told = f"error: {tmp_path / 'data.jsonl'}: no split 'dev'; it has train"
    assert error_of(evaluate(*asked, code=2)) == f"{told}; give --split train\n"
    assert error_of(evaluate(*asked, "--split", "dev", code=2)) == f"{told}\n"
    result = evaluate(*asked, "--split", "train")
    assert "refused - (0); AUC -, calibration error " in result.output and result.output.count("AUC -") == 2
    presence = report(tmp_path / "out")["presence"]
    assert [presence[name] for name in ("refused", "auc", "box_auc")] == [None] * 3
    assert "auc" not in (tmp_path / "out" / "report.md").read_text()


def test_the_images_may_be_limited(aligner, flickr, tmp_path):
    evaluate("--model", aligner, "--data", flickr, "--out", tmp_path, "--limit", 2)
    assert report(tmp_path)["images"] == 2
