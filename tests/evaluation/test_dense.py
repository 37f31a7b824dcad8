"""Dense captioning: the metric and its protocols, reports, scores of results on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from stubs import StubMeteor

from saywhere.errors import UserError
from saywhere.evaluation.dense import CLEAN, IOUS, METEORS, DenseCaptioning, box_reliability, score, score_files
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.session import Session
from saywhere.papers.densecap2016.evaluator import ORIGINAL
from saywhere.regions import Regions

A, B, FAR = [0, 0, 10, 10], [50, 50, 60, 60], [80, 0, 90, 10]


def regions(*rows, image=None):
    """Regions of an image of 100 x 100 from rows (box, score, caption)."""
    boxes, scores, captions = zip(*rows, strict=True) if rows else ([], [], [])
    return Regions(100, 100, boxes, scores, captions, image=image)


def exact(pairs):
    return [float(said in references) for said, references in pairs]


def worth(pairs):
    """A caption is its score, whatever the references."""
    return [float(said) for said, _ in pairs]


def evaluate(*images, protocol="clean", scorer=exact):
    metric = DenseCaptioning(protocol)
    for predicted, truths, references in images:
        metric.add(predicted, np.array(truths, np.float32).reshape(-1, 4), references)
    return metric.result(scorer)


def side(iou):
    """A box in ``A``, 10 pixels wide, that overlaps it by ``iou``."""
    return [0, 0, 10, 10 * iou]


def test_two_truths_three_detections():
    """0.9: A with its phrase; 0.8: B by 0.6 with a wrong phrase; 0.7: nothing."""
    predicted = regions((A, 0.9, "a car"), ([50, 50, 60, 56], 0.8, "a dog"), (FAR, 0.7, "a cat"))
    result = evaluate((predicted, [A, B], [["a car"], ["a bus"]]))
    half = 51 / 101  # precision 1 at the recalls from 0 to 0.50
    assert result.detection_ap == pytest.approx(
        {"iou_0.3": 1, "iou_0.4": 1, "iou_0.5": 1, "iou_0.6": 1, "iou_0.7": half}
    )
    assert result.ap == pytest.approx({f"iou_{t}/meteor_{m}": half for t in IOUS for m in METEORS})
    assert result.map == pytest.approx(half)
    assert result.detection_map == pytest.approx((4 + half) / 5)
    assert result.language_meteor == pytest.approx(1 / 3)
    assert (result.protocol, result.images, result.detections, result.truths) == ("clean", 1, 3, 2)


@pytest.mark.parametrize("hit", range(101))
def test_101_recalls_reached_exactly(hit):
    hits = np.arange(100) < hit
    assert CLEAN.average_precision(hits, 100) == pytest.approx((hit + 1) / 101 if hit else 0)
    if hit == 6:
        assert ORIGINAL.average_precision(hits, 100) == pytest.approx(0.06)
        assert replace(ORIGINAL, precision="float").average_precision(hits, 100) == pytest.approx(0.07)


def test_a_detection_below_the_threshold_takes_no_truth():
    predicted = regions((side(0.2), 0.9, "a car"), (A, 0.8, "a car"))
    result = evaluate((predicted, [A], [["a car"]]))
    assert set(result.ap.values()) == set(result.detection_ap.values()) == {0.5}
    assert evaluate((predicted, [A], [["a car"]]), protocol="original").detection_map == 0


def test_truths_are_claimed_anew_at_each_meteor():
    predicted = regions((A, 0.9, "0.1"), (A, 0.8, "0.2"), (A, 0.7, "0.3"))
    result = evaluate((predicted, [A], [["a car"]]), scorer=worth)
    expected = {
        0: 1, 0.05: 1, 0.1: 1 / 2, 0.15: 1 / 2, 0.2: 1 / 3, 0.25: 1 / 3,
    }  # METEOR is above a threshold, not at it  # fmt: skip
    assert result.ap == pytest.approx({f"iou_{t}/meteor_{m}": expected[m] for t in IOUS for m in METEORS})
    assert result.detection_map == 1
    assert result.language_meteor == pytest.approx(0.2)
    assert {v for k, v in evaluate((predicted, [A], [["a"]]), protocol="original", scorer=worth).ap.items()} == {0, 1}


def test_of_two_equal_overlaps_the_first_truth_is_taken():
    matches = CLEAN.match(np.array([[0.0, 0, 10, 10]]), np.ones(1), np.array([[0.0, 0, 10, 5], [0, 5, 10, 10]]))
    assert matches.truth.tolist() == [0] and matches.overlap.tolist() == [0.5]


def test_an_unmatched_detection_takes_no_truth():
    predicted = regions((FAR, 0.9, "a cat"), (A, 0.8, "a car"))
    assert evaluate((predicted, [A], [["a car"]])).map == 0.5
    assert evaluate((predicted, [A], [["a car"]]), protocol="original").map == 0
    assert evaluate((predicted, [B, A], [["a bus"], ["a car"]]), protocol="original").map == 0
    assert evaluate((predicted, [A, B], [["a car"], ["a bus"]]), protocol="original").map == pytest.approx(0.25)


def test_boxes_are_continuous():
    small = [0, 0, 2, 2]
    predicted = regions(([0, 0, 2, 1], 0.9, "a car"))
    assert evaluate((predicted, [small], [["a car"]])).detection_ap["iou_0.6"] == 0  # 2 / 4
    assert evaluate((predicted, [small], [["a car"]]), protocol="original").detection_ap["iou_0.6"] == 1  # 6 / 9


def test_truths_are_merged():
    """Two boxes at IoU 0.7 are one: their mean, 8.5 high, and either phrase counts; one at less stays alone."""
    mean = [0, 0, 10, 8.5]
    for said in ("a car", "a bus"):
        result = evaluate((regions((mean, 0.9, said)), [A, side(0.7)], [["a car"], ["a bus"]]))
        assert (result.truths, result.map) == (1, 1)
    assert evaluate((regions((mean, 0.9, "a car")), [A, side(0.69)], [["a car"], ["a bus"]])).truths == 2
    merged, groups = CLEAN.merge(np.array([A, side(0.7)], dtype=float))
    assert merged.tolist() == [mean] and groups == [[0, 1]]


def test_a_box_with_two_phrases_counts_twice_as_two_boxes_would():
    predicted = regions(([0, 0, 10, 8], 0.9, "b"))
    for protocol in ("clean", "original"):
        joined = evaluate((predicted, [A, side(0.7)], [["a", "b"], ["c"]]), protocol=protocol)
        assert joined == evaluate((predicted, [A, A, side(0.7)], [["a"], ["b"], ["c"]]), protocol=protocol)
        assert joined.truths == 1


def test_256_equal_truths_vanish_in_the_program():
    def truths(count):
        return (regions((A, 0.9, "a car")), [A] * count, [["a car"]] * count)

    assert [evaluate(truths(n), protocol="original").truths for n in (255, 256, 257)] == [1, 0, 1]
    assert evaluate(truths(256), protocol="original").map == 0
    assert evaluate(truths(256)).map == 1


@pytest.mark.parametrize("protocol", ["clean", "original"])
def test_nothing_at_all(protocol):
    empty = evaluate(protocol=protocol)
    assert (empty.images, empty.map, empty.detection_map, empty.language_meteor) == (0, 0, 0, 0)
    result = evaluate((regions(), [], []), protocol=protocol)
    assert (result.images, result.detections, result.truths, result.map) == (1, 0, 0, 0)
    assert evaluate((regions(), [A], [["a car"]]), protocol=protocol).detection_map == 0
    nothing_there = evaluate((regions((A, 0.9, "a car")), [], []), protocol=protocol)
    assert (nothing_there.map, nothing_there.language_meteor) == (0, 0)


@pytest.mark.parametrize("protocol", ["clean", "original"])
def test_images_without_truth_hold_false_detections(protocol):
    hit, bare = (regions((A, 0.8, "a car")), [A], [["a car"]]), (regions((B, 0.9, "a bus")), [], [])
    result = evaluate(hit, bare, protocol=protocol)
    assert result.map == result.detection_map == 0.5
    assert result.language_meteor == 1  # no phrase to hold "a bus" against
    assert (result.images, result.detections, result.truths) == (2, 2, 1)
    assert evaluate(hit, (regions(), [], []), protocol=protocol).map == 1


def test_language_meteor_knows_no_boxes():
    """Each caption is held against the bag of its own image."""
    first = (regions((FAR, 0.9, "a bus"), (FAR, 0.1, "grass")), [A, B], [["a car"], ["a bus", "a van"]])
    second = (regions((FAR, 0.9, "a bus")), [A], [["grass"]])
    assert evaluate(first, second).language_meteor == pytest.approx(1 / 3)


def test_the_scorer_is_asked_once_for_each_pair_that_matters(monkeypatch):
    monkeypatch.setattr("saywhere.evaluation.dense.CHUNK", 2)
    asked = []

    def scorer(pairs):
        asked.append(list(pairs))
        return exact(pairs)

    predicted = regions((A, 0.9, "a car"), (A, 0.8, "a car"), (FAR, 0.7, "a car"), (B, 0.6, "a"), (A, 0.5, "b"))
    metric = DenseCaptioning()
    metric.add(predicted, [A, B], [["x", "y"], ["y"]])
    assert metric.result(scorer).language_meteor == 0
    bag = ("x", "y")
    assert [len(pairs) for pairs in asked] == [2, 1, 2, 1]
    assert sorted(chain(*asked[:2])) == sorted([("a car", bag), ("a", ("y",)), ("b", bag)])
    assert sorted(chain(*asked[2:])) == sorted([("a car", bag), ("a", bag), ("b", bag)])


def test_the_original_asks_only_for_detections_that_hold_a_truth():
    asked = []
    metric = DenseCaptioning("original")
    predicted = regions((A, 0.9, "first"), (A, 0.8, "second"), ([9, 9, 20, 20], 0.7, "off"), (FAR, 0.6, "blind"))
    metric.add(predicted, [A], [["x"]])
    metric.result(lambda pairs: asked.append(pairs) or exact(pairs))
    assert asked[0] == [("first", ("x",))] and len(asked) == 2  # and then the captions, whatever their boxes


@pytest.mark.parametrize("given", [[], [0.5, 0.5], [math.nan], [math.inf]])
def test_a_scorer_that_fails_is_seen(given):
    with pytest.raises(ValueError, match="the scorer returned"):
        evaluate((regions((A, 0.9, "a car")), [A], [["a car"]]), scorer=lambda pairs: given)


def test_what_cannot_be_scored_is_refused():
    refuses("no protocol 'lua'; there are clean and original", DenseCaptioning, "lua")
    metric, boxes = DenseCaptioning(), [A]
    for missing, bare in (
        ("scores", Regions(100, 100, boxes, captions=("a car",), image="cat.jpg")),
        ("captions", Regions(100, 100, boxes, [1.0], image="cat.jpg")),
    ):
        refuses(rf"cat\.jpg: predicted regions without {missing}", metric.add, bare, boxes, [["a car"]])
    with pytest.raises(ValueError, match="not a probability"):
        regions((A, math.nan, "a car"))
    good = {"boxes": [A], "scores": [3.0], "captions": ["a"], "truth_boxes": [A], "references": [["a"]]}
    for wrong, message in (
        ({"scores": [math.nan]}, "p: scores with a number that is not finite"),
        ({"boxes": [[0, 0, math.inf, 1]]}, "p: boxes with a number"),
        ({"truth_boxes": [[0, 0, math.nan, 1]]}, "p: true boxes with a number"),
        ({"scores": [1.0, 2.0]}, "p: 1 box, 2 scores, 1 caption"),
        ({"captions": []}, "p: 1 box, 1 score, 0 captions"),
        ({"references": []}, "p: 1 true boxes, 0 sets of phrases"),
        ({"references": [[]]}, "p: every true box needs a list of one phrase"),
        ({"references": ["a"]}, "p: every true box needs a list of one phrase"),
        ({"boxes": A}, r"p: boxes of shape \(4,\); \(N, 4\) needed"),
        ({"scores": [[1.0]]}, r"p: scores of shape \(1, 1\); \(N,\) needed"),
        ({"scores": 1.0}, r"p: scores of shape \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.add_arrays(**good | wrong, name="p")
    assert metric.result(exact).images == 0  # what was refused left nothing behind
    metric.add_arrays(**good)
    assert metric.result(exact).map == 1


def test_scores_give_only_the_order():
    def result(scores, protocol):
        metric = DenseCaptioning(protocol)
        metric.add_arrays([A, FAR, B], scores, ["a", "b", "c"], [A, B], [["a"], ["c"]])
        return metric.result(exact)

    for protocol in ("clean", "original"):
        assert result([-20.5, -30, 40], protocol) == result([0.5, 0.1, 0.9], protocol) != result([0, 2, 1], protocol)


def invented(random, images=10):
    """Images of small and large boxes on a coarse grid, with equal scores and equal boxes among them."""
    for _ in range(images):
        counts = random.integers(0, 5), random.integers(0, 14)
        truth, boxes = ([[x, y, x + w, y + h] for x, y, w, h in random.integers(2, 7, (n, 4)).tolist()] for n in counts)
        captions = [f"{value:.2f}" for value in random.integers(1, 8, counts[1]) / 20]
        yield boxes, random.integers(0, 5, counts[1]) / 4, captions, truth, [["x"]] * counts[0]


def by_loops(images, iou_min, meteor_min, original):
    """Average precision as one reads the definition, and the program, one detection after the other."""
    extra = 1 if original else 0

    def iou(a, b):
        w, h = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + extra for i in (0, 1))
        sizes = [(box[2] - box[0] + extra) * (box[3] - box[1] + extra) for box in (a, b)]
        return w * h / (sum(sizes) - w * h) if w > 0 and h > 0 else 0

    rows, positives = [], 0
    for boxes, scores, captions, truth, _ in images:
        truths, _ = (ORIGINAL if original else CLEAN).merge(np.array(truth, dtype=float).reshape(-1, 4))
        positives, used = positives + len(truths), set()
        for d in sorted(range(len(boxes)), key=lambda d: -scores[d]):
            best, chosen = 0, -1
            for j, true in enumerate(truths.tolist()):
                if iou(boxes[d], true) > best:
                    best, chosen = iou(boxes[d], true), j
            good = best >= iou_min and float(captions[d]) > meteor_min
            key = chosen % len(truths) if len(truths) else None
            rows.append((-scores[d], good and key not in used))
            if original or good:
                used.add(key)
    hits = [hit for _, hit in sorted(rows, key=lambda row: row[0])]
    curve = [(sum(hits[: i + 1]), i + 1) for i in range(len(hits))]
    steps = list(accumulate([0.01] * 99, initial=0.0)) if original else range(101)
    total = 0
    for t in steps:
        reached = [tp / n for tp, n in curve if (tp / positives >= t if original else 100 * tp >= t * positives)]
        total += max(reached, default=0)
    return total / len(steps)


@pytest.mark.parametrize("protocol", ["clean", "original"])
@pytest.mark.parametrize("seed", range(8))
def test_equal_to_plain_loops(seed, protocol):
    images = list(invented(np.random.default_rng(seed)))
    metric = DenseCaptioning(protocol)
    for image in images:
        metric.add_arrays(*image)
    result = metric.result(worth)
    for iou in IOUS:
        assert result.detection_ap[f"iou_{iou}"] == pytest.approx(by_loops(images, iou, -1, protocol == "original"))
        for meteor in METEORS:
            expected = by_loops(images, iou, meteor, protocol == "original")
            assert result.ap[f"iou_{iou}/meteor_{meteor}"] == pytest.approx(expected)
    assert len(set(result.ap.values())) > 6


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_files(folder: Path, predictions: list[dict], truth: list[dict], ordered: bool = True) -> tuple:
    said = RegionLines(lines(folder / "p.jsonl", *predictions), ("scores", "captions"), ordered=ordered)
    return said, RegionLines(lines(folder / "t.jsonl", *truth), several=True, ordered=ordered)


CAT, DOG = [0, 0, 10, 10], [20, 20, 40, 40]


def test_equal_boxes_of_several_lines_are_references(tmp_path):
    predictions = [{"image": "a.jpg", "boxes": [CAT], "scores": [0.5], "captions": ["a kitten"]}]
    one = [{"image": "a.jpg", "boxes": [CAT, CAT], "captions": ["a cat", "a kitten"]}]
    two = [{"image": "a.jpg", "boxes": [CAT], "captions": [text]} for text in ("a cat", "a kitten")]
    for truth in (one, two):
        result = score(*read_files(tmp_path, predictions, truth), ["a.jpg"], "clean", StubMeteor().score)
        assert (result.truths, result.map, result.language_meteor) == (1, 1, 1)


def test_original_takes_boxes_as_they_stand(tmp_path):
    """Corners name the first and the last pixel: x2 < x1 by one is an empty box, and one pixel is 1 x 1."""
    predictions = [
        {"image": "a.jpg", "boxes": [[5, 5, 5, 5], [-9, 3, -10, 3]], "scores": [2.5, 1], "captions": ["x", "y"]}
    ]
    truth = [{"image": "a.jpg", "boxes": [[5, 5, 5, 6]], "captions": ["x"]}]
    found, true = read_files(tmp_path, predictions, truth, ordered=False)
    result = score(found, true, ["a.jpg"], "original", StubMeteor().score)
    # 1 of 2 pixels: IoU 0.5 reaches 0.3, 0.4 and 0.5; 0.6 and 0.7 not.
    assert list(result.detection_ap.values()) == [1, 1, 1, 0, 0]
    refuses(r"p\.jsonl line 1: the box \[-9, 3, -10, 3\] is inside out", read_files, tmp_path, predictions, truth)


def test_different_sizes_are_refused(tmp_path):
    size = {"width": 50, "height": 50}
    predictions = [{"image": "a.jpg", **size, "boxes": [CAT], "scores": [1], "captions": ["x"]}]
    truth = [{"image": "a.jpg", "width": 100, "height": 50, "boxes": [CAT], "captions": ["x"]}]
    with pytest.raises(UserError, match=r"a\.jpg is 50 x 50 in .*p\.jsonl but 100 x 50 in .*t\.jsonl"):
        score(*read_files(tmp_path, predictions, truth), ["a.jpg"], "clean", StubMeteor().score)


@pytest.fixture
def stub_meteor(monkeypatch):
    monkeypatch.setattr("saywhere.evaluation.meteor.Meteor", StubMeteor)


def test_the_truth_may_be_training_data_of_one_split(tmp_path, stub_meteor):
    said = {"image": "a.jpg", "boxes": [DOG], "scores": [1], "captions": ["a dog"]}
    region = {"box": DOG, "phrases": ["a brown dog", "a dog"]}
    rows = [
        {"image": "a.jpg", "regions": [region, {"box": CAT, "phrase": "a cat"}], "split": "val"},
        {"image": "b.jpg", "regions": [], "split": "train"},
    ]
    found, truth = lines(tmp_path / "p.jsonl", said), lines(tmp_path / "t.jsonl", *rows)
    session = Session(truth, tmp_path / "out", split="val")
    result = score_files(found, session)
    assert (result.images, result.truths, session.notes) == (1, 2, [])
    assert result.map == pytest.approx(51 / 101)
    original = Session(truth, tmp_path / "original", split="val")
    score_files(found, original, protocol="original")
    assert original.notes == []
    region["box"] = [*DOG[:3], DOG[3] + 0.5]
    lines(tmp_path / "t.jsonl", *rows)
    score_files(found, original, protocol="original")
    assert len(original.notes) == 1 and "these have fractions of pixels" in original.notes[0]
    with pytest.raises(UserError, match=r"t\.jsonl: its images are of train, val: name one with --split"):
        score_files(found, Session(truth, tmp_path / "two"))
    with pytest.raises(UserError, match=r"has no image of the split dev: its images are of train, val"):
        score_files(found, Session(truth, tmp_path / "two", split="dev"))


def test_files_without_a_common_image_are_refused(tmp_path, stub_meteor):
    found = lines(tmp_path / "p.jsonl", {"image": "x/a.jpg", "boxes": [], "captions": []})
    session = Session(lines(tmp_path / "t.jsonl", {"image": "a.jpg", "boxes": [], "captions": []}))
    refuses(r"p\.jsonl: has none of .*'s 1 image; .*names 'x/a\.jpg', the truth 'a\.jpg'", score_files, found, session)


# Calibration

BOXES = np.array([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [50, 50, 60, 60]])


def test_a_box_matches_a_true_one_at_an_iou_of_a_half_whoever_else_does():
    first = BOXES, np.array([0.75, 0.75, 0.25, 0.25]), np.array([[0.0, 0, 10, 10], [50, 50, 90, 90]])
    found = box_reliability([first, (BOXES[:1], np.array([0.75]), np.empty((0, 4))), (np.empty((0, 4)), None, BOXES)])
    assert found and found.boxes == 5
    assert [(one.count, one.score, one.matched) for one in found.bins] == [
        (2, 0.25, 0),
        (3, 0.75, pytest.approx(2 / 3)),
    ]


def test_scores_that_are_no_probabilities_are_not_measured():
    good = BOXES, np.array([0.5, 0.5, 0.5, 0.5]), BOXES
    assert box_reliability([]) is None and box_reliability([good]) is not None
    assert box_reliability([good, (BOXES[:1], np.array([1.5]), BOXES)]) is None
