"""The captioner's options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.parts import DecodingConfig, ProposalConfig
from saywhere.errors import UserError


def test_the_original_is_the_papers_rnn() -> None:
    config = CaptionerConfig.original()
    assert (config.decoder, config.attend_to, config.hidden_size) == ("rnn", "whole", 512)
    assert config.head and not config.levels and config.smoothing == 0
    assert config.decoding == DecodingConfig(max_words=20, beam_size=7, length_penalty=0.0)
    assert CaptionerConfig.from_dict(config.to_dict()) == config


def test_parts_keep_the_captioners_defaults() -> None:
    config = CaptionerConfig.from_dict({"decoding": {"beam_size": 7}, "proposals": {"post_nms_top_n": 9}})
    assert config.decoding == DecodingConfig(max_words=16, beam_size=7, length_penalty=0.7)
    assert config.proposals == ProposalConfig(nms_iou=0.5, post_nms_top_n=9)


def test_what_is_needed_of_the_trunk() -> None:
    assert not CaptionerConfig().uses_proposals and CaptionerConfig().uses_head
    assert CaptionerConfig(attend_to="proposals", head=False).uses_proposals
    assert not CaptionerConfig(attend_to="proposals", head=False).uses_head
    assert not CaptionerConfig.from_dict({"trunk": {"strides": [16]}, "levels": [16]}).uses_proposals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "attention", "attend_to": "whole"}, "attend_to is 'whole'"),
        ({"decoder": "rnn", "attend_to": "grid"}, "attend_to is 'grid'"),
        ({"decoder": "rnn", "attend_to": "whole", "context": True}, "context is True"),
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
        ({"grid": 0}, "grid is 0"),
        ({"grid": 10**5}, "grid is 100000, but must be between 1 and 64"),
        ({"num_samples": 10**9}, "num_samples is 1000000000, but must be .* at most 1000"),
        ({"sentences": 10**9}, "sentences is 1000000000"),
        ({"ngrams": {"size": 10**9}}, "ngrams.size is 1000000000"),
        ({"region_size": 0}, "region_size is 0"),
        ({"terms": ["word-state", "colour"]}, r"terms\[1\] must be one of word-state"),
        ({"feedback": "full"}, "feedback must be one of none, marginal, conditional"),
        ({"pooling": "sum"}, "pooling must be one of mean, max"),
        ({"decoding": {"beam_size": 0}}, "decoding.beam_size is 0"),
        ({"decoding": {"length_penalty": float("inf")}}, "decoding.length_penalty must be a number, not inf"),
        ({"attend_to": "proposals", "trunk": {"strides": [16]}, "levels": [16]}, "proposals.anchors is"),
        ({"attend_to": "proposals", "proposals": {"nms_iou": 0}}, "proposals.nms_iou is 0.0, but must be above 0"),
        ({"attend_to": "proposals", "proposals": {"post_nms_top_n": 0}}, "proposals.post_nms_top_n is 0"),
        ({"hiden_size": 3}, "did you mean hidden_size"),
        ({"ngrams": {"consensus": 0.3}}, r"unknown key ngrams\.consensus; it is no longer an option: remove it"),
        ({"neighbours": {"sentences": 0}}, "unknown key neighbours; it is no longer an option: remove it"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CaptionerConfig.from_dict(options)
