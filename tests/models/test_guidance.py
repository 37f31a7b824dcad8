"""Decoding with the support of sentences."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.configs.parts import DecodingConfig
from saywhere.models.decoding import decode
from saywhere.models.guidance import FLOOR, GuidedDecoder, Support
from saywhere.text import END, PAD, START, UNKNOWN

A, B, C, D = 4, 5, 6, 7
SIZE = 8
SAID = [np.array([A, B, C]), np.array([A, C]), np.array([B, C, B])]


class Even:
    """A decoder to which all words are alike, and unlikely; a state counts its steps."""

    never, unknown, independent = (PAD, START, UNKNOWN), "<unk>", True

    def start(self, embeddings):
        return (np.zeros(len(embeddings)),)

    def step(self, token_ids, state):
        return np.full((len(token_ids), SIZE), -8.0, np.float32), (state[0] + 1,)

    def select(self, state, rows):
        return (state[0][rows],)

    def join(self, states):
        return (np.concatenate([state[0] for state in states]),)


def surprise(*shares: float) -> float:
    return float(sum(np.log1p(share / FLOOR) for share in shares))


def test_words_are_supported_by_the_share_of_sentences_that_have_them_there():
    found = np.zeros(SIZE, np.float32)
    Support(SAID, SIZE).add(found, [START, A], 0.5)
    # Alone, after "a", and after the beginning and "a".
    expected = {
        B: surprise(2 / 3, 1 / 3, 1 / 3), C: surprise(1, 1 / 3, 1 / 3), A: surprise(2 / 3), END: 0.0, D: 0.0,
    }  # fmt: skip
    for word, value in expected.items():
        assert found[word] == pytest.approx(value / 2, rel=1e-5), word


def test_a_sentence_that_says_it_twice_counts_once():
    found = np.zeros(SIZE, np.float32)
    Support([np.array([A, B, A, B, A])], SIZE).add(found, [A], 1.0)
    assert found[B] == pytest.approx(surprise(1, 1), rel=1e-5)


def test_no_sentences_support_nothing():
    found = np.zeros(SIZE, np.float32)
    Support([], SIZE).add(found, [START], 1.0)
    assert not found.any()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_image_is_described_as_its_own_neighbours_are(beam_size):
    said = [np.array([A, B, C, D]), np.array([D, B]), np.array([C])]
    decoder = GuidedDecoder(Even(), [Support([sentence] * 3, SIZE) for sentence in said], 1.0)
    found = decode(decoder, np.zeros((3, 1)), DecodingConfig(max_words=6, length_penalty=0.0), beam_size)
    assert [[t for t in row if t not in (PAD, END)] for row in found.token_ids.tolist()] == [s.tolist() for s in said]


def test_only_the_last_words_are_remembered_and_states_are_joined():
    decoder = GuidedDecoder(Even(), [Support(SAID, SIZE), Support([np.array([D, D])], SIZE)], 1.0)
    state = decoder.start(np.zeros((2, 1)))
    for word in (START, A, B, C):
        _, state = decoder.step(np.array([word, word]), state)
    assert state[2].tolist() == [[A, B, C]] * 2
    second, first = decoder.select(state, np.array([1])), decoder.select(state, np.array([0]))
    joined, _ = decoder.step(np.array([B, B]), decoder.join([second, first]))
    alone = [decoder.step(np.array([B]), one)[0][0] for one in (second, first)]
    np.testing.assert_array_equal(joined, np.stack(alone))
    assert not np.array_equal(joined[0], joined[1])
