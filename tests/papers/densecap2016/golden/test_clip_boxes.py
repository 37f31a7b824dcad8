import torch

from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "clip_boxes"


def test_clip_boxes(case, same):
    clipped, valid = original.clip_boxes(case["boxes"], format=case["format"], **case["bounds"])
    same(clipped, case["clipped"])
    assert torch.equal(valid.reshape(-1), case["valid"])
