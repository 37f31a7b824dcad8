"""The costs of millions of images: what the document says is what the script computes from what was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from photographs import noise

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_scale", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_document_is_that_of_the_script(benchmark, capsys) -> None:
    benchmark.main(["table"])
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in text
    measured = json.loads(benchmark.RECORD.read_text())
    for number in (measured["ms"]["embed"], measured["ms"]["describe"]):
        assert f"{number:.0f} ms to " in text


def test_costs_are_products(benchmark) -> None:
    steps = dict.fromkeys(("list", "merge", "code"), 0.36) | {"embed": 36.0, "describe": 72.0}
    sizes = {"images": 100_000, "lines": 500, "vectors": 30_000, "codes": 1000, "names": 0}
    table = benchmark.table({"ms": steps, "bytes": sizes}, processors=10, machines=2)
    rows = {cells[1]: cells[2:-1] for cells in ([c.strip() for c in line.split("|")] for line in table.splitlines())}
    assert rows["index: processor hours"] == ["10", "1,000", "10,000"]
    assert rows["index: hours of 2 machines"] == ["0.5", "50", "500"]
    assert rows["index: machines to be done in a day"] == ["1", "5", "42"]
    assert rows["then merged by one process, hours"] == ["0.1", "10", "100"]
    assert rows["describe: processor hours"] == ["20", "2,000", "20,000"]
    assert rows["images that are read"] == ["100 GB", "10 TB", "100 TB"]
    assert rows["lines of describe"] == ["500 MB", "50 GB", "500 GB"]


def test_a_whole_measurement(benchmark, tmp_path) -> None:
    for number in range(5):
        noise(64, 48, number).save(tmp_path / f"{number}.png")
    benchmark.main(["measure", str(tmp_path), "--images", "4", "--out", str(tmp_path / "out.json")])
    measured = json.loads((tmp_path / "out.json").read_text())
    assert measured["count"] == 4 and all(value > 0 for part in ("ms", "bytes") for value in measured[part].values())
