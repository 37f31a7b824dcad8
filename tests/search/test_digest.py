"""Which changes of a model an index survives, with the bundled model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file
from tiny_bundle import tiny_networks

import saywhere
from saywhere import UserError
from saywhere.engines.torch import TorchEngine
from saywhere.models.bundle import WEIGHTS, find_folder

HARMLESS: tuple[dict[str, Any], ...] = (
    {"densecap.final_nms": 0.1},
    {"captioner.decoding.beam_size": 3},
    {"aligner.grounding.threshold": 0.9, "aligner.beta": 2.0, "aligner.size_bonus": 1.0},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"trunk.long_side": 320},
    {"aligner.proposals.nms_iou": 0.9},
    {"aligner.signed_sqrt": False},
)


def test_options_count_if_vectors_depend_on_them() -> None:
    def digest(options: dict[str, Any] | None = None) -> str:
        return saywhere.load(options=options).engine.vectors_digest()

    assert all(digest(options) == digest() for options in HARMLESS)
    assert len({digest(), *map(digest, OTHERS)}) == 1 + len(OTHERS)


def test_the_weights_of_the_aligner_count(tmp_path: Path) -> None:
    bundled = find_folder(saywhere.DEFAULT_MODEL)
    parts = ("densecap.", "aligner.encoders.", "aligner.hubs.images.", "aligner.hubs.texts.", "aligner.projects.")
    for part, counts in zip(parts, (False, False, False, True, True), strict=True):
        folder = tmp_path / part
        shutil.copytree(bundled, folder)
        weights = load_file(bundled / WEIGHTS)
        name = max(name for name in weights if name.startswith(part))
        save_file({**weights, name: weights[name] + np.ones_like(weights[name])}, folder / WEIGHTS)
        digests = [saywhere.load(each).engine.vectors_digest() for each in (bundled, folder)]
        assert (digests[0] != digests[1]) == counts


def test_an_index_stays_valid_until_its_vectors_would_be_others(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)).save(tmp_path / "a.png")
    with saywhere.Index(tmp_path / "i", saywhere.load()) as made:
        made.add(tmp_path / "a.png")
    for options in HARMLESS:
        with saywhere.Index(tmp_path / "i", saywhere.load(options=options)) as same:
            assert len(same.search("a dog")) == 1
    for options in OTHERS:
        other = saywhere.Index(tmp_path / "i", saywhere.load(options=options))
        with other, pytest.raises(UserError, match="made it in another version, or with other --precision"):
            other.search("a dog")


def digest(touched: str = "", **parts: dict[str, Any]) -> str:
    """That of a tiny model with these options, and with other numbers in the weights ``touched``."""
    networks = tiny_networks({"densecap": {}, "aligner": {}, **parts})
    if touched:
        part, _, name = touched.partition(".")
        networks[part].get_parameter(name).data.add_(1)
    return TorchEngine(networks).vectors_digest()


@pytest.fixture(scope="module")
def plain() -> str:
    return digest()


def test_weights_and_options_count_in_torch(plain) -> None:
    assert digest() == plain and digest("densecap.decoder.output.bias") == plain
    assert digest("aligner.encoders.0.decode.bias") == plain and digest("aligner.projects.0.bias") != plain
    assert digest(densecap={"final_nms": 0.1}) == plain
    assert digest(aligner={"grounding": {"threshold": 0.9}, "beta": 2.0, "score": "fragments"}) == plain
    assert digest(aligner={"signed_sqrt": False}) != plain
    assert digest(aligner={"levels": [16]}) != plain
