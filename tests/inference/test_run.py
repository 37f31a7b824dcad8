"""Runs as Python users call them; the commands that call them have their tests in tests/cli."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import rows, run
from refusals import refuses
from tiny_bundle import exported_bundle

import saywhere
from saywhere.errors import UserError
from saywhere.inference import find_images, run_images
from saywhere.loading import CONTENT, DeferredModel
from tests import photographs
from tests.stubs import StubModel


class Loaded(StubModel):
    """A model that was loaded before."""

    name, engine = "mine", SimpleNamespace()

    def digest(self) -> str:
        return "0123"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loaded:
    monkeypatch.setattr(saywhere, "load", lambda *_, **__: pytest.fail("loaded again"), raising=False)
    monkeypatch.chdir(tmp_path)
    return Loaded()


def test_a_run_says_what_became_of_the_images_and_goes_on(loaded: Loaded) -> None:
    _, bad = photographs.write_album(Path("album"), 12, 3)
    seen: list[tuple[str, int, int]] = []
    first = saywhere.describe(
        "album", loaded, json="r.jsonl", out="drawn", top=1, each=lambda one, so_far: seen.append(
            (one.source.name, len(one.result or ()), so_far.done))
    )  # fmt: skip
    assert (first.count, first.done, first.already, first.regions) == (12, 9, 0, 9)
    assert list(first.skipped) == bad and str(first) == "9 described, 9 regions; 3 skipped"
    assert first.written == [Path("r.jsonl"), Path("drawn")]
    assert seen == [(str(row["image"]), 1, number) for number, row in enumerate(rows("r.jsonl"), 1)]
    loaded.batches.clear()
    again = saywhere.describe(["album"], loaded, json="r.jsonl", out="drawn", top=1)
    assert str(again) == "0 described, 0 regions; 9 already in r.jsonl; 3 skipped"
    assert again.written == [] and loaded.batches == []
    with pytest.raises(UserError, match=r"r\.jsonl: was started with other options \(top: 1, now not set\)"):
        saywhere.describe("album", loaded, json="r.jsonl", top=None)
    refuses("^threshold must be a probability, not 30$", saywhere.describe, "album", loaded, threshold=30)
    for wrong in (None, 3, [None]):
        refuses("^images must be a path or several, not ", saywhere.describe, wrong, loaded)


def test_a_loaded_model_and_the_command_continue_the_file_of_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    photographs.write_album(Path("album"), 3, 0)
    bundle, command = exported_bundle(), ("describe", "album", "--model", exported_bundle())
    plain, changed = saywhere.load(bundle), saywhere.load(bundle, options={"densecap.final_nms": 0.3})
    assert saywhere.describe("album", plain, json="python.jsonl").done == 3
    assert "3 already in python.jsonl" in run(*command, "--json", "python.jsonl").stdout
    run(*command, "--json", "command.jsonl", "--set", "densecap.final_nms=0.3")
    assert saywhere.describe("album", changed, json="command.jsonl").already == 3
    other = r"with other options \(set: densecap\.final_nms=0\.3, now \)"
    refuses(other, saywhere.describe, "album", plain, json="command.jsonl")
    torch = saywhere.load(bundle, engine="torch")  # whose weights may have been trained since
    assert torch.origin is None and DeferredModel(torch).facts == {"model": torch.digest()}


def test_results_of_other_weights_are_not_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    photographs.write_album(Path("album"), 3, 0)
    shutil.copytree(exported_bundle(), "my")
    before = saywhere.load("my")
    saywhere.describe("album", before, json="r.jsonl")
    note = Path(".r.jsonl.settings.json")
    noted = json.loads(note.read_text())
    assert all(noted[name] == value for name, value in DeferredModel("my").facts.items())
    config = Path("my/config.json")
    config.touch()
    assert saywhere.describe("album", saywhere.load("my"), json="r.jsonl").already == 3
    config.touch()
    unused = saywhere.load("my")
    config.write_text(config.read_text() + " ")
    assert saywhere.describe("album", before, json="r.jsonl").already == 3  # the files were read while they were there
    refuses("my/config.json: has changed since the model was loaded; load", getattr, DeferredModel(unused), "facts")
    other = r"with other options \(files of the model: [0-9a-f]{16}, now [0-9a-f]{16}\)"
    refuses(other, saywhere.describe, "album", saywhere.load("my"), json="r.jsonl")
    run("describe", "album", "--model", "my", "--json", "r.jsonl", code=2)
    old = {name: value for name, value in noted.items() if name != CONTENT}
    note.write_text(json.dumps(old))  # as earlier versions noted it
    assert saywhere.describe("album", saywhere.load("my"), json="r.jsonl").already == 3


@pytest.mark.parametrize("call", [saywhere.describe, saywhere.follow])
def test_lines_are_not_printed_in_python(call: Any, loaded: Loaded) -> None:
    photographs.write_album(Path("album"), 1, 0)
    for wrong, message in (("-", "^json='-': only commands print lines"), (5, "^json must be a path, not int")):
        refuses(message, call, "album", loaded, json=wrong)
        refuses("^out must be a path, not list", call, "album", loaded, out=[5])
    assert not Path("-").exists()
    refuses("^boxes must be a path, not list", saywhere.describe, "album", loaded, boxes=[[1, 2, 3, 4]])


def test_top_0_keeps_all_regions_as_the_command_does(loaded: Loaded) -> None:
    photographs.write_album(Path("album"), 3, 0)
    assert saywhere.describe("album", loaded, json="r.jsonl", top=0).regions == 6
    assert saywhere.describe("album", loaded, json="r.jsonl", top=None).already == 3


def test_nothing_is_printed_unless_asked_for(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    photographs.write_album(Path("album"), 3, 0)
    told: list[str] = []
    done = saywhere.describe("album", loaded)
    assert (done.done, done.regions, done.written) == (3, 6, []) and capsys.readouterr() == ("", "")
    saywhere.describe("album", loaded, json="r.jsonl", tell=lambda message, err=False: told.append(message))
    assert told == ["3 described, 6 regions", "written: r.jsonl"] and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("classes", [["person", "dog"], ("dog", "person"), "person, dog"])
def test_classes_are_given_as_names(classes, loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs.noise(48, 32).save("a.png")
    found = saywhere.Regions(48, 32, [[0, 0, 9, 9]] * 3, [0.9] * 3, ("the sky", "a brown dog", "a boy"))
    monkeypatch.setattr(Loaded, "answer", lambda self, image, boxes: found)
    monkeypatch.setattr(Loaded, "densecap", None, raising=False)
    kept: list[object] = []
    saywhere.describe(
        "a.png", loaded, classes=classes, each=lambda one, _: kept.append(one.result and one.result.captions)
    )
    assert kept == [("a brown dog", "a boy")]
    refuses("^classes must be a string or a list of strings, not int$", saywhere.describe, "a.png", loaded, classes=[3])


def test_a_run_in_shards_says_what_became_of_the_images(loaded: Loaded) -> None:
    photographs.write_album(Path("album"), 4, 0)
    done = saywhere.describe("album", loaded, json="r.jsonl", shards=2)
    assert (done.done, done.written) == (4, [Path("r.jsonl")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"shards": 0, "json": "r.jsonl"}, "shards must be a whole number of at least 1, not 0"),
        ({"top": -1}, "top must be a whole number of at least 0, not -1"),
        ({"threshold": "0.5"}, "threshold must be a number, not '0.5'"),
    ],
)
def test_impossible_counts_are_refused_at_once(options, message, loaded: Loaded) -> None:
    photographs.noise(48, 32).save("a.png")
    refuses(message, saywhere.describe, "a.png", loaded, **options)
    assert not Path("r.jsonl").exists() and loaded.batches == []


def test_an_impossible_batch_is_refused_by_every_run_over_images(loaded: Loaded) -> None:
    photographs.noise(48, 32).save("a.png")
    with pytest.raises(UserError, match="batch must be a whole number of at least 1, not 0"):
        list(run_images(lambda images, _: images, find_images(["a.png"]), batch=0))
