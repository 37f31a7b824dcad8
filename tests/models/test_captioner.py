from __future__ import annotations

import math

import pytest
import torch
from pictures import noise, quarters
from tiny_captioner import SENTENCES, SPEAKERS, VOCABULARY, tiny_captioner, tiny_target

from saywhere.errors import UserError
from saywhere.images import open_picture
from saywhere.models.caption_loss import CaptionCriterion, CaptionOutput
from saywhere.text import END, PAD, START, UNKNOWN

BOXES = [[0.0, 0.0, 40.0, 30.0], [10.0, 20.0, 96.0, 64.0]]


def maps_of(model, *images):
    return [encoding.maps for encoding in model.encode(list(images))]


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_what_training_computes_is_what_decoding_follows(speaker):
    """The log-probabilities of the sentence that greedy decoding says are the largest of each step."""
    model = tiny_captioner(speaker=speaker)
    picture = noise(96, 64)
    said = model.caption(picture, beam=1)
    assert said
    out = model(maps_of(model, picture), [tiny_target(said)])
    words = [*VOCABULARY.encode(said), END][: model.config.max_words]
    assert out.words.tolist()[: len(words)] == words
    allowed = out.log_probs.clone()
    allowed[:, [PAD, 1, UNKNOWN]] = -torch.inf
    assert allowed.argmax(dim=1).tolist()[: len(words)] == words
    torch.testing.assert_close(out.log_probs.exp().sum(dim=1), torch.ones(len(out.words)))


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_several_pictures_and_sentences_are_as_one_at_a_time(speaker):
    model = tiny_captioner(speaker=speaker)
    pictures = [noise(96, 64, 1), noise(64, 96, 2)]
    targets = [tiny_target(*SENTENCES[:2]), tiny_target(*SENTENCES[2:], width=64, height=96)]
    together = model(maps_of(model, *pictures), targets)
    rows = []
    for picture, target, sentences in zip(pictures, targets, (SENTENCES[:2], SENTENCES[2:]), strict=True):
        for sentence in sentences:
            alone = tiny_target(sentence, width=target.width, height=target.height)
            rows.append(model(maps_of(model, picture), [alone]).log_probs)
    torch.testing.assert_close(together.log_probs, torch.cat(rows), atol=1e-5, rtol=1e-5)
    assert model.caption(pictures, beam=2) == [model.caption(picture, beam=2) for picture in pictures]


def test_words_that_are_not_known_are_heard_and_not_taught():
    model = tiny_captioner(speaker="lstm")
    maps = maps_of(model, noise(96, 64))
    out = model(maps, [tiny_target("a zebra runs")])
    known = model(maps, [tiny_target("a dog runs")])
    assert out.words.tolist() == [*VOCABULARY.encode("a"), *VOCABULARY.encode("runs"), END]
    torch.testing.assert_close(out.log_probs[0], known.log_probs[0])
    assert not torch.allclose(out.log_probs[1], known.log_probs[2])


@pytest.mark.parametrize("speaker", ["rnn", "attention"])
def test_it_learns_pictures_by_heart(speaker):
    torch.manual_seed(0)
    model = tiny_captioner(speaker=speaker, beam=2)
    pictures = [quarters(96, 64), noise(96, 64, 3)]
    with torch.no_grad():
        for parameter in model.speaker.parameters():
            parameter.mul_(0.3)
    maps = maps_of(model, *pictures)
    targets = [tiny_target(SENTENCES[0]), tiny_target(SENTENCES[1])]
    trained = [parameter for name, parameter in model.named_parameters() if not name.startswith("backbone")]
    optimizer, criterion = torch.optim.Adam(trained, lr=0.01), CaptionCriterion()
    for _ in range(120):
        optimizer.zero_grad()
        loss = criterion(model(maps, targets))["caption"]
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    assert model.caption(pictures) == list(SENTENCES[:2])


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


def test_a_box_is_described_by_what_is_in_it():
    model = tiny_captioner(speaker="lstm", regions=True)
    picture = noise(96, 64)
    maps = maps_of(model, picture)
    out = model(maps, [tiny_target(boxes=BOXES)])
    swapped = model(maps, [tiny_target(boxes=BOXES[::-1])])
    assert not torch.allclose(out.log_probs, swapped.log_probs)
    regions = model.describe([picture, picture], [torch.tensor(BOXES), torch.tensor(BOXES[1:])])
    assert regions[0].boxes.tolist() == BOXES and len(regions[1]) == 1
    assert regions[1].captions == regions[0].captions[1:]
    (whole,) = model.describe([picture])
    assert whole.boxes.tolist() == [[0, 0, 96, 64]] and whole.captions == (model.caption(picture),)
    assert model.describe([picture], [torch.tensor([[0.0, 0, 96, 64]])])[0].captions == whole.captions
    assert len(model.describe([picture], top=0)[0]) == 0


def test_context_adds_the_whole_picture_to_a_box():
    model = tiny_captioner(speaker="lstm", regions=True, context=True)
    plain = tiny_captioner(speaker="lstm", regions=True)
    assert model.speaker.encode[0].in_features == 2 * plain.speaker.encode[0].in_features
    left, right = noise(96, 64), noise(96, 64)
    right.paste(quarters(40, 64), (56, 0))  # the same left part in another picture
    box, whole = torch.tensor([[0.0, 0, 24, 64]]), torch.tensor([[0.0, 0, 96, 64]])
    maps = maps_of(model, left, right)
    seen = [model._see(m, 96, 64, box).chunk(2, dim=1) for m in maps]
    torch.testing.assert_close(seen[0][1], model._see(maps[0], 96, 64, whole).chunk(2, dim=1)[0])
    (alone, context), (other_alone, other_context) = seen
    assert (context - other_context).abs().mean() > (alone - other_alone).abs().mean()


