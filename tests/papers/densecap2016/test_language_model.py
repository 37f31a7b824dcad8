"""The program's language model beside its equations, written out step by step."""

from __future__ import annotations

import pytest
import torch

from saywhere.papers.densecap2016.network import LanguageModel, decode_sequences

V, D, W, H = 7, 5, 4, 6


def model(seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    made = LanguageModel(D, V, W, H).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.6)
    return made


def codes(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_second_bias_of_the_lstm_stays_zero():
    made = model()
    made(codes(1), torch.tensor([[1]])).sum().backward()
    second = made.lstm.get_parameter("bias_hh_l0")
    assert second.grad is None and not second.any()


def test_it_begins_as_the_programs_does():
    torch.manual_seed(0)
    made = LanguageModel(8, 500, 100, 300)
    weights = torch.cat((made.lstm.get_parameter("weight_ih_l0"), made.lstm.get_parameter("weight_hh_l0")), dim=1)
    assert weights.std().item() == pytest.approx(1 / 20, rel=0.01)
    bias = made.lstm.get_parameter("bias_ih_l0").chunk(4)
    assert [b.unique().tolist() for b in bias] == [[0], [1], [0], [0]]
    assert made.words.weight.shape == (502, 100) and made.words.weight.std().item() == pytest.approx(1, rel=0.02)
    assert made.start == 501


def test_captions_end_at_END():
    words = ("a", "cat", "dog", "eating", "hungry")
    tokens = torch.tensor([[1, 5, 2, 4, 1, 3, 6], [1, 3, 6, 0, 0, 0, 0], [2, 3, 1, 3, 2, 6, 1], [6, 1, 1, 1, 1, 1, 1]])
    assert decode_sequences(tokens, words) == ["a hungry cat eating a dog", "a dog", "cat dog a dog cat", ""]
    assert decode_sequences(torch.tensor([[1, 2]]), words) == ["a cat"]
