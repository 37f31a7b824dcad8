"""The table says what was measured: means, spreads, ratios and aims worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from tiny_comparison import write_comparison

from saywhere.papers.table1 import plan as plans
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.table import COLUMNS, ROWS, Results, markdown, write_table

AP = {
    "full-image-rnn": (0.02, 0.03),
    "region-rnn": (0.04, 0.05),
    "fcln": (0.08, 0.08),
    "frequent-phrase": (0.01, 0.01),
    "nearest-region": (0.03, 0.02),
    "frequent-phrase-refined": (0.05, 0.05),
    "nearest-region-refined": (0.02, 0.04),
}
"""With RPN proposals, of the seeds 0 and 1."""


def stages(proposals: float, network: float, language: float) -> dict[str, dict[str, float]]:
    values = {"proposals": proposals, "network": network, "language": language}
    wall = {**values, "total": sum(values.values())}
    return {"wall": wall, "processor": {stage: value * 0.9 for stage, value in wall.items()}}


@pytest.fixture
def plan(tmp_path: Path) -> Comparison:
    return plans.load(write_comparison(tmp_path))


@pytest.fixture
def results(plan: Comparison) -> Results:
    scores = {
        (row, column, seed): {"map": values[seed] * factor, "detection_map": 0.2, "language_meteor": values[seed] * 3}
        for row, values in AP.items()
        for column, factor in (("external", 0.5), ("rpn", 1.0), ("gt", 4.0))
        for seed in (0, 1)
    }
    systems = {
        "fcln/rpn": stages(10, 80, 10),
        "fcln/external": stages(300, 80, 10),
        "region-rnn/rpn": stages(60, 1240, 20),
        "region-rnn/external": stages(300, 900, 20),
    }
    times: dict[str, Any] = {"about": {"threads": 1, "images": 2, "rounds": 3}, "systems": systems}
    return Results(plan, "jsonl data", 3, "stub", scores, times, {"external": 5.0, "rpn": 6.0, "gt": 2.0})


def test_means_and_spreads_over_the_seeds(results: Results) -> None:
    cell = results.to_dict()["rows"]["region-rnn"]["cells"]["rpn"]["map"]
    assert cell == {"mean": pytest.approx(0.045), "spread": pytest.approx(stdev((0.04, 0.05))), "each": [0.04, 0.05]}


def test_aims_by_hand(results: Results) -> None:
    aims = {aim["aim"]: aim for aim in results.aims()}
    best = aims["AP of FCLN over the best baseline's"]
    assert best["each"] == pytest.approx([2.0, 1.6]) and best["mean"] == pytest.approx(1.8) and best["reached"]
    control = aims["AP of FCLN over the better control's"]
    assert control["each"] == pytest.approx([8 / 3, 4.0]) and control["reached"]
    refined = aims["AP of FCLN over the better control's on FCLN's boxes"]
    assert refined["each"] == pytest.approx([1.6, 1.6]) and not refined["reached"]
    assert aims["AP of FCLN over the Region RNN's"]["reached"]
    times = [aim for name, aim in aims.items() if name.startswith("time")]
    assert [aim["each"] for aim in times] == [pytest.approx([13.2, 13.2]), pytest.approx([12.2, 12.2])]
    assert [aim["reached"] for aim in times] == [True, False]


def test_an_aim_that_is_just_missed_is_not_reached(results: Results) -> None:
    scores = {key: dict(value) for key, value in results.scores.items()}
    for seed in (0, 1):
        scores["region-rnn", "rpn", seed]["map"] = 0.08 / 1.29
    missed = Results(**{**vars(results), "scores": scores}).aims()[1]
    assert missed["mean"] == pytest.approx(1.29) and not missed["reached"]


def test_the_markdown_has_every_figure(results: Results) -> None:
    lines = markdown(results, "saywhere papers table1 x").splitlines()
    rows = {line.split(" | ")[0].strip("| "): [part.strip(" |") for part in line.split(" | ")[1:]] for line in lines}
    assert rows["Region source"][:3] == ["METEOR, selective-search", "METEOR, RPN", "METEOR, truth"]
    assert rows["Region RNN"][3:6] == ["2.25 ± 0.35", "4.50 ± 0.71", "18.00 ± 2.83"]
    assert rows["Region RNN"][0] == "0.135 ± 0.021"
    assert rows["Region RNN"][6:] == rows["Full image RNN"][6:] == ["300", "900", "20", "1220"]
    assert rows["FCLN"][6:] == ["10", "80", "10", "100"]
    assert rows["FCLN on external"][3:] == ["4.00 ± 0.00", "", "", "300", "80", "10", "390"]
    assert {ROWS[row] for row in ROWS} <= rows.keys()
    text = "\n".join(lines)
    assert "3 images" in text and "seeds 0, 1" in text and "`saywhere papers table1 x`" in text


def test_one_seed_has_no_spread(results: Results, plan: Comparison) -> None:
    alone = Results(**{**vars(results), "plan": Comparison(**{**vars(plan), "seeds": (1,)})})
    assert alone.to_dict()["rows"]["fcln"]["cells"]["gt"]["map"]["spread"] is None
    assert "±" not in markdown(alone, "x").split("aim |")[0].replace("mean ±", "")


def test_files_are_written(results: Results, tmp_path: Path) -> None:
    paths = write_table(results, tmp_path / "out", "saywhere papers table1 x")
    table = json.loads(paths[0].read_text())
    assert table["command"] == "saywhere papers table1 x" and table["protocol"] == "clean"
    assert set(table["rows"]) == set(ROWS) and set(table["rows"]["fcln"]["cells"]) == set(COLUMNS)
    assert paths[1].read_text() == markdown(results, "saywhere papers table1 x")