@pytest.mark.parametrize("boxes", [None, torch.tensor([[0.0, 0, 24, 64]])])
def test_features_have_one_scale(boxes):
    model = tiny_captioner()
    seen = model._see(*maps_of(model, noise(96, 64)), 96, 64, boxes)
    assert len(seen) == 1
    torch.testing.assert_close(seen.mean(dim=1), torch.zeros(len(seen)), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.var(dim=1, correction=0), torch.ones(len(seen)), atol=5e-3, rtol=0)


def test_pictures_are_taken_as_paths_arrays_encodings_and_lists(tmp_path):
    import numpy

    model = tiny_captioner()
    picture = noise(96, 64)
    picture.save(tmp_path / "a.png")
    said = model.caption(picture)
    assert isinstance(said, str)
    (encoding,) = model.encode([picture])
    many = [tmp_path / "a.png", numpy.asarray(picture), encoding, open_picture(picture), str(tmp_path / "a.png")]
    assert model.caption(many) == [said] * 5
    assert model.caption([]) == []


def test_more_hypotheses_are_never_less_likely_and_the_configuration_has_the_default():
    model = tiny_captioner(speaker="gru", beam=5, length_power=0.0)
    pictures = [noise(96, 64, seed) for seed in range(6)]

    def likelihood(said):
        out = model(maps_of(model, *pictures), [tiny_target(text) for text in said])
        return out.log_probs.gather(1, out.words[:, None]).sum()

    greedy, beam = model.caption(pictures, beam=1), model.caption(pictures)
    assert beam == model.caption(pictures, beam=5) != greedy
    assert likelihood(beam) >= likelihood(greedy)


@pytest.mark.parametrize("feedback", ["none", "marginal", "conditional"])
@pytest.mark.parametrize("beam", [1, 3])
def test_attention_is_that_of_decoding(feedback, beam):
    """The weights are p(r | h) (Eqs. 4 and 6) in the very states in which decoding says the words."""
    model = tiny_captioner(feedback=feedback)
    pictures = [noise(96, 64, 1), noise(192, 128, 2)]
    seen = model.caption(pictures, beam=beam, attention=True)
    assert [one.sentence for one in seen] == model.caption(pictures, beam=beam)
    for picture, one in zip(pictures, seen, strict=True):
        assert " ".join(one.words) == one.sentence and len(one.words) > 1
        codes, areas, mask, _ = model._look([(*maps_of(model, picture), (96, 64))], [None])
        speaker, looking = model.speaker, model.speaker.look(areas, mask)
        state, heard = looking.start(codes), START
        for word, row in zip(VOCABULARY.encode(one.sentence), one.weights, strict=True):
            state = looking.step(torch.tensor([heard]), state)[1]
            parts = speaker._parts(state[0][:, None], looking._view)
            torch.testing.assert_close(row, speaker._log_regions(*parts, looking._view).exp()[0, 0])
            heard = word
        torch.testing.assert_close(one.weights.sum(dim=1), torch.ones(len(one.words)))
        assert one.weights.log().std(dim=0).max() > 0.1  # not the same at every word


def test_attention_comes_with_areas_in_pixels_of_the_picture():
    model = tiny_captioner()
    seen = model.caption(noise(192, 128), attention=True)
    assert (seen.width, seen.height, seen.corners) == (192, 128, None) and seen.areas is seen.boxes
    assert seen.boxes.tolist() == [[0, 0, 96, 64], [96, 0, 192, 64], [0, 64, 96, 128], [96, 64, 192, 128]]


def test_given_sentences_are_attended_to_word_by_word():
    model, picture = tiny_captioner(), noise(96, 64)
    said = model.caption(picture, attention=True)
    same, other, none = model.attend(picture, [said.sentence.upper() + ".", "A zebra, in red!", "..."])
    assert same.words == said.words
    torch.testing.assert_close(same.weights, said.weights)
    assert other.words == ("a", "zebra", "in", "red") and other.weights.shape == (4, 4)
    assert (none.sentence, none.words, len(none.weights)) == ("", (), 0)
    unicorn = model.attend(picture, ["a unicorn, in red"])[0]
    torch.testing.assert_close(unicorn.weights, other.weights)  # both are the unknown word
    with pytest.raises(UserError, match="speaker gru looks at no areas"):
        tiny_captioner(speaker="gru").caption(picture, attention=True)


def test_wrong_use_is_told_in_a_line():
    model = tiny_captioner()
    with pytest.raises(UserError, match="beam is at least 1, not 0"):
        model.caption(noise(96, 64), beam=0)
    with pytest.raises(UserError, match="boxes need another model"):
        model.describe([noise(96, 64)], [torch.zeros(0, 4)])
    with pytest.raises(UserError, match="no scores"):
        model.describe([noise(96, 64)], threshold=0.5)
    other = tiny_captioner(speaker="rnn", regions=True)
    with pytest.raises(UserError, match="leaves the 96 x 64 picture"):
        other.describe([noise(96, 64)], [torch.tensor([[0.0, 0, 97, 10]])])
    with pytest.raises(UserError, match="1 lists of boxes for 2 pictures"):
        other.describe([noise(96, 64)] * 2, [torch.zeros(0, 4)])
