"""The benchmark of search: its indexes, and a whole run, whose times are not judged."""

from __future__ import annotations

import importlib.util
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from photographs import noise
from tiny_bundle import exported_bundle

import saywhere
from saywhere.search.store import Store

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "search.py"


def test_a_whole_run_on_an_enlarged_index(tmp_path) -> None:
    spec = importlib.util.spec_from_file_location("benchmark_search", SCRIPT)
    assert spec and spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for number in range(3):
        noise(96, 64, number).save(tmp_path / f"{number}.png")
    model = exported_bundle()
    with saywhere.Index(tmp_path / "real", str(model)) as index:
        index.add(sorted(tmp_path.glob("*.png")))
        real = index.store.snapshot()
        out, folder = tmp_path / "out.json", tmp_path / "made"
        sizes = ["--sizes", "3", "7", "--exact", "3", "--components", "8"]
        often = ["--queries", "3", "--rounds", "1", "--threads", "1"]
        often += ["--qdrant", ":memory:"] if find_spec("qdrant_client") else []
        where = ["--index", str(tmp_path / "real"), "--folder", str(folder), "--model", str(model), "--out", str(out)]
        benchmark.main([*sizes, *often, *where])
    rows = json.loads(out.read_text())["rows"]
    assert [row["images"] for row in rows] == [3, 7] and [row["overlap"] for row in rows] == [1.0, 1.0]
    assert all(row["qdrant"]["overlap"] == 1.0 for row in rows if find_spec("qdrant_client"))
    assert rows[0]["exact"]["wall"]["median"] > 0 and "exact" not in rows[1]
    assert all(row["codes"]["wall"]["median"] > 0 for row in rows)
    with Store(folder / "7-8") as made:
        snapshot = made.snapshot()
        assert len(made) == 7
        np.testing.assert_array_equal(snapshot.vectors[: len(real.vectors)], real.vectors)
        copied = snapshot.vectors[snapshot.rows(3)].astype(np.float32)
        images = [real.vectors[real.rows(number)].astype(np.float32) for number in range(3)]
        largest = np.abs(images[0]).max()
        for row, vector in enumerate(copied):  # every other region is another image's
            away = [np.abs(vector - image[row]).max() for image in images if row < len(image)]
            assert 0 < (min(away) if row % 2 else away[0]) < largest, row
