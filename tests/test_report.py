from __future__ import annotations

import io
import sys

import pytest

from saywhere.report import progress


def test_a_bar_shows_names_with_braces_and_brackets_as_they_are(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with progress("{0} [b].mp4", 2) as advance:
        advance()
    assert "{0} [b].mp4" in shown.getvalue()
