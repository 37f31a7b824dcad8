from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_aligner import tiny_aligner

from saywhere.data.entities import MarkedPhrase, MarkedPicture, MarkedSentence
from saywhere.evaluation.grounding import judge, measure
from saywhere.evaluation.grounding_report import write_grounding_report
from saywhere.evaluation.grounding_run import bonus_control, control, ground
from saywhere.models.alignment import PictureVectors

FOUND = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [20, 20, 30, 30]])
TRUTH = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [0, 0, 10, 10]])


def test_right_is_an_iou_of_at_least_a_half_and_pointing_goes_by_the_centre():
    right, inside = judge(FOUND, TRUTH)
    assert right.tolist() == [True, True, False, False]
    assert inside.tolist() == [True, True, False, False]


def test_shares_in_all_and_by_type():
    result = measure(FOUND, TRUTH, [("people",), ("people", "clothing"), ("clothing",), ("people",)])
    assert (result.accuracy, result.pointing, result.phrases) == (0.5, 0.5, 4)
    assert {name: (s.phrases, s.accuracy) for name, s in result.by_type.items()} == {
        "people": (3, pytest.approx(2 / 3)),
        "clothing": (2, 0.5),
    }
    assert measure(torch.zeros(0, 4), torch.zeros(0, 4), []).phrases == 0


def picture(*truths: tuple[float, ...] | None) -> MarkedPicture:
    """A picture with a sentence of two words a phrase."""
    phrases = tuple(
        MarkedPhrase(2 * i, 2 * i + 2, str(i), ("other",), None if box is None else torch.tensor(box))
        for i, box in enumerate(truths)
    )
    words = ("red", "shirt", "green", "grass", "white", "house")[: 2 * len(truths)]
    return MarkedPicture(Path("a.jpg"), 100, 50, (MarkedSentence(words, phrases),))


def vectors(boxes: list[list[float]], codes: torch.Tensor) -> PictureVectors:
    return PictureVectors(100, 50, torch.tensor(boxes), codes, "a")


BOXES = [[0.0, 0, 100, 50], [0, 0, 40, 40], [60, 10, 90, 30]]


def test_the_area_that_fits_the_words_best_is_the_answer():
    model = tiny_aligner()
    sentence = model.read(["red shirt green grass"]).vectors[0]
    both = torch.stack((sentence[:2].sum(dim=0), sentence[2:4].sum(dim=0)))
    apart = torch.linalg.pinv(both) @ torch.tensor([1.0, -1.0])  # product 1 with one phrase, -1 with the other
    seen = vectors(BOXES, torch.stack((0 * apart, apart, -apart)))
    marked = picture((0.0, 0, 40, 40), (60.0, 10, 90, 30))
    assert ground(model, [marked], [seen]).accuracy == 1.0
    other = picture((60.0, 10, 90, 30), (0.0, 0, 40, 40))
    assert ground(model, [other], [seen]).accuracy == 0.0


def test_phrases_without_a_box_are_not_asked_for():
    model = tiny_aligner()
    seen = vectors(BOXES, torch.randn(3, model.config.size))
    assert ground(model, [picture(None, (0.0, 0, 40, 40), None)], [seen]).phrases == 1
    assert ground(model, [picture(None)], [seen]).phrases == 0


def test_controls_do_not_read():
    seen = vectors(BOXES, torch.zeros(3, 2))
    whole, large, small = (picture(tuple(box)) for box in BOXES)
    assert [control("whole picture", [p], [seen]).accuracy for p in (whole, large, small)] == [1, 0, 0]
    assert [control("largest region", [p], [seen]).accuracy for p in (whole, large, small)] == [0, 1, 0]
    many = [large] * 200
    share = control("random region", many, [seen] * 200).accuracy
    assert 0.35 < share < 0.65 and share == control("random region", many, [seen] * 200).accuracy
    assert any(share != control("random region", many, [seen] * 200, seed=seed).accuracy for seed in (1, 2, 3))
    alone = vectors(BOXES[:1], torch.zeros(1, 2))
    assert control("random region", [whole], [alone]).accuracy == 1.0


def test_the_bonus_alone_is_a_control():
    seen = vectors(BOXES, torch.randn(3, 16))
    whole, large, small = (picture(tuple(box)) for box in BOXES)
    likes_large, likes_small = tiny_aligner(size_bonus=1.0), tiny_aligner(size_bonus=-1.0)
    assert [bonus_control(likes_large, [p], [seen]).accuracy for p in (whole, large, small)] == [1, 0, 0]
    assert [bonus_control(likes_small, [p], [seen]).accuracy for p in (whole, large, small)] == [0, 0, 1]
    assert bonus_control(likes_large, [picture(None)], [seen]).phrases == 0


def test_the_report_has_the_model_the_types_and_the_controls(tmp_path):
    result = measure(FOUND, TRUTH, [("people",)] * 4)
    write_grounding_report(tmp_path, result, {"whole picture": measure(TRUTH, TRUTH, [()] * 4)}, {"model": "m"})
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["accuracy"], row["pointing"]) == ("ground", 0.5, 0.5)
    assert row["by_type"] == {"people": {"phrases": 4, "accuracy": 0.5, "pointing": 0.5}}
    assert row["controls"]["whole picture"]["accuracy"] == 1.0
    assert "| model | 0.500 | 0.500 | 4 |" in (tmp_path / "report.md").read_text()
