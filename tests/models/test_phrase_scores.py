from __future__ import annotations

import pytest
import torch
from tiny_densecap import VOCABULARY, tiny_model

from saywhere.errors import UserError
from saywhere.language.decoding import Decoded
from saywhere.language.lstm import LstmSpeaker
from saywhere.models.phrase_scores import PhraseScores
from saywhere.regions import Regions
from saywhere.text import END, UNKNOWN
from tests.pictures import noise

PHRASES = ("a red square", "a dog", "the blue sky", "a red dog")


def test_every_phrase_of_every_region_equals_one_at_a_time():
    model, image = tiny_model(), noise(120, 80)
    found = model.score(image, PHRASES)
    assert found.log_probs.shape == (len(found.regions), 4) and len(found.regions) > 3
    codes = torch.as_tensor(found.regions.features)
    for p, phrase in enumerate(PHRASES):
        words = torch.tensor([VOCABULARY.encode(phrase)])
        for r in range(len(codes)):
            with torch.no_grad():
                log_probs = model.speaker(codes[r : r + 1], words)[0].log_softmax(dim=1)
            expected = sum(log_probs[t, w] for t, w in enumerate([*words[0].tolist(), END]))
            torch.testing.assert_close(found.log_probs[r, p], torch.as_tensor(expected), rtol=1e-4, atol=1e-4)


def test_the_regions_are_those_of_describe_and_given_boxes_as_they_are():
    model, image = tiny_model(), noise(120, 80)
    own, boxes = model.score(image, ["a dog"]), torch.tensor([[60.0, 10, 110, 70], [0, 0, 120, 80]])
    torch.testing.assert_close(own.regions.boxes, model.describe(image).boxes)
    given = model.score(model.encode(image), ["a dog"], boxes)
    torch.testing.assert_close(given.regions.boxes, boxes)
    backwards = model.score(image, ["a dog"], boxes.flip(0))
    torch.testing.assert_close(backwards.log_probs, given.log_probs.flip(0), rtol=1e-4, atol=1e-5)
    assert model.score(image, ["a dog"], torch.zeros(0, 4)).log_probs.shape == (0, 1)


def test_a_phrase_costs_no_step_of_its_own(monkeypatch):
    model, image = tiny_model(), noise(120, 80)
    usual, steps = LstmSpeaker.step, []
    monkeypatch.setattr(
        model, "_say", lambda codes: Decoded(torch.full((len(codes), 1), END), torch.zeros(len(codes), 1))
    )
    monkeypatch.setattr(LstmSpeaker, "step", lambda *a: (steps.append(len(a[1])), usual(*a))[1])
    regions = len(model.score(image, PHRASES).regions)
    # START; "a" and "the"; "a red", "a dog" and "the blue"; three phrases that go on.
    assert steps == [regions, 2 * regions, 3 * regions, 3 * regions]


def test_unknown_words_are_told_and_count_as_the_unknown_word():
    model, image = tiny_model(), noise(120, 80)
    found = model.score(image, ["a zebra", "a giraffe", "a dog", "zebra ZEBRA crossing"])
    assert found.unknown == (("zebra",), ("giraffe",), (), ("zebra", "crossing"))
    assert torch.equal(found.log_probs[:, 0], found.log_probs[:, 1])
    assert VOCABULARY.encode("a zebra")[1] == UNKNOWN
    assert not torch.equal(found.log_probs[:, 0], found.log_probs[:, 2])


def test_find_gives_the_best_regions_of_a_phrase():
    regions = Regions(10, 10, torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]), captions=("x", "y", "z"))
    log_probs = torch.tensor([[0.1, 0.5], [0.4, 0.25], [0.2, 0.5]]).log()
    scores = PhraseScores(regions, ("a cat", "a dog"), log_probs, ((), ()))
    cats, dog = scores.find("a cat"), scores.find("a dog", top=1)
    assert cats.boxes[:, 2].tolist() == [2, 3, 1] and cats.captions == ("a cat",) * 3
    torch.testing.assert_close(cats.scores, torch.tensor([0.4, 0.2, 0.1]))
    assert dog.boxes[:, 2].tolist() == [1], "of equals the first"
    with pytest.raises(UserError, match="'a bird' was not scored, only 'a cat', 'a dog'"):
        scores.find("a bird")


def test_a_region_that_is_hardly_there_is_found_late():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]])
    regions = Regions(10, 10, boxes, torch.tensor([0.5, 0.1, 0.0]), ("x", "y", "z"))
    scores = PhraseScores(regions, ("a cat",), torch.tensor([[0.1], [0.4], [1.0]]).log(), ((),))
    torch.testing.assert_close(scores.joint[:, 0].exp(), torch.tensor([0.05, 0.04, 0.0]))
    cats = scores.find("a cat")
    assert cats.boxes[:, 2].tolist() == [1, 2, 3]
    torch.testing.assert_close(cats.scores, torch.tensor([0.05, 0.04, 0.0]))


def test_the_best_region_of_each_phrase():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2]])
    regions = Regions(10, 10, boxes, torch.tensor([0.5, 0.2]), ("x", "y"))
    log_probs = torch.tensor([[0.1, 0.4, 0.2], [0.5, 0.4, 0.5]]).log()
    best = PhraseScores(regions, ("a", "b", "c"), log_probs, ((), (), ())).best()
    assert best.boxes[:, 2].tolist() == [2, 1, 1] and best.captions == ("a", "b", "c"), "of equals the first"
    torch.testing.assert_close(best.scores, torch.tensor([0.1, 0.2, 0.1]))
    assert len(PhraseScores(regions[[]], ("a",), torch.zeros(0, 1), ((),)).best()) == 0


@pytest.mark.parametrize(
    ("phrases", "message"),
    [("a dog", r"phrases are a list of texts, not one text: \['a dog'\]"), (["a dog", " ?!"], "' \\?!' has no word")],
)
def test_what_cannot_be_scored_is_told(phrases, message):
    with pytest.raises(UserError, match=message):
        tiny_model().score(noise(120, 80), phrases)
