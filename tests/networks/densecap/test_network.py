"""DenseCap in training: sampling, losses, a handful of images learnt by heart."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from tiny_densecap import PHRASES, VOCABULARY, tiny_config, tiny_model, tiny_target
from torch.testing import assert_close

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.configs.densecap import DenseCapConfig
from saywhere.data import read
from saywhere.engines.engine import RpnOutput
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.densecap.build import RegionSampler, pool_pyramid
from saywhere.networks.densecap.loss import DenseCapCriterion, balanced_score_loss, box_loss, caption_loss, score_loss
from saywhere.networks.densecap.network import DenseCap, DenseCapOutput, Target
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import build_trunk
from saywhere.text import END, PAD, Vocabulary, pad, tokenize

WIDTH, HEIGHT = 96, 64


def random_pixels(width: int = WIDTH, height: int = HEIGHT) -> torch.Tensor:
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(7))


def step(model: DenseCap, targets: list[Target], seed: int = 0) -> DenseCapOutput:
    pixels = [random_pixels(t.width, t.height) for t in targets]
    return model(model.trunk.backbone(pixels), targets, torch.Generator().manual_seed(seed))


@torch.no_grad()
def see(model: DenseCap) -> tuple[tuple[torch.Tensor, ...], RpnOutput]:
    """The neck's maps of one image, and what the localization layer makes of them."""
    images = ImageMaps.look(model.trunk, [random_pixels()])
    return ImageMaps.pyramids(images)[0], ImageMaps.rpns(images)[0]


def found(model: DenseCap) -> tuple[torch.Tensor, torch.Tensor]:
    maps, _ = see(model)
    return model.trunk.propose([maps], [(WIDTH, HEIGHT)], model.config.proposals)[0]


# The functions of an engine


def test_the_region_head_answers_for_each_image_in_its_order():
    model = tiny_model()
    images = ImageMaps.look(model.trunk, [random_pixels(), random_pixels(64, 96)])
    boxes = [torch.tensor([[8.0, 8, 40, 40], [0, 0, 96, 24]]), torch.tensor([[2.0, 3, 60, 90]])]
    with torch.no_grad():
        together = model.apply_region_head(images, boxes)
        alone = [model.apply_region_head([i], [b])[0] for i, b in zip(images, boxes, strict=True)]
    for a, b, n in zip(together, alone, (2, 1), strict=True):
        assert a.embeddings.shape == (n, 32) and a.logits.shape == (n,) and a.offsets.shape == (n, 4)
        assert_close((a.embeddings, a.logits, a.offsets), (b.embeddings, b.logits, b.offsets))
    pooled = pool_pyramid(ImageMaps.pyramids(images)[0], (8, 16, 32), boxes[0], 7)
    assert_close(together[0].embeddings, model.region_head.layers(pooled))


def test_a_trunk_may_be_shared_and_needs_a_localization_layer():
    config = tiny_config()
    trunk = build_trunk(config.trunk, config.proposals, pretrained=False)
    first, second = (DenseCap(config, VOCABULARY, trunk) for _ in range(2))
    assert first.trunk is second.trunk is trunk
    with pytest.raises(UserError, match="the trunk has no localization layer"):
        DenseCap(config, VOCABULARY, build_trunk(config.trunk, pretrained=False))


# Training


def test_training_output_holds_together():
    model = tiny_model(batch=12)
    targets = [tiny_target(), tiny_target(64, 96)]
    targets[1] = Target(64, 96, targets[1].boxes[1:2].clamp(max=64), targets[1].token_ids[1:2])
    output = step(model.train(), targets)
    assert len(output.rpn_logits) == len(output.rpn_positive) == 2 * model.config.rpn_batch
    assert len(output.logits) == len(output.positive) <= 24
    positives = int(output.positive.sum())
    assert positives > 0
    assert output.offsets.shape == output.offset_targets.shape == (positives, 4)
    assert output.word_logits.shape == (len(output.token_ids), len(VOCABULARY))
    assert int((output.token_ids == END).sum()) == positives and PAD not in output.token_ids
    texts = " ".join(VOCABULARY.tokens[token] for token in output.token_ids.tolist()).split(" <end>")
    assert {phrase.strip() for phrase in texts[:-1]} <= set(PHRASES[:3])


