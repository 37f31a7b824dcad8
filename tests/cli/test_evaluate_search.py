"""``saywhere evaluate search`` as it is typed, on a tiny aligner."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flickr_entities import write_flickr
from PIL import Image
from stubs import calibrated
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner
from typer.testing import CliRunner

from saywhere import boxes as geometry
from saywhere import cli
from saywhere.networks import checkpoint


def test_what_is_there_is_measured(tmp_path) -> None:
    model = checkpoint.save(tiny_aligner(), tmp_path / "model")
    calibrated(phrase=(0.02, 0.0, 0.0, 0.0)).write(model)
    flickr = write_flickr(tmp_path / "flickr8k")
    command = ["evaluate", "search", "--data", str(flickr), "--out", str(tmp_path / "out"), "--device", "cpu"]
    command += ["--model", str(model)]
    first = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert first.exit_code == 0 and "is it there: AUC" in first.stdout
    with Image.open(tmp_path / "out" / "reliability.png") as plot:
        assert plot.width > 400 and plot.height > 400
    there = report(tmp_path / "out")["presence"]
    assert there["own_error"] is None and there["queries"] > 20 and 0 < there["outside_limit"] <= 1
    what = ["calibrate", str(model), "--what", "hit", "--data", str(flickr), "--device", "cpu"]
    done = CliRunner().invoke(cli.app, what, catch_exceptions=False)
    assert done.exit_code == 0 and "split dev" in done.stdout, done.output
    stored = json.loads((model / "calibration.json").read_text())
    for question in ("hit", "chance", "meant"):
        fit = there["fits"][question]
        assert stored[question] == {**fit["weights"], "constant": fit["constant"]}
    CliRunner().invoke(cli.app, command, catch_exceptions=False)  # the vectors are taken over: they are the same
    again = report(tmp_path / "out")["presence"]
    assert again["own_error"] is not None and {**again, "own_error": None} == there


def test_a_collection_in_qdrant_is_compared(tmp_path) -> None:
    pytest.importorskip("qdrant_client")
    model = str(checkpoint.save(tiny_aligner(), tmp_path / "model"))
    command = ["evaluate", "search", "--model", model, "--data", str(write_flickr(tmp_path / "flickr8k"))]
    command += ["--out", str(tmp_path / "out"), "--device", "cpu", "--url", f"path:{tmp_path / 'db'}"]
    for _ in range(2):  # the collection of the first run is gone
        result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
        assert result.exit_code == 0 and "Qdrant: 1.0000 of the ten best are found too (8 sentences)" in result.stdout
    assert report(tmp_path / "out")["served"] == {"url": command[-1], "overlap": 1.0, "queries": 8}
    assert "| ten best that Qdrant finds too" in (tmp_path / "out" / "report.md").read_text()


def test_a_model_that_is_not_calibrated_for_phrases_cannot_be_for_hits(tmp_path) -> None:
    model, flickr = checkpoint.save(tiny_aligner(), tmp_path / "model"), write_flickr(tmp_path / "flickr8k")
    command = ["calibrate", str(model), "--what", "hit", "--data", str(flickr), "--device", "cpu"]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "calibrate --what phrase" in result.stderr


def report(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_recall_equals_that_of_rank_and_phrases_are_looked_for(tmp_path) -> None:
    model = str(checkpoint.save(tiny_aligner(), tmp_path / "model"))
    flickr = write_flickr(tmp_path / "flickr8k")
    for task in ("rank", "search"):
        command = ["evaluate", task, "--model", model, "--data", str(flickr), "--out", str(tmp_path / task)]
        result = CliRunner().invoke(cli.app, [*command, "--device", "cpu"], catch_exceptions=False)
        assert (result.exit_code, result.stderr) == (0, "")
    rank, search = report(tmp_path / "rank"), report(tmp_path / "search")
    assert search["recall"] == rank["text_to_image"]
    assert search["code_recall"] == search["recall"] and "by codes alone R@1" in result.stdout
    assert (search["overlap"], search["images"], search["sentences"], search["phrases"]) == (1.0, 4, 8, 4)
    assert "4 phrases" in result.stdout and (tmp_path / "search" / "index" / "index.sqlite").is_file()

    reader = aligner_model(tiny_aligner())
    paths = [flickr / "Images" / f"{n}_x.jpg" for n in range(4)]
    images, right = reader.embed(paths), 0
    for number, sentence in enumerate(SENTENCES):
        phrase = " ".join(sentence.lower().rstrip(".").split()[:3])
        first = int(reader.similarity(images, [reader.embed_text(phrase)])[:, 0].argmax())
        box = reader.ground(paths[first], [phrase]).boxes
        right += first == number and geometry.iou(box, np.array([[0.0, 0, 40, 60]]))[0, 0] >= 0.5
    assert search["hit"] == right / 4
