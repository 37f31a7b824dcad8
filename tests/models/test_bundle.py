"""Model folders: what is read, and one line of what is wrong with them, whatever it is."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import noise
from refusals import refuses
from stubs import calibrated
from tiny_bundle import PARTS, exported_bundle, take_graph_again
from tiny_densecap import VOCABULARY, tiny_config

import saywhere
from saywhere import UserError
from saywhere.engines.export import export
from saywhere.engines.onnx import OnnxEngine
from saywhere.models.bundle import CONFIG, FILES, Bundle, GraphInfo, find_folder, list_models
from saywhere.models.bundle import VOCABULARY as WORDS

Place = tuple[str | int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny model and an image; what a test changes there, the next test must write again."""
    root = tmp_path_factory.mktemp("bundle")
    noise(96, 64).save(root / "a.png")
    return Path(shutil.copytree(exported_bundle(), root / "model"))


def stored(name: str = CONFIG) -> Any:
    return json.loads((exported_bundle() / name).read_text())


@pytest.fixture
def write(folder: Path) -> Iterator[Callable[[str, Any], Path]]:
    """Writes a file of the folder as JSON, or as it is if it is bytes."""

    def writer(name: str, content: Any) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return folder

    yield writer
    for name in (CONFIG, WORDS):
        shutil.copy(exported_bundle() / name, folder / name)


# What is read


def test_all_that_a_folder_says_is_read(folder: Path):
    bundle, config = Bundle.read(folder), stored()
    assert bundle.folder == folder and bundle.description == "a tiny model"
    assert tuple(bundle.configs) == tuple(bundle.vocabularies) == PARTS
    assert bundle.configs["densecap"] == tiny_config() and bundle.trunk == tiny_config().trunk
    assert bundle.vocabularies["densecap"] == VOCABULARY
    assert list(bundle.mean) == config["preprocess"]["mean"] and list(bundle.std) == config["preprocess"]["std"]


def test_a_folder_is_read_again_when_it_has_changed(folder: Path, tmp_path: Path):
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    first = Bundle.read(copied)
    assert Bundle.read(str(copied)) is first
    stored = json.loads((copied / CONFIG).read_text())
    (copied / CONFIG).write_text(json.dumps({**stored, "description": "something longer than before"}))
    assert Bundle.read(copied).description == "something longer than before"
    counts = json.loads((copied / WORDS).read_text())
    part = next(iter(first.configs))
    counts[part]["counts"]["wordwordword"] = 1
    (copied / WORDS).write_text(json.dumps(counts))
    assert "wordwordword" in Bundle.read(copied).vocabularies[part]


def test_options_that_are_left_out_have_their_defaults(write: Callable[..., Path]):
    config = stored()
    config["parts"] = {"densecap": {"embed_dim": 32, "proposals": {"hidden_size": 16}}}
    del config["description"], config["saywhere"]
    read = Bundle.read(write(CONFIG, config)).configs["densecap"]
    assert (read.embed_dim, read.hidden_size, read.proposals.hidden_size) == (32, 384, 16)
    assert read.proposals.post_nms_top_n == 100 and read.trunk == tiny_config().trunk


def test_options_may_be_changed(folder: Path):
    bundle = Bundle.read(folder)
    changed = bundle.with_options({"captioner.decoding.beam_size": 5, "final_nms": 0.25, "trunk.long_side": 128})
    assert changed.configs["captioner"].decoding.beam_size == 5 and changed.configs["densecap"].final_nms == 0.25
    assert changed.trunk.long_side == 128 and {c.trunk.long_side for c in changed.configs.values()} == {128}
    assert bundle.trunk.long_side == 96 and bundle.with_options({}).configs == bundle.configs
    for options, message in (
        ({"decoding.beam_size": 3}, "an option of several parts: set densecap.* or captioner.decoding.beam_size"),
        ({"final_nms": 7}, "final_nms is 7.0, but must be between 0 and 1"),
    ):
        refuses(message, bundle.with_options, options)


# Where models are


def test_the_bundled_models_have_names():
    assert "flickr-coco" in list_models() and all(list_models().values())
    assert find_folder("flickr-coco").name == "flickr-coco" and Bundle.read("flickr-coco").configs.keys() == {
        *PARTS,
        "nouns",
    }


