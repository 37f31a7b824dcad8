from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from saywhere.language.cider import Cider

SENTENCE = st.lists(st.integers(4, 9), min_size=1, max_size=9)
PICTURE = st.tuples(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=4))


def as_text(words):
    return " ".join(map(str, words))


@settings(deadline=None, max_examples=60)
@given(st.lists(PICTURE, min_size=1, max_size=6))
def test_it_is_pycocoevalcap_s_on_its_own_corpus(pictures):
    theirs = CiderScorer()
    for said, references in pictures:
        theirs += (as_text(said), [as_text(words) for words in references])
    _, each = theirs.compute_score()
    cider = Cider([references for _, references in pictures])
    assert [cider.score(said, references) for said, references in pictures] == pytest.approx(list(each), abs=1e-9)


def test_a_sentence_of_words_that_only_its_picture_has_is_worth_ten():
    cider = Cider([[[4, 5, 6, 7, 8]], [[9, 10, 11, 12]]])
    assert math.isclose(cider.score([4, 5, 6, 7, 8], [[4, 5, 6, 7, 8]]), 10)
    assert cider.score([9, 10, 11, 12], [[4, 5, 6, 7, 8]]) == 0
    assert 0 < cider.score([4, 5, 6, 7], [[4, 5, 6, 7, 8]]) < 10


def test_nothing_said_and_nothing_to_compare_with_are_worth_nothing():
    cider = Cider([[[4, 5]], [[6]]])
    assert cider.score([], [[4, 5]]) == 0
    assert cider.score([4, 5], []) == 0
    assert Cider([]).score([4], [[4]]) == 0
