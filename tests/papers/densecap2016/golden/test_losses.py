"""The published program's losses, in its own formats and as the criterion that trains our DenseCap computes them."""

from dataclasses import replace

import pytest
import torch

from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.densecap.loss import DenseCapCriterion
from saywhere.networks.densecap.network import DenseCapOutput
from saywhere.papers.densecap2016 import conventions as original


def criterion_term(name, weight, balanced=False, **tensors):
    """One term of the criterion with the published options, weighted, of an output that has only ``tensors``.

    ``balanced`` as published is the sum of two calls of the program's criterion; False is one call.
    """
    weights = dict.fromkeys(("rpn_score", "rpn_box", "score", "box", "caption"), 0.0)
    config = replace(
        DenseCapConfig.original(),
        balanced=balanced,
        box_decay=weight if name == "decay" else 1.0,
        **{f"{term}_weight": weight if term == name else other for term, other in weights.items()},
    )
    scores, offsets = torch.zeros(0, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)
    nothing = {
        "rpn_logits": scores,
        "rpn_positive": scores.bool(),
        "rpn_offsets": offsets,
        "rpn_offset_targets": offsets,
        "rpn_all_offsets": offsets,
        "logits": scores,
        "positive": scores.bool(),
        "offsets": offsets,
        "offset_targets": offsets,
        "word_logits": torch.zeros(0, 5, dtype=torch.float64),
        "token_ids": scores.long(),
    }
    return DenseCapCriterion(config)(DenseCapOutput(**{**nothing, **tensors}))[name]


@pytest.mark.parametrize("name", ["plain", "weight0.1", "masked_over10"])
@pytest.mark.parametrize("term", ["rpn_box", "box"])
def test_box_losses_of_the_criterion(name, term, golden, same, gradients):
    case = golden("box_regression_criterion")[name]
    prefix = term.removesuffix("box")
    loss, (by_offsets, by_anchors) = gradients(
        lambda offsets, anchors: criterion_term(
            term,
            case["w"],
            **{
                f"{prefix}offsets": offsets,
                f"{prefix}offset_targets": original.invert_box_transform(anchors, case["targets"]),
            },
        ),
        case["transforms"],
        case["anchors"],
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(by_offsets, case["gradTransforms"])
    same(by_anchors, case["gradAnchors"])


@pytest.mark.parametrize("name", ["plain", "weight0.1", "masked_over10"])
def test_rows_with_targets_beyond_10(name, golden, same):
    """The program overwrites ignored rows of both inputs with zeros; ours takes them as zero."""
    case = golden("box_regression_criterion")[name]
    targets = original.invert_box_transform(case["anchors"], case["targets"])
    ignored = targets.abs().amax(dim=1) > 10
    assert ignored.any() == (name != "plain")
    same(targets.masked_fill(ignored[:, None], 0), case["target_transforms"])
    same(case["transforms"].masked_fill(ignored[:, None], 0), case["transforms_after"])


@pytest.mark.parametrize("name", ["binary", "large_magnitude", "multiclass"])
def test_score_loss_of_the_criterion(name, golden, same, gradients):
    """Several classes are as many scores of their own."""
    case = golden("logistic_criterion")[name]
    positive = case["targets"][:, None] == torch.arange(1, case["scores"].shape[1] + 1)
    loss, (gradient,) = gradients(
        lambda scores: criterion_term("score", 1.0, logits=scores.flatten(), positive=positive.flatten()),
        case["scores"],
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])


def test_decay_of_the_criterion(golden, same, gradients):
    """The program's layer passes its input on and adds the gradient on the way back; ours is a term of the loss."""
    case = golden("misc_criterions")["regularize"]

    def decay(x):
        return criterion_term("decay", case["weight"], rpn_all_offsets=x.reshape(-1, 4))

    loss, (gradient,) = gradients(decay, case["input"])
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"] - case["gradOutput"])


def test_rpn_score_loss_of_the_criterion(golden, same, gradients):
    """The RPN's two logits reach the criterion as their difference."""
    case = golden("misc_criterions")["our_cross_entropy"]
    positive = case["targets"] == 1
    assert positive.any() and not positive.all()
    loss, (gradient,) = gradients(
        lambda scores: criterion_term("rpn_score", 1.0, rpn_logits=scores[:, 0] - scores[:, 1], rpn_positive=positive),
        case["scores"],
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])


def test_balanced_score_loss_of_the_criterion(golden, same, gradients):
    """The RPN's layer calls the program's criterion on either side by itself: each mean is over that side's rows."""
    assert DenseCapConfig.original().balanced
    case = golden("misc_criterions")["our_cross_entropy"]
    positive, gradients_of_mean = case["targets"] == 1, case["gradInput"]
    count = torch.where(positive, positive.sum(), (~positive).sum()).double()
    wrong = len(positive) * gradients_of_mean.clamp(min=0).sum(dim=1)  # probability of the wrong answer
    loss, (gradient,) = gradients(
        lambda scores: criterion_term(
            "rpn_score", 1.0, balanced=True, rpn_logits=scores[:, 0] - scores[:, 1], rpn_positive=positive
        ),
        case["scores"],
    )
    same(loss, (-torch.log1p(-wrong) / count).sum())
    same(gradient, gradients_of_mean * (len(positive) / count)[:, None])


@pytest.mark.parametrize("term", ["rpn_box", "box"])
def test_smooth_l1_of_the_criterion(term, golden, same, gradients):
    case = golden("misc_criterions")["smooth_l1"]
    names = {"rpn_box": ("rpn_offsets", "rpn_offset_targets"), "box": ("offsets", "offset_targets")}[term]
    loss, (gradient,) = gradients(
        lambda offsets: criterion_term(term, 1.0, **dict(zip(names, (offsets, case["target"]), strict=True))),
        case["input"],
    )
    same(loss, torch.tensor(case["loss"], dtype=torch.float64))
    same(gradient, case["gradInput"])
