from __future__ import annotations

import pytest
import torch
from photographs import noise
from tiny_aligner import tiny_aligner, tiny_pixels

from saywhere import boxes as geometry
from saywhere.networks.vision.region_features import ImageMaps, feature_size, position_features, propose_regions


def test_the_mean_of_a_box_counts_each_cell_by_its_share_and_is_0_without_one():
    features = torch.arange(12.0).reshape(1, 3, 4)
    boxes = torch.tensor([[0.0, 0, 40, 30], [10, 10, 20, 20], [5, 0, 20, 10], [12, 11, 18, 19], [35, 25, 90, 90]])
    means = geometry.means(features, boxes, 10)
    assert means[:, 0].tolist() == pytest.approx([5.5, 5, (0.5 * 0 + 1) / 1.5, 5, 11])
    features = torch.ones(2, 3, 4)
    assert geometry.means(features, torch.tensor([[50.0, 0, 60, 10], [10, 10, 10, 20]]), 10).abs().max() == 0


def test_place_is_a_share_of_the_image():
    assert geometry.place(torch.tensor([[0.0, 25, 50, 50]]), 100, 50).tolist() == [[0, 0.5, 0.5, 1, 0.25]]


def two_maps() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 8), torch.randn(3, 2, 4)


def test_a_position_has_its_cell_of_every_map():
    fine, coarse = two_maps()
    found = position_features([(fine, 16), (coarse, 32)], 32, 2, 128, 64)
    assert found.shape == (2, 4, 10)
    torch.testing.assert_close(found[1, 2, :2], fine[:, 2:4, 4:6].mean(dim=(1, 2)))
    torch.testing.assert_close(found[1, 2, 2:5], coarse[:, 1, 2])
    # Its place is a cell of a 2 x 2 grid around (80, 48), cut to the image.
    torch.testing.assert_close(found[1, 2, 5:], geometry.place(torch.tensor([[48.0, 32, 112, 64]]), 128, 64)[0])


def test_a_position_of_the_finest_map_alone_and_of_two_at_one_stride():
    fine, coarse = two_maps()
    alone = position_features([(fine, 16)], 16, 2, 128, 64)
    assert alone.shape == (4, 8, 7)
    torch.testing.assert_close(alone[3, 7, :2], fine[:, 3, 7])
    last = torch.randn(4, 2, 4)
    found = position_features([(fine, 16), (coarse, 32), (last, 32)], 32, 2, 128, 64)
    torch.testing.assert_close(found[0, 3, 5:9], last[:, 0, 3])


def pixels(width=96, height=64, seed=0):
    return tiny_pixels(tiny_aligner(), noise(width, height, seed))


@torch.no_grad()
def maps(network, *images) -> list[ImageMaps]:
    return ImageMaps.look(network.trunk, images)


@torch.no_grad()
def test_the_first_region_is_the_whole_image_and_the_others_are_inside():
    network = tiny_aligner()
    images = [pixels(), pixels(64, 96, 1)]
    found = network.extractor(images)
    for image, (features, boxes) in zip(images, found, strict=True):
        assert features.ndim == boxes.ndim == 3  # as a cache holds them
        size = feature_size(network.trunk, network.config.levels, network.config.layout)
        assert 1 < boxes.shape[1] <= 7 and features.shape == (1, boxes.shape[1], size)
        width, height = image.shape[2], image.shape[1]
        assert boxes[0, 0].tolist() == [0, 0, width, height]
        assert (boxes >= 0).all() and (boxes <= torch.tensor([width, height] * 2)).all()
        torch.testing.assert_close(features[0, :, -5:], geometry.place(boxes[0], width, height))
    torch.testing.assert_close(network.extractor([images[1]])[0], found[1])


@torch.no_grad()
def test_regions_are_the_best_proposals_of_the_trunk():
    network = tiny_aligner()
    image = pixels()
    (found,) = maps(network, image)
    (boxes,) = propose_regions([found], network.config.proposals)
    torch.testing.assert_close(network.extractor([image])[0][1][0, 1:], boxes)
    more, fewer = (propose_regions([found], network.config.proposals.merge({"post_nms_top_n": n})) for n in (12, 2))
    assert len(more[0]) > len(boxes) > len(fewer[0]) == 2
    torch.testing.assert_close(more[0][: len(boxes)], boxes)


@torch.no_grad()
def test_features_of_given_boxes_are_means_of_the_levels():
    network, image = tiny_aligner(), pixels()
    boxes = torch.tensor([[8.0, 8, 40, 40], [50, 20, 90, 60]])
    (found,) = maps(network, image)
    features = network.region_features(found, boxes)
    level = found.maps[network.config.trunk.strides.index(16)]
    torch.testing.assert_close(features[:, : len(level)], geometry.means(level, boxes, 16))


@torch.no_grad()
def test_the_whole_image_alone_needs_no_localization_layer():
    network = tiny_aligner(regions="whole")
    assert network.extractor([pixels()])[0][1].shape == (1, 1, 4)
    assert network.trunk.localization is None and network.trunk.pyramid is None


@torch.no_grad()
def test_what_the_trunk_computes_of_an_image_is_computed_once(monkeypatch):
    network = tiny_aligner()
    one, two = maps(network, pixels(), pixels(64, 96, 1))
    first = ImageMaps.rpns([one])[0]
    both = ImageMaps.rpns([one, two, one])
    assert both[0] is both[2] is first and both[1] is not first
    (alone,) = ImageMaps.rpns(maps(network, pixels(64, 96, 1)))
    torch.testing.assert_close((both[1].logits, both[1].offsets), (alone.logits, alone.offsets))
    monkeypatch.setattr(network.trunk, "pyramid", None)
    assert [level.shape[0] for level in ImageMaps.pyramids([two, one])[0]] == [16, 16, 16]


def test_only_the_backbone_can_be_trained():
    network = tiny_aligner()
    network.extractor.set_trainable(True)
    trained = {name for name, p in network.extractor.named_parameters() if p.requires_grad}
    assert trained and all(name.startswith("trunk.backbone.") for name in trained)
    network.extractor.set_trainable(False)
    assert not any(p.requires_grad for p in network.extractor.parameters())


def test_regions_of_other_settings_are_another_cache():
    options = ({}, {"proposals": {"post_nms_top_n": 5}}, {"proposals": {"nms_iou": 0.4}})
    settings = {tiny_aligner(**option).extractor.settings for option in options}
    assert len(settings) == 3 and tiny_aligner(embed_dim=8).extractor.settings in settings
