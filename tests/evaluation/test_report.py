"""Dense captioning from files of lines to the report, without Java; values by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saywhere.errors import UserError
from saywhere.evaluation.calibration import reliability
from saywhere.evaluation.dense_captioning import IOUS, METEORS, DenseCaptioningResult
from saywhere.evaluation.dense_run import Ranked, TrueBoxes, score
from saywhere.evaluation.examples import choose, write_examples
from saywhere.evaluation.region_lines import Proposals, RegionLines
from saywhere.evaluation.report import Facts, dense_row, dense_table, write_dense_report

CAT, DOG = [0, 0, 10, 10], [20, 20, 40, 40]


def equal_words(pairs):
    """In place of METEOR: 1 for the very words, else 0."""
    return [float(said in references) for said, references in pairs]


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files(folder: Path, predictions: list[dict], truth: list[dict], ordered: bool = True) -> tuple:
    said = RegionLines(lines(folder / "p.jsonl", *predictions), ("scores", "captions"), ordered=ordered)
    return said, RegionLines(lines(folder / "t.jsonl", *truth), several=True, ordered=ordered)


def test_scores_by_hand(tmp_path):
    """Two truths; the best detection finds the cat and names it, the next finds the dog and misnames it."""
    predictions = [{"image": "a.jpg", "boxes": [DOG, CAT], "scores": [-3, 7], "captions": ["a cow", "a cat"]}]
    truth = [{"image": "a.jpg", "boxes": [CAT, DOG], "captions": ["a cat", "a dog"]}]
    result, ranking = score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)
    # Precision is 1 up to a recall of 1/2, that is at 51 of 101 recalls, and 0 beyond.
    assert result.ap["iou_0.3/meteor_0"] == result.ap["iou_0.7/meteor_0.25"] == pytest.approx(51 / 101)
    assert (result.map, result.detection_map) == (pytest.approx(51 / 101), 1)
    assert result.language_meteor == pytest.approx(1 / 2)
    assert ranking == [Ranked("a.jpg", pytest.approx(51 / 101), 1)]


def test_equal_boxes_of_several_lines_are_references(tmp_path):
    predictions = [{"image": "a.jpg", "boxes": [CAT], "scores": [0.5], "captions": ["a kitten"]}]
    one = [{"image": "a.jpg", "boxes": [CAT, CAT], "captions": ["a cat", "a kitten"]}]
    two = [{"image": "a.jpg", "boxes": [CAT], "captions": [text]} for text in ("a cat", "a kitten")]
    for truth in (one, two):
        result, _ = score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)
        assert (result.truths, result.map, result.language_meteor) == (1, 1, 1)


def test_pictures_without_a_prediction_lower_the_recall_and_stand_last(tmp_path):
    predictions = [{"image": "./b.jpg", "boxes": [CAT], "scores": [0.5], "captions": ["a cat"]}]
    truth = [{"image": name, "boxes": [CAT], "captions": ["a cat"]} for name in ("a.jpg", "b.jpg")]
    truth.append({"image": "empty.jpg", "boxes": [], "captions": []})
    counted = []
    result, ranking = score(
        *files(tmp_path, predictions, truth),
        ["a.jpg", "b.jpg", "empty.jpg"],
        "clean",
        equal_words,
        lambda: counted.append(1),
    )
    assert (result.images, result.truths, len(counted)) == (3, 2, 3)
    assert result.detection_map == pytest.approx(51 / 101)
    assert [(one.name, one.map) for one in ranking] == [("b.jpg", 1), ("a.jpg", 0)], "one without a truth has no rank"


def test_original_takes_boxes_as_they_stand(tmp_path):
    """Corners name the first and the last pixel: x2 < x1 by one is an empty box, and one pixel is 1 x 1."""
    predictions = [
        {"image": "a.jpg", "boxes": [[5, 5, 5, 5], [-9, 3, -10, 3]], "scores": [2.5, 1], "captions": ["x", "y"]}
    ]
    truth = [{"image": "a.jpg", "boxes": [[5, 5, 5, 6]], "captions": ["x"]}]
    said, true = files(tmp_path, predictions, truth, ordered=False)
    result, _ = score(said, true, ["a.jpg"], "original", equal_words)
    # 1 of 2 pixels: IoU 0.5 reaches 0.3, 0.4 and 0.5; 0.6 and 0.7 not.
    assert list(result.detection_ap.values()) == [1, 1, 1, 0, 0]
    with pytest.raises(UserError, match=r"p\.jsonl line 1: the box \[-9, 3, -10, 3\] is inside out"):
        files(tmp_path, predictions, truth)


def test_different_sizes_are_refused(tmp_path):
    size = {"width": 50, "height": 50}
    predictions = [{"image": "a.jpg", **size, "boxes": [CAT], "scores": [1], "captions": ["x"]}]
    truth = [{"image": "a.jpg", "width": 100, "height": 50, "boxes": [CAT], "captions": ["x"]}]
    with pytest.raises(UserError, match=r"a\.jpg is 50 x 50 in .*p\.jsonl but 100 x 50 in .*t\.jsonl"):
        score(*files(tmp_path, predictions, truth), ["a.jpg"], "clean", equal_words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.jsonl: is empty"),
        ('{"image": "a", "boxes"', "line 1: not JSON"),
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
    with pytest.raises(UserError, match=re.escape(message)):
        RegionLines(tmp_path / "f.jsonl", ("scores", "captions"))


def test_proposals_by_either_name_and_merged_truth(tmp_path):
    rows = [{"image": "/data/x.jpg", "boxes": [CAT]}, {"image": "y.jpg", "boxes": [[0, 0, 10, 8], CAT, DOG]}]
    names = {"x.jpg": ("x.jpg", "/data/x.jpg"), "y.jpg": ("y.jpg", "/data/y.jpg"), "z.jpg": ("z.jpg",)}
    found = RegionLines(lines(tmp_path / "f.jsonl", *rows), needs=())
    boxes = Proposals(found, names)
    assert dict(boxes) == {
        "x.jpg": [(0, 0, 10, 10)],
        "y.jpg": [(0, 0, 10, 8), (0, 0, 10, 10), (20, 20, 40, 40)],
        "z.jpg": [],
    }
    assert TrueBoxes(found, names)["y.jpg"] == [(0, 0, 10, 9), (20, 20, 40, 40)]
    with pytest.raises(
        UserError, match=r"no boxes for any of the 1 pictures; it names '/data/x.jpg', the data 'z.jpg'"
    ):
        Proposals(found, {"z.jpg": ("z.jpg",)})


def result(value: float = 0.25) -> DenseCaptioningResult:
    cells = {f"iou_{t}/meteor_{m}": value for t in IOUS for m in METEORS} | {"iou_0.3/meteor_0": 0.5}
    detection = {f"iou_{t}": 0.75 for t in IOUS}
    return DenseCaptioningResult("clean", 3, 9, 7, 0.2583, 0.75, 0.125, cells, detection)


FACTS = Facts("flickr8k a|b", "dev", "METEOR 1.5", "m", "gt", "p.jsonl", 1.5, "saywhere x", {"c.jpg": "empty file"}, 2)


def test_report(tmp_path):
    colormaps = pytest.importorskip("matplotlib", reason="needs the extra evaluate").colormaps
    written = write_dense_report(tmp_path, result(), FACTS)
    assert [path.name for path in written] == ["report.json", "report.md", "ap.png"]
    row = json.loads((tmp_path / "report.json").read_text())
    assert row == json.loads(json.dumps(dense_row(result(), FACTS)))
    expected = {
        "task": "dense",
        "protocol": "clean",
        "data": "flickr8k a|b",
        "split": "dev",
        "images": 3,
        "map": 0.2583,
    }
    expected |= {"detection_map": 0.75, "language_meteor": 0.125, "meteor_version": "METEOR 1.5", "model": "m"}
    expected |= {"skipped": {"c.jpg": "empty file"}, "without_prediction": 2, "seconds": 1.5, "command": "saywhere x"}
    assert {key: row[key] for key in expected} == expected
    assert len(row["ap"]) == 30 and (row["ap"]["iou_0.3/meteor_0"], row["ap"]["iou_0.7/meteor_0.25"]) == (0.5, 0.25)
    with Image.open(tmp_path / "ap.png") as plot:
        colours = plot.convert("RGB").getcolors(1 << 20)
    # The one cell of 0.5 is at the top of the scale, the 29 of 0.25 in its middle; their values are written on them.
    area = {colour: count for count, colour in colours}
    top, half = (tuple(map(int, colormaps["viridis"](value, bytes=True)[:3])) for value in (1.0, 0.5))
    assert 10 < area[half] / area[top] < 40
    assert row["calibration"] is None
    written = write_dense_report(tmp_path, result(), FACTS, reliability([0.75, 0.75], [True, False]))
    assert [path.name for path in written] == ["report.json", "report.md", "ap.png", "reliability.png"]
    found = json.loads((tmp_path / "report.json").read_text())["calibration"]
    assert (found["ece"], found["brier"], found["boxes"], len(found["bins"])) == (0.25, 0.3125, 2, 1)
    write_dense_report(tmp_path, result(), FACTS)
    assert not (tmp_path / "reliability.png").exists(), "that of an older report"


def test_table():
    table = dense_table(result(), FACTS).splitlines()
    assert "| 0.2583 | 0.7500 | 0.1250 |  |" in table, "no calibration of scores that are no probabilities"
    calibration = reliability([0.75, 0.75], [True, False])
    assert "| 0.2583 | 0.7500 | 0.1250 | 0.2500 |" in dense_table(result(), FACTS, calibration).splitlines()
    assert "| 0.3 | 0.5000 | 0.2500 | 0.2500 | 0.2500 | 0.2500 | 0.2500 | 0.7500 |" in table
    assert "| data | flickr8k a\\|b, split dev |" in table and "| pictures skipped | 1 |" in table
    assert not any("predicted pictures without a truth" in line for line in table), "nothing to say"
    assert len({line.count("|") for line in table if line.startswith(("| IoU", "| 0.3 ", "| 0.7 "))}) == 1


def test_choice_of_examples():
    ranking = [Ranked(str(number), 1 - number / 100, 1) for number in range(11)]

    def chosen(count):
        return [(kind, one.name) for kind, one in choose(ranking[:count], each=2)]

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


def test_examples_show_truth_beside_prediction(tmp_path):
    Image.new("RGB", (60, 30), (10, 20, 200)).save(tmp_path / "a<b>.png")
    predictions = [
        {
            "image": "a<b>.png",
            "boxes": [[0, 0, 30, 30], [-5, 9, 99, 8]],
            "scores": [-1, 4],
            "captions": ["x", 'a "<i>"'],
        },
        {"image": "gone.jpg", "boxes": [], "scores": [], "captions": []},
    ]
    truth = [
        {"image": "a<b>.png", "boxes": [[0, 0, 60, 30]] * 2, "captions": ["sea", "blue"]},
        {"image": "gone.jpg", "width": 20, "height": 80, "boxes": [[0, 0, 9, 9]], "captions": ["y"]},
    ]
    said, true = files(tmp_path, predictions, truth, ordered=False)
    ranking = [Ranked("a<b>.png", 0.5, 0.75), Ranked("gone.jpg", 0, 0)]
    page = write_examples(tmp_path / "out", ranking, said, true, [tmp_path], "original").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "best: a&lt;b&gt;.png, mAP 0.500, boxes alone 0.750",
        "worst: gone.jpg, mAP 0.000, boxes alone 0.000",
    ]
    images = re.findall('<img src="(.*?)" alt="(.*?)">', page)
    assert [alt for _, alt in images] == [
        "truth: sea / blue",
        "prediction: a &quot;&lt;i&gt;&quot;; x",
        "truth: y",
        "prediction: nothing",
    ]
    sizes = [Image.open(tmp_path / "out" / file).size for file, _ in images]
    assert sizes == [(640, 320)] * 2 + [(160, 640)] * 2
    pixels = np.asarray(Image.open(tmp_path / "out" / images[0][0]))
    assert (pixels[200, 320] == (10, 20, 200)).all(), "the photograph"
    pixels = np.asarray(Image.open(tmp_path / "out" / images[3][0]))
    assert (pixels == 225).all(), "grey, and nothing on it"
