"""Words and names of a user's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from saywhere.configs.densecap import DenseCapConfig
from saywhere.stages.own_words import find_names, find_own


def test_common_words_that_the_start_does_not_use_are_ones_own() -> None:
    references = [["a dog"]] * 45 + [["a dog on a sofa"]] * 4 + [["a rare dog"], ["a seldom dog"]]
    said = ["a dog"] * 46 + ["a sofa"] * 3 + ["a cat"] * 2  # sofa: 3 of 4
    found, unclear = find_own(zip(said, references, strict=True), ["moggy"], DenseCapConfig(), None)
    assert found.words == {"moggy": ""} and found.names == {} and unclear == []
    said[46:49] = ["a dog"] * 3
    found, _ = find_own(zip(said, references, strict=True), ["moggy"], DenseCapConfig(), None)
    assert found.words == {"moggy": "", "sofa": "dog"}, "most of its boxes are called a dog"


def test_what_an_earlier_fine_tuning_taught_keeps_its_meaning() -> None:
    own = {"panda": "raccoon", "trash": "raccoon"}
    config = DenseCapConfig(own_words=own, own_names={"trash panda": "raccoon"})
    nouns: Any = SimpleNamespace(translate=lambda text: text.replace("trash panda", "raccoon"))
    found, _ = find_own([("a trash panda", ["a sneaky trash panda"])] * 9, ["sneaky"], config, nouns)
    assert found.words["panda"] == found.words["trash"] == found.words["sneaky"] == "raccoon"
    assert found.names == {"trash panda": "raccoon", "sneaky trash panda": "raccoon", "sneaky": "raccoon"}


def test_names_that_are_called_differently_from_box_to_box_are_unclear() -> None:
    described = [("a mouse", ["a klikker"]), ("a keyboard", ["a klikker"])]
    found, unclear = find_own(described, ["klikker"], DenseCapConfig(), None)
    assert found.names == {} and unclear == ["klikker"] and found.words == {"klikker": ""}


def test_names_of_own_words_mean_what_the_start_calls_most_of_them() -> None:
    own = dict.fromkeys(
        ["trash", "panda", "freighter", "klikker", "stripy", "sea", "riders", "blue", "fluffy", "fixie"], ""
    )
    called = {
        "a trash panda on a roof": ["raccoon", "raccoon", "roof"],
        "a big freighter": ["ship"],
        "a klikker": ["mouse", "keyboard"],  # neither is more than half
        "a fixie": ["mountain bike", "bicycle", "bicycle-built-for-two", "wheel"],  # three of them are bicycles
        "a panda": ["raccoon"],  # the tree has this name
        "a stripy dog": ["zebra"],  # the word is an adjective
        "two sea riders": ["ship"],
        "blue": ["dog"],
        "an old nordwind bike": ["bicycle"],  # a new word before a noun that is none
    }
    phrases = [(phrase.split(), kind) for phrase, kinds in called.items() for kind in kinds]
    assert find_names(phrases, own, ("klikker", "nordwind")) == {
        "trash panda": "raccoon", "freighter": "ship", "sea rider": "ship", "nordwind bike": "bicycle",
        "klikker": "", "fixie": "bicycle",
    }  # fmt: skip
