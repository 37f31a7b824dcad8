from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import noise, quarters
from refusals import refuses
from tiny_captioner import (
    DECODERS,
    SENTENCES,
    VOCABULARY,
    captioner_model,
    tiny_captioner,
    tiny_lstm,
    tiny_maps,
    tiny_target,
)

import saywhere
from saywhere.networks import checkpoint
from saywhere.networks.captioner.loss import CaptionCriterion, CaptionOutput
from saywhere.networks.captioner.network import Captioner, ImageRegions, sample
from saywhere.networks.language.decoders.protocol import TensorDecoder
from saywhere.networks.vision.grid import pick
from saywhere.networks.vision.region_features import position_features
from saywhere.text import END, PAD, START, UNKNOWN

BOXES = [[0.0, 0.0, 40.0, 30.0], [10.0, 20.0, 96.0, 64.0]]


def maps_of(network, *images):
    return [image.maps for image in tiny_maps(network, *images)]


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_training_computes_is_what_decoding_follows(decoder):
    """The log-probabilities of the greedily decoded sentence are the largest of each step."""
    network = tiny_captioner(decoder=decoder)
    image = noise(96, 64)
    sentence = captioner_model(network).caption(image, beam_size=1).sentence
    assert sentence
    out = network(maps_of(network, image), [tiny_target(sentence)])
    words = [*VOCABULARY.encode(sentence), END][: network.config.decoding.max_words]
    assert out.token_ids.tolist()[: len(words)] == words
    allowed = out.log_probs.clone()
    allowed[:, [PAD, 1, UNKNOWN]] = -torch.inf
    assert allowed.argmax(dim=1).tolist()[: len(words)] == words
    torch.testing.assert_close(out.log_probs.exp().sum(dim=1), torch.ones(len(out.token_ids)))


@pytest.mark.parametrize("decoder", DECODERS)
def test_several_images_and_sentences_are_as_one_at_a_time(decoder):
    network = tiny_captioner(decoder=decoder)
    images = [noise(96, 64, 1), noise(64, 96, 2)]
    targets = [tiny_target(*SENTENCES[:2]), tiny_target(*SENTENCES[2:], width=64, height=96)]
    together = network(maps_of(network, *images), targets)
    rows = []
    for image, target, sentences in zip(images, targets, (SENTENCES[:2], SENTENCES[2:]), strict=True):
        for sentence in sentences:
            alone = tiny_target(sentence, width=target.width, height=target.height)
            rows.append(network(maps_of(network, image), [alone]).log_probs)
    torch.testing.assert_close(together.log_probs, torch.cat(rows), atol=1e-5, rtol=1e-5)


def test_unknown_words_are_inputs_and_no_targets():
    network = tiny_captioner(decoder="lstm")
    maps = maps_of(network, noise(96, 64))
    out = network(maps, [tiny_target("a zebra runs")])
    known = network(maps, [tiny_target("a dog runs")])
    assert out.token_ids.tolist() == [*VOCABULARY.encode("a"), *VOCABULARY.encode("runs"), END]
    torch.testing.assert_close(out.log_probs[0], known.log_probs[0])
    assert not torch.allclose(out.log_probs[1], known.log_probs[2])


def test_the_loss_is_the_mean_over_words_and_smoothing_spreads_it():
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]).log()
    output = CaptionOutput(log_probs, torch.tensor([0, 2]))
    plain = CaptionCriterion(0.2).eval()(output)["caption"].item()
    assert math.isclose(plain, (math.log(2) + math.log(8)) / 2, rel_tol=1e-6)
    smooth = CaptionCriterion(0.2).train()(output)["caption"].item()
    even = -sum(math.log(p) for p in (0.5, 0.25, 0.25, 0.125, 0.75, 0.125)) / 6
    assert math.isclose(smooth, 0.8 * plain + 0.2 * even, rel_tol=1e-6)
    none = CaptionOutput(torch.zeros(0, 3, requires_grad=True), torch.zeros(0, dtype=torch.long))
    assert CaptionCriterion(0.2)(none)["caption"].item() == 0


def test_a_box_is_captioned_by_what_is_in_it():
    network = tiny_captioner(decoder="lstm", describe_boxes=True)
    maps = maps_of(network, noise(96, 64))
    out = network(maps, [tiny_target(boxes=BOXES)])
    swapped = network(maps, [tiny_target(boxes=BOXES[::-1])])
    assert not torch.allclose(out.log_probs, swapped.log_probs)


def test_a_shared_trunk_must_have_what_is_needed():
    grid, wants = tiny_captioner(), tiny_captioner(attend_to="proposals")
    assert Captioner(grid.config, VOCABULARY, trunk=wants.trunk).trunk is wants.trunk
    refuses("no localization layer", Captioner, wants.config, VOCABULARY, trunk=grid.trunk)


# Each option of a captioner changes what it says that it changes


def shapes(network: Captioner) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in network.named_parameters() if not name.startswith("trunk")}


@pytest.mark.parametrize("option", ["dropout", "region_dropout"])
def test_dropout_makes_training_random(option: str):
    def differs(**options: float) -> bool:
        network = tiny_captioner(**options)
        maps = [tiny_maps(network, noise(96, 64))[0].maps]
        network.train()
        first, second = (network(maps, [tiny_target()]).log_probs for _ in range(2))
        return not torch.equal(first, second)

    assert differs(**{option: 0.5}) and not differs()


