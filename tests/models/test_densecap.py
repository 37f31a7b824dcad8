from __future__ import annotations

import numpy
import pytest
import torch
from tiny_densecap import PHRASES, VOCABULARY, tiny_model, tiny_target

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import ImageError, Picture, open_picture
from saywhere.models.densecap import DenseCap, Target
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.densecap_loss import DenseCapCriterion
from saywhere.text import END, PAD


def picture(width: int = 120, height: int = 80, seed: int = 0) -> Picture:
    pixels = numpy.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=numpy.uint8)
    return open_picture(pixels)


def step(model: DenseCap, targets: list[Target], seed: int = 0):
    pixels = [torch.randn(3, t.height, t.width, generator=torch.Generator().manual_seed(7)) for t in targets]
    return model(model.backbone(pixels), targets, torch.Generator().manual_seed(seed))


def test_describe_gives_regions_in_the_pixels_of_the_picture():
    regions = tiny_model().describe(picture(300, 150))
    assert (regions.width, regions.height) == (300, 150)
    assert len(regions) > 3
    assert regions.boxes[:, 2].max() > 150  # not those of the 96-pixel input
    assert regions.features is not None and regions.features.shape == (len(regions), 32)
    assert regions.scores is not None and (regions.scores.diff() <= 0).all()


def test_a_list_of_different_sizes_equals_one_at_a_time():
    model = tiny_model()
    pictures = [picture(120, 80, 0), picture(80, 120, 1), picture(121, 80, 2), picture(50, 50, 3)]
    for together, alone in zip(model.describe(pictures), map(model.describe, pictures), strict=True):
        torch.testing.assert_close(together.boxes, alone.boxes, atol=1e-3, rtol=0)
        torch.testing.assert_close(together.scores, alone.scores, atol=1e-5, rtol=0)
        assert together.captions == alone.captions


def test_top_and_threshold_cut_the_same_ranking():
    model, image = tiny_model(), picture()
    everything = model.describe(image)
    assert everything.scores is not None
    assert model.describe(image, top=2).captions == everything[:2].captions
    cut = float(everything.scores[2])
    assert len(model.describe(image, threshold=cut)) == int((everything.scores >= cut).sum()) < len(everything)
    assert len(model.describe(image, threshold=1.1)) == 0


def test_given_boxes_are_described_as_they_are_and_in_order():
    model, image = tiny_model(), picture()
    boxes = torch.tensor([[60.0, 10, 110, 70], [0, 0, 120, 80], [3, 4, 20, 30]])
    regions = model.describe(image, boxes)
    torch.testing.assert_close(regions.boxes, boxes)
    backwards = model.describe(image, boxes.flip(0))
    assert backwards.captions == tuple(reversed(regions.captions or ()))
    assert len(model.describe(image, torch.zeros(0, 4))) == 0
    with pytest.raises(UserError, match="1 lists of boxes for 2 pictures"):
        model.describe([image, image], [boxes])
    with pytest.raises(UserError, match="box 0 .* leaves the 120 x 80 picture"):
        model.describe(image, torch.tensor([[0.0, 0, 500, 20]]))
    with pytest.raises(UserError, match=r"shape \(N, 4\), not \(3,\)"):
        model.describe(image, torch.tensor([10, 20, 30]))
    with pytest.raises(UserError, match="given boxes are all described"):
        model.describe(image, boxes, top=1)


