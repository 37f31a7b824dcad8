from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.evaluation.retrieval.metric import evaluate_retrieval, image_scores, sample_queries, source_ranks

INF = float("inf")


def sample(*phrases: tuple[str, ...]) -> Sample:
    """Boxes of width 1, 2, 3 ... with these phrases."""
    boxes = np.array([[0.0, 0, i + 1, 1] for i in range(len(phrases))]).reshape(-1, 4)
    return Sample(Path("x.jpg"), 9, 9, boxes, phrases)


RICH = sample(("a cat", "the cat"), ("A cat!", "..."), ("a dog",), ("two birds",), ("a tree", "a bush"))
POOR = sample(("a cat",), ("a dog",), ("the sky",), ("The  sky.",))


def test_queries_come_from_images_with_enough_phrases_and_differ_in_their_words():
    queries = sample_queries([POOR, RICH], ["poor", "rich"], 300, seed=0)
    assert {query.image for query in queries} == {"rich"}
    for query in queries:
        words = {phrase.lower().strip("!") for phrase in query.phrases}
        assert len(words) == 4 == len(query.boxes) and words <= {
            "a cat", "the cat", "a dog", "two birds", "a tree", "a bush"
        }  # fmt: skip
    asked = {(phrase, box[2]) for query in queries for phrase, box in zip(query.phrases, query.boxes, strict=True)}
    assert asked == {
        ("a cat", 1), ("the cat", 1), ("A cat!", 2), ("a dog", 3), ("two birds", 4), ("a tree", 5), ("a bush", 5)
    }  # fmt: skip


def test_each_image_asks_once_before_any_asks_again_and_a_seed_repeats_itself():
    names = list("abcde")
    queries = sample_queries([RICH] * 5, names, 12, seed=3)
    first = [query.image for query in queries]
    assert sorted(first[:5]) == sorted(first[5:10]) == names and first[:5] != first[5:10]
    assert queries == sample_queries([RICH] * 5, names, 12, seed=3)
    assert queries != sample_queries([RICH] * 5, names, 12, seed=4)


def test_without_enough_phrases_there_is_no_query():
    with pytest.raises(UserError, match="no image has 4 different phrases"):
        sample_queries([POOR], ["poor"], 1, seed=0)
    assert len(sample_queries([POOR], ["poor"], 1, seed=0, phrases=3)[0].phrases) == 3


def test_images_are_scored_by_the_mean_of_logarithms_or_of_probabilities():
    # One query of two phrases and two images: 0.9 and 0.01 against 0.4 and 0.4.
    log_probs = np.log([[[0.9, 0.4], [0.01, 0.4]]])
    clean, original = image_scores(log_probs), image_scores(log_probs, "original")
    assert original == pytest.approx(np.array([[0.455, 0.4]]))
    assert np.exp(clean) == pytest.approx(np.array([[0.009**0.5, 0.4]]))
    assert clean.argmax() == 1 and original.argmax() == 0


def test_equals_stand_before_the_own_image():
    scores = np.array([[3.0, 1, 2, 2], [0, 0, 0, 0], [1, 2, 3, 4], [-INF, -INF, -INF, 0]])
    assert source_ranks(scores, [2, 1, 3, 0]).tolist() == [3, 4, 1, 4]


def test_the_figures_of_three_queries_by_hand():
    # Two phrases each. The own image is 1st, 2nd and 3rd of three.
    log_probs = np.tile([-1.0, -2, -3], (3, 2, 1))
    truths = np.tile([0.0, 0, 10, 10], (3, 2, 1))
    found = truths.copy()
    found[..., 2] = [[10, 5], [3, 1], [0, 2]]  # IoU 1, .5, .3, .1, 0, .2
    result = evaluate_retrieval(log_probs, found, [0, 1, 2], truths)
    assert (result.images, result.queries, result.protocol) == (3, 3, "clean")
    assert [result.r1, result.r5, result.r10, result.median_rank] == pytest.approx([1 / 3, 1, 1, 2])
    # More than the threshold: the 0.5 and the 0.1 do not count, nor does a 0.3 in doubles.
    assert result.iou_recall == pytest.approx({"0.1": 4 / 6, "0.3": 2 / 6, "0.5": 1 / 6})
    assert result.median_iou == pytest.approx(0.25)
