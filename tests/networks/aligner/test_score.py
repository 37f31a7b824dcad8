from __future__ import annotations

import pytest
import torch

from saywhere.models.aligner import similarity_matrix
from saywhere.networks.aligner.network import pair_scores


def random_sets(images=5, regions=4, sentences=6, words=7, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def real(rows, length):
        counts = torch.randint(1, length + 1, (rows,), generator=generator)
        return torch.arange(length) < counts[:, None]

    return draw(images, regions, size), real(images, regions), draw(sentences, words, size), real(sentences, words)


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_it_is_the_similarity_that_a_user_gets(score):
    regions, region_mask, words, word_mask = random_sets()
    rows = [vectors[mask].numpy() for vectors, mask in zip(regions, region_mask, strict=True)]
    columns = [vectors[mask].numpy() for vectors, mask in zip(words, word_mask, strict=True)]
    expected = torch.from_numpy(similarity_matrix(rows, columns, score))
    torch.testing.assert_close(pair_scores(regions, region_mask, words, word_mask, score).float(), expected)


def test_by_hand():
    regions = torch.tensor([[[1.0, 0], [0, 2]]])
    words = torch.tensor([[[3.0, 1], [-1, -2], [9, 9]]])
    real, mask = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[True, True, False]])
    # products: word 1 with regions 3, 2; word 2 with regions -1, -4
    assert pair_scores(regions, real, words, mask).tolist() == [[3 - 1]]
    assert pair_scores(regions, real, words, mask, "fragments").tolist() == [[3 + 2]]


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_padding_more_regions_or_words_changes_nothing(score):
    regions, region_mask, words, word_mask = random_sets()
    more_regions = torch.cat((regions, torch.full((5, 3, 3), 1e4, dtype=torch.float64)), dim=1)
    more_words = torch.cat((words, torch.full((6, 2, 3), 1e4, dtype=torch.float64)), dim=1)
    more_real = torch.cat((region_mask, torch.zeros(5, 3, dtype=torch.bool)), dim=1)
    more_mask = torch.cat((word_mask, torch.zeros(6, 2, dtype=torch.bool)), dim=1)
    base = pair_scores(regions, region_mask, words, word_mask, score)
    padded = pair_scores(more_regions, more_real, more_words, more_mask, score)
    torch.testing.assert_close(padded, base, atol=1e-6, rtol=0)


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_no_regions_or_no_words_score_nothing(score):
    regions, region_mask, words, word_mask = random_sets()
    region_mask[2], word_mask[1] = False, False
    scores = pair_scores(regions, region_mask, words, word_mask, score)
    assert scores[2].abs().max() == 0 and scores[:, 1].abs().max() == 0 and torch.isfinite(scores).all()
    assert pair_scores(regions[:, :0], region_mask[:, :0], words, word_mask, score).abs().max() == 0
    assert pair_scores(regions, region_mask, words[:0], word_mask[:0], score).shape == (5, 0)
