"""One table of what several reports say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saywhere import UserError
from saywhere.cli.comparing import FIGURES, Compared, read_report
from saywhere.evaluation.session import peak_memory

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
    assert "| b | 0.1250 | 0.5000 | 19 | 3.0* |  | 7 |" in text and "earlier run" in text and "`saywhere x`" in text


@pytest.mark.parametrize("task", FIGURES)
def test_every_task_names_its_protocol_and_finds_nested_figures(task: str):
    paths = FIGURES[task]
    report: dict = {"seconds": 1.0} | ({} if task in ("ground", "rank") else {"protocol": "p"})
    for number, path in enumerate(paths.values()):
        first, _, second = path.partition(".")
        report |= {first: {**report.get(first, {}), second: number / 10}} if second else {first: number / 10}
    compared = Compared(task, {"a": report})
    assert compared.header == ["model", *paths, "seconds"] and "protocol" in compared.facts
    assert compared.rows == [["a", *(f"{number / 10:.4f}" for number in range(len(paths))), "1.0"]]


def test_reports_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(UserError, match=r"report\.json: cannot be read as a report: "):
        read_report(tmp_path)
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(UserError, match=r"report\.json: is not a report$"):
        read_report(tmp_path)


def test_memory_only_grows():
    before = peak_memory()["peak_memory_mb"]
    block = bytearray(40_000_000)
    block[::1000] = bytes(len(block[::1000]))
    assert peak_memory()["peak_memory_mb"] >= max(before, 40)
