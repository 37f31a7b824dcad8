"""``saywhere evaluate search`` as it is typed, on a tiny aligner."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flickr_entities import write_flickr
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner
from typer.testing import CliRunner

from saywhere import boxes as geometry
from saywhere import cli
from saywhere.networks import checkpoint


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
