"""Encodings that are kept: how many, how long, and made once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from saywhere.serve.limits import Encodings, Limits, tag_of


def made(name: str) -> Any:
    return lambda: name


def test_the_last_are_kept() -> None:
    kept = Encodings(Limits(encodings=2))
    assert [kept.make(tag, made(tag)) for tag in "ab"] == ["a", "b"]
    assert kept.find("a") == "a"  # and so "b" is the oldest
    assert kept.make("c", made("c")) == "c"
    assert [kept.find(tag) for tag in "abc"] == ["a", None, "c"] and len(kept) == 2
    assert kept.make("a", made("another")) == "a"


def test_none_is_kept_if_none_may_be() -> None:
    kept = Encodings(Limits(encodings=0))
    assert kept.make("a", made("a")) == "a" and kept.find("a") is None


def test_they_are_dropped_after_a_while() -> None:
    kept = Encodings(Limits(encoding_seconds=0.05))
    kept.make("a", made("a"))
    time.sleep(0.1)
    assert kept.find("a") is None and len(kept) == 0


def test_an_error_is_raised_and_not_kept() -> None:
    kept = Encodings(Limits())

    def fail() -> Any:
        raise ValueError("no image")

    with pytest.raises(ValueError, match="no image"):
        kept.make("a", fail)
    assert kept.make("a", made("a")) == "a"


def test_a_tag_is_of_the_bytes() -> None:
    assert tag_of(b"a") == tag_of(b"a") != tag_of(b"b")
