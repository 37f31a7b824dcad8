"""The kinds of regions that a captioner can attend to (Areas of Attention, section 3.3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import noise, quarters
from tiny_captioner import (
    SENTENCES,
    captioner_model,
    tiny_captioner,
    tiny_config,
    tiny_maps,
    tiny_target,
)

import saywhere
from saywhere.errors import UserError
from saywhere.networks import checkpoint
from saywhere.networks.captioner.loss import CaptionCriterion
from saywhere.networks.captioner.network import Captioner, ImageRegions
from saywhere.networks.vision.grid import pick
from saywhere.networks.vision.region_features import position_features

KINDS = (
    {"attend_to": "grid"},
    {"attend_to": "proposals"},
    {"attend_to": "proposals"},
    {"attend_to": "transformer"},
)


@torch.no_grad()
def regions_of(network: Captioner, *images) -> tuple[ImageRegions, ...]:
    return network.attend(tiny_maps(network, *images)).regions


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_three_images_are_learnt_by_heart_saved_and_loaded(kind, tmp_path: Path):
    network = tiny_captioner(**kind, decoding={"beam_size": 2})
    with torch.no_grad():
        for parameter in network.decoder.parameters():
            parameter.mul_(0.3)
    images = [quarters(96, 64), noise(96, 64, 3), noise(96, 64, 4)]
    maps = [image.maps for image in tiny_maps(network, *images)]
    targets = [tiny_target(sentence) for sentence in SENTENCES[:3]]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer, criterion = torch.optim.Adam(trained, 0.01), CaptionCriterion()
    for _ in range(120):
        optimizer.zero_grad()
        loss = criterion(network(maps, targets))["caption"]
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    captions = captioner_model(network).caption(images)
    assert [caption.sentence for caption in captions] == list(SENTENCES[:3])
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(name.startswith("trunk") for name in moved)
    transformer = {name for name in before if name.startswith("transformer")}
    assert moved & transformer == transformer and bool(transformer) == (kind["attend_to"] == "transformer")
    loaded = saywhere.load(checkpoint.save(network, tmp_path / "model"), "cpu")
    assert loaded.captioner.config == network.config
    for one, other in zip(captions, loaded.caption(images), strict=True):
        assert one.sentence == other.sentence
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-6)
        np.testing.assert_allclose(one.outlines, other.outlines)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_images_of_several_sizes_have_the_regions_of_each_alone(kind):
    network = tiny_captioner(**kind)
    images = [noise(96, 64, 1), noise(64, 96, 2), noise(96, 64, 3), noise(90, 90, 4)]
    for together, image in zip(regions_of(network, *images), images, strict=True):
        (alone,) = regions_of(network, image)
        torch.testing.assert_close(
            (together.embedding, together.features), (alone.embedding, alone.features), atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(together.boxes, alone.boxes, atol=1e-3, rtol=1e-4)
        assert (together.corners is None) == (alone.corners is None)


@torch.no_grad()
def test_boxes_may_be_given_for_some_images():
    network, given = tiny_captioner(attend_to="proposals"), torch.tensor([[0.0, 0, 40, 30], [10, 10, 90, 60]])
    maps = tiny_maps(network, noise(96, 64, 1), noise(96, 64, 2), noise(64, 96, 3))
    found, own = network.attend(maps, [None, given, None]), network.attend(maps).regions
    assert found.regions[1].boxes is given
    assert found.mask.sum(dim=1).tolist() == [len(one.boxes) for one in found.regions]
    torch.testing.assert_close([found.regions[i].boxes for i in (0, 2)], [own[i].boxes for i in (0, 2)])


@torch.no_grad()
def test_in_training_transformers_of_images_of_one_size_have_the_same_positions():
    network = tiny_captioner(attend_to="transformer", zoom=1.0, trunk={"long_side": 192}).train()
    one, other = network.attend(tiny_maps(network, noise(192, 128, 1), noise(192, 128, 2))).regions
    assert one.corners is not None and other.corners is not None
    torch.testing.assert_close(one.corners, other.corners)  # zoom 1 and no training yet: nothing is moved


@pytest.mark.parametrize(
    ("kind", "option", "more", "counts"),
    [
        ("grid", "grid", 4, (4, 16)),
        ("transformer", "grid", 1, (4, 1)),
        ("proposals", "proposals.post_nms_top_n", 3, (6, 3)),
    ],
)
@torch.no_grad()
def test_there_may_be_fewer_or_more_regions_than_in_training(kind, option, more, counts, tmp_path: Path):
    """Figure 4: the same weights with another number of regions."""
    folder = checkpoint.save(tiny_captioner(attend_to=kind), tmp_path / "model")
    trained, other = (
        checkpoint.load_networks(folder, options=options)["captioner"] for options in (None, {option: more})
    )
    image = noise(96, 64)
    found, changed = (network.attend(tiny_maps(network, image)) for network in (trained, other))
    assert (found.features.shape[1], changed.features.shape[1]) == counts
    torch.testing.assert_close(found.embeddings, changed.embeddings)


@torch.no_grad()
def test_a_transformer_that_moves_nothing_passes_the_grid_on():
    network = tiny_captioner(attend_to="transformer", zoom=1.0, trunk={"long_side": 192})
    (image,) = tiny_maps(network, noise(192, 128))
    found = network.attend([image])
    features, stride = position_features(image.sources(network.config.levels, False), 2, 192, 128)
    rows = torch.relu(network.narrow(torch.nn.functional.layer_norm(features, features.shape[-1:])))
    chosen = pick(4, 6, 2, sample=False)
    torch.testing.assert_close(found.features[0], rows[chosen[:, 0], chosen[:, 1]], atol=1e-6, rtol=0)
    corners = found.regions[0].corners
    assert found.mask.all() and stride == 32 and corners is not None
    y, x = ((chosen + 0.5) * 32).unbind(1)
    torch.testing.assert_close(corners[:, 0], torch.stack((x - 48, y - 48), dim=1))
    twice = tiny_captioner(attend_to="transformer", zoom=2.0, trunk={"long_side": 192})
    corners = regions_of(twice, noise(192, 128))[0].corners
    assert corners is not None
    torch.testing.assert_close(corners[:, 0], torch.stack((x - 96, y - 96), dim=1))


def test_suppression_follows_the_options():
    found = {}
    for nms_iou, before in ((0.5, 100), (0.9, 100), (1.0, 7)):
        settings = {"post_nms_top_n": 90, "nms_iou": nms_iou, "pre_nms_top_n": before}
        network = tiny_captioner(attend_to="proposals", proposals=settings)
        found[nms_iou, before] = len(regions_of(network, noise(96, 64))[0].boxes)
    assert found[0.5, 100] < found[0.9, 100] <= 90 and found[1.0, 7] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attend_to": "proposals", "proposals": {"pyramid_channels": 12}}, "pyramid_channels is 12"),
        ({"attend_to": "proposals", "proposals": {"pyramid_channels": 0}}, "positive with several strides"),
        ({"attend_to": "proposals", "proposals": {"anchors": [[[1, 1]]]}}, "anchors is"),
        ({"attend_to": "proposals", "proposals": {"nms_iou": 0.0}}, "nms_iou is 0.0"),
        ({"attend_to": "proposals", "proposals": {"post_nms_top_n": 0}}, "post_nms_top_n is 0"),
        ({"zoom": 0.0}, "zoom is 0.0"),
        ({"attend_to": "boxes"}, "attend_to must be one of whole, grid"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        tiny_config(**options)
