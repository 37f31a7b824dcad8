from __future__ import annotations

import math

import pytest
import torch

from saywhere.networks.aligner.loss import AlignmentOutput, contrastive, max_margin

SCORES = torch.tensor([[3.0, 2.5, 0.0], [1.0, 4.0, 3.8], [0.0, 3.5, 2.0]])


def output(scores: torch.Tensor = SCORES, owner: tuple[int, ...] = (0, 1, 2)) -> AlignmentOutput:
    return AlignmentOutput(scores, torch.tensor(owner))


def test_equation_9_by_hand():
    losses = max_margin(output())
    # columns: sentence 0: 1 - 3 + 1 < 0; sentence 1: image 2 has 3.5 - 4 + 1 = .5; sentence 2: 3.8 - 2 + 1 = 2.8
    assert float(losses["images"]) == pytest.approx((0.5 + 2.8) / 3)
    # rows: image 0: 2.5 - 3 + 1 = .5; image 1: 3.8 - 4 + 1 = .8; image 2: 3.5 - 2 + 1 = 2.5
    assert float(losses["sentences"]) == pytest.approx((0.5 + 0.8 + 2.5) / 3)


def test_the_margin_counts():
    assert float(max_margin(output(), margin=0.0)["images"]) == pytest.approx(1.8 / 3)


def test_another_sentence_of_the_same_image_is_no_negative():
    scores = torch.tensor([[3.0, 2.9, 0.0], [1.0, 0.0, 4.0]])
    losses = max_margin(output(scores, (0, 0, 1)))
    assert float(losses["sentences"]) == 0 and float(losses["images"]) == 0
    near = contrastive(output(scores, (0, 0, 1)))
    # sentence 0 against sentence 2: 3 and 0; sentence 1: 2.9 and 0; sentence 2 against 0 and 1: 4, 1 and 0
    expected = [math.log1p(math.exp(-3)), math.log1p(math.exp(-2.9)), math.log(math.exp(4) + math.e + 1) - 4]
    assert float(near["sentences"]) == pytest.approx(sum(expected) / 3)


def test_the_contrastive_loss_is_the_cross_entropy_of_both_directions():
    losses = contrastive(output())
    target = torch.arange(3)
    assert float(losses["images"]) == pytest.approx(float(torch.nn.functional.cross_entropy(SCORES.T, target)))
    assert float(losses["sentences"]) == pytest.approx(float(torch.nn.functional.cross_entropy(SCORES, target)))
