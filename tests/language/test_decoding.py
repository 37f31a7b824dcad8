from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saywhere.language.decoding import decode, draw
from saywhere.language.lstm import LstmSpeaker
from saywhere.text import END, PAD, START, UNKNOWN


class Chain:
    """A speaker whose next word depends on the last one alone: ``table[last]`` are log-probabilities."""

    def __init__(self, table):
        self.table = torch.tensor(table).log()
        self.steps = 0

    def start(self, codes):
        return (codes,)

    def step(self, words, state):
        self.steps += 1
        return self.table[words], state


def lstm(seed: int) -> LstmSpeaker:
    torch.manual_seed(seed)
    speaker = LstmSpeaker(6, 12, 5, 7).eval()
    with torch.no_grad():
        for parameter in speaker.parameters():
            parameter.normal_(std=0.8)
    return speaker


def test_greedy_takes_the_best_word_and_stops_at_END():
    # words: 0 pad, 1 start, 2 end, 3 unknown, 4, 5
    chain = Chain(
        [[1.0, 1, 1, 1, 1, 1], [0.3, 0.2, 0, 0.1, 0.25, 0.15], [1.0] * 6, [1.0] * 6, [0, 0, 0.4, 0, 0, 0.6],
         [0, 0.2, 0.7, 0, 0.1, 0]]
    )  # fmt: skip
    out = decode(chain, torch.zeros(2, 1), max_words=9)
    assert out.words.tolist() == [[4, 5, END]] * 2  # PAD, START and UNKNOWN are never said, however likely
    torch.testing.assert_close(out.log_probs, torch.tensor([[0.25, 0.6, 0.7]]).log().expand(2, 3))
    torch.testing.assert_close(out.total[0], torch.tensor(0.25 * 0.6 * 0.7).log())
    assert chain.steps == 3


def test_sentences_that_ended_are_padded_and_long_ones_cut():
    speaker = lstm(0)
    codes = torch.randn(30, 6, generator=torch.Generator().manual_seed(1)) * 3
    out = decode(speaker, codes, max_words=4)
    for row, log_probs in zip(out.words.tolist(), out.log_probs.tolist(), strict=True):
        if END in row:
            after = row.index(END) + 1
            assert row[after:] == [PAD] * (4 - after) and log_probs[after:] == [0.0] * (4 - after)
        else:
            assert PAD not in row


def test_beam_finds_what_greedy_misses():
    # greedy says 4 (0.6) and then nothing is likely; 5 (0.4) ends for certain
    chain = Chain(
        [[1.0] * 6, [0, 0, 0, 0, 0.6, 0.4], [1.0] * 6, [1.0] * 6, [0, 0, 0.25, 0.25, 0.25, 0.25], [0, 0, 1.0, 0, 0, 0]]
    )
    assert decode(chain, torch.zeros(1, 1), 3).words[0, 0] == 4
    best = decode(chain, torch.zeros(1, 1), 3, beam=2)
    assert best.words.tolist() == [[5, END]] or best.words[0, :2].tolist() == [5, END]
    torch.testing.assert_close(best.total, torch.tensor([0.4]).log())


def test_length_normalisation_prefers_longer_sentences():
    chain = Chain(
        [[1.0] * 6, [0, 0, 0.3, 0, 0.7, 0], [1.0] * 6, [1.0] * 6, [0, 0, 0, 0, 0, 1.0], [0, 0, 0.41, 0, 0, 0.59]]
    )
    plain = decode(chain, torch.zeros(1, 1), 3, beam=4)
    normalised = decode(chain, torch.zeros(1, 1), 3, beam=4, length_power=1.0)
    assert plain.words[0].tolist()[:1] == [4]
    length = [(out.words != PAD).sum().item() for out in (plain, normalised)]
    assert length[0] <= length[1]
    short = Chain(
        [[1.0] * 6, [0, 0, 0.5, 0, 0.5, 0], [1.0] * 6, [1.0] * 6, [0, 0, 0, 0, 0, 1.0], [0, 0, 0.9, 0, 0.1, 0]]
    )
    assert decode(short, torch.zeros(1, 1), 3, beam=4).words[0].tolist()[0] == END
    assert decode(short, torch.zeros(1, 1), 3, beam=4, length_power=1.0).words[0].tolist() == [4, 5, END]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_beam_one_is_greedy_and_a_full_beam_is_exhaustive_search(seed):
    speaker = lstm(seed)
    codes = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed))
    from saywhere.language.decoding import _beam

    greedy, beam = decode(speaker, codes, 3), _beam(speaker, codes, 3, 1, 0.0)
    assert torch.equal(greedy.words, beam.words)
    torch.testing.assert_close(greedy.log_probs, beam.log_probs)
    wide = decode(speaker, codes, 2, beam=80)
    for row in range(3):
        assert abs(float(wide.total[row]) - _exhaustive(speaker, codes[row : row + 1])) < 1e-4
    assert (wide.total >= decode(speaker, codes, 2).total - 1e-5).all()