def test_a_folder_comes_before_a_bundled_model_of_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert find_folder(folder) == find_folder(str(folder)) == folder
    shutil.copytree(folder, folder.parent / "flickr-coco", dirs_exist_ok=True)
    monkeypatch.chdir(folder.parent)
    assert find_folder("flickr-coco") == Path("flickr-coco")


def test_names_of_nothing():
    for name in ("nothing", "./no/thing", "/no/thing", "~/thing"):
        refuses(f"^no model '{name}': not a folder, and there are flickr-coco, large", find_folder, name)


def test_a_hub_id_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def download(name: str, allow_patterns: list[str], **hub: str) -> str:
        asked.append((name, set(FILES) <= set(allow_patterns), *hub.items()))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=download))
    assert find_folder("hub:someone/model") == folder and asked == [("someone/model", True)]
    where = {"revision": "v2", "cache_dir": "models"}
    assert find_folder("hub:someone/model", **where) == folder and asked[1] == ("someone/model", True, *where.items())
    for local in (folder, "flickr-coco"):
        with pytest.raises(UserError, match=f"^{local}: revision is only for models of the hub, and this one is local"):
            saywhere.load(local, revision="v2")

    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no connection\nat all")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fail))
    with pytest.raises(UserError, match="^hub:someone/model: is neither available from the hub nor .*: no connection$"):
        find_folder("hub:someone/model")
    for name in ("someone/model", "runs/typo"):  # a path that was mistyped must not be looked for on the hub
        refuses(f"^no model '{name}': .*; a model of the .* hub is named hub:{name}$", find_folder, name)
    refuses("^hub:model: a model of the hub is named hub:OWNER/NAME$", find_folder, "hub:model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"^hub:someone/model: downloading it needs huggingface_hub: pip install 'say"):
        find_folder("hub:someone/model")


# What is wrong


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    for other in FILES:
        if other != name:
            shutil.copy(exported_bundle() / other, tmp_path / other)
    for find in (Bundle.read, find_folder):
        refuses(f"^{tmp_path} is not a saywhere model: {name} is missing$", find, tmp_path)


@pytest.mark.parametrize("name", [CONFIG, WORDS])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1,", b"\0", b"nonsense", b'"text', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_json_is_one_line(write: Callable[..., Path], name: str, content: bytes):
    refuses(rf"{name} cannot be read as JSON: ", Bundle.read, write(name, content))


def test_a_key_that_is_there_twice_is_named(write: Callable[..., Path], folder: Path):
    text = (folder / CONFIG).read_text()
    twice = text.replace('  "parts": {', '  "trunk": {},\n  "parts": {', 1)
    assert twice != text
    with pytest.raises(UserError, match=r"config\.json cannot be read as JSON: the key 'trunk' is there twice$"):
        Bundle.read(write(CONFIG, twice.encode()))
    marked = Bundle.read(write(CONFIG, b"\xef\xbb\xbf" + text.encode()))
    assert marked.configs == Bundle.read(folder).configs


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), [1], r"config\.json must be a JSON object, not list"),
        (("trunk",), None, r"config\.json: trunk is missing"),
        (("trunk", "colour"), 1, r"config\.json: unknown key trunk\.colour; it is misspelt, or another version of"),
        (
            ("parts", "aligner", "word_vectors"),
            "",
            r"unknown key parts\.aligner\.word_vectors; .*: make the model again$",
        ),
        (("trunk", "strides"), [16, 8], r"config\.json: trunk\.strides is \(16, 8\), but must be one or more, asc"),
        (("parts",), {}, r"config\.json: parts is empty: the model can do nothing"),
        (("parts", "poet"), {}, r"config\.json: unknown part 'poet'; known are densecap, aligner, captioner"),
        (("parts", "aligner"), None, r"config\.json: parts\.aligner is missing"),
        (("parts", "aligner", "trunk"), {}, r"parts\.aligner\.trunk: the trunk's options stand at the top"),
        (("parts", "densecap", "final_nms"), 1.5, r"parts\.densecap\.final_nms is 1\.5, but must be between 0 and 1"),
        (("preprocess",), None, r"config\.json: preprocess is missing"),
        (("preprocess", "mean"), [0.5, 0.5, True], r"preprocess\.mean must be three numbers, not "),
        (("preprocess", "mean"), [0.5, 0.5, math.inf], r"preprocess\.mean must be three numbers, not "),
        (("preprocess", "mean"), [0.5, 0.5, 10**400], r"preprocess\.mean must be three numbers, not "),
        (("preprocess", "std"), [0.5, 0.0, 0.5], r"preprocess\.std must be three numbers above 0, not "),
        (("description",), 3, r"config\.json: description must be a string, not 3"),
    ],
)
def test_a_wrong_value_is_named(write: Callable[..., Path], place: Place, value: Any, message: str):
    assert refuses(message, Bundle.read, write(CONFIG, changed(stored(), place, value))).count("config.json") == 1


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), [], r"vocabulary\.json must be a JSON object, not list"),
        (("aligner",), None, r"vocabulary\.json: aligner is not a vocabulary: no mapping with counts of words"),
        (("aligner",), {}, "aligner is not a vocabulary: no mapping with counts"),
        (("aligner", "reserved"), ["<pad>"], r"vocabulary\.json: aligner is not .* unknown reserved tokens"),
        (("aligner", "counts"), ["dog"], "no mapping with counts"),
        (("aligner", "counts"), {"dog": "many"}, "the count of 'dog' is not a whole number"),
        (("aligner", "counts"), {"<unk>": 3}, "reserved token '<unk>'"),
    ],
)
def test_a_wrong_vocabulary_is_named(write: Callable[..., Path], place: Place, value: Any, message: str):
    refuses(message, Bundle.read, write(WORDS, changed(stored(WORDS), place, value)))


