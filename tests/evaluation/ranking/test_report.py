from __future__ import annotations

import json

from saywhere.evaluation.ranking import RankingResult, Recall, write_ranking_report

RESULT = RankingResult(Recall(1 / 3, 1.0, 1.0, 2.0, 3), Recall(0.25, 1.0, 1.0, 3.0, 4))


def test_the_report_has_the_figures_of_both_directions(tmp_path):
    known = {"model": "m", "skipped": {"a": "b"}, "beam_size": 0, "data_problems": {}, "command": "x | y"}
    written = write_ranking_report(tmp_path, RESULT, known)
    assert written == [tmp_path / "report.json", tmp_path / "report.md"]
    row = json.loads((tmp_path / "report.json").read_text())
    assert row["task"] == "rank" and {name: row[name] for name in known} == known
    assert row["text_to_image"] == {"r1": 0.25, "r5": 1.0, "r10": 1.0, "median_rank": 3.0}
    assert row["image_to_text"]["median_rank"] == 2.0
    assert (tmp_path / "report.md").read_text().splitlines() == [
        "# Ranking",
        "",
        "|  | R@1 | R@5 | R@10 | median rank | queries |",
        "|---|---|---|---|---|---|",
        "| annotation (image to sentences) | 0.333 | 1.000 | 1.000 | 2 | 3 |",
        "| search (sentence to images) | 0.250 | 1.000 | 1.000 | 3 | 4 |",
        "",
        "|  |  |",
        "|---|---|",
        "| model | m |",
        "| skipped | 1 |",
        "| command | x \\| y |",
    ]
