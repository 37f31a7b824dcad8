"""``saywhere export`` as it is typed: one model of training checkpoints."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from albums import write_album
from commands import error_of, run
from onnx.shape_inference import infer_shapes_path
from photographs import noise
from tiny_bundle import exported_bundle, take_graph_again
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model

import saywhere
from saywhere import files
from saywhere.engines import quantize
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap

export = partial(run, "export")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """A dense captioner, and a captioner that was trained on its trunk."""
    root = tmp_path_factory.mktemp("runs")
    densecap = tiny_model()
    return checkpoint.save(densecap, root / "densecap"), checkpoint.save(captioner_on(densecap), root / "captioner")


@pytest.fixture(scope="module")
def both(folders, tmp_path_factory) -> Path:
    """One model of the two; their trunk is that of the tiny bundle, whose graph takes seconds."""
    out = tmp_path_factory.mktemp("exported") / "both"
    with pytest.MonkeyPatch.context() as patch:
        take_graph_again(patch)
        result = export(*folders, "--out", out)
    assert f"written: {out}" in result.stdout, result.output
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


def test_a_part_trained_anew_replaces_that_of_a_model(both, tmp_path, monkeypatch):
    take_graph_again(monkeypatch, both)
    anew = captioner_on(checkpoint.load_network(both, "densecap"))
    with torch.no_grad():
        anew.decoder.words.weight.copy_(anew.decoder.words.weight.flip(0))
    checkpoint.save(anew, tmp_path / "anew")
    refused = export(both, tmp_path / "anew", "--out", tmp_path / "new", code=2)
    assert "both have the part captioner; --replace takes " in refused.stderr
    export(both, tmp_path / "anew", "--replace", "--out", tmp_path / "new")
    noise(96, 64).save(tmp_path / "a.png")
    new, before = saywhere.load(tmp_path / "new"), saywhere.load(both)
    sentence = new.caption(tmp_path / "a.png").sentence
    assert sentence == saywhere.load(tmp_path / "anew").caption(tmp_path / "a.png").sentence
    assert sentence != before.caption(tmp_path / "a.png").sentence
    assert new.parts == before.parts
    assert new.describe(tmp_path / "a.png").captions == before.describe(tmp_path / "a.png").captions
    changes = ("--set", "trunk.long_side=64", "--set", "captioner.decoding.beam_size=1")
    export(tmp_path / "new", *changes, "--out", tmp_path / "small")
    small = saywhere.load(tmp_path / "small")
    assert small.long_side == 64 and small.captioner.config.decoding.beam_size == 1
    error_of(export(tmp_path / "new", "--set", "captioner.beam=1", "--out", tmp_path / "other", code=2))
    assert not (tmp_path / "other").exists()
    export(tmp_path / "small", tmp_path / "anew", "--replace", "--out", tmp_path / "sized")
    assert saywhere.load(tmp_path / "sized").long_side == 64
    export(tmp_path / "small", tmp_path / "anew", "--out", tmp_path / "unequal", code=2)


def test_a_disk_that_fills_up_is_one_line_and_leaves_the_model_before_or_none(both, tmp_path, monkeypatch):
    """Whichever file meets it, in the folder where it is made or where it is put."""
    out, sync = tmp_path / "new", files.sync
    shutil.copytree(both, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for last in (1, 18):
        calls = 0

        def full(file: Path | int, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls >= last:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(file)

        with monkeypatch.context() as patched:
            take_graph_again(patched, both)
            patched.setattr(files, "sync", full)
            result = export(both, "--out", out, code=2)
        assert calls == last
        assert result.stderr == (
            f"error: {out}: the disk is full; what is done stays. Free some space and run the same command again\n"
        )
        assert {p.name: p.read_bytes() for p in out.iterdir()} == before or not (out / "config.json").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["new"]
    take_graph_again(monkeypatch, both)
    export(both, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_images_for_int8_that_cannot_be_read_are_named_and_a_full_disk_is_one_line(tmp_path, monkeypatch):
    """The runtime does not notice that a file which it wrote was cut off. Names need not be UTF-8."""
    monkeypatch.setattr(quantize, "LEAST_KEPT", 0.0)  # an untrained network ranks anchors by chance
    take_graph_again(monkeypatch)
    data, start = tmp_path / os.fsdecode(b"data \xff"), tmp_path / os.fsdecode(b"model \xff")
    shutil.copytree(Bundle.read(exported_bundle()).folder, start)
    write_album(data, [{"split": "train"}] * 6)
    (data / "5.png").unlink()
    (data / "3.png").write_bytes((data / "3.png").read_bytes()[:-900])
    link = tmp_path / "new"  # a strict stream cannot print the other name
    link.symlink_to(tmp_path / os.fsdecode(b"new \xff"))
    link.readlink().mkdir()

    def cut(model: str, inferred: str, *rest: object) -> None:
        infer_shapes_path(model, inferred, *rest)
        os.truncate(inferred, 100)

    with monkeypatch.context() as patched:
        patched.setattr("onnx.shape_inference.infer_shapes_path", cut)
        full = export(start, "--out", link, "--int8", data, code=2)
    assert full.stderr.splitlines()[-1].startswith(f"error: {link}: the disk is full")
    assert not list(link.iterdir())
    result = export(start, "--out", link, "--int8", data, code=1)
    assert "train: missing image: 1 (5.png)" in result.stderr and result.stderr.count("/3.png: ") == 1
    assert "data ?/3.png: damaged image" in result.stderr
    noise(96, 64).save(tmp_path / "a.png")
    assert len(saywhere.load(link.readlink(), precision="int8").describe(tmp_path / "a.png", top=2)) == 2
    assert "without the int8 trunk" not in result.stdout
    assert "without the int8 trunk of its parts: --int8" in export(link, "--out", tmp_path / "whole").stdout


def test_parts_with_different_trunks_are_refused(folders, tmp_path):
    other = checkpoint.save(captioner_on(tiny_model(seed=7)), tmp_path / "other")
    assert "trunk" in error_of(export(folders[0], other, "--out", tmp_path / "both", code=2))
    assert not (tmp_path / "both").exists()
    twice = export(folders[0], folders[0], "--out", tmp_path / "both", code=2)
    assert f"densecap and {folders[0]} both have the part densecap" in twice.stderr
    assert "nowhere" in error_of(export(folders[0], tmp_path / "nowhere", "--out", tmp_path / "both", code=2))
