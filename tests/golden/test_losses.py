import pytest
import torch

from saywhere import original


@pytest.mark.parametrize("name", ["plain", "weight0.1", "masked_over10"])
def test_box_regression_loss(name, golden, same, gradients):
    case = golden("box_regression_criterion")[name]
    offsets = case["transforms"].clone()
    loss, (by_offsets, by_anchors) = gradients(
        lambda offsets, anchors: case["w"] * original.box_regression_loss(offsets, anchors, case["targets"]),
        offsets,
        case["anchors"],
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(by_offsets, case["gradTransforms"])
    same(by_anchors, case["gradAnchors"])


@pytest.mark.parametrize("name", ["plain", "weight0.1", "masked_over10"])
def test_rows_with_targets_beyond_10(name, golden, same):
    """The program overwrites ignored rows of both inputs with zeros; ours takes them as zero and leaves them."""
    case = golden("box_regression_criterion")[name]
    targets = original.invert_box_transform(case["anchors"], case["targets"])
    ignored = targets.abs().amax(dim=1) > 10
    assert ignored.any() == (name != "plain")
    same(targets.masked_fill(ignored[:, None], 0), case["target_transforms"])
    same(case["transforms"].masked_fill(ignored[:, None], 0), case["transforms_after"])
    before = case["transforms"].clone()
    original.box_regression_loss(case["transforms"], case["anchors"], case["targets"])
    assert torch.equal(case["transforms"], before)


@pytest.mark.parametrize("name", ["binary", "large_magnitude", "multiclass"])
def test_logistic_loss(name, golden, same, gradients):
    case = golden("logistic_criterion")[name]
    loss, (gradient,) = gradients(lambda scores: original.logistic_loss(scores, case["targets"]), case["scores"])
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])


def test_offset_decay(golden, same, gradients):
    case = golden("misc_criterions")["regularize"]
    loss = original.offset_decay(case["input"], case["weight"])
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    # The program's layer passes its input on and adds the gradient on the way back; ours is a term of the loss.
    _, (gradient,) = gradients(
        lambda x: (x * case["gradOutput"]).sum() + original.offset_decay(x, case["weight"]), case["input"]
    )
    same(gradient, case["gradInput"])


def test_two_way_cross_entropy(golden, same, gradients):
    case = golden("misc_criterions")["our_cross_entropy"]
    loss, (gradient,) = gradients(
        lambda scores: original.two_way_cross_entropy(scores, case["targets"]), case["scores"]
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])


def test_smooth_l1(golden, same, gradients):
    case = golden("misc_criterions")["smooth_l1"]
    loss, (gradient,) = gradients(lambda offsets: original.offset_loss(offsets, case["target"]), case["input"])
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])


def test_every_case_is_run(golden):
    assert golden("box_regression_criterion").keys() == {"plain", "weight0.1", "masked_over10"}
    assert golden("logistic_criterion").keys() == {"binary", "large_magnitude", "multiclass"}
    assert golden("misc_criterions").keys() == {"regularize", "our_cross_entropy", "smooth_l1"}
