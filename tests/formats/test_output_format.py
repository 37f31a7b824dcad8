"""``describe --output-format``: the results of a run, for another program, in one command."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from commands import error_of, run

from saywhere.cli.options import ResultFormat
from saywhere.files import TOO_LONG
from saywhere.formats.registry import FORMATS
from tests import photographs
from tests.stubs import StubModel, load_by

OTHERS = [name for name in FORMATS if name != "saywhere"]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubModel:
    stub = StubModel()
    load_by(monkeypatch, lambda *_, **__: stub)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    for name, (width, height) in {"a.jpg": (300, 200), "sub/b.png": (100, 160)}.items():
        path = Path("album", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        photographs.quarters(width, height).save(path)
    return stub


def tree(path: Path) -> dict[str, bytes]:
    """Every file at or below a path, by its place below it."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_the_options_name_every_format() -> None:
    assert [one.value for one in ResultFormat] == list(FORMATS)


@pytest.mark.parametrize("name", OTHERS)
def test_it_writes_what_convert_results_writes(model: StubModel, name: str) -> None:
    if needed := FORMATS[name].needs:
        pytest.importorskip(needed)
    done = run("describe", "album", "--output-format", name, "--out", "out")
    place = Path("out", FORMATS[name].name)
    assert f"written: out/regions.jsonl, {place}" in done.stdout
    run("convert-results", "out/regions.jsonl", "--to", name, "--out", "again")
    assert tree(place) == tree(Path("again"))
    assert tree(place)
    assert not [path for path in Path("out").rglob("*") if path.suffix in (".jpg", ".png") or ".part" in path.name]


def test_what_somebody_may_have_corrected_is_not_written_over(model: StubModel) -> None:
    for name in ("coco", "yolo"):
        run("describe", "album", "--output-format", name, "--out", name)
        before, described = tree(Path(name)), len(model.batches)
        again = run("describe", "album", "--output-format", name, "--out", name, code=2)
        place = f"{name}/{FORMATS[name].name}"
        assert again.stderr == f"error: {place}: already exists; give another --out, or remove it first\n"
        assert (tree(Path(name)), len(model.batches)) == (before, described)


@pytest.mark.parametrize("name", ["yolo", "voc", "fiftyone"])
def test_images_that_the_format_cannot_tell_apart_are_told_before_any_is_described(model: StubModel, name: str) -> None:
    photographs.quarters(20, 20).save("album/a.png")
    error = error_of(run("describe", "album", "--output-format", name, "--out", "out", code=2))
    assert error.startswith("error: album/a.png and album/a.jpg: ") and "rename one" in error
    assert not model.batches


def test_a_folder_is_whole_or_not_there(model: StubModel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def full(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "b.xml":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    words = ("describe", "album", "--output-format", "voc", "--out", "out")
    monkeypatch.setattr(os, "replace", full)
    error = error_of(run(*words, code=2))
    assert error.startswith("error: out/voc: ")
    assert [*tree(Path("out"))] == [".regions.jsonl.settings.json", "regions.jsonl"]
    monkeypatch.setattr(os, "replace", real)
    run(*words)
    assert len(tree(Path("out/voc"))) == 2


def test_images_that_cannot_be_read_are_left_out_and_named(model: StubModel) -> None:
    Path("album/c.jpg").write_bytes(b"\xff\xd8 broken")
    done = run("describe", "album", "--output-format", "csv", "--out", "out", "--json", "lines.jsonl", code=1)
    assert "skipped: album/c.jpg" in done.stderr
    assert "written: lines.jsonl, out/regions.csv" in done.stdout
    assert "c.jpg" not in Path("out/regions.csv").read_text()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--output-format", "coco"), "--output-format coco needs --out DIR"),
        (("--output-format", "coco", "--out", "o", "--json", "j", "--shards", 2), "and no --output-format"),
        (("--output-format", "csv", "--out", "o", "--json", "o/regions.csv"), "is where the result is written"),
        (("--output-format", "yolo", "--out", "o", "--json", "o/yolo/lines.jsonl"), "is where the result is written"),
    ],
)
def test_user_errors(model: StubModel, words: tuple[object, ...], wrong: str) -> None:
    done = run("describe", "album", *words, code=2)
    assert (done.stderr.count("\n"), model.batches) == (1, [])
    assert wrong in done.stderr


@pytest.mark.parametrize("name", ["yolo", "voc"])
def test_images_whose_names_are_too_long_cost_only_themselves(model: StubModel, name: str) -> None:
    """A name may have 255 bytes; with another ending it may not have them any more."""
    longest, too_long = "x" * 251 + ".jpg", "y" * 250
    photographs.quarters(60, 40).save(Path("album", longest))
    photographs.quarters(60, 40).save(Path(f"{too_long}.jpeg"))
    Path(f"{too_long}.jpeg").rename(f"{too_long}12345")
    done = run("describe", "album", f"{too_long}12345", "--output-format", name, "--out", "out", code=1)
    assert done.stderr == f"skipped: {too_long}12345: {TOO_LONG}\n"
    assert "4 described, " in done.stdout and "1 skipped" in done.stdout
    written = [file.name for file in Path("out").rglob("*") if file.suffix in (".xml", ".txt")]
    assert len(written) == 3 and any(len(file) == 255 for file in written)
    again = run("convert-results", "out/regions.jsonl", "--to", name, "--out", "again", code=1)
    assert again.stderr.endswith(done.stderr) and "written: again, 3 images" in again.stdout
    assert tree(Path("again")) == tree(Path("out", FORMATS[name].name))
