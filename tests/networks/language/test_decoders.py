"""Decoders without areas: LSTM (DenseCap) and RNN (Alignments)."""

from __future__ import annotations

import math

import pytest
import torch

from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.rnn import RnnDecoder, log_frequencies
from saywhere.text import END, PAD, START, Vocabulary


def lstm(dropout: float = 0.0) -> LstmDecoder:
    torch.manual_seed(0)
    return LstmDecoder(embed_dim=4, vocabulary_size=9, word_size=5, hidden_size=6, dropout=dropout)


def rnn(dropout: float = 0.0) -> RnnDecoder:
    torch.manual_seed(0)
    model = RnnDecoder(embed_dim=4, vocabulary_size=9, word_size=5, hidden_size=6, dropout=dropout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


of_all = pytest.mark.parametrize("decoder", [lstm, rnn])


@of_all
def test_teacher_forcing_equals_step_by_step(decoder):
    model = decoder().eval()
    embeddings, token_ids = torch.randn(3, 4), torch.randint(4, 9, (3, 5))
    logits = model(embeddings, token_ids).log_softmax(dim=2)
    assert logits.shape == (3, 6, 9)
    state, last = model.start(embeddings), torch.full((3,), START)
    for t in range(6):
        log_probs, state = model.step(last, state)
        torch.testing.assert_close(log_probs, logits[:, t])
        last = token_ids[:, t] if t < 5 else last


@of_all
def test_padding_and_masked_places_change_nothing(decoder):
    model = decoder().eval()
    embeddings = torch.randn(2, 4)
    short, long = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[4, 5, PAD, PAD], [6, 7, PAD, PAD]])
    torch.testing.assert_close(model(embeddings, short), model(embeddings, long)[:, :3])
    real = torch.tensor([[True, True, True], [True, False, False]])
    torch.testing.assert_close(model(embeddings, short, real), model(embeddings, short)[real])


@of_all
def test_dropout_and_no_embeddings(decoder):
    model = decoder(0.5).train()
    embeddings, token_ids = torch.randn(2, 4), torch.tensor([[4, END], [5, END]])
    assert not torch.equal(model(embeddings, token_ids), model(embeddings, token_ids))
    assert decoder is rnn or model.words.weight[PAD].abs().sum() == 0
    assert model(torch.zeros(0, 4), torch.zeros(0, 3, dtype=torch.long)).shape == (0, 4, 9)


def test_the_lstm_computes_the_recurrence_of_the_paper():
    """h, y = LSTM(h, x) with x = ReLU(norm(W embedding)), START, token_ids; gates by hand."""
    model = lstm().train()
    model(torch.randn(50, 4) + 3, torch.zeros(50, 0, dtype=torch.long))  # so that the running statistics count
    model.eval()
    embedding, token_ids = torch.randn(1, 4), torch.tensor([[5, 7]])
    linear, norm = model.encode[0], model.encode[1]
    encoded = (embedding @ linear.weight.T + linear.bias - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    inputs = [torch.relu(encoded)]
    inputs += [model.words.weight[w][None] for w in (START, 5, 7)]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w_ih, w_hh, b_ih, b_hh = (model.lstm.get_parameter(name) for name in names)
    h = c = torch.zeros(1, 6)
    outputs = []
    for x in inputs:
        i, f, g, o = (x @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h @ model.output.weight.T + model.output.bias)
    torch.testing.assert_close(model(embedding, token_ids)[0], torch.cat(outputs[1:]), atol=1e-5, rtol=1e-5)


def test_the_forget_gate_starts_open_and_padding_has_no_vector():
    model = lstm()
    bias = model.lstm.get_parameter("bias_ih_l0") + model.lstm.get_parameter("bias_hh_l0")
    assert bias.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12
    assert model.words.weight[PAD].abs().sum() == 0


def test_what_a_batch_has_in_common_does_not_count_and_one_region_is_normalised_as_at_inference():
    model = lstm().train()
    embeddings, token_ids = torch.randn(6, 4), torch.randint(4, 9, (6, 3))
    torch.testing.assert_close(model(embeddings + 10, token_ids), model(embeddings, token_ids), atol=1e-4, rtol=1e-4)
    model = lstm().train()
    embedding, token_ids = torch.randn(1, 4), torch.tensor([[4, 5]])
    trained = model(embedding, token_ids)
    torch.testing.assert_close(trained, model.eval()(embedding, token_ids))


def test_the_rnn_computes_equations_13_to_15():
    model = rnn().eval().double()
    embedding, words = torch.randn(1, 4).double(), [START, 5, 7]
    b_v = model.image.weight @ embedding[0]
    h, expected = torch.zeros(6).double(), []
    for t, word in enumerate(words):
        x = model.words.weight[word]
        h = (model.heard.weight @ x + model.again.weight @ h + model.again.bias + (b_v if t == 0 else 0)).clamp(min=0)
        expected.append(torch.softmax(model.output.weight @ h + model.output.bias, dim=0))
    found = model(embedding, torch.tensor([words[1:]]))[0].softmax(dim=1)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-12, rtol=0)


def test_the_image_enters_the_first_step_only():
    model = rnn().eval()
    with torch.no_grad():
        model.again.weight.zero_()  # nothing is remembered
    words = torch.tensor([[4, 5, 6]])
    one, other = model(torch.randn(1, 4) + 2, words)[0], model(torch.randn(1, 4) - 2, words)[0]
    assert not torch.allclose(one[0], other[0])
    torch.testing.assert_close(one[1:], other[1:])


def test_an_untrained_decoder_chooses_words_as_often_as_they_were_seen():
    vocabulary = Vocabulary({"a": 6, "dog": 3, "kayak": 1})
    model = RnnDecoder(4, len(vocabulary), 5, 6, bias=log_frequencies(vocabulary)).eval()
    with torch.no_grad():
        model.output.weight.zero_()
    chances = model(torch.randn(1, 4), torch.zeros(1, 0, dtype=torch.long))[0, 0].softmax(dim=0)
    share = chances / chances[vocabulary.encode("kayak")[0]]
    torch.testing.assert_close(share[vocabulary.encode("a dog")], torch.tensor([6.0, 3.0]))
    assert math.isclose(share[END].item(), 6.0, rel_tol=1e-5)
    assert RnnDecoder(4, 7, 5, 6).output.bias.tolist() == [0.0] * 7
