"""The aligner's options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.parts import ProposalConfig
from saywhere.errors import UserError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 0}, "embed_dim is 0"),
        ({"embed_dim": 15, "encoders": 2}, "embed_dim is 15, but must be a multiple of the 2 encoders"),
        ({"encoders": 0}, "encoders is 0"),
        ({"embed_dim": 10**9}, "embed_dim is 1000000000, but must be between 1 and 16384"),
        ({"hubs": 10**9}, "hubs is 1000000000"),
        ({"sentences": 0}, "sentences is 0"),
        ({"word_dropout": 1.5}, "word_dropout is 1.5, but must be between 0 and 1"),
        ({"dropout": 1}, "dropout is 1.0, but must be at least 0 and below 1"),
        ({"temperature": 0}, "temperature is 0.0, but must be above 0"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
        ({"margin": -1}, "margin is -1.0"),
        ({"beta": -1}, "beta is -1.0"),
        ({"regions": "grid"}, "regions must be one of proposals, whole, not 'grid'"),
        ({"normalize": "areas"}, "normalize must be one of none, regions, both"),
        ({"score": "mean"}, "score must be one of max, fragments"),
        ({"cell": "rnn"}, "cell must be one of relu, gru, lstm, none"),
        ({"parses": "a.conllu"}, "sentence_token is True, but must be false with parses"),
        (
            {"parses": "a.conllu", "sentence_token": False, "phrase_weight": 1},
            "phrase_weight is 1.0, but must be 0 with",
        ),
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
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AlignerConfig.from_dict(options)


def test_whole_images_need_no_anchors_and_proposals_may_be_none() -> None:
    config = AlignerConfig.from_dict({"regions": "whole", "trunk": {"strides": [16]}, "levels": [16]})
    assert not config.uses_proposals and config.uses_head
    assert AlignerConfig.from_dict({"proposals": {"post_nms_top_n": 0}}).uses_proposals


def test_parts_keep_the_aligners_defaults() -> None:
    config = AlignerConfig.from_dict({"proposals": {"post_nms_top_n": 30}})
    assert config.proposals == ProposalConfig(nms_iou=0.5, post_nms_top_n=30)
    assert AlignerConfig.from_dict(config.to_dict()) == config


def test_the_original_is_the_papers_network() -> None:
    config = AlignerConfig.original()
    assert (config.cell, config.rectified, config.loss, config.embed_dim, config.hidden_size) == (
        "relu", True, "margin", 1000, 300,
    )  # fmt: skip
    assert not (config.signed_sqrt or config.mean_over_words or config.sentence_token)
    assert config.proposals.post_nms_top_n == 19
    assert AlignerConfig.from_dict(config.to_dict()) == config
