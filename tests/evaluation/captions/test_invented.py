from __future__ import annotations

import pytest

from saywhere.evaluation.captions.invented import count_invented
from saywhere.models.noun_tree import NounTree, find_nouns, noun_tree

TREE = NounTree(
    [
        "n1\tclass\tdog\tcount\tdog, puppy\tn9",
        "n2\tclass\thot dog\tcount\thot dog\t",
        "n3\tclass\tcat\tcount\tcat\tn9",
        "n9\tgroup\tanimal\tcount\tanimal\t",
    ]
)


def names(text: str) -> list[str]:
    return [noun.name for noun in find_nouns(text, TREE)]


def test_nouns_are_found_in_order_and_of_longer_names_the_longest():
    assert names("Two puppies and a cat look at a hot dog, a dog.") == ["dog", "cat", "hot dog", "dog"]
    assert names("nothing here") == []


def test_a_noun_is_invented_if_nobody_names_it_a_kind_of_it_or_what_it_is_a_kind_of():
    captions = {"a": "a cat and a dog", "b": "an animal near a hot dog", "c": "a red thing"}
    mentions = {"a": ["an animal"], "b": ["a puppy", "grass"], "c": ["a dog"]}
    found = count_invented(captions, mentions, TREE)
    assert found.nouns == pytest.approx(1 / 4) and found.sentences == pytest.approx(1 / 3)
    assert count_invented({"c": ""}, {"c": []}, TREE).nouns == 0


def test_people_may_be_called_by_what_kind_of_people_they_are():
    found = count_invented({"a": "a man on a bench"}, {"a": ["a person", "a zebra"]}, noun_tree())
    assert found.nouns == pytest.approx(1 / 2)