@torch.no_grad()
def _exhaustive(speaker, code) -> float:
    """The best sentence of at most two words, by trying all."""
    words = [w for w in range(12) if w not in (PAD, START, UNKNOWN)]
    best = -float("inf")
    for first, second in itertools.product(words, words):
        said = torch.tensor([[first, second]]) if first != END else torch.tensor([[END]])
        logits = speaker(code, said)[0, : said.shape[1]]
        total = logits.log_softmax(1).gather(1, said[0][:, None]).sum()
        best = max(best, float(total))
    return best


def test_batched_equals_one_at_a_time():
    speaker = lstm(3)
    codes = torch.randn(7, 6, generator=torch.Generator().manual_seed(0)) * 2
    for beam in (1, 3):
        together = decode(speaker, codes, 5, beam)
        for i in range(7):
            alone = decode(speaker, codes[i : i + 1], 5, beam)
            length = alone.words.shape[1]
            assert together.words[i, :length].tolist() == alone.words[0].tolist()
            torch.testing.assert_close(together.total[i], alone.total[0])


def test_no_areas_no_words_and_bad_arguments():
    assert decode(lstm(0), torch.zeros(0, 6), 5).words.shape == (0, 0)
    with pytest.raises(ValueError, match=r"max_words \(0\)"):
        decode(lstm(0), torch.zeros(1, 6), 0)


def test_drawing_is_as_often_as_it_is_probable():
    # a first word 4 (0.75) or 5 (0.25); 4 ends, 5 ends or says 4 first; UNKNOWN's half is shared out
    chain = Chain(
        [[1.0] * 6, [0, 0, 0, 0.5, 0.375, 0.125], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 0.5, 0, 0.5, 0]]
    )
    out = draw(chain, torch.zeros(2, 1), 5, count=4000, generator=torch.Generator().manual_seed(0))
    rows = [tuple(word for word in row if word != PAD) for row in out.words.tolist()]
    shares = {row: rows.count(row) / len(rows) for row in set(rows)}
    assert shares.keys() == {(4, END), (5, END), (5, 4, END)}
    assert shares[4, END] == pytest.approx(0.75, abs=0.02)
    assert shares[5, END] == pytest.approx(0.125, abs=0.02)
    chances = {(4, END): 0.75, (5, END): 0.125, (5, 4, END): 0.125}
    expected = torch.tensor([chances[row] for row in rows]).log()
    torch.testing.assert_close(out.total, expected)


def test_drawn_sentences_of_an_area_are_neighbours_and_have_gradients():
    speaker = lstm(0)
    codes = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)) * 3
    drawn = draw(speaker, codes, 4, count=2, generator=torch.Generator().manual_seed(2))
    assert len(drawn.words) == 6 and drawn.words.shape[1] <= 4
    again = draw(speaker, codes, 4, count=2, generator=torch.Generator().manual_seed(2))
    assert torch.equal(drawn.words, again.words)
    drawn.log_probs[2:4].sum().backward()
    assert all(p.grad is not None for p in speaker.parameters())
    for i, (row, log_probs) in enumerate(zip(drawn.words.tolist(), drawn.log_probs.tolist(), strict=True)):
        state, last = speaker.start(codes[i // 2 : i // 2 + 1]), START
        for word, log_prob in zip(row, log_probs, strict=True):
            if word == PAD:
                assert log_prob == 0
                continue
            scores, state = speaker.step(torch.tensor([last]), state)
            scores[:, [PAD, START, UNKNOWN]] = -torch.inf
            assert scores.log_softmax(dim=1)[0, word].item() == pytest.approx(log_prob, abs=1e-5)
            last = word
