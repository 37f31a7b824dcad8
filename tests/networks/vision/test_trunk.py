"""The trunk has the parts that its options name, proposes boxes, and takes over what another has learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.errors import UserError
from saywhere.networks.vision.trunk import Trunk, build_trunk
from saywhere.papers.densecap2016.conventions import OriginalBoxCoder, OriginalPreprocess

CONFIG = TrunkConfig(backbone="test_efficientnet", long_side=96)
PROPOSALS = ProposalConfig(pyramid_channels=16, hidden_size=16, post_nms_top_n=20)


def trunk(seed: int = 0, proposals: ProposalConfig | None = PROPOSALS, **options: Any) -> Trunk:
    torch.manual_seed(seed)
    made = build_trunk(replace(CONFIG, **options.pop("trunk", {})), proposals, pretrained=False, **options)
    if made.localization is not None:
        with torch.no_grad():
            made.localization.head.score.weight.normal_()
            made.localization.head.offset.weight.normal_(std=0.1)
    return made


def test_parts_that_are_not_asked_for_are_not_built():
    bare, full = trunk(proposals=None), trunk(head=True)
    assert (bare.head, bare.pyramid, bare.localization) == (None, None, None)
    assert full.head is not None and full.pyramid is not None and full.localization is not None
    assert {key.partition(".")[0] for key in full.state_dict()} == {"backbone", "head", "pyramid", "localization"}
    assert not any(p.requires_grad for p in full.head.parameters())
    assert full.region_channels == 16
    one = trunk(proposals=ProposalConfig(0, (((20.0, 20.0),),), 8), trunk={"strides": (16,)})
    assert one.pyramid is None and one.region_channels == one.backbone.channels[0]


def test_the_programs_backbone_comes_with_its_pixels():
    config = replace(DenseCapConfig.original().trunk, vgg_channels=(1, 2, 3, 4, 5))
    made = build_trunk(config, pretrained=False)
    assert isinstance(made.preprocess, OriginalPreprocess) and made.preprocess.long_side == 720
    assert made.backbone.channels == (5,)
    assert not isinstance(trunk().preprocess, OriginalPreprocess)


def test_what_a_network_needs_must_be_there():
    trunk(head=True).require_parts(True, True)
    trunk(proposals=None).require_parts(False, False)
    with pytest.raises(UserError, match="no localization layer"):
        trunk(proposals=None).require_parts(True, False)
    with pytest.raises(UserError, match="no head"):
        trunk().require_parts(True, True)


@torch.no_grad()
def test_proposals_are_inside_the_image_and_best_first():
    made = trunk()
    images = [torch.randn(3, 64, 96), torch.randn(3, 96, 64)]
    maps = made.neck(made.backbone(images))
    found = made.propose(maps, [(96, 64), (64, 96)], PROPOSALS)
    for (boxes, logits), (width, height) in zip(found, [(96, 64), (64, 96)], strict=True):
        assert boxes.shape == (20, 4) and logits.tolist() == sorted(logits.tolist(), reverse=True)
        assert (boxes >= 0).all() and (boxes <= torch.tensor([width, height, width, height])).all()
    alone = made.propose(maps[1:], [(64, 96)], replace(PROPOSALS, post_nms_top_n=3))
    torch.testing.assert_close(alone[0][0], found[1][0][:3])


@torch.no_grad()
def test_proposals_of_the_program_are_given_in_our_format():
    made = trunk(box_coder=OriginalBoxCoder())
    maps = made.neck(made.backbone([torch.randn(3, 64, 96)]))
    (boxes, _), rpn = made.propose(maps, [(96, 64)], PROPOSALS)[0], made.rpn(maps)[0]
    assert boxes[:, 2].max() <= 96 and (boxes[:, 2:] >= boxes[:, :2]).all()
    centres = rpn.anchors.numpy()[:, :2]
    assert np.allclose(centres.min(axis=0), 4.5)  # from 1: the first cell of stride 8


def same(one: Trunk, other: Trunk, part: str) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in one.state_dict().items() if k.startswith(f"{part}."))


def test_weights_and_pixels_are_taken_over():
    mine, theirs = trunk(0, head=True), trunk(1)
    theirs.preprocess = replace(theirs.preprocess, mean=(0.1, 0.2, 0.3))
    head = mine.head.conv.weight.clone()
    assert not any(same(mine, theirs, part) for part in ("backbone", "pyramid", "localization"))
    mine.take_from(theirs)
    assert all(same(mine, theirs, part) for part in ("backbone", "pyramid", "localization"))
    assert torch.equal(mine.head.conv.weight, head) and mine.preprocess.mean == (0.1, 0.2, 0.3)
    bare = trunk(2, proposals=None)
    bare.take_from(theirs)
    assert same(bare, theirs, "backbone")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"proposals": None}, "do not both have a pyramid and proposals"),
        ({"proposals": replace(PROPOSALS, anchors=PROPOSALS.anchors[::-1])}, "other anchors than proposals.anchors"),
        ({"proposals": replace(PROPOSALS, hidden_size=8)}, "the localization of that model does not fit"),
        ({"proposals": replace(PROPOSALS, pyramid_channels=8)}, "the pyramid of that model does not fit"),
        ({"trunk": {"backbone": "test_resnet"}}, "the backbone of that model does not fit"),
        ({"box_coder": OriginalBoxCoder()}, "published program's boxes"),
    ],
)
def test_parts_that_do_not_fit_are_one_line(other: dict[str, Any], message: str):
    with pytest.raises(UserError, match=f"^localizer: .*{message}") as error:
        trunk().take_from(trunk(1, **other))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_nothing_is_taken_if_a_part_does_not_fit():
    mine = trunk()
    before = {key: value.clone() for key, value in mine.state_dict().items()}
    with pytest.raises(UserError):
        mine.take_from(trunk(1, proposals=replace(PROPOSALS, hidden_size=8)))
    assert all(torch.equal(value, before[key]) for key, value in mine.state_dict().items())
