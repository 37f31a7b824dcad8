from __future__ import annotations

import math

import pytest
import torch

from saywhere.describing.original import result
from saywhere.regions import Regions


def test_boxes_scores_and_captions_as_the_original_writes_them():
    """Half size, 1-based: our box from 0 to 20 is pixels 1 to 10; the raw score of a probability is its logit."""
    boxes = torch.tensor([[0.0, 0.0, 20.0, 40.0], [1438.0, 2.0, 1440.0, 1000.0]])
    row = result(Regions(1440, 1000, boxes, torch.tensor([0.5, 0.9]), ("a dog", "a cat")), "sub/a.jpg")
    assert row["img_name"] == "sub/a.jpg"
    assert row["boxes"] == [[1, 1, 10, 20], [720, 2, 1, 499]]
    assert row["scores"] == pytest.approx([0, math.log(9)], abs=1e-4)
    assert row["captions"] == ["a dog", "a cat"]


def test_small_pictures_are_enlarged_and_scores_stay_finite():
    row = result(Regions(72, 36, torch.tensor([[0, 0, 72, 36.0]] * 2), torch.tensor([1.0, 0.0]), ("a", "b")), "a.jpg")
    assert row["boxes"] == [[1, 1, 720, 360]] * 2
    assert row["scores"] == [16, -16]


def test_the_short_side_of_the_resized_picture_is_rounded_down():
    """500 x 333 becomes 720 x 479: a box of the whole picture ends there."""
    row = result(Regions(500, 333, torch.tensor([[0.0, 0, 500, 333]]), torch.tensor([0.5]), ("a",)), "a.jpg")
    assert row["boxes"] == [[1, 1, 720, 479]]


def test_no_regions():
    empty = Regions(72, 36, torch.zeros(0, 4), torch.zeros(0), ())
    assert result(empty, "a.jpg") == {"img_name": "a.jpg", "boxes": [], "scores": [], "captions": []}
