"""Which of several hypotheses is chosen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from tiny_captioner import VOCABULARY

from saywhere.configs.captioner import CaptionerConfig, NgramsConfig
from saywhere.engines.arrays.ngrams import Ngrams
from saywhere.models.choice import Judge, choose
from saywhere.models.decoding import Hypotheses
from saywhere.text import END, PAD

TEXTS = ("a dog runs", "a man", "the sky is blue")
"""Of two images the same, in this order of probability."""
RANKS = np.array([[-1.0, -1.1, -1.2]] * 2, np.float32)


def hypotheses(texts: tuple[str, ...] = TEXTS) -> Hypotheses:
    rows = [[*VOCABULARY.encode(text), END] for text in texts]
    token_ids = np.array([[row + [PAD] * (8 - len(row)) for row in rows]] * 2)
    return Hypotheses(token_ids, np.zeros(token_ids.shape, np.float32), RANKS[:, : len(texts)])


def captioner(said: tuple[str, ...] = (), **options: float) -> Any:
    """One that expects these words of its two images, whose embeddings are 1 and -1 in their first number."""
    config = CaptionerConfig(ngrams=replace(NgramsConfig(), **options))
    if not said:
        return SimpleNamespace(config=config, vocabulary=VOCABULARY, ngrams=None)
    ids = np.array([VOCABULARY.encode(word)[0] for word in said])
    signs = np.where(np.arange(len(said)) % 2, -9, 9)[:, None]  # the first of the first image, the second of the other
    arrays = {"keys": signs, "offsets": np.zeros(len(said)), "rarity": np.ones(len(said))}
    arrays |= {"lengths": np.ones(len(said)), "token_ids": ids}
    known = Ngrams.unpack(np.ones((1, 1), np.float32), np.zeros(1, np.float32), arrays, len(VOCABULARY))
    return SimpleNamespace(config=config, vocabulary=VOCABULARY, ngrams=known)


EMBEDDINGS = np.array([[1.0], [-1.0]], np.float32)


def test_without_anything_else_the_likeliest_is_chosen():
    np.testing.assert_array_equal(choose(captioner(), EMBEDDINGS, hypotheses(), []), RANKS)


def test_what_people_would_say_of_each_image_is_chosen():
    ranks = choose(captioner(("blue", "man"), weight=20.0), EMBEDDINGS, hypotheses(), [])
    assert ranks.argmax(axis=1).tolist() == [2, 1]
    np.testing.assert_allclose(ranks[:, 0], -1)  # it has none of these words


def test_judges_are_added_by_their_weights():
    fits = [np.array([0.0, 3.0, 1.0]), np.array([0.0, 1.0, 1.5])]
    asked: list[Any] = []

    def judge(texts):
        asked.append(texts)
        return fits

    ranks = choose(captioner(), EMBEDDINGS, hypotheses(), [Judge(judge, 0.5), Judge(judge, 0.1)])
    assert asked == [[list(TEXTS)] * 2] * 2
    np.testing.assert_allclose(ranks, RANKS + 0.6 * np.array(fits, np.float32), rtol=1e-6)


def test_only_the_best_may_be_judged_as_the_n_grams_and_other_judges_rank_them():
    said: list[Any] = []

    def judge(texts):
        said.extend(texts)
        return [np.array([0.0, 5.0])] * 2

    known = captioner(("blue", "man"), weight=20.0)
    ranks = choose(known, EMBEDDINGS, hypotheses(), [Judge(judge, 1.0, 2)])
    assert [sorted(texts) for texts in said] == [["a dog runs", "the sky is blue"], ["a dog runs", "a man"]]
    assert np.isneginf(ranks).tolist() == [[False, True, False], [False, False, True]]
    said.clear()
    first = Judge(lambda texts: [np.array([0.0, 9.0, 0.0])] * 2, 9.0)
    choose(known, EMBEDDINGS, hypotheses(), [first, Judge(judge, 1.0, 2)])
    assert [sorted(texts) for texts in said] == [["a man", "the sky is blue"], ["a dog runs", "a man"]]


def test_one_hypothesis_is_not_judged_and_an_empty_one_is_not_shown():
    def judge(texts):
        assert texts == [["a man"]] * 2
        return [np.array([2.0])] * 2

    alone = hypotheses(("a dog runs",))
    np.testing.assert_array_equal(
        choose(captioner(("dog", "man")), EMBEDDINGS, alone, [Judge(judge, 1.0)]), RANKS[:, :1]
    )
    ranks = choose(captioner(), EMBEDDINGS, hypotheses(("", "a man")), [Judge(judge, 1.0)])
    np.testing.assert_allclose(ranks, RANKS[:, :2] + [0, 2])
