from __future__ import annotations

import torch

from saywhere.papers.densecap2016 import conventions as original
from saywhere.papers.densecap2016.conventions import BoxSampler, inside_image, pick

TRUTHS = torch.tensor([[50.0, 50, 40, 40], [120, 60, 20, 60]])


def boxes() -> torch.Tensor:
    """0 and 1 near truth 0, 2 near truth 1, 3 between, 4 to 8 far, 9 far and outside, 10 near truth 0 and outside."""
    far = [[200.0 + 20 * i, 150, 30, 30] for i in range(5)]
    near = [[50.0, 50, 40, 40], [52, 50, 42, 40], [121, 62, 20, 60], [60, 50, 40, 40]]
    return torch.tensor([*near, *far, [-30, 150, 30, 30], [50, 18, 42, 42]])


def test_masks_by_the_programs_iou_and_the_image():
    ious = original.box_iou(boxes(), TRUTHS).amax(dim=1)
    assert ious[0] > 0.7 and ious[1] > 0.7 and 0.3 < ious[3] < 0.7
    positive, negative = BoxSampler(256, 0.7, 0.3).candidates(boxes(), TRUTHS, (300, 200))
    assert positive.nonzero().flatten().tolist() == [0, 1, 2]
    assert negative.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]
    _, everywhere = BoxSampler(256, 0.7, 0.3).candidates(boxes(), TRUTHS)
    assert everywhere.nonzero().flatten().tolist() == [4, 5, 6, 7, 8, 9, 10]


def test_thresholds_are_strict():
    iou = original.box_iou(boxes(), TRUTHS)
    at = float(iou[3].amax())
    positive, negative = BoxSampler(256, at, at).candidates(boxes(), TRUTHS)
    assert not positive[3] and not negative[3]
    assert BoxSampler(256, at - 1e-6, 0).candidates(boxes(), TRUTHS)[0][3]
    assert BoxSampler(256, 1, at + 1e-6).candidates(boxes(), TRUTHS)[1][3]


def test_the_best_box_of_each_truth_is_positive_even_outside_and_learns_its_own_best_truth():
    predicted = torch.tensor([[-5.0, 50, 40, 40], [150, 150, 30, 30]])
    truths = torch.tensor([[-3.0, 50, 40, 40], [20, 50, 40, 40]])  # box 0 is the best of both
    iou = original.box_iou(predicted, truths)
    assert iou.argmax(dim=0).tolist() == [0, 0] and iou[0].argmax() == 0
    choice = BoxSampler(8)(predicted, truths, (300, 200), torch.Generator().manual_seed(0))
    assert choice.positive.tolist() == [0] and choice.truth.tolist() == [0]
    assert choice.negative.tolist() == [1] * 7


def test_of_equals_the_first_is_forced():
    same = torch.tensor([[100.0, 100, 20, 20]] * 3)
    positive, _ = BoxSampler(256, 0.99).candidates(same, torch.tensor([[104.0, 100, 20, 20]]))
    assert positive.tolist() == [True, False, False]


def test_half_positives_without_replacement_and_the_rest_negatives():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        choice = BoxSampler(4, 0.7, 0.3)(boxes(), TRUTHS, (300, 200), generator)
        assert len(set(choice.positive.tolist())) == 2 and len(set(choice.negative.tolist())) == 2
        assert [[0, 0, 1][i] for i in choice.positive.tolist()] == choice.truth.tolist()


def test_few_negatives_are_drawn_again():
    choice = BoxSampler(256)(boxes(), TRUTHS, (300, 200), torch.Generator().manual_seed(0))
    assert sorted(choice.positive.tolist()) == [0, 1, 2]
    assert len(choice.negative) == 253 and set(choice.negative.tolist()) == {4, 5, 6, 7, 8}
    enough = BoxSampler(8)(boxes(), TRUTHS, (300, 200), torch.Generator().manual_seed(0))
    assert sorted(enough.negative.tolist()) == [4, 5, 6, 7, 8]  # as many as wanted: each once


def test_without_negatives_all_that_is_not_positive_is_negative_outside_too():
    near = boxes()[[0, 1, 2, 3, 10]]
    _, negative = BoxSampler(256).candidates(near, TRUTHS, (300, 200))
    assert negative.tolist() == [False, False, False, True, True]


def test_all_equally_likely():
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(11)
    for _ in range(2000):
        counts += torch.bincount(BoxSampler(2)(boxes(), TRUTHS, (300, 200), generator).rows, minlength=11)
    assert (counts[[0, 1, 2]] / 2000 - 1 / 3).abs().max() < 0.05
    assert (counts[4:9] / 2000 - 1 / 5).abs().max() < 0.05


def test_first_and_last_pixel_are_in_the_image():
    corners = torch.tensor([[1.0, 1, 30, 20], [0.5, 1, 30, 20], [1, 1, 30.5, 20], [1, 0, 30, 20], [1, 1, 30, 21]])
    sizes = corners[:, 2:] - corners[:, :2] + 1
    assert inside_image(torch.cat(((corners[:, :2] + corners[:, 2:]) / 2, sizes), dim=1), 30, 20).tolist() == [
        True, False, False, False, False,
    ]  # fmt: skip


def test_a_row_picked_twice_gets_the_last_gradient():
    values = torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True)
    picked = pick(values, torch.tensor([2, 0, 2]))
    assert picked.tolist() == [[5, 6], [1, 2], [5, 6]]
    picked.backward(torch.tensor([[1.0, 1], [2, 2], [7, 8]]))
    assert values.grad.tolist() == [[2, 2], [0, 0], [7, 8]]


def test_rows_picked_once_have_ordinary_gradients():
    values = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: pick(v, torch.tensor([3, 0])), (values,))
    assert pick(values, torch.zeros(0, dtype=torch.long)).shape == (0, 3)
