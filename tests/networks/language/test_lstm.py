from __future__ import annotations

import torch

from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.text import END, PAD, START


def decoder(dropout: float = 0.0) -> LstmDecoder:
    torch.manual_seed(0)
    return LstmDecoder(embed_dim=4, vocabulary_size=9, word_size=5, hidden_size=6, dropout=dropout)


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


def test_it_computes_the_recurrence_of_the_paper():
    """h, y = LSTM(h, x) with x = ReLU(norm(W embedding)), START, token_ids; gates by hand."""
    model = decoder().train()
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


def test_padding_after_a_phrase_changes_nothing_before_it():
    model = decoder().eval()
    embeddings = torch.randn(2, 4)
    short, long = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[4, 5, PAD, PAD], [6, 7, PAD, PAD]])
    torch.testing.assert_close(model(embeddings, short), model(embeddings, long)[:, :3])


def test_only_real_places_are_computed_on_demand():
    model = decoder().eval()
    embeddings, token_ids = torch.randn(2, 4), torch.tensor([[4, 5], [6, PAD]])
    real = torch.tensor([[True, True, True], [True, True, False]])
    torch.testing.assert_close(model(embeddings, token_ids, real), model(embeddings, token_ids)[real])


def test_the_forget_gate_starts_open_and_padding_has_no_vector():
    model = decoder()
    bias = model.lstm.get_parameter("bias_ih_l0") + model.lstm.get_parameter("bias_hh_l0")
    assert bias.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12
    assert model.words.weight[PAD].abs().sum() == 0


def test_what_all_embeddings_of_a_batch_have_in_common_does_not_count():
    model = decoder().train()
    embeddings, token_ids = torch.randn(6, 4), torch.randint(4, 9, (6, 3))
    torch.testing.assert_close(model(embeddings + 10, token_ids), model(embeddings, token_ids), atol=1e-4, rtol=1e-4)


def test_one_region_is_normalised_by_the_running_statistics():
    model = decoder().train()
    embedding, token_ids = torch.randn(1, 4), torch.tensor([[4, 5]])
    trained = model(embedding, token_ids)
    torch.testing.assert_close(trained, model.eval()(embedding, token_ids))


def test_no_regions_and_dropout():
    model = decoder(0.5).train()
    assert model(torch.zeros(0, 4), torch.zeros(0, 3, dtype=torch.long)).shape == (0, 4, 9)
    embeddings, token_ids = torch.randn(2, 4), torch.tensor([[4, END], [5, END]])
    assert not torch.equal(model(embeddings, token_ids), model(embeddings, token_ids))
