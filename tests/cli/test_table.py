"""Tables on a terminal: columns, folding, colours."""

from __future__ import annotations

import pytest

from saywhere.cli.printing import print_table

HEADER = ("score", "box", "caption")


def test_numbers_stand_to_the_right_and_text_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADER, [("0.92", "69 63 198 159", "a dog"), ("0.1", "0 5 8 9", "the grass")])
    assert capsys.readouterr().out.splitlines() == [
        "  score             box  caption",
        " ─────────────────────────────────",
        "   0.92   69 63 198 159  a dog",
        "    0.1         0 5 8 9  the grass",
    ]


def test_long_text_is_folded_in_its_column(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(HEADER, [("0.92", "1 2 3 4", "a man in a red shirt who climbs"), ("", "", "")])
    lines = capsys.readouterr().out.splitlines()
    assert [line[18:].strip() for line in lines[2:]] == ["a man in a red shirt", "who climbs", ""]
    assert max(map(len, lines)) <= 40


def test_text_cannot_leave_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("phrase",), [("a\x1b[31m dog",)])
    assert capsys.readouterr().out.splitlines()[2] == " a\\x1b[31m dog"


def test_without_rows_there_is_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADER, [])
    assert capsys.readouterr().out.splitlines()[0].split() == list(HEADER)
