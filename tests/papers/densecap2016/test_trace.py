"""The program's forward pass, losses and gradients, put together here once more from its single functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refuses
from tiny_densecap import VOCABULARY, tiny_model
from torch.nn import functional

from saywhere.configs.densecap import DenseCapConfig
from saywhere.models.decoding import decode
from saywhere.networks import checkpoint
from saywhere.networks.densecap.build import RegionSampler, SampledBoxes
from saywhere.networks.densecap.loss import offset_decay
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.networks.vision.region_features import ImageMaps
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
    model = checkpoint.new_network(DenseCap, small_config(**options), VOCABULARY).double().eval()
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


def test_sampling_is_the_programs_sampler():
    model = small_model()
    sampled = trace_training(model, pixels(), TRUTHS, TOKENS, generator=torch.Generator().manual_seed(4)).sampled
    boxes = run(model, pixels()).rpn_boxes
    sampler = RegionSampler(16, 0.7, 0.3, fill=True)
    inside = original.inside_image(boxes, WIDTH, HEIGHT)
    again = sampler(original.box_iou(boxes, TRUTHS), inside, torch.Generator().manual_seed(4))
    assert torch.equal(sampled.rows, again.rows) and torch.equal(sampled.truth, again.truth)
    assert len(sampled.rows) == 16 and len(sampled.positive) >= 1


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
    refuses("conventions=saywhere", run, tiny_model(), torch.zeros(3, 64, 96))


def test_it_learns_an_image_by_heart():
    """Some hundred steps of the program's training, and the regions of the image have their captions."""
    torch.manual_seed(0)
    wide = {"embed_dim": 48, "fc_size": 48, "word_size": 24, "hidden_size": 32, "proposals": {"hidden_size": 32}}
    model = checkpoint.new_network(DenseCap, small_config(**wide), VOCABULARY).double()
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
    (found,) = model.apply_region_head(ImageMaps.look(model.eval().trunk, [pixels()]), [truths])
    tokens = model.decoder.model.sample(found.embeddings, 5)
    assert decode_sequences(tokens, words_of(model)) == decode_sequences(TOKENS, words_of(model))


def test_new_layers_begin_as_the_programs_do():
    torch.manual_seed(0)
    made = checkpoint.new_network(DenseCap, small_config(proposals={"hidden_size": 256}, embed_dim=300), VOCABULARY)
    head, region_head = made.trunk.localization.head, made.region_head
    for weight in (head.conv.weight, head.score.weight, region_head.score.weight):
        assert weight.std().item() == pytest.approx(0.01, rel=0.15)
    assert not any(layer.weight.any() for layer in (head.offset, region_head.offset))
    assert not any(layer.bias.any() for layer in (head.conv, head.score, head.offset, region_head.score))
