"""The trunk in int8: what it changes, what it is tied to, and what is refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from albums import write_noise
from commands import run
from refusals import refuses
from tiny_bundle import exported_bundle, take_graph_again

import saywhere
from saywhere.engines import quantize
from saywhere.engines.export import export
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.models.bundle import GRAPH_INT8, WEIGHTS


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(write_noise(tmp_path_factory.mktemp("images"), 6).iterdir())


@pytest.fixture(scope="module")
def both(images: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its graph in both precisions."""
    folder = tmp_path_factory.mktemp("int8") / "model"
    shutil.copytree(exported_bundle(), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "CHECKED", 2)
        patch.setattr(quantize, "LEAST_KEPT", 0.0)  # an untrained network ranks anchors by chance
        share = quantize.quantize(folder, images)
    assert 0 < share <= 1
    return folder


def test_maps_are_nearly_those_of_single_precision(both: Path, images: list[Path]) -> None:
    maps = []
    for precision in ("float32", "int8"):
        trunk = saywhere.load(both, precision=precision, threads=1).engine.trunk
        (found,) = trunk.encode([trunk.preprocess(open_image(images[0]))])
        maps.append(found.outputs)
    assert maps[0].keys() == maps[1].keys()
    for name, exact in maps[0].items():
        rough = maps[1][name]
        assert exact.shape == rough.shape
        assert not np.array_equal(exact, rough), name
        cosine = (exact * rough).sum() / np.sqrt((exact**2).sum() * (rough**2).sum())
        assert cosine > 0.95, name


def test_all_questions_are_answered(both: Path, images: list[Path]) -> None:
    model = saywhere.load(both, precision="int8", threads=1)
    seen = model.encode(images[0])
    assert len(model.describe(seen)) and model.caption(seen).image == str(images[0])
    done = run("describe", images[0], "--model", both, "--precision", "int8")
    assert "caption" in done.stdout


def test_two_precisions_are_two_models(both: Path) -> None:
    digests = [saywhere.load(both, precision=p).digest() for p in ("float32", "int8", None)]
    assert digests[0] == digests[2] != digests[1]


def test_a_graph_of_other_weights_is_refused(both: Path, images: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(both, other)
    data = bytearray((other / WEIGHTS).read_bytes())
    data[-2] ^= 1  # the last numbers of the file are the trunk's
    (other / WEIGHTS).write_bytes(bytes(data))
    refuses(f"{GRAPH_INT8} does not belong to", saywhere.load(other, precision="int8").encode, images[0])
    (other / GRAPH_INT8).write_bytes(b"none")
    refuses(f"{GRAPH_INT8} cannot be loaded", saywhere.load(other, precision="int8").encode, images[0])


def test_what_there_is_not_is_named(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"has no trunk-int8\.onnx: make it with saywhere export --int8"):
        saywhere.load(exported_bundle(), precision="int8")
    refuses("no precision 'int4'; there are float32 and int8", saywhere.load, both, precision="int4")
    refuses("torch computes in float32, not in int8", saywhere.load, both, precision="int8", engine="torch")
    (tmp_path / "a.jpg").write_bytes(b"no image")
    for none in ([], [tmp_path / "a.jpg", tmp_path / "b.jpg"]):
        refuses("needs training images: there are none that can be read", quantize.quantize, both, none)
    monkeypatch.setitem(sys.modules, "onnx", None)
    refuses(r"pip install 'saywhere\[torch\]'", quantize.quantize, both, [Path("a.jpg")])


def test_a_trunk_that_int8_does_not_suit_gets_none(
    both: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(exported_bundle(), folder)
    monkeypatch.setattr(quantize, "CHECKED", 1)
    monkeypatch.setattr(quantize, "LEAST_KEPT", 1.1)
    refuses("this trunk needs float32", quantize.quantize, folder, images[:2])
    assert not (folder / GRAPH_INT8).exists()


def test_an_export_without_int8_leaves_no_older_graph(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_graph_again(monkeypatch)
    out = tmp_path / "model"
    shutil.copytree(both, out)
    export([exported_bundle()], out)
    assert not (out / GRAPH_INT8).exists()
