"""Ranking of embedded images and sentences in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.evaluation.ranking.metric import rank_matrix
from saywhere.evaluation.ranking.run import rank_embedded
from saywhere.models.aligner import ImageVectors, TextVectors


@pytest.mark.parametrize("score", ["max", "fragments"])
@pytest.mark.parametrize("block", [50, 1 << 20])
def test_embedded_images_and_sentences_are_ranked_by_equations_7_and_8(block, score):
    generator = np.random.default_rng(0)
    regions = [generator.standard_normal((n, 4), np.float32) for n in (3, 1, 5, 2)]
    words = [generator.standard_normal((n, 4), np.float32) for n in (2, 6, 1, 3, 4, 2)]
    owner = [0, 1, 1, 2, 3, 3]
    images = [ImageVectors(9, 9, np.zeros((len(r), 4)), r, str(i), np.zeros(len(r))) for i, r in enumerate(regions)]
    texts = [TextVectors(("w",) * len(w), w) for w in words]
    products = [[r @ w.T for w in words] for r in regions]
    if score == "max":
        scores = np.array([[p.max(axis=0).sum() for p in row] for row in products])
    else:
        scores = np.array([[p.clip(min=0).sum() for p in row] for row in products])
    expected = rank_matrix(scores, np.array(owner))
    assert rank_embedded(images, texts, owner, score, block=block) == expected
    assert 0 < expected.text_to_image.r1 < 1
