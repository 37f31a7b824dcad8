"""``saywhere export`` as it is typed: one model of training checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import noise
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model
from typer.testing import CliRunner, Result

import saywhere
from saywhere import cli
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap


def export(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """A dense captioner, and a captioner that was trained on its trunk."""
    root = tmp_path_factory.mktemp("runs")
    densecap = tiny_model()
    return checkpoint.save(densecap, root / "densecap"), checkpoint.save(captioner_on(densecap), root / "captioner")


@pytest.fixture(scope="module")
def both(folders, tmp_path_factory) -> Path:
    """One model of the two; its graph takes seconds."""
    out = tmp_path_factory.mktemp("exported") / "both"
    result = export(*folders, "--out", out)
    assert result.exit_code == 0 and f"written: {out}" in result.stdout, result.output
    return out


def captioner_on(densecap: DenseCap) -> Captioner:
    """A captioner of whole images, whose trunk has the same backbone and no pyramid."""
    captioner = tiny_captioner()
    captioner.trunk.load_state_dict(densecap.trunk.state_dict(), strict=False)
    return captioner


def test_one_model_answers_as_its_parts_do(folders, both, tmp_path):
    densecap, captioner = folders
    noise(96, 64).save(tmp_path / "a.png")
    model = saywhere.load(both)
    assert model.parts == ("densecap", "captioner")
    assert model.caption(tmp_path / "a.png").sentence == saywhere.load(captioner).caption(tmp_path / "a.png").sentence
    found, expected = (saywhere.load(f).describe(tmp_path / "a.png") for f in (both, densecap))
    assert found.captions == expected.captions  # weights are rounded to half precision
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.1)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (both, densecap, captioner)]
    assert sizes[0] < sum(sizes[1:])


def test_a_part_trained_anew_replaces_that_of_a_model(both, tmp_path):
    anew = captioner_on(checkpoint.load_network(both, "densecap"))
    with torch.no_grad():
        anew.decoder.words.weight.copy_(anew.decoder.words.weight.flip(0))
    checkpoint.save(anew, tmp_path / "anew")
    refused = export(both, tmp_path / "anew", "--out", tmp_path / "new")
    assert refused.exit_code == 2 and "both have the part captioner" in refused.stderr
    result = export(both, tmp_path / "anew", "--replace", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    noise(96, 64).save(tmp_path / "a.png")
    new, before = saywhere.load(tmp_path / "new"), saywhere.load(both)
    sentence = new.caption(tmp_path / "a.png").sentence
    assert sentence == saywhere.load(tmp_path / "anew").caption(tmp_path / "a.png").sentence
    assert sentence != before.caption(tmp_path / "a.png").sentence
    assert new.parts == before.parts
    assert new.describe(tmp_path / "a.png").captions == before.describe(tmp_path / "a.png").captions
    again = export(
        tmp_path / "new",
        "--set",
        "trunk.long_side=64",
        "--set",
        "captioner.decoding.beam_size=1",
        "--out",
        tmp_path / "small",
    )
    assert again.exit_code == 0, again.output
    small = saywhere.load(tmp_path / "small")
    assert small.long_side == 64 and small.captioner.config.decoding.beam_size == 1
    wrong = export(tmp_path / "new", "--set", "captioner.beam=1", "--out", tmp_path / "other")
    assert wrong.exit_code == 2 and wrong.stderr.count("\n") == 1 and not (tmp_path / "other").exists()
    sized = export(tmp_path / "small", tmp_path / "anew", "--replace", "--out", tmp_path / "sized")
    assert sized.exit_code == 0 and saywhere.load(tmp_path / "sized").long_side == 64
    assert export(tmp_path / "small", tmp_path / "anew", "--out", tmp_path / "unequal").exit_code == 2


def test_parts_with_different_trunks_are_refused(folders, tmp_path):
    other = checkpoint.save(captioner_on(tiny_model(seed=7)), tmp_path / "other")
    result = export(folders[0], other, "--out", tmp_path / "both")
    assert result.exit_code == 2 and "trunk" in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "both").exists()
    twice = export(folders[0], folders[0], "--out", tmp_path / "both")
    assert twice.exit_code == 2 and "both have the part densecap" in twice.stderr
    missing = export(folders[0], tmp_path / "nowhere", "--out", tmp_path / "both")
    assert missing.exit_code == 2 and "nowhere" in missing.stderr and missing.stderr.count("\n") == 1
