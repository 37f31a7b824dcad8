"""How probable n-grams are, and how well sentences agree with them and with each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from refusals import refuses

from saywhere.engines.arrays.layers import ORDER, Ngrams, ngrams_of
from saywhere.text import END, START

KNOWN = [(4,), (5,), (6,), (4, 5), (START, 4), (6, END), (4, 5, 6), (START, 4, 5, 6), (START, 6)]


def ngrams() -> Ngrams:
    generator = np.random.default_rng(0)
    lengths, token_ids = [len(known) for known in KNOWN], np.array([t for known in KNOWN for t in known], np.int16)
    arrays = {"keys": generator.integers(-127, 128, (len(KNOWN), 3)).astype(np.int8)}
    arrays |= {"offsets": generator.standard_normal(len(KNOWN)), "rarity": generator.uniform(1, 9, len(KNOWN))}
    arrays |= {"lengths": np.array(lengths, np.uint8), "token_ids": token_ids}
    projection = 0.02 * generator.standard_normal((5, 3), np.float32)
    return Ngrams.unpack(((projection, 0.02 * generator.standard_normal(3, np.float32)),), arrays, 8)


def test_words_stand_alone_and_runs_have_the_ends_of_the_sentence():
    assert ngrams_of([7, 8], 1) == [(7,), (8,)]
    assert ngrams_of([7, 8], 2) == [(START, 7), (7, 8), (8, END)]
    assert ngrams_of([7, 8], 4) == [(START, 7, 8, END)]
    assert ngrams_of([7], 4) == [] and ngrams_of([], 1) == []


def test_n_grams_are_numbered_as_they_are_stored():
    known = ngrams()
    assert {ngram: row for ngram, (row, _) in known.rows.items()} == {ngram: row for row, ngram in enumerate(KNOWN)}
    np.testing.assert_allclose([rarity for _, rarity in known.rows.values()], known.rarity)
    image = np.random.default_rng(1).standard_normal((2, 5), np.float32)
    ((weight, bias),) = known.layers
    log_odds = (image @ weight + bias) @ known.keys.T + known.offsets
    np.testing.assert_allclose(known.probabilities(image), 1 / (1 + np.exp(-log_odds)), rtol=1e-5)
    hidden = replace(known, layers=((weight.T @ weight, bias), (weight.T[:3, :3], bias)))
    inner = np.maximum(image[:, :3] @ (weight.T @ weight) + bias, 0)
    log_odds = (inner @ weight.T[:3, :3] + bias) @ known.keys.T + known.offsets
    np.testing.assert_allclose(hidden.probabilities(image[:, :3]), 1 / (1 + np.exp(-log_odds)), rtol=1e-5)


def test_n_grams_that_are_not_stored_can_be_left_out():
    known, image = ngrams(), np.random.default_rng(1).standard_normal((1, 5), np.float32)
    few = replace(known, **{name: getattr(known, name)[:6] for name in ("keys", "offsets", "rarity", "lengths")})
    few = replace(few, rows={ngram: row for ngram, row in known.rows.items() if len(ngram) < 3})
    assert few.longest == 2
    said = [[4, 5], [4, 5, 7]]  # nothing with 7 is stored, nor that 5 ends a text
    alone, other = few.agreement(few.probabilities(image), [few.weigh(said, unknown=False)])[0]
    assert alone == pytest.approx(other)
    alone, other = few.agreement(few.probabilities(image), [few.weigh(said)])[0]
    assert alone > other


def test_agreement_is_the_mean_cosine_of_n_grams_by_their_rarity_that_counts_long_ones_for_more():
    known, images = ngrams(), np.random.default_rng(1).standard_normal((2, 5), np.float32)
    sentences = [[[4, 5, 6], [4, 4, 7]], [[6]]]
    found = known.agreement(known.probabilities(images), [known.weigh(own) for own in sentences])
    for expected, own, values in zip(known.probabilities(images), sentences, found, strict=True):
        for ids, value in zip(own, values.tolist(), strict=True):
            total = 0.0
            for n in range(1, ORDER + 1):
                counts = Counter(ngrams_of(ids, n))
                names = sorted(set(counts) | {ngram for ngram in KNOWN if len(ngram) == n})
                rare = [known.rows[g][1] if g in known.rows else known.rarity.max() for g in names]
                said = np.array([counts[g] for g in names]) * rare
                wanted = np.array([expected[known.rows[g][0]] if g in known.rows else 0.0 for g in names]) * rare
                total += n * float(said @ wanted) / max(np.linalg.norm(said) * np.linalg.norm(wanted), 1e-9) / 10
            np.testing.assert_allclose(value, total, rtol=1e-4)
    assert min(map(min, found)) > 0 and max(map(max, found)) < 1


def test_a_sentence_without_a_word_has_one_n_gram():
    nothing = ngrams().weigh([[]])
    assert nothing.weights.tolist() == [[1]] and nothing.rows.tolist() == [-1]  # START, END


@pytest.mark.parametrize(
    ("lengths", "token_ids"), [([2, 2], [1, 2, 3]), ([1, 2], [1, 2, 9]), ([1, 2], [1, -1, 3]), ([0, 3], [1, 2, 3])]
)
def test_damaged_n_grams_are_refused(lengths, token_ids):
    arrays = {"keys": np.zeros((2, 6)), "offsets": np.zeros(2), "rarity": np.zeros(2)}
    arrays |= {"lengths": np.array(lengths), "token_ids": np.array(token_ids)}
    refuses("do not fit their lengths or its vocabulary", Ngrams.unpack, ((np.zeros((4, 6)), np.zeros(6)),), arrays, 9)
