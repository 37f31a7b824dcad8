"""``saywhere evaluate ground`` as it is typed, on a tiny aligner and a tiny dense captioner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from flickr_entities import XML, write_flickr
from stubs import calibrated
from tiny_aligner import tiny_aligner
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.networks import checkpoint

CONTROLS = {"whole image", "largest region", "random region", "highest prior"}


@pytest.fixture(scope="module")
def aligner(tmp_path_factory) -> str:
    return str(checkpoint.save(tiny_aligner(), tmp_path_factory.mktemp("aligner")))


@pytest.fixture(scope="module")
def flickr(tmp_path_factory) -> Path:
    return write_flickr(tmp_path_factory.mktemp("flickr8k"))


def ground(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", "ground", *map(str, arguments)])


def test_it_is_measured_beside_its_controls(aligner, flickr, tmp_path):
    result = ground("--model", aligner, "--part", "aligner", "--data", flickr, "--out", tmp_path, "--regions", 3)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["phrases"], row["regions"], row["part"]) == ("ground", 4, 3, "aligner")
    assert row["by_type"]["people"]["phrases"] == 4
    assert set(row["controls"]) == CONTROLS
    assert row["controls"]["whole image"]["pointing"] == 0.0  # its centre is at x = 48, the truth ends at 40
    assert "largest region" in (tmp_path / "report.md").read_text()


def test_it_is_measured_with_other_options(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "whole")
    for path in (root / "Entities/Annotations").iterdir():  # what is asked for fills the image
        path.write_text(XML.replace("<xmax>40", "<xmax>96").replace("<ymax>60", "<ymax>64"))
    for bonus, accuracy in ((99, 1.0), (-99, 0.0)):
        out, change = tmp_path / f"out{bonus}", f"size_bonus={bonus}"
        result = ground("--model", aligner, "--data", root, "--out", out, "--set", change)
        assert result.exit_code == 0, result.output
        row = json.loads((out / "report.json").read_text())
        assert (row["set"], row["accuracy"]) == ([change], accuracy)


def test_a_dense_captioner_grounds_phrases_too(flickr, tmp_path):
    model = checkpoint.save(tiny_model(), tmp_path / "densecap")
    arguments = ("--model", model, "--part", "densecap", "--data", flickr, "--out", tmp_path / "out", "--regions", 3)
    result = ground(*arguments)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert (row["task"], row["phrases"], row["images"]) == ("ground", 4, 4)
    assert set(row["controls"]) == CONTROLS
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/regions").iterdir()}
    assert ground(*arguments).exit_code == 0 and len(times) == 4
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    wrong = ground("--model", captioner, "--data", flickr, "--out", tmp_path / "no")
    assert wrong.exit_code == 2 and "needs a model with the part aligner" in wrong.output
    wrong = ground("--model", captioner, "--data", flickr, "--out", tmp_path / "no", "--part", "densecap")
    assert wrong.exit_code == 2 and "needs a model with the part densecap" in wrong.output
    assert not (tmp_path / "no").exists()


def test_without_a_part_it_is_measured_as_the_model_answers(aligner, flickr, tmp_path):
    sure = shutil.copytree(aligner, tmp_path / "sure")
    calibrated(phrase=(0, 0, 0, 9)).write(sure)
    result = ground("--model", sure, "--data", flickr, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "report.json").read_text())
    assert set(row["controls"]) == {"whole image", "largest region"} and row["phrases"] == 4
    assert row["by_type"]["people"]["phrases"] == 4 and "rare nouns" in row["by_type"]
    assert (row["presence"]["found"], row["presence"]["refused"]) == (1.0, 0.0)
    assert row["presence"]["accuracy"] == row["accuracy"]
    assert "Found or not" in (tmp_path / "report.md").read_text() and "with the decision" in result.output


def test_the_images_may_be_limited(aligner, flickr, tmp_path):
    ground("--model", aligner, "--data", flickr, "--out", tmp_path, "--limit", 2)
    assert json.loads((tmp_path / "report.json").read_text())["images"] == 2
