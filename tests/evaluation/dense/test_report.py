"""The report of dense captioning: figures, table and plots."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import saywhere
from saywhere.calibration import reliability
from saywhere.evaluation.dense import (
    IOUS,
    METEORS,
    DenseCaptioningResult,
    dense_lines,
    dense_row,
    draw_reliability,
    write_dense_report,
)


def result(value: float = 0.25) -> DenseCaptioningResult:
    cells = {f"iou_{t}/meteor_{m}": value for t in IOUS for m in METEORS} | {"iou_0.3/meteor_0": 0.5}
    detection = {f"iou_{t}": 0.75 for t in IOUS}
    return DenseCaptioningResult("clean", 3, 9, 7, 0.2583, 0.75, 0.125, cells, detection)


KNOWN = {
    "data": "flickr8k a|b",
    "split": "dev",
    "model": "m",
    "proposals": "gt",
    "meteor_version": "METEOR 1.5",
    "predictions": "p.jsonl",
    "without_prediction": 2,
    "without_truth": 0,
    "skipped": {"c.jpg": "empty file"},
    "set": ["decoding.beam_size=3", "final_nms=0.5"],
    "data_problems": {},
    "seconds": 1.5,
    "command": "saywhere x",
}


def test_report(tmp_path):
    colormaps = pytest.importorskip("matplotlib", reason="needs the extra evaluate").colormaps
    written = write_dense_report(tmp_path, result(), KNOWN)
    assert [path.name for path in written] == ["report.json", "report.md", "ap.png"]
    row = json.loads((tmp_path / "report.json").read_text())
    assert row == {**json.loads(json.dumps(dense_row(result(), KNOWN))), "saywhere": saywhere.__version__}
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
    written = write_dense_report(tmp_path, result(), KNOWN, reliability([0.75, 0.75], [True, False]))
    assert [path.name for path in written] == ["report.json", "report.md", "ap.png", "reliability.png"]
    found = json.loads((tmp_path / "report.json").read_text())["calibration"]
    assert (found["ece"], found["brier"], found["boxes"], len(found["bins"])) == (0.25, 0.3125, 2, 1)
    write_dense_report(tmp_path, result(), KNOWN)
    assert not (tmp_path / "reliability.png").exists(), "that of an older report"


def test_table():
    table = dense_lines(result(), KNOWN)
    assert "| 0.2583 | 0.7500 | 0.1250 |  |" in table, "no calibration of scores that are no probabilities"
    calibration = reliability([0.75, 0.75], [True, False])
    assert "| 0.2583 | 0.7500 | 0.1250 | 0.2500 |" in dense_lines(result(), KNOWN, calibration)
    assert "| 0.3 | 0.5000 | 0.2500 | 0.2500 | 0.2500 | 0.2500 | 0.2500 | 0.7500 |" in table
    assert table[table.index("| protocol | clean |") :] == [
        "| protocol | clean |",
        "| data | flickr8k a\\|b, split dev |",
        "| images | 3 |",
        "| regions predicted | 9 |",
        "| true regions (merged) | 7 |",
        "| model | m |",
        "| proposals | gt |",
        "| captions | METEOR 1.5 |",
        "| predictions | p.jsonl |",
        "| images without a prediction | 2 |",
        "| images skipped | 1 |",
        "| set | decoding.beam_size=3, final_nms=0.5 |",
        "| command | `saywhere x` |",
    ]
    assert len({line.count("|") for line in table if line.startswith(("| IoU", "| 0.3 ", "| 0.7 "))}) == 1


def test_the_plot_shows_the_shares(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra evaluate")
    for name, score in (("low", 0.1), ("high", 0.9)):
        draw_reliability(reliability([score] * 4, [True, True, True, False]), tmp_path / f"{name}.png")
    low, high = (
        np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB")).astype(int) for name in ("low", "high")
    )
    assert low.shape == high.shape == (672, 624, 3)
    blue = [(image[..., 2] - image[..., 0] > 50).nonzero()[1].mean() for image in (low, high)]
    assert blue[0] < 250 < 450 < blue[1]
