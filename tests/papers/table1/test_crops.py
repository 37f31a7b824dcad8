"""Crops are computed once, whatever happens; the decoder learns them, and the same seed gives the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import quarters
from torch.testing import assert_close

from saywhere.configs.parts import TrunkConfig
from saywhere.errors import UserError
from saywhere.images import ImageError, open_image
from saywhere.papers.table1 import region_rnn
from saywhere.papers.table1.config import FitConfig, RegionRnnConfig
from saywhere.papers.table1.region_rnn import Crop, LabelledCrops, RegionRnn, crop_features, fit, validate
from saywhere.text import Vocabulary

PHRASES = ("a red square", "the green grass", "blue sky", "a yellow dog")
BOXES = ((0.0, 0.0, 32.0, 16.0), (32.0, 0.0, 64.0, 16.0), (0.0, 16.0, 32.0, 32.0), (32.0, 16.0, 64.0, 32.0))


def tiny(**options: object) -> RegionRnn:
    base = RegionRnnConfig(
        trunk=TrunkConfig(backbone="test_efficientnet", strides=(32,), long_side=64, multiple=64),
        grid=1,
        embed_dim=32,
        dropout=0.1,
        word_size=16,
        hidden_size=32,
        decoder_dropout=0.1,
    )
    torch.manual_seed(0)
    return RegionRnn(base.merge(options), Vocabulary.build(PHRASES), pretrained_backbone=False)


@pytest.fixture
def crops(tmp_path: Path) -> list[Crop]:
    """The four quarters of two images."""
    for name in ("a", "b"):
        quarters(64, 32).save(tmp_path / f"{name}.png")
    return [Crop(tmp_path / f"{name}.png", box) for name in ("a", "b") for box in BOXES]


def lessons(network: RegionRnn, count: int = 4, several: bool = False) -> LabelledCrops:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(4, network.feature_size, generator=random)[torch.arange(count) % 4]
    phrases = [(PHRASES[i % 4], PHRASES[(i + 1) % 4]) if several else (PHRASES[i % 4],) for i in range(count)]
    return LabelledCrops(features.half(), phrases)


def test_features_are_those_of_the_model(tmp_path: Path, crops: list[Crop]) -> None:
    model = tiny()
    expected = model.eval().features(open_image(crops[0].image), torch.tensor(BOXES))
    found = crop_features(tmp_path / "cache", model, crops)
    assert found.dtype == torch.float16
    assert_close(found[:4].float(), expected, atol=2e-3, rtol=2e-3)
    assert_close(found[4:], found[:4])


def test_a_second_time_nothing_is_computed(tmp_path: Path, crops: list[Crop], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_rnn, "CHUNK", 3)
    first = crop_features(tmp_path, tiny(), crops)
    monkeypatch.setattr(RegionRnn, "pool", lambda *_: pytest.fail("computed again"))
    steps: list[int] = []
    assert torch.equal(crop_features(tmp_path, tiny(), crops, done=steps.append), first)
    assert steps == [3, 3, 2]


def test_an_interrupted_run_computes_only_what_is_missing(
    tmp_path: Path, crops: list[Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_rnn, "CHUNK", 2)
    whole = crop_features(tmp_path, tiny(), crops)
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == 4
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:100])
    computed: list[int] = []
    pool = RegionRnn.pool

    def counted(network: RegionRnn, pixels: torch.Tensor) -> torch.Tensor:
        computed.append(len(pixels))
        return pool(network, pixels)

    monkeypatch.setattr(RegionRnn, "pool", counted)
    assert torch.equal(crop_features(tmp_path, tiny(), crops), whole)
    assert computed == [2, 2]


def test_the_cache_depends_on_network_size_box_and_file(tmp_path: Path, crops: list[Crop]) -> None:
    def files() -> int:
        return len(list(tmp_path.rglob("*.npy")))

    crop_features(tmp_path, tiny(), crops[:1])
    changes = [
        (tiny(trunk={"long_side": 32, "multiple": 32}), crops[:1], False),
        (tiny(grid=2), crops[:1], False),
        (tiny(trunk={"strides": [16]}), crops[:1], False),
        (tiny(), crops[:1], True),
        (tiny(), crops[1:2], False),
        (tiny(), crops[4:5], False),
    ]
    for count, (model, some, half) in enumerate(changes, 1):
        crop_features(tmp_path, model, some, half)
        assert files() == count + 1
    other = tiny(hidden_size=8)  # no part of the features
    crop_features(tmp_path, other, crops[:1])
    assert files() == 7
    with torch.no_grad():
        next(other.trunk.backbone.parameters()).add_(1)
    crop_features(tmp_path, other, crops[:1])
    assert files() == 8


def test_half_precision_agrees(tmp_path: Path, crops: list[Crop]) -> None:
    exact, half = (crop_features(tmp_path, tiny(), crops, half).float() for half in (False, True))
    assert not torch.equal(exact, half)
    assert float(torch.cosine_similarity(exact, half).min()) > 0.99


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg: no such file"):
        crop_features(tmp_path, tiny(), [Crop(tmp_path / "gone.jpg", BOXES[0])])


def test_no_crops_give_no_features(tmp_path: Path) -> None:
    assert crop_features(tmp_path, tiny(), []).shape == (0, tiny().feature_size)


def test_it_learns_the_phrases_of_crops() -> None:
    model = tiny(dropout=0.0, decoder_dropout=0.0)
    config = FitConfig(epochs=40, batch_size=4, lr=0.01, warmup=5)
    losses = fit(model, lessons(model, 32), lessons(model), config, seed=0)
    assert losses[-1] < 0.1 < losses[0]
    assert model.caption(lessons(model).features.float()) == list(PHRASES)
    assert not model.training


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    def weights(seed: int, half: bool = False) -> torch.Tensor:
        model = tiny()
        fit(model, lessons(model, 8, several=True), lessons(model), FitConfig(epochs=2, batch_size=3), seed, half)
        return model.decoder.output.weight

    first = weights(0)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)
    try:
        half = weights(0, half=True)
    except UserError as error:
        assert "half=false" in str(error)
        pytest.skip("this processor has no bfloat16")
    assert not torch.equal(half, first)
    assert_close(half, first, atol=0.02, rtol=0)


def test_the_weights_of_the_best_epoch_are_kept() -> None:
    model = tiny(dropout=0.0, decoder_dropout=0.0)
    right = lessons(model, 16)
    wrong = LabelledCrops(right.features[:4], [(PHRASES[(i + 1) % 4],) for i in range(4)])
    seen: list[tuple[int, float, float]] = []
    config = FitConfig(epochs=30, batch_size=4, lr=0.01, warmup=0)
    losses = fit(model, right, wrong, config, seed=0, report=lambda *row: seen.append(row))
    assert [row[0] for row in seen] == list(range(1, 31)) and [row[2] for row in seen] == losses
    best = min(losses)
    assert losses[-1] > best + 0.5  # learning the right phrases makes the wrong ones worse
    assert validate(model, wrong, 4) == pytest.approx(best, abs=1e-5)


def test_training_uses_every_phrase_of_a_crop_and_validation_the_first() -> None:
    model = tiny()
    crops = lessons(model, 1, several=True)
    chosen = {tuple(crops.token_ids(model, [0], np.random.default_rng(i))[0].tolist()) for i in range(20)}
    encoded = {tuple(model.vocabulary.encode(phrase)) for phrase in crops.phrases[0]}
    assert chosen == encoded
    assert crops.token_ids(model, [0], None)[0].tolist() == model.vocabulary.encode(PHRASES[0])


@pytest.mark.parametrize(
    "options", [{"lr": 1e-5}, {"weight_decay": 5.0}, {"clip": 1e-6, "lr": 1.0}, {"warmup": 50}, {"batch_size": 2}]
)
def test_every_option_of_training_counts(options: dict[str, float]) -> None:
    def weights(config: FitConfig) -> torch.Tensor:
        model = tiny()
        fit(model, lessons(model, 8), lessons(model), config, 0)
        return model.layers[0].weight

    base = {"epochs": 2, "batch_size": 4, "lr": 0.01, "warmup": 0}
    assert not torch.allclose(weights(FitConfig(**base)), weights(FitConfig(**{**base, **options})), atol=1e-5)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"clip": -1.0}, {"warmup": -1}])
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        FitConfig(**options)