def test_phrases_without_weight_teach_boxes_alone_and_others_count_by_theirs():
    model = tiny_model(batch=64, fg_iou=0.99).train()  # the truths alone are positive, in their order
    model.decoder.eval()
    target = tiny_target()
    weighed = replace(target, phrase_weights=torch.tensor([0.5, 0.0, 2.0]))
    torch.manual_seed(0)
    output = step(model, [weighed])
    assert len(output.offsets) == 3 and int((output.token_ids == END).sum()) == 2
    texts = " ".join(VOCABULARY.tokens[token] for token in output.token_ids.tolist()).split(" <end>")
    phrases = [text.strip() for text in texts[:-1]]
    assert sorted(phrases) == sorted([PHRASES[0], PHRASES[2]])
    lengths = [len(tokenize(phrase)) + 1 for phrase in phrases]
    each = [0.5 if phrase == PHRASES[0] else 2.0 for phrase in phrases]
    weights = torch.tensor([w for w, length in zip(each, lengths, strict=True) for _ in range(length)])
    assert output.word_weights is not None and torch.equal(output.word_weights, weights)
    losses = -output.word_logits.log_softmax(1).gather(1, output.token_ids[:, None])[:, 0]
    caption = DenseCapCriterion(model.config)(output)["caption"]
    assert_close(caption, model.config.caption_weight * (losses * weights).sum() / 2.5)
    silent = step(model, [replace(target, phrase_weights=torch.zeros(3))])
    losses = DenseCapCriterion(model.config)(silent)
    assert losses["caption"] == 0 and losses["box"] >= 0 and len(silent.offsets) == 3
    both = step(model, [target, weighed])
    assert both.word_weights is not None and sorted(set(both.word_weights.tolist())) == [0.5, 1.0, 2.0]
    assert step(model, [target]).word_weights is None


def test_the_truths_offsets_are_zero_where_the_truth_itself_is_sampled():
    """Truths join the proposals; theirs is the last positive's target if nothing else overlaps."""
    model = tiny_model(batch=64, fg_iou=0.99)
    output = step(model.train(), [tiny_target()])
    assert len(output.offset_targets) == 3
    assert_close(output.offset_targets, torch.zeros(3, 4))


@pytest.mark.parametrize("options", [{}, {"shared_batch": True, "match_proposals": True, "inside_only": True}])
def test_an_image_without_regions_trains_only_the_scores(options: dict[str, Any]):
    model = tiny_model(**options)
    empty = Target(WIDTH, HEIGHT, torch.zeros(0, 4), torch.zeros(0, 0, dtype=torch.long))
    losses = DenseCapCriterion(model.config)(step(model.train(), [empty]))
    assert losses["caption"] == losses["box"] == losses["rpn_box"] == 0
    sum(losses.values()).backward()
    assert losses["rpn_score"] > 0 and losses["score"] > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_caption_loss_reaches_the_proposals_through_the_box_coordinates():
    """Section 3.1.2: bilinear interpolation passes gradients to the coordinates of the proposals."""
    model = tiny_model(fg_iou=0.2, bg_iou=0.2).train()
    DenseCapCriterion(model.config)(step(model, [tiny_target()]))["caption"].backward()
    assert model.trunk.localization.head.offset.weight.grad.abs().sum() > 0


