from __future__ import annotations

import json
import math

import numpy as np
import pytest

from saywhere.formats.densecap import LONG_SIDE, SCORE_LIMIT, result, write_results
from saywhere.regions import Regions


def test_boxes_scores_and_captions_as_the_original_writes_them():
    """Half size, 1-based: our box from 0 to 20 is pixels 1 to 10; the raw score of a probability is its logit."""
    boxes = [[0.0, 0.0, 20.0, 40.0], [1438.0, 2.0, 1440.0, 1000.0]]
    row = result(Regions(1440, 1000, boxes, [0.5, 0.9], ("a dog", "a cat")), "sub/a.jpg")
    assert row["img_name"] == "sub/a.jpg"
    assert row["boxes"] == [[1, 1, 10, 20], [720, 2, 1, 499]]
    assert row["scores"] == pytest.approx([0, math.log(9)], abs=1e-4)
    assert row["captions"] == ["a dog", "a cat"]


def test_small_images_are_enlarged_and_scores_stay_finite():
    row = result(Regions(72, 36, [[0, 0, 72, 36.0]] * 2, [1.0, 0.0], ("a", "b")), "a.jpg")
    assert row["boxes"] == [[1, 1, 720, 360]] * 2
    assert row["scores"] == [16, -16]


def test_the_short_side_of_the_resized_image_is_rounded_down():
    """500 x 333 becomes 720 x 479: a box of the whole image ends there."""
    row = result(Regions(500, 333, [[0.0, 0, 500, 333]], [0.5], ("a",)), "a.jpg")
    assert row["boxes"] == [[1, 1, 720, 479]]


def test_no_regions():
    empty = Regions.empty(72, 36)
    assert result(empty, "a.jpg") == {"img_name": "a.jpg", "boxes": [], "scores": [], "captions": []}


def test_the_arithmetic_is_that_of_the_programs_functions():
    """``result`` does without torch what the functions of :mod:`saywhere.papers.densecap2016.conventions` do."""
    torch = pytest.importorskip("torch")
    from saywhere.papers.densecap2016 import conventions as original

    random = np.random.default_rng(0)
    for _ in range(50):
        width, height = random.integers(1, 3000, 2).tolist()
        low = random.uniform(0, 0.8, (9, 2))
        boxes = np.concatenate((low, low + random.uniform(0, 0.2, (9, 2))), axis=1) * ([width, height] * 2)
        regions = Regions(width, height, boxes / 2, random.uniform(0, 1, 9), ("",) * 9)
        row = result(regions, "a.jpg")
        w, h = original.scaled_size(width, height, LONG_SIDE)
        scaled = torch.from_numpy(regions.boxes).double() * torch.tensor(
            [w / width, h / height] * 2, dtype=torch.float64
        )
        expected = original.x1y1x2y2_to_xywh(original.ours_to_corners(scaled))
        assert np.abs(np.array(row["boxes"]) - expected.numpy()).max() <= 5.1e-4
        logits = torch.logit(torch.as_tensor(regions.scores).double()).clamp(-SCORE_LIMIT, SCORE_LIMIT)
        assert row["scores"] == pytest.approx(logits.tolist(), abs=1.1e-5)


def test_the_file(tmp_path):
    images = [("a.jpg", Regions(72, 36, [[0, 0, 72, 36]], [0.5], ("a",))), ("b.jpg", Regions.empty(9, 9))]
    write_results(tmp_path / "results.json", images, {"top": 3})
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["opt"] == {"top": 3}
    assert written["results"] == [result(regions, name) for name, regions in images]
