"""Right nouns of a small data set, from the metric to the command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import commands
import pytest
from albums import write_album
from commands import report
from tiny_classes import tiny_model

from saywhere.cli import evaluate as command
from saywhere.evaluation.nouns import measure, run
from saywhere.evaluation.session import Session
from saywhere.models.captioner import Caption


def write_data(folder: Path) -> Path:
    regions = [{"box": [4, 4, 60, 50], "phrase": "a dog"}, {"box": [0, 0, 96, 64], "phrase": "the grass"}]
    return write_album(folder, [{"split": "val", "regions": regions[:count]} for count in (1, 2, 2)])


def test_shares_over_boxes_and_over_kinds() -> None:
    result = measure(["dog", "dog", "dog", "cat"], {"decoder": [True, True, False, False], "classes": [True] * 4})
    assert result.objects == {"decoder": 0.5, "classes": 1.0}
    assert result.kinds["decoder"] == pytest.approx(1 / 3)
    assert result.by_kind["dog"] == (3, {"decoder": pytest.approx(2 / 3), "classes": 1.0})


def test_a_model_names_the_boxes_of_a_data_set(tmp_path: Path) -> None:
    data = write_data(tmp_path)
    result = run(tiny_model(), Session(data, tmp_path / "out", split="val"))
    assert set(result.objects) == {"decoder", "classes"}
    assert {name: count for name, (count, _) in result.by_kind.items()} == {"dog": 3, "grass": 2}
    row = report(tmp_path / "out")
    assert row["task"] == "nouns" and row["boxes"] == 5
    assert "| dog | 3 |" in (tmp_path / "out" / "report.md").read_text()


def test_the_command_prints_a_line_for_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_data(tmp_path)
    monkeypatch.setattr(command, "load_model", lambda *_: tiny_model())
    result = commands.run("evaluate", "nouns", "--data", data, "--split", "val", "--out", tmp_path / "out")
    for way in ("decoder", "classes"):
        assert f"{way}: " in result.output
    assert "mean over 2 kinds" in result.output


def test_captions_count_for_each_box_whose_noun_they_have(tmp_path: Path) -> None:
    """Of the five boxes three are dogs and two are grass."""
    data = write_data(tmp_path)
    model = tiny_model()
    said = Caption("a puppy is here", ("a", "puppy", "is", "here"), 96, 64, "")
    model.engine.captioner = SimpleNamespace(config=SimpleNamespace(describe_boxes=False))  # pyright: ignore[reportAttributeAccessIssue]
    model.caption = lambda images, **_: [said for _ in images]  # pyright: ignore[reportAttributeAccessIssue]
    result = run(model, Session(data, tmp_path / "out", split="val"))
    assert result.objects["caption"] == pytest.approx(3 / 5) and result.kinds["caption"] == pytest.approx(1 / 2)
