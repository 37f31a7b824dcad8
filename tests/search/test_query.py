"""Queries as they are typed."""

from __future__ import annotations

import pytest

from saywhere import UserError
from saywhere.search import Query


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("a dog in the snow", ["a dog in the snow"], []),
        ("a dog + snow - people", ["a dog", "snow"], ["people"]),
        ("  + a dog   -  a t-shirt + well-known", ["a dog", "well-known"], ["a t-shirt"]),
        ("rock+roll -5", ["rock+roll -5"], []),
        ("a cat -people in a house +snow", ["a cat", "snow"], ["people in a house"]),
        ("+a cat -t-shirt", ["a cat"], ["t-shirt"]),
        ("a cat --people", ["a cat --people"], []),
    ],
)
def test_signs_after_a_space_part_phrases(text: str, wanted: list[str], unwanted: list[str]) -> None:
    query = Query.parse(text)
    assert (list(query.wanted), list(query.unwanted)) == (wanted, unwanted)
    assert list(query.phrases) == wanted + unwanted


@pytest.mark.parametrize(
    ("text", "message"),
    [("- people", "a phrase that is wanted"), ("", "has no word"), ("a dog +", "has no word"), ("a - ...", "'...'")],
)
def test_a_query_without_words_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Query.parse(text)
