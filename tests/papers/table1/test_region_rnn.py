"""The RNN on crops: its network, crops and training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import quarters
from PIL import Image
from refusals import refuses
from torch.nn import functional
from torch.testing import assert_close

from saywhere.configs.parts import TrunkConfig
from saywhere.data.sample import Sample
from saywhere.images import open_image
from saywhere.networks import checkpoint
from saywhere.papers.table1 import region_rnn
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.papers.table1.plan import FitConfig
from saywhere.papers.table1.region_rnn import Crop, Lessons, RegionRnn, crop_features, fit, region_crops, sentence_crops
from saywhere.text import END, Vocabulary, pad
from saywhere.training.loop import has_bfloat16

VOCABULARY = Vocabulary.build(["a red square", "the blue sky", "a dog"])
QUARTERS = torch.tensor([[0.0, 0, 32, 16], [32, 0, 64, 16], [0, 16, 32, 32], [32, 16, 64, 32]])


def tiny(seed: int = 0, vocabulary: Vocabulary = VOCABULARY, **options: object) -> RegionRnn:
    base = RegionRnnConfig(
        trunk=TrunkConfig(backbone="test_efficientnet", strides=(32,), long_side=64, multiple=64),
        grid=2,
        embed_dim=16,
        word_size=12,
        hidden_size=20,
        dropout=0.0,
        decoder_dropout=0.0,
    )
    torch.manual_seed(seed)
    return checkpoint.new_network(RegionRnn, base.merge(options), vocabulary).eval()


def test_a_crop_has_the_pixels_of_its_box() -> None:
    model = tiny()
    crops = model.crop(open_image(quarters(64, 32)), QUARTERS)
    assert crops.shape == (4, 3, 64, 64)
    mean, std = (torch.tensor(v)[:, None, None] for v in (model.trunk.preprocess.mean, model.trunk.preprocess.std))
    colours = torch.tensor([[250.0, 20, 20], [20, 240, 20], [30, 30, 245], [245, 245, 20]]) / 255
    assert_close(crops * std + mean, colours[:, :, None, None].expand(4, 3, 64, 64), atol=1e-5, rtol=0)


def test_boxes_are_in_pixels_of_the_image_though_it_was_decoded_smaller(tmp_path: Path) -> None:
    quarters(640, 320).save(tmp_path / "large.png")
    image = open_image(tmp_path / "large.png", long_side=64)
    assert image.pixels.size == (64, 32)
    whole = tiny().crop(open_image(tmp_path / "large.png"), QUARTERS * 10)
    assert_close(tiny().crop(image, QUARTERS * 10), whole, atol=1e-5, rtol=0)


def test_the_pixels_that_a_box_touches_and_at_least_one() -> None:
    image = Image.new("RGB", (4, 1))
    for x in range(4):
        image.putpixel((x, 0), (80 * x, 0, 0))
    model = tiny(trunk={"long_side": 8, "multiple": 8})
    boxes = torch.tensor([[1.4, 0, 1.6, 1], [2.0, 0, 2.0, 1], [4, 1, 4, 1], [1.5, 0, 2.5, 1]])
    red = model.crop(open_image(image), boxes)[:, 0, 4] * model.trunk.preprocess.std[0] + model.trunk.preprocess.mean[0]
    assert_close(red[:3, 0] * 255, torch.tensor([80.0, 160, 240]), atol=1e-3, rtol=0)
    assert_close(red[3, [0, 7]] * 255, torch.tensor([80.0, 160]), atol=1e-3, rtol=0)


def test_features_are_means_over_the_grid() -> None:
    model = tiny(trunk={"strides": [16, 32]}, grid=2)
    crops = torch.randn(3, 3, 64, 64)
    features = model.pool(crops)
    fine, coarse = model.trunk.backbone.body(crops)
    assert features.shape == (3, model.feature_size) == (3, 4 * (fine.shape[1] + coarse.shape[1]))
    assert_close(features[:, : 4 * fine.shape[1]].reshape(3, -1, 2, 2)[..., 0, 1], fine[:, :, :2, 2:].mean((2, 3)))
    assert_close(features[:, 4 * fine.shape[1] :].reshape(3, -1, 2, 2), coarse)


def test_each_image_has_a_crop_before_any_has_two_and_fewer_crops_are_the_first_of_more() -> None:
    samples = [
        Sample(Path(name), 50, 40, np.array([[i, 0.0, i + 5.0, 9.0] for i in range(len(phrases))]), phrases)
        for name, phrases in (
            ("a.jpg", (("A dog", "the dog"), ("a cat",), ("a tree",))),
            ("b.jpg", (("a dog",),)),
            ("c.jpg", (("a cat",), ("the tree",))),
        )
    ]
    everything = region_crops(samples, None)
    assert [crop.image.stem for crop in everything] == ["a", "b", "c", "a", "c", "a"] and len(set(everything)) == 6
    assert region_crops(samples, 1) == everything[:3] and region_crops(samples, 2) == everything[:5]
    for crop in everything:
        whole = next(s for s in samples if s.image == crop.image)
        assert crop.phrases == whole.phrases[int(crop.box[0])] and crop.box[2] == crop.box[0] + 5


def test_sentences_of_whole_images_without_those_too_long_or_wordless() -> None:
    texts = (("A dog runs.", "So " * 20, "..."), ("Words " * 17,), ())
    samples = [Sample(Path("a.jpg"), 50, 40, np.zeros((0, 4)), (), sentences) for sentences in texts]
    assert sentence_crops(samples, 16) == [Crop(Path("a.jpg"), (0, 0, 50, 40), ("A dog runs.",))]
    assert len(sentence_crops(samples, 17)) == 2


def test_forward_is_the_log_likelihood_of_the_words_and_the_end() -> None:
    model = tiny().double()
    features = torch.randn(2, model.feature_size, dtype=torch.float64)
    phrases = [VOCABULARY.encode("a dog"), VOCABULARY.encode("a red square")]
    logits, targets = model(features, torch.from_numpy(pad(phrases)))
    assert targets.tolist() == [*phrases[0], END, *phrases[1], END]
    assert logits.shape == (7, len(VOCABULARY))
    state, total = model.decoder.start(model.layers(features[1:])), 0.0
    previous = torch.tensor([1])
    for word in [*phrases[1], END]:
        log_probs, state = model.decoder.step(previous, state)
        total += log_probs[0, word].item()
        previous = torch.tensor([word])
    ours = -functional.cross_entropy(logits[3:], targets[3:], reduction="sum")
    assert ours.item() == pytest.approx(total, abs=1e-9)


def test_no_gradient_reaches_the_backbone() -> None:
    model = tiny().train()
    logits, targets = model(model.pool(torch.randn(2, 3, 64, 64)), torch.tensor([[4], [5]]))
    functional.cross_entropy(logits, targets).backward()
    assert all(p.grad is None for p in model.trunk.backbone.parameters())
    assert all(p.grad is not None for p in model.layers.parameters())


def test_each_box_has_a_caption_of_its_own() -> None:
    model, image = tiny(), open_image(quarters(64, 32))
    captions = model.caption(model.features(image, QUARTERS) * 5)
    assert len(captions) == 4 and model.caption(model.features(image, torch.zeros(0, 4))) == []
    assert model.features(image, torch.zeros(0, 4)).shape == (0, model.feature_size)
    assert model.caption(model.features(image, QUARTERS[2:3]) * 5) == captions[2:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trunk": {"long_side": 0}}, "trunk.long_side is 0, but must be between 1 and 8192"),
        (
            {"trunk": {"long_side": 300}},
            "trunk.multiple is 224, but must be 300 as trunk.long_side: crops become squares",
        ),
        ({"trunk": {"strides": []}}, "trunk.strides is .*one or more"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"grid": 0}, "grid is 0"),
        ({"decoding": {"beam": 2}}, "unknown key decoding.beam; did you mean decoding.beam_size"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    refuses(message, RegionRnnConfig.from_dict, options)


PHRASES = ("a red square", "the green grass", "blue sky", "a yellow dog")
BOXES = ((0.0, 0.0, 32.0, 16.0), (32.0, 0.0, 64.0, 16.0), (0.0, 16.0, 32.0, 32.0), (32.0, 16.0, 64.0, 32.0))


def tiny_of_crops(**options: object) -> RegionRnn:
    sizes = {"grid": 1, "embed_dim": 32, "word_size": 16, "hidden_size": 32, "dropout": 0.1, "decoder_dropout": 0.1}
    return tiny(vocabulary=Vocabulary.build(PHRASES), **{**sizes, **options})


@pytest.fixture
def crops(tmp_path: Path) -> list[Crop]:
    """The four quarters of two images."""
    for name in ("a", "b"):
        quarters(64, 32).save(tmp_path / f"{name}.png")
    return [Crop(tmp_path / f"{name}.png", box) for name in ("a", "b") for box in BOXES]


def lessons(network: RegionRnn, count: int = 4, several: bool = False, shift: int = 0) -> Lessons:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(4, network.feature_size, generator=random)[torch.arange(count) % 4]
    named = [PHRASES[(i + shift) % 4 :][: 2 if several else 1] for i in range(count)]
    return features.half(), [Crop(Path("x"), BOXES[0], phrases) for phrases in named]


def test_features_are_those_of_the_model(tmp_path: Path, crops: list[Crop]) -> None:
    model = tiny_of_crops()
    expected = model.eval().features(open_image(crops[0].image), torch.tensor(BOXES))
    found = crop_features(tmp_path / "cache", model, crops)
    assert found.dtype == torch.float16
    assert_close(found[:4].float(), expected, atol=2e-3, rtol=2e-3)
    assert_close(found[4:], found[:4])


def test_an_interrupted_run_computes_only_what_is_missing(
    tmp_path: Path, crops: list[Crop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_rnn, "CHUNK", 2)
    whole = crop_features(tmp_path, tiny_of_crops(), crops)
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
    assert torch.equal(crop_features(tmp_path, tiny_of_crops(), crops), whole)
    assert computed == [2, 2]


def test_the_cache_depends_on_network_size_box_and_file(tmp_path: Path, crops: list[Crop]) -> None:
    def files() -> int:
        return len(list(tmp_path.rglob("*.npy")))

    crop_features(tmp_path, tiny_of_crops(), crops[:1])
    changes = [
        (tiny_of_crops(trunk={"long_side": 32, "multiple": 32}), crops[:1], False),
        (tiny_of_crops(grid=2), crops[:1], False),
        (tiny_of_crops(trunk={"strides": [16]}), crops[:1], False),
        (tiny_of_crops(), crops[:1], True),
        (tiny_of_crops(), crops[1:2], False),
        (tiny_of_crops(), crops[4:5], False),
    ]
    for count, (model, some, half) in enumerate(changes, 1):
        crop_features(tmp_path, model, some, half)
        assert files() == count + 1
    other = tiny_of_crops(hidden_size=8)  # no part of the features
    crop_features(tmp_path, other, crops[:1])
    assert files() == 7
    with torch.no_grad():
        next(other.trunk.backbone.parameters()).add_(1)
    crop_features(tmp_path, other, crops[:1])
    assert files() == 8


def test_it_learns_the_phrases_of_crops() -> None:
    model = tiny_of_crops(dropout=0.0, decoder_dropout=0.0)
    losses = fit(model, lessons(model, 32), lessons(model), FitConfig(epochs=50, batch_size=4, lr=0.01), seed=0)
    assert losses[-1] < 0.1 < losses[0]
    assert model.caption(lessons(model)[0].float()) == list(PHRASES)
    assert not model.training


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    def weights(seed: int, half: bool = False) -> torch.Tensor:
        model = tiny_of_crops()
        fit(model, lessons(model, 8, several=True), lessons(model), FitConfig(epochs=2, batch_size=3), seed, half)
        return model.decoder.output.weight

    first = weights(0)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)
    half = weights(0, half=True)
    assert torch.equal(half, first) != has_bfloat16()
    assert_close(half, first, atol=0.02, rtol=0)


def test_the_weights_of_the_best_epoch_are_kept() -> None:
    model = tiny_of_crops(dropout=0.0, decoder_dropout=0.0)
    wrong = lessons(model, 4, shift=1)
    config = FitConfig(epochs=40, batch_size=4, lr=0.01)
    losses = fit(model, lessons(model, 16), wrong, config, seed=0)
    best = min(losses)
    assert losses[-1] > best + 0.01  # learning the right phrases makes the wrong ones worse
    token_ids = [model.vocabulary.encode(crop.phrases[0]) for crop in wrong[1]]
    with torch.no_grad():
        logits, targets = model(wrong[0].float(), torch.from_numpy(pad(token_ids)))
    kept = functional.cross_entropy(logits, targets, reduction="sum").item() / 4
    assert kept == pytest.approx(best, abs=1e-5)


def test_training_uses_every_phrase_of_a_crop_and_validation_the_first() -> None:
    def learnt(train: bool, several: bool) -> list[float]:
        model = tiny_of_crops(dropout=0.0, decoder_dropout=0.0)
        one, both = lessons(model, 4), lessons(model, 4, several)
        return fit(model, *((both, one) if train else (one, both)), FitConfig(epochs=4, batch_size=4, lr=0.01), 0)

    assert learnt(False, True) == learnt(False, False) != learnt(True, True)
