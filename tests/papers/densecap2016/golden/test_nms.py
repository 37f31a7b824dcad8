import torch

from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "nms"


def test_nms(case):
    corners, scores = case["boxes"][:, :4], case["boxes"][:, 4]
    picks = original.nms(corners, scores, case["overlap"], case["max_boxes"])
    assert torch.equal(picks + 1, case["pick_1based"])
    if "pick_old_1based" in case:
        assert torch.equal(picks + 1, case["pick_old_1based"])
