"""The trunk has the parts that its options name, proposes boxes, and takes over what another has learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from refusals import refuses

from saywhere.boxes import BoxCoder, propose
from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.engines.engine import RpnOutput
from saywhere.networks.vision.trunk import AnchorGenerator, LocalizationLayer, RpnHead, Trunk, build_trunk
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
    assert len(refuses(f"^localizer: .*{message}", trunk().take_from, trunk(1, **other))) < 400


# Rpn


def layer(two_way: bool = False) -> LocalizationLayer:
    torch.manual_seed(0)
    anchors = AnchorGenerator([[(20, 10), (16, 16)], [(60, 30), (40, 40)]], (8, 16))
    head = RpnHead(5, 6, 2, two_way)
    with torch.no_grad():
        head.score.weight.normal_()
        head.offset.weight.normal_(std=0.3)
    return LocalizationLayer(head, anchors)


def maps(height: int, width: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(5, height // s, width // s, generator=generator) for s in (8, 16))


def test_anchors_stand_on_cell_centres_of_every_level():
    anchors = AnchorGenerator([[(20, 10), (16, 16)], [(60, 30), (40, 40)]], (8, 16))(maps(32, 48))
    assert anchors.shape == ((4 * 6 + 2 * 3) * 2, 4)
    assert anchors[0].tolist() == [4 - 10, 4 - 5, 4 + 10, 4 + 5]
    assert anchors[3].tolist() == [12 - 8, 4 - 8, 12 + 8, 4 + 8]  # second cell of the first row, second shape
    assert anchors[48].tolist() == [8 - 30, 8 - 15, 8 + 30, 8 + 15]  # first cell of the second level


def test_the_head_answers_in_the_order_of_the_anchors():
    """Anchor a of a cell is fed by rows 4a .. 4a+3 of the offset convolution and row a of the score's."""
    rpn = layer()
    with torch.no_grad():
        for parameter in (rpn.head.score.weight, rpn.head.offset.weight):
            parameter.zero_()
        rpn.head.score.bias.copy_(torch.tensor([1.0, 2.0]))
        rpn.head.offset.bias.copy_(torch.arange(8.0))
    out = rpn([maps(32, 48)])[0]
    assert out.logits[:4].tolist() == [1, 2, 1, 2]
    assert out.offsets[0].tolist() == [0, 1, 2, 3] and out.offsets[1].tolist() == [4, 5, 6, 7]


def test_two_way_scores_are_the_difference_of_the_logits():
    rpn = layer(two_way=True)
    assert rpn.head.score.weight.shape[0] == 4
    with torch.no_grad():
        rpn.head.score.weight.zero_()
        rpn.head.score.bias.copy_(torch.tensor([3.0, 1.0, 0.0, 5.0]))
    assert rpn([maps(32, 48)])[0].logits[:2].tolist() == [2, -5]


def test_images_of_different_sizes_in_one_call_equal_one_at_a_time():
    rpn = layer()
    images = [maps(32, 48, 1), maps(64, 32, 2), maps(32, 48, 3)]
    for together, image in zip(rpn(images), images, strict=True):
        alone = rpn([image])[0]
        for a, b in ((together.logits, alone.logits), (together.offsets, alone.offsets)):
            torch.testing.assert_close(a, b)


def test_offsets_start_at_zero_so_that_proposals_are_anchors():
    head = RpnHead(5, 6, 2, False)
    rpn = LocalizationLayer(head, AnchorGenerator([[(20, 10), (16, 16)]], (8,)))
    out = rpn([maps(32, 48)[:1]])[0]
    torch.testing.assert_close(rpn.box_coder.decode(out.offsets, out.anchors), out.anchors)


def test_proposals_are_clipped_solid_suppressed_and_best_first():
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [-20, 0, 0.5, 10], [20, 20, 60, 60], [5, 5, 15, 15]])
    logits = torch.tensor([1.0, 2.0, 9.0, 3.0, -1.0])
    rpn = RpnOutput(anchors, logits, torch.zeros(5, 4))

    def proposals(nms_iou: float = 0.7, pre_nms_top_n: int | None = None, limit: int = 10):
        return propose(BoxCoder(), rpn, (40, 40), nms_iou, pre_nms_top_n, limit)

    boxes, scores = proposals()
    assert boxes.tolist() == [[20, 20, 40, 40], [0, 0, 10, 9], [5, 5, 15, 15]]  # 2 is too thin, 0 overlaps 1 by 0.9
    assert scores.tolist() == [3, 2, -1]
    assert len(proposals(limit=2)[0]) == 2
    assert len(proposals(nms_iou=0.95)[0]) == 4
    assert proposals(pre_nms_top_n=2)[1].tolist() == [3]


def test_the_coder_inverts_and_bounds_growth():
    references = torch.tensor([[10.0, 10, 30, 20], [0, 0, 5, 5]])
    boxes = torch.tensor([[12.0, 8, 44, 30], [1, 1, 3, 9]])
    coder = BoxCoder()
    torch.testing.assert_close(coder.decode(coder.encode(boxes, references), references), boxes)
    huge = coder.decode(torch.tensor([[0, 0, 99.0, 0]]), references[:1])
    assert float(huge[0, 2] - huge[0, 0]) == pytest.approx(20 * 62.5, rel=1e-3)
    assert torch.isinf(BoxCoder(None).decode(torch.tensor([[0, 0, 99.0, 0]]), references[:1])).any()
