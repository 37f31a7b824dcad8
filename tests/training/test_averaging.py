"""The mean of the weights after several epochs, as a run validates and keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import tiny_recipe, write_data

from saywhere.options import from_dict
from saywhere.training import run
from saywhere.training.loop import read_log
from saywhere.training.recipe import Recipe


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), train=6, validation=3)


def make(root: Path, **training: Any) -> Recipe:
    return from_dict(Recipe, tiny_recipe(root, **training))


def last_weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "last.ckpt", weights_only=True)["network"]


def test_the_mean_of_the_last_epochs_is_validated_and_kept_and_training_goes_on_without_it(
    root: Path, tmp_path: Path
) -> None:
    after = []
    for epochs in (1, 2, 3):  # with a constant rate a shorter run is the beginning of a longer one
        run.train(make(root, epochs=epochs, schedule="constant"), tmp_path / f"{epochs}")
        after.append({key: value.double() for key, value in last_weights(tmp_path / f"{epochs}").items()})
    recipe = make(root, epochs=3, schedule="constant", average=2)
    recipe = replace(recipe, data=replace(recipe.data, validation=None))  # the weights of the last epoch are kept
    run.train(replace(recipe, training=replace(recipe.training, epochs=2)), tmp_path / "mean")
    run.train(recipe, tmp_path / "mean")  # resumed: the weights of the epoch before are in the state
    goes_on, alone = last_weights(tmp_path / "mean"), last_weights(tmp_path / "3")
    assert goes_on.keys() == alone.keys() and all(torch.equal(goes_on[key], alone[key]) for key in alone)
    stored = load_file(tmp_path / "mean" / "model" / "model.safetensors")
    kept = {key.removeprefix("densecap."): value for key, value in stored.items()}
    for key, value in kept.items():
        if not value.is_floating_point():
            continue
        mean = (after[1][key] + after[2][key]) / 2
        torch.testing.assert_close(value.double(), mean, atol=1e-6, rtol=1e-6)
    assert not torch.equal(kept["decoder.words.weight"].double(), after[2]["decoder.words.weight"])


def test_validation_sees_the_mean(root: Path, tmp_path: Path) -> None:
    for average in (1, 3):
        run.train(make(root, epochs=2, average=average), tmp_path / f"{average}")
    one, mean = (
        [value for _, value in read_log(tmp_path / f"{average}" / "metrics.csv")["val/loss"]] for average in (1, 3)
    )
    assert one[0] == mean[0] and one[1] != mean[1]  # after the first epoch there is nothing to average
