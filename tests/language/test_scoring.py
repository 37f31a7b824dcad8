from __future__ import annotations

import math

import pytest
import torch

from saywhere.language import scoring
from saywhere.language.decoding import decode
from saywhere.language.lstm import LstmSpeaker
from saywhere.language.scoring import phrase_log_probs
from saywhere.text import END, PAD, START, UNKNOWN, pad

PHRASES = [[4, 5], [4], [4, 5, 6, 7], [9, 4, 5], [4, 5], [8, UNKNOWN], [7, 7, 7]]


class Diary:
    """A speaker of the words 4 and 5, whose chances depend on the area and the last word; it notes what it hears.

    Of an area ``a`` it says 4 with probability a; after a 4 it says 5 with a / 2 and ends with 1 - a / 2; after a 5 it
    ends.
    """

    def __init__(self) -> None:
        self.heard: list[list[int]] = []

    def start(self, codes):
        return (codes[:, 0],)

    def step(self, words, state):
        self.heard.append(words.tolist())
        probabilities = torch.zeros(len(words), 6)
        (area,) = state
        for row, word in enumerate(words.tolist()):
            a = float(area[row])
            said = {START: {4: a, 5: 1 - a}, 4: {5: a / 2, END: 1 - a / 2}, 5: {END: 1.0}}[word]
            for next_word, p in said.items():
                probabilities[row, next_word] = p
        return probabilities.log(), state


def lstm(seed: int = 0, dtype: torch.dtype = torch.float64) -> LstmSpeaker:
    torch.manual_seed(seed)
    speaker = LstmSpeaker(6, 12, 5, 7).eval().to(dtype)
    with torch.no_grad():
        for parameter in speaker.parameters():
            parameter.normal_(std=0.8)
    return speaker


def codes(count: int) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3


def one_at_a_time(speaker: LstmSpeaker, rows: torch.Tensor, phrases: list[list[int]]) -> torch.Tensor:
    """By the training pass: the log-probability of each word and of END, given those before."""
    table = torch.zeros(len(rows), len(phrases))
    for r, row in enumerate(rows):
        for p, phrase in enumerate(phrases):
            words = torch.tensor([phrase], dtype=torch.long).reshape(1, -1)
            log_probs = speaker(row[None], words)[0].log_softmax(dim=1)
            table[r, p] = sum(log_probs[t, word] for t, word in enumerate([*phrase, END]))
    return table


def test_values_by_hand_and_a_common_beginning_is_said_once():
    speaker = Diary()
    out = phrase_log_probs(speaker, torch.tensor([[0.5], [0.2]]), [[4, 5], [4], [5], [4]])
    by_hand = [[0.5 * 0.25, 0.5 * 0.75, 0.5, 0.5 * 0.75], [0.2 * 0.1, 0.2 * 0.9, 0.8, 0.2 * 0.9]]
    torch.testing.assert_close(out.exp(), torch.tensor(by_hand))
    assert speaker.heard == [[START] * 2, [4, 4, 5, 5], [5, 5]], "three steps for both areas and all phrases"


def test_an_impossible_phrase_and_an_empty_one():
    out = phrase_log_probs(Diary(), torch.tensor([[0.5]]), [[5, 4], []])
    assert out.tolist() == [[-math.inf, -math.inf]]


def test_all_together_equals_one_at_a_time():
    speaker, rows = lstm(), codes(9)
    with torch.no_grad():
        expected = one_at_a_time(speaker, rows, [*PHRASES, []])
    torch.testing.assert_close(phrase_log_probs(speaker, rows, [*PHRASES, []]), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rows", "states"), [(1, 1), (4, 1 << 15), (7, 30), (4096, 5)])
def test_the_bounds_on_memory_change_nothing_but_the_steps(monkeypatch, rows, states):
    speaker, areas = lstm(), codes(9)
    expected = phrase_log_probs(speaker, areas, PHRASES)
    monkeypatch.setattr(scoring, "STATES", states)
    usual, seen = LstmSpeaker.step, []
    monkeypatch.setattr(LstmSpeaker, "step", lambda *a: (seen.append(len(a[1])), usual(*a))[1])
    torch.testing.assert_close(phrase_log_probs(speaker, areas, PHRASES, rows), expected)
    assert max(seen) <= max(rows, 9), "a step has the words of `rows`, or one word of all areas"
    assert len(seen) > 5


def test_probabilities_of_all_phrases_add_up_to_one():
    # Every phrase of up to two of twelve words, and the chance that it goes on after two.
    speaker, rows = lstm(), codes(3)
    short = [[], *([w] for w in range(12) if w != END)]
    pairs = [[a, b] for a in range(12) for b in range(12) if END not in (a, b)]
    total = phrase_log_probs(speaker, rows, [*short, *pairs]).exp().sum(dim=1)
    with torch.no_grad():
        log_probs = speaker(rows.repeat_interleave(len(pairs), 0), pad(pairs).repeat(3, 1)).log_softmax(dim=2)
    index = torch.tensor(pairs).repeat(3, 1)
    said = log_probs.gather(2, index[:, :, None].expand(-1, -1, 1).clamp(min=0))
    prefix = said[:, :2, 0].sum(dim=1)
    beyond = (prefix + (1 - log_probs[:, 2, END].exp()).log()).exp().reshape(3, -1).sum(dim=1)
    torch.testing.assert_close(total + beyond.float(), torch.ones(3), rtol=1e-5, atol=1e-5)


def test_the_probability_of_what_is_said_is_that_of_decoding():
    speaker, rows = lstm(3, torch.float32), codes(20).float()
    with torch.no_grad():
        speaker.output.bias[END] += 6
    out = decode(speaker, rows, max_words=6)
    ended = (out.words == END).any(dim=1).nonzero().flatten().tolist()
    assert len(ended) > 3
    for row in ended:
        words = [word for word in out.words[row].tolist() if word not in (END, PAD)]
        score = phrase_log_probs(speaker, rows[row : row + 1], [words])
        torch.testing.assert_close(score[0, 0], out.total[row], rtol=1e-4, atol=1e-5)


def test_no_area_and_no_phrase():
    assert phrase_log_probs(lstm(), codes(0), PHRASES).shape == (0, 7)
    assert phrase_log_probs(lstm(), codes(3), []).shape == (3, 0)
