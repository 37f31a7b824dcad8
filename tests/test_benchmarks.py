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
from tiny_bundle import exported_bundle

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "describe.py"
STAGES = ["decode + resize", "trunk", "proposals", "region head", "final NMS", "decoder"]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_describe", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_round(total: float, trunk: float | None = None) -> dict[str, Any]:
    def both(cpu: float) -> dict[str, float]:
        return {"wall": 2 * cpu, "cpu": cpu}

    return {"total": both(total), **({} if trunk is None else {"stages": {"trunk": both(trunk)}})}


def test_spread_is_median_and_quartiles(benchmark: ModuleType) -> None:
    assert benchmark.spread([5.0, 1, 4, 2, 3]) == {"lower": 2.0, "median": 3.0, "upper": 4.0}
    assert benchmark.spread([7.0]) == {"lower": 7.0, "median": 7.0, "upper": 7.0}


def test_ratios_are_taken_round_by_round(benchmark: ModuleType) -> None:
    def task(subject: str, batch: int) -> dict[str, Any]:
        return {"subject": subject, "size": 720, "batch": batch}

    measured = [
        (task("onnx", 1), [a_round(10, 5), a_round(20, 10)]),
        (task("onnx", 8), [a_round(5, 5), a_round(10, 10)]),
        (task("torch", 1), [a_round(40, 10), a_round(40, 30)]),
        (task("peer", 1), [a_round(30), a_round(100)]),
    ]
    medians = {(row["what"], row["batch"]): row["median"] for row in benchmark.ratios(measured)}
    assert medians == {
        ("torch / onnx, describe", 1): pytest.approx(3),  # (4 + 2) / 2
        ("torch / onnx, trunk", 1): pytest.approx(2.5),  # (2 + 3) / 2
        ("onnx / torch, describe", 1): pytest.approx(0.375),  # (1/4 + 1/2) / 2
        ("onnx / torch, trunk", 1): pytest.approx(5 / 12),  # (1/2 + 1/3) / 2
        ("peer / onnx, describe", 1): pytest.approx(4),  # (3 + 5) / 2
        ("peer / torch, describe", 1): pytest.approx(1.625),  # (3/4 + 5/2) / 2
        ("one by one / in batches, describe (onnx)", 8): pytest.approx(2),
        ("one by one / in batches, trunk (onnx)", 8): pytest.approx(1),
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
    options = ["--size", 64, "--batch", 1, 2, "--repeats", 2, "--no-peer", "--proposals", 5]
    done = run("--model", exported_bundle(), *options, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in [*STAGES, "peak MB", "images a second and core", "torch / onnx, trunk"])
    report = json.loads((tmp_path / "out.json").read_text())
    assert [(row["subject"], row["size"], row["batch"]) for row in report["configurations"]] == [
        ("onnx", 64, 1),
        ("onnx", 64, 2),
        ("torch", 64, 1),
        ("torch", 64, 2),
    ]
    for row in report["configurations"]:
        assert list(row["stages"]) == STAGES
        for figures in (*row["stages"].values(), row["total"]):
            assert 0 < figures["lower"] <= figures["median"] <= figures["upper"]
        assert row["rest"]["lower"] >= 0
        assert 0 < row["boxes"] <= 5
        assert 0 < row["loaded_mb"] <= row["peak_mb"]
        assert row["images_a_second_and_core"] == pytest.approx(1000 / row["total"]["median"])
    assert len(report["images"]) == 2


def test_an_unknown_model_is_named() -> None:
    done = run("--model", "nowhere", "--engines", "onnx", "--size", 64, "--batch", 1, "--repeats", 1, "--no-peer")
    assert done.returncode == 2
    assert "error: no model 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr
