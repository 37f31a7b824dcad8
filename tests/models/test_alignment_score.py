from __future__ import annotations

import pytest
import torch

from saywhere.models.alignment_score import blocks, pair_scores, score_matrix


def random_sets(pictures=5, areas=4, sentences=6, words=7, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def real(rows, length):
        counts = torch.randint(1, length + 1, (rows,), generator=generator)
        return torch.arange(length) < counts[:, None]

    return draw(pictures, areas, size), real(pictures, areas), draw(sentences, words, size), real(sentences, words)


def plainly(areas, areas_real, words, words_real, how, mean):
    """Eqs. 7 and 8 as they are written."""
    scores = torch.zeros(len(areas), len(words), dtype=areas.dtype)
    for k in range(len(areas)):
        for i in range(len(words)):
            parts = []
            for t in range(words.shape[1]):
                if words_real[i, t]:
                    products = [float(areas[k, j] @ words[i, t]) for j in range(areas.shape[1]) if areas_real[k, j]]
                    parts.append(max(products) if how == "max" else sum(max(0.0, p) for p in products))
            scores[k, i] = sum(parts) / (len(parts) if mean else 1)
    return scores


def test_by_hand():
    areas = torch.tensor([[[1.0, 0], [0, 2]]])
    words = torch.tensor([[[3.0, 1], [-1, -2], [9, 9]]])
    real, said = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[True, True, False]])
    # products: word 1 with areas 3, 2; word 2 with areas -1, -4
    assert pair_scores(areas, real, words, said).tolist() == [[3 - 1]]
    assert pair_scores(areas, real, words, said, "fragments").tolist() == [[3 + 2]]
    assert pair_scores(areas, real, words, said, mean=True).tolist() == [[1]]


@pytest.mark.parametrize("how", ["max", "fragments"])
@pytest.mark.parametrize("mean", [False, True])
def test_it_is_the_equation(how, mean):
    sets = random_sets()
    torch.testing.assert_close(pair_scores(*sets, how, mean), plainly(*sets, how, mean))


@pytest.mark.parametrize("how", ["max", "fragments"])
def test_padding_more_areas_or_words_changes_nothing(how):
    areas, areas_real, words, words_real = random_sets()
    more_areas = torch.cat((areas, torch.full((5, 3, 3), 1e4, dtype=torch.float64)), dim=1)
    more_words = torch.cat((words, torch.full((6, 2, 3), 1e4, dtype=torch.float64)), dim=1)
    more_real = torch.cat((areas_real, torch.zeros(5, 3, dtype=torch.bool)), dim=1)
    more_said = torch.cat((words_real, torch.zeros(6, 2, dtype=torch.bool)), dim=1)
    base = pair_scores(areas, areas_real, words, words_real, how)
    padded = pair_scores(more_areas, more_real, more_words, more_said, how)
    torch.testing.assert_close(padded, base, atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", ["max", "fragments"])
def test_no_areas_or_no_words_score_nothing(how):
    areas, areas_real, words, words_real = random_sets()
    areas_real[2], words_real[1] = False, False
    scores = pair_scores(areas, areas_real, words, words_real, how)
    assert scores[2].abs().max() == 0 and scores[:, 1].abs().max() == 0 and torch.isfinite(scores).all()
    assert pair_scores(areas[:, :0], areas_real[:, :0], words, words_real, how).abs().max() == 0
    assert pair_scores(areas, areas_real, words[:0], words_real[:0], how).shape == (5, 0)


@pytest.mark.parametrize("how", ["max", "fragments"])
def test_gradients_are_those_of_the_function(how):
    areas, areas_real, words, words_real = random_sets(3, 3, 2, 4)

    def score(a, w):
        return pair_scores(a, areas_real, w, words_real, how)

    assert torch.autograd.gradcheck(score, (areas.requires_grad_(), words.requires_grad_()))


@pytest.mark.parametrize("block", [1, 30, 200, 1 << 20])
def test_blocks_are_the_whole(block):
    sets = random_sets(7, 4, 23, 5)
    torch.testing.assert_close(score_matrix(*sets, block=block), pair_scores(*sets))
    seen = torch.zeros(7, 23)
    for rows, columns, part in blocks(*sets, block=block):
        assert part.shape == seen[rows, columns].shape
        seen[rows, columns] += 1
    assert (seen == 1).all()


def test_a_block_has_no_more_products_than_it_may():
    sets = random_sets(40, 4, 60, 5)
    sizes = [part.numel() * 4 * 5 for _, _, part in blocks(*sets, block=2000)]
    assert max(sizes) <= 2000 and len(sizes) > 20
