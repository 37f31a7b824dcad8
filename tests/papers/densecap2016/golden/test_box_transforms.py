import pytest
import torch

from saywhere.papers.densecap2016 import conventions as original


@pytest.mark.parametrize("name", ["apply_2d", "apply_3d"])
def test_apply_box_transform(name, golden, same, gradients):
    case = golden("apply_box_transform")[name]
    output, (boxes, offsets) = gradients(
        original.apply_box_transform, case["boxes"], case["trans"], seed=case["gradOutput"]
    )
    same(output, case["output"])
    same(boxes, case["gradBoxes"])
    same(offsets, case["gradTrans"])


def test_invert_box_transform(golden, same, gradients):
    case = golden("invert_box_transform")["invert"]
    output, (anchors, targets) = gradients(
        original.invert_box_transform, case["anchors"], case["targets"], seed=case["gradOutput"]
    )
    same(output, case["output"])
    same(anchors, case["gradAnchors"])
    same(targets, case["gradTargets"])


def test_invert_without_size_gives_infinities(golden, same):
    case = golden("invert_box_transform")["invert_degenerate"]
    assert torch.isinf(case["output"]).sum() == 3
    same(original.invert_box_transform(case["anchors"], case["targets"]), case["output"])


def test_every_case_is_run(golden):
    assert golden("apply_box_transform").keys() == {"apply_2d", "apply_3d"}
    assert golden("invert_box_transform").keys() == {"invert", "invert_degenerate"}
