"""The tree of nouns: phrases lead to nodes, nodes to what is below them."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from saywhere.models.nouns import (
    KEPT,
    LEAF_BITS,
    NARROWER,
    NO_LEAF,
    ROLE,
    NounTree,
    find_heads,
    find_names,
    find_nouns,
    is_right,
    kind_of,
    leaf_tables,
    log_kinds,
    noun_tree,
    pack_leaves,
    packed_kinds,
    plural,
    plurals,
    singulars,
    with_singulars,
)
from saywhere.text import tokenize

TREE = noun_tree()


@pytest.mark.parametrize(
    ("phrase", "name"),
    [
        ("a dog", "dog"),
        ("two puppies on the grass", "dog"),
        ("a black and white dog", "dog"),
        ("a man and a dog", "man"),
        ("a glass of beer", "glass"),
        ("a bunch of bananas", "banana"),
        ("a group of people", "person"),
        ("two plates of pizza", "pizza"),
        ("a man in a red shirt", "man"),
        ("a woman holding an umbrella", "woman"),
        ("a brick building", "building"),
        ("hot dogs", "hot dog"),
        ("a sofa", "couch"),
        ("the tv monitor", "tv"),
        ("a kite", "kite"),
        ("men", "man"),
        ("an animal", "animal"),
        ("a vehicle", "vehicle"),
        ("fruit", "fruit"),
        ("a whale", "whale"),
        ("a dog chased by a cat", "dog"),
        ("a coffee maker", "coffee maker"),
        ("white trainers", "shoe"),
        ("a trainer", "person"),
        ("two soccer players", "person"),
        ("a security guard", "person"),
        ("a batter", "baseball player"),
        ("a guard with a record player", "person"),
        ("a toy soldier", "toy"),
        ("a window washer", "person"),
        ("a meal of fruit", "fruit"),
        ("a sea turtle", "turtle"),
        ("two dolphins", "dolphin"),
        ("wooden bridges", "bridge"),
        ("a red hydrant", "fire hydrant"),
        ("a bunny", "rabbit"),
        ("a running dog", "dog"),
        ("a big black jumping dog in the grass", "dog"),
        ("a happy smiling girl with a hat", "girl"),
        ("two sleeping cats", "cat"),
        ("the smiling face of a man", "face"),
        ("a black folding chair on wheels", "folding chair"),
        ("a dog chasing cats", "dog"),
        ("a woman holding umbrellas", "woman"),
        ("a car parked on the street", "car"),
        ("a black motorcycle seen from behind", "motorcycle"),
        ("a person partly hidden by a sign", "person"),
        ("a fly seen in a web", "fly"),
        ("a broken parked car", "car"),
        ("a window broken by a ball", "window"),
        ("a tree fallen on a car", "tree"),
    ],
)
def test_a_phrase_leads_to_its_noun(phrase: str, name: str) -> None:
    noun = TREE.find(phrase)
    assert noun.name == name


@pytest.mark.parametrize(
    "phrase", ["a white dog", "more dogs", "the great dog", "a dog in the same colors", "a dry dog"]
)
def test_words_that_are_no_nouns_here_name_nobody(phrase: str) -> None:
    """WordNet's first nouns of white, more, great, same and dry are people, and of colors a flag."""
    assert [noun.name for noun in find_nouns(phrase, TREE)] == ["dog"]


@pytest.mark.parametrize(
    "phrase",
    ["", "of", "something else", "xyzzy", "a stroller", "a ladder", "a trailer", "popcorn", "a pizza cutter",
     "black chaps", "an ice maker", "a captive", "a record player", "two DVD players", "a Blu-ray player",
     "shin guards", "a table runner", "cake batter", "a dream catcher", "a baby carrier"],
)  # fmt: skip
def test_a_phrase_without_a_known_noun(phrase: str) -> None:
    assert TREE.find(phrase) is None


def test_a_name_that_leads_nowhere_is_one_name_of_which_nothing_is_known() -> None:
    words = tokenize("a man at two old record players with a cat")
    heads = find_names(words, TREE)
    assert [words[head.start : head.stop] for head in heads] == [["man"], ["record", "players"], ["cat"]]
    assert [head.noun for head in heads if head not in find_heads(words, TREE)] == [None]
    assert heads[1].noun is None
    assert heads[1].plural
    assert TREE.named("record player") is None
    assert "record player" not in dict(TREE.names())
    assert [noun.name for noun in find_nouns(" ".join(words), TREE)] == ["man", "cat"]


