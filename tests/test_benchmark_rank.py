"""The benchmark of ``rank``: its arithmetic, and a whole run, whose times are not judged."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from saywhere.models.aligner import similarity_matrix

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "rank.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_rank", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_double_loop_is_equation_8(benchmark: ModuleType) -> None:
    sets = benchmark.material(3, 4, 8)
    expected = similarity_matrix(*sets).reshape(-1)
    np.testing.assert_allclose(benchmark.double_loop(*sets, 12), expected, rtol=1e-5)
    np.testing.assert_allclose(benchmark.double_loop(*sets, 7), expected[:7], rtol=1e-5)


def test_ways_that_differ_are_refused(benchmark: ModuleType) -> None:
    rows = [{"similarities": [1.0, 2.0]}, {"failed": "exit code 1"}, {"similarities": [1.0]}]
    benchmark.check(rows)
    with pytest.raises(AssertionError):
        benchmark.check([*rows, {"similarities": [1.1]}])


def test_a_whole_run(tmp_path: Path) -> None:
    out = tmp_path / "rank.json"
    sizes = ["--images", "12", "--sentences", "9", "--size", "16", "--loop", "20", "--out", str(out)]
    done = subprocess.run([sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True, check=True)
    rows = {row["way"]: row for row in json.loads(out.read_text())["rows"]}
    assert {way: row["pairs"] for way, row in rows.items()} == {"blocks": 108, "one piece": 108, "double loop": 20}
    assert done.stdout.count("\n") == 5 and "| one piece |" in done.stdout
