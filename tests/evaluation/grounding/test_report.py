from __future__ import annotations

import json

from saywhere.evaluation.grounding import GroundingResult, TypeScore, write_grounding_report

RESULT = GroundingResult(0.5, 0.25, 4, {"people": TypeScore(4, 0.5, 0.25)})


def test_the_report_has_the_model_the_types_and_the_controls(tmp_path):
    known = {"model": "m", "skipped": {}, "data_problems": {"missing image": 2, "broken annotation": 1}}
    write_grounding_report(tmp_path, RESULT, {"whole image": GroundingResult(1.0, 0.75, 4)}, known)
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["accuracy"], row["pointing"]) == ("ground", 0.5, 0.25)
    assert row["by_type"] == {"people": {"phrases": 4, "accuracy": 0.5, "pointing": 0.25}}
    assert row["controls"] == {"whole image": {"accuracy": 1.0, "pointing": 0.75, "phrases": 4, "by_type": {}}}
    assert row["data_problems"] == known["data_problems"]
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[4:6] == ["| model | 0.500 | 0.250 | 4 |", "| whole image | 1.000 | 0.750 | 4 |"]
    assert "| model | people | 4 | 0.500 | 0.250 |" in lines
    assert lines[-2:] == ["| model | m |", "| data problems | 2 |"]
