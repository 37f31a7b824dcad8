"""Models of the command line: loaded late, with options of the part that the command uses."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from refusals import refuses
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model

from saywhere.engines import torch as torch_engine
from saywhere.engines.onnx import OnnxEngine
from saywhere.errors import UserError, explain_oom
from saywhere.loading import DeferredModel, Runtime, load_model
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> str:
    """A dense captioner and a captioner, which both have the option ``decoding.beam_size``."""
    root = tmp_path_factory.mktemp("models")
    densecap, captioner = tiny_model(), tiny_captioner(decoder="lstm")
    captioner.trunk.load_state_dict(densecap.trunk.state_dict(), strict=False)
    folders = [checkpoint.save(densecap, root / "densecap"), checkpoint.save(captioner, root / "captioner")]
    return str(checkpoint.merge(folders, root / "both"))


def test_options_are_those_of_the_part_that_the_command_uses(both):
    for part, changed in (("densecap", (2, 3)), ("captioner", (1, 2))):
        model = load_model(both, Runtime("cpu"), ["decoding.beam_size=2"], part)
        sizes = (model.densecap.config.decoding.beam_size, model.captioner.config.decoding.beam_size)
        assert sizes == changed
    other = load_model(both, Runtime("cpu"), ["densecap.decoding.beam_size=2"], "captioner")
    assert other.densecap is not None and other.densecap.config.decoding.beam_size == 2
    with pytest.raises(UserError, match=r"densecap\.decoding\.beam_size or captioner\.decoding\.beam_size"):
        load_model(both, Runtime("cpu"), ["decoding.beam_size=2"])


def test_the_configuration_is_read_without_the_weights(both, monkeypatch):
    loaded = []
    real = torch_engine.load
    monkeypatch.setattr(torch_engine, "load", lambda *a, **o: loaded.append(a) or real(*a, **o))
    deferred = DeferredModel(both, Runtime("cpu"), ["trunk.long_side=64"], "captioner")
    assert deferred.long_side == 64 and DeferredModel(both).long_side == 96 and loaded == []
    assert DeferredModel(both).workers == DeferredModel(None, Runtime("cpu", "torch", 3)).workers == 1
    assert DeferredModel(None, Runtime("cpu", threads=3)).workers == 3 and loaded == []
    assert deferred().long_side == 64 and deferred() is deferred() and len(loaded) == 1
    with pytest.raises(UserError, match="no model 'no-such-model'"):
        assert DeferredModel("no-such-model").long_side
    with pytest.raises(UserError, match="is not OPTION=VALUE"):
        assert DeferredModel(both, changes=["beam"]).long_side


def read_ahead() -> None:
    """Wait for the threads that read weights."""
    for thread in threading.enumerate():
        if thread.name == "saywhere-weights":
            thread.join()


def test_what_fails_ahead_is_left_to_the_question(monkeypatch, capfd):
    asked = []

    def fail(self: OnnxEngine, parts: Sequence[str]) -> None:
        asked.append(parts)
        raise ValueError("damaged")

    monkeypatch.setattr(OnnxEngine, "prepare", fail)
    assert DeferredModel(None, Runtime("cpu", "onnx"), ahead=("captioner",))().captioner is not None
    read_ahead()
    assert asked == [("captioner",)] and capfd.readouterr().err == ""


def test_too_little_memory_names_the_way_out():
    class OutOfMemoryError(RuntimeError):
        pass

    with pytest.raises(UserError, match="--batch 9; give a smaller one"), explain_oom(9):
        raise OutOfMemoryError("lots of lines")
    full = (MemoryError("Unable to allocate 12.5 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    for error in full:
        with pytest.raises(UserError, match="or a smaller trunk.long_side or beam_size"), explain_oom(9):
            raise error
    with pytest.raises(RuntimeError, match="another"), explain_oom(9):
        raise RuntimeError("another")


def test_the_trunk_is_opened_ahead_of_the_first_image_once_however_many_ask():
    model = DeferredModel(None, Runtime("cpu", "onnx"), ahead=("nouns",))
    model.begin()
    for thread in threading.enumerate():
        if thread.name == "saywhere-trunk":
            thread.join()
    engine = model().engine
    assert engine is model().engine and "_opened" in vars(engine.trunk)
    wrong = DeferredModel("no-such-model", ahead=("nouns",))
    refuses("no-such-model", wrong.begin)
