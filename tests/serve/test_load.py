"""The benchmarks of the server, in small: they run, and no request gets another answer than it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *options: str) -> str:
    done = subprocess.run([sys.executable, BENCHMARKS / name, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_load() -> None:
    said = run("serve_load.py", "--requests=24", "--clients=4", "--garbage=0.5", "--images=2", "--flood=4",
               "--under-way=6")  # fmt: skip
    assert "unlike expected: 0\n" in said
    assert "SIGTERM with 6 requests under way: {200: 6}; exit code 0\n" in said


def test_speed(tmp_path: Path) -> None:
    said = run("serve.py", "--images=2", "--rounds=1", "--workers=1", f"--json={tmp_path / 'figures.json'}")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert "http / better library" in said
    assert len(figures["ratios"]) == 1 and figures["page"]["bytes"] < 30_000