def test_a_part_without_a_vocabulary_is_named(write: Callable[..., Path]):
    words = stored(WORDS)
    del words["captioner"]
    refuses(r"vocabulary\.json has no vocabulary of the part captioner$", Bundle.read, write(WORDS, words))


def test_messages_show_no_line_breaks_or_escapes_of_the_file_and_are_not_long(write: Callable[..., Path]):
    for key in ("a\nb", "a\x1b[31mb", "a\ud800b", "a\u2028b", "x" * 5000):
        with pytest.raises(UserError, match=r"config\.json: unknown key trunk\.") as caught:
            Bundle.read(write(CONFIG, changed(stored(), ("trunk", key), 1)))
        assert str(caught.value).isprintable() and len(str(caught.value)) < 500


# Any one change


def changed(value: Any, place: Place, new: Any) -> Any:
    """``value`` with something else at a place; ``...`` takes out what is there."""
    if not place:
        return new
    value = copy.copy(value)
    if len(place) == 1 and new is ...:
        del value[place[0]]
    elif isinstance(value, dict) and len(place) == 1:
        value[place[0]] = new
    else:
        value[place[0]] = changed(value[place[0]], place[1:], new)
    return value


def places(value: Any, so_far: Place = ()) -> list[Place]:
    """All places in nested mappings and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [so_far, *(place for key, item in items for place in places(item, (*so_far, key)))]


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


WRONG = st.sampled_from(
    [None, math.nan, math.inf, -math.inf, "", "text", "nan", "1", 3.5, -1, 0, True, False, [], {}, [[]], [None], [1, 2],
     {"a": 1}, [math.nan] * 3, [[[1, 2]]], 10**400, ...]
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn, name: str) -> tuple[Place, Any, Any]:
    """A place, what is put there, and the file's content with it: another value, none, or a key more."""
    content = stored(name)
    place = draw(st.sampled_from(places(content)))
    if isinstance(at(content, place), dict) and draw(st.booleans()):
        place = (*place, draw(st.text(max_size=4) | st.sampled_from(["trunk", "densecap", "decoding", "a\nb"])))
        new = draw(WRONG.filter(lambda value: value is not ...))
    else:
        new = draw(WRONG if place else WRONG.filter(lambda value: value is not ...))
    return place, new, changed(content, place, new)


def read(folder: Path, name: str, content: Any) -> Bundle | UserError:
    """The model of the folder with this file, or the one error there is."""
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    try:
        return Bundle.read(folder)
    except UserError as error:
        assert str(error).isprintable() and name in str(error), error
        return error
    finally:
        shutil.copy(exported_bundle() / name, folder / name)


