from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from commands import run
from tiny_training import write_data, write_recipe

from saywhere.training import run as training


def test_a_recipe_is_trained_with_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path / "recipe.yaml", write_data(tmp_path / "data", train=4, validation=2))
    result = run("train", "recipe.yaml", "training.epochs=1", "name=mine")
    assert result.output.splitlines()[-1].startswith("runs/mine/model: weights after epoch 1: val/loss ")
    assert (tmp_path / "runs/mine/model/model.safetensors").exists()


def test_images_that_are_missing_or_broken_are_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    """Each once; a name that is not UTF-8 is one like any other."""
    root = write_data(tmp_path / "data", train=4, validation=3)
    (root / "001.jpg").unlink()
    odd = os.fsdecode(b"002 \xff.jpg")
    (root / "002.jpg").rename(root / odd)
    (root / "images.jsonl").write_text((root / "images.jsonl").read_text().replace('"002.jpg"', json.dumps(odd)))
    (root / "005.jpg").write_bytes((root / "005.jpg").read_bytes()[:-400])
    recipe = str(write_recipe(tmp_path / "recipe.yaml", root, epochs=1))
    for cache in ([], [f"training.cache={tmp_path / 'cache'}"]):
        result = run("train", recipe, *cache, "--out", tmp_path / "run", "--restart", code=1)
        assert "weights after epoch 1: val/loss " in result.stdout
        assert "train: missing image: 1 (001.jpg)" in result.stderr.splitlines()
        assert result.stderr.count("005.jpg") == 1 and f"skipped: {root / '005.jpg'}" in result.stderr


def test_errors_are_one_line_and_code_2(tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.yaml", tmp_path / "nowhere")
    for change, message in (
        ("training.epoch=1", "did you mean training.epochs"),
        ("seed=1", "nowhere: no such file or folder"),
    ):
        result = run("train", tmp_path / "recipe.yaml", change, "--out", tmp_path / "run", code=2)
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_stopped_run_says_how_to_resume_only_if_there_is_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        training, "train", lambda recipe, folder, restart: training.Result(folder, 0, {}, interrupted=True)
    )
    recipe = write_recipe(tmp_path / "recipe.yaml", tmp_path)
    said = []
    for _ in range(2):
        result = run("train", recipe, "--out", tmp_path, code=130)
        said.append(result.stderr)
        (tmp_path / "last.ckpt").touch()
    assert said[0] == "stopped\n"
    assert said[1] == f"stopped; the state is in {tmp_path / 'last.ckpt'}; run it again to continue\n"
    result = run("train", recipe, "--out", tmp_path, "--restart", code=130)
    assert result.stderr.endswith("; run it again without --restart to continue\n")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else find(name))
    result = run("train", write_recipe(tmp_path / "r.yaml", tmp_path), code=2)
    assert "pip install 'saywhere[train]'" in result.stderr
