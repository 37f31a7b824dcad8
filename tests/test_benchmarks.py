"""The benchmark of ``describe``: its arithmetic, and whole runs on a tiny model, whose times are not judged."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from tiny_densecap import tiny_model

from saywhere.models.checkpoint import save

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "describe.py"
STAGES = [
    "decode + resize", "backbone", "pyramid", "RPN head", "RPN NMS", "pooling", "recognition", "final NMS", "speaker",
]  # fmt: skip


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_describe", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_round(total: float, speaker: float, speaker_all: float) -> dict[str, Any]:
    def both(wall: float) -> dict[str, float]:
        return {"wall": wall, "cpu": 2 * wall}

    return {"total": both(total), "stages": {"speaker": both(speaker)}, "speaker_all": both(speaker_all)}


def test_spread_is_median_and_quartiles(benchmark: ModuleType) -> None:
    assert benchmark.spread([5.0, 1, 4, 2, 3]) == {"lower": 2.0, "median": 3.0, "upper": 4.0}
    assert benchmark.spread([7.0]) == {"lower": 7.0, "median": 7.0, "upper": 7.0}


def test_ratios_are_taken_round_by_round(benchmark: ModuleType) -> None:
    def task(subject: str, batch: int) -> dict[str, Any]:
        return {"subject": subject, "size": 720, "proposals": 300, "batch": batch}

    one = [a_round(100, 10, 110), a_round(200, 20, 420)]
    eight = [a_round(50, 10, 60), a_round(50, 10, 60)]
    peer = [{"total": {"wall": 25.0, "cpu": 0.0}}, {"total": {"wall": 100.0, "cpu": 0.0}}]
    rows = benchmark.ratios([(task("ours", 1), one), (task("ours", 8), eight), (task("peer", 1), peer)])
    medians = {(row["what"], row["batch"]): row["median"] for row in rows}
    assert medians == {
        ("all captions / survivors' captions", 1): pytest.approx(2.5),  # (200 / 100 + 600 / 200) / 2
        ("the same, speaker alone", 1): pytest.approx(16),  # (11 + 21) / 2
        ("ours / peer", 1): pytest.approx(3),  # (4 + 2) / 2
        ("all captions / survivors' captions", 8): pytest.approx(2),
        ("the same, speaker alone", 8): pytest.approx(6),
        ("batch 8 / batch 1", 8): pytest.approx(0.375),  # (1/2 + 1/4) / 2
    }


def test_photographs_have_the_long_side_asked_for(benchmark: ModuleType, tmp_path: Path) -> None:
    rows = benchmark.write_photographs(tmp_path, 10, 720)
    sizes = [Image.open(row["path"]).size for row in rows]
    assert sizes == [(row["width"], row["height"]) for row in rows]
    assert sizes[:2] == [(720, 720), (720, 479)]
    assert sizes[7] == (1000, 872)  # large enough as it is
    assert len({Path(row["path"]).read_bytes() for row in rows}) == 10


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_run_reports_every_configuration(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "model")
    options = ["--size", 64, "--proposals", 5, "--batch", 1, 2, "--repeats", 2, "--threads", 1, "--no-peer"]
    done = run("--model", tmp_path / "model", *options, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in [*STAGES, "peak MB", "all captions / survivors' captions"])
    report = json.loads((tmp_path / "out.json").read_text())
    assert [(row["size"], row["proposals"], row["batch"]) for row in report["configurations"]] == [
        (64, 5, 1),
        (64, 5, 2),
    ]
    for row in report["configurations"]:
        assert list(row["stages"]) == STAGES
        for figures in (*row["stages"].values(), row["total"], row["speaker_all"], row["total_all"]):
            assert 0 < figures["lower"] <= figures["median"] <= figures["upper"]
        assert row["rest"]["lower"] >= 0
        assert 0 < row["boxes"] <= row["proposals_found"] <= 5
        assert 0 < row["words"] <= 12
        assert 0 < row["loaded_mb"] <= row["peak_mb"]
    assert len(report["pictures"]) == 2
    assert [row["what"] for row in report["ratios"]] == [
        "all captions / survivors' captions",
        "the same, speaker alone",
        "all captions / survivors' captions",
        "the same, speaker alone",
        "batch 2 / batch 1",
    ]
    assert not any(note.startswith("Random weights") for note in report["notes"])


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    done = run("--model", "nowhere", "--size", 64, "--proposals", 5, "--batch", 1, "--repeats", 1, "--no-peer")
    assert done.returncode == 2
    assert "error: no model 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr
