from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_captioner import tiny_lstm

from saywhere.configs.parts import DecodingConfig
from saywhere.models import phrase_scores
from saywhere.models.decoding import decode
from saywhere.models.phrase_scores import phrase_log_probs
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.text import END, PAD, START, UNKNOWN

PHRASES = [[4, 5], [4], [4, 5, 6, 7], [9, 4, 5], [4, 5], [8, UNKNOWN], [7, 7, 7]]


class Diary:
    """A decoder of the words 4 and 5, whose chances depend on the region and the last word; it notes its inputs.

    Of a region ``a`` the first word is 4 with probability a; after a 4 comes 5 with a / 2 and the end with 1 - a / 2;
    after a 5 the end.
    """

    never, unknown, independent = (PAD, START, UNKNOWN), "<unk>", True

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []

    def start(self, embeddings):
        return (embeddings[:, 0],)

    def step(self, token_ids, state):
        self.inputs.append(token_ids.tolist())
        probabilities = np.zeros((len(token_ids), 6), np.float32)
        (region,) = state
        for row, word in enumerate(token_ids.tolist()):
            a = float(region[row])
            chances = {START: {4: a, 5: 1 - a}, 4: {5: a / 2, END: 1 - a / 2}, 5: {END: 1.0}}[word]
            for next_word, p in chances.items():
                probabilities[row, next_word] = p
        with np.errstate(divide="ignore"):
            return np.log(probabilities), state

    def select(self, state, rows):
        return tuple(part[rows] for part in state)

    def join(self, states):
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))


class Counting(TorchDecoder):
    """Notes how many rows each step has."""

    def __init__(self, decoder: LstmDecoder):
        super().__init__(decoder, decoder.words.weight)
        self.rows: list[int] = []

    def step(self, token_ids, state):
        self.rows.append(len(token_ids))
        return super().step(token_ids, state)


def embeddings(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 6), scale=3).astype(np.float32)


@torch.no_grad()
def one_at_a_time(decoder: LstmDecoder, rows: np.ndarray, phrases: list[list[int]]) -> np.ndarray:
    """By the training pass: the log-probability of each word and of END, given those before."""
    table = np.zeros((len(rows), len(phrases)))
    for r, row in enumerate(torch.from_numpy(rows)):
        for p, phrase in enumerate(phrases):
            words = torch.tensor([phrase], dtype=torch.long).reshape(1, -1)
            log_probs = decoder(row[None], words)[0].log_softmax(dim=1)
            table[r, p] = sum(float(log_probs[t, word]) for t, word in enumerate([*phrase, END]))
    return table


def test_values_by_hand_and_a_common_beginning_is_decoded_once():
    decoder = Diary()
    out = phrase_log_probs(decoder, np.array([[0.5], [0.2]], np.float32), [[4, 5], [4], [5], [4]])
    by_hand = [[0.5 * 0.25, 0.5 * 0.75, 0.5, 0.5 * 0.75], [0.2 * 0.1, 0.2 * 0.9, 0.8, 0.2 * 0.9]]
    np.testing.assert_allclose(np.exp(out), by_hand, rtol=1e-5)
    assert decoder.inputs == [[START] * 2, [4, 4, 5, 5], [5, 5]], "three steps for both regions and all phrases"


def test_impossible_and_empty_phrases_and_nothing_at_all():
    out = phrase_log_probs(Diary(), np.array([[0.5]], np.float32), [[5, 4], []])
    assert out.tolist() == [[-math.inf, -math.inf]]
    decoder = Counting(tiny_lstm())
    assert phrase_log_probs(decoder, embeddings(0), PHRASES).shape == (0, 7)
    assert phrase_log_probs(decoder, embeddings(3), []).shape == (3, 0)


def test_all_together_equals_one_at_a_time():
    decoder, rows = tiny_lstm(), embeddings(9)
    out = phrase_log_probs(Counting(decoder), rows, [*PHRASES, []])
    np.testing.assert_allclose(out, one_at_a_time(decoder, rows, [*PHRASES, []]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "states"), [(1, 1), (4, 1 << 15), (7, 30), (4096, 5)])
def test_the_bounds_on_memory_change_nothing_but_the_steps(monkeypatch, rows, states):
    decoder, regions = Counting(tiny_lstm()), embeddings(9)
    expected = phrase_log_probs(decoder, regions, PHRASES)
    decoder.rows.clear()
    monkeypatch.setattr(phrase_scores, "STATES", states)
    monkeypatch.setattr(phrase_scores, "ROWS", rows)
    np.testing.assert_allclose(phrase_log_probs(decoder, regions, PHRASES), expected, atol=1e-5)
    assert max(decoder.rows) <= max(rows, 9), "a step has the words of `rows`, or one word of all regions"
    assert len(decoder.rows) > 5


def test_the_probability_of_a_caption_is_that_of_decoding():
    module, rows = tiny_lstm(3), embeddings(20)
    with torch.no_grad():
        module.output.bias[END] += 6
    decoder = Counting(module)
    out = decode(decoder, rows, DecodingConfig(max_words=6))
    ended = np.flatnonzero((out.token_ids == END).any(axis=1)).tolist()
    assert len(ended) > 3
    for row in ended:
        words = [word for word in out.token_ids[row].tolist() if word not in (END, PAD)]
        score = phrase_log_probs(decoder, rows[row : row + 1], [words])
        assert score[0, 0] == pytest.approx(out.total[row], rel=1e-4, abs=1e-5)
