"""Optimised graphs in the user's cache: the same answers, and no session fails because of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from photographs import noise
from tiny_bundle import exported_bundle

import saywhere
from saywhere.engines import onnx
from saywhere.engines.onnx import OnnxEngine
from saywhere.models.bundle import Bundle

Opened = list[str]
"""Of each session the path of its graph, or an empty text for a graph in memory."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for graphs of any size."""
    exported_bundle()  # which opens sessions of its own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(onnx, "LEAST_KEPT", 0)
    return tmp_path / "cache" / "saywhere" / "graphs"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found: Opened = []
    make = onnxruntime.InferenceSession

    def record(graph: Any, *arguments: Any, **named: Any) -> Any:
        found.append(graph if isinstance(graph, str) else "")
        return make(graph, *arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", record)
    return found


def maps(precision: str = "float32") -> list[np.ndarray]:
    engine = OnnxEngine(Bundle.read(exported_bundle()), 1, precision)
    (found,) = engine.trunk.encode([np.asarray(noise(96, 64, 0), np.float32).transpose(2, 0, 1)])
    return [found.output(f"region{stride}") for stride in found.strides]


def kept(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if (path / onnx.KEPT_SIZES).is_file())


def test_a_graph_is_kept_and_gives_the_same_answers_bit_for_bit(cache: Path, opened: Opened) -> None:
    first, again = maps(), maps()
    (place,) = kept(cache)
    assert opened == ["", str(place / onnx.KEPT_GRAPH)]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert sorted(path.name for path in cache.iterdir()) == [place.name], "nothing unfinished stays"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def scramble(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "name", "sessions"),
    [
        (cut, onnx.KEPT_WEIGHTS, 1), (cut, onnx.KEPT_GRAPH, 1), (scramble, onnx.KEPT_GRAPH, 2),
        (Path.unlink, onnx.KEPT_WEIGHTS, 1), (Path.unlink, onnx.KEPT_SIZES, 1), (cut, onnx.KEPT_SIZES, 1),
    ],
)  # fmt: skip
def test_a_damaged_graph_is_made_anew(
    cache: Path, opened: Opened, damage: Callable[[Path], None], name: str, sessions: int
) -> None:
    first = maps()
    (place,) = kept(cache)
    damage(place / name)
    opened.clear()
    assert all(np.array_equal(one, other) for one, other in zip(first, maps(), strict=True))
    assert len(opened) == sessions and opened[-1] == "" and kept(cache) == [place]
    maps()
    assert opened[-1] == str(place / onnx.KEPT_GRAPH)


def test_without_a_cache_sessions_are_opened_as_ever(
    cache: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # cannot be a folder
    first = maps()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    second = maps()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
    monkeypatch.setattr(onnx, "KEPT_GRAPH", "no-such-folder/graph.onnx")  # ONNX Runtime cannot write it
    third = maps()
    monkeypatch.undo()
    assert all(np.array_equal(one, other) for found in (second, third) for one, other in zip(first, found, strict=True))
    assert not cache.exists() or not list(cache.iterdir())


def test_each_processor_runtime_and_file_has_its_own(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "graph"
    file.write_bytes(b"1234")
    places = [onnx.kept_place([file], "1.0"), onnx.kept_place([file], "1.1")]
    os.utime(file, ns=(1, 1))
    places.append(onnx.kept_place([file], "1.0"))
    monkeypatch.setattr(onnx, "_processor", lambda: ["another"])
    places.append(onnx.kept_place([file], "1.0"))
    assert len({*places}) == 4 and onnx.kept_place([tmp_path / "missing"], "1.0") is None
    monkeypatch.setattr(onnx, "LEAST_KEPT", 5)
    assert onnx.kept_place([file], "1.0") is None, "it opens fast anyway"


def test_only_the_last_used_graphs_stay(cache: Path) -> None:
    maps()
    (place,) = kept(cache)
    for number in range(onnx.MOST_KEPT + 1):
        place.rename(cache / f"old{number}")
        os.utime(cache / f"old{number}", (number, number))
        maps()
    for name, age in (("killed", 2 * onnx.ABANDONED), ("now", 0)):
        (cache / f"{onnx.UNFINISHED}{name}").mkdir()
        os.utime(cache / f"{onnx.UNFINISHED}{name}", (time.time() - age, time.time() - age))
    place.rename(cache / "older")
    os.utime(cache / "older", (0, 0))
    maps()
    expected = {place.name, f"{onnx.UNFINISHED}now", *(f"old{n}" for n in range(2, onnx.MOST_KEPT + 1))}
    assert {path.name for path in cache.iterdir()} == expected


def test_of_two_that_make_a_graph_at_once_both_go_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = maps()
    monkeypatch.setattr(onnx, "is_kept", lambda place: False)  # as before the other one was done
    assert all(np.array_equal(one, other) for one, other in zip(first, maps(), strict=True))
    assert len(kept(cache)) == 1


def test_the_bundled_model_answers_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = [saywhere.load(threads=1).describe(noise(320, 240, 1)).to_dict() for _ in range(2)]
    assert found[0] == found[1] and len(kept(tmp_path / "cache/saywhere/graphs")) == 1
