"""Which folders and names are models of transformers, and what is fetched from the hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from local_server import Answers, answering
from refusals import refuses

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
    said = refuses("", saywhere.load, put(tmp_path, {"model_type": kind}))
    assert said == (
        f"{tmp_path}: there is no adapter for models of the type {kind!r}, only for florence2, grounding-dino, owlv2"
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


def test_a_name_of_the_hub_is_fetched_once_without_code_and_pickles_and_a_revision_to_its_folder(hub: Hub):
    found = (hub.folder, FAMILIES["owlv2"], "a/b.c-1", "torch")
    assert find_adapted("hub:a/b.c-1") == find_adapted("hub:a/b.c-1") == found
    assert hub.asked == [("a/b.c-1", "config.json"), ("a/b.c-1", "*.json", "*.txt", "*.model", "*.safetensors", "*/*")]
    assert find_adapted("hub:a/rev", revision="v2", cache_dir="kept") is not None
    assert [row[-2:] for row in hub.asked[2:]] == [("v2", "kept")] * 2


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
    refuses("^no precision 'int3'; graphs of the hub have float32, ", find_adapted, "hub:a/x", precision="int3")


def test_nothing_is_fetched_of_another_family_or_of_our_own(hub: Hub):
    put(hub.folder, {"model_type": "llama"})
    refuses("^hub:a/llama: there is no adapter for models of the type 'llama', only for", find_adapted, "hub:a/llama")
    put(hub.folder, {"parts": {}})
    assert find_adapted("hub:a/own") is None
    assert [len(each) for each in hub.asked] == [2, 2]


class Served(Answers):
    """Stands in for the hub's server: large files are known by their SHA-256, others by Git's hash."""

    files: ClassVar[dict[str, bytes]] = {}
    damaged: ClassVar[set[str]] = set()
    cut: ClassVar[set[str]] = set()
    asked: ClassVar[list[str]] = []

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.answer(body, status, X_Repo_Commit=COMMIT, **headers)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path} {self.headers['Range'] or ''}".strip())
        if "/revision/" in path:
            self.send(json.dumps({"id": "me/tiny", "sha": COMMIT, "siblings": []}).encode())
        elif "/tree/" in path:
            rows = [{"type": "file", "path": n, "size": len(b), "oid": hashed(b)} for n, b in self.files.items()]
            for row in rows:
                if row["path"].startswith("onnx/"):
                    row["lfs"] = {"oid": hashed(self.files[row["path"]], True), "size": row["size"], "pointerSize": 9}
            self.send(json.dumps(rows).encode())
        elif (name := path.partition(f"/resolve/{COMMIT}/")[2] or path.partition("/resolve/v1/")[2]) in self.files:
            self.send_file(name, self.files[name])
        else:
            self.send(b"", 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def send_file(self, name: str, body: bytes) -> None:
        large = name.startswith("onnx/")
        named = {"ETag": f'"{hashed(body, large)}"', "Accept-Ranges": "bytes"}
        named |= {"X-Linked-Etag": f'"{hashed(body, large)}"', "X-Linked-Size": str(len(body))} if large else {}
        shown = body[:-1] + b"!" if name in self.damaged else body
        if self.command == "GET" and name in self.cut:
            self.cut.remove(name)
            self.send(shown[: len(body) // 2], **named, Content_Length=str(len(body)))
            self.close_connection = True
            return
        start = int((self.headers["Range"] or "bytes=0-")[6:].partition("-")[0])
        more = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        self.send(shown[start:], 206 if start else 200, **named, **more)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hashed(body: bytes, large: bool = False) -> str:
    return hashlib.sha256(body).hexdigest() if large else hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Served]]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    graph = np.random.default_rng(0).bytes(24 << 20)  # huggingface_hub keeps pieces of 10 MB
    Served.files = {"config.json": b'{"model_type": "grounding-dino"}', "tokenizer.json": b"{}", "code.py": b"evil()"}
    Served.files |= {"onnx/model.onnx": graph, "onnx/model_q4.onnx": graph[: 1 << 20], "model.safetensors": graph}
    with answering(Served) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield Served


def test_what_the_hub_sends_is_resumed_checked_and_then_kept(
    served: type[Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By huggingface_hub itself, in processes of their own: it reads its settings when it is imported."""
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")

    def fetch() -> tuple[str, str]:
        served.asked.clear()
        code = (
            "import sys; from saywhere.adapters.sources import find_adapted; from saywhere import UserError\n"
            f"try: print(find_adapted('hub:me/tiny', revision='v1', cache_dir={str(tmp_path)!r}).folder)\n"
            "except UserError as error: print(error)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    folder = tmp_path / "models--me--tiny" / "snapshots" / COMMIT
    served.damaged, served.cut = {"onnx/model.onnx"}, {"onnx/model.onnx"}
    said, shown = fetch()
    assert said == (
        "hub:me/tiny: onnx/model.onnx is not what the hub has, by its hash: it is removed from the cache; "
        "run the command again"
    )
    assert f"GET /me/tiny/resolve/{COMMIT}/onnx/model.onnx bytes={10 << 20}-" in served.asked and "%" in shown
    served.damaged = set()
    assert fetch()[0] == str(folder)
    kept = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert kept == {name: served.files[name] for name in ("config.json", "tokenizer.json", "onnx/model.onnx")}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch()[0] == str(folder) and served.asked == []
    (folder / "tokenizer.json").resolve().write_bytes(b"[]")  # a damage of the disk, of the same size
    assert "tokenizer.json is not what the hub has" in fetch()[0]


@pytest.mark.parametrize("name", ["hub:", "hub:a", "hub:a/b/c", "hub:a/b?c", "hub:/a", "hub: a/b"])
def test_a_name_that_is_none_is_not_looked_for(name: str, hub: Hub):
    refuses("a model of the hub is named hub:OWNER/NAME$", find_adapted, name)
    assert not hub.asked


def test_without_the_hub_there_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no connection\nat all")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=fail, snapshot_download=fail)
    )
    refuses("^hub:a/gone: is neither available from the hub nor in its cache: no co", saywhere.load, "hub:a/gone")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refuses(r"^hub:a/gone: downloading it needs huggingface_hub: pip install 'saywhere\[", saywhere.load, "hub:a/gone")


@pytest.mark.parametrize(("package", "extra"), [("transformers", "transformers"), ("tokenizers", "hub")])
def test_what_is_not_installed_is_named_with_the_way_to_it(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def import_module(_: str) -> Any:
        raise ModuleNotFoundError(name=package)

    monkeypatch.setattr("saywhere.loading.importlib", types.SimpleNamespace(import_module=import_module))
    with pytest.raises(UserError, match=rf"which needs {package}: pip install 'saywhere\[{extra}\]'$"):
        saywhere.load(put(tmp_path, {"model_type": "owlv2"}))
