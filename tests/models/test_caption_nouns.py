"""The nouns of a caption are those of things that the image shows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from noun_evidence import TREE, evidence, posteriors
from photographs import noise
from tiny_captioner import VOCABULARY, tiny_config
from tiny_classes import TRUNK, tiny_networks

from saywhere.configs.captioner import TERMS, CaptionNgramsConfig
from saywhere.engines.torch import TorchEngine
from saywhere.models import caption_nouns
from saywhere.models.caption_nouns import NounChecker, Seen, correct, support
from saywhere.models.captioner import NEVER
from saywhere.models.decoding import Hypotheses, Reason, Reranker
from saywhere.models.densecap import main_phrase
from saywhere.models.model import Model
from saywhere.models.nouns import without_repetition
from saywhere.networks.captioner.network import Captioner
from saywhere.regions import Regions
from saywhere.text import END, Vocabulary, pad, with_usage

KINDS = ("person", "dog", "cat", "elephant", "grass", "banana", "orange", "apple", "bench")
CLASSES = evidence(KINDS)


def unplaced(posterior: np.ndarray) -> Seen:
    return Seen(np.zeros((len(posterior), 4)), posterior)


@pytest.mark.parametrize(
    ("sentence", "shown", "wanted"),
    [
        ("a white dog is running", [{"cat": 0.9}], "a white cat is running"),
        ("two dogs play in the snow", [{"cat": 0.9}], "two cats play in the snow"),
        ("an old dog and a dog", [{"elephant": 0.7}, {"cat": 0.9}], "an old elephant and a cat"),
        ("a dog is running", [{"elephant": 0.9}], "an elephant is running"),
        ("a dog is running", [{"cat": 0.9}, {"dog": 0.1}], "a dog is running"),  # it may be there
        ("a dog chases a cat", [{"cat": 0.9}], "a dog chases a cat"),  # named already
        ("a dog on the grass", [{"cat": 0.5}, {"grass": 0.5}], "a dog on the grass"),  # nothing is sure
        ("a boy and a dog", [{"woman": 0.9}], "a boy and a dog"),  # words for people stay, and there is somebody
        ("a boy eats an apple", [{"banana": 0.9}], "a boy eats a banana"),
        ("a boy sits on a bench", [{"banana": 0.8}, {"orange": 0.9}], "an orange and a banana"),
        ("a boy sits on a bench", [{"grass": 0.9}, {"grass": 0.7}], "grass"),
        ("a boy sits on a bench", [{"cat": 0.9}, {"orange": 0.8}, {"banana": 0.7}], "a cat and an orange"),
        ("a boy sits on a bench", [{"animal": 0.9}], "a boy sits on a bench"),
        ("a boy looks at a hill", [{"cat": 0.9}], "a boy looks at a hill"),  # nobody taught them hills
        ("something is blue", [{"cat": 0.9}], "something is blue"),
        ("a dog is running", [], "a dog is running"),
        ("", [{"cat": 0.9}], ""),
    ],
)
def test_what_no_region_shows_gives_way_to_what_one_does(
    sentence: str, shown: list[dict[str, float]], wanted: str
) -> None:
    rows = posteriors(*[one for one in shown if "animal" not in one])
    if any("animal" in one for one in shown):  # an animal, but not which
        rows = np.concatenate((rows, posteriors({"dog": 0.3, "cat": 0.3, "elephant": 0.3})))
        rows[:, TREE.named("dog").leaves] *= 0.3  # pyright: ignore[reportOptionalMemberAccess]
    assert correct(CLASSES, rows, sentence) == wanted
    assert wanted == sentence or not caption_nouns.all_seen(CLASSES, rows, sentence)


@pytest.mark.parametrize(
    ("sentence", "shown", "wanted"),
    [
        ("a dog on the grass", [{"dog": 0.1}, {"grass": 0.9}], 0.0),
        ("a dog on the grass", [{"dog": 0.05}, {"grass": 0.9}], np.log(0.5)),
        ("two dogs and a cat", [{"dog": 0.05}, {"cat": 0.05, "dog": 0.01}], 2 * np.log(0.5)),
        ("a dog and a cat", [], 2 * caption_nouns.LEAST_SUPPORT),
        ("a boy looks at a hill", [{"woman": 0.9}], 0.0),  # there is somebody, and nobody taught hills
        ("something is blue", [], 0.0),
    ],
)
def test_a_sentence_is_supported_by_what_regions_show(sentence: str, shown: list[dict[str, float]], wanted: float):
    assert support(CLASSES, posteriors(*shown), [sentence, "it"]).tolist() == pytest.approx([wanted, 0], abs=1e-5)


def model(**options: object) -> Model:
    networks = tiny_networks()
    torch.manual_seed(0)
    before = {"terms": TERMS, "feedback": "marginal"}  # with which these random weights make sentences
    config = tiny_config(**{"trunk": TRUNK, **before, **options})  # pyright: ignore[reportArgumentType]
    captioner = Captioner(config, VOCABULARY, networks["densecap"].trunk).eval()
    for parameter in captioner.decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Model(TorchEngine({**networks, "captioner": captioner}))


def test_a_model_with_classes_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [noise(96, 64, seed) for seed in range(3)]
    plain = [caption.sentence for caption in model(nouns=False).caption(images)]
    asked: list[str] = []

    def changed(*given: object) -> list[str]:
        asked.extend(given[1])  # pyright: ignore[reportArgumentType]
        return ["an cat"] * 3

    monkeypatch.setattr(NounChecker, "correct", changed)
    assert [caption.sentence for caption in model(nouns=False).caption(images)] == plain and not asked
    found = model(people_threshold=0.0).caption(images)
    assert [with_usage(sentence) for sentence in asked] == plain
    assert [(caption.sentence, caption.words) for caption in found] == [("a cat", ("a", "cat"))] * 3
    for caption in found:
        assert caption.attention is not None and caption.boxes is not None
        assert caption.attention.shape == (2, len(caption.boxes))
        np.testing.assert_allclose(caption.attention.sum(axis=1), 1, rtol=1e-5)


def test_the_first_regions_decide_where_they_show_all() -> None:
    """What is changed, and to what, does not depend on the first look."""
    images, asked = [noise(96, 64, seed) for seed in range(4)], model()
    assert asked.densecap is not None and asked.nouns is not None
    encodings = asked.encode(images)
    sentences = ["a dog", "a person on the grass", "a zebra", "it is blue"]
    plain, sentences[3] = [*sentences], "it is blue and blue"
    shown = [seen.posterior for seen in caption_nouns.see(asked.densecap, asked.nouns, encodings)]
    expected = [correct(asked.nouns, *pair) for pair in zip(shown, plain, strict=True)]
    assert NounChecker(asked.densecap, asked.nouns, encodings).correct(sentences) == expected
    for posterior, sentence in zip(shown, sentences, strict=True):
        if caption_nouns.all_seen(asked.nouns, posterior, sentence):
            assert correct(asked.nouns, posterior, sentence) == sentence


def test_what_the_image_shows_helps_to_choose_among_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    def men(sentence: str) -> int:
        return sentence.split().count("man")

    monkeypatch.setattr(
        caption_nouns, "support", lambda classes, posterior, texts: np.array([men(text) for text in texts])
    )
    monkeypatch.setattr(NounChecker, "correct", lambda witness, sentences: sentences)
    images, wide = [noise(96, 64, seed) for seed in range(6)], {"decoding": {"beam_size": 6}, "people_threshold": 0.0}
    plain, strong = model(**wide), model(**wide, seen_weight=1e3)
    likeliest, chosen = ([c.sentence for c in each.caption(images)] for each in (plain, strong))
    more = [men(one) - men(other) for one, other in zip(chosen, likeliest, strict=True)]
    assert min(more) >= 0 and max(more) > 0
    assert [strong.caption(image).sentence for image in images] == chosen


def test_people_are_named_only_where_a_region_shows_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [posteriors({"woman": 0.5}), posteriors({"dog": 0.9}), posteriors({"woman": 0.05}), posteriors()]
    more = {
        0: posteriors(),
        1: posteriors({"dog": 0.9}, {"man": 0.3}),
        2: posteriors({"woman": 0.05}),
        3: posteriors({"boy": 0.09}),
    }
    looks: list[list[int]] = []

    def see(detector: object, classes: object, images: list[int], limit: int) -> list[Seen]:
        looks.append(images)
        return [unplaced((more if limit == caption_nouns.REGIONS else first)[image]) for image in images]

    monkeypatch.setattr(caption_nouns, "see", see)
    checker = NounChecker(SimpleNamespace(), CLASSES, [0, 1, 2, 3])  # pyright: ignore[reportArgumentType]
    vocabulary = Vocabulary.build(["a man and two girls with a dog see a couple of bikers on the road"])
    part = SimpleNamespace(vocabulary=vocabulary, config=SimpleNamespace(people_threshold=0.1))
    never = checker.refuse_people(part)  # pyright: ignore[reportArgumentType]
    assert never is not None and not never[:2].any()
    for row in never[2:]:
        words = {word for word, refused in zip(vocabulary.tokens, row, strict=True) if refused}
        assert words == {"man", "girls", "couple", "bikers"}
    assert looks == [[0, 1, 2, 3], [1, 2, 3]]
    checker.correct(["a dog"] * 4)
    assert looks == [[0, 1, 2, 3], [1, 2, 3], [0]]  # no image is looked at again
    part.config.people_threshold = 0.0
    assert checker.refuse_people(part) is None  # pyright: ignore[reportArgumentType]


def test_no_caption_names_people_where_no_region_is_sure_enough_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NounChecker, "correct", lambda checker, sentences: sentences)
    images = [noise(96, 64, seed) for seed in range(6)]
    for beam_size in (1, 3):
        free, strict = (
            [{*caption.words} & {"people", "man"} for caption in each.caption(images, beam_size=beam_size)]
            for each in (model(people_threshold=0.0), model(people_threshold=1.0))
        )
        assert any(free) and not any(strict)


def test_a_subject_that_neither_n_grams_nor_regions_expect_is_unlikely(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [posteriors({"dog": 0.9}), posteriors({"cat": 0.9}), posteriors({"cat": 0.9}), posteriors()]
    monkeypatch.setattr(
        caption_nouns, "see", lambda detector, classes, images, limit: [unplaced(shown[image]) for image in images]
    )
    vocabulary = Vocabulary.build(["a dog and a woman on the grass"])
    words = {(number,): (row, 0) for row, number in enumerate(vocabulary.encode("dog woman"))}
    likely = {"rows": words, "probabilities": lambda embeddings: embeddings}
    config = SimpleNamespace(ngrams=CaptionNgramsConfig(least_subject=0.03))
    part: Any = SimpleNamespace(vocabulary=vocabulary, config=config, ngrams=SimpleNamespace(**likely))
    checker = NounChecker(SimpleNamespace(), CLASSES, [0, 1, 2, 3])  # pyright: ignore[reportArgumentType]
    images = np.array([[0.01, 0.5], [0.01, 0.02], [0.05, 0.02], [0.01, 0.03]])
    assert checker.unlikely_subjects(part, images, ["two dogs on the grass"] * 4) == [1, 2, 3]  # "dogs" is no n-gram
    assert checker.unlikely_subjects(part, images, ["two boys on the grass"] * 4) == [1, 2]  # but "woman" is one
    assert checker.unlikely_subjects(part, images, ["a dog on the grass"] * 4) == [1, 3]
    assert checker.unlikely_subjects(part, images, ["a cat near a dog", "a cat", "", ""]) == [0, 2, 3]
    config.ngrams = CaptionNgramsConfig(least_subject=0.0)
    assert checker.unlikely_subjects(part, images, ["a dog on the grass"] * 4) == []
    part.ngrams = None
    assert checker.unlikely_subjects(part, images, ["a dog on the grass"] * 4) == []


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        ("a green dog on blue grass", "a dog on blue grass"),  # no region shows grass
        ("a dark green dog runs", "a dog runs"),
        ("a red dog and a green cat", "a red dog and a cat"),
        ("a green dog and a red dog", "a dog and a red dog"),
        ("a black and green dog", "a black and green dog"),  # one of several
        ("a green woman with a dog", "a green woman with a dog"),  # somebody in green
        ("a dog is green", "a dog is green"),
        ("a green hill", "a green hill"),  # no region tells
        ("", ""),
    ],
)
def test_a_colour_that_its_region_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch, sentence: str, wanted: str
) -> None:
    red = np.full((60, 90, 3), (200, 20, 20), np.uint8)
    boxes = np.array([[0, 0, 90, 60], [30, 0, 60, 60], [0, 0, 30, 60]], np.float32)
    seen = Seen(boxes, posteriors({"dog": 0.9}, {"cat": 0.9}, {"woman": 0.9}))
    monkeypatch.setattr(caption_nouns, "see", lambda detector, classes, images, limit: [seen for _ in images])
    encodings = model().encode([red, red])
    for threshold, expected in ((0.5, wanted), (0.0, sentence)):
        detector: Any = SimpleNamespace(config=SimpleNamespace(colour_threshold=threshold))
        checker = NounChecker(detector, CLASSES, encodings)
        assert checker.without_wrong_colours(["a dog", sentence]) == ["a dog", expected]


def test_a_sentence_with_an_unlikely_subject_gives_way_to_a_phrase(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, images = model(), [noise(96, 64, seed) for seed in range(3)]
    plain = [one.sentence for one in asked.caption(images)]
    monkeypatch.setattr(NounChecker, "unlikely_subjects", lambda checker, part, embeddings, sentences: [1])
    found = asked.caption(images)
    phrase = main_phrase(asked.describe(images[1]))
    assert phrase and [one.sentence for one in found] == [plain[0], phrase, plain[2]]
    assert found[1].attention is not None and len(found[1].attention) == len(found[1].words)


def test_the_main_phrase_is_that_of_a_large_and_sure_region() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 100, 80], [0, 0, 100, 80], [0, 0, 100, 81]], np.float32)
    regions = Regions(100, 100, boxes, np.array([0.9, 0.6, 0.7, 0.9]), ("a cup", "a dog", "a cat", ""))
    assert main_phrase(regions[:3]) == "a cat"
    assert main_phrase(replace(regions[:3], caption_scores=np.array([0.9, 0.9, 0.3]))) == "a dog"
    assert main_phrase(replace(regions[:2], scores=np.array([0.9, 0.2]))) == "a cup"
    assert main_phrase(regions) is None and main_phrase(regions[:0]) is None
    assert main_phrase(replace(regions, captions=None)) is None


def test_an_image_of_one_pixel_has_a_caption() -> None:
    assert isinstance(model().caption(noise(1, 1)).sentence, str)


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        ("a plate of food that is sitting on a plate of food", "a plate of food"),
        ("a dog next to a cat and a dog", "a dog next to a cat"),
        ("a man in a red shirt and another man on a bench", "a man in a red shirt and another man on a bench"),
        ("a dog runs on the grass", "a dog runs on the grass"),
        ("a man is standing in a kitchen in a kitchen", "a man is standing in a kitchen"),
        ("a woman is taking a picture of a picture", "a woman is taking a picture"),
        ("a living room with a tv in a living room", "a living room with a tv"),
        ("a man in a red hat on a red mat", "a man in a red hat on a red mat"),
        ("something there", "something there"),
        ("a person in a white shirt", "a person in a white shirt"),
        ("a person in a cowboy hat", "a person in a cowboy hat"),
        ("a train with a white train", "a train"),
        ("a woman at a table with wine wine", "a woman at a table with wine"),
        ("a bathroom has a sink and a bathroom in the bathroom", "a bathroom has a sink"),
        ("a white kitchen with a white kitchen stands in a room", "a white kitchen"),
        ("a bathroom is standing in front of a white bathroom", "a bathroom"),
        ("a man taking a picture in a room", "a man taking a picture in a room"),
        ("a laptop computer and a desktop computer", "a laptop computer and a desktop computer"),
        ("a red sign next to a stop sign", "a red sign"),
        (
            "a man in a red and white shirt and a red and white tie",
            "a man in a red and white shirt and a red and white tie",
        ),
        ("a black and white photo of a black and white train", "a black and white photo of a black and white train"),
        ("a kitchen with a white and white kitchen", "a kitchen"),
        ("a man with the a dog", "a man with the a dog"),
        ("a blue one and a brown one", "a blue one and a brown one"),
        ("a standing man with a walking stick", "a standing man with a walking stick"),
        ("a woman in a pink top in a room in a room", "a woman in a pink top in a room"),
        ("a room with a pink top in a room", "a room with a pink top"),
        ("a room on the top of a room", "a room"),
        ("a bathroom full of a bathroom", "a bathroom"),
        ("a road and a snow covered mountain near a mountain", "a road and a snow covered mountain"),
        ("a city above a city", "a city"),
    ],
)
def test_no_sentence_names_a_thing_twice(sentence: str, wanted: str) -> None:
    assert without_repetition(sentence, TREE) == wanted
    checker = NounChecker(SimpleNamespace(), CLASSES, [])  # pyright: ignore[reportArgumentType]
    assert checker.repeats([sentence, wanted]).tolist() == [float(sentence != wanted), 0.0]


def test_a_hypothesis_that_repeats_itself_is_chosen_only_where_all_do() -> None:
    checker = NounChecker(SimpleNamespace(), CLASSES, [])  # pyright: ignore[reportArgumentType]
    vocabulary = Vocabulary.build(["a dog and a dog", "a cat on a cat on the grass"])
    reason = Reason(lambda own: [-checker.repeats([one.text for one in each]) for each in own], NEVER)
    texts = [["a dog and a dog", "a cat on the grass"], ["a dog and a dog", "a cat on a cat"]]
    token_ids = np.stack([pad([[*vocabulary.encode(text), END] for text in own])[:, :6] for own in texts])
    ranks = np.array([[-1.0, -2.0], [-1.0, -2.0]], np.float32)
    found = Hypotheses(token_ids, np.zeros(token_ids.shape, np.float32), ranks)
    assert Reranker([reason]).rank(found, vocabulary).argmax(axis=1).tolist() == [1, 0]
