"""What the reports of all tasks share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import saywhere
from saywhere.evaluation.report import cell, facts, save_figure, table, write_report


def test_both_files_are_written(tmp_path: Path) -> None:
    written = write_report(tmp_path / "new", {"task": "x", "file": "a\udcff"}, ["# X", "\udcff"])
    assert written == [tmp_path / "new" / "report.json", tmp_path / "new" / "report.md"]
    row = json.loads(written[0].read_text())
    assert row == {"task": "x", "file": "a\udcff", "saywhere": saywhere.__version__}
    assert written[1].read_text() == "# X\n?\n", "what is not UTF-8 is replaced"


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_report(tmp_path, {"task": "old"}, ["old"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError):
        write_report(tmp_path, {"task": object()}, ["new"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_tables() -> None:
    assert table(("", "a|b"), [("x\ny", None), (1234567, 0.5)]) == [
        "|  | a\\|b |",
        "|---|---|",
        "| x y |  |",
        "| 1,234,567 | 0.5 |",
    ]
    assert cell("a  |\t b") == "a \\| b"


def test_facts() -> None:
    values = {
        "beam_size": 3,
        "skipped": {"a.jpg": "cut", "b.jpg": "cut"},
        "set": ["a=1", "b=2"],
        "none": None,
        "zero": 0,
    }
    assert facts(values)[2:] == ["| beam size | 3 |", "| skipped | 2 |", "| set | a=1, b=2 |"]


def test_figures_are_whole_or_not_there(tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra evaluate")
    save_figure(figures.Figure(), tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes()[:4] == b"\x89PNG"

    class Broken(figures.Figure):
        def savefig(self, *_, **__):
            raise OSError(28, "disk full")

    with pytest.raises(OSError, match="disk full"):
        save_figure(Broken(), tmp_path / "new" / "b.png")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]
