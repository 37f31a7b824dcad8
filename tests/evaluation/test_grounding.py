"""Grounding of phrases: the metric, presence, the report, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from flickr_entities import XML, write_flickr
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.boxes import iou
from saywhere.data.flickr import MarkedImage, MarkedPhrase, MarkedSentence
from saywhere.engines.torch import TorchEngine
from saywhere.evaluation.grounding import (
    PRIOR,
    AlignerView,
    DetectorView,
    GroundingResult,
    TypeScore,
    area_under_curve,
    control,
    ground,
    judge,
    measure,
    measure_presence,
    pair_ious,
    write_grounding_report,
)
from saywhere.models.aligner import ImageVectors
from saywhere.models.phrase_scores import score_regions
from saywhere.networks import checkpoint
from saywhere.regions import Regions

FOUND = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [20, 20, 30, 30]], np.float32)
TRUTH = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [0, 0, 10, 10]], np.float32)


def test_right_is_an_iou_of_at_least_a_half_and_pointing_goes_by_the_centre():
    right, inside = judge(FOUND, TRUTH)
    assert right.tolist() == [True, True, False, False]
    assert inside.tolist() == [True, True, False, False]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
def test_ious_of_pairs(count):
    random = np.random.default_rng(count)
    low = random.uniform(0, 50, (2, count, 2))
    a, b = np.concatenate((low, low + random.uniform(0, 50, (2, count, 2))), axis=2).astype(np.float32)
    assert pair_ious(a, b).tolist() == np.diagonal(iou(a, b)).tolist()
    with pytest.raises(ValueError, match=f"{count} boxes cannot be paired with {count + 1}"):
        pair_ious(a, np.zeros((count + 1, 4), np.float32))


def test_shares_in_all_and_by_type():
    result = measure(FOUND, TRUTH, [("people",), ("people", "clothing"), ("clothing",), ("people",)])
    assert (result.accuracy, result.pointing, result.phrases) == (0.5, 0.5, 4)
    assert {name: (s.phrases, s.accuracy, s.pointing) for name, s in result.by_type.items()} == {
        "people": (3, pytest.approx(2 / 3), pytest.approx(2 / 3)),
        "clothing": (2, 0.5, 0.5),
    }
    assert list(result.by_type) == ["people", "clothing"], "the most frequent first"
    assert result.to_dict()["by_type"]["clothing"] == {"phrases": 2, "accuracy": 0.5, "pointing": 0.5}
    nothing = measure([], [], [])
    assert (nothing.phrases, nothing.accuracy, nothing.by_type) == (0, 0, {})


def test_pointing_may_be_right_where_the_box_is_not():
    result = measure([[4, 4, 6, 6]], [[0, 0, 10, 10]], [()])
    assert (result.accuracy, result.pointing) == (0, 1)


def test_the_area_is_the_share_of_pairs_in_order():
    assert area_under_curve(np.array([0.9, 0.4]), np.array([0.1, 0.4, 0.5])) == pytest.approx((3 + 1.5) / 6)
    assert area_under_curve(np.zeros(0), np.ones(3)) == 0.0


def test_what_is_found_right_and_what_is_refused():
    own, others = np.array([0.9, 0.6, 0.2]), np.array([0.1, 0.5])
    result = measure_presence(own, others, np.array([True, False, True]), 0.5)
    assert (result.found, result.refused, result.accuracy) == pytest.approx((2 / 3, 1 / 2, 1 / 3))
    assert result.calibration_error == pytest.approx((0.1 + 0.4 + 0.8 + 0.1 + 0.5) / 5)  # each in a bin of its own
    assert (result.phrases, result.others) == (3, 2) and result.auc == pytest.approx(5 / 6)
    assert result.to_dict()["auc"] == result.auc


RESULT = GroundingResult(0.5, 0.25, 4, {"people": TypeScore(4, 0.5, 0.25)})


def test_the_report_has_the_model_the_types_and_the_controls(tmp_path):
    known = {"model": "m", "skipped": {}, "data_problems": {"missing image": 2, "broken annotation": 1}}
    write_grounding_report(tmp_path, RESULT, {"whole image": GroundingResult(1.0, 0.75, 4)}, known)
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["accuracy"], row["pointing"]) == ("ground", 0.5, 0.25)
    assert row["by_type"] == {"people": {"phrases": 4, "accuracy": 0.5, "pointing": 0.25}}
    assert row["controls"] == {"whole image": {"accuracy": 1.0, "pointing": 0.75, "phrases": 4, "by_type": {}}}
    assert row["data_problems"] == known["data_problems"]
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[4:6] == ["| model | 0.500 | 0.250 | 4 |", "| whole image | 1.000 | 0.750 | 4 |"]
    assert "| model | people | 4 | 0.500 | 0.250 |" in lines
    assert lines[-2:] == ["| model | m |", "| data problems | 2 |"]


BOXES = [[0.0, 0, 100, 50], [0, 0, 40, 40], [60, 10, 90, 30]]
NO_KIND = dict.fromkeys(("red shirt", "green grass", "white house"), np.zeros(1, np.float32))


def image(*truths: tuple[float, ...] | None) -> MarkedImage:
    """An image with a sentence of two words a phrase."""
    phrases = tuple(
        MarkedPhrase(2 * i, 2 * i + 2, str(i), ("other",), None if box is None else np.array(box, np.float32))
        for i, box in enumerate(truths)
    )
    words = ("red", "shirt", "green", "grass", "white", "house")[: 2 * len(truths)]
    return MarkedImage(Path("a.jpg"), 100, 50, (MarkedSentence(words, phrases),))


def view(boxes: list[list[float]], vectors: np.ndarray, kinds=NO_KIND, **options) -> AlignerView:
    aligner = aligner_model(tiny_aligner(**options)).aligner
    logits = np.zeros(len(boxes), np.float32)
    return AlignerView(aligner, ImageVectors(100, 50, np.array(boxes, np.float32), vectors, "a", logits), kinds)


def test_the_region_that_fits_the_words_best_is_the_answer():
    sentence = aligner_model(tiny_aligner()).embed_text("red shirt green grass").vectors
    both = np.stack((sentence[:2].sum(axis=0), sentence[2:4].sum(axis=0)))
    apart = np.linalg.pinv(both) @ np.array([1.0, -1.0])  # product 1 with one phrase, -1 with the other
    seen = view(BOXES, np.stack((0 * apart, apart, -apart)).astype(np.float32))
    marked = image((0.0, 0, 40, 40), (60.0, 10, 90, 30))
    assert ground([marked], [seen]).accuracy == 1.0
    other = image((60.0, 10, 90, 30), (0.0, 0, 40, 40))
    assert ground([other], [seen]).accuracy == 0.0


@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_classes_have_a_say_where_the_aligner_places_phrases(row):
    kinds = {"red shirt": np.where(np.arange(3) == row, -1, -9).astype(np.float32), "green grass": np.zeros(3)}
    vectors = np.random.default_rng(0).standard_normal((3, 16), np.float32)
    (sentence,) = image(tuple(BOXES[0]), tuple(BOXES[0])).sentences
    asked, of_no_kind = (
        view(BOXES, vectors, kinds, grounding={"similarity_kind_weight": weight}).find(sentence, sentence.phrases)
        for weight in (1e4, 0)
    )
    assert asked[0].tolist() == BOXES[row]
    assert asked[1].tolist() == of_no_kind[1].tolist()
    assert of_no_kind.tolist() == view(BOXES, vectors).find(sentence, sentence.phrases).tolist()


def test_phrases_without_a_box_are_not_asked_for():
    seen = view(BOXES, np.random.default_rng(0).standard_normal((3, 16), np.float32))
    assert ground([image(None, (0.0, 0, 40, 40), None)], [seen]).phrases == 1
    assert ground([image(None)], [seen]).phrases == 0


def test_controls_do_not_read():
    seen = view(BOXES, np.zeros((3, 2), np.float32))
    whole, large, small = (image(tuple(box)) for box in BOXES)
    assert [control("whole image", [p], [seen]).accuracy for p in (whole, large, small)] == [1, 0, 0]
    assert [control("largest region", [p], [seen]).accuracy for p in (whole, large, small)] == [0, 1, 0]
    many = [large] * 200
    share = control("random region", many, [seen] * 200).accuracy
    assert 0.35 < share < 0.65 and share == control("random region", many, [seen] * 200).accuracy
    assert any(share != control("random region", many, [seen] * 200, seed=seed).accuracy for seed in (1, 2, 3))
    alone = view(BOXES[:1], np.zeros((1, 2), np.float32))
    assert control("random region", [whole], [alone]).accuracy == 1.0


@pytest.mark.parametrize(("bonus", "expected"), [(1.0, [1, 0, 0]), (-1.0, [0, 0, 1])])
def test_what_is_best_before_reading_is_a_control(bonus, expected):
    whole, large, small = (image(tuple(box)) for box in BOXES)
    seen = view(BOXES, np.random.default_rng(0).standard_normal((3, 16), np.float32), size_bonus=bonus)
    assert [control(PRIOR, [p], [seen]).accuracy for p in (whole, large, small)] == expected
    assert control(PRIOR, [image(None)], [seen]).phrases == 0


def regions(scores: list[float], features: np.ndarray) -> Regions:
    return Regions(100, 50, np.array(BOXES[1:])[: len(scores)], np.array(scores), features=features)


def test_a_dense_captioner_takes_the_region_that_is_there_and_is_called_so():
    network = tiny_model()
    detector = TorchEngine({"densecap": network}).densecap
    features = np.random.default_rng(1).standard_normal((2, network.config.embed_dim), np.float32)
    texts = ["red shirt", "green grass"]
    log_probs = score_regions(detector.decoder, detector.vocabulary, regions([0.5, 0.5], features), texts).log_probs
    for scores in ([0.5, 0.5], [0.9, 0.1], [1e-30, 1.0]):
        seen = DetectorView(detector, regions(scores, features))
        best = (log_probs + np.log(scores)[:, None]).argmax(axis=0).tolist()
        assert ground([image(*(tuple(BOXES[1 + row]) for row in best))], [seen]).accuracy == 1.0
        assert control(PRIOR, [image(tuple(BOXES[1 + scores.index(max(scores))]))], [seen]).accuracy == 1.0
    assert best == [1, 1]
    nothing = DetectorView(detector, regions([], features[:0]))
    for name in (PRIOR, "largest region"):
        assert control(name, [image(tuple(BOXES[0]))], [nothing]).accuracy == 1.0
    assert ground([image(tuple(BOXES[0]), tuple(BOXES[1]))], [nothing]).accuracy == 0.5


CONTROLS = {"whole image", "largest region", "random region", "highest prior"}


@pytest.fixture(scope="module")
def aligner(tmp_path_factory) -> str:
    return str(checkpoint.save(tiny_aligner(), tmp_path_factory.mktemp("aligner")))


@pytest.fixture(scope="module")
def flickr(tmp_path_factory) -> Path:
    return write_flickr(tmp_path_factory.mktemp("flickr8k"))


def evaluate(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", "ground", *map(str, arguments)])


def test_it_is_measured_beside_its_controls(aligner, flickr, tmp_path):
    result = evaluate("--model", aligner, "--part", "aligner", "--data", flickr, "--out", tmp_path, "--regions", 3)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["phrases"], row["regions"], row["part"]) == ("ground", 4, 3, "aligner")
    assert row["by_type"]["people"]["phrases"] == 4
    assert set(row["controls"]) == CONTROLS
    assert row["controls"]["whole image"]["pointing"] == 0.0  # its centre is at x = 48, the truth ends at 40
    assert "largest region" in (tmp_path / "report.md").read_text()


def test_it_is_measured_with_other_options(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "whole")
    for path in (root / "Entities/Annotations").iterdir():  # what is asked for fills the image
        path.write_text(XML.replace("<xmax>40", "<xmax>96").replace("<ymax>60", "<ymax>64"))
    for bonus, accuracy in ((99, 1.0), (-99, 0.0)):
        out, change = tmp_path / f"out{bonus}", f"size_bonus={bonus}"
        result = evaluate("--model", aligner, "--data", root, "--out", out, "--set", change)
        assert result.exit_code == 0, result.output
        row = json.loads((out / "report.json").read_text())
        assert (row["set"], row["accuracy"]) == ([change], accuracy)


def test_a_dense_captioner_grounds_phrases_too(flickr, tmp_path):
    model = checkpoint.save(tiny_model(), tmp_path / "densecap")
    arguments = ("--model", model, "--part", "densecap", "--data", flickr, "--out", tmp_path / "out", "--regions", 3)
    result = evaluate(*arguments)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert (row["task"], row["phrases"], row["images"]) == ("ground", 4, 4)
    assert set(row["controls"]) == CONTROLS
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/regions").iterdir()}
    assert evaluate(*arguments).exit_code == 0 and len(times) == 4
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    wrong = evaluate("--model", captioner, "--data", flickr, "--out", tmp_path / "no")
    assert wrong.exit_code == 2 and "needs a model with the part aligner" in wrong.output
    wrong = evaluate("--model", captioner, "--data", flickr, "--out", tmp_path / "no", "--part", "densecap")
    assert wrong.exit_code == 2 and "needs a model with the part densecap" in wrong.output
    assert not (tmp_path / "no").exists()


def test_without_a_part_it_is_measured_as_the_model_answers(aligner, flickr, tmp_path):
    sure = shutil.copytree(aligner, tmp_path / "sure")
    calibrated(phrase=(0, 0, 0, 9)).write(sure)
    result = evaluate("--model", sure, "--data", flickr, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "report.json").read_text())
    assert set(row["controls"]) == {"whole image", "largest region"} and row["phrases"] == 4
    assert row["by_type"]["people"]["phrases"] == 4 and "rare nouns" in row["by_type"]
    assert (row["presence"]["found"], row["presence"]["refused"]) == (1.0, 0.0)
    assert row["presence"]["accuracy"] == row["accuracy"]
    assert "Found or not" in (tmp_path / "report.md").read_text() and "with the decision" in result.output


def test_the_images_may_be_limited(aligner, flickr, tmp_path):
    evaluate("--model", aligner, "--data", flickr, "--out", tmp_path, "--limit", 2)
    assert json.loads((tmp_path / "report.json").read_text())["images"] == 2
