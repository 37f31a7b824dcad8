"""Several models beside each other: the table, and the command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from commands import run
from flickr_entities import write_flickr
from typer.testing import Result

from saywhere.cli import comparing
from saywhere.cli.comparing import PROTOCOLS, Compared, folders
from saywhere.evaluation.report import TASKS
from saywhere.models.bundle import find_folder

DENSE = {"data": "d", "split": "dev", "protocol": "clean", "images": 20, "map": 0.25, "detection_map": 0.5}
ONE = {**DENSE, "language_meteor": None, "seconds": 12.345, "peak_memory_mb": 1234}
TWO = {**DENSE, "map": 0.125, "images": 19, "seconds": 3, "peak_gpu_memory_mb": 7}


def test_a_column_is_shown_if_a_report_has_it(tmp_path: Path):
    compared = Compared("dense", {"a": ONE, "b": TWO}, ["b"])
    assert compared.header == ["model", "mAP", "boxes alone", "images", "seconds", "memory, MB", "of the GPU, MB"]
    assert compared.rows == [
        ["a", "0.2500", "0.5000", "20", "12.3", "1,234", ""],
        ["b", "0.1250", "0.5000", "19", "3.0*", "", "7"],
    ]
    assert compared.facts == {"data": "d", "split": "dev", "protocol": "clean"}, "the numbers of images differ"
    compared.write(tmp_path, "saywhere x")
    row = json.loads((tmp_path / "report.json").read_text())
    assert [each["map"] for each in row["models"]] == [0.25, 0.125] and row["protocol"] == "clean"
    assert [each["resumed"] for each in row["models"]] == [False, True]
    text = (tmp_path / "report.md").read_text()
    assert "| 2 | b | 0.125 | 0.5 |  | 19 | 3 |  | 7 | 1 |" in text and "| command | saywhere x |" in text


@pytest.mark.parametrize("task", TASKS)
def test_every_task_names_its_protocol_and_finds_nested_figures(task: str):
    paths = TASKS[task].figures
    report: dict = {"seconds": 1.0} | ({} if task in ("ground", "rank") else {"protocol": "p"})
    for number, path in enumerate(paths.values()):
        first, _, second = path.partition(".")
        report |= {first: {**report.get(first, {}), second: number / 10}} if second else {first: number / 10}
    compared = Compared(task, {"a": report})
    assert compared.header == ["model", *paths, "seconds"] and "protocol" in compared.facts
    assert compared.rows == [["a", *(f"{number / 10:.4f}" for number in range(len(paths))), "1.0"]]


def evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: object, code: int = 0) -> Result:
    monkeypatch.setattr(sys, "argv", ["saywhere", "evaluate", *map(str, arguments)])
    return run("evaluate", *arguments, code=code)


def test_models_are_compared_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    data, out = write_flickr(tmp_path / "flickr8k"), tmp_path / "out"
    copied = shutil.copytree(find_folder("flickr-coco"), tmp_path / "copied")
    names = ["flickr-coco", str(copied), "nothing"]
    monkeypatch.setenv("COLUMNS", "400")
    models = [word for name in names for word in ("--model", name)]
    done = evaluate(monkeypatch, "rank", *models, "--data", data, "--limit", 2, f"--out={out}", code=2)
    assert "error: no model 'nothing': not a folder, and there are" in capfd.readouterr().err
    lines = done.stdout.splitlines()
    protocol = PROTOCOLS["rank"]
    assert lines[0] == f"task rank, data flickr8k flickr8k, split dev, protocol {protocol}, images 2"
    assert lines[1].split("\t")[-1] == "model" and "annotation R@1" in lines[1] and "memory, MB" in lines[1]
    assert [line.split("\t")[-1] for line in lines[2:4]] == names[:2] and lines[2].split()[0] == lines[3].split()[0]
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
    done = evaluate(monkeypatch, "dense", "--model", "nothing", "--model", "no-more", "--data", tmp_path, code=2)
    assert done.stdout == "" and not (tmp_path / "evaluation").exists()
    done = evaluate(monkeypatch, "caption", "--model", "a", "--model", "a", "--data", tmp_path, code=2)
    assert done.stderr == "error: --model a: is given twice; name it once\n"


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
    evaluate(monkeypatch, "dense", "--model", "good", "--model", "bad", "--data", "d", "--out", tmp_path / "o", code=2)
    compared = json.loads((tmp_path / "o" / "report.json").read_text())["models"]
    assert [each["model"] for each in compared] == ["good"]
    assert "IndexError: a crash" in capfd.readouterr().err
