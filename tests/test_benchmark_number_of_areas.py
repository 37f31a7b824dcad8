"""The plot over the number of areas: what is asked of ``saywhere evaluate caption``, and what is drawn."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from matplotlib.axes import Axes

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "number_of_areas.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_number_of_areas", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_is_asked_with_every_number(benchmark, tmp_path, monkeypatch, capsys):
    asked, drawn, usual = [], [], Axes.plot

    def run(command):
        words = command[3:]
        asked.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True)
        out.joinpath("report.json").write_text(json.dumps({"cider": len(asked) / 10, "meteor": 0.0}))
        return SimpleNamespace(returncode=0)

    def plot(self, x, y, **options):
        drawn.append((x, y, options["label"]))
        return usual(self, x, y, **options)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    monkeypatch.setattr(Axes, "plot", plot)
    words = ["--model", "a", "b", "--data", "d", "--values", "2", "5", "--limit", "7", "--out", str(tmp_path)]
    monkeypatch.setattr(benchmark.sys, "argv", ["number_of_areas.py", *words])
    benchmark.main()
    assert len(asked) == 4 and asked[1][:4] == ["evaluate", "caption", "--model", "a"]
    assert asked[1][asked[1].index("--set") + 1] == "grid=5" and asked[1][-2:] == ["--limit", "7"]
    row = json.loads((tmp_path / "number-of-areas.json").read_text())
    assert row["curves"] == {"a": {"2": 0.1, "5": 0.2}, "b": {"2": 0.3, "5": 0.4}}
    assert drawn == [([4, 25], [0.1, 0.2], "a"), ([4, 25], [0.3, 0.4], "b")]
    assert (tmp_path / "number-of-areas.png").stat().st_size > 1000
    assert "grid 5: 0.4000" in capsys.readouterr().out


def test_a_command_that_fails_ends_it(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.subprocess, "run", lambda command: SimpleNamespace(returncode=2))
    options = benchmark.parse(
        ["--model", "a", "--data", "d", "--option", "proposals.post_nms_top_n", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit, match=r"--set proposals\.post_nms_top_n=2 .* ended with 2"):
        benchmark.collect(options, benchmark.evaluate)
