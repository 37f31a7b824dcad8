"""The files of the page without a server, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import run
from refusals import refuses

import saywhere
from saywhere.engines.arrays.layers import Weights
from saywhere.models.bundle import CONFIG, GRAPH, GRAPH_WEIGHTS, VOCABULARY, WEIGHTS, Bundle
from saywhere.web import runtime
from saywhere.web.runtime import BINARY, PACKAGE, SCRIPT, WebRuntime, fetch
from saywhere.web.site import EXTERNAL, MANIFEST, MOST_HYPOTHESES, model_files, page_files, trunk_weights, write_site
from saywhere.web.weights import half, rounded, single

LIMIT = 38_000_000
"""Bytes of everything that a browser may fetch."""
OF_RUNTIME = 3_800_000
"""Bytes of ONNX Runtime's files as they travel, rounded up."""


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.read(saywhere.DEFAULT_MODEL)


@pytest.fixture(scope="module")
def files(bundle: Bundle) -> dict[str, bytes]:
    return page_files() | model_files(bundle)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that counts as the right one, with files of a few bytes."""
    path = tmp_path / "package" / PACKAGE
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name, data in ((SCRIPT, b"export {};\n//# sourceMappingURL=ort.map\n"), (BINARY, b"\0asm")):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    known = runtime.integrity(path.read_bytes())
    monkeypatch.setattr(runtime, "INTEGRITY", known)
    return path


export = partial(run, "export")


def test_all_of_it_is_below_the_limit(files: dict[str, bytes]) -> None:
    assert sum(map(len, files.values())) + OF_RUNTIME < LIMIT


def test_the_page_names_only_files_that_there_are(files: dict[str, bytes]) -> None:
    there = {*files, "engine/ort.mjs", "engine/ort.wasm.gz"}
    sources = {name: data.decode() for name, data in files.items() if name.endswith((".js", ".html"))}
    index = sources.pop("index.html")
    assert {*re.findall(r'(?:src|href)="([^"#:]+)"', index)} - there == set()
    assert "Content-Security-Policy" in index
    named = {(name, target) for name, text in sources.items() for target in re.findall(r'from "\./([^"]+)"', text)}
    assert {f"{name.partition('/')[0]}/{target}" for name, target in named} <= there
    assert {"model/trunk.bin.gz", "model/densecap.bin.gz", "model/nouns.bin.gz", "model/captioner.bin.gz"} <= there
    assert not [name for name, text in sources.items() if re.search(r"https?://", text)]


def test_the_browser_gets_the_words_and_the_shapes(files: dict[str, bytes], bundle: Bundle) -> None:
    info = json.loads(gzip.decompress(files[MANIFEST]))
    assert info["parts"] == ["densecap", "captioner"] and info["name"] == saywhere.DEFAULT_MODEL
    assert tuple(info["densecap"]["vocabulary"]) == bundle.vocabularies["densecap"].tokens
    beams = {part: info[part]["config"]["decoding"]["beam_size"] for part in ("densecap", "captioner")}
    own = {part: bundle.configs[part].decoding.beam_size for part in beams}
    assert beams == {part: min(size, MOST_HYPOTHESES) for part, size in own.items()}
    assert beams["captioner"] < own["captioner"] and beams["densecap"] == own["densecap"] > 1
    sizes = {"half": 2, "rounded": 1.5, "single": 4}
    for part, arrays in info["arrays"].items():
        numbers = dict.fromkeys(sizes, 0)
        rows = 0
        for array in arrays:
            numbers[array["kind"]] += int(np.prod(array["shape"]))
            rows += array["shape"][0] if array["kind"] != "single" else 0
        expected = sum(count * sizes[kind] for kind, count in numbers.items()) + 4 * rows
        assert len(gzip.decompress(files[f"model/{part}.bin.gz"])) == int(np.ceil(expected))


def test_the_graph_takes_its_weights_from_one_file(files: dict[str, bytes], bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(gzip.decompress(files["model/trunk.onnx.gz"]))
    arrays = trunk_weights(bundle, Weights.open(bundle.folder / WEIGHTS).below("trunk"))
    (tmp_path / EXTERNAL).write_bytes(b"".join(array.unpacked().tobytes() for array in arrays.values()))
    session = onnxruntime.InferenceSession(tmp_path / GRAPH, providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).normal(size=(1, 3, 64, 96)).astype(np.float32)
    maps = saywhere.load(threads=1).engine.trunk.encode([pixels[0]])[0]
    names = [output.name for output in session.get_outputs()]
    for name, found in zip(names, session.run(names, {"pixels": pixels}), strict=True):
        np.testing.assert_allclose(found[0], maps.output(name), rtol=1e-4, atol=1e-4)


def test_rounded_weights_are_near() -> None:
    values = np.random.default_rng(1).normal(size=(4, 4000)).astype(np.float32) * [[1], [1e-3], [0], [30]]
    values[0, 0] = 60  # far from the others: the row takes larger steps
    found = rounded(values)
    steps = np.maximum(np.sqrt((values**2).mean(axis=1)) / 48, np.abs(values).max(axis=1) / 2047)
    assert np.abs(found.values).max() <= 2047
    assert (np.abs(found.unpacked() - values) <= steps[:, None] * 0.501).all()
    exact = values.astype(np.float16)
    np.testing.assert_array_equal(half(exact).unpacked(), exact.astype(np.float32))
    np.testing.assert_array_equal(single(values[0]).unpacked(), values[0].astype(np.float32))


def test_the_command_writes_the_page_and_writes_it_again(package: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    result = export("--web", site, "--runtime", package)
    assert f"written: {site}" in result.stdout and "http.server" in result.stdout
    assert (site / "engine" / "ort.mjs").read_text() == "export {};\n"
    assert gzip.decompress((site / "engine" / "ort.wasm.gz").read_bytes()) == b"\0asm"
    notices = (site / "NOTICES.txt").read_text()
    assert "WordNet" in notices and "Copyright (c) Microsoft" in notices
    assert not [path for path in site.rglob("*") if path.name.endswith(".part")]
    (site / "index.html").write_text("old")
    export("--web", site, "--runtime", package, saywhere.DEFAULT_MODEL)
    assert "<title>saywhere</title>" in (site / "index.html").read_text()


def refused(*arguments: object) -> str:
    result = export(*arguments, code=2)
    assert result.stderr.count("\n") == 1, result.output
    return result.stderr


def test_what_does_not_fit_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("of another site")
    assert "give another folder" in refused("--web", tmp_path, "--runtime", package)
    assert (tmp_path / "index.html").read_text() == "of another site"
    assert "one model" in refused("--web", tmp_path / "a", "one", "two")
    assert "no model 'nowhere'" in refused("--web", tmp_path / "a", "nowhere")
    assert "--out" in refused()
    assert "--web" in refused("a", "--out", tmp_path / "b", "--runtime", package)
    assert not (tmp_path / "a").exists()


def test_a_model_without_regions_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    for name in (WEIGHTS, VOCABULARY, GRAPH, GRAPH_WEIGHTS):
        (tmp_path / name).symlink_to(bundle.folder / name)
    config = json.loads((bundle.folder / CONFIG).read_text())
    del config["parts"]["densecap"]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    refuses("has no part densecap", write_site, tmp_path, tmp_path / "site")


def test_another_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.tgz").write_bytes(b"another")
    refuses("its SHA-512 differs", WebRuntime.open, tmp_path / "other.tgz")
    refuses("cannot be read", WebRuntime.open, tmp_path / "nowhere.tgz")


def test_the_package_is_fetched_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "cache"
    programs.mkdir()
    npm = programs / "npm"
    npm.write_text(f'#!/bin/sh\n/bin/cp "{package}" "$4"\n')  # npm pack NAME --pack-destination FOLDER
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)  # npm itself runs in another folder
    assert fetch(Path("cache")).read_bytes() == package.read_bytes()
    npm.unlink()
    assert fetch(folder) == folder / PACKAGE
    refuses("npm, which is not installed", fetch, tmp_path / "other")
    npm.write_text("#!/bin/sh\necho offline >&2\nexit 1\n")
    npm.chmod(0o755)
    refuses(r"npm cannot fetch .* \(offline\)", fetch, tmp_path / "other")
    npm.write_text(f'#!/bin/sh\necho damaged > "$4/{PACKAGE}"\n')
    refuses("its SHA-512 differs", fetch, tmp_path / "other")
    assert [*(tmp_path / "other").iterdir()] == []
