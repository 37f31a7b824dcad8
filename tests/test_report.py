from __future__ import annotations

import io
import sys

import pytest

from saywhere.report import counted, progress


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [(0, "image", "0 images"), (1, "box", "1 box"), (2, "box", "2 boxes"), (1, "query", "1 query"),
     (2000, "query", "2,000 queries"), (3, "found phrase", "3 found phrases")],
)  # fmt: skip
def test_one_thing_is_named_in_the_singular(number: int, thing: str, text: str):
    assert counted(number, thing) == text


def test_a_bar_shows_names_with_braces_and_brackets_as_they_are(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with progress("{0} [b].mp4", 2) as advance:
        advance()
    assert "{0} [b].mp4" in shown.getvalue()