def plain(value: Any) -> Any:
    """As JSON holds it, numbers in texts as numbers."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


@settings(max_examples=200)
@given(change=changes(CONFIG))
def test_any_change_of_the_configuration_is_read_or_refused_in_a_line(folder: Path, change: Any):
    place, new, content = change
    bundle = read(folder, CONFIG, content)
    if isinstance(bundle, UserError):
        return
    now = {
        **content,
        "trunk": bundle.trunk.to_dict(),
        "description": bundle.description,
        "preprocess": {**content["preprocess"], "mean": bundle.mean, "std": bundle.std},
        "parts": {part: config.to_dict() for part, config in bundle.configs.items()},
    }
    if new is not ... and not isinstance(new, dict):  # a mapping leaves out what has a default
        assert repr(plain(at(now, place))) == repr(plain(new))  # nan is no other nan's equal
    try:  # options may be legal, and not those of the weights
        engine = OnnxEngine(bundle)
    except UserError as error:
        assert str(error).isprintable() and str(folder) in str(error)
    else:
        assert {p for p in PARTS if p in bundle.configs} == set(bundle.configs) and engine.digest()


@settings(max_examples=100)
@given(change=changes(WORDS))
def test_any_change_of_the_vocabulary_is_read_or_refused_in_a_line(folder: Path, change: Any):
    place, new, content = change
    bundle = read(folder, WORDS, content)
    if isinstance(bundle, UserError):
        return
    if place[1:2] == ("counts",) and len(place) == 3:
        assert bundle.vocabularies[str(place[0])].counts.get(str(place[2]), ...) == new
    same = {part: len(words["counts"]) + 4 for part, words in stored(WORDS).items()}
    try:
        OnnxEngine(bundle)
        assert {part: len(words) for part, words in bundle.vocabularies.items()} == same
    except UserError as error:
        assert "do not fit its vocabulary" in str(error) and str(error).isprintable()


def test_what_a_graph_takes_is_read(folder: Path):
    info = GraphInfo.read(folder)
    assert len(info.graph) == len(info.trunk) == 64
    folded = [weight for weight in info.weights.values() if weight.normalisation]
    assert folded and all(weight.eps > 0 and weight.kind in ("weight", "bias") for weight in folded)


@settings(max_examples=60)
@given(change=changes("trunk.json"))
def test_any_change_of_what_a_graph_takes_is_read_or_refused_in_a_line(folder: Path, change: Any):
    (folder / "trunk.json").write_text(json.dumps(change[2]), encoding="utf-8")
    try:
        info = GraphInfo.read(folder)
        assert isinstance(info.graph, str)
    except UserError as error:
        assert str(error).isprintable() and "trunk.json" in str(error)
    finally:
        shutil.copy(exported_bundle() / "trunk.json", folder / "trunk.json")


# Calibration


def test_answers_and_digests_depend_on_the_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = shutil.copytree(exported_bundle(), tmp_path / "model")
    before = {engine: saywhere.load(folder, engine=engine) for engine in ("onnx", "torch")}
    calibrated(box=(0.0, 0.0, 0.0, 0.0)).write(folder)
    for engine, plain in before.items():
        model = saywhere.load(folder, engine=engine)
        assert set(model.describe(noise(96, 64)).scores.tolist()) == {0.5}
        assert model.engine.digest() != plain.engine.digest()
    take_graph_again(monkeypatch)
    again = export([folder], tmp_path / "again")
    assert Bundle.read(again).calibration == Bundle.read(folder).calibration
    (folder / "calibration.json").write_text('{"box": 1}')
    refuses("calibration.json: box must be a mapping of logit, confidence, area, constant", Bundle.read, folder)


def test_the_shipped_configuration_is_read_without_checks_as_with_them(tmp_path: Path) -> None:
    shipped = Bundle.read(saywhere.DEFAULT_MODEL)
    digest = hashlib.sha256((shipped.folder / CONFIG).read_bytes()).hexdigest()
    assert shipped.shipped, f"SHIPPED of models/bundle.py must be {digest}"
    shutil.copytree(shipped.folder, copied := tmp_path / "copy", ignore=shutil.ignore_patterns("*.onnx"))
    checked = Bundle.read(copied)
    assert not checked.shipped and not shipped.with_options({"densecap.final_nms": 0.5}).shipped
    as_json = [json.dumps([each.to_dict() for each in (b.trunk, *b.configs.values())]) for b in (shipped, checked)]
    assert as_json[0] == as_json[1]
    assert (shipped.trunk, shipped.configs) == (checked.trunk, checked.configs)


def test_threads_that_read_a_model_at_the_same_time_get_the_same_one(folder: Path) -> None:
    (folder / CONFIG).touch()
    start = threading.Barrier(8)

    def read(_: int) -> Bundle:
        start.wait()
        return Bundle.read(folder)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    assert all(bundle is found[0] for bundle in found)
