"""``saywhere evaluate rank`` as it is typed, on a tiny aligner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from flickr_entities import backwards, write_flickr
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def aligner(tmp_path_factory) -> str:
    return str(checkpoint.save(tiny_aligner(), tmp_path_factory.mktemp("aligner")))


@pytest.fixture(scope="module")
def flickr(tmp_path_factory) -> Path:
    return write_flickr(tmp_path_factory.mktemp("data") / "flickr8k")


def rank(*arguments: object) -> Result:
    return CliRunner().invoke(
        cli.app, ["evaluate", "rank", *map(str, arguments), "--device", "cpu"], catch_exceptions=False
    )


def report(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_it_writes_the_report_and_is_resumed(aligner, flickr, tmp_path):
    out = tmp_path / "out"
    result = rank("--model", aligner, "--data", flickr, "--out", out, "--batch", 3)
    assert (result.exit_code, result.stderr) == (0, "")
    row = report(out)
    assert (row["task"], row["split"], row["images"], row["sentences"]) == ("rank", "dev", 4, 8)
    for direction in ("image_to_text", "text_to_image"):
        assert set(row[direction]) == {"r1", "r5", "r10", "median_rank"} and row[direction]["r10"] == 1.0
    files = sorted((out / "regions").iterdir())
    assert len(files) == 4
    files[1].unlink()
    times = {path: path.stat().st_mtime_ns for path in files if path.exists()}
    again = rank("--model", aligner, "--data", flickr, "--out", out)
    assert again.exit_code == 0 and report(out)["image_to_text"] == row["image_to_text"]
    assert files[1].exists() and all(path.stat().st_mtime_ns == t for path, t in times.items())
    other = rank("--model", aligner, "--data", flickr, "--out", out, "--regions", 2)
    assert other.exit_code == 2 and "another regions" in other.stderr


def test_the_figures_are_those_of_the_model(aligner, flickr, tmp_path):
    assert rank("--model", aligner, "--data", flickr, "--out", tmp_path).exit_code == 0
    model = aligner_model(tiny_aligner())
    images = model.embed([str(flickr / "Images" / f"{n}_x.jpg") for n in range(4)])
    texts = [t for s in SENTENCES for t in (s, backwards(s))]
    scores = model.similarity(images, model.embed_text(texts))
    first = sum(int(scores[k].argmax()) // 2 == k for k in range(4)) / 4
    row = report(tmp_path)
    assert row["image_to_text"]["r1"] == first
    assert row["text_to_image"]["r1"] == sum(int(scores[:, i].argmax()) == i // 2 for i in range(8)) / 8


def test_images_that_cannot_be_read_are_skipped_and_named(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "flickr8k")
    data = (root / "Images/1_x.jpg").read_bytes()
    (root / "Images/1_x.jpg").write_bytes(data[: len(data) // 2])
    result = rank("--model", aligner, "--data", root, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "skipped: Images/1_x.jpg: " in result.stderr
    assert report(tmp_path / "out")["images"] == 3 and report(tmp_path / "out")["sentences"] == 6


def test_it_ends_without_one_image_that_can_be_read(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "flickr8k")
    data = {path: path.read_bytes() for path in (root / "Images").iterdir()}
    for path, content in data.items():
        path.write_bytes(content[: len(content) // 2])
    result = rank("--model", aligner, "--data", root, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: none of the 4 images could be read; Images/0_x.jpg: ")
