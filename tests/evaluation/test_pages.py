from __future__ import annotations

import re
from pathlib import Path

from photographs import quarters
from PIL import Image

from saywhere.evaluation.report import Page, choose
from saywhere.regions import Regions


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
