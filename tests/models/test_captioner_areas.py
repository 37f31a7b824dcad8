"""The kinds of areas that a captioner can look at (Areas of Attention, section 3.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pictures import noise, quarters
from tiny_captioner import SENTENCES, VOCABULARY, tiny_captioner, tiny_config, tiny_target
from tiny_densecap import tiny_model

from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.models.caption_loss import CaptionCriterion
from saywhere.models.captioner import Captioner
from saywhere.models.looks import Look
from saywhere.training.captions import CaptionerSystem
from saywhere.training.start import start_from
from saywhere.vision.grid import pick
from saywhere.vision.positions import position_features
from saywhere.vision.proposer import Proposer
from saywhere.vision.transformer import Transformer

KINDS = (
    {"areas": "grid"},
    {"areas": "grid", "pooling": "max"},
    {"areas": "proposals"},
    {"areas": "proposals", "pooling": "max"},
    {"areas": "transformer"},
)
SMALL = {"proposals": 6, "pyramid": 16, "rpn_hidden": 16, "before_nms": 100}
FITS = {"pyramid": 16, "rpn_hidden": 16}
"""Sizes of the tiny DenseCap."""
BOXES = torch.tensor([[0.0, 0, 40, 30], [10, 20, 96, 64], [50, 0, 96, 20]])


def tiny(**options) -> Captioner:
    model = tiny_captioner(**{**SMALL, **options})
    if isinstance(model.finder, Proposer):  # untrained scores and offsets are all but equal: make them differ
        with torch.no_grad():
            model.finder.localization.head.score.weight.normal_(std=1.0)
            model.finder.localization.head.offset.weight.normal_(std=0.1)
    return model


def looks(model: Captioner, *pictures) -> list[Look]:
    return model._look([(e.maps, e.input_size) for e in model.encode(list(pictures))], [None] * len(pictures))[3]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_three_pictures_are_learnt_by_heart_saved_and_loaded(kind, tmp_path: Path):
    model = tiny(**kind, beam=2)
    with torch.no_grad():
        for parameter in model.speaker.parameters():
            parameter.mul_(0.3)
    pictures = [quarters(96, 64), noise(96, 64, 3), noise(96, 64, 4)]
    maps = [encoding.maps for encoding in model.encode(pictures)]
    targets = [tiny_target(sentence) for sentence in SENTENCES[:3]]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer, criterion = (
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01),
        CaptionCriterion(),
    )
    for _ in range(120):
        optimizer.zero_grad()
        loss = criterion(model(maps, targets))["caption"]
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert model.caption(pictures) == list(SENTENCES[:3])
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    finder = {name for name in before if name.startswith("finder")}
    assert bool(finder) == (kind["areas"] != "grid")
    assert moved & finder == (finder if kind["areas"] == "transformer" else set())
    assert not any(name.startswith("backbone") for name in moved)
    loaded = checkpoint.load(checkpoint.save(model, tmp_path / "model"))
    assert loaded.config == model.config
    seen, again = model.caption(pictures, attention=True), loaded.caption(pictures, attention=True)
    for one, other in zip(seen, again, strict=True):
        assert one.sentence == other.sentence
        torch.testing.assert_close((one.weights, one.areas), (other.weights, other.areas))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_pictures_of_several_sizes_are_looked_at_as_one_by_one(kind):
    model = tiny(**kind)
    pictures = [noise(96, 64, 1), noise(64, 96, 2), noise(96, 64, 3), noise(90, 90, 4)]
    for together, picture in zip(looks(model, *pictures), pictures, strict=True):
        (alone,) = looks(model, picture)
        torch.testing.assert_close(
            (together.whole, together.features), (alone.whole, alone.features), atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(together.boxes, alone.boxes, atol=1e-3, rtol=1e-4)
        assert (together.corners is None) == (alone.corners is None)


def test_boxes_may_be_given_for_some_pictures():
    model, given = tiny(areas="proposals"), torch.tensor([[0.0, 0, 40, 30], [10, 10, 90, 60]])
    encodings = model.encode([noise(96, 64, 1), noise(96, 64, 2), noise(64, 96, 3)])
    seen = [(e.maps, e.input_size) for e in encodings]
    found = model._look(seen, [None, given, None])
    assert found[3][1].boxes is given and found[2].sum(dim=1).tolist() == [len(one.boxes) for one in found[3]]
    own = model._look(seen, [None, None, None])[3]
    torch.testing.assert_close([found[3][i].boxes for i in (0, 2)], [own[i].boxes for i in (0, 2)])


def test_in_training_transformers_of_pictures_of_one_size_stand_at_the_same_positions():
    model = tiny(areas="transformer", zoom=1.0, long_side=192).train()
    encodings = model.encode([noise(192, 128, 1), noise(192, 128, 2)])
    one, other = model._look([(e.maps, e.input_size) for e in encodings], [None, None])[3]
    assert one.corners is not None and other.corners is not None
    torch.testing.assert_close(one.corners, other.corners)  # zoom 1 and no training yet: nothing is moved


@pytest.mark.parametrize(
    ("kind", "option", "more", "counts"),
    [("grid", "grid", 4, (4, 16)), ("transformer", "grid", 1, (4, 1)), ("proposals", "proposals", 3, (6, 3))],
)
def test_there_may_be_fewer_or_more_areas_than_in_training(kind, option, more, counts, tmp_path: Path):
    """Figure 4: the same weights with another number of areas."""
    folder = checkpoint.save(tiny(areas=kind), tmp_path / "model")
    trained, other = checkpoint.load(folder), checkpoint.load(folder, **{option: more})
    picture = noise(96, 64)
    seen, changed = (model.caption(picture, attention=True) for model in (trained, other))
    assert (len(seen.areas), len(changed.areas)) == counts
    torch.testing.assert_close(changed.weights.sum(dim=1), torch.ones(len(changed.words)))
    encodings = [(e.maps, e.input_size) for e in trained.encode([picture])]
    torch.testing.assert_close(trained._look(encodings, [None])[0], other._look(encodings, [None])[0])  # the code


def test_a_transformer_that_moves_nothing_passes_the_grid_on():
    model = tiny(areas="transformer", zoom=1.0, long_side=192)
    (encoding,) = model.encode([noise(192, 128)])
    _, areas, mask, (found,) = model._look([(encoding.maps, encoding.input_size)], [None])
    seen, stride = position_features(model.features, encoding.maps, 2, 192, 128)
    rows = torch.nn.functional.layer_norm(seen, seen.shape[-1:])
    rows = torch.relu(model.narrow(rows))
    chosen = pick(4, 6, 2, draw=False)
    torch.testing.assert_close(areas[0], rows[chosen[:, 0], chosen[:, 1]], atol=1e-6, rtol=0)
    assert mask.all() and stride == 32 and found.corners is not None
    y, x = ((chosen + 0.5) * 32).unbind(1)
    torch.testing.assert_close(found.corners[:, 0], torch.stack((x - 48, y - 48), dim=1))
    twice = looks(tiny(areas="transformer", zoom=2.0, long_side=192), noise(192, 128))[0]
    assert twice.corners is not None
    torch.testing.assert_close(twice.corners[:, 0], torch.stack((x - 96, y - 96), dim=1))


def test_corners_are_in_pixels_of_the_picture():
    model, picture = tiny(areas="transformer", zoom=1.0), noise(192, 192)
    (found,) = looks(model, picture)
    seen = model.caption(picture, attention=True)
    assert seen.areas is seen.corners and found.corners is not None and seen.corners is not None
    torch.testing.assert_close(seen.corners, 2 * found.corners)  # the network saw 96 x 96
    torch.testing.assert_close(seen.boxes, (2 * found.boxes).clamp(0, 192))


def test_a_transformer_starts_from_a_grid_that_is_trained(tmp_path: Path):
    grid = tiny(areas="grid")
    model = tiny(areas="transformer", seed=1)
    start_from(model, VOCABULARY, str(checkpoint.save(grid, tmp_path / "grid")))
    for name, value in grid.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    assert isinstance(model.finder, Transformer)


def test_proposals_come_best_first_and_boxes_may_be_given():
    model, picture = tiny(areas="proposals"), noise(192, 128)
    (found,), (fewer,) = looks(model, picture), looks(tiny(areas="proposals", proposals=2), picture)
    torch.testing.assert_close(found.boxes[:2], fewer.boxes)
    seen = model.caption(picture, attention=True)
    torch.testing.assert_close(seen.boxes, 2 * found.boxes)
    own = model.caption(picture, attention=True, boxes=seen.boxes)
    assert own.sentence == seen.sentence
    torch.testing.assert_close((own.weights, own.boxes), (seen.weights, seen.boxes))
    given = model.caption([picture, picture], attention=True, boxes=[2 * BOXES, 2 * BOXES[:1]])
    assert [one.boxes.tolist() for one in given] == [(2 * BOXES).tolist(), (2 * BOXES[:1]).tolist()]
    assert [one.sentence for one in given] == model.caption([picture] * 2, boxes=[2 * BOXES, 2 * BOXES[:1]])
    assert model.caption(picture, boxes=2 * BOXES) == given[0].sentence
    torch.testing.assert_close(model.attend(picture, [given[0].sentence], 2 * BOXES)[0].weights, given[0].weights)
    nothing = model.caption(picture, attention=True, boxes=BOXES[:0])
    assert nothing.weights.shape == (len(nothing.words), 0)


def test_pooling_takes_the_mean_or_the_largest():
    for kind in ("grid", "proposals"):
        (mean,), (largest,) = (looks(tiny(areas=kind, pooling=how), noise(96, 64)) for how in ("mean", "max"))
        torch.testing.assert_close(mean.boxes, largest.boxes)
        torch.testing.assert_close(mean.whole, largest.whole)
        assert not torch.allclose(mean.features, largest.features, atol=0.1)


@pytest.mark.parametrize(
    ("options", "name", "shape"),
    [
        ({"pyramid": 24}, "finder.localization.head.conv.weight", (16, 24, 3, 3)),
        ({"rpn_hidden": 8}, "finder.localization.head.conv.weight", (8, 16, 3, 3)),
        ({"anchors": [[[40, 40]], [[80, 80]], [[90, 60]]]}, "finder.localization.head.score.weight", (1, 16, 1, 1)),
        ({"pyramid": 0, "strides": [32], "levels": [32], "anchors": [[[60, 60]]]}, None, None),
    ],
)
def test_the_layer_is_built_as_told(options, name, shape):
    state = tiny(areas="proposals", **options).state_dict()
    if name is None:
        assert not any(key.startswith("finder.pyramid") for key in state)
    else:
        assert tuple(state[name].shape) == shape


def test_suppression_follows_the_options():
    found = {}
    for nms, before in ((0.5, 100), (0.9, 100), (1.0, 7)):
        model = tiny(areas="proposals", proposals=90, proposal_nms=nms, before_nms=before)
        found[nms, before] = len(looks(model, noise(96, 64))[0].boxes)
    assert found[0.5, 100] < found[0.9, 100] <= 90 and found[1.0, 7] == 7


def test_training_takes_the_layer_of_a_densecap(tmp_path: Path):
    densecap = tiny_model()
    config = tiny_config(areas="proposals", localizer=str(checkpoint.save(densecap, tmp_path / "densecap")), **FITS)
    model = CaptionerSystem().build(config, VOCABULARY, pretrained=False)
    assert isinstance(model.finder, Proposer)
    for name, value in densecap.localization.state_dict().items():
        torch.testing.assert_close(model.finder.localization.state_dict()[name], value)
    for name, value in densecap.backbone.state_dict().items():
        torch.testing.assert_close(model.backbone.state_dict()[name], value)
    with pytest.raises(UserError, match="localizer: the pyramid of that model does not fit"):
        CaptionerSystem().build(tiny_config(**{**config.to_dict(), "pyramid": 24}), VOCABULARY, pretrained=False)
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    with pytest.raises(UserError, match="do not both have a pyramid"):
        CaptionerSystem().build(tiny_config(**{**config.to_dict(), "localizer": str(captioner)}), VOCABULARY, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"areas": "proposals", "pyramid": 12}, "pyramid is 12"),
        ({"areas": "proposals", "pyramid": 0}, "above 0 with several strides"),
        ({"areas": "proposals", "anchors": [[[1, 1]]]}, "anchors is"),
        ({"zoom": 0.0}, "zoom is 0.0"),
        ({"proposal_nms": 0.0}, "proposal_nms is 0.0"),
        ({"proposals": 0}, "proposals is 0"),
        ({"pooling": "min"}, "pooling is one of mean, max, not 'min'"),
        ({"areas": "boxes"}, "areas is one of whole, grid"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        tiny_config(**options)


def test_boxes_for_models_that_look_elsewhere_are_refused():
    picture = noise(96, 64)
    for model in (tiny(areas="grid"), tiny_captioner(speaker="gru")):
        with pytest.raises(UserError, match="looks at no boxes; proposals are needed"):
            model.caption(picture, boxes=BOXES)
    with pytest.raises(UserError, match="leaves the 96 x 64 picture"):
        tiny(areas="proposals").caption(picture, boxes=2 * BOXES)
    with pytest.raises(UserError, match="1 lists of boxes for 2 pictures"):
        tiny(areas="proposals").caption([picture] * 2, boxes=[BOXES])
