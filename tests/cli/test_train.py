from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tiny_training import write_data, write_recipe
from typer.testing import CliRunner

from saywhere.cli import app
from saywhere.training import run


def test_a_recipe_is_trained_with_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path / "recipe.yaml", write_data(tmp_path / "data", train=4, validation=2))
    result = CliRunner().invoke(app, ["train", "recipe.yaml", "training.epochs=1", "name=mine"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("runs/mine/model: weights after epoch 1: val/loss ")
    assert (tmp_path / "runs/mine/model/model.safetensors").exists()


def test_errors_are_one_line_and_code_2(tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.yaml", tmp_path / "nowhere")
    for change, message in (
        ("training.epoch=1", "did you mean training.epochs"),
        ("seed=1", "nowhere: no such folder"),
    ):
        result = CliRunner().invoke(
            app, ["train", str(tmp_path / "recipe.yaml"), change, "--out", str(tmp_path / "run")]
        )
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_stopped_run_says_how_to_resume_only_if_there_is_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "train", lambda recipe, folder, restart: run.Result(folder, 0, {}, interrupted=True))
    recipe = write_recipe(tmp_path / "recipe.yaml", tmp_path)
    said = []
    for _ in range(2):
        result = CliRunner().invoke(app, ["train", str(recipe), "--out", str(tmp_path)])
        assert result.exit_code == 130
        said.append(result.stderr)
        (tmp_path / "last.ckpt").touch()
    assert said[0] == "stopped\n"
    assert "The same command resumes it." in said[1]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lightning" else find(name))
    result = CliRunner().invoke(app, ["train", str(write_recipe(tmp_path / "r.yaml", tmp_path))])
    assert result.exit_code == 2
    assert "pip install 'saywhere[train]'" in result.stderr