def test_given_boxes_come_back_as_they_are_in_mixed_precision():
    box = torch.tensor([[101.0, 203, 637, 477]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tiny_model().describe(picture(800, 600), box).boxes.tolist() == box.tolist()


def test_a_long_list_is_worked_off_a_few_pictures_at_a_time(monkeypatch):
    model, sizes = tiny_model(), []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda images: sizes.append(len(images)) or encode(images))
    images = [picture(40 + i, 40, i) for i in range(20)]
    boxes = [torch.tensor([[0.0, 0, 20 + i, 30]]) for i in range(20)]
    regions = model.describe(images, boxes)
    assert sizes == [16, 4]
    assert [r.width for r in regions] == [40 + i for i in range(20)]
    assert [float(r.boxes[0, 2]) for r in regions] == [20 + i for i in range(20)]


def test_an_encoding_is_asked_without_the_backbone():
    model, image = tiny_model(), picture()
    encoding = model.encode(image)
    expected = model.describe(image)
    model.backbone.body = torch.nn.Identity()  # would fail
    assert model.describe(encoding).captions == expected.captions
    assert model.describe([]) == []


def test_final_suppression_holds_and_captions_are_said_only_of_its_survivors(monkeypatch):
    model, said = tiny_model(repeat_nms=None), []
    say = model._say
    monkeypatch.setattr(model, "_say", lambda codes: said.append(len(codes)) or say(codes))
    regions = model.describe(picture())
    overlap = geometry.iou(regions.boxes, regions.boxes).fill_diagonal_(0)
    assert overlap.max() <= model.config.final_nms + 1e-4
    assert said == [len(regions)] and len(regions) < len(model.propose([model.encode(picture())])[0])


def test_a_region_that_repeats_a_better_one_is_left_out():
    image = picture()
    kept, everything = tiny_model(repeat_nms=0.05).describe(image), tiny_model(repeat_nms=None).describe(image)
    overlap = geometry.iou(everything.boxes, everything.boxes)
    expected: list[int] = []
    for row, caption in enumerate(everything.captions or ()):
        same = [i for i in expected if (everything.captions or ())[i] == caption]
        if not any(overlap[row, i] > 0.05 for i in same):
            expected.append(row)
    assert len(expected) < len(everything)
    assert kept.captions == everything[expected].captions
    torch.testing.assert_close(kept.boxes, everything[expected].boxes)
    assert tiny_model(repeat_nms=0.05).describe(image, top=2).captions == kept[:2].captions


def test_a_bad_picture_is_named():
    with pytest.raises(ImageError, match="nowhere.jpg: no such file"):
        tiny_model().describe("nowhere.jpg")


def test_training_output_holds_together():
    model = tiny_model(batch=12)
    targets = [tiny_target(), tiny_target(64, 96)]
    targets[1] = Target(64, 96, targets[1].boxes[1:2].clamp(max=64), targets[1].words[1:2])
    output = step(model.train(), targets)
    assert len(output.rpn_logits) == len(output.rpn_positive) == 2 * model.config.rpn_batch
    assert len(output.logits) == len(output.positive) <= 24
    positives = int(output.positive.sum())
    assert positives > 0
    assert output.offsets.shape == output.offset_targets.shape == (positives, 4)
    assert output.word_logits.shape == (len(output.words), len(VOCABULARY))
    assert int((output.words == END).sum()) == positives and PAD not in output.words
    said = " ".join(VOCABULARY.tokens[word] for word in output.words.tolist()).split(" <end>")
    assert {phrase.strip() for phrase in said[:-1]} <= set(PHRASES[:3])


def test_the_truths_offsets_are_zero_where_the_truth_itself_is_drawn():
    """Truths join the proposals; theirs is the last positive's target if nothing else overlaps."""
    model = tiny_model(batch=64, positive=0.99)
    output = step(model.train(), [tiny_target()])
    assert len(output.offset_targets) == 3
    torch.testing.assert_close(output.offset_targets, torch.zeros(3, 4))


@pytest.mark.parametrize("options", [{}, {"shared_batch": True, "match_proposals": True, "inside_only": True}])
def test_a_picture_without_regions_trains_only_the_scores(options):
    model = tiny_model(**options)
    empty = Target(96, 64, torch.zeros(0, 4), torch.zeros(0, 0, dtype=torch.long))
    losses = DenseCapCriterion(model.config)(step(model.train(), [empty]))
    assert losses["caption"] == losses["box"] == losses["rpn_box"] == 0
    sum(losses.values()).backward()
    assert losses["rpn_score"] > 0 and losses["score"] > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_caption_loss_reaches_the_proposals_through_the_box_coordinates():
    """Section 3.1.2: bilinear interpolation passes gradients to the coordinates of the proposals."""
    for pooling, flows in (("bilinear", True), ("roi_align", False)):
        model = tiny_model(pooling=pooling, positive=0.2, negative=0.2).train()
        output = step(model, [tiny_target()])
        DenseCapCriterion(model.config)(output)["caption"].backward()
        grad = model.localization.head.offset.weight.grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == flows


def test_the_samplers_are_seeded():
    model = tiny_model().train()
    first, again, other = (step(model, [tiny_target()], seed).rpn_logits for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def _outputs(**options) -> tuple:
    model = tiny_model(**options)
    regions = model.describe(picture())
    losses = DenseCapCriterion(model.config)(step(model.train(), [tiny_target()]))
    return (
        tuple(regions.boxes.flatten().tolist()),
        regions.captions,
        tuple(round(float(v.detach()), 6) for v in losses.values()),
        sum(p.numel() for p in model.parameters()),
        model.preprocess,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"backbone": "test_resnet"},
        {"strides": (8, 16), "anchors": DenseCapConfig().anchors[:2]},
        {"long_side": 128},
        {"multiple": 16},
        {"pyramid": 8},
        {"anchors": tuple(((20.0, 20.0),) for _ in range(3))},
        {"rpn_hidden": 8},
        {"rpn_two_way": True},
        {"rpn_positive": 0.3},
        {"rpn_negative": 0.01},
        {"rpn_batch": 8},
        {"match_proposals": True},
        {"inside_only": True},
        {"rpn_nms": 0.3},
        {"before_nms": 5},
        {"proposals": 5},
        {"shared_batch": True},
        {"positive": 0.9},
        {"negative": 0.01, "batch": 64},
        {"batch": 4},
        {"positive_share": 0.1},
        {"pooling": "roi_align"},
        {"pool_size": 3},
        {"code_size": 16},
        {"dropout": 0.5},
        {"word_size": 8},
        {"hidden_size": 12},
        {"speaker_dropout": 0.5},
        {"max_words": 1},
        {"calibration": (0.0, 1.0, 0.0)},
        {"final_nms": 0.1},
        {"repeat_nms": 0.01},
        {"balanced": True},
        {"box_beta": 2.0},
        {"box_limit": 1e-4},
        {"rpn_score_weight": 2.0},
        {"rpn_box_weight": 2.0},
        {"score_weight": 2.0},
        {"box_weight": 2.0},
        {"caption_weight": 2.0},
        {"box_decay": 1.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_changes_something(options, default_outputs):
    assert _outputs(**options) != default_outputs


@pytest.fixture(scope="module")
def default_outputs() -> tuple:
    return _outputs()


def test_the_bound_on_growth_and_the_beam_are_used():
    model = tiny_model(max_log_scale=0.1)
    with torch.no_grad():
        model.localization.head.offset.bias.fill_(3.0)
    rpn = model.localization([model.encode(picture()).maps])[0]
    sides = (rpn.anchors[:, 2:] - rpn.anchors[:, :2]) * torch.tensor(0.1).exp()
    boxes = model.localization.boxes(rpn)
    torch.testing.assert_close(boxes[:, 2:] - boxes[:, :2], sides, atol=1e-3, rtol=0)
    codes = torch.randn(40, 32)
    said = [tiny_model(**options).speak(codes) for options in ({}, {"beam": 5}, {"beam": 5, "length_power": 2.0})]
    assert said[0] != said[1] != said[2]


def test_configurations_are_checked_when_made():
    with pytest.raises(UserError, match="unknown key long_sid; did you mean long_side"):
        DenseCapConfig.from_dict({"long_sid": 100})
    with pytest.raises(UserError, match="long_side is 0, but must be at least 1"):
        DenseCapConfig(long_side=0)
    with pytest.raises(UserError, match="final_nms is 1.5"):
        DenseCapConfig(final_nms=1.5)
    with pytest.raises(UserError, match="anchors"):
        DenseCapConfig(strides=(16,))
    with pytest.raises(UserError, match="strides is \\(32, 16, 8\\), but must be one or more, ascending"):
        DenseCapConfig(strides=(32, 16, 8))
    with pytest.raises(UserError, match="code_size is 0"):
        DenseCapConfig(code_size=0)
    with pytest.raises(UserError, match="box_weight is -1"):
        DenseCapConfig(box_weight=-1)
    assert DenseCapConfig.from_dict(DenseCapConfig.original().to_dict()) == DenseCapConfig.original()


def test_the_original_configuration_builds_the_published_network():
    config = DenseCapConfig.original()
    small = {**config.to_dict(), "code_size": 64, "long_side": 96, "proposals": 20}
    torch.manual_seed(0)
    model = DenseCap(DenseCapConfig.from_dict(small), VOCABULARY, pretrained_backbone=False)
    head = model.localization.head
    assert head.conv.weight.shape == (256, 512, 3, 3)
    assert head.score.weight.shape == (24, 256, 1, 1) and head.offset.weight.shape == (48, 256, 1, 1)
    assert model.speaker.lstm.hidden_size == 512 and model.speaker.words.embedding_dim == 512
    model.backbone.set_trainable(True)
    frozen = [p.shape[0] for p in model.backbone.parameters() if not p.requires_grad]
    assert frozen == [64, 64, 64, 64, 128, 128, 128, 128]  # weights and biases of the first four convolutions
    assert len(model.eval().describe(picture())) > 0
    losses = DenseCapCriterion(model.config)(step(model.train(), [tiny_target()]))
    assert set(losses) == {"rpn_score", "rpn_box", "score", "box", "caption", "decay"}


def test_losses_have_their_published_values():
    from saywhere.models.densecap_loss import balanced_score_loss, box_loss, caption_loss, score_loss

    logits, positive = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([True, True, False])
    log = torch.log
    each = [log(torch.tensor(2.0)), log(1 + torch.exp(torch.tensor(-2.0))), log(1 + torch.exp(torch.tensor(-1.0)))]
    torch.testing.assert_close(score_loss(logits, positive), sum(each) / 3)
    torch.testing.assert_close(balanced_score_loss(logits, positive), (each[0] + each[1]) / 2 + each[2])
    offsets, targets = torch.tensor([[0.5, 3, 0, 0], [0, 0, 0, 0]]), torch.tensor([[0.0, 0, 0, 0], [11, 0, 0, 0]])
    torch.testing.assert_close(box_loss(offsets, targets, 1.0, 10.0), torch.tensor((0.125 + 2.5) / 8))
    torch.testing.assert_close(box_loss(offsets, targets, 1.0, None), torch.tensor((0.125 + 2.5 + 10.5) / 8))
    words = torch.tensor([5, END, 4, 5, END])
    torch.testing.assert_close(caption_loss(torch.zeros(5, 6), words, 2), 5 * log(torch.tensor(6.0)) / 2)
