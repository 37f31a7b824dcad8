"""The page of examples of dense captioning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from saywhere.evaluation.dense import Ranked, write_examples
from saywhere.evaluation.region_lines import RegionLines


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files(folder: Path, predictions: list[dict], truth: list[dict], ordered: bool = True) -> tuple:
    said = RegionLines(lines(folder / "p.jsonl", *predictions), ("scores", "captions"), ordered=ordered)
    return said, RegionLines(lines(folder / "t.jsonl", *truth), several=True, ordered=ordered)


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
