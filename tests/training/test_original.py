"""The program's training from a recipe: one picture a step, in order, its Adam, and which layers are trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import tiny_recipe, write_data

from saywhere.models import checkpoint
from saywhere.models.densecap import DenseCap
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.options import from_dict
from saywhere.training import run
from saywhere.training.dataset import Batch, PictureDataset
from saywhere.training.recipe import Recipe

THIN = {
    "preset": "original",
    "vgg_channels": [3, 4, 4, 5, 6],
    "anchors": [[[30, 40], [60, 20]]],
    "long_side": 96,
    "rpn_hidden": 8,
    "code_size": 12,
    "word_size": 8,
    "hidden_size": 8,
    "rpn_batch": 16,
    "dropout": 0.0,
}
ADAM = {"kind": "original_adam", "lr": 1e-3, "weight_decay": 1e-6}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), train=5, validation=1)


def recipe(root: Path, **training: Any) -> Recipe:
    plain = {"batch_size": 1, "accumulate": 1, "rest": ADAM, "backbone": ADAM, "warmup": 0, "clip": None, "flip": False}
    settings = {"schedule": "constant", "shuffle": False, "epochs": 2, "samples": 0, **plain, **training}
    return from_dict(Recipe, {**tiny_recipe(root, **settings), "model": THIN})


def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The keys of the training batches that are asked for from now on."""
    keys: list[list[tuple[int, int]]] = []
    usual = PictureDataset.__getitems__

    def batch(self: PictureDataset, wanted: Sequence[tuple[int, int]]) -> Batch:
        if not self.fixed:  # of validation
            keys.append(list(wanted))
        return usual(self, wanted)

    monkeypatch.setattr(PictureDataset, "__getitems__", batch)
    return keys


def start(model: DenseCap) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_one_picture_a_step_in_the_order_of_the_data(root, tmp_path, monkeypatch) -> None:
    keys = seen(monkeypatch)
    run.train(recipe(root), tmp_path / "a")
    assert keys == [[(epoch, number)] for epoch in range(2) for number in range(5)]
    model = checkpoint.load(tmp_path / "a" / "model")
    assert model.config.conventions == "original" and model.config.anchors == (((30.0, 40.0), (60.0, 20.0)),)
    assert model.config.rpn_positive == DenseCapConfig.original().rpn_positive


def test_shuffled_is_another_order(root, tmp_path, monkeypatch) -> None:
    keys = seen(monkeypatch)
    run.train(recipe(root, shuffle=True, epochs=1), tmp_path / "b")
    numbers = [number for ((_, number),) in keys]
    assert sorted(numbers) == list(range(5)) and numbers != list(range(5))


@pytest.mark.parametrize("unfreeze", [None, 0])
def test_which_layers_are_trained(root, tmp_path, monkeypatch, unfreeze) -> None:
    """Never the first four convolutions; the others only when told; all else, but for the LSTM's second bias."""
    first: list[dict[str, torch.Tensor]] = []
    usual = run.fit

    def fit(recipe: Recipe, out: Path, model: DenseCap, *rest: Any) -> Any:
        first.append(start(model))
        return usual(recipe, out, model, *rest)

    monkeypatch.setattr(run, "fit", fit)
    run.train(recipe(root, epochs=1, unfreeze_after=unfreeze), tmp_path / "c")
    last = torch.load(tmp_path / "c" / "last.ckpt", weights_only=True)["state_dict"]
    moved = {name for name, value in first[0].items() if not torch.equal(value, last[f"model.{name}"])}
    backbone = {name for name in first[0] if name.startswith("backbone")}
    frozen = {f"backbone.body.{i}.{kind}" for i in (0, 2, 5, 7) for kind in ("weight", "bias")}
    assert moved & backbone == (set() if unfreeze is None else backbone - frozen)
    others = first[0].keys() - backbone - {"speaker.model.lstm.bias_hh_l0"}
    assert others - moved == set()
    assert "speaker.model.lstm.bias_hh_l0" not in moved
