"""Options of the systems: names, values, overrides, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refuses

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import PUBLISHED_ANCHORS, DenseCapConfig
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import DecodingConfig, ProposalConfig, TrunkConfig, override

ALL = {"densecap": DenseCapConfig(), "aligner": AlignerConfig(), "captioner": CaptionerConfig()}
ONE = {"captioner": CaptionerConfig()}


def test_an_option_of_several_parts_needs_the_part_and_others_do_not() -> None:
    changed: Any = override(ALL, {"grid": 3, "repeat_nms": None, "encoders": 2})
    assert (changed["captioner"].grid, changed["densecap"].repeat_nms, changed["aligner"].encoders) == (3, None, 2)
    assert changed["densecap"].merge({"repeat_nms": 0.4}) == ALL["densecap"]
    changed: Any = override(ALL, {"captioner.decoding.beam_size": 9, "aligner": {"proposals": {"nms_iou": 0.1}}})
    assert changed["captioner"].decoding.beam_size == 9 and changed["captioner"].decoding.max_words == 16
    assert changed["aligner"].proposals.nms_iou == 0.1 and changed["aligner"].proposals.post_nms_top_n == 19
    assert changed["densecap"] == ALL["densecap"]
    for name in ("decoding.beam_size", "captioner.decoding.beam_size"):
        changed: Any = override(ONE, {name: 9})
        assert changed["captioner"].decoding.beam_size == 9
    changed: Any = override(ALL, {"trunk.long_side": 512})
    assert {config.trunk.long_side for config in changed.values()} == {512}


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        (ALL, {"xyzzy": 1}, "no part of the model has the option xyzzy; its parts are densecap, aligner, captioner"),
        (ALL, {"beam_size": 1}, "near it are densecap.decoding.beam_size, captioner.decoding.beam_size"),
        (ALL, {"captioner.gird": 1}, "unknown key captioner.gird; did you mean captioner.grid"),
        (ALL, {"grid": 0}, "captioner.grid is 0, but must be between 1 and 64"),
        (ALL, {"own_words": ["moggy"]}, r"densecap.own_words must be a mapping, not \['moggy'\]"),
        (ALL, {"grid": 3, "captioner.grid": 4}, "grid of the captioner is set twice"),
        (ALL, {"trunk.long_side": "wide"}, "trunk.long_side must be a whole number, not 'wide'"),
        (ALL, {"aligner.beta": float("nan")}, "aligner.beta must be a number, not nan"),
        (ONE, {"xyzzy": 1}, "unknown key xyzzy"),
        (ONE, {"decoding.beem_size": 1}, "unknown key decoding.beem_size; did you mean decoding.beam_size"),
        (ONE, {"aligner.beta": 1}, "unknown key aligner"),
    ],
)
def test_what_does_not_fit_is_one_line(configs: dict[str, Any], options: dict[str, Any], message: str) -> None:
    refuses(message, override, configs, options)


def test_parts_keep_the_aligners_defaults_and_whole_images_need_no_anchors() -> None:
    config = AlignerConfig.from_dict({"regions": "whole", "trunk": {"strides": [16]}, "levels": [16]})
    assert not config.uses_proposals and config.uses_head
    assert AlignerConfig.from_dict({"proposals": {"post_nms_top_n": 0}}).uses_proposals
    config = AlignerConfig.from_dict({"proposals": {"post_nms_top_n": 30}})
    assert config.proposals == ProposalConfig(nms_iou=0.5, post_nms_top_n=30)
    assert AlignerConfig.from_dict(config.to_dict()) == config


def test_the_original_is_the_papers_network() -> None:
    config = AlignerConfig.original()
    assert (config.cell, config.rectified, config.score, config.loss, config.margin) == (
        "relu", True, "max", "margin", 1.0,
    )  # fmt: skip
    assert (config.embed_dim, config.hidden_size) == (1000, 300)
    assert not (config.signed_sqrt or config.mean_over_words or config.sentence_token)
    assert config.proposals.post_nms_top_n == 19
    assert AlignerConfig.from_dict(config.to_dict()) == config


def test_the_original_is_the_papers_rnn() -> None:
    config = CaptionerConfig.original()
    assert (config.decoder, config.attend_to, config.hidden_size) == ("rnn", "whole", 512)
    assert config.head and not config.levels and config.smoothing == 0
    assert config.decoding == DecodingConfig(max_words=20, beam_size=7, length_penalty=0.0)
    assert CaptionerConfig.from_dict(config.to_dict()) == config


def test_parts_keep_the_captioners_defaults_and_say_what_is_needed_of_the_trunk() -> None:
    config = CaptionerConfig.from_dict({"decoding": {"beam_size": 7}, "proposals": {"post_nms_top_n": 9}})
    assert config.decoding == DecodingConfig(max_words=16, beam_size=7, length_penalty=0.7)
    assert config.proposals == ProposalConfig(nms_iou=0.5, post_nms_top_n=9)
    assert not CaptionerConfig().uses_proposals and CaptionerConfig().uses_head
    assert CaptionerConfig(attend_to="proposals", head=False).uses_proposals
    assert not CaptionerConfig(attend_to="proposals", head=False).uses_head
    assert not CaptionerConfig.from_dict({"trunk": {"strides": [16]}, "levels": [16]}).uses_proposals


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


REFUSED: dict[Any, list[tuple[dict[str, Any], str]]] = {
    AlignerConfig: [
        ({"embed_dim": 0}, "embed_dim is 0"),
        ({"embed_dim": 15, "encoders": 2}, "embed_dim is 15, but must be a multiple of the 2 encoders"),
        ({"encoders": 0}, "encoders is 0"),
        ({"embed_dim": 10**9}, "embed_dim is 1000000000, but must be between 1 and 16384"),
        ({"hubs": 10**9}, "hubs is 1000000000"),
        ({"hubs": 2, "score": "fragments"}, "hubs is 2, but must be 0 with the score fragments"),
        ({"grounding": {"nms_iou": 1.5}}, "nms_iou is 1.5"),
        ({"sentences": 0}, "sentences is 0"),
        ({"word_dropout": 1.5}, "word_dropout is 1.5, but must be between 0 and 1"),
        ({"dropout": 1}, "dropout is 1.0, but must be at least 0 and below 1"),
        ({"temperature": 0}, "temperature is 0.0, but must be above 0"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
        ({"margin": -1}, "margin is -1.0"),
        ({"beta": -1}, "beta is -1.0"),
        ({"regions": "grid"}, "regions must be one of proposals, whole, not 'grid'"),
        ({"score": "mean"}, "score must be one of max, fragments"),
        ({"cell": "rnn"}, "cell must be one of relu, gru, none"),
        ({"parses": "a.conllu"}, "sentence_token is True, but must be false with parses"),
        ({"relations": ["nsubj"]}, r"relations is \('nsubj',\), but must be empty without parses"),
        ({"loss": "hinge"}, "loss must be one of contrastive, margin"),
        ({"levels": [4]}, r"levels is \(4,\), but must be some of the strides"),
        ({"branch": True}, "branch is True, but must be false without trunk.branch"),
        ({"levels": [], "head": False}, r"levels is \(\), but must be one or more, or head or branch true"),
        ({"trunk": {"backbone": "resnet18"}}, "head is True, but must be false for resnet18"),
        ({"trunk": {"strides": [16]}, "levels": [16]}, "proposals.anchors is"),
        ({"proposals": {"pyramid_channels": 0}}, "proposals.pyramid_channels is 0"),
        ({"proposals": 19}, "proposals must be a mapping, not 19"),
        ({"embed_din": 8}, "did you mean embed_dim"),
    ],
    CaptionerConfig: [
        ({"decoder": "attention", "attend_to": "whole"}, "attend_to is 'whole'"),
        ({"decoder": "rnn", "attend_to": "grid"}, "attend_to is 'grid'"),
        ({"describe_boxes": True}, "describe_boxes is True"),
        ({"trunk": {"backbone": "resnet18"}}, "head is True, but must be false for resnet18"),
        ({"levels": [4]}, r"levels is \(4,\)"),
        ({"branch": True}, "branch is True, but must be false without trunk.branch"),
        ({"levels": [], "head": False}, r"levels is \(\)"),
        ({"trunk": {"strides": [32, 16]}}, "trunk.strides is .* ascending"),
        ({"smoothing": 1.0}, "smoothing is 1.0"),
        (
            {"decoder": "rnn", "attend_to": "whole", "describe_boxes": True, "reward": "cider"},
            "reward is 'cider', but must be none with describe_boxes",
        ),
        ({"reward": "bleu"}, "reward must be one of none, cider"),
        ({"num_samples": 1}, "num_samples is 1"),
        ({"word_weight": -1.0}, "word_weight is -1.0"),
        ({"zoom": 0}, "zoom is 0.0, but must be above 0"),
        ({"attend_to": "boxes"}, "attend_to must be one of whole, grid"),
        ({"grid": 0}, "grid is 0"),
        ({"grid": 10**5}, "grid is 100000, but must be between 1 and 64"),
        ({"num_samples": 10**9}, "num_samples is 1000000000, but must be .* at most 1000"),
        ({"sentences": 10**9}, "sentences is 1000000000"),
        ({"ngrams": {"size": 10**9}}, "ngrams.size is 1000000000"),
        ({"region_size": 0}, "region_size is 0"),
        ({"terms": ["word-state", "colour"]}, r"terms\[1\] must be one of word-state"),
        ({"feedback": "full"}, "feedback must be one of none, marginal, conditional"),
        ({"decoding": {"beam_size": 0}}, "decoding.beam_size is 0"),
        ({"decoding": {"length_penalty": float("inf")}}, "decoding.length_penalty must be a number, not inf"),
        ({"attend_to": "proposals", "trunk": {"strides": [16]}, "levels": [16]}, "proposals.anchors is"),
        ({"attend_to": "proposals", "proposals": {"pyramid_channels": 12}}, "pyramid_channels is 12"),
        ({"attend_to": "proposals", "proposals": {"pyramid_channels": 0}}, "positive with several strides"),
        ({"attend_to": "proposals", "proposals": {"anchors": [[[1, 1]]]}}, "anchors is"),
        ({"attend_to": "proposals", "proposals": {"nms_iou": 0}}, "proposals.nms_iou is 0.0, but must be above 0"),
        ({"attend_to": "proposals", "proposals": {"post_nms_top_n": 0}}, "proposals.post_nms_top_n is 0"),
        ({"hiden_size": 3}, "did you mean hidden_size"),
    ],
    DenseCapConfig: [
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
        *(
            ({"trunk": {"vgg_channels": widths}}, "trunk.vgg_channels is .* five widths")
            for widths in ([1], [3, 4, 4, 5, 0])
        ),
        ({"phrase_levels": [4]}, r"phrase_levels is \(4,\), but must be some of the strides"),
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
        ({"conventions": "mine"}, "conventions must be one of saywhere, original"),
        ({"conventions": "original"}, "trunk.strides is .* one, with conventions=original"),
    ],
    NounsConfig: [
        ({"branch": True}, "branch is True, but must be false without trunk.branch"),
        ({"levels": [4]}, "levels is"),
        ({"temperature": 0}, "temperature is 0"),
        ({"embed_dim": -1}, "embed_dim is -1"),
    ],
}
"""For each configuration values that do not fit, and what is said of them."""


@pytest.mark.parametrize(
    ("kind", "options", "message"), [(kind, *case) for kind, cases in REFUSED.items() for case in cases]
)
def test_what_does_not_fit_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    refuses(message, kind.from_dict, options)
