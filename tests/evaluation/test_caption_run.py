from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from saywhere.errors import UserError
from saywhere.evaluation.caption_lines import read_captions, read_references
from saywhere.evaluation.caption_run import WholePictures, write_caption_examples, write_caption_report
from saywhere.evaluation.captioning import CaptionScores, score_captions
from saywhere.evaluation.meteor import Meteor
from saywhere.images import open_picture
from tests.pictures import quarters
from tests.stubs import StubModel


def put(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_captions_are_read_in_either_form(tmp_path):
    described = {"image": "./b.jpg", "width": 4, "height": 3, "boxes": [[0, 0, 4, 3]], "captions": ["a dog"]}
    path = put(tmp_path / "p.jsonl", {"image": "a.jpg", "caption": "a cat"}, "", described)
    assert read_captions(path) == {"a.jpg": "a cat", "b.jpg": "a dog"}


def test_references_may_stand_together_or_apart(tmp_path):
    rows = [{"image": "a.jpg", "captions": ["x", "y"]}, {"image": "b.jpg", "caption": "z"}]
    path = put(tmp_path / "t.jsonl", *rows, {"image": "p/../a.jpg", "caption": "w"})
    assert read_references(path) == {"a.jpg": ["x", "y", "w"], "b.jpg": ["z"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 1: not JSON"),
        ([1], 'line 1: neither {"image": NAME, "caption": TEXT} nor "captions": [TEXT, ...]'),
        ({"image": "a.jpg"}, "line 1: neither"),
        ({"caption": "a"}, "line 1: neither"),
        ({"image": "a.jpg", "caption": 3}, "line 1: neither"),
        ({"image": "a.jpg", "captions": ["a", "b"]}, "line 1: a.jpg has 2 captions; one sentence"),
        ({"image": "a.jpg", "captions": []}, "line 1: a.jpg has 0 captions"),
        ('{"image": "a.jpg", "caption": "x"}\n{"image": "a.jpg", "caption": "y"}', "line 2: a second line for a.jpg"),
        ("", "p.jsonl: is empty"),
    ],
)
def test_malformed_lines_are_named(tmp_path, row, message):
    with pytest.raises(UserError) as error:
        read_captions(put(tmp_path / "p.jsonl", row))
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: cannot be read \(No such file"):
        read_references(tmp_path / "none.jsonl")


class Sayer:
    """Says the size of each picture and the beam."""

    preprocess = StubModel().preprocess

    def caption(self, images, beam=None):
        return [f"{image.width} by {image.height}, beam {beam}" for image in images]


def test_a_captioner_describes_one_region_that_is_the_whole_picture():
    pictures = [open_picture(quarters(64, 32)), open_picture(quarters(20, 40))]
    regions = WholePictures(Sayer(), beam=3).describe(pictures)
    assert [(r.boxes.tolist(), r.captions) for r in regions] == [
        ([[0, 0, 64, 32]], ("64 by 32, beam 3",)),
        ([[0, 0, 20, 40]], ("20 by 40, beam 3",)),
    ]
    assert WholePictures(Sayer()).describe(pictures)[0].captions == ("64 by 32, beam None",)


METRICS = {"bleu_1": 0.5, "bleu_2": 0.4, "bleu_3": 0.3, "bleu_4": 0.2, "meteor": 0.25, "rouge_l": 0.45, "cider": 0.625}


def test_report_and_page(tmp_path):
    scores = CaptionScores(METRICS, {"a.png": 0.5, "b.png": 0.75})
    known = {"data": "d", "split": None, "beam": 3, "skipped": {"c.png": "cut"}, "command": "saywhere evaluate"}
    write_caption_report(tmp_path, scores, known)
    row = json.loads((tmp_path / "report.json").read_text())
    assert list(row)[:12] == ["task", "protocol", "data", "split", "images", *METRICS]
    assert {name: row[name] for name in METRICS} == METRICS and row["images"] == 2
    text = (tmp_path / "report.md").read_text()
    assert "| 0.5000 | 0.4000 | 0.3000 | 0.2000 | 0.2500 | 0.4500 | 0.6250 |" in text
    assert "| beam | 3 |" in text and "| pictures skipped | 1 |" in text
    quarters(64, 32).save(tmp_path / "a.png")
    said, true = {"a.png": "a <cat>", "b.png": ""}, {"a.png": ["the cat"], "b.png": ["x & y", "z"]}
    write_caption_examples(tmp_path, scores, said, true, [tmp_path])
    page = (tmp_path / "examples.html").read_text()
    places = [page.index(part) for part in ("best: b.png, CIDEr-D 0.750", "nothing<", "x &amp; y", "worst: a.png")]
    assert places == sorted(places) and "<figcaption>a &lt;cat&gt;</figcaption>" in page
    assert {path.name for path in (tmp_path / "examples").iterdir()} == {"01-best.png", "02-worst.png"}


@pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")
def test_cider_of_each_picture_makes_up_the_whole(real: Meteor) -> None:
    true = {"z": ["a black dog runs"], "a": ["two men ride bikes"], "m": ["a red hat", "the large red hat"]}
    said = {"m": "a red hat", "z": "a black dog runs", "a": "grass"}
    scores = score_captions(said, true, real)
    assert list(scores.cider) == ["m", "z", "a"]
    assert scores.cider["a"] == 0 < scores.cider["m"] < scores.cider["z"]
    assert scores.metrics["cider"] == pytest.approx(sum(scores.cider.values()) / 3)
    assert scores.cider["z"] == pytest.approx(10), "the same words as the only reference"
