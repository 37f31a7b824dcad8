"""The Region RNN sees the pixels of a box and nothing else, and learns to name them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pictures import quarters
from PIL import Image
from torch.nn import functional
from torch.testing import assert_close

from saywhere.errors import UserError
from saywhere.images import open_picture
from saywhere.models import checkpoint
from saywhere.models.region_rnn import RegionRnn, RegionRnnConfig
from saywhere.text import END, PAD, Vocabulary, pad

VOCABULARY = Vocabulary.build(["a red square", "the blue sky", "a dog"])
QUARTERS = torch.tensor([[0.0, 0, 32, 16], [32, 0, 64, 16], [0, 16, 32, 32], [32, 16, 64, 32]])


def tiny(seed: int = 0, **options: object) -> RegionRnn:
    base = {"backbone": "test_efficientnet", "side": 64, "grid": 2, "code_size": 16, "word_size": 12, "hidden_size": 20}
    torch.manual_seed(seed)
    config = RegionRnnConfig.from_dict({**base, "dropout": 0.0, "speaker_dropout": 0.0, **options})
    return RegionRnn(config, VOCABULARY, pretrained_backbone=False).eval()


def test_a_crop_has_the_pixels_of_its_box() -> None:
    model = tiny()
    crops = model.crop(open_picture(quarters(64, 32)), QUARTERS)
    assert crops.shape == (4, 3, 64, 64)
    mean, std = (torch.tensor(v)[:, None, None] for v in (model.preprocess.mean, model.preprocess.std))
    colours = torch.tensor([[250.0, 20, 20], [20, 240, 20], [30, 30, 245], [245, 245, 20]]) / 255
    assert_close(crops * std + mean, colours[:, :, None, None].expand(4, 3, 64, 64), atol=1e-5, rtol=0)


def test_boxes_are_in_pixels_of_the_picture_though_it_was_decoded_smaller(tmp_path: Path) -> None:
    quarters(640, 320).save(tmp_path / "large.png")
    picture = open_picture(tmp_path / "large.png", long_side=64)
    assert picture.pixels.size == (64, 32)
    whole = tiny().crop(open_picture(tmp_path / "large.png"), QUARTERS * 10)
    assert_close(tiny().crop(picture, QUARTERS * 10), whole, atol=1e-5, rtol=0)


def test_the_pixels_that_a_box_touches_and_at_least_one() -> None:
    image = Image.new("RGB", (4, 1))
    for x in range(4):
        image.putpixel((x, 0), (80 * x, 0, 0))
    model = tiny(side=8)
    boxes = torch.tensor([[1.4, 0, 1.6, 1], [2.0, 0, 2.0, 1], [4, 1, 4, 1], [1.5, 0, 2.5, 1]])
    red = model.crop(open_picture(image), boxes)[:, 0, 4] * model.preprocess.std[0] + model.preprocess.mean[0]
    assert_close(red[:3, 0] * 255, torch.tensor([80.0, 160, 240]), atol=1e-3, rtol=0)
    assert_close(red[3, [0, 7]] * 255, torch.tensor([80.0, 160]), atol=1e-3, rtol=0)


def test_features_are_means_over_the_grid() -> None:
    model = tiny(strides=[16, 32], grid=2)
    crops = torch.randn(3, 3, 64, 64)
    features = model.pool(crops)
    fine, coarse = model.backbone.body(crops)
    assert features.shape == (3, model.feature_size) == (3, 4 * (fine.shape[1] + coarse.shape[1]))
    assert_close(features[:, : 4 * fine.shape[1]].reshape(3, -1, 2, 2)[..., 0, 1], fine[:, :, :2, 2:].mean((2, 3)))
    assert_close(features[:, 4 * fine.shape[1] :].reshape(3, -1, 2, 2), coarse)


def test_a_region_does_not_see_what_is_around_it() -> None:
    model, box = tiny(), torch.tensor([[0.0, 0, 32, 16]])
    other = quarters(64, 32)
    other.paste((1, 2, 3), (32, 0, 64, 32))
    other.paste((3, 2, 1), (0, 16, 64, 32))
    assert_close(model.features(open_picture(quarters(64, 32)), box), model.features(open_picture(other), box))


def test_crops_together_and_one_by_one_are_the_same() -> None:
    model, picture = tiny(), open_picture(quarters(64, 32))
    together = model.features(picture, QUARTERS, at_once=3)
    assert_close(model.features(picture, QUARTERS), together, atol=1e-5, rtol=1e-5)
    assert model.features(picture, torch.zeros(0, 4)).shape == (0, model.feature_size)


def test_forward_is_the_log_likelihood_of_the_words_and_the_end() -> None:
    model = tiny().double()
    features = torch.randn(2, model.feature_size, dtype=torch.float64)
    phrases = [VOCABULARY.encode("a dog"), VOCABULARY.encode("a red square")]
    logits, said = model(features, pad(phrases))
    assert said.tolist() == [*phrases[0], END, *phrases[1], END]
    assert logits.shape == (7, len(VOCABULARY))
    state, total = model.speaker.start(model.layers(features[1:])), 0.0
    heard = torch.tensor([1])
    for word in [*phrases[1], END]:
        log_probs, state = model.speaker.step(heard, state)
        total += log_probs[0, word].item()
        heard = torch.tensor([word])
    ours = -functional.cross_entropy(logits[3:], said[3:], reduction="sum")
    assert ours.item() == pytest.approx(total, abs=1e-9)


def test_no_gradient_reaches_the_backbone() -> None:
    model = tiny().train()
    logits, said = model(model.pool(torch.randn(2, 3, 64, 64)), pad([[4], [5]]))
    functional.cross_entropy(logits, said).backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is not None for p in model.layers.parameters())


def test_describe_gives_a_caption_for_each_box_and_no_score() -> None:
    model = tiny()
    first, second = model.describe([quarters(64, 32), quarters(64, 32)], [QUARTERS, torch.zeros(0, 4)])
    assert (first.width, first.height, len(first), len(second)) == (64, 32, 4, 0)
    assert first.scores is None and second.captions == ()
    alone = model.describe([quarters(64, 32)], [QUARTERS[2:3]])[0]
    assert first.captions is not None and alone.captions == first.captions[2:3]


def test_longest_caption_and_beam() -> None:
    features = torch.randn(60, tiny().feature_size, generator=torch.Generator().manual_seed(0)) * 5

    def say(end: float = 0.0, **options: object) -> list[str]:
        model = tiny(**options)
        with torch.no_grad():
            model.speaker.output.weight.mul_(6)
            model.speaker.output.bias[END] += end
        return model.speak(features)

    assert max(len(caption.split()) for caption in say(-2.0, max_words=2)) == 2
    assert max(len(caption.split()) for caption in say(-2.0, max_words=7)) == 7
    assert say(beam=4) != say()
    assert say(beam=4, length_power=2.0) != say(beam=4)


@pytest.mark.parametrize("option", ["code_size", "word_size", "hidden_size", "side", "grid"])
def test_sizes_are_those_of_the_configuration(option: str) -> None:
    model, other = tiny(), tiny(**{option: 32})
    crops = (m.crop(open_picture(quarters(64, 32)), QUARTERS) for m in (model, other))
    shapes = [
        (c.shape, m.pool(c).shape, m.layers(m.pool(c)).shape, m.speaker.words.weight.shape, m.speaker.lstm.hidden_size)
        for m, c in zip((model, other), crops, strict=True)
    ]
    assert shapes[0] != shapes[1]


@pytest.mark.parametrize("option", ["dropout", "speaker_dropout"])
def test_dropout_changes_training_only(option: str) -> None:
    model, words = tiny(**{option: 0.5}), pad([[4, 5], [6]])
    features = torch.randn(2, model.feature_size)
    assert torch.equal(model(features, words)[0], model(features, words)[0])
    model.train()
    assert not torch.equal(model(features, words)[0], model(features, words)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 0}, "side is 0, but must be at least 1"),
        ({"strides": []}, "strides is .*one or more"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"sides": 224}, "unknown key sides; did you mean side"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RegionRnnConfig.from_dict(options)


def test_a_checkpoint_says_the_same(tmp_path: Path) -> None:
    model = tiny(strides=[16, 32])
    checkpoint.save(model, tmp_path / "model")
    loaded = checkpoint.load(tmp_path / "model")
    assert isinstance(loaded, RegionRnn) and loaded.config == model.config
    features = torch.randn(20, model.feature_size)
    assert loaded.speak(features) == model.speak(features)
    assert PAD == 0
