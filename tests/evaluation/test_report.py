"""Reports: both files, tables, and pages of examples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from photographs import quarters
from PIL import Image

import saywhere
from saywhere.evaluation.report import Page, cell, choose, facts, save_figure, table, write_report
from saywhere.regions import Regions


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


def test_choice_of_examples():
    ranking = [str(number) for number in range(11)]

    def chosen(count):
        return choose(ranking[:count], each=2)

    assert chosen(11) == [
        ("best", "0"),
        ("best", "1"),
        ("median", "4"),
        ("median", "5"),
        ("worst", "9"),
        ("worst", "10"),
    ]
    assert chosen(3) == [("best", "0"), ("median", "1"), ("worst", "2")]
    assert chosen(2) == [("best", "0"), ("worst", "1")]
    assert (chosen(1), chosen(0)) == ([("best", "0")], [])


def test_a_page_shows_images_and_escapes_their_texts(tmp_path: Path) -> None:
    quarters(64, 32).save(tmp_path / "a.png")
    page = Page(tmp_path / "out", "A & B", "What <is> here.", [tmp_path / "nowhere", tmp_path], across=4)
    page.heading("1 < 2")
    page.paragraph("x & y")
    page.figure("one.png", "a.png", Regions(64, 32, [[0, 0, 64, 32]], captions=('a "cat"',)), "found")
    page.figure("two.png", "gone.png", Regions.empty(10, 20), "not <found>")
    text = page.write().read_text()
    assert re.findall("<(?:h1|h2|p|figcaption)>(.*?)</", text) == [
        "A &amp; B", "What &lt;is&gt; here.", "1 &lt; 2", "x &amp; y", "found", "not &lt;found&gt;"
    ]  # fmt: skip
    assert re.findall('<img src="(.*?)" alt="(.*?)">', text) == [
        ("examples/one.png", "found: a &quot;cat&quot;"),
        ("examples/two.png", "not &lt;found&gt;: nothing"),
    ]
    assert "width:calc(25% - 1.2em)" in text
    one, two = (Image.open(tmp_path / "out" / "examples" / name) for name in ("one.png", "two.png"))
    assert (one.size, two.size) == ((640, 320), (320, 640))
    assert two.getcolors() == [(320 * 640, (225, 225, 225))], "grey: there is no such image"
    colours = one.resize((8, 8)).getcolors()
    assert colours is not None and len(colours) > 4, "the photograph and its box"
