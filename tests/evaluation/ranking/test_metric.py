from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from saywhere.evaluation.ranking import Recall, rank, rank_matrix

SCORES = np.array(
    [
        [0.9, 0.1, 0.8, 0.2],  # sentences 0 and 1 are its own: the best is first
        [0.3, 0.7, 0.6, 0.5],  # sentence 2 is its own: one is better
        [0.2, 0.8, 0.9, 0.1],  # sentence 3 is its own: three are better
    ],
    np.float32,
)
OWNER = [0, 0, 1, 2]


def test_ranks_by_hand():
    result = rank_matrix(SCORES, OWNER)
    assert result.image_to_text == Recall(1 / 3, 1.0, 1.0, 2.0, 3)
    # images for each sentence: 0 is first; 1 stands behind two; 2 behind two; 3 behind two
    assert result.text_to_image == Recall(1 / 4, 1.0, 1.0, 3.0, 4)


def test_figures_in_json():
    assert rank_matrix(SCORES, OWNER).to_dict() == {
        "image_to_text": {"r1": 1 / 3, "r5": 1.0, "r10": 1.0, "median_rank": 2.0},
        "text_to_image": {"r1": 0.25, "r5": 1.0, "r10": 1.0, "median_rank": 3.0},
    }


def test_equal_scores_for_everything_earn_nothing():
    result = rank_matrix(np.zeros((20, 20), np.float32), np.arange(20))
    assert result.image_to_text == result.text_to_image == Recall(0.0, 0.0, 0.0, 20.0, 20)
    almost = rank_matrix((1 + 1e-6 * np.eye(20)).astype(np.float32), np.arange(20))
    assert almost == result


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert Recall.of([1, 2, 5, 9]).median_rank == 3.5
    assert Recall.of(np.zeros(0, int)) == Recall(0, 0, 0, 0, 0)


def test_an_image_without_sentences_is_not_a_query():
    result = rank_matrix([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], [0, 2])
    assert result.image_to_text.queries == 2 and result.image_to_text.r1 == 1.0


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_blocks_give_what_sorting_everything_gives(images, each, height, width, seed):
    owner = np.repeat(np.arange(images), each)
    scores = np.random.default_rng(seed).standard_normal((images, len(owner)), np.float32)
    rows = [slice(start, min(start + height, images)) for start in range(0, images, height)]
    columns = [slice(start, min(start + width, len(owner))) for start in range(0, len(owner), width)]
    parts = [(row, column, scores[row, column]) for row in rows for column in columns]
    result = rank(scores[owner, np.arange(len(owner))], owner, images, parts)
    by_image = [
        min(i + 1 for i, s in enumerate(np.argsort(-row).tolist()) if owner[s] == k) for k, row in enumerate(scores)
    ]
    by_sentence = [1 + np.argsort(-column).tolist().index(int(owner[s])) for s, column in enumerate(scores.T)]
    assert result.image_to_text == Recall.of(by_image)
    assert result.text_to_image == Recall.of(by_sentence)
