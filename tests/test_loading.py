"""Which engine runs a model, and one line where that cannot be."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses
from tiny_bundle import PARTS, exported_bundle

import saywhere
from saywhere import UserError
from saywhere.engines.onnx import OnnxEngine
from saywhere.engines.torch import TorchEngine


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its graph, as training leaves it."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    return Path(shutil.copytree(exported_bundle(), folder, ignore=shutil.ignore_patterns("trunk.*")))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, OnnxEngine),
        ({"device": "cpu"}, OnnxEngine),
        ({"engine": "onnx"}, OnnxEngine),
        ({"engine": "torch", "device": "cpu"}, TorchEngine),
        ({"options": {"final_nms": 0.3}, "threads": 1}, OnnxEngine),
    ],
)
def test_a_model_with_a_graph_runs_without_torch_unless_told(options: dict[str, Any], kind: type):
    model = saywhere.load(exported_bundle(), **options)
    assert type(model.engine) is kind and model.parts == PARTS and model.name == "tiny"
    assert model.require("densecap", "test").config.final_nms == (0.3 if "options" in options else 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name_or_folder": None}, "^a model is a name or a folder, not NoneType$"),
        ({"options": [1]}, "^options must be a mapping of names to values, not list$"),
        ({"options": {1: 2}}, "^no part of the model has the option 1; "),
    ],
)
def test_what_load_cannot_take_is_one_line(given: dict[str, Any], message: str):
    refuses(message, saywhere.load, **{"name_or_folder": exported_bundle(), **given})


def test_a_model_without_a_graph_runs_on_torch(trained: Path):
    assert isinstance(saywhere.load(trained, "cpu").engine, TorchEngine)
    with pytest.raises(UserError, match=r"model has no trunk\.onnx: make it with saywhere export, or use the engine t"):
        saywhere.load(trained, engine="onnx")


def test_devices_that_onnx_has_not_are_for_torch():
    with pytest.raises(UserError, match=r"^device abacus cannot be used here \(.+\); leave it out, or say cpu$"):
        saywhere.load(exported_bundle(), "abacus")
    with pytest.raises(
        UserError, match="^the engine onnx has no device 'mps'; there are cpu, cuda, coreml, directml, "
    ):
        saywhere.load(exported_bundle(), "mps", engine="onnx")


def test_a_model_moves_where_its_engine_runs():
    model = saywhere.load(exported_bundle())
    assert model.device == "cpu" and model.to("cpu") is model
    refuses("^the engine onnx has no device 'mps'; there are cpu, cuda, ", model.to, "mps")
    model = saywhere.load(exported_bundle(), engine="torch", device="cpu")
    seen = model.encode(np.zeros((64, 64, 3), np.uint8))
    assert model.device == "cpu" and model.to("cpu") is model and len(model.describe(seen, top=1)) <= 1
    refuses("^device abacus cannot be used", model.to, "abacus")
    assert model.to("meta").device == "meta"
    refuses("was made by another model; encode the image with this one$", model.describe, seen)


def failing(error: Exception) -> Any:
    """Stands in for ``importlib``: no module can be imported."""

    def import_module(_: str) -> Any:
        raise error

    return types.SimpleNamespace(import_module=import_module)


def test_unknown_engines_and_models_are_refused_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("saywhere.loading.importlib", failing(AssertionError("it was imported")))
    refuses("^no engine 'abacus'; there are onnx, torch$", saywhere.load, "flickr-coco", engine="abacus")
    refuses("^no model 'nothing': not a folder, and there are flickr-coco, large", saywhere.load, "nothing")


@pytest.mark.parametrize(
    ("package", "wanted"),
    [
        ("torch", r"torch: pip install 'saywhere\[torch\]'"),
        ("torchvision.ops", r"torchvision: pip install 'saywhere\[torch\]'"),
        ("onnxruntime", "onnxruntime: pip install onnxruntime"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch, trained: Path, package: str, wanted: str
):
    monkeypatch.setattr("saywhere.loading.importlib", failing(ModuleNotFoundError(name=package)))
    refuses(f"^{trained} needs the engine torch, .* {wanted}$", saywhere.load, trained)


def test_what_is_missing_inside_is_no_package_to_install(monkeypatch: pytest.MonkeyPatch, trained: Path):
    monkeypatch.setitem(sys.modules, "saywhere.engines.torch", None)
    with pytest.raises(ImportError, match=r"saywhere\.engines\.torch"):
        saywhere.load(trained)
