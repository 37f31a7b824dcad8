from __future__ import annotations

import pytest
import torch

from saywhere.networks.language.relation_encoder import RelationEncoder
from saywhere.text import PAD, START

SENTENCE = [[5, 7, 1], [7, START, 2], [4, 7, 1]]
"""Word, head and kind of each relation."""


def encoder(rectified: bool = True) -> RelationEncoder:
    torch.manual_seed(0)
    return RelationEncoder(9, word_size=3, out_size=5, kinds=4, rectified=rectified).double().eval()


@pytest.mark.parametrize("rectified", [True, False])
def test_it_maps_head_and_word_by_the_kind_of_their_relation(rectified: bool) -> None:
    model = encoder(rectified)
    x = model.words.weight
    expected = []
    for word, head, kind in SENTENCE:
        layer = model.maps[kind]
        assert isinstance(layer, torch.nn.Linear)
        s = layer.weight @ torch.cat((x[head], x[word])) + layer.bias
        expected.append(torch.relu(s) if rectified else s)
    out = model(torch.tensor([SENTENCE]))
    assert out.vectors.shape == (1, 3, 5) and out.mask.tolist() == [[True] * 3]
    assert bool((out.vectors < 0).any()) != rectified
    torch.testing.assert_close(out.vectors[0], torch.stack(expected))


def test_a_batch_gives_each_sentence_what_it_gets_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    sentences = [torch.randint(1, 9, (n, 3), generator=generator) for n in (4, 1, 7, 2)]
    sentences = [torch.cat((rows[:, :2], rows[:, 2:] % 4), dim=1) for rows in sentences]
    model = encoder()
    batch = model(torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True))
    assert batch.mask.sum(dim=1).tolist() == [4, 1, 7, 2]
    for rows, vectors in zip(sentences, batch.vectors, strict=True):
        torch.testing.assert_close(vectors[: len(rows)], model(rows[None]).vectors[0], atol=1e-12, rtol=0)
        assert not vectors[len(rows) :].any()


def test_a_sentence_of_no_relations_has_no_vectors() -> None:
    model = encoder()
    none = model(torch.zeros(2, 3, 3, dtype=torch.long))
    assert none.vectors.shape == (2, 3, 5) and not none.vectors.any() and not none.mask.any()
    assert model(torch.zeros(2, 0, 3, dtype=torch.long)).vectors.shape == (2, 0, 5)
    assert model(torch.zeros(0, 0, 3, dtype=torch.long)).vectors.shape == (0, 0, 5)


def test_gradients_are_those_of_finite_differences_and_reach_only_what_was_used() -> None:
    model = encoder(rectified=False)
    relations = torch.tensor([SENTENCE, [[6, 5, 1], [PAD, PAD, 0], [PAD, PAD, 0]]])
    weight = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (model(relations).vectors * weight).sum()

    loss().backward()
    for parameter, index in ((model.words.weight, (7, 1)), (model.words.weight, (START, 0))):
        with torch.no_grad():
            before = float(parameter[index])
            values = []
            for step in (1e-6, -1e-6):
                parameter[index] = before + step
                values.append(float(loss()))
            parameter[index] = before
        assert parameter.grad is not None
        assert float(parameter.grad[index]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)
    used = [bool(sum(p.grad.abs().sum() for p in layer.parameters() if p.grad is not None)) for layer in model.maps]
    assert used == [False, True, True, False]
    assert model.words.weight.grad is not None
    assert model.words.weight.grad.abs().sum(dim=1).bool().tolist() == [n in (START, 4, 5, 6, 7) for n in range(9)]
