from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from saywhere.networks.language.decoders import attention
from saywhere.networks.language.decoders.attention import WordRegion, log_regions, log_words

N, K, R, V = 2, 3, 4, 5


def parts(scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64):
    """Parts a, m, c of the score, with one region of the second image absent, and its mask."""
    rng = torch.Generator().manual_seed(seed)
    a, m, c = (
        scale * torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((N, K, V), (N, R, V), (N, K, R))
    )
    mask = torch.ones(N, R, dtype=torch.bool)
    mask[1, 2] = False
    return a.to(dtype), m.to(dtype), c.to(dtype).masked_fill(~mask[:, None], -torch.inf), mask


def log_joint(words, word_region, regions):
    """``ln p(w, r | h)`` literally by Eq. 4."""
    scores = words[:, :, None] + word_region[:, None] + regions[..., None]
    return scores - scores.flatten(2).logsumexp(dim=2)[..., None, None]


def test_two_words_and_two_regions_by_hand():
    # exp a = (1, 2); exp c = (1, 3); exp m = ((1, 4), (2, 1)), a region a row
    a = torch.tensor([[[1.0, 2.0]]]).log()
    c = torch.tensor([[[1.0, 3.0]]]).log()
    m = torch.tensor([[[1.0, 4.0], [2.0, 1.0]]]).log()
    # p(r, w) ~ ((1, 8), (6, 6)), together 21
    torch.testing.assert_close(log_joint(a, m, c).exp()[0, 0], torch.tensor([[1.0, 8.0], [6.0, 6.0]]) / 21)
    tables = WordRegion.of(m, torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(log_words(a, c, tables).exp()[0, 0], torch.tensor([7.0, 14.0]) / 21)
    torch.testing.assert_close(log_regions(a, c, tables).exp()[0, 0], torch.tensor([9.0, 12.0]) / 21)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_marginals_are_those_of_the_plain_formula_and_sum_to_one(scale):
    a, m, c, mask = parts(scale)
    tables = WordRegion.of(m, mask)
    assert (tables.scores is None) == (scale == 1)
    p = log_joint(a, m, c).exp()
    torch.testing.assert_close(p.sum((2, 3)), torch.ones(N, K, dtype=torch.float64))
    words, regions = log_words(a, c, tables).exp(), log_regions(a, c, tables).exp()
    torch.testing.assert_close(words, p.sum(2))
    torch.testing.assert_close(regions, p.sum(3))
    torch.testing.assert_close(words.sum(2), torch.ones(N, K, dtype=torch.float64))
    torch.testing.assert_close(regions.sum(2), torch.ones(N, K, dtype=torch.float64))
    assert regions[1, :, 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("scale_m", "scale_c"), [(1, 1), (60, 1), (1, 60), (60, 60)])
def test_single_precision_keeps_scores_far_apart(scale_m, scale_c):
    """Where exp would vanish in single precision, logarithms are used: the values stay those of double precision."""
    a, m, c, mask = parts()
    m, c = scale_m * m, scale_c * c
    tables = WordRegion.of(m.float(), mask)
    assert (tables.scores is not None) == (scale_m == 60)
    plain = log_joint(a, m, c)
    torch.testing.assert_close(
        log_words(a.float(), c.float(), tables).double(), plain.logsumexp(2), atol=1e-4, rtol=1e-5
    )
    torch.testing.assert_close(
        log_regions(a.float(), c.float(), tables).double(), plain.logsumexp(3), atol=1e-4, rtol=1e-5
    )


def test_regions_far_apart_need_no_logarithms_while_their_words_are_near():
    """However far c spreads, the region of the largest c keeps each sum of products from vanishing."""
    a, m, c, mask = parts()
    tables = WordRegion.of(m.float(), mask)
    assert tables.scores is None
    c = 300 * c
    plain = log_joint(a, m, c).logsumexp(2)
    torch.testing.assert_close(log_words(a.float(), c.float(), tables).double(), plain, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("block", [1, 2, 3, 8])
def test_blocks_of_any_size_give_the_same(block, monkeypatch):
    a, m, c, mask = parts(300.0)
    tables = WordRegion.of(m, mask)
    words, regions = log_words(a, c, tables), log_regions(a, c, tables)
    monkeypatch.setattr(attention, "BLOCK", block)
    torch.testing.assert_close(log_words(a, c, tables), words)
    torch.testing.assert_close(log_regions(a, c, tables), regions)


@pytest.mark.parametrize("far", [False, True])
def test_numeric_gradients(far, monkeypatch):
    """Also of the blocks, which are used if one m and one c are far from the others."""
    monkeypatch.setattr(attention, "BLOCK", 2)
    a, m, c, mask = parts()
    c = c.masked_fill(c == -torch.inf, 0)
    if far:
        m[0, 0, 0], c[0, 0, 1] = m[0, 0, 0] - 700, c[0, 0, 1] - 700

    def marginals(a, m, c):
        c, tables = c.masked_fill(~mask[:, None], -torch.inf), WordRegion.of(m, mask)
        assert (tables.scores is not None) == far
        return log_words(a, c, tables), log_regions(a, c, tables).exp()

    assert gradcheck(marginals, [tensor.clone().requires_grad_() for tensor in (a, m, c)])
