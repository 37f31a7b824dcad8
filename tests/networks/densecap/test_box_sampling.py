from __future__ import annotations

import torch

from saywhere.networks.densecap.build import RegionSampler

IOUS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.3], [0.1, 0.35], [0.2, 0.0], [0.0, 0.0], [0.05, 0.29]])


def sample(sampler: RegionSampler, seed: int = 0, inside=None):
    return sampler(IOUS, inside, torch.Generator().manual_seed(seed))


def test_positives_and_negatives_by_their_iou():
    sampled = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3))
    assert sampled.positive.tolist() == [0, 1, 3]  # 3 is the best of the second truth
    assert sampled.truth.tolist() == [0, 0, 1]
    assert sampled.negative.tolist() == [4, 5, 6]
    assert sampled.rows.tolist() == [0, 1, 3, 4, 5, 6]
    strict = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3, best_is_positive=False))
    assert strict.positive.tolist() == [0, 1]
    assert RegionSampler(9, 0.8, 0.3, best_is_positive=False)(IOUS).positive.tolist() == [0]  # above, not at


def test_the_share_bounds_positives_and_negatives_fill_up():
    sampler = RegionSampler(4, fg_iou=0.4, bg_iou=0.3, positive_share=0.5)
    seen = set()
    for seed in range(20):
        sampled = sample(sampler, seed)
        assert len(sampled.positive) == 2 and len(sampled.negative) == 2
        assert set(sampled.positive.tolist()) <= {0, 1, 2, 3} and set(sampled.negative.tolist()) <= {4, 5, 6}
        seen.add(tuple(sorted(sampled.positive.tolist())))
    assert len(seen) > 3
    assert sample(sampler, 5).rows.tolist() == sample(sampler, 5).rows.tolist()


def test_boxes_outside_are_not_sampled_unless_they_are_a_truths_best():
    inside = torch.tensor([False, True, True, False, False, True, True])
    sampled = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3), inside=inside)
    assert sampled.positive.tolist() == [0, 1, 3]
    assert sampled.negative.tolist() == [5, 6]


def test_without_truths_all_are_negative_and_without_negatives_any_other_serves():
    sampled = RegionSampler(3, 0.7, 0.3)(torch.zeros(5, 0), None, torch.Generator().manual_seed(0))
    assert len(sampled.positive) == len(sampled.truth) == 0 and len(sampled.negative) == 3
    sampled = RegionSampler(10, 0.7, 0.05)(torch.tensor([[0.9], [0.5], [0.4]]))
    assert sampled.positive.tolist() == [0] and sampled.negative.tolist() == [1, 2]
