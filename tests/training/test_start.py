from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_densecap import tiny_config, tiny_model
from tiny_training import tiny_recipe, write_data

from saywhere import data
from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.models.densecap import DenseCap
from saywhere.options import from_dict
from saywhere.text import RESERVED, Vocabulary
from saywhere.training import run
from saywhere.training.recipe import Recipe
from saywhere.training.start import common_rows, start_from


def test_common_words_and_reserved_tokens_are_paired() -> None:
    rows = common_rows(Vocabulary({"dog": 2, "cat": 1}), Vocabulary({"cat": 9, "sky": 5, "dog": 1}))
    assert rows.tolist() == [[0, 1, 2, 3, 5, 4], [0, 1, 2, 3, 4, 6]]


def test_weights_that_fit_are_taken_over_and_word_rows_follow_the_words(tmp_path: Path) -> None:
    old = tiny_model(seed=1)
    checkpoint.save(old, tmp_path)
    vocabulary = Vocabulary({"sky": 3, "zebra": 2, "dog": 1})
    new = DenseCap(tiny_config(code_size=32, rpn_hidden=8, fc_size=12), vocabulary, pretrained_backbone=False)
    made = {name: value.clone() for name, value in new.state_dict().items()}
    start = start_from(new, vocabulary, str(tmp_path))
    now, before = new.state_dict(), old.state_dict()
    assert start.words == (2, 3)
    assert torch.equal(now["recognition.score.weight"], before["recognition.score.weight"])
    tokens = old.vocabulary.tokens
    for name in ("speaker.words.weight", "speaker.output.weight", "speaker.output.bias"):
        for number in (*range(len(RESERVED)), 4, 6):
            assert torch.equal(now[name][number], before[name][tokens.index(vocabulary.tokens[number])]), name
        assert torch.equal(now[name][5], made[name][5]), name  # nobody knows the zebra
    assert {"recognition.layers.1.weight", "localization.head.score.weight"} <= set(start.left)
    assert all(torch.equal(now[name], made[name]) for name in start.left)
    assert "2 of 3 words known; new: " in str(start)


def test_a_recipe_begins_with_another_model(tmp_path: Path) -> None:
    checkpoint.save(tiny_model(seed=1, code_size=16, pyramid=8, rpn_hidden=8), tmp_path / "model")
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    recipe = from_dict(Recipe, tiny_recipe(tmp_path / "data", start=str(tmp_path / "model")))
    weights = [run.build_model(r, samples).recognition.score.weight for r in (recipe, recipe)]
    assert torch.equal(weights[0], checkpoint.load(tmp_path / "model").recognition.score.weight)
    other = from_dict(Recipe, tiny_recipe(tmp_path / "data"))
    assert not torch.equal(weights[0], run.build_model(other, samples).recognition.score.weight)
    nothing = from_dict(Recipe, tiny_recipe(tmp_path / "data", start=str(tmp_path / "nothing")))
    with pytest.raises(UserError, match="nothing"):
        run.build_model(nothing, samples)
