"""Other programs' own libraries read what is written, those of them that are installed."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhere import Regions

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "readers.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    if not SCRIPT.is_file():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("benchmark_readers", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Results of three images: two regions, one, and none."""
    boxes = {"a.jpg": [[0, 0, 40, 30], [10.5, 20.25, 160, 119.75]], "b.jpg": [[3, 4, 50, 60]], "c.jpg": []}
    rows: list[dict[str, Any]] = []
    (tmp_path / "photos").mkdir()
    for name, found in boxes.items():
        Image.new("RGB", (160, 120)).save(tmp_path / "photos" / name)
        texts = tuple(("a brown dog", "a man & a dog")[: len(found)])
        rows.append(Regions(160, 120, found, np.full(len(found), 0.5), texts, image=f"photos/{name}").to_dict())
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "r.jsonl"


def test_every_library_that_is_installed_reads_the_same_regions(
    benchmark: ModuleType, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([str(lines), "--images", str(lines.parent / "photos")])
    rows = [re.findall(r"[^|]+", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(benchmark.READERS)
    for cells in rows:
        _, _, images, *rest = (cell.strip() for cell in cells)
        if images != "not installed":
            assert (images, rest[0]) == ("3", "3")
            assert float(rest[1]) <= 0.02


def test_a_reader_that_loses_a_region_is_an_error(
    benchmark: ModuleType, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loses = benchmark.Reader("numpy", "coco", lambda out, images: {"a": [[0, 0, 40, 30]], "b": [], "c": []})
    monkeypatch.setattr(benchmark, "READERS", (loses,))
    with pytest.raises(ValueError, match="numpy: read other regions of coco"):
        benchmark.main([str(lines), "--images", str(lines.parent / "photos")])


def test_the_distance_of_a_side_is_measured(
    benchmark: ModuleType, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = benchmark.by_ourselves("coco")

    def shifted(out: Path, images: Path) -> dict[str, Any]:
        return {name: boxes + 5 * (name == "b") for name, boxes in ours(out, images).items()}

    monkeypatch.setattr(benchmark, "READERS", (benchmark.Reader("numpy", "coco", shifted),))
    (row,) = benchmark.compare(lines, lines.parent / "photos")
    assert (row.images, row.regions, row.distance) == (3, 3, pytest.approx(5))
