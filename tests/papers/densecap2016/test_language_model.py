"""The program's language model beside its equations, written out step by step."""

from __future__ import annotations

import pytest
import torch

from saywhere.papers.densecap2016.network import LanguageModel, decode_sequences

V, D, W, H = 7, 5, 4, 6
NONE = 0


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


class Equations:
    """One LSTM step after another, from the model's numbers: gates i, f, g, o of torch's layout."""

    def __init__(self, made: LanguageModel):
        self.made = made
        lstm = made.lstm
        self.wx, self.wh = lstm.get_parameter("weight_ih_l0"), lstm.get_parameter("weight_hh_l0")
        self.bias = lstm.get_parameter("bias_ih_l0")
        self.h = self.c = torch.zeros(H, dtype=torch.float64)

    def hear(self, x: torch.Tensor) -> None:
        i, f, g, o = (self.wx @ x + self.wh @ self.h + self.bias).chunk(4)
        self.c = torch.sigmoid(f) * self.c + torch.sigmoid(i) * torch.tanh(g)
        self.h = torch.sigmoid(o) * torch.tanh(self.c)

    def hear_code(self, code: torch.Tensor) -> None:
        self.hear((self.made.encode.weight @ code + self.made.encode.bias).clamp(min=0))

    def hear_token(self, token: int) -> torch.Tensor:
        self.hear(self.made.words.weight[(V + 2 if token == NONE else token) - 1])
        return self.scores()

    def scores(self) -> torch.Tensor:
        return self.made.output.weight @ self.h + self.made.output.bias

    def log_probs(self) -> torch.Tensor:
        return self.scores().log_softmax(dim=0)


def test_scores_are_those_of_the_equations():
    made, tokens = model(), torch.tensor([[3, 1, 7], [2, 0, 0]])
    out = made(codes(2), tokens)
    assert out.shape == (2, 3 + 2, V + 1)
    for n in range(2):
        by_hand = Equations(made)
        by_hand.hear_code(codes(2)[n])
        torch.testing.assert_close(out[n, 0], by_hand.scores())
        for t, token in enumerate([V + 1, *tokens[n].tolist()]):
            torch.testing.assert_close(out[n, t + 1], by_hand.hear_token(token))


def test_what_comes_after_a_word_does_not_change_what_is_said_of_it():
    made = model()
    a, b = torch.tensor([[3, 1, 0]]), torch.tensor([[3, 1, 5]])
    torch.testing.assert_close(made(codes(1), a)[:, :4], made(codes(1), b)[:, :4])


def test_gradients_of_everything():
    made, tokens, heard = model(), torch.tensor([[3, 1], [2, 0]]), codes(2).requires_grad_()
    names = [name for name, p in made.named_parameters() if p.requires_grad]
    values = tuple(made.get_parameter(name).detach().requires_grad_() for name in names)

    def scores(heard, *values):
        return torch.func.functional_call(made, dict(zip(names, values, strict=True)), (heard, tokens))

    assert len(names) == 8
    assert torch.autograd.gradcheck(scores, (heard, *values))


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


def test_sampling_takes_the_best_and_goes_on_after_END():
    made, length = model(3), 9
    said = made.sample(codes(4), length)
    for n in range(4):
        by_hand, token = Equations(made), V + 1
        by_hand.hear_code(codes(4)[n])
        for t in range(length):
            token = int(by_hand.hear_token(token).argmax()) + 1
            assert said[n, t] == token
    made.output.bias.data[V] = 100  # END
    assert made.sample(codes(1), 3).tolist() == [[8, 8, 8]]


def test_captions_end_at_END():
    words = ("a", "cat", "dog", "eating", "hungry")
    tokens = torch.tensor([[1, 5, 2, 4, 1, 3, 6], [1, 3, 6, 0, 0, 0, 0], [2, 3, 1, 3, 2, 6, 1], [6, 1, 1, 1, 1, 1, 1]])
    assert decode_sequences(tokens, words) == ["a hungry cat eating a dog", "a dog", "cat dog a dog cat", ""]
    assert decode_sequences(torch.tensor([[1, 2]]), words) == ["a cat"]
