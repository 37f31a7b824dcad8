"""The benchmark of kinds of areas: a whole run on tiny models, whose times are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tiny_densecap import tiny_model

from saywhere.models.checkpoint import save

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "areas.py"
TINY = ("backbone=test_efficientnet", "head=false", "long_side=96", "pyramid=16", "rpn_hidden=16", "area_size=12")


def test_a_run_reports_every_kind(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "densecap")
    options = ["--localizer", tmp_path / "densecap", "--repeats", 2, "--threads", 1, "--json", tmp_path / "out.json"]
    sizes = [word for option in TINY for word in ("--set", option)]
    command = [sys.executable, SCRIPT, *options, *sizes]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["kinds"]
    searched = ["selective search"] if find_spec("cv2") else []
    assert list(rows) == ["no areas", "grid", "transformer", "proposals", *searched]
    assert rows["grid"]["ratio"] == rows["grid"]["cpu_ratio"] == 1
    assert all(row["wall"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert f"{rows['transformer']['ratio']:5.2f} x grid" in done.stdout
