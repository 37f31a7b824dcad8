"""Which folders and names are models of transformers, and what is fetched from the hub."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import saywhere
from saywhere import UserError
from saywhere.adapters.sources import FAMILIES, find_adapted


def put(folder: Path, stored: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(stored if isinstance(stored, str) else json.dumps(stored))
    return folder


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_folder_is_known_by_its_type_of_model(kind: str, tmp_path: Path):
    found = find_adapted(put(tmp_path, {"model_type": kind}))
    assert found is not None and found == (tmp_path, FAMILIES[kind], None, "torch")
    assert find_adapted(str(tmp_path)) == found


@pytest.mark.parametrize("stored", [{"parts": {}}, {"parts": {}, "model_type": "owlv2"}, "no JSON", [1], "9" * 5000])
def test_other_folders_are_left_to_others(stored: object, tmp_path: Path):
    assert find_adapted(put(tmp_path, stored)) is None
    assert find_adapted("flickr-coco") is None and find_adapted(tmp_path / "nothing") is None


@pytest.mark.parametrize("kind", ["llama", None, ["owlv2"]])
def test_another_family_is_refused_by_name(kind: object, tmp_path: Path):
    with pytest.raises(UserError) as caught:
        saywhere.load(put(tmp_path, {"model_type": kind}))
    assert str(caught.value) == (
        f"{tmp_path}: there is no adapter for models of the type {kind!r}; there are florence2, grounding-dino, owlv2"
    )


class Hub:
    """Stands in for the hub: one repository, and what was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []

    def hf_hub_download(self, name: str, file: str, **hub: str) -> str:
        self.asked.append((name, file, *hub.values()))
        return str(self.folder / file)

    def snapshot_download(
        self, name: str, allow_patterns: list[str], ignore_patterns: Sequence[str] = (), **hub: str
    ) -> str:
        self.asked.append((name, *allow_patterns, *ignore_patterns, *hub.values()))
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(put(tmp_path / "hub", {"model_type": "owlv2"}))
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


def test_a_name_of_the_hub_is_fetched_once_without_code_and_pickles(hub: Hub):
    found = (hub.folder, FAMILIES["owlv2"], "a/b.c-1", "torch")
    assert find_adapted("hub:a/b.c-1") == find_adapted("hub:a/b.c-1") == found
    assert hub.asked == [("a/b.c-1", "config.json"), ("a/b.c-1", "*.json", "*.txt", "*.model", "*.safetensors", "*/*")]


def test_a_revision_is_fetched_to_the_folder_that_is_named(hub: Hub):
    assert find_adapted("hub:a/rev", revision="v2", cache_dir="kept") is not None
    assert [row[-2:] for row in hub.asked] == [("v2", "kept")] * 2


def test_graphs_are_fetched_in_one_precision_and_weights_where_there_are_none(hub: Hub):
    put(hub.folder, {"model_type": "grounding-dino"})
    words = ("*.json", "*.txt", "*.model")
    graphs = [("a/x", "onnx/model_q4.onnx*", "v2"), ("a/x", *words, "*/*", "v2")]
    weights = ("a/x", *words, "*.safetensors", "*/*", "v2")
    find_adapted("hub:a/x", None, None, "q4", revision="v2")
    assert hub.asked[1:] == [*graphs, weights]
    (hub.folder / "onnx").mkdir()
    (hub.folder / "onnx" / "model_q4.onnx").touch()
    for device, fetched in (("cpu", graphs), ("cuda", [weights, *graphs])):
        hub.asked.clear()
        found = find_adapted(f"hub:a/{device}", None, device, "q4", revision="v2")
        assert found == (hub.folder, FAMILIES["grounding-dino"], f"a/{device}", "onnx")
        assert [row[1:] for row in hub.asked[1:]] == [row[1:] for row in fetched]
    with pytest.raises(UserError, match="^no precision 'int3'; graphs of the hub have float32, "):
        find_adapted("hub:a/x", precision="int3")


def test_nothing_is_fetched_of_another_family_or_of_our_own(hub: Hub):
    put(hub.folder, {"model_type": "llama"})
    with pytest.raises(UserError, match="^hub:a/llama: there is no adapter for models of the type 'llama'; there are"):
        find_adapted("hub:a/llama")
    put(hub.folder, {"parts": {}})
    with pytest.raises(UserError, match=r"^hub:a/own is a model of saywhere's own: name it a/own$"):
        find_adapted("hub:a/own")
    assert [len(each) for each in hub.asked] == [2, 2]


@pytest.mark.parametrize("name", ["hub:", "hub:a", "hub:a/b/c", "hub:a/b?c", "hub:/a", "hub: a/b"])
def test_a_name_that_is_none_is_not_looked_for(name: str, hub: Hub):
    with pytest.raises(UserError, match="a model of the hub is named hub:OWNER/NAME$"):
        find_adapted(name)
    assert not hub.asked


def test_without_the_hub_there_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no connection\nat all")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=fail, snapshot_download=fail)
    )
    with pytest.raises(UserError, match="^hub:a/gone: the hub does not give it, and its cache does not have it: no co"):
        saywhere.load("hub:a/gone")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"^hub:a/gone: fetching it needs huggingface_hub: pip install 'saywhere\["):
        saywhere.load("hub:a/gone")


@pytest.mark.parametrize(("package", "extra"), [("transformers", "transformers"), ("tokenizers", "hub")])
def test_what_is_not_installed_is_named_with_the_way_to_it(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def import_module(_: str) -> Any:
        raise ModuleNotFoundError(name=package)

    monkeypatch.setattr("saywhere.loading.importlib", types.SimpleNamespace(import_module=import_module))
    with pytest.raises(UserError, match=rf"which needs {package}: pip install 'saywhere\[{extra}\]'$"):
        saywhere.load(put(tmp_path, {"model_type": "owlv2"}))
