from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from stub_decoder import Chain
from tiny_captioner import tiny_lstm

from saywhere.configs.parts import DecodingConfig
from saywhere.models.decoding import Decoded, decode, search
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.text import END, PAD, START


def lstm(seed: int) -> TorchDecoder:
    decoder = tiny_lstm(seed)
    return TorchDecoder(decoder, decoder.words.weight)


def rows(count: int, seed: int = 1, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 6), scale=scale).astype(np.float32)


def run(decoder, embeddings, max_words: int, beam_size: int = 1, length_penalty: float = 0.0) -> Decoded:
    return decode(decoder, embeddings, DecodingConfig(max_words, beam_size, length_penalty))


ONE = np.zeros((1, 1), np.float32)


def test_greedy_takes_the_best_word_and_stops_at_END():
    # tokens: 0 pad, 1 start, 2 end, 3 unknown, 4, 5
    chain = Chain(
        [[1.0, 1, 1, 1, 1, 1], [0.3, 0.2, 0, 0.1, 0.25, 0.15], [1.0] * 6, [1.0] * 6, [0, 0, 0.4, 0, 0, 0.6],
         [0, 0.2, 0.7, 0, 0.1, 0]]
    )  # fmt: skip
    out = run(chain, np.zeros((2, 1), np.float32), 9)
    assert out.token_ids.tolist() == [[4, 5, END]] * 2  # PAD, START and UNKNOWN are never chosen, however likely
    assert np.exp(out.log_probs).tolist() == [pytest.approx([0.25, 0.6, 0.7], rel=1e-6)] * 2
    assert np.exp(out.total[0]) == pytest.approx(0.25 * 0.6 * 0.7)
    assert out.confidence[0] == pytest.approx(np.log(0.25 * 0.6 * 0.7) / 3)
    assert len(chain.rows) == 3


def test_all_hypotheses_are_there_with_their_ranks():
    chain = Chain(
        [[1.0] * 6, [0, 0, 0, 0, 0.6, 0.4], [1.0] * 6, [1.0] * 6, [0, 0, 0.25, 0.25, 0.25, 0.25], [0, 0, 1.0, 0, 0, 0]]
    )
    found = search(chain, ONE, DecodingConfig(3, 2, 0.5))
    words = [[word for word in row if word != PAD] for row in found.token_ids[0].tolist()]
    assert words == [[5, END], [4, END]]
    np.testing.assert_allclose(np.exp(found.log_probs[0].sum(axis=1)), [0.4, 0.6 * 0.25], rtol=1e-6)
    np.testing.assert_allclose(found.ranks[0], np.log([0.4, 0.15]) / 2**0.5, rtol=1e-6)
    assert found.best().token_ids[0, :2].tolist() == [5, END]
    assert found.best(np.array([[0.0, 1.0]])).token_ids[0, :2].tolist() == [4, END]
    (one,) = search(chain, ONE, DecodingConfig(3, 1, 0.5)).token_ids[0].tolist()
    assert one == run(chain, ONE, 3).token_ids[0].tolist()
    nothing = search(chain, ONE[:0], DecodingConfig(3, 2, 0.5))
    assert nothing.best().token_ids.shape == (0, 0)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_item_has_none_of_the_words_that_it_never_has(beam_size: int):
    # tokens: 0 pad, 1 start, 2 end, 3 unknown, 4, 5
    table = [[1.0] * 6, [0, 0, 0, 0, 0.7, 0.3], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 0.2, 0, 0.5, 0.3]]
    settings, items = DecodingConfig(4, beam_size, 0.0), np.zeros((3, 1), np.float32)
    never = np.zeros((3, 6), bool)
    never[1, 4] = never[2, 5] = True
    found = search(Chain(table), items, settings, never=never).best()
    words = [[word for word in row if word != PAD] for row in found.token_ids.tolist()]
    alone = [search(Chain(table), items[:1], settings, never=never[i : i + 1]).best() for i in range(3)]
    assert words == [[4, END], [5, END] if beam_size > 1 else [5, 5, 5, 5], [4, END]]
    for i, one in enumerate(alone):
        assert [word for word in one.token_ids[0].tolist() if word != PAD] == words[i]


def test_length_normalisation_prefers_longer_sentences():
    short = Chain(
        [[1.0] * 6, [0, 0, 0.5, 0, 0.5, 0], [1.0] * 6, [1.0] * 6, [0, 0, 0, 0, 0, 1.0], [0, 0, 0.9, 0, 0.1, 0]]
    )
    assert run(short, ONE, 3, 4).token_ids[0, 0] == END
    assert run(short, ONE, 3, 4, 1.0).token_ids[0].tolist() == [4, 5, END]


WORDS = (END, 4, 5, 6)
"""What :class:`Remembering` may choose."""


class Remembering(Chain):
    """A random decoder of three words whose probabilities depend on the item and on all words before."""

    def __init__(self, seed: int):
        self.table = np.random.default_rng(seed).normal(size=(3 * 7**4, 7), scale=2).astype(np.float32)
        self.table -= np.logaddexp.reduce(self.table, axis=1, keepdims=True)

    def start(self, embeddings):
        return (np.arange(len(embeddings)),)

    def step(self, token_ids, state):
        following = (state[0] * 7 + token_ids) % len(self.table)
        return self.table[following], (following,)

    def after(self, item: int, words: tuple[int, ...]) -> np.ndarray:
        """Log-probabilities of the word after these."""
        place = item
        for word in (START, *words):
            place = (place * 7 + word) % len(self.table)
        return self.table[place]

    def total(self, item: int, words: tuple[int, ...]) -> float:
        return sum(float(self.after(item, words[:t])[word]) for t, word in enumerate(words))


