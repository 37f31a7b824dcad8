from __future__ import annotations

import torch

from saywhere.networks.language.decoders.gru import GruDecoder
from saywhere.text import PAD, START


def decoder(dropout: float = 0.0) -> GruDecoder:
    torch.manual_seed(0)
    return GruDecoder(embed_dim=4, vocabulary_size=9, word_size=5, hidden_size=6, dropout=dropout)


def test_it_computes_equations_1_and_2():
    model = decoder().eval().double()
    embedding = torch.randn(1, 4).double()
    h = model.begin.weight @ embedding[0] + model.begin.bias
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w_i, w_h, b_i, b_h = (model.gru.get_parameter(name) for name in names)
    expected = []
    for word in (START, 5, 7):
        x = model.words.weight[word]
        (ri, zi, ni), (rh, zh, nh) = (w_i @ x + b_i).chunk(3), (w_h @ h + b_h).chunk(3)
        z = torch.sigmoid(zi + zh)
        h = (1 - z) * torch.tanh(ni + torch.sigmoid(ri + rh) * nh) + z * h
        expected.append(model.words.weight @ (model.output.weight @ h + model.output.bias))
    torch.testing.assert_close(model(embedding, torch.tensor([[5, 7]]))[0], torch.stack(expected), atol=1e-12, rtol=0)


def test_teacher_forcing_equals_step_by_step():
    model = decoder().eval()
    embeddings, token_ids = torch.randn(3, 4), torch.randint(4, 9, (3, 5))
    logits = model(embeddings, token_ids).log_softmax(dim=2)
    assert logits.shape == (3, 6, 9)
    state, last = model.start(embeddings), torch.full((3,), START)
    for t in range(6):
        log_probs, state = model.step(last, state)
        torch.testing.assert_close(log_probs, logits[:, t])
        last = token_ids[:, t] if t < 5 else last


def test_word_vectors_are_shared_by_inputs_and_outputs():
    model = decoder()
    logits = model(torch.randn(1, 4), torch.tensor([[5]]))
    logits[0, 0, 7].backward()  # a word that is no input
    gradient = model.words.weight.grad
    assert gradient is not None and gradient[7].abs().sum() > 0 and gradient[START].abs().sum() > 0


def test_numeric_gradients():
    model = decoder().double()
    embeddings = torch.randn(2, 4).double().requires_grad_()
    token_ids = torch.tensor([[4, 5], [6, PAD]])
    assert torch.autograd.gradcheck(lambda c: model(c, token_ids).log_softmax(2)[..., 2].sum(), (embeddings,))


def test_padding_and_masked_places_change_nothing():
    model = decoder().eval()
    embeddings = torch.randn(2, 4)
    short, long = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[4, 5, PAD, PAD], [6, 7, PAD, PAD]])
    torch.testing.assert_close(model(embeddings, short), model(embeddings, long)[:, :3])
    real = torch.tensor([[True, True, True], [True, False, False]])
    torch.testing.assert_close(model(embeddings, short, real), model(embeddings, short)[real])


def test_dropout_and_no_embeddings():
    model = decoder(0.5).train()
    embeddings, token_ids = torch.randn(2, 4), torch.tensor([[4, 5], [6, 7]])
    assert not torch.equal(model(embeddings, token_ids), model(embeddings, token_ids))
    assert model.words.weight[PAD].abs().sum() == 0
    assert model(torch.zeros(0, 4), torch.zeros(0, 3, dtype=torch.long)).shape == (0, 4, 9)
