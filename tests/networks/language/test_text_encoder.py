from __future__ import annotations

import pytest
import torch

from saywhere.networks.aligner.network import TextEncoder
from saywhere.text import PAD

CELLS = ("relu", "gru", "lstm", "none")


def encoder(cell: str = "relu", **options) -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(9, word_size=3, hidden_size=4, out_size=5, cell=cell, **options).eval()


def linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer.weight @ x + layer.bias


def test_it_computes_equations_2_to_6_word_by_word():
    model = encoder()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    words = [5, 7, 4, 8]
    x = [model.words.weight[w] for w in words]  # Eq. 2
    e = [torch.relu(linear(model.encode, v)) for v in x]  # Eq. 3
    left, state = [], torch.zeros(4)
    for value in e:  # Eq. 4
        state = torch.relu(value + linear(model.forwards.recurrent, state))
        left.append(state)
    right, state = [], torch.zeros(4)
    for value in reversed(e):  # Eq. 5
        state = torch.relu(value + linear(model.backwards.recurrent, state))
        right.append(state)
    expected = [torch.relu(linear(model.decode, a + b)) for a, b in zip(left, reversed(right), strict=True)]  # Eq. 6
    out = model(torch.tensor([words]))
    assert out.vectors.count_nonzero() > 0
    torch.testing.assert_close(out.vectors[0], torch.stack(expected))


@pytest.mark.parametrize("cell", CELLS)
def test_padding_more_changes_nothing(cell):
    model = encoder(cell).double()
    short = torch.tensor([[5, 7, 4], [6, PAD, PAD]])
    long = torch.cat((short, torch.zeros(2, 4, dtype=torch.long)), dim=1)
    one, two, alone = model(short), model(long), model(torch.tensor([[6]]))
    torch.testing.assert_close(two.vectors[:, :3], one.vectors, atol=1e-12, rtol=0)
    assert two.vectors[:, 3:].abs().max() == 0 and not two.mask[:, 3:].any()
    assert one.mask.tolist() == [[True] * 3, [True, False, False]]
    torch.testing.assert_close(one.vectors[1, :1], alone.vectors[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sentence_of_no_words_has_no_vectors(cell):
    model = encoder(cell)
    out = model(torch.tensor([[PAD, PAD], [5, 6]]))
    assert out.vectors[0].abs().max() == 0 and out.vectors[1].abs().max() > 0
    assert model(torch.zeros(2, 3, dtype=torch.long)).vectors.abs().max() == 0
    assert model(torch.zeros(2, 0, dtype=torch.long)).vectors.shape == (2, 0, 5)


@pytest.mark.parametrize("cell", ("relu", "gru", "lstm"))
def test_a_word_is_encoded_in_the_context_of_both_sides(cell):
    model = encoder(cell, rectified=False)
    with torch.no_grad():  # so that no rectifier is at 0
        model.encode.bias.fill_(3.0)
    base = model(torch.tensor([[5, 7, 4]])).vectors[0, 1]
    assert not torch.allclose(model(torch.tensor([[6, 7, 4]])).vectors[0, 1], base)
    assert not torch.allclose(model(torch.tensor([[5, 7, 8]])).vectors[0, 1], base)


def test_a_word_s_own_vector_may_be_added_to_the_cell_s():
    words = torch.tensor([[5, 7, 4]])
    plain, residual = (encoder("gru", rectified=False, residual=residual) for residual in (False, True))
    own = torch.relu(plain.encode(plain.words(words)))
    expected = plain(words).vectors + own @ plain.decode.weight.T
    torch.testing.assert_close(residual(words).vectors, expected)
