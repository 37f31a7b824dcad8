"""The trunk has the parts that its options name, proposes boxes, and takes over what another has learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.errors import UserError
from saywhere.networks.vision.trunk import Trunk, build_trunk
from saywhere.papers.densecap2016.conventions import OriginalBoxCoder

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
