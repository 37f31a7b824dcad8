"""Which changes of a model an index survives, on the engine torch."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_bundle import tiny_networks

from saywhere.engines.torch import TorchEngine


def digest(touched: str = "", **parts: dict[str, Any]) -> str:
    """That of a tiny model with these options, and with one other number in the part ``touched``."""
    networks = tiny_networks({"densecap": {}, "aligner": {}, **parts})
    if touched:
        name, weights = list(networks[touched].named_parameters())[-1]
        assert not name.startswith("trunk.")
        weights.data.add_(1)
    return TorchEngine(networks).vectors_digest()


@pytest.fixture(scope="module")
def plain() -> str:
    return digest()


def test_the_weights_of_the_aligner_count(plain) -> None:
    assert digest() == plain and digest("densecap") == plain and digest("aligner") != plain


def test_options_count_if_vectors_depend_on_them(plain) -> None:
    assert digest(densecap={"final_nms": 0.1}) == plain
    assert digest(aligner={"grounding": {"threshold": 0.9}, "beta": 2.0, "score": "fragments"}) == plain
    assert digest(aligner={"normalize": "both"}) != plain
    assert digest(aligner={"levels": [16]}) != plain
