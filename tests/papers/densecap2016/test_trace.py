"""The program's forward pass, losses and gradients, put together here once more from its single functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from photographs import noise
from tiny_densecap import VOCABULARY, tiny_model
from torch.nn import functional

from saywhere.boxes import clip
from saywhere.configs.densecap import DenseCapConfig
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.models.decoding import decode
from saywhere.models.model import Model
from saywhere.networks.densecap.build import RegionSampler, SampledBoxes
from saywhere.networks.densecap.loss import offset_decay
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.papers.densecap2016 import conventions as original
from saywhere.papers.densecap2016.network import decode_sequences
from saywhere.papers.densecap2016.trace import from_tokens, trace_training, words_of
from saywhere.papers.densecap2016.trace import trace_inference as run
from saywhere.text import END, PAD, UNKNOWN

SHAPES = ((30.0, 40.0), (60.0, 20.0), (45.0, 45.0))
WIDTH, HEIGHT = 90, 70
TRUTHS = torch.tensor([[30.0, 30, 31, 41], [60, 40, 40, 40]], dtype=torch.float64)
TOKENS = torch.tensor([[1, 3, 2], [4, 0, 0]])


def small_config(**options) -> DenseCapConfig:
    """The program with thin layers."""
    base = {
        "trunk": {"vgg_channels": [3, 4, 4, 5, 6], "long_side": 96},
        "proposals": {"anchors": [SHAPES], "hidden_size": 7, "post_nms_top_n": 20},
        "decoding": {"max_words": 5},
        "pool_size": 3,
        "embed_dim": 10,
        "fc_size": 12,
        "word_size": 6,
        "hidden_size": 8,
        "dropout": 0.0,
        "rpn_batch": 16,
    }
    return DenseCapConfig.original().merge(base).merge(options)


def small_model(seed: int = 0, **options) -> DenseCap:
    torch.manual_seed(seed)
    model = DenseCap(small_config(**options), VOCABULARY, pretrained_backbone=False).double().eval()
    with torch.no_grad():
        for module in (model.trunk.localization.head.score, model.region_head.score):
            module.weight.normal_(std=0.5)
        for module in (model.trunk.localization.head.offset, model.region_head.offset):
            module.weight.normal_(std=0.05)
            module.bias.normal_(std=0.05)
        for parameter in model.decoder.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.5)
        for parameter in model.trunk.backbone.parameters():
            parameter.normal_(std=0.5 if parameter.ndim == 1 else 1.5 / parameter[0].numel() ** 0.5)
    return model


def pixels(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, HEIGHT, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_inference_is_the_programs_functions_one_after_the_other():
    model = small_model()
    seen = run(model, pixels())
    head, k = model.trunk.localization.head, len(SHAPES)
    features = model.trunk.backbone.body(pixels()[None])[0]
    assert features.shape == (1, 6, 5, 6)  # 70 x 90 in four halvings that round up
    hidden = head.conv(features).relu()
    offsets = original.reshape_box_features(head.offset(hidden), k)[0]
    boxes = original.apply_box_transform(original.make_anchors(SHAPES, 5, 6, dtype=torch.float64), offsets)
    scores = original.reshape_box_features(head.score(hidden), k)[0]
    clipped, valid = original.clip_boxes(boxes, WIDTH, HEIGHT)
    probabilities = (scores[:, 0].exp() / scores.exp().sum(dim=1))[valid]
    kept = original.nms(original.xcycwh_to_x1y1x2y2(clipped[valid]), probabilities, 0.7, 20)
    proposals = clipped[valid][kept]
    regions = original.roi_pooling(features[0], proposals, HEIGHT, WIDTH, 3)
    embeddings = model.region_head.layers(regions)
    final = original.apply_box_transform(proposals, model.region_head.offset(embeddings))
    objectness = model.region_head.score(embeddings)[:, 0]
    again = original.nms(original.xcycwh_to_x1y1x2y2(final.float()), objectness, 0.3)
    tokens = model.decoder.model.sample(embeddings, 5)
    for mine, theirs in (
        (seen.rpn_boxes, boxes),
        (seen.rpn_scores, scores),
        (seen.rpn_boxes_clipped, clipped),
        (seen.rpn_pos_prob_of_valid, probabilities),
        (seen.proposals, proposals),
        (seen.roi_features, regions),
        (seen.embeddings, embeddings),
        (seen.final_boxes, final),
        (seen.objectness, objectness),
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert torch.equal(seen.rpn_nms, kept) and torch.equal(seen.final_nms, again) and torch.equal(seen.tokens, tokens)
    assert seen.captions == decode_sequences(tokens, words_of(model))
    assert len(proposals) == 20 and 1 < len(again) < 20


def test_proposals_may_be_given():
    model = small_model()
    assert len(run(model, pixels(), proposals=3).proposals) == 3


def test_describe_gives_the_same_in_our_format():
    network, image = small_model(), noise(64, 48)
    model = Model(TorchEngine({"densecap": network}))
    regions, encoding = model.describe(image), model.encode(image)
    assert (encoding.input_width, encoding.input_height) == (96, 72)
    seen = run(network, torch.from_numpy(network.preprocess(open_image(image))).double())
    boxes = clip(original.xcycwh_to_ours(seen.final_boxes[seen.final_nms]) / 1.5, 64, 48)
    solid = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(dim=1)
    np.testing.assert_allclose(regions.boxes, boxes[solid].float(), rtol=0, atol=1e-3)
    scores = seen.objectness[seen.final_nms][solid].sigmoid()
    np.testing.assert_allclose(regions.scores, scores.float(), rtol=1e-5, atol=1e-5)
    captions = [seen.captions[i] for i in seen.final_nms[solid].tolist()]
    assert list(regions.captions) == captions and len(captions) > 1


def losses_by_hand(model: DenseCap, sampled: SampledBoxes) -> dict[str, torch.Tensor]:
    """The five losses and the decay, from the program's functions and torch's losses."""

    def cross_entropy(logits: torch.Tensor, right: float) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, right))

    def regression(offsets: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(offsets, original.invert_box_transform(anchors, truths))

    head, k = model.trunk.localization.head, len(SHAPES)
    features = model.trunk.backbone.body(pixels()[None])[0]
    hidden = head.conv(features).relu()
    raw = head.offset(hidden)
    offsets, scores = original.reshape_box_features(raw, k)[0], original.reshape_box_features(head.score(hidden), k)[0]
    anchors = original.make_anchors(SHAPES, 5, 6, dtype=torch.float64)
    boxes = original.apply_box_transform(anchors, offsets)
    truths, (p, n) = TRUTHS[sampled.truth], (sampled.positive, sampled.negative)
    regions = original.roi_pooling(features[0], boxes[torch.cat((p, n))], HEIGHT, WIDTH, 3)
    embeddings = model.region_head.layers(regions)
    good = embeddings[: len(p)]
    logits, labels = model.region_head.score(embeddings)[:, 0], torch.arange(len(p) + len(n)) < len(p)
    decoder = model.decoder.model
    said = TOKENS[sampled.truth]
    words = torch.cat((torch.zeros(len(said), 1).long(), said, torch.zeros(len(said), 1).long()), dim=1)
    words[torch.arange(len(said)), (said > 0).sum(dim=1) + 1] = decoder.start  # END in the first free place
    spoken = functional.cross_entropy(
        decoder(good, said).flatten(0, 1), words.flatten() - 1, reduction="sum", ignore_index=-1
    )
    difference = scores[:, 0] - scores[:, 1]
    return {
        "rpn_score": 0.1 * (cross_entropy(difference[p], 1) + cross_entropy(difference[n], 0)),
        "rpn_box": 0.05 * regression(offsets[p], anchors[p]),
        "score": 0.1 * functional.binary_cross_entropy_with_logits(logits, labels.double()),
        "box": 0.1 * regression(model.region_head.offset(good), boxes[p]),
        "caption": spoken / len(said),
        "decay": offset_decay(raw, 5e-5),
    }


SAMPLED = SampledBoxes(torch.tensor([7, 40, 71]), torch.tensor([0, 1, 1]), torch.tensor([3, 20, 66, 80, 12]))


def test_losses_and_gradients_are_those_of_the_programs_functions():
    model = small_model()
    model.trunk.backbone.set_trainable(True)
    step = trace_training(model, pixels(), TRUTHS, TOKENS, SAMPLED)
    by_hand = losses_by_hand(model, SAMPLED)
    assert step.losses.keys() == by_hand.keys()
    for name, loss in by_hand.items():
        torch.testing.assert_close(step.losses[name], loss, rtol=1e-9, atol=1e-12, msg=name)
        assert loss > 0
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    mine = torch.autograd.grad(step.total, list(trained.values()))
    theirs = torch.autograd.grad(sum(by_hand.values()), list(trained.values()))
    for name, a, b in zip(trained, mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=name)
        assert a.any(), name
    frozen = [name for name, _ in model.named_parameters() if name not in trained]
    assert frozen == [
        *(f"trunk.backbone.body.{i}.{kind}" for i in (0, 2, 5, 7) for kind in ("weight", "bias")),
        "decoder.model.lstm.bias_hh_l0",
    ]


@pytest.mark.parametrize(
    "name", ["trunk.localization.head.offset.bias", "trunk.localization.head.conv.weight", "region_head.offset.bias"]
)
def test_gradients_are_numeric_ones(name):
    """Through coordinates of boxes, features and targets: nothing is detached."""
    model = small_model(1)
    parameter = model.get_parameter(name)

    def total():
        return trace_training(model, pixels(), TRUTHS, TOKENS, SAMPLED).total

    (gradient,) = torch.autograd.grad(total(), parameter)
    flat, step = parameter.data.view(-1), 1e-6
    for i in range(0, len(flat), max(1, len(flat) // 6)):
        before = flat[i].item()
        values = []
        for moved in (before + step, before - step):
            flat[i] = moved
            values.append(total().item())
        flat[i] = before
        assert gradient.flatten()[i].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-7)


def test_gradients_reach_the_coordinates_of_negatives():
    """Where a box of background lies changes its features, and so its second score."""
    model = small_model()
    none = torch.zeros(0, dtype=torch.long)
    step = trace_training(model, pixels(), TRUTHS, TOKENS, SampledBoxes(none, none, torch.tensor([40, 41])))
    (gradient,) = torch.autograd.grad(step.losses["score"], model.trunk.localization.head.offset.bias)
    assert gradient.reshape(3, 4)[1].abs().min() > 0  # anchors 30 to 59 have the second shape
    assert not gradient.reshape(3, 4)[[0, 2]].any()


def test_of_a_negative_sampled_twice_the_last_gradient_counts():
    """Each of four rows, two boxes twice, weighs a quarter in the mean; only one of each pair comes back."""
    model, gradients = small_model(), []
    for rows in ([], [3, 20], [3, 3, 20, 20]):
        sampled = SampledBoxes(torch.tensor([7]), torch.tensor([0]), torch.tensor(rows, dtype=torch.long))
        loss = trace_training(model, pixels(), TRUTHS, TOKENS, sampled).losses["rpn_score"]
        gradients.append(torch.autograd.grad(loss, model.trunk.localization.head.score.bias)[0])
    positive, once, twice = gradients
    torch.testing.assert_close(twice - positive, (once - positive) / 2)
    assert (once - positive).any()


def test_sampling_is_the_programs_sampler():
    model = small_model()
    sampled = trace_training(model, pixels(), TRUTHS, TOKENS, generator=torch.Generator().manual_seed(4)).sampled
    boxes = run(model, pixels()).rpn_boxes
    sampler = RegionSampler(16, 0.7, 0.3, fill=True)
    inside = original.inside_image(boxes, WIDTH, HEIGHT)
    again = sampler(original.box_iou(boxes, TRUTHS), inside, torch.Generator().manual_seed(4))
    assert torch.equal(sampled.rows, again.rows) and torch.equal(sampled.truth, again.truth)
    assert len(sampled.rows) == 16 and len(sampled.positive) >= 1


def test_one_step_of_the_programs_adam():
    model = small_model()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = original.Adam(trained, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-6)
    before = [p.detach().clone() for p in trained]
    trace_training(model, pixels(), TRUTHS, TOKENS, SAMPLED).total.backward()
    optimizer.step()
    for old, new in zip(before, trained, strict=True):
        g = new.grad + 1e-6 * old
        expected = old - 1e-3 * g / (g.abs() + 1e-8 / (1 - 0.999) ** 0.5)
        torch.testing.assert_close(new.detach(), expected, rtol=1e-9, atol=1e-12)


def test_tokens_and_token_ids():
    v = len(VOCABULARY.counts) + 1
    token_ids = from_tokens(torch.tensor([[1, 2, v, v + 1, 0]]), len(VOCABULARY))
    assert token_ids.tolist() == [[4, 5, UNKNOWN, END, PAD]]
    model = small_model()
    assert model.decoder.to_tokens(token_ids).tolist() == [[1, 2, v, v + 1, 0]]
    assert words_of(model)[:1] == [VOCABULARY.tokens[4]] and words_of(model)[-1] == "<UNK>"


def test_the_decoder_is_the_language_model_in_our_token_ids():
    decoder = small_model().decoder
    embeddings = torch.randn(2, 10, dtype=torch.float64)
    tokens = torch.tensor([[1, 3, 2], [4, 0, 0]])
    v = len(VOCABULARY)
    ours = decoder(embeddings, from_tokens(tokens, v)).log_softmax(dim=2)
    theirs = decoder.model(embeddings, tokens)[:, 1:].log_softmax(dim=2)
    torch.testing.assert_close(ours[..., 4:], theirs[..., :-2])
    torch.testing.assert_close(ours[..., UNKNOWN], theirs[..., -2])
    torch.testing.assert_close(ours[..., END], theirs[..., -1])
    assert (ours[..., :2] == -torch.inf).all()
    state = decoder.start(embeddings)
    log_probs, _ = decoder.step(torch.full((2,), 1), state)  # START
    torch.testing.assert_close(log_probs, ours[:, 0])


def test_the_unknown_word_is_decoded():
    model = small_model()
    with torch.no_grad():
        model.decoder.model.output.weight.zero_()
        model.decoder.model.output.bias[-2] = 5
    tokens = model.decoder.model.sample(torch.zeros(1, 10, dtype=torch.float64), 5)
    assert decode_sequences(tokens, words_of(model)) == [" ".join(["<UNK>"] * 5)]
    decoded = decode(TorchDecoder(model.decoder, model.decoder.words.weight), np.zeros((1, 10)), model.config.decoding)
    assert model.vocabulary.decode(decoded.token_ids[0].tolist(), model.decoder.unknown) == " ".join(["<UNK>"] * 5)


def test_other_models_are_refused():
    with pytest.raises(UserError, match="conventions=saywhere"):
        run(tiny_model(), torch.zeros(3, 64, 96))


def test_widths_are_those_of_the_configuration():
    changed, plain = small_model(trunk={"vgg_channels": [3, 4, 4, 5, 8]}, fc_size=None), small_model()
    assert changed.trunk.backbone.channels == (8,) and plain.trunk.backbone.channels == (6,)
    assert changed.region_head.layers[1].out_features == 10 and plain.region_head.layers[1].out_features == 12


def test_conventions_change_the_boxes():
    ours, theirs = (
        tiny_model(
            trunk={"strides": [16]},
            proposals={"pyramid_channels": 0, "anchors": [SHAPES], "two_way": True},
            conventions=which,
        )
        for which in ("saywhere", "original")
    )
    weights = {k: v for k, v in ours.state_dict().items() if not k.startswith("decoder")}
    theirs.load_state_dict(weights, strict=False)
    a, b = (Model(TorchEngine({"densecap": model})).describe(noise(96, 64)).boxes for model in (ours, theirs))
    assert a.shape != b.shape or not np.allclose(a, b, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trunk": {"vgg_channels": [3, 4]}}, "vgg_channels is"),
        ({"trunk": {"vgg_channels": [3, 4, 4, 5, 0]}}, "vgg_channels is"),
        ({"fc_size": 0}, "fc_size is 0"),
        (
            {"trunk": {"strides": [8, 16]}, "proposals": {"anchors": [SHAPES] * 2, "pyramid_channels": 8}},
            "trunk.strides is .* one, with conventions=original",
        ),
        ({"conventions": "mine"}, "conventions must be one of saywhere, original"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        small_config(**options)


def test_it_learns_an_image_by_heart():
    """Some hundred steps of the program's training, and the regions of the image have their captions."""
    torch.manual_seed(0)
    wide = {"embed_dim": 48, "fc_size": 48, "word_size": 24, "hidden_size": 32, "proposals": {"hidden_size": 32}}
    model = DenseCap(small_config(**wide), VOCABULARY, pretrained_backbone=False).double()
    with torch.no_grad():
        for parameter in model.trunk.backbone.parameters():
            parameter.normal_(std=0.5 if parameter.ndim == 1 else 1.5 / parameter[0].numel() ** 0.5)
    optimizer = original.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=1e-6)
    generator, first, last = torch.Generator().manual_seed(0), None, None
    for _ in range(220):
        step = trace_training(model, pixels(), TRUTHS, TOKENS, generator=generator)
        optimizer.zero_grad()
        step.total.backward()
        optimizer.step()
        last = float(step.total.detach())
        first = last if first is None else first
    assert last < first / 10
    truths = original.xcycwh_to_ours(TRUTHS)
    maps = model.eval().neck(model.trunk.backbone([pixels()]))
    (found,) = model.apply_region_head(maps, [truths], [(WIDTH, HEIGHT)])
    tokens = model.decoder.model.sample(found.embeddings, 5)
    assert decode_sequences(tokens, words_of(model)) == decode_sequences(TOKENS, words_of(model))


def test_new_layers_begin_as_the_programs_do():
    torch.manual_seed(0)
    made = DenseCap(small_config(proposals={"hidden_size": 256}, embed_dim=300), VOCABULARY, pretrained_backbone=False)
    head, region_head = made.trunk.localization.head, made.region_head
    for weight in (head.conv.weight, head.score.weight, region_head.score.weight):
        assert weight.std().item() == pytest.approx(0.01, rel=0.15)
    assert not any(layer.weight.any() for layer in (head.offset, region_head.offset))
    assert not any(layer.bias.any() for layer in (head.conv, head.score, head.offset, region_head.score))
