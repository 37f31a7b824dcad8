from __future__ import annotations

import pytest
import torch
from tiny_captioner import tiny_lstm

from saywhere.networks.captioner.network import sample
from saywhere.networks.language.decoders.protocol import NEVER
from saywhere.text import END, PAD, START, UNKNOWN


class Chain:
    """A decoder whose next word depends on the last one alone: ``table[last]`` are probabilities."""

    never, unknown, independent = NEVER, "<unk>", True

    def __init__(self, table):
        self.table = torch.tensor(table).log()

    def start(self, embeddings):
        return (embeddings,)

    def step(self, token_ids, state):
        return self.table[token_ids], state


def test_sentences_are_sampled_as_often_as_they_are_probable():
    # a first word 4 (0.75) or 5 (0.25); 4 ends, 5 ends or continues with 4; UNKNOWN's half is shared out
    chain = Chain(
        [[1.0] * 6, [0, 0, 0, 0.5, 0.375, 0.125], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 0.5, 0, 0.5, 0]]
    )
    token_ids, log_probs = sample(chain, torch.zeros(2, 1), 5, 4000, torch.Generator().manual_seed(0))
    rows = [tuple(token for token in row if token != PAD) for row in token_ids.tolist()]
    shares = {row: rows.count(row) / len(rows) for row in set(rows)}
    assert shares.keys() == {(4, END), (5, END), (5, 4, END)}
    assert shares[4, END] == pytest.approx(0.75, abs=0.02)
    assert shares[5, END] == pytest.approx(0.125, abs=0.02)
    chances = {(4, END): 0.75, (5, END): 0.125, (5, 4, END): 0.125}
    torch.testing.assert_close(log_probs.sum(dim=1), torch.tensor([chances[row] for row in rows]).log())


def test_samples_of_an_embedding_are_neighbours_and_have_gradients():
    decoder = tiny_lstm(0)
    embeddings = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)) * 3
    token_ids, log_probs = sample(decoder, embeddings, 4, 2, torch.Generator().manual_seed(2))
    assert len(token_ids) == 6 and token_ids.shape[1] <= 4
    assert torch.equal(token_ids, sample(decoder, embeddings, 4, 2, torch.Generator().manual_seed(2))[0])
    log_probs[2:4].sum().backward()
    assert all(p.grad is not None for p in decoder.parameters())
    for i, (row, found) in enumerate(zip(token_ids.tolist(), log_probs.tolist(), strict=True)):
        state, last = decoder.start(embeddings[i // 2 : i // 2 + 1]), START
        for token, log_prob in zip(row, found, strict=True):
            if token == PAD:
                assert log_prob == 0
                continue
            scores, state = decoder.step(torch.tensor([last]), state)
            scores[:, [PAD, START, UNKNOWN]] = -torch.inf
            assert scores.log_softmax(dim=1)[0, token].item() == pytest.approx(log_prob, abs=1e-5)
            last = token


def test_nothing_to_sample_from():
    assert sample(tiny_lstm(0), torch.zeros(0, 6), 5, 2)[0].shape[0] == 0
