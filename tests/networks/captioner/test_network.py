from __future__ import annotations

import math

import pytest
import torch
from photographs import noise, quarters
from tiny_captioner import DECODERS, SENTENCES, VOCABULARY, captioner_model, tiny_captioner, tiny_maps, tiny_target

from saywhere.errors import UserError
from saywhere.networks.captioner.loss import CaptionCriterion, CaptionOutput
from saywhere.networks.captioner.network import Captioner
from saywhere.text import END, PAD, UNKNOWN

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


@pytest.mark.parametrize("decoder", ["rnn", "attention"])
def test_it_learns_images_by_heart(decoder):
    torch.manual_seed(0)
    network = tiny_captioner(decoder=decoder, decoding={"beam_size": 2})
    images = [quarters(96, 64), noise(96, 64, 3)]
    with torch.no_grad():
        for parameter in network.decoder.parameters():
            parameter.mul_(0.3)
    maps = maps_of(network, *images)
    targets = [tiny_target(SENTENCES[0]), tiny_target(SENTENCES[1])]
    trained = [parameter for name, parameter in network.named_parameters() if not name.startswith("trunk")]
    optimizer, criterion = torch.optim.Adam(trained, lr=0.01), CaptionCriterion()
    for _ in range(120):
        optimizer.zero_grad()
        loss = criterion(network(maps, targets))["caption"]
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert [caption.sentence for caption in captioner_model(network).caption(images)] == list(SENTENCES[:2])


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
    with pytest.raises(UserError, match="no localization layer"):
        Captioner(wants.config, VOCABULARY, trunk=grid.trunk)
