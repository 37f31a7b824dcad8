from __future__ import annotations

import itertools

import pytest
import torch

from saywhere.language.attention import AttentionSpeaker, pad_areas
from saywhere.language.decoding import decode
from saywhere.language.ensemble import Ensemble
from saywhere.language.gru import GruSpeaker
from saywhere.language.lstm import LstmSpeaker
from saywhere.text import END, PAD, START, UNKNOWN


class Chain:
    """The next word depends on the last one alone; its state is one number a row that must stay its own."""

    def __init__(self, table):
        self.table = torch.tensor(table).log()

    def start(self, codes):
        return (codes, codes + 1)

    def step(self, words, state):
        assert torch.equal(state[1], state[0] + 1)
        return self.table[words], state


def test_the_mean_of_probabilities_by_hand():
    one = Chain([[1.0] * 6, [0, 0, 0, 0, 0.9, 0.1], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 1.0, 0, 0, 0]])
    two = Chain([[1.0] * 6, [0, 0, 0, 0, 0.2, 0.8], [1.0] * 6, [1.0] * 6, [0, 0, 0.5, 0, 0.5, 0], [0, 0, 1.0, 0, 0, 0]])
    ensemble = Ensemble([one, two], [1, 2])
    log_probs, state = ensemble.step(torch.tensor([START]), ensemble.start(torch.arange(3.0)[None]))
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0, 0, 0, 0, 0.55, 0.45]]))
    assert [part.tolist() for part in state] == [[[0]], [[1]], [[1, 2]], [[2, 3]]]
    said = decode(ensemble, torch.zeros(1, 3), 3)
    assert said.words.tolist() == [[4, END]]
    torch.testing.assert_close(said.log_probs, torch.tensor([[0.55, 0.75]]).log())
    # 4 END has .55 * .75, 5 END has .45: together they say what only the second would have said
    assert decode(ensemble, torch.zeros(1, 3), 3, beam=2).words.tolist() == [[5, END]]


def members():
    torch.manual_seed(0)
    speakers = [GruSpeaker(6, 9, 4, 7), AttentionSpeaker(3, 5, 9, 4, 6), LstmSpeaker(4, 9, 5, 7)]
    for speaker in speakers:
        speaker.eval()
        with torch.no_grad():
            for parameter in speaker.parameters():
                parameter.normal_(std=0.8)
    gru, attention, lstm = speakers
    areas, mask = pad_areas([torch.randn(2, 5), torch.randn(4, 5), torch.randn(0, 5)])
    return gru, attention.look(areas, mask), lstm, torch.randn(3, 13)


def test_one_member_or_one_twice_says_what_it_says_alone():
    gru, attention, _, codes = members()
    for speaker, part in ((gru, codes[:, :6]), (attention, codes[:, 6:9])):
        size = part.shape[1]
        for beam in (1, 3):
            alone = decode(speaker, part, 4, beam)
            for times in (1, 2):
                together = decode(Ensemble([speaker] * times, [size] * times), part.repeat(1, times), 4, beam)
                assert torch.equal(together.words, alone.words)
                torch.testing.assert_close(together.log_probs, alone.log_probs)


def test_beam_search_of_different_speakers_is_exhaustive_search():
    gru, attention, lstm, codes = members()
    ensemble = Ensemble([gru, attention, lstm], [6, 3, 4])
    wide = decode(ensemble, codes, 2, beam=40)
    words = [word for word in range(9) if word not in (PAD, START, UNKNOWN)]
    best = torch.full((3,), -torch.inf)
    with torch.no_grad():
        for first, second in itertools.product(words, words):
            log_probs, state = ensemble.step(torch.full((3,), START), ensemble.start(codes))
            total = log_probs[:, first]
            if first != END:
                total = total + ensemble.step(torch.full((3,), first), state)[0][:, second]
            best = torch.maximum(best, total)
    torch.testing.assert_close(wide.total, best)


def test_members_that_do_not_fit_are_refused():
    gru, _, lstm, codes = members()
    with pytest.raises(ValueError, match="2 speakers with 1 sizes"):
        Ensemble([gru, lstm], [6])
    with pytest.raises(ValueError, match="0 speakers"):
        Ensemble([], [])
    with pytest.raises(ValueError, match=r"codes of 13 numbers for members that want \(6, 4\)"):
        decode(Ensemble([gru, lstm], [6, 4]), codes, 3)
    other = GruSpeaker(7, 10, 4, 7)
    with pytest.raises(ValueError, match="vocabularies of 9 and 10 words"):
        decode(Ensemble([gru, other], [6, 7]), codes, 3)
