from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_aligner import tiny_aligner
from tiny_densecap import tiny_model

from saywhere.data.entities import MarkedPhrase, MarkedPicture, MarkedSentence
from saywhere.evaluation.grounding import judge, measure
from saywhere.evaluation.grounding_report import write_grounding_report
from saywhere.evaluation.grounding_run import PRIOR, AlignerView, DenseCapView, control, ground
from saywhere.models.aligner import Aligner
from saywhere.models.alignment import PictureVectors
from saywhere.models.phrase_scores import score_regions
from saywhere.regions import Regions

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


def view(model: Aligner, boxes: list[list[float]], codes: torch.Tensor) -> AlignerView:
    return AlignerView(model, PictureVectors(100, 50, torch.tensor(boxes), codes, "a"))


BOXES = [[0.0, 0, 100, 50], [0, 0, 40, 40], [60, 10, 90, 30]]


def test_the_area_that_fits_the_words_best_is_the_answer():
    model = tiny_aligner()
    sentence = model.read(["red shirt green grass"]).vectors[0]
    both = torch.stack((sentence[:2].sum(dim=0), sentence[2:4].sum(dim=0)))
    apart = torch.linalg.pinv(both) @ torch.tensor([1.0, -1.0])  # product 1 with one phrase, -1 with the other
    seen = view(model, BOXES, torch.stack((0 * apart, apart, -apart)))
    marked = picture((0.0, 0, 40, 40), (60.0, 10, 90, 30))
    assert ground([marked], [seen]).accuracy == 1.0
    other = picture((60.0, 10, 90, 30), (0.0, 0, 40, 40))
    assert ground([other], [seen]).accuracy == 0.0


def test_phrases_without_a_box_are_not_asked_for():
    model = tiny_aligner()
    seen = view(model, BOXES, torch.randn(3, model.config.size))
    assert ground([picture(None, (0.0, 0, 40, 40), None)], [seen]).phrases == 1
    assert ground([picture(None)], [seen]).phrases == 0


def test_controls_do_not_read():
    seen = view(tiny_aligner(), BOXES, torch.zeros(3, 2))
    whole, large, small = (picture(tuple(box)) for box in BOXES)
    assert [control("whole picture", [p], [seen]).accuracy for p in (whole, large, small)] == [1, 0, 0]
    assert [control("largest region", [p], [seen]).accuracy for p in (whole, large, small)] == [0, 1, 0]
    many = [large] * 200
    share = control("random region", many, [seen] * 200).accuracy
    assert 0.35 < share < 0.65 and share == control("random region", many, [seen] * 200).accuracy
    assert any(share != control("random region", many, [seen] * 200, seed=seed).accuracy for seed in (1, 2, 3))
    alone = view(tiny_aligner(), BOXES[:1], torch.zeros(1, 2))
    assert control("random region", [whole], [alone]).accuracy == 1.0


def test_what_is_best_before_reading_is_a_control():
    whole, large, small = (picture(tuple(box)) for box in BOXES)
    for bonus, expected in ((1.0, [1, 0, 0]), (-1.0, [0, 0, 1])):
        seen = view(tiny_aligner(size_bonus=bonus), BOXES, torch.randn(3, 16))
        assert [control(PRIOR, [p], [seen]).accuracy for p in (whole, large, small)] == expected
        assert control(PRIOR, [picture(None)], [seen]).phrases == 0


def regions(scores: list[float], codes: torch.Tensor) -> Regions:
    boxes = torch.tensor(BOXES[1:])[: len(scores)]
    return Regions(100, 50, boxes, torch.tensor(scores), features=codes)


def test_a_dense_captioner_takes_the_region_that_is_there_and_is_called_so():
    model = tiny_model()
    codes = torch.randn(2, model.config.code_size, generator=torch.Generator().manual_seed(1))
    texts = ["red shirt", "green grass"]
    log_probs = score_regions(model.speaker, model.vocabulary, regions([0.5, 0.5], codes), texts).log_probs
    for scores in ([0.5, 0.5], [0.9, 0.1], [1e-30, 1.0]):
        seen = DenseCapView(model, regions(scores, codes))
        best = (log_probs + torch.tensor(scores).log()[:, None]).argmax(dim=0).tolist()
        assert ground([picture(*(tuple(BOXES[1 + row]) for row in best))], [seen]).accuracy == 1.0
        assert control(PRIOR, [picture(tuple(BOXES[1 + scores.index(max(scores))]))], [seen]).accuracy == 1.0
    assert best == [1, 1]
    nothing = DenseCapView(model, regions([], codes[:0]))
    for name in (PRIOR, "largest region"):
        assert control(name, [picture(tuple(BOXES[0]))], [nothing]).accuracy == 1.0
    assert ground([picture(tuple(BOXES[0]), tuple(BOXES[1]))], [nothing]).accuracy == 0.5


def test_the_report_has_the_model_the_types_and_the_controls(tmp_path):
    result = measure(FOUND, TRUTH, [("people",)] * 4)
    write_grounding_report(tmp_path, result, {"whole picture": measure(TRUTH, TRUTH, [()] * 4)}, {"model": "m"})
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["accuracy"], row["pointing"]) == ("ground", 0.5, 0.5)
    assert row["by_type"] == {"people": {"phrases": 4, "accuracy": 0.5, "pointing": 0.5}}
    assert row["controls"]["whole picture"]["accuracy"] == 1.0
    assert "| model | 0.500 | 0.500 | 4 |" in (tmp_path / "report.md").read_text()
