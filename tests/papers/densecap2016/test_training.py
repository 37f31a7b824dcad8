"""The program's training from a recipe: one image a step, in order, its Adam, and which layers are trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import tiny_recipe, write_data

from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks import checkpoint
from saywhere.networks.densecap.network import DenseCap
from saywhere.options import from_dict
from saywhere.training import run
from saywhere.training.dataset import Batch, ImageDataset
from saywhere.training.recipe import Recipe

THIN = {
    "preset": "original",
    "trunk": {"vgg_channels": [3, 4, 4, 5, 6], "long_side": 96},
    "proposals": {"anchors": [[[30, 40], [60, 20]]], "hidden_size": 8},
    "embed_dim": 12,
    "word_size": 8,
    "hidden_size": 8,
    "rpn_batch": 16,
    "dropout": 0.0,
}
ADAM = {"kind": "original_adam", "lr": 1e-3, "weight_decay": 1e-6}
pytestmark = pytest.mark.usefixtures("plain_curves")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), train=5, validation=1)


def recipe(root: Path, **training: Any) -> Recipe:
    plain = {"batch_size": 1, "accumulate": 1, "rest": ADAM, "backbone": ADAM, "warmup": 0, "clip": None, "flip": False}
    settings = {"schedule": "constant", "shuffle": False, "epochs": 2, **plain, **training}
    return from_dict(Recipe, {**tiny_recipe(root, **settings), "model": THIN})


def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The keys of the training batches that are asked for from now on."""
    keys: list[list[tuple[int, int]]] = []
    usual = ImageDataset.__getitems__

    def batch(self: ImageDataset, wanted: Sequence[tuple[int, int]]) -> Batch:
        if not self.fixed:  # of validation
            keys.append(list(wanted))
        return usual(self, wanted)

    monkeypatch.setattr(ImageDataset, "__getitems__", batch)
    return keys


def start(model: DenseCap) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_one_image_a_step_in_the_order_of_the_data(root, tmp_path, monkeypatch) -> None:
    keys = seen(monkeypatch)
    run.train(recipe(root), tmp_path / "a")
    assert keys == [[(epoch, number)] for epoch in range(2) for number in range(5)]
    config = checkpoint.load_network(tmp_path / "a" / "model").config
    assert config.conventions == "original" and config.proposals.anchors == (((30.0, 40.0), (60.0, 20.0)),)
    assert config.rpn_fg_iou == DenseCapConfig.original().rpn_fg_iou


@pytest.mark.parametrize("unfreeze", [None, 0])
def test_which_layers_are_trained_and_shuffled_is_another_order(root, tmp_path, monkeypatch, unfreeze) -> None:
    """Never the first four convolutions; the others if they are unfrozen; all else but the LSTM's second bias."""
    first: list[dict[str, torch.Tensor]] = []
    keys = seen(monkeypatch)
    usual = run.fit

    def fit(recipe: Recipe, out: Path, model: DenseCap, *rest: Any) -> Any:
        first.append(start(model))
        return usual(recipe, out, model, *rest)

    monkeypatch.setattr(run, "fit", fit)
    run.train(recipe(root, shuffle=True, epochs=1, unfreeze_after=unfreeze), tmp_path / "c")
    numbers = [number for ((_, number),) in keys]
    assert sorted(numbers) == list(range(5)) and numbers != list(range(5))
    last = torch.load(tmp_path / "c" / "last.ckpt", weights_only=True)["network"]
    moved = {name for name, value in first[0].items() if not torch.equal(value, last[name])}
    backbone = {name for name in first[0] if name.startswith("trunk.backbone.")}
    frozen = {f"trunk.backbone.body.{i}.{kind}" for i in (0, 2, 5, 7) for kind in ("weight", "bias")}
    assert moved & backbone == (set() if unfreeze is None else backbone - frozen)
    others = first[0].keys() - backbone - {"decoder.model.lstm.bias_hh_l0"}
    assert others - moved == set()
    assert "decoder.model.lstm.bias_hh_l0" not in moved
