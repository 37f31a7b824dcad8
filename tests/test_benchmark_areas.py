"""The benchmark of kinds of regions: a whole run on tiny models, whose times are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tiny_densecap import tiny_model

from saywhere.networks.checkpoint import save

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "areas.py"
TINY = (
    "trunk.backbone=test_efficientnet", "trunk.long_side=96", "head=false", "proposals.pyramid_channels=16",
    "proposals.hidden_size=16", "region_size=12",
)  # fmt: skip


def test_a_run_reports_every_kind(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "densecap")
    options = ["--localizer", tmp_path / "densecap", "--repeats", 2, "--threads", 1, "--json", tmp_path / "out.json"]
    sizes = [word for option in TINY for word in ("--set", option)]
    command = [sys.executable, SCRIPT, *options, *sizes]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["kinds"]
    searched = ["selective search"] if find_spec("cv2") else []
    assert list(rows) == ["no regions", "grid", "transformer", "proposals", *searched]
    assert rows["grid"]["ratio"] == rows["grid"]["cpu_ratio"] == 1
    assert all(row["wall"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert f"{rows['transformer']['ratio']:5.2f} x grid" in done.stdout