def test_the_head_says_where_the_noun_is_and_its_number() -> None:
    words = tokenize("three big hot dogs on a plate")
    head = TREE.head(words)
    assert words[head.start : head.stop] == ["hot", "dogs"]
    assert head.plural
    assert TREE.head(["a", "xyzzy", "in", "red"]).start == 1


@pytest.mark.parametrize(
    ("phrase", "noun"),
    [
        ("a ceiling with lights", "ceiling"),
        ("a white painting", "painting"),
        ("a xyzzy chasing a dog", "xyzzy"),
        ("a xyzzy playing football", "xyzzy"),
        ("a xyzzy running on grass", "xyzzy"),
    ],
)
def test_the_head_of_an_unknown_noun_is_no_article_and_no_object_of_its_verb(phrase: str, noun: str) -> None:
    words = tokenize(phrase)
    head = TREE.head(words)
    assert (words[head.start : head.stop], head.noun) == ([noun], None)


def test_a_role_is_a_small_share_of_people_and_other_nouns_name_all_that_they_lead_to() -> None:
    roles = ("a nurse", "two soldiers", "a young nun", "a bride in white", "surfers")
    others = ("a person", "people", "adults", "a man", "two girls", "a dog", "xyzzy", "a child")
    assert {*map(TREE.share, roles)} == {ROLE} == {0.05} and {*map(TREE.share, others)} == {1}


@pytest.mark.parametrize(
    ("phrase", "kind"),
    [("a sparrow", "bird"), ("two blue mugs", "cup"), ("the mug on a table", "cup"), ("a house sparrow", "bird"),
     ("a flask of water", "bottle"), ("a flock of gulls", "bird"), ("a pair of slippers", "shoe"), ("gulls", "bird"),
     ("a glass of water", "glass"), ("a group of people", "person"), ("a couple of xyzzy", None), ("of", None),
     ("a dog", "dog"), ("xyzzy", None), ("a", None), ("kitchen", None)],
)  # fmt: skip
def test_a_narrower_noun_is_judged_as_its_kind(phrase: str, kind: str | None) -> None:
    found = TREE.find_kind(phrase)
    assert (None if found is None else found.name) == kind


@pytest.mark.parametrize(
    ("phrase", "wider"),
    [("a sparrow", "a bird"), ("two blue mugs on a table", "two blue cups on a table"), ("an alligator", "a crocodile"),
     ("a flask of water", "a bottle of water"), ("a flock of gulls", "a flock of birds"), ("a dog", None)],
)  # fmt: skip
def test_a_narrower_noun_is_widened_to_its_kind(phrase: str, wider: str | None) -> None:
    assert TREE.widened(phrase) == wider


@pytest.mark.parametrize(
    ("phrase", "pair"),
    [("two flocks of gulls", ("gull", "bird")), ("Mugs", ("mug", "cup")), ("a bird", None), ("", None)],
)
def test_a_narrower_noun_is_named_with_its_kind(phrase: str, pair: tuple[str, str] | None) -> None:
    assert TREE.narrower(phrase) == pair


def test_narrower_nouns_are_no_names_of_the_table_and_their_kinds_are() -> None:
    assert {TREE.named(word) for word in NARROWER} == {None}
    assert None not in {TREE.named(kind) for kind in NARROWER.values()}


def test_leaves_add_up_the_tree() -> None:
    dog, animal, chair = (TREE.find(name) for name in ("dog", "animal", "chair"))
    assert set(dog.leaves) < set(animal.leaves)
    assert set(dog.leaves).isdisjoint(chair.leaves)
    assert animal.row in dog.ancestors
    poodle = TREE.find("a standard poodle")
    assert poodle is not None and poodle.row in dog.leaves
    entry = TREE.entry(poodle)
    assert entry is not None and entry.name == "dog"


def test_the_table_is_whole() -> None:
    assert [noun.sort for noun in TREE.nouns[:1000]] == ["class"] * 1000
    assert TREE.leaves == sum(noun.sort != "group" for noun in TREE.nouns)
    assert all(len(noun.leaves) for noun in TREE.nouns)
    names = [noun.name for noun in TREE.nouns if noun.sort == "kind"]
    assert len(set(names)) == len(names)
    assert [TREE.named(name).name for name in names] == names  # pyright: ignore[reportOptionalMemberAccess]


def test_a_wrong_table_is_refused() -> None:
    with pytest.raises(ValueError, match="a noun has a synset"):
        NounTree(["n1\tclass\tdog"])


