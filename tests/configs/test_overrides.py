"""Options of a model with several parts."""

from __future__ import annotations

from typing import Any

import pytest

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import override
from saywhere.errors import UserError

ALL = {"densecap": DenseCapConfig(), "aligner": AlignerConfig(), "captioner": CaptionerConfig()}
ONE = {"captioner": CaptionerConfig()}


def test_an_option_of_one_part_needs_no_part() -> None:
    changed: Any = override(ALL, {"grid": 3, "repeat_nms": None, "encoders": 2})
    assert (changed["captioner"].grid, changed["densecap"].repeat_nms, changed["aligner"].encoders) == (3, None, 2)
    assert changed["densecap"].merge({"repeat_nms": 0.4}) == ALL["densecap"]


def test_an_option_of_several_parts_needs_the_part() -> None:
    changed: Any = override(ALL, {"captioner.decoding.beam_size": 9, "aligner": {"proposals": {"nms_iou": 0.1}}})
    assert changed["captioner"].decoding.beam_size == 9 and changed["captioner"].decoding.max_words == 16
    assert changed["aligner"].proposals.nms_iou == 0.1 and changed["aligner"].proposals.post_nms_top_n == 19
    assert changed["densecap"] == ALL["densecap"]
    wanted = "decoding.beam_size is an option of several parts: set densecap.* or captioner.decoding.beam_size"
    with pytest.raises(UserError, match=wanted):
        override(ALL, {"decoding.beam_size": 3})


def test_the_only_part_needs_no_name_and_may_have_it() -> None:
    for name in ("decoding.beam_size", "captioner.decoding.beam_size"):
        changed: Any = override(ONE, {name: 9})
        assert changed["captioner"].decoding.beam_size == 9


def test_the_trunk_changes_for_all_parts_alike() -> None:
    changed: Any = override(ALL, {"trunk.long_side": 512})
    assert {config.trunk.long_side for config in changed.values()} == {512}


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        (ALL, {"xyzzy": 1}, "no part of the model has the option xyzzy; its parts are densecap, aligner, captioner"),
        (ALL, {"beam_size": 1}, "near it are densecap.decoding.beam_size, captioner.decoding.beam_size"),
        (ALL, {"captioner.gird": 1}, "unknown key captioner.gird; did you mean captioner.grid"),
        (ALL, {"grid": 0}, "captioner.grid is 0, but must be between 1 and 64"),
        (ALL, {"grid": 3, "captioner.grid": 4}, "grid of the captioner is set twice"),
        (ALL, {"trunk.long_side": "wide"}, "trunk.long_side must be a whole number, not 'wide'"),
        (ALL, {"aligner.beta": float("nan")}, "aligner.beta must be a number, not nan"),
        (ONE, {"xyzzy": 1}, "unknown key xyzzy"),
        (ONE, {"decoding.beem_size": 1}, "unknown key decoding.beem_size; did you mean decoding.beam_size"),
        (ONE, {"aligner.beta": 1}, "unknown key aligner"),
    ],
)
def test_what_does_not_fit_is_one_line(configs: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        override(configs, options)
    assert "\n" not in str(error.value)