def test_decoding_follows_the_options():
    images = [noise(96, 64, seed) for seed in range(8)]

    def captions(own: int | None = None, **options: float) -> list[str]:
        network = tiny_captioner(2, decoder="lstm", decoding={"max_words": 8, "beam_size": 1, **options})
        return [caption.sentence for caption in captioner_model(network).caption(images, beam_size=own)]

    assert max(len(text.split()) for text in captions(max_words=2)) == 2 < max(len(t.split()) for t in captions())
    assert captions(beam_size=4) != captions()
    assert captions() != captions(4) == captions(beam_size=4)
    short, long = (captions(4, length_penalty=power) for power in (0.0, 2.0))
    assert sum(len(text.split()) for text in short) < sum(len(text.split()) for text in long)


# The kinds of regions that a captioner can attend to (Areas of Attention, section 3.3)


KINDS = ({"attend_to": "grid"}, {"attend_to": "proposals"}, {"attend_to": "transformer"})


@torch.no_grad()
def regions_of(network: Captioner, *images) -> tuple[ImageRegions, ...]:
    return network.attend(tiny_maps(network, *images)).regions


@pytest.mark.parametrize("kind", [*KINDS, {"decoder": "rnn"}], ids=str)
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
    assert moved & transformer == transformer and bool(transformer) == (kind.get("attend_to") == "transformer")
    loaded = saywhere.load(checkpoint.save(network, tmp_path / "model"), "cpu")
    assert loaded.captioner.config == network.config
    for one, other in zip(captions, loaded.caption(images), strict=True):
        assert one.sentence == other.sentence
        assert (one.attention is None) == ("decoder" in kind)
        if one.attention is not None:
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
    features = position_features(image.sources(network.config.levels, False), 32, 2, 192, 128)
    rows = torch.relu(network.narrow(torch.nn.functional.layer_norm(features, features.shape[-1:])))
    chosen = pick(4, 6, 2, sample=False)
    torch.testing.assert_close(found.features[0], rows[chosen[:, 0], chosen[:, 1]], atol=1e-6, rtol=0)
    corners = found.regions[0].corners
    assert found.mask.all() and network.config.coarsest == 32 and corners is not None
    y, x = ((chosen + 0.5) * 32).unbind(1)
    torch.testing.assert_close(corners[:, 0], torch.stack((x - 48, y - 48), dim=1))
    twice = tiny_captioner(attend_to="transformer", zoom=2.0, trunk={"long_side": 192})
    corners = regions_of(twice, noise(192, 128))[0].corners
    torch.testing.assert_close(corners[:, 0], torch.stack((x - 96, y - 96), dim=1))


def test_suppression_follows_the_options():
    found = {}
    for nms_iou, before in ((0.5, 100), (0.9, 100), (1.0, 7)):
        settings = {"post_nms_top_n": 90, "nms_iou": nms_iou, "pre_nms_top_n": before}
        network = tiny_captioner(attend_to="proposals", proposals=settings)
        found[nms_iou, before] = len(regions_of(network, noise(96, 64))[0].boxes)
    assert found[0.5, 100] < found[0.9, 100] <= 90 and found[1.0, 7] == 7


# Sampling


class Chain(TensorDecoder):
    """A decoder whose next word depends on the last one alone: ``table[last]`` are probabilities."""

    def __init__(self, table):
        self.table = torch.tensor(table).log()

    def start(self, embeddings):
        return (embeddings,)

    def step(self, token_ids, state):
        return self.table[token_ids], state


def test_sentences_are_sampled_as_often_as_they_are_probable():
    # a first word 4 (0.75) or 5 (0.25); 4 ends, 5 ends or continues with 4; UNKNOWN's half is shared out
    chain = Chain(
        [[1.0] * 6, [0, 0, 0, 0.5, 0.375, 0.125], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 0.5, 0, 0.5, 0]]
    )
    token_ids, log_probs = sample(chain, torch.zeros(2, 1), 5, 4000, torch.Generator().manual_seed(0))
    rows = [tuple(token for token in row if token != PAD) for row in token_ids.tolist()]
    shares = {row: rows.count(row) / len(rows) for row in set(rows)}
    assert shares.keys() == {(4, END), (5, END), (5, 4, END)}
    assert shares[4, END] == pytest.approx(0.75, abs=0.02)
    assert shares[5, END] == pytest.approx(0.125, abs=0.02)
    chances = {(4, END): 0.75, (5, END): 0.125, (5, 4, END): 0.125}
    torch.testing.assert_close(log_probs.sum(dim=1), torch.tensor([chances[row] for row in rows]).log())


def test_samples_of_an_embedding_are_neighbours_and_have_gradients():
    decoder = tiny_lstm(0)
    embeddings = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)) * 3
    token_ids, log_probs = sample(decoder, embeddings, 4, 2, torch.Generator().manual_seed(2))
    assert len(token_ids) == 6 and token_ids.shape[1] <= 4
    assert torch.equal(token_ids, sample(decoder, embeddings, 4, 2, torch.Generator().manual_seed(2))[0])
    log_probs[2:4].sum().backward()
    assert all(p.grad is not None for p in decoder.parameters())
    for i, (row, found) in enumerate(zip(token_ids.tolist(), log_probs.tolist(), strict=True)):
        state, last = decoder.start(embeddings[i // 2 : i // 2 + 1]), START
        for token, log_prob in zip(row, found, strict=True):
            if token == PAD:
                assert log_prob == 0
                continue
            scores, state = decoder.step(torch.tensor([last]), state)
            scores[:, [PAD, START, UNKNOWN]] = -torch.inf
            assert scores.log_softmax(dim=1)[0, token].item() == pytest.approx(log_prob, abs=1e-5)
            last = token


def test_nothing_to_sample_from():
    assert sample(tiny_lstm(0), torch.zeros(0, 6), 5, 2)[0].shape[0] == 0
