"""The decoders in numpy give the probabilities, the words and the attention of the torch ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_captioner import tiny_config
from torch import nn

from saywhere.engines.arrays import decoders
from saywhere.engines.arrays.layers import Weights
from saywhere.networks.language.decoders.attention import AttentionDecoder, pad_regions
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.text import START

V, EMBED, REGION = 11, 6, 5
BUNDLED = ("word-state", "word-region", "word", "region")
TERM_SETS = (BUNDLED, ("word-state", "word"), ("word-region", "word"), ("word-state", "region"), ())
COUNTS = (4, 1, 0, 7)
"""Regions of the images."""


@torch.no_grad()
def drawn(network: nn.Module, std: float = 0.7) -> tuple[nn.Module, Weights]:
    """A network in eval mode with random weights and statistics, and these."""
    for parameter in network.parameters():
        parameter.normal_(std=std)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.get_buffer("running_mean").normal_()
            layer.get_buffer("running_var").uniform_(0.3, 2)
    network.eval()
    return network, Weights.of({name: value.numpy() for name, value in network.state_dict().items()})


def inputs(count: int, size: int = EMBED, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, size), scale=2).astype(np.float32)


def plain_pair() -> tuple[TorchDecoder, Any]:
    torch.manual_seed(0)
    network, weights = drawn(LstmDecoder(EMBED, V, 4, 7))
    return TorchDecoder(network, network.get_parameter("words.weight")), decoders.LstmDecoder(weights)  # pyright: ignore[reportArgumentType]


def attention_pair(
    terms: Sequence[str] = BUNDLED, counts: Sequence[int] = COUNTS, std: float = 0.7
) -> tuple[TorchDecoder, Any, Any]:
    """The bound decoders, and torch's attention of embeddings and token ids."""
    torch.manual_seed(0)
    network, weights = drawn(AttentionDecoder(EMBED, REGION, V, 4, 7, 0.0, terms, "none"), std)  # pyright: ignore[reportArgumentType]
    assert isinstance(network, AttentionDecoder)
    regions = [inputs(count, REGION, seed) for seed, count in enumerate(counts)]
    padded, mask = pad_regions([torch.from_numpy(rows) for rows in regions])
    config = tiny_config(terms=terms, region_size=REGION)

    def attend(embeddings: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(embeddings), padded, torch.from_numpy(token_ids), mask
        return network.attention(*rows, conditional=True).numpy()

    with torch.no_grad():
        theirs = TorchDecoder(network.bind(padded, mask), network.words.weight)
    return theirs, decoders.AttentionDecoder(weights, config).bind(regions), attend


def same_steps(theirs: TorchDecoder, ours: Any, embeddings: np.ndarray, beam_size: int = 1) -> None:
    """Log-probabilities of four words, between which hypotheses are reordered."""
    random = np.random.default_rng(0)
    n = len(embeddings)
    states = [
        decoder.select(decoder.start(embeddings), np.repeat(np.arange(n), beam_size)) for decoder in (theirs, ours)
    ]
    token_ids = np.full(n * beam_size, START)
    for _ in range(4):
        (expected, one), (found, two) = (d.step(token_ids, s) for d, s in zip((theirs, ours), states, strict=True))
        assert found.dtype == np.float32 and found.shape == (n * beam_size, V)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        order = (np.arange(n)[:, None] * beam_size + random.integers(0, beam_size, (n, beam_size))).reshape(-1)
        states = [theirs.select(one, order), ours.select(two, order)]
        token_ids = random.integers(0, V, n * beam_size)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_steps_of_decoders_without_attention(beam_size: int):
    theirs, ours = plain_pair()
    for count in (0, 1, 5):
        same_steps(theirs, ours, inputs(count), beam_size)
    assert (ours.never, ours.unknown, ours.independent) == (theirs.never, theirs.unknown, theirs.independent)


@pytest.mark.parametrize("terms", TERM_SETS)
def test_steps_of_attention(terms: Sequence[str]):
    theirs, ours, _ = attention_pair(terms)
    for beam_size in (1, 3):
        same_steps(theirs, ours, inputs(len(COUNTS)), beam_size)
    assert (ours.never, ours.unknown) == (theirs.never, theirs.unknown) and ours.independent


@pytest.mark.parametrize("terms", TERM_SETS)
@pytest.mark.parametrize("counts", [COUNTS, (0, 0), (3,)])
def test_weights_of_attention(terms: Sequence[str], counts: Sequence[int]):
    _, ours, attend = attention_pair(terms, counts)
    embeddings = inputs(len(counts))
    token_ids = np.random.default_rng(1).integers(4, V, (len(counts), 5))
    found, expected = ours.attention(token_ids), attend(embeddings, token_ids)
    assert found.dtype == np.float32 and found.shape == expected.shape == (len(counts), 6, max(counts))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for weights, count in zip(found, counts, strict=True):
        assert not weights[:, count:].any()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0 if count else 0.0, rtol=1e-5)


@pytest.mark.parametrize("std", [3.0, 12.0])
def test_scores_so_wide_that_sums_of_exponentials_could_vanish(std: float):
    theirs, ours, attend = attention_pair(std=std)
    embeddings = inputs(len(COUNTS))
    token_ids = np.random.default_rng(1).integers(4, V, (len(COUNTS), 1))
    np.testing.assert_allclose(ours.attention(token_ids), attend(embeddings, token_ids), atol=1e-3)
    states = theirs.start(embeddings), ours.start(embeddings)
    expected, found = (d.step(np.full(4, START), s)[0] for d, s in zip((theirs, ours), states, strict=True))
    assert np.isfinite(found).all() and found.min() < -60
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_rows_of_attention_may_be_dropped():
    _, ours, _ = attention_pair()
    state, rows = ours.start(inputs(4)), np.array([3, 1])
    whole, _ = ours.step(np.full(4, START), state)
    part, _ = ours.step(np.full(2, START), ours.select(state, rows))
    np.testing.assert_allclose(part, whole[rows], atol=1e-5)
    joined, _ = ours.step(np.full(3, START), ours.join([ours.select(state, np.array([r])) for r in (2, 0, 2)]))
    np.testing.assert_allclose(joined, whole[[2, 0, 2]], atol=1e-5)
