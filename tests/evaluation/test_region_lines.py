"""Files of results: what any program may write, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from saywhere.evaluation.region_lines import RegionLines, read_captions, read_references

CAT, DOG = [0, 0, 10, 10], [20, 20, 40, 40]


def put(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_regions_of_any_program(tmp_path):
    """Scores of any range, boxes that leave the image, names with a dot; captions and sizes may be missing."""
    rows = [
        {"image": "./a.jpg", "width": 50, "height": 40.5, "boxes": [[-5, 0, 99.5, 10], CAT], "scores": [-3, 7]},
        {"image": "b.jpg", "boxes": []},
    ]
    found = RegionLines(put(tmp_path / "p.jsonl", *rows), needs=("scores",))
    assert found.names == ["a.jpg", "b.jpg"] and len(found) == 2 and "./b.jpg" in found and "c.jpg" not in found
    one = found["a.jpg"]
    assert one.boxes.dtype == np.float64 and one.boxes.tolist() == [[-5, 0, 99.5, 10], CAT]
    assert one.scores is not None and one.scores.tolist() == [-3, 7]
    assert (one.captions, one.size) == (None, (50, 40.5))
    for name in ("b.jpg", "c.jpg"):
        nothing = found[name]
        assert nothing.boxes.shape == (0, 4) and nothing.scores is not None and nothing.scores.shape == (0,)
        assert (nothing.captions, nothing.size) == ((), None)


def test_several_lines_of_an_image_are_joined_if_that_is_allowed(tmp_path):
    rows = [
        {"image": "a.jpg", "boxes": [CAT], "captions": ["a cat"], "scores": [0.5]},
        {"image": "b.jpg", "boxes": [DOG], "captions": ["a cow"]},
        {"image": "a.jpg", "width": 60, "height": 50, "boxes": [DOG], "captions": ["a dog"]},
    ]
    path = put(tmp_path / "p.jsonl", *rows)
    joined = RegionLines(path, several=True)["a.jpg"]
    assert joined.boxes.tolist() == [CAT, DOG] and joined.captions == ("a cat", "a dog") and joined.size == (60, 50)
    assert joined.scores is None, "one line has none"
    refuses(r"p\.jsonl line 3: a\.jpg is already in line 1", RegionLines, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.jsonl: is empty"),
        ('{"image": "a", "boxes"', "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON (it is nested too deeply)"),
        ('\n{"image": "a", "boxes": [], "image": "b"}', "line 2: not JSON (the key 'image' is there twice"),
        ('{"boxes": []}', 'line 1: not {"image": NAME'),
        ('\n{"image": "a", "boxes": [[1, 2, 3]]}', "line 2: [1, 2, 3] is not a box"),
        ('{"image": "a", "boxes": [[1, 2, NaN, 4]]}', "line 1: [1, 2, NaN, 4] is not a box"),
        (f'{{"image": "a", "boxes": [[1, 2, 1{"0" * 400}, 4]]}}', "is not a box"),
        ('{"image": "a", "boxes": [[1, 2, 3, 4]], "captions": ["x"]}', "line 1: has boxes but no scores"),
        ('{"image": "a", "boxes": [[1, 2, 3, 4]], "captions": [], "scores": [1]}', "captions are not a list of 1"),
        ('{"image": "a", "boxes": [[1, 2, 3, 4]], "captions": [4], "scores": [1]}', "a caption is not a text"),
        ('{"image": "a", "boxes": [[1, 2, 3, 4]], "captions": ["x"], "scores": ["1"]}', "a score is not a number"),
        ('{"image": "a", "boxes": [], "width": 3}', "line 1: width and height [3] are not two positive numbers"),
        ('{"image": "a", "boxes": []}\n{"image": "./a", "boxes": []}', "line 2: a is already in line 1"),
    ],
)
def test_malformed_lines_are_named(tmp_path, text, message):
    (tmp_path / "f.jsonl").write_text(text)
    refuses(re.escape(message), RegionLines, tmp_path / "f.jsonl", ("scores", "captions"))


def test_a_mark_before_the_lines_is_passed_over_and_they_end_at_newlines(tmp_path):
    row = {"image": "a\u2028b.jpg", "boxes": [CAT], "captions": ["a\x85cat"]}
    text = f"{json.dumps(row, ensure_ascii=False)}\r\n{json.dumps({**row, 'image': 'b.jpg'})}"
    (tmp_path / "f.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    lines = RegionLines(tmp_path / "f.jsonl")
    assert lines.names == ["a\u2028b.jpg", "b.jpg"]
    assert lines["a\u2028b.jpg"].captions == ("a\x85cat",)


def test_captions_and_references_are_read_in_either_form(tmp_path):
    described = {"image": "./b.jpg", "width": 4, "height": 3, "boxes": [[0, 0, 4, 3]], "captions": ["a dog"]}
    path = put(tmp_path / "p.jsonl", {"image": "a.jpg", "caption": "a cat"}, "", described)
    assert read_captions(path) == {"a.jpg": "a cat", "b.jpg": "a dog"}
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
def test_malformed_captions_are_named(tmp_path, row, message):
    assert message in refuses("", read_captions, put(tmp_path / "p.jsonl", row))


def test_a_file_that_is_not_there_is_named(tmp_path):
    refuses(r"none\.jsonl: cannot be read \(No such file", read_references, tmp_path / "none.jsonl")


def test_phrases_of_training_data_are_lists(tmp_path: Path) -> None:
    """A text is no list of its letters."""
    line = {
        "image": "a.jpg",
        "regions": [{"box": CAT, "phrases": ["a cat", "a tabby"]}, {"box": DOG, "phrase": "a dog"}],
    }
    found = RegionLines(put(tmp_path / "t.jsonl", line))["a.jpg"]
    assert found.boxes.tolist() == [CAT, CAT, DOG] and found.captions == ("a cat", "a tabby", "a dog")
    line["regions"][0]["phrases"] = "a cat"
    refuses('t.jsonl.* the phrases "a cat" are not a list of texts', RegionLines, put(tmp_path / "t.jsonl", line))