def test_the_samplers_are_seeded():
    model = tiny_model().train()
    first, again, other = (step(model, [tiny_target()], seed).rpn_logits for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_losses_have_their_published_values():
    logits, positive = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([True, True, False])
    log = torch.log
    each = [log(torch.tensor(2.0)), log(1 + torch.exp(torch.tensor(-2.0))), log(1 + torch.exp(torch.tensor(-1.0)))]
    assert_close(score_loss(logits, positive), sum(each) / 3)
    assert_close(balanced_score_loss(logits, positive), (each[0] + each[1]) / 2 + each[2])
    offsets, targets = torch.tensor([[0.5, 3, 0, 0], [0, 0, 0, 0]]), torch.tensor([[0.0, 0, 0, 0], [11, 0, 0, 0]])
    assert_close(box_loss(offsets, targets, 1.0, 10.0), torch.tensor((0.125 + 2.5) / 8))
    assert_close(box_loss(offsets, targets, 1.0, None), torch.tensor((0.125 + 2.5 + 10.5) / 8))
    words = torch.tensor([5, END, 4, 5, END])
    assert_close(caption_loss(torch.zeros(5, 6), words, 2), 5 * log(torch.tensor(6.0)) / 2)


# What each option changes: the boxes that train


def sample_anchors(**options: Any) -> tuple[Any, RpnOutput, torch.Tensor]:
    """The anchors that are sampled, all of them, and their IoU with the truths."""
    model, target = tiny_model(**options), tiny_target()
    _, rpn = see(model)
    return (
        model.sample_anchors(rpn, target, torch.Generator().manual_seed(0)),
        rpn,
        geometry.iou(rpn.anchors, target.boxes),
    )


def test_anchors_are_sampled_by_their_iou():
    for fg_iou, bg_iou in ((0.6, 0.3), (0.4, 0.01)):
        sampled, _, ious = sample_anchors(rpn_fg_iou=fg_iou, rpn_bg_iou=bg_iou, rpn_batch=1000)
        best = set(ious.argmax(dim=0).tolist())
        above = set((ious.max(dim=1).values > fg_iou).nonzero().flatten().tolist())
        below = set((ious.max(dim=1).values < bg_iou).nonzero().flatten().tolist())
        assert set(sampled.positive.tolist()) == above | best
        assert set(sampled.negative.tolist()) == below - best


def test_anchors_may_be_sampled_by_the_iou_of_their_proposals():
    sampled, rpn, ious = sample_anchors(match_proposals=True, rpn_fg_iou=1.0)
    boxes = geometry.decode(rpn.offsets, rpn.anchors)
    assert set(sampled.positive.tolist()) == set(geometry.iou(boxes, tiny_target().boxes).argmax(dim=0).tolist())
    assert set(sampled.positive.tolist()) != set(ious.argmax(dim=0).tolist())


def test_anchors_that_leave_the_image_may_be_left_out():
    def leaves(**options: Any) -> torch.Tensor:
        sampled, rpn, _ = sample_anchors(rpn_batch=1000, **options)
        boxes = rpn.anchors[sampled.negative]
        return (boxes[:, :2] < 0).any(dim=1) | (boxes[:, 2:] > torch.tensor([WIDTH, HEIGHT])).any(dim=1)

    assert leaves().any() and not leaves(inside_only=True).any()
    assert len(leaves(inside_only=True)) > 0


def test_the_rpns_batch_may_train_the_second_stage():
    shared = step(tiny_model(shared_batch=True), [tiny_target()])
    assert torch.equal(shared.positive, shared.rpn_positive) and len(shared.logits) == 32
    apart = step(tiny_model(), [tiny_target()])
    assert len(apart.logits) == 16


@pytest.mark.parametrize(("fg_iou", "bg_iou"), [(0.5, 0.5), (0.3, 0.25)])
def test_regions_are_sampled_by_their_iou(fg_iou: float, bg_iou: float):
    def sampled(share: float) -> DenseCapOutput:
        return step(tiny_model(fg_iou=fg_iou, bg_iou=bg_iou, batch=400, positive_share=share), [tiny_target()])

    model, target = tiny_model(), tiny_target()
    _, rpn = see(model)
    proposals, _ = propose(model.box_coder, rpn, (WIDTH, HEIGHT), 0.7, 1000, 20)
    best = geometry.iou(torch.cat((proposals, target.boxes)), target.boxes).max(dim=1).values
    assert int(sampled(1.0).positive.sum()) == int((best > fg_iou).sum()) > 3
    none = sampled(0.0)
    assert not none.positive.any() and len(none.logits) == int((best < bg_iou).sum()) > 0


def test_the_number_of_sampled_regions_and_the_share_of_positives():
    assert len(step(tiny_model(batch=4), [tiny_target()]).logits) == 4
    low = {"fg_iou": 0.2, "bg_iou": 0.2}
    positives = [
        int(step(tiny_model(positive_share=share, **low), [tiny_target()]).positive.sum()) for share in (0.5, 0.125)
    ]
    assert positives == [8, 2]


@pytest.mark.parametrize(
    ("option", "changed"), [("dropout", {"logits", "offsets", "word_logits"}), ("decoder_dropout", {"word_logits"})]
)
def test_dropout_changes_training_only(option: str, changed: set[str]):
    model = tiny_model(**{option: 0.5})
    with torch.no_grad():
        model.region_head.offset.weight.normal_()
    for training in (False, True):
        torch.manual_seed(0)
        first, second = (step(model.train(training), [tiny_target()]) for _ in range(2))
        differ = {
            f.name
            for f in dataclasses.fields(DenseCapOutput)
            if f.name != "word_weights" and not torch.equal(getattr(first, f.name), getattr(second, f.name))
        }
        assert differ == (changed if training else set())


# What each option changes: the losses


@pytest.fixture(scope="module")
def output() -> DenseCapOutput:
    model = tiny_model(batch=32)
    with torch.no_grad():
        model.region_head.offset.weight.normal_(std=1.0)
        return step(model, [tiny_target()])


def losses(output: DenseCapOutput, **options: Any) -> dict[str, float]:
    return {name: float(loss.detach()) for name, loss in DenseCapCriterion(tiny_config(**options))(output).items()}


@pytest.mark.parametrize("term", ["rpn_score", "rpn_box", "score", "box", "caption"])
def test_each_loss_has_its_weight(term: str, output: DenseCapOutput):
    plain, weighted = losses(output), losses(output, **{f"{term}_weight": 2 * getattr(tiny_config(), f"{term}_weight")})
    assert weighted == pytest.approx({**plain, term: 2 * plain[term]}) and plain[term] > 0


def test_the_losses_of_scores_and_boxes(output: DenseCapOutput):
    plain = losses(output)
    assert plain["rpn_score"] == pytest.approx(float(score_loss(output.rpn_logits, output.rpn_positive)))
    balanced = float(balanced_score_loss(output.rpn_logits, output.rpn_positive))
    assert losses(output, balanced=True) == pytest.approx({**plain, "rpn_score": balanced})
    assert plain["box"] == pytest.approx(float(box_loss(output.offsets, output.offset_targets, 0.11, None)))
    for option, beta, limit in (("box_beta", 2.0, None), ("box_limit", 0.11, 0.05)):
        changed = losses(output, **{option: beta if limit is None else limit})
        wanted = float(box_loss(output.offsets, output.offset_targets, beta, limit))
        assert changed["box"] == pytest.approx(wanted) and changed["box"] != pytest.approx(plain["box"])
        assert changed["rpn_box"] != pytest.approx(plain["rpn_box"])


def test_the_decay_of_offsets(output: DenseCapOutput):
    assert "decay" not in losses(output)
    assert losses(output, box_decay=0.5)["decay"] == pytest.approx(float(output.rpn_all_offsets.square().sum()) / 4)


# Configurations


def test_the_original_configuration_builds_the_published_network():
    small = {"embed_dim": 64, "trunk": {"long_side": 96}, "proposals": {"post_nms_top_n": 20}}
    torch.manual_seed(0)
    model = checkpoint.new_network(DenseCap, DenseCapConfig.original().merge(small), VOCABULARY)
    head = model.trunk.localization.head
    assert head.conv.weight.shape == (256, 512, 3, 3)
    assert head.score.weight.shape == (24, 256, 1, 1) and head.offset.weight.shape == (48, 256, 1, 1)
    assert model.decoder.lstm.hidden_size == 512 and model.decoder.words.embedding_dim == 512
    model.trunk.backbone.set_trainable(True)
    frozen = [p.shape[0] for p in model.trunk.backbone.parameters() if not p.requires_grad]
    assert frozen == [64, 64, 64, 64, 128, 128, 128, 128]  # weights and biases of the first four convolutions
    losses = DenseCapCriterion(model.config)(step(model.train(), [tiny_target()]))
    assert set(losses) == {"rpn_score", "rpn_box", "score", "box", "caption", "decay"}


IOUS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.3], [0.1, 0.35], [0.2, 0.0], [0.0, 0.0], [0.05, 0.29]])


