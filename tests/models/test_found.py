from __future__ import annotations

import math

import torch
from pictures import noise
from tiny_densecap import tiny_model

from saywhere.language.decoding import Decoded
from saywhere.models.encoding import Encoding
from saywhere.models.found import Found, confidence, rank
from saywhere.text import END, PAD

BOXES = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]])


def make_found() -> Found:
    encoding = Encoding((torch.zeros(1, 4, 4),), 40, 40, 32, 32, "a.png")
    logits, sure = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([-3.0, -0.5, -0.1])
    return Found(encoding, BOXES, logits, torch.arange(6.0).view(3, 2), ("a dog", "a dog", "a cat"), sure)


def test_a_score_is_the_logistic_function_of_logit_and_confidence() -> None:
    scores = make_found().regions((0.5, 2.0, 1.0)).scores
    wanted = [1 / (1 + math.exp(-x)) for x in (0.5 * 2 + 2 * -3 + 1, 0.5 * 1 + 2 * -0.5 + 1, 2 * -0.1 + 1)]
    torch.testing.assert_close(scores, torch.tensor(wanted))
    torch.testing.assert_close(make_found().regions((1.0, 0.0, 0.0)).scores, torch.tensor([2.0, 1.0, 0.0]).sigmoid())


def test_confidence_is_the_mean_over_the_words_and_the_end() -> None:
    said = Decoded(torch.tensor([[5, END, PAD], [5, 6, 7]]), torch.tensor([[-1.0, -3.0, 0.0], [-1.0, -1.0, -4.0]]))
    assert confidence(said).tolist() == [-2.0, -2.0]


def test_the_calibrated_score_ranks_and_cuts() -> None:
    regions = make_found().regions((1.0, 1.0, 0.0))  # logits -1, 0.5, -0.1
    assert rank(regions, None) == [1, 2, 0]
    assert rank(regions, 0.4) == [1, 2]
    assert rank(regions, 0.95) == [1, 2, 0]
    assert rank(regions, None, threshold=0.3) == [1, 2]
    assert rank(regions, None, threshold=0.3, top=1) == [1]
    assert rank(regions, None, threshold=0.99) == []


def test_describe_ranks_by_the_calibrated_score() -> None:
    picture = noise(96, 64)
    plain, weighted = tiny_model(), tiny_model(calibration=(0.0, 1.0, 0.0))
    found = plain.find([plain.encode(picture)])[0]
    assert weighted.describe(picture).scores is not None
    best = weighted.describe(picture).scores
    torch.testing.assert_close(best[0], found.confidence.max().sigmoid())
    assert plain.describe(picture).boxes.tolist() != weighted.describe(picture).boxes.tolist()
    given = weighted.describe(picture, BOXES)
    assert given.boxes.tolist() == BOXES.tolist()
