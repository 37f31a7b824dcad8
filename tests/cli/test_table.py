"""Tables on a terminal: columns, folding, colours."""

from __future__ import annotations

import pytest

from saywhere.cli import printing
from saywhere.cli.printing import print_row, print_table

HEADER = ("score", "box", "caption")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)


def test_piped_a_table_has_tabs_and_whole_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: False)
    monkeypatch.setenv("COLUMNS", "40")
    name = "a/long/folder/with a name of more letters than the terminal has.jpg"
    print_table(("", "image", "phrases"), [("1", name, "a man [0 0 5 5]\na\tdog [1 2 3 4]")], left=["image"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["\timage\tphrases", f"1\t{name}\ta man [0 0 5 5]; a\\tdog [1 2 3 4]"]


def test_a_name_is_not_folded_and_lines_stay_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("1", "a/long/folder/with/a/name.jpg", "a man\na dog"), ("2", "b.jpg", "")]
    print_table(("", "image", "phrases"), rows, left=["image"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "  1   a/long/folder/with/a/name.jpg  a man" and lines[3].strip() == "a dog"
    assert lines[4].split() == ["2", "b.jpg"] and lines[4].index("b.jpg") == lines[2].index("a/long")


def test_rows_stand_in_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    print_row("boxes", "7", "12", widths=(6, 5, 2))
    print_row("a", "", widths=(6, 0))
    monkeypatch.setattr(printing, "on_terminal", lambda: False)
    print_row("boxes", "7", "", widths=(6, 5, 2))
    assert capsys.readouterr().out == "boxes       7  12\na\nboxes\t7\t\n"


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


def test_text_cannot_leave_its_line_and_without_rows_there_is_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("phrase",), [("a\x1b[31m dog",)])
    assert capsys.readouterr().out.splitlines()[2] == " a\\x1b[31m dog"
    print_table(HEADER, [])
    assert capsys.readouterr().out.splitlines()[0].split() == list(HEADER)
