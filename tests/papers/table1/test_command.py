"""``saywhere papers table1`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_comparison import StubMeteor, write_comparison
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.evaluation import meteor


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)


def table1(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["papers", "table1", *map(str, arguments)], catch_exceptions=False)


def test_the_table_is_printed_and_written(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path, seeds=(0,))
    done = table1(recipe, "data.validation_limit=2", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table["images"] == 2 and table["seeds"] == [0]
    assert (tmp_path / "out" / "table.md").read_text() in done.output
    assert "control: most frequent phrase" in done.output


def test_wrong_recipes_end_with_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "none.yaml",), "no such recipe"),
        ((write_comparison(tmp_path), "seed=[0]"), "unknown key seed; did you mean seeds?"),
        ((tmp_path / "recipe.yaml", "seeds=[9]"), "no FCLN of seed 9"),
    ):
        done = table1(*arguments, "--out", tmp_path / "out")
        assert done.exit_code == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1
