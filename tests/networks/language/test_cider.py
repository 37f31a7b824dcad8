from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from saywhere.networks.captioner.loss import Cider

SENTENCE = st.lists(st.integers(4, 9), min_size=1, max_size=9)
IMAGE = st.tuples(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=4))


def as_text(token_ids):
    return " ".join(map(str, token_ids))


@settings(deadline=None, max_examples=60)
@given(st.lists(IMAGE, min_size=1, max_size=6))
def test_it_is_pycocoevalcap_s_on_its_own_corpus(images):
    theirs = CiderScorer()
    for candidate, references in images:
        theirs += (as_text(candidate), [as_text(reference) for reference in references])
    _, each = theirs.compute_score()
    cider = Cider([references for _, references in images])
    assert [cider.score(candidate, references) for candidate, references in images] == pytest.approx(
        list(each), abs=1e-9
    )


def test_a_sentence_of_words_that_only_its_image_has_is_worth_ten():
    cider = Cider([[[4, 5, 6, 7, 8]], [[9, 10, 11, 12]]])
    assert math.isclose(cider.score([4, 5, 6, 7, 8], [[4, 5, 6, 7, 8]]), 10)
    assert cider.score([9, 10, 11, 12], [[4, 5, 6, 7, 8]]) == 0
    assert 0 < cider.score([4, 5, 6, 7], [[4, 5, 6, 7, 8]]) < 10


def test_an_empty_sentence_and_no_references_score_nothing():
    cider = Cider([[[4, 5]], [[6]]])
    assert cider.score([], [[4, 5]]) == 0
    assert cider.score([4, 5], []) == 0
    assert Cider([]).score([4], [[4]]) == 0
