"""Phrases of regions: the choice among hypotheses, and words that are not sure enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from noun_evidence import evidence, posteriors
from photographs import noise
from stubs import calibrated
from tiny_bundle import bundle_model

from saywhere.calibration import QUESTIONS, Calibration, Logistic
from saywhere.models.decoding import search, search_each
from saywhere.models.densecap import detect
from saywhere.models.model import Model
from saywhere.models.nouns import COLOUR_NAMES, colour_of, noun_of
from saywhere.models.phrases import (
    NounGuide,
    PhraseWriter,
    caption_evidence,
    colour_names,
    text_sums,
    without_colours,
    without_sex,
)
from saywhere.text import END, PAD, Vocabulary, with_articles, without_stutter

BOXES = np.array([[0, 0, 40, 30], [10, 20, 96, 64], [50, 0, 96, 20], [5, 5, 60, 60]], np.float32)


def model(**options) -> Model:
    return bundle_model(
        densecap={"decoding": {"beam_size": 3, "length_penalty": 1.0, "max_words": 4}, **options}, aligner={}
    )


def described(asked: Model, boxes: np.ndarray | None = BOXES, **more):
    encoding = asked.encode(noise(96, 64))
    given = None if boxes is None else [boxes]
    return encoding, detect(asked.densecap, [encoding], given, writer=asked.phrase_writer, **more)[0]


def test_a_phrase_is_the_hypothesis_with_the_best_sum_of_log_probability_and_similarity():
    """The aligner compares the three hypotheses with the best mean log-probability."""
    decoding = {"beam_size": 5, "length_penalty": 1.0, "max_words": 4}
    asked = model(similarity_weight=50.0, decoding=decoding)
    encoding, found = described(asked)
    hypotheses = search(asked.densecap.decoder, found.codes, asked.densecap.config.decoding)
    aligner, vocabulary = asked.aligner.last, asked.densecap.vocabulary
    (vectors,) = aligner.region_vectors([encoding.maps], [encoding.to_input(BOXES)])
    for row, said in enumerate(found.captions):
        texts = [vocabulary.decode(ids.tolist()) for ids in hypotheses.token_ids[row]]
        sums = text_sums(aligner, texts)
        fits = hypotheses.ranks[row] + 50.0 * np.array([vectors[row] @ sums[text] for text in texts])
        best = np.argsort(-hypotheses.ranks[row], kind="stable")[:3]
        assert said == texts[best[int(fits[best].argmax())]]
    plain = described(model(decoding=decoding))[1].captions
    assert plain != found.captions, "the aligner must matter here"


def test_likely_n_grams_decide_among_hypotheses():
    decoding = {"beam_size": 5, "length_penalty": 1.0, "max_words": 4}
    options = {"count": 40, "words": 80, "size": 6, "hidden": 8}
    asked = model(ngrams={**options, "weight": 50.0}, decoding=decoding)
    encoding, found = described(asked)
    detector = asked.densecap
    hypotheses = search(detector.decoder, found.codes, detector.config.decoding)
    inputs = [encoding.to_input(BOXES)]
    (head,) = detector.region_head([encoding.maps], inputs)
    (features,) = detector.phrase_features([encoding.maps], inputs, [head.embeddings])
    expected = detector.ngrams.probabilities(features)
    for row, said in enumerate(found.captions):
        ids = [[i for i in one.tolist() if i not in (PAD, END)] for one in hypotheses.token_ids[row]]
        (agreed,) = detector.ngrams.agreement(expected[row : row + 1], [detector.ngrams.weigh(ids, unknown=False)])
        best = int((hypotheses.ranks[row] + 50.0 * agreed).argmax())
        assert said == detector.vocabulary.decode(ids[best])
    plain = described(model(ngrams={**options, "weight": 0.0}, decoding=decoding))[1].captions
    assert plain != found.captions, "the n-grams must matter here"


def test_hypotheses_with_words_of_ones_own_are_judged_by_the_decoder_alone():
    decoding = {"beam_size": 5, "length_penalty": 1.0, "max_words": 4}
    ngrams = {"count": 40, "words": 80, "size": 6, "hidden": 8}
    options = {"ngrams": {**ngrams, "weight": 50.0}, "decoding": decoding}
    _, found = described(model(**options))
    likeliest = described(model(ngrams={**ngrams, "weight": 0.0}, decoding=decoding))[1].captions
    assert likeliest[0] != found.captions[0]
    own = sorted(set(likeliest[0].split()))
    _, judged = described(model(own_words=dict.fromkeys(own, ""), **options))
    assert judged.captions[0] == likeliest[0], "it has the most of both terms now"
    nouns = evidence(["dog", "cat"])
    posterior = np.full((2, nouns.tree.leaves), 1e-3, np.float32)
    texts, nothing = ["a dog", "a cat"], np.zeros(2, np.float32)
    assert caption_evidence(nouns, posterior, texts, nothing, nothing)["known"].tolist() == [1, 1]
    dog = nouns.judged("a dog")
    nouns._own = {"cat": "", "moggy": "dog"}
    assert caption_evidence(nouns, posterior, texts, nothing, nothing)["known"].tolist() == [1, 0]
    assert nouns.judged("a striped moggy") is dog is not None and nouns.judged("a dog") is dog
    nouns._names = {"night bandit": "raccoon", "freighter": "ship", "blue": "dog", "ada": "woman"}
    own = {"two night bandits on a roof": "two raccoons on a roof", "an old freighter": "an old ship", "a bandit": None}
    own |= {"Ada": "woman", "a blue car": None, "a car with a freighter": None, "": None}  # only nouns are names
    assert [nouns.translate(text) for text in own] == [other or text for text, other in own.items()]


def test_of_found_regions_only_the_best_get_several_hypotheses_and_all_of_given_ones():
    _, few = described(model(beam_regions=1), None)
    _, none = described(model(beam_regions=0), None)
    _, full = described(model(), None)
    best = int(few.logits.argmax())
    others = [row for row in range(len(few.logits)) if row != best]
    assert few.captions[best] == full.captions[best]
    assert [few.captions[row] for row in others] == [none.captions[row] for row in others]
    assert described(model(beam_regions=0))[1].captions == described(model())[1].captions
    unlikely = calibrated(box=(1.0, 0.0, 0.0, -10.0))
    assert described(model(), None, calibration=unlikely)[1].captions == none.captions, "nothing is shown: all greedy"


def test_the_articles_of_a_phrase_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Vocabulary, "decode", lambda *_: "an man on a elephant")
    assert described(model())[1].captions == ("a man on an elephant",) * 4


@pytest.mark.parametrize("boxes", [BOXES, None])
def test_a_greedy_writer_gives_no_region_several_hypotheses(boxes: np.ndarray | None):
    asked, plain = model(), model(decoding={"beam_size": 1, "length_penalty": 1.0, "max_words": 4})
    encoding = asked.encode(noise(96, 64))
    given, writer = None if boxes is None else [boxes], PhraseWriter(asked.densecap, greedy=True)
    (found,) = detect(asked.densecap, [encoding], given, writer=writer)
    assert found.captions == described(plain, boxes)[1].captions != described(asked, boxes)[1].captions


def test_groups_that_are_searched_together_find_what_each_finds_alone():
    asked = model()
    _, found = described(asked)
    decoder, settings, codes = asked.densecap.decoder, asked.densecap.config.decoding, found.codes
    together = search_each(decoder, [codes[:1], codes[1:], codes[:0]], settings, [3, 1, 2])
    for part, rows, size in zip(together, (codes[:1], codes[1:]), (3, 1), strict=False):
        alone = search(decoder, rows, settings, size)
        np.testing.assert_array_equal(part.best().token_ids, alone.best().token_ids)
        np.testing.assert_allclose(part.best().log_probs, alone.best().log_probs, atol=1e-4)
    assert len(together[2].token_ids) == 0


class Plain:
    """A decoder that gives the same five words the same probabilities in each step."""

    never, unknown, independent = (), "", True
    probabilities = np.array([0.1, 0.2, 0.3, 0.15, 0.25], np.float32)

    def start(self, embeddings):
        return (np.asarray(embeddings),)

    def step(self, token_ids, state):
        return np.log(np.tile(self.probabilities, (len(token_ids), 1))), state

    def select(self, state, rows):
        return (state[0][rows],)

    def join(self, states):
        return (np.concatenate([state[0] for state in states]),)


def test_the_classes_share_the_probability_of_nouns_until_one_is_said():
    """Words 2 and 3 are nouns; the classes find the second four times as likely in the second region."""
    logs = np.log(np.array([[1.0, 1.0], [0.5, 2.0]], np.float32))
    guide = NounGuide(Plain(), np.array([False, False, True, True, False]), logs)
    state = guide.join([guide.start(np.zeros((2, 3))), guide.start(np.zeros((1, 3)))])
    log_probs, state = guide.step(np.array([0, 1, 4]), guide.select(state, np.array([1, 0, 1])))
    np.testing.assert_allclose(np.exp(log_probs[1]), Plain.probabilities, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs[0]), [0.1, 0.2, 0.15, 0.3, 0.25], rtol=1e-5)
    np.testing.assert_array_equal(log_probs[0], log_probs[2])
    after, state = guide.step(np.array([3, 1, 0]), state)
    np.testing.assert_allclose(
        np.exp(after), [Plain.probabilities, Plain.probabilities, np.exp(log_probs[0])], rtol=1e-5
    )
    later, _ = guide.step(np.array([1, 2, 2]), state)
    np.testing.assert_allclose(np.exp(later), np.tile(Plain.probabilities, (3, 1)), rtol=1e-5)


def test_a_region_does_not_get_the_words_that_are_refused_to_it():
    refused = np.array([[False] * 5, [False, True, False, False, True]])
    guide = NounGuide(Plain(), np.zeros(5, bool), np.zeros((2, 0), np.float32), refused)
    state = guide.select(guide.start(np.zeros((2, 3))), np.array([1, 0, 1]))
    for _ in range(2):
        log_probs, state = guide.step(np.array([0, 1, 4]), state)
        assert np.isneginf(log_probs).tolist() == refused[[1, 0, 1]].tolist()
        np.testing.assert_allclose(np.exp(log_probs[1]), Plain.probabilities, rtol=1e-5)


def test_a_word_of_ones_own_is_for_regions_that_probably_show_its_kind():
    """Squares are cats, and a field is in the names of a cat and of a dog; what the sky is, the classifier lacks."""
    asked = bundle_model(
        densecap={
            "own_words": {"field": "", "sky": "xyzzy", "square": "cat"},
            "own_names": {"field square": "cat", "green field": "dog"},
        },
        aligner={},
    )  # fmt: skip
    shown = posteriors({"cat": 0.1}, {"cat": 0.09, "dog": 0.5}, {"cat": 0.09, "dog": 0.09})
    refused = PhraseWriter(asked.densecap, nouns=evidence(["dog", "cat"]))._refused(shown)
    assert refused is not None
    tokens = asked.densecap.vocabulary.tokens
    rows = [{tokens[word] for word in np.flatnonzero(row)} for row in refused]
    assert rows == [set(), {"square"}, {"field", "square"}]
    plain = model().densecap
    assert plain is not None and PhraseWriter(plain, nouns=evidence(["dog"]))._refused(shown) is None


def test_no_word_of_a_phrase_is_repeated_at_once_if_there_are_nouns():
    asked = model(nouns=False)
    assert asked.densecap is not None
    encoding = asked.encode(noise(96, 64))
    writers = [PhraseWriter(asked.densecap, nouns=nouns) for nouns in (None, evidence(("dog",)))]
    plain, clear = (detect(asked.densecap, [encoding], [BOXES], writer=writer)[0].captions for writer in writers)
    assert plain != clear and clear == tuple(without_stutter(text) for text in plain)


@pytest.mark.parametrize(
    ("phrase", "places", "wanted"),
    [
        ("a man in his red coat", {1}, "a person in their red coat"),
        ("two women and a boy", {1, 4}, "two people and a child"),
        ("a man and a woman", {4}, "a man and a person"),
        ("her hat", set(), "her hat"),
    ],
)
def test_words_for_a_sex_that_is_not_sure_become_person_or_child(phrase: str, places: set[int], wanted: str):
    assert " ".join(without_sex(phrase.split(), places)) == wanted


@pytest.mark.parametrize(
    ("phrase", "places", "wanted"),
    [
        ("a red apple", {1}, "an apple"),
        ("an orange cat", {1}, "a cat"),
        ("a black and white dog", {1}, "a dog"),
        ("a red car on a gray road", {5}, "a red car on a road"),
        ("a man in red", {3}, "a man in red"),
        ("a shirt that is white with blue dots", {4}, "a shirt that is white with blue dots"),
        ("an umbrella and a red hat", {4}, "an umbrella and a hat"),
        ("a man in a white helmet and blue helmet", {4, 7}, "a man in a helmet"),
        ("a red cup and a blue cup", {1, 5}, "a cup"),
        ("a red cup and", {1}, "a cup and"),
        ("a cup and a cup", set(), "a cup and a cup"),
    ],
)
def test_a_colour_that_is_not_sure_is_left_out_where_it_is_an_adjective(phrase: str, places: set[int], wanted: str):
    assert with_articles(" ".join(without_colours(phrase.split(), places))) == wanted


def test_an_orange_is_a_fruit_at_the_end_and_before_its_parts():
    assert colour_of(["a", "peeled", "orange"], 2) is None
    assert colour_of(["an", "orange", "slice"], 1) is None
    assert colour_of(["an", "orange", "shirt"], 1) == "orange"


@pytest.mark.parametrize(
    ("colour", "painted"),
    [
        ("red", (190, 30, 35)), ("blue", (40, 70, 170)), ("green", (50, 130, 60)), ("yellow", (235, 205, 50)),
        ("black", (25, 25, 27)), ("white", (238, 238, 236)), ("orange", (235, 120, 30)), ("pink", (235, 140, 175)),
    ],
)  # fmt: skip
def test_a_colour_is_named_by_the_pixels_of_its_box(colour: str, painted: tuple[int, int, int]):
    pixels = np.full((60, 80, 3), (120, 125, 110), np.uint8)
    pixels[10:50, 20:60] = painted
    for noun in ("shirt", "no such noun"):
        (log_probs,) = colour_names().log_probs(pixels, np.array([[20, 10, 60, 50]]), [noun])
        assert COLOUR_NAMES[int(log_probs.argmax())] == colour
        np.testing.assert_allclose(np.exp(log_probs).sum(), 1, rtol=1e-5)


def test_a_colour_that_is_usual_for_a_noun_becomes_more_probable_without_pixels():
    even = np.full((3, len(COLOUR_NAMES)), -np.log(len(COLOUR_NAMES)), np.float32)
    of_trees, of_any, unknown = colour_names().of_nouns(even, ["tree", "", "flurble"])
    assert of_trees[COLOUR_NAMES.index("green")] > even[0, 0] > of_trees[COLOUR_NAMES.index("purple")]
    np.testing.assert_allclose(np.exp(of_trees).sum(), 1, rtol=1e-5)
    np.testing.assert_allclose([of_any, unknown], even[:2], rtol=1e-5)


def test_the_noun_of_a_colour_is_the_last_word_before_the_next_part():
    phrase = "a man in a red and white rain coat with a blue bag on his back in gray"
    assert [noun_of(phrase.split(), place) for place in (4, 6, 11, 17)] == ["coat", "coat", "bag", ""]


def test_words_stay_where_they_are_probably_right_and_only_those():
    asked = model()
    doubted = described(asked, doubts=True)[1]
    places = [(row, doubt) for row, doubts in enumerate(doubted.phrases.doubtful) for doubt in doubts]
    assert {doubt.question for _, doubt in places} <= {"colour"}
    never, always = (Logistic(dict.fromkeys(QUESTIONS["colour"], 0.0), constant) for constant in (-9.0, 9.0))
    kept = described(asked, calibration=replace(Calibration(), colour=always))[1]
    for row, said in enumerate(kept.captions):
        words = doubted.captions[row].split()
        for doubt in doubted.phrases.doubtful[row]:
            words[doubt.place] = doubt.word
        assert said == with_articles(" ".join(words))
    gone = described(asked, calibration=replace(Calibration(), colour=never))[1]
    for row, said in enumerate(gone.captions):
        marked = {doubt.place for doubt in doubted.phrases.doubtful[row]}
        assert said == with_articles(" ".join(without_colours(doubted.captions[row].split(), marked)))
    np.testing.assert_array_equal(gone.confidence, kept.confidence)
    assert calibrated(box=(0.0, 0.0, 0.0, 0.0)).colour is None