ITEMS = np.zeros((3, 1), np.float32)


def sentences(max_words: int) -> list[tuple[int, ...]]:
    """All that end or have ``max_words`` words."""
    whole = list(itertools.product(WORDS[1:], repeat=max_words))
    return whole + [(*w, END) for n in range(max_words) for w in itertools.product(WORDS[1:], repeat=n)]


def without_padding(out: Decoded) -> list[tuple[int, ...]]:
    return [tuple(word for word in row if word != PAD) for row in out.token_ids.tolist()]


def plain_beam(decoder: Remembering, item: int, max_words: int, size: int, length_penalty: float) -> tuple[int, ...]:
    """Beam search as it is told: the best continuations of the kept ones; those that have ended stay as they are."""

    def ranking(words: tuple[int, ...]) -> float:
        return decoder.total(item, words) / len(words) ** length_penalty

    kept: list[tuple[int, ...]] = [()]
    for _ in range(max_words):
        longer = [w for w in kept if w[-1:] == (END,)] + [(*w, n) for w in kept if w[-1:] != (END,) for n in WORDS]
        kept = sorted(longer, key=ranking, reverse=True)[:size]
    return max(kept, key=ranking)


@given(seed=st.integers(0, 1000), size=st.integers(1, 5), length_penalty=st.sampled_from([0.0, 0.7, 2.0]))
def test_a_narrow_beam_keeps_the_best_so_far(seed, size, length_penalty):
    decoder = Remembering(seed)
    out = run(decoder, ITEMS, 4, size, length_penalty)
    assert without_padding(out) == [plain_beam(decoder, item, 4, size, length_penalty) for item in range(3)]
    for row, log_probs in zip(out.token_ids, out.log_probs, strict=True):
        assert not log_probs[row == PAD].any()


@given(seed=st.integers(0, 1000), words=st.sampled_from([20, 41, 300, 1000]), size=st.integers(2, 7))
def test_the_likeliest_words_are_found_among_many_and_of_equal_ones_the_first(seed, words, size):
    probabilities = np.random.default_rng(seed).integers(1, 50, words) / 1000
    decoder = Chain(np.tile(probabilities, (START + 1, 1)))
    found = search(decoder, ITEMS, DecodingConfig(max_words=1, beam_size=size)).token_ids[:, :, 0]
    probabilities[list(decoder.never)] = 0
    assert found.tolist() == [np.argsort(-probabilities, kind="stable")[:size].tolist()] * len(ITEMS)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_batched_equals_one_at_a_time(beam_size):
    decoder, embeddings = lstm(3), rows(7, 0, 2.0)
    together = run(decoder, embeddings, 5, beam_size)
    for i in range(7):
        alone = run(decoder, embeddings[i : i + 1], 5, beam_size)
        length = alone.token_ids.shape[1]
        assert together.token_ids[i, :length].tolist() == alone.token_ids[0].tolist()
        assert together.total[i] == pytest.approx(alone.total[0], abs=1e-5)


def test_no_items_and_bad_arguments():
    assert run(lstm(0), rows(0), 5).token_ids.shape == (0, 0)
    refuses("beam_size must be at most 200, not 1000000000", search, lstm(0), rows(1), DecodingConfig(), 10**9)


def test_a_beam_wider_than_there_are_sentences_has_each_once():
    """After START one of two words, after each of them END: two sentences, whatever the beam."""
    table = np.zeros((6, 6))
    table[START, [4, 5]] = 0.7, 0.3
    table[[4, 5], END] = 1
    found = search(Chain(table), rows(2), DecodingConfig(max_words=4, beam_size=40, length_penalty=0.0))
    there = np.isfinite(found.ranks)
    assert there.sum(axis=1).tolist() == [2, 2] and found.ranks[0, there[0]] == pytest.approx(np.log([0.7, 0.3]))
    assert [row[:2].tolist() for row in found.token_ids[0, there[0]]] == [[4, END], [5, END]]


@pytest.mark.parametrize("independent", [True, False])
def test_hypotheses_that_have_ended_are_asked_for_no_more_words_where_rows_may_be_dropped(independent: bool):
    # "4" ends at once, "5 5 5 ..." goes on
    table = [[1.0] * 6, [0, 0, 0, 0, 0.6, 0.4], [1.0] * 6, [1.0] * 6, [0, 0, 1, 0, 0, 0], [0, 0, 0.1, 0, 0, 0.9]]
    chain = Chain(table)
    chain.independent = independent
    found = search(chain, np.zeros((2, 1), np.float32), DecodingConfig(4, 2, 0.0))
    assert chain.rows == ([2, 4, 2, 2] if independent else [2, 4, 4, 4])
    assert found.token_ids[0].tolist() == found.token_ids[1].tolist() == [[4, END, PAD, PAD], [5, 5, 5, 5]]
    np.testing.assert_allclose(np.exp(found.ranks), [[0.6, 0.4 * 0.9**3]] * 2, rtol=1e-6)
