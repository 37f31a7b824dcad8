"""The text encoder in numpy, for every option, on sentences of several lengths and of none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tiny_aligner import tiny_aligner_config

from saywhere.engines.arrays import aligner as arrays
from saywhere.engines.arrays.layers import Weights
from saywhere.networks.aligner.network import TextEncoder
from saywhere.text import PAD

TOKEN_IDS = np.array(
    [[4, 5, 6, 2, 0, 0], [7, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4], [3, 3, 2, 0, 0, 0],
     [4, 5, 8, 0, 0, 0], [4, 5, 6, 2, 0, 0], [7, 3, 2, 0, 0, 0]]
)  # fmt: skip
"""One sentence is full, one has one word, one none; several begin or end alike, and two are the same."""


def pair(residual: bool, rectified: bool, seed: int = 0) -> tuple[TextEncoder, arrays.TextEncoder]:
    torch.manual_seed(seed)
    network = TextEncoder(12, 5, 7, 6, "gru", 0.0, rectified, residual).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
        network.words.weight[PAD] = 3  # what padding is, must not matter
    weights = Weights.of({name: value.numpy() for name, value in network.state_dict().items()})
    return network, arrays.TextEncoder(weights, tiny_aligner_config(cell="gru", residual=residual, rectified=rectified))


@pytest.mark.parametrize(("residual", "rectified"), list(itertools.product([False, True], [False, True])))
@torch.no_grad()
def test_words_are_encoded_as_by_the_network(residual: bool, rectified: bool):
    network, encode = pair(residual, rectified)
    found, expected = encode(TOKEN_IDS), network(torch.from_numpy(TOKEN_IDS)).vectors
    assert found.dtype == np.float32 and found.shape == (8, 6, 6)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert not found[TOKEN_IDS == PAD].any() and found[TOKEN_IDS != PAD].any()
    assert (found >= 0).all() == rectified


def test_padding_and_other_sentences_change_nothing():
    _, encode = pair(True, False)
    together = encode(TOKEN_IDS)
    for row, sentence in enumerate(TOKEN_IDS):
        words = sentence[sentence != PAD]
        if len(words):
            np.testing.assert_allclose(encode(words[None])[0], together[row, : len(words)], atol=1e-6)
    assert encode(TOKEN_IDS[:0]).shape == (0, 6, 6)
    assert not encode(TOKEN_IDS[2:3]).any()