def sample(sampler: RegionSampler, seed: int = 0, inside=None):
    return sampler(IOUS, inside, torch.Generator().manual_seed(seed))


def test_positives_and_negatives_by_their_iou():
    sampled = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3))
    assert sampled.positive.tolist() == [0, 1, 3]  # 3 is the best of the second truth
    assert sampled.truth.tolist() == [0, 0, 1]
    assert sampled.negative.tolist() == [4, 5, 6]
    assert sampled.rows.tolist() == [0, 1, 3, 4, 5, 6]
    strict = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3, best_is_positive=False))
    assert strict.positive.tolist() == [0, 1]
    assert RegionSampler(9, 0.8, 0.3, best_is_positive=False)(IOUS).positive.tolist() == [0]  # above, not at


def test_the_share_bounds_positives_and_negatives_fill_up():
    sampler = RegionSampler(4, fg_iou=0.4, bg_iou=0.3, positive_share=0.5)
    seen = set()
    for seed in range(20):
        sampled = sample(sampler, seed)
        assert len(sampled.positive) == 2 and len(sampled.negative) == 2
        assert set(sampled.positive.tolist()) <= {0, 1, 2, 3} and set(sampled.negative.tolist()) <= {4, 5, 6}
        seen.add(tuple(sorted(sampled.positive.tolist())))
    assert len(seen) > 3
    assert sample(sampler, 5).rows.tolist() == sample(sampler, 5).rows.tolist()


