"""Crops are computed once, whatever happens; the speaker learns them, and the same seed gives the same weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch
from pictures import quarters
from torch.testing import assert_close

from saywhere.errors import UserError
from saywhere.images import ImageError, open_picture
from saywhere.models.region_rnn import RegionRnn, RegionRnnConfig
from saywhere.text import Vocabulary
from saywhere.training import region_rnn
from saywhere.training.region_rnn import Crop, FitConfig, Taught, crop_features, fit

PHRASES = ("a red square", "the green grass", "blue sky", "a yellow dog")
BOXES = ((0.0, 0.0, 32.0, 16.0), (32.0, 0.0, 64.0, 16.0), (0.0, 16.0, 32.0, 32.0), (32.0, 16.0, 64.0, 32.0))


def tiny(**options: object) -> RegionRnn:
    base = {"backbone": "test_efficientnet", "side": 64, "grid": 1, "code_size": 32, "word_size": 16, "hidden_size": 32}
    torch.manual_seed(0)
    config = RegionRnnConfig.from_dict({**base, "dropout": 0.1, "speaker_dropout": 0.1, **options})
    return RegionRnn(config, Vocabulary.build(PHRASES), pretrained_backbone=False)


@pytest.fixture
def crops(tmp_path: Path) -> list[Crop]:
    """The four quarters of two pictures."""
    for name in ("a", "b"):
        quarters(64, 32).save(tmp_path / f"{name}.png")
    return [Crop(tmp_path / f"{name}.png", box) for name in ("a", "b") for box in BOXES]


def taught(model: RegionRnn, count: int = 4, several: bool = False) -> Taught:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(4, model.feature_size, generator=random)[torch.arange(count) % 4]
    phrases = [(PHRASES[i % 4], PHRASES[(i + 1) % 4]) if several else (PHRASES[i % 4],) for i in range(count)]
    return Taught(features.half(), phrases)


def test_features_are_those_of_the_model(tmp_path: Path, crops: list[Crop]) -> None:
    model = tiny()
    expected = model.eval().features(open_picture(crops[0].image), torch.tensor(BOXES))
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


def test_an_interrupted_run_goes_on_with_what_is_missing(
    tmp_path: Path, crops: list[Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_rnn, "CHUNK", 2)
    whole = crop_features(tmp_path, tiny(), crops)
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == 4
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:100])
    computed: list[int] = []
    compute = region_rnn._compute
    monkeypatch.setattr(region_rnn, "_compute", lambda m, c, h: (computed.append(len(c)), compute(m, c, h))[1])
    assert torch.equal(crop_features(tmp_path, tiny(), crops), whole)
    assert computed == [2, 2]


def test_the_cache_depends_on_network_size_box_and_file(tmp_path: Path, crops: list[Crop]) -> None:
    def files() -> int:
        return len(list(tmp_path.rglob("*.npy")))

    crop_features(tmp_path, tiny(), crops[:1])
    changes = [
        (tiny(side=32), crops[:1], False),
        (tiny(grid=2), crops[:1], False),
        (tiny(strides=[16]), crops[:1], False),
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
        next(other.backbone.parameters()).add_(1)
    crop_features(tmp_path, other, crops[:1])
    assert files() == 8


def test_half_precision_agrees(tmp_path: Path, crops: list[Crop]) -> None:
    exact, half = (crop_features(tmp_path, tiny(), crops, half).float() for half in (False, True))
    assert not torch.equal(exact, half)
    assert float(torch.cosine_similarity(exact, half).min()) > 0.99


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg: no such file"):
        crop_features(tmp_path, tiny(), [Crop(tmp_path / "gone.jpg", BOXES[0])])


def test_no_crops_give_no_features(tmp_path: Path) -> None:
    assert crop_features(tmp_path, tiny(), []).shape == (0, tiny().feature_size)


def test_it_learns_what_it_is_taught() -> None:
    model = tiny(dropout=0.0, speaker_dropout=0.0)
    lessons = taught(model, 32)
    losses = fit(model, lessons, taught(model), FitConfig(epochs=40, batch_size=4, lr=0.01, warmup=5), seed=0)
    assert losses[-1] < 0.1 < losses[0]
    assert model.speak(taught(model).features.float()) == list(PHRASES)
    assert not model.training


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    def weights(seed: int, half: bool = False) -> torch.Tensor:
        model = tiny()
        fit(model, taught(model, 8, several=True), taught(model), FitConfig(epochs=2, batch_size=3), seed, half)
        return model.speaker.output.weight

    first = weights(0)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)
    assert not torch.equal(weights(0, half=True), first)
    assert_close(weights(0, half=True), first, atol=0.02, rtol=0)


def test_the_weights_of_the_best_epoch_are_kept() -> None:
    model = tiny(dropout=0.0, speaker_dropout=0.0)
    lessons = taught(model, 16)
    wrong = Taught(lessons.features[:4], [(PHRASES[(i + 1) % 4],) for i in range(4)])
    seen: list[tuple[int, float, float]] = []
    config = FitConfig(epochs=30, batch_size=4, lr=0.01, warmup=0)
    losses = fit(model, lessons, wrong, config, seed=0, report=lambda *row: seen.append(row))
    assert [row[0] for row in seen] == list(range(1, 31)) and [row[2] for row in seen] == losses
    best = min(losses)
    assert losses[-1] > best + 0.5  # learning the lessons makes the wrong answers worse
    assert region_rnn._validate(model, wrong, 4) == pytest.approx(best, abs=1e-5)


def test_every_phrase_of_a_crop_is_taught_and_the_first_is_asked() -> None:
    model = tiny()
    lessons = taught(model, 1, several=True)
    drawn = {tuple(lessons.words(model, [0], numpy.random.default_rng(i))[0].tolist()) for i in range(20)}
    encoded = {tuple(model.vocabulary.encode(phrase)) for phrase in lessons.phrases[0]}
    assert drawn == encoded
    assert lessons.words(model, [0], None)[0].tolist() == model.vocabulary.encode(PHRASES[0])


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [region_rnn._rate(step, 4, 12) for step in range(12)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1 and rates[8] == pytest.approx(0.5)
    assert rates[11] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert region_rnn._rate(0, 0, 10) == 1


@pytest.mark.parametrize(
    "options", [{"lr": 1e-5}, {"weight_decay": 5.0}, {"clip": 1e-6, "lr": 1.0}, {"warmup": 50}, {"batch_size": 2}]
)
def test_every_option_of_training_counts(options: dict[str, float]) -> None:
    def weights(config: FitConfig) -> torch.Tensor:
        model = tiny()
        fit(model, taught(model, 8), taught(model), config, 0)
        return model.layers[0].weight

    base = {"epochs": 2, "batch_size": 4, "lr": 0.01, "warmup": 0}
    assert not torch.allclose(weights(FitConfig(**base)), weights(FitConfig(**{**base, **options})), atol=1e-5)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"clip": -1.0}, {"warmup": -1}])
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        FitConfig(**options)