@pytest.mark.parametrize(
    ("one", "many"),
    [("dog", "dogs"), ("hot dog", "hot dogs"), ("man", "men"), ("policeman", "policemen"), ("bus", "buses"),
     ("berry", "berries"), ("toy", "toys"), ("person", "people"), ("scissors", "scissors"), ("knife", "knives"),
     ("bookshelf", "bookshelves"), ("goldfish", "goldfish"), ("potato", "potatoes"), ("piano", "pianos"),
     ("cactus", "cacti"), ("human", "humans"), ("grandchild", "grandchildren"), ("fox", "foxes"), ("beach", "beaches"),
     ("ottoman", "ottomans"), ("mongoose", "mongooses")],
)  # fmt: skip
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many
    assert singulars(many.split()[-1])[0] == one.split()[-1]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a boat with a long masts", "a boat with a long mast"),
        ("a white boats lies on a black chairs", "a white boat lies on a black chair"),
        ("a dog on a hind legs", "a dog on a hind leg"),
        ("a bird flies over a few birds and a dog's toys", None),
        ("a pair of scissors beside a glasses", None),
        ("an apple, two apples and some apples", None),
        ("a", None),
    ],
)
def test_a_plural_after_a_is_a_singular(said: str, kept: str | None) -> None:
    assert with_singulars(said, TREE) == (kept or said)


def test_other_plurals_are_read_too() -> None:
    assert plurals("cactus") == ["cacti", "cactuses"]
    assert plurals("young woman")[0] == "young women"
    assert TREE.named("fishes") is None, "a verb"
    words = ("potatoes", "volcanoes", "volcanos", "flamingoes", "bookshelves", "hippopotami", "fish")
    nouns = [TREE.find(f"two {word} in a row") for word in words]
    names = ["potato", "volcano", "volcano", "flamingo", "shelf", "hippopotamus", "fish"]
    assert [noun and noun.name for noun in nouns] == names
    assert TREE.narrower("two cacti") == TREE.narrower("two cactuses") == ("cactus", "potted plant")


@pytest.mark.parametrize(
    ("said", "truth", "right"),
    [
        ("a dog", "a dog", True),
        ("two puppies", "a dog", True),
        ("a man", "a person", True),
        ("a person", "a man", False),
        ("a dog", "a standard poodle", True),
        ("an animal", "a dog", False),
        ("a sofa", "a couch", True),
        ("a blue xyzzy", "the xyzzy", True),
        ("a cat", "the xyzzy", False),
        (None, "a dog", False),
    ],
)
def test_when_a_noun_is_right(said: str | None, truth: str, right: bool) -> None:
    assert is_right(TREE, said, (truth,)) is right


def test_a_node_is_right_like_a_phrase() -> None:
    assert is_right(TREE, TREE.find("dog"), ("a cat", "a big dog"))
    assert kind_of(TREE, "two standard poodles in snow") == "dog"
    assert kind_of(TREE, "a blue xyzzy") == "xyzzy"


def test_all_threads_have_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    together, made = threading.Barrier(4), list[NounTree]()

    @functools.cache
    def read() -> NounTree:
        made.append(NounTree([]))
        threading.Event().wait(0.05)  # others ask meanwhile
        return made[-1]

    def ask(_: int) -> NounTree:
        together.wait()
        return noun_tree()

    monkeypatch.setattr("saywhere.models.nouns._noun_tree", read)
    with ThreadPoolExecutor(4) as pool:
        assert len({id(tree) for tree in pool.map(ask, range(4))}) == len(made) == 1


def test_what_is_kept_of_the_classes_says_nearly_the_same() -> None:
    tree = noun_tree()
    posterior = np.random.default_rng(0).dirichlet(np.full(tree.leaves, 0.001), 40).astype(np.float32)
    nouns = [tree.find("a dog"), None, tree.find("an animal"), tree.find("a pizza")]
    found = log_kinds(packed_kinds(pack_leaves(posterior), leaf_tables(nouns)))
    for column, noun in enumerate(nouns):
        whole = np.zeros(40) if noun is None else posterior[:, noun.leaves].sum(axis=1)
        sure = whole > 0.3
        np.testing.assert_allclose(found[sure, column], np.log(whole[sure]), atol=0.3)
        np.testing.assert_allclose(found[whole < 1e-5, column], np.log(1e-4), atol=0.1)
    assert (found[:, 0] > -1.5).sum() >= 4
    nothing = np.full((2, KEPT), NO_LEAF, np.uint16)
    assert log_kinds(packed_kinds(nothing, leaf_tables(nouns))) == pytest.approx(np.log(1e-4))
    assert tree.leaves <= 1 << LEAF_BITS
