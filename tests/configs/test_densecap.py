"""DenseCap's options are checked when they are made, and those of its parts are named with their part."""

from __future__ import annotations

from typing import Any

import pytest

from saywhere.configs.densecap import PUBLISHED_ANCHORS, DenseCapConfig
from saywhere.configs.parts import DecodingConfig, ProposalConfig, TrunkConfig
from saywhere.errors import UserError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trunk": {"long_sid": 100}}, "unknown key trunk.long_sid; did you mean trunk.long_side"),
        ({"trunk": {"long_side": 0}}, "trunk.long_side is 0, but must be between 1 and 8192"),
        ({"trunk": {"multiple": 0}}, "trunk.multiple is 0"),
        ({"trunk": {"multiple": 10**9}}, "trunk.multiple is 1000000000, but must be between 1 and long_side, 384"),
        ({"trunk": {"long_side": 10**9}}, "trunk.long_side is 1000000000, but must be between 1 and 8192"),
        ({"trunk": {"vgg_channels": [9, 9, 9, 9, 10**9]}}, "trunk.vgg_channels is .* widths of at most 16384"),
        ({"proposals": {"pyramid_channels": 8 * 10**9}}, "proposals.pyramid_channels is 8000000000"),
        ({"proposals": {"hidden_size": 10**9}}, "proposals.hidden_size is 1000000000"),
        ({"decoding": {"beam_size": 10**9}}, "decoding.beam_size is 1000000000, but must be between 1 and 200"),
        ({"decoding": {"max_words": 10**9}}, "decoding.max_words is 1000000000, but must be between 1 and 1000"),
        ({"pool_size": 10**9}, "pool_size is 1000000000, but must be between 1 and 64"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000, but must be between 1 and 16384"),
        ({"fc_size": 10**9}, "fc_size is 1000000000"),
        ({"trunk": {"strides": [32, 16, 8]}}, r"trunk.strides is \(32, 16, 8\), but must be one or more, ascending"),
        ({"trunk": {"strides": []}}, "trunk.strides is"),
        ({"trunk": {"strides": [16]}}, "proposals.anchors is .* k shapes"),
        ({"trunk": {"vgg_channels": [1]}}, "trunk.vgg_channels is .* five widths"),
        ({"trunk": 5}, "trunk must be a mapping, not 5"),
        ({"proposals": {"anchors": [[], [], []]}}, "proposals.anchors"),
        ({"proposals": {"pyramid_channels": 0}}, "proposals.pyramid_channels is 0, but must be positive with several"),
        ({"proposals": {"pyramid_channels": 12}}, "proposals.pyramid_channels is 12, but must be a multiple of 8"),
        ({"proposals": {"hidden_size": 0}}, "proposals.hidden_size is 0"),
        ({"proposals": {"nms_iou": 1.5}}, "proposals.nms_iou is 1.5"),
        ({"proposals": {"nms_iou": float("nan")}}, "proposals.nms_iou must be a number, not nan"),
        ({"proposals": {"pre_nms_top_n": 0}}, "proposals.pre_nms_top_n is 0, but must be at least 1, or null"),
        ({"proposals": {"post_nms_top_n": 0}}, "proposals.post_nms_top_n is 0"),
        ({"proposals": {"post_nms_top_n": -1}}, "proposals.post_nms_top_n is -1"),
        ({"decoding": {"beam_size": 0}}, "decoding.beam_size is 0"),
        ({"decoding": {"max_words": 0}}, "decoding.max_words is 0"),
        ({"final_nms": 1.5}, "final_nms is 1.5, but must be between 0 and 1"),
        ({"repeat_nms": -1}, "repeat_nms is -1.0"),
        ({"embed_dim": 0}, "embed_dim is 0"),
        ({"fc_size": 0}, "fc_size is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"rpn_batch": 0}, "rpn_batch is 0"),
        ({"positive_share": 2}, "positive_share is 2.0"),
        ({"rpn_fg_iou": 2}, "rpn_fg_iou is 2.0"),
        ({"dropout": 1}, "dropout is 1.0, but must be at least 0 and below 1"),
        ({"box_weight": -1}, "box_weight is -1"),
        ({"box_decay": -1}, "box_decay is -1"),
        ({"box_beta": 0}, "box_beta is 0.0, but must be above 0"),
        ({"pooling": "max"}, "pooling must be one of bilinear, roi_align, not 'max'"),
        ({"conventions": "mine"}, "conventions must be one of saywhere, original"),
        ({"noun_threshold": 2}, "noun_threshold is 2.0"),
        ({"calibration": [1, 0, 0]}, "no longer an option: saywhere calibrate stores it in calibration.json"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        DenseCapConfig.from_dict(options)
    assert "\n" not in str(error.value)


def test_parts_keep_their_defaults_where_they_are_not_named() -> None:
    config = DenseCapConfig.from_dict({"proposals": {"post_nms_top_n": 7}, "decoding": {"beam_size": 2}})
    assert config.proposals == ProposalConfig(post_nms_top_n=7) and config.trunk == TrunkConfig()
    assert config.decoding == DecodingConfig(beam_size=2)
    changed = DenseCapConfig.original().merge({"proposals": {"post_nms_top_n": 7}})
    assert changed.proposals.two_way and changed.proposals.pre_nms_top_n is None
    assert DenseCapConfig.from_dict(changed.to_dict()) == changed


def test_the_published_program() -> None:
    config = DenseCapConfig.original()
    assert (config.trunk.backbone, config.trunk.strides, config.trunk.long_side) == ("vgg16_caffe", (16,), 720)
    assert config.proposals == ProposalConfig(0, (PUBLISHED_ANCHORS,), 256, True, 0.7, None, 1000)
    assert (config.decoding.max_words, config.final_nms, config.embed_dim) == (15, 0.3, 4096)
    assert DenseCapConfig.from_dict(config.to_dict()) == config
