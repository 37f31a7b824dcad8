"""Sentences cut into phrases, by the bundled weights and by weights made by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from refusals import refuses

from saywhere.models.chunker import BEGIN, BEGIN_HIDDEN, INSIDE, INSIDE_HIDDEN, OUTSIDE, Chunker, hash_words, spans
from saywhere.models.nouns import noun_tree, plural
from saywhere.text import split_words, tokenize


def cut(text: str) -> list[str]:
    return [phrase.words for phrase in Chunker.load().chunk(text) if phrase.visible]


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("a man in a red shirt and a dog on the grass", ["a man", "a red shirt", "a dog", "the grass"]),
        ("A woman in an orange suit in front of a flag.", ["A woman", "an orange suit", "a flag"]),
        ("Two dogs, a cat and three horses run.", ["Two dogs", "a cat", "three horses"]),
        ("a giraffe", ["a giraffe"]),
        ("A boy throws a ball to him.", ["A boy", "a ball"]),
        ("A man in a white t-shirt next to a road sign", ["A man", "a white t shirt", "a road sign"]),
        ("a merry-go-round and a jack-o-lantern", ["a merry go round", "a jack o lantern"]),
        ("a ten-year-old boy - dogs -", ["a ten year old boy", "dogs"]),
        ("", []),
        ("dog, cat", ["dog", "cat"]),
        ("red car, dogs, cats; and horses", ["red car", "dogs", "cats", "horses"]),
        ("beach, sunset", ["beach", "sunset"]),
        ("dogs & cats", ["dogs", "cats"]),
        ("kangaroo, dog, cat", ["kangaroo", "dog", "cat"]),
        ("television, man, chair, lamp", ["television", "man", "chair", "lamp"]),
        ("man; chair; television", ["man", "chair", "television"]),
        ("dog/pizza | bus", ["dog", "pizza", "bus"]),
        ("dog and pizza", ["dog", "pizza"]),
        ("a chair and surfboard", ["a chair", "surfboard"]),
        ("kitchen, oven", ["kitchen", "oven"]),
        ("living room, fireplace, a cat", ["living room", "fireplace", "a cat"]),
        ("street, rain, umbrella", ["street", "rain", "umbrella"]),
        ("ladder, stool", ["ladder", "stool"]),
        ("a big, city bus", ["a big city bus"]),
        ("a small, brown dog", ["a small brown dog"]),
        ("an orange, white and blue shirt", ["an orange white and blue shirt"]),
        ("an orange and white cat", ["an orange and white cat"]),
        ("a silver or grey car", ["a silver or grey car"]),
        ("an orange and a red apple", ["an orange", "a red apple"]),
        ("an orange and banana", ["an orange", "banana"]),
        ("a man in a hat, dog on a bed", ["a man", "a hat", "dog", "a bed"]),
        ("a broken window", ["a broken window"]),
        ("a man with a smooth violin", ["a man", "a smooth violin"]),
        ("fallen red umbrellas and a dog", ["fallen red umbrellas", "a dog"]),
        ("grazing zebras, a lion", ["grazing zebras", "a lion"]),
        ("painted the wall", ["the wall"]),
        ("a broken, red window", ["a broken red window"]),
        ("a biker bikes down the road", ["a biker", "the road"]),
        ("a man has opened a door", ["a man", "a door"]),
    ],
)
def test_phrases_are_cut_as_people_cut_them(text, phrases):
    assert cut(text) == [phrase.lower() for phrase in phrases]


def test_a_phrase_says_where_its_words_are():
    text = "A man, in a red shirt"
    for phrase in Chunker.load().chunk(text):
        assert phrase.words == " ".join(tokenize(text)[phrase.start : phrase.stop])


SINGULAR = [
    "a N", "one N", "the red N", "a N in a field", "N", "N and a dog", "a man and a N", "a big brown N on the grass",
    "the N on the left", "his N", "a N near a house", "a photo of a N", "the N on the table", "a N and a man",
]  # fmt: skip
PLURAL = [
    "two Ns", "Ns", "three Ns in a field", "the Ns", "some Ns", "two red Ns", "a man and two Ns", "many Ns",
    "several Ns on a table", "Ns and a dog",
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "many"), [*((p, False) for p in SINGULAR), *((p, True) for p in PLURAL)])
def test_no_phrase_is_cut_off_from_its_noun(pattern, many):
    """All names of the tree; those with hyphens are several words of a text, and no name of it."""
    wrong = []
    for noun in noun_tree().nouns:
        if "-" in noun.name or noun.use not in (
            ("count", "plural") if many or pattern[0] == "N" else ("count", "mass")
        ):
            continue
        name = plural(noun.name) if many and noun.use == "count" else noun.name
        found = cut(pattern.replace("Ns", name).replace("N", name))
        before = pattern.partition("N")[0].rpartition("and ")[2].removeprefix("a photo of ")
        if not any(f" {before}{name} " in f" {phrase} " for phrase in found):
            wrong.append((name, found))
    assert not wrong


PARTICIPLES = (
    "bent boiled broken burnt carved closed cooked cracked fallen folded frozen lit opened painted parked stolen"
)


@pytest.mark.parametrize(
    "pattern", ["a P N", "a man with a P N", "a P N on the street", "the P N", "P Ns", "two P Ns", "a man and two P Ns"]
)
def test_no_participle_is_cut_off_from_its_noun(pattern):
    things = ["window", "lake", "bicycle", "umbrella", "house", "pizza"]
    pairs = [(participle, name) for participle in PARTICIPLES.split() for name in things]
    texts = {pair: pattern.replace("P", pair[0]).replace("N", pair[1]) for pair in pairs}
    wanted = pattern.removeprefix("a man with ").removeprefix("a man and ").removesuffix(" on the street")
    phrases = {pair: wanted.replace("P", pair[0]).replace("N", pair[1]) for pair in pairs}
    assert {pair: found for pair in pairs if phrases[pair] not in (found := cut(texts[pair]))} == {}


def test_a_name_does_not_join_what_punctuation_parts():
    assert cut("two, sheep") != ["two sheep"]
    assert cut("A man watches a dog.") == ["a man", "a dog"]


def test_what_names_nothing_visible_is_said():
    phrases = Chunker.load().chunk("Two dogs look at each other.")
    assert [(phrase.words, phrase.visible) for phrase in phrases] == [("two dogs", True), ("each other", False)]


def test_tags_and_phrases():
    tags = [BEGIN, INSIDE, OUTSIDE, BEGIN_HIDDEN, INSIDE_HIDDEN, BEGIN, BEGIN]
    assert spans(tags) == [(0, 2, True), (3, 5, False), (5, 6, True), (6, 7, True)]
    assert spans([]) == []


def test_a_later_word_follows_a_first_one():
    weights = np.zeros((16, 5), np.float32)
    weights[:, INSIDE] = 2
    weights[:, BEGIN] = 1
    assert [phrase.words for phrase in Chunker(weights).chunk("red shirt green")] == ["red shirt green"]


def test_features_depend_on_the_words_and_the_punctuation_around():
    rows = {text: hash_words(*split_words(text), 1 << 16) for text in ("a man a dog", "a man, a dog", "a man a cat")}
    plain, comma, other = rows.values()
    assert plain.shape == comma.shape == (4, plain.shape[1])
    assert (plain[0] == comma[0]).all() and (plain[1] != comma[1]).any() and (plain[2] != comma[2]).any()
    assert (plain[0] == other[0]).all() and (plain[2] != other[2]).any()


def test_weights_are_kept(tmp_path):
    weights = np.random.default_rng(0).integers(-9, 9, (64, 5)).astype(np.float32)
    Chunker(weights).save(tmp_path / "a" / "chunker.npz")
    assert (Chunker.load(tmp_path / "a" / "chunker.npz").weights == weights).all()


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "c.npz"
    refuses(r"c\.npz: cannot be read \(No such file", Chunker.load, path)
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    for data in (b"", b"no archive", b"PK\3\4no archive", stream.getvalue()):
        path.write_bytes(data)
        refuses(r"c\.npz is not a chunker", Chunker.load, path)
    np.savez(path, weights=np.zeros((3, 5)))
    refuses(r"its weights are \(3, 5\) of float64", Chunker.load, path)
