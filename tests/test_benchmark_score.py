"""The benchmark of ``model.score``: its inputs, and a whole run on a tiny model, whose times are not judged."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny_densecap import tiny_model

from saywhere.networks.checkpoint import save
from saywhere.text import Vocabulary

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "score.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_score", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_boxes_lie_inside_the_image_in_four_sizes(benchmark: ModuleType) -> None:
    boxes = benchmark.grid(200, 100, 10)
    assert boxes.shape == (10, 4) and boxes.min() >= 0
    assert (boxes[:, 2] <= 200).all() and (boxes[:, 3] <= 100).all()
    assert {round(side) for side in (boxes[:, 2] - boxes[:, 0]).tolist()} == {30, 60, 100, 160}


def test_phrases_differ_and_prefer_frequent_words(benchmark: ModuleType) -> None:
    phrases = benchmark.invent(Vocabulary({"a": 98, "zebra": 1, "dog": 1}), 20)
    words = [word for phrase in phrases for word in phrase.split()]
    assert len(set(phrases)) == 20 and words.count("a") > words.count("zebra") + words.count("dog")
    assert {len(phrase.split()) for phrase in phrases} == {2, 3, 4, 5}
    with pytest.raises(SystemExit, match="too small for 9 phrases"):
        benchmark.invent(Vocabulary({"a": 1}), 9)


def test_a_run_reports_both_ways(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "model")
    options = ["--regions", "7", "--phrases", "5", "--repeats", "2", "--threads", "1", "--json", tmp_path / "out.json"]
    command = [sys.executable, SCRIPT, "--model", tmp_path / "model", *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["regions"], report["phrases"]) == (7, 5) and report["largest_difference"] < 1e-4
    times = report["milliseconds"]
    assert list(times) == ["one call", "a call a phrase", "describe alone"]
    assert all(figure > 0 for row in times.values() for figure in row.values())
    assert f"a call a phrase / one call: {report['ratio']['wall']:.1f}" in done.stdout