def test_boxes_outside_are_sampled_only_as_a_truths_best_and_any_where_there_is_no_negative():
    inside = torch.tensor([False, True, True, False, False, True, True])
    sampled = sample(RegionSampler(100, fg_iou=0.7, bg_iou=0.3), inside=inside)
    assert sampled.positive.tolist() == [0, 1, 3]
    assert sampled.negative.tolist() == [5, 6]
    sampled = RegionSampler(3, 0.7, 0.3)(torch.zeros(5, 0), None, torch.Generator().manual_seed(0))
    assert len(sampled.positive) == len(sampled.truth) == 0 and len(sampled.negative) == 3
    sampled = RegionSampler(10, 0.7, 0.05)(torch.tensor([[0.9], [0.5], [0.4]]))
    assert sampled.positive.tolist() == [0] and sampled.negative.tolist() == [1, 2]


COLOURS = {"red": "A red block", "blue": "the blue one", "lime": "something green", "white": "two white sheets"}
PLACES = [(6, 6, 42, 58), (52, 8, 94, 48)]
BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def write_flickr(root: Path) -> None:
    """Four images of two coloured blocks each; each colour is once on the left and once on the right."""
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    names, tokens = [], []
    colours = list(COLOURS)
    for i, pair in enumerate(zip(colours, [*colours[1:], colours[0]], strict=True)):
        image, objects, marked = Image.new("RGB", (96, 64), "black"), "", []
        for k, (colour, place) in enumerate(zip(pair, PLACES, strict=True)):
            ImageDraw.Draw(image).rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=colour)
            box = BOX.format(place[0] + 1, place[1] + 1, place[2], place[3])
            objects += f"<object><name>{k}</name>{box}</object>"
            marked.append(f"[/EN#{k}/other {COLOURS[colour]}]")
        image.save(root / "Images" / f"{i}_x.png.jpg", format="PNG")
        size = "<size><width>96</width><height>64</height><depth>3</depth></size>"
        (root / f"Entities/Annotations/{i}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
        (root / f"Entities/Sentences/{i}.txt").write_text(" and ".join(marked) + " .\n")
        names.append(f"{i}_x.png.jpg")
        tokens.append(f"{i}_x.png.jpg#0\t{' and '.join(COLOURS[c] for c in pair)} .")
    (root / "Flickr8k.token.txt").write_text("\n".join(tokens) + "\n")
    (root / "Flickr_8k.trainImages.txt").write_text("\n".join(names) + "\n")


def test_four_images_are_learnt_until_their_phrases_come_out_exactly(tmp_path):
    write_flickr(tmp_path)
    samples = read(tmp_path, "flickr8k", "train")
    assert len(samples) == 4
    vocabulary = Vocabulary.build(p for s in samples for references in s.phrases for p in references)
    torch.manual_seed(0)
    parts = {"trunk": {"backbone": "efficientnet_lite0"}, "proposals": {"pyramid_channels": 32}}
    config = tiny_config(embed_dim=64, hidden_size=48, batch=32, positive_share=0.75, caption_weight=1.0, **parts)
    model = checkpoint.new_network(DenseCap, config, vocabulary, pretrained=True).train()
    with torch.no_grad():
        pixels = [torch.from_numpy(model.trunk.preprocess(open_image(s.image))) for s in samples]
        features = model.trunk.backbone(pixels)
    targets = [
        Target(96, 64, torch.as_tensor(s.boxes), torch.from_numpy(pad([vocabulary.encode(p[0]) for p in s.phrases])))
        for s in samples
    ]
    criterion, generator = DenseCapCriterion(config), torch.Generator().manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, 4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 150)
    for _ in range(150):
        loss = torch.stack(list(criterion(model(features, targets, generator)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        schedule.step()
    trained = Model(TorchEngine({"densecap": model}))
    for sample in samples:
        truth = [references[0].lower() for references in sample.phrases]
        assert list(trained.describe(sample.image, sample.boxes).captions or ()) == truth
        found = trained.describe(sample.image, top=2)
        overlap = geometry.iou(found.boxes, np.asarray(sample.boxes))
        which = overlap.argmax(axis=1)
        assert sorted(which.tolist()) == [0, 1] and (overlap.max(axis=1) > 0.7).all()
        assert list(found.captions or ()) == [truth[i] for i in which.tolist()]
