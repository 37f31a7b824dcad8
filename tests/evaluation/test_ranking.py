from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere.evaluation.ranking import Recall, rank, rank_matrix
from saywhere.evaluation.ranking_report import write_ranking_report
from saywhere.evaluation.ranking_run import rank_embedded
from saywhere.models.alignment import PictureVectors, SentenceVectors
from saywhere.models.alignment_score import pair_scores

SCORES = torch.tensor(
    [
        [0.9, 0.1, 0.8, 0.2],  # sentences 0 and 1 are its own: the best is first
        [0.3, 0.7, 0.6, 0.5],  # sentence 2 is its own: one is better
        [0.2, 0.8, 0.9, 0.1],  # sentence 3 is its own: three are better
    ]
)
OWNER = torch.tensor([0, 0, 1, 2])


def test_ranks_by_hand():
    result = rank_matrix(SCORES, OWNER)
    assert result.image_to_text == Recall(1 / 3, 1.0, 1.0, 2.0, 3)
    # pictures for each sentence: 0 is first; 1 stands behind two; 2 behind two; 3 behind two
    assert result.text_to_image == Recall(1 / 4, 1.0, 1.0, 3.0, 4)


def test_equal_scores_for_everything_earn_nothing():
    result = rank_matrix(torch.zeros(20, 20), torch.arange(20))
    assert result.image_to_text == result.text_to_image == Recall(0.0, 0.0, 0.0, 20.0, 20)
    almost = rank_matrix(1 + 1e-6 * torch.eye(20), torch.arange(20))
    assert almost == result


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert Recall.of(torch.tensor([1, 2, 5, 9])).median_rank == 3.5
    assert Recall.of(torch.tensor([], dtype=torch.long)) == Recall(0, 0, 0, 0, 0)


def test_a_picture_without_sentences_is_not_asked_for():
    result = rank_matrix(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]), torch.tensor([0, 2]))
    assert result.image_to_text.queries == 2 and result.image_to_text.r1 == 1.0


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_blocks_give_what_sorting_everything_gives(pictures, each, height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    owner = torch.arange(pictures).repeat_interleave(each)
    scores = torch.randn(pictures, len(owner), generator=generator)
    rows = [slice(start, min(start + height, pictures)) for start in range(0, pictures, height)]
    columns = [slice(start, min(start + width, len(owner))) for start in range(0, len(owner), width)]
    parts = [(row, column, scores[row, column]) for row in rows for column in columns]
    own = scores[owner, torch.arange(len(owner))]
    result = rank(own, owner, pictures, parts)
    by_picture = [
        min(i + 1 for i, s in enumerate(row.argsort(descending=True).tolist()) if owner[s] == k)
        for k, row in enumerate(scores)
    ]
    by_sentence = [
        1 + column.argsort(descending=True).tolist().index(int(owner[s])) for s, column in enumerate(scores.T)
    ]
    assert result.image_to_text == Recall.of(torch.tensor(by_picture))
    assert result.text_to_image == Recall.of(torch.tensor(by_sentence))


@pytest.mark.parametrize("block", [50, 1 << 20])
def test_embedded_pictures_and_sentences_are_ranked_by_equation_8(block):
    generator = torch.Generator().manual_seed(0)
    areas = [torch.randn(n, 4, generator=generator) for n in (3, 1, 5, 2)]
    words = [torch.randn(n, 4, generator=generator) for n in (2, 6, 1, 3, 4, 2)]
    owner = [0, 1, 1, 2, 3, 3]
    pictures = [PictureVectors(9, 9, torch.zeros(len(a), 4), a, str(i)) for i, a in enumerate(areas)]
    sentences = [SentenceVectors(("w",) * len(w), w) for w in words]
    scores = torch.zeros(4, 6)
    for k, a in enumerate(areas):
        for i, w in enumerate(words):
            real = torch.ones(1, len(a), dtype=torch.bool), torch.ones(1, len(w), dtype=torch.bool)
            scores[k, i] = pair_scores(a[None], real[0], w[None], real[1])
    expected = rank_matrix(scores, torch.tensor(owner))
    assert rank_embedded(pictures, sentences, owner, block=block) == expected


def test_the_report_has_the_figures_of_both_directions(tmp_path):
    write_ranking_report(tmp_path, rank_matrix(SCORES, OWNER), {"model": "m", "skipped": {"a": "b"}})
    row = json.loads((tmp_path / "report.json").read_text())
    assert row["task"] == "rank" and row["model"] == "m"
    assert row["text_to_image"] == {"r1": 0.25, "r5": 1.0, "r10": 1.0, "median_rank": 3.0}
    assert row["image_to_text"]["median_rank"] == 2.0
    text = (tmp_path / "report.md").read_text()
    assert "| search (sentence to pictures) | 0.250 | 1.000 | 1.000 | 3 | 4 |" in text
    assert "| skipped | 1 |" in text
