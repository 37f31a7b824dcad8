"""Which sentences are nearest to an image."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.engines.arrays.neighbours import Neighbours
from saywhere.errors import UserError


def neighbours(count: int = 30) -> Neighbours:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 5, count).astype(np.uint8)
    token_ids = generator.integers(0, 50, lengths.sum()).astype(np.int16)
    keys = generator.integers(-127, 128, (count, 6)).astype(np.int8)
    projection, bias = generator.standard_normal((4, 6), np.float32), generator.standard_normal(6, np.float32)
    arrays = {"keys": keys, "commonness": 30 * generator.standard_normal(count)}
    return Neighbours.unpack(projection, bias, arrays | {"lengths": lengths, "token_ids": token_ids}, 50)


def test_the_nearest_are_those_of_the_largest_products_less_how_common_they_are():
    known, images = neighbours(), np.random.default_rng(1).standard_normal((5, 4), np.float32)
    for image, found in zip(images, known.nearest(images, 7), strict=True):
        query = image @ known.projection + known.bias
        fits = known.keys @ (query / np.linalg.norm(query)) - known.commonness
        expected = [known.sentences[j].tolist() for j in np.argsort(-fits)[:7]]
        assert [sentence.tolist() for sentence in found] == expected


def test_there_may_be_fewer_than_asked_for_and_no_direction_at_all():
    known = neighbours(3)
    known.projection[:], known.bias[:] = 0, 0
    assert [len(found) for found in known.nearest(np.zeros((2, 4), np.float32), 20)] == [3, 3]


@pytest.mark.parametrize(("lengths", "token_ids"), [([2, 2], [1, 2, 3]), ([1, 2], [1, 2, 9]), ([1, 2], [1, -1, 3])])
def test_damaged_sentences_are_refused(lengths, token_ids):
    arrays = {"keys": np.zeros((2, 6)), "commonness": np.zeros(2)}
    arrays |= {"lengths": np.array(lengths), "token_ids": np.array(token_ids)}
    with pytest.raises(UserError, match="do not fit their lengths or its vocabulary"):
        Neighbours.unpack(np.zeros((4, 6)), np.zeros(6), arrays, 9)
