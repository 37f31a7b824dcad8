"""``saywhere evaluate TASK --model A --model B``: each in a process of its own, and one table."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from flickr_entities import write_flickr
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.cli import comparing
from saywhere.cli.comparing import PROTOCOLS, folders
from saywhere.cli.launching import without_options
from saywhere.models.bundle import find_folder


def evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Result:
    words = ["evaluate", *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", ["saywhere", *words])
    return CliRunner().invoke(cli.app, words, catch_exceptions=False)


def test_models_are_compared_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    data, out = write_flickr(tmp_path / "flickr8k"), tmp_path / "out"
    copied = shutil.copytree(find_folder("flickr-coco"), tmp_path / "copied")
    names = ["flickr-coco", str(copied), "nothing"]
    monkeypatch.setenv("COLUMNS", "400")
    models = [word for name in names for word in ("--model", name)]
    done = evaluate(monkeypatch, "rank", *models, "--data", data, "--limit", 2, f"--out={out}")
    assert done.exit_code == 2, "one of them cannot be evaluated"
    assert "error: no model 'nothing': not a folder, and the bundled" in capfd.readouterr().err
    lines = done.stdout.splitlines()
    protocol = PROTOCOLS["rank"]
    assert lines[0] == f"task rank, data flickr8k flickr8k, split dev, protocol {protocol}, images 2"
    assert lines[1].split("  ")[-1] == "model" and "annotation R@1" in lines[1] and "memory, MB" in lines[1]
    assert [line.split()[-1] for line in lines[3:5]] == names[:2] and lines[3].split()[0] == lines[4].split()[0]
    assert lines[-1] == f"written: {out / 'report.md'}, report.json"
    row = json.loads((out / "report.json").read_text())
    assert (row["task"], row["images"], [each["model"] for each in row["models"]]) == ("compare rank", 2, names[:2])
    for each, folder in zip(row["models"], folders(names, out), strict=False):
        own = json.loads((folder / "report.json").read_text())
        assert each["image_to_text.r1"] == own["image_to_text"]["r1"] and own["model"] == each["model"]
        assert each["seconds"] == own["seconds"] > 0 and each["peak_memory_mb"] == own["peak_memory_mb"] > 10
    text = (out / "report.md").read_text()
    assert "| flickr-coco |" in text and "| nothing |" not in text


def test_nothing_is_compared_if_none_can_be_evaluated_or_one_is_named_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = evaluate(monkeypatch, "dense", "--model", "nothing", "--model", "no-more", "--data", tmp_path)
    assert done.exit_code == 2 and done.stdout == "" and not (tmp_path / "evaluation").exists()
    done = evaluate(monkeypatch, "caption", "--model", "a", "--model", "a", "--data", tmp_path)
    assert (done.exit_code, done.stderr) == (2, "error: --model a: is named twice\n")


def test_folders_have_the_names_of_models():
    names = ["flickr-coco", "runs/a/model", "hub:a/b", "runs/a-model", "/", "../runs/a/model"]
    found = ["flickr-coco", "runs-a-model", "hub-a-b", "runs-a-model--2", "model", "runs-a-model--3"]
    assert folders(names, Path("out")) == [Path("out", name) for name in found]
    assert folders(["a--2", "a", "A"], Path()) == [Path("a--2"), Path("a"), Path("A--3")], "also where case is ignored"


def test_a_model_that_crashes_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    crashing = "import sys; from pathlib import Path; out = Path(sys.argv[-1]); out.mkdir(parents=True)\n"
    crashing += "if 'bad' in sys.argv: raise IndexError('a crash')\n(out / 'report.json').write_text('{}')"
    monkeypatch.setattr(comparing, "START", crashing)
    done = evaluate(monkeypatch, "dense", "--model", "good", "--model", "bad", "--data", "d", "--out", tmp_path / "o")
    compared = json.loads((tmp_path / "o" / "report.json").read_text())["models"]
    assert (done.exit_code, [each["model"] for each in compared]) == (2, ["good"])
    assert "IndexError: a crash" in capfd.readouterr().err


def test_options_are_taken_out_with_their_values():
    words = ["evaluate", "rank", "--model", "a", "--model=b", "--out", "--model", "--set", "x=1"]
    assert without_options(words, ("--model", "--out")) == ["evaluate", "rank", "--set", "x=1"]
    assert without_options(["a", "--out"], ("--out",)) == ["a"]
