"""``saywhere index`` and ``saywhere search`` as they are typed, on a tiny aligner."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import commands
import numpy as np
import pytest
from albums import write_noise
from commands import error_of
from photographs import noise
from PIL import Image
from stubs import calibrated
from tiny_aligner import SENTENCES, tiny_aligner
from tiny_bundle import exported_bundle
from typer.testing import Result

import saywhere
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    return write_noise(tmp_path_factory.mktemp("album"), 4)


@pytest.fixture(scope="module")
def index(aligner, album, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("indexes") / "i"
    run("index", album, "--index", folder, "--model", aligner)
    return folder


def run(*arguments: object, code: int = 0) -> Result:
    return commands.run(*arguments, "--device", "cpu", code=code)


def started(command: list[object]) -> subprocess.Popen[str]:
    """A command in a process of its own, whose output is read line by line."""
    words = [sys.executable, "-m", "saywhere", *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_index_counts_what_it_did_and_names_what_it_skipped(aligner, tmp_path) -> None:
    write_noise(tmp_path, 3)
    (tmp_path / "bad.png").write_bytes(b"no image")
    command = ("index", tmp_path, "--index", tmp_path / "i", "--model", aligner, "--batch", 2)
    first = run(*command, code=1)
    assert first.stdout == "3 added, 0 updated, 0 unchanged, 0 removed, 1 skipped\n"
    assert first.stderr == f"skipped: {tmp_path}/bad.png: not an image in a known format\n"
    (tmp_path / "bad.png").unlink()
    (tmp_path / "0.png").unlink()
    again = run(*command, "--components", 4)
    assert again.output == "0 added, 0 updated, 2 unchanged, 1 removed, 0 skipped\n"
    vectors = tmp_path / "i" / "vectors-1.bin"  # a third was forgotten, so the files were written anew
    vectors.write_bytes(vectors.read_bytes()[:-2])
    assert "--repair" in error_of(run("search", "two dogs", "--index", tmp_path / "i", code=2))
    repaired = run(*command, "--repair")
    assert repaired.stdout == "0 added, 1 updated, 1 unchanged, 0 removed, 0 skipped\n"
    run("search", "two dogs", "--index", tmp_path / "i")
    for path in tmp_path.glob("*.png"):
        path.unlink()
    emptied = run(*command)
    assert emptied.stdout == "0 added, 0 updated, 0 unchanged, 2 removed, 0 skipped\n"
    assert emptied.stderr == f"note: {tmp_path}: has no images left; those it had leave the index\n"
    assert "no images in this folder" in error_of(run(*command, code=2))


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    return path


def test_files_of_a_moved_folder_are_removed_by_a_pattern(aligner, tmp_path) -> None:
    noise(48, 32, 0).save(made(tmp_path / "a/b/0.png"))
    command = ("--index", tmp_path / "i", "--model", aligner)
    run("index", tmp_path / "a", *command)
    (tmp_path / "a").rename(tmp_path / "c")
    told = error_of(run("index", tmp_path / "a", *command, code=2))
    way = f"give '{tmp_path}/a/*' to remove its 1 file from the index"
    assert told == f"error: {tmp_path}/a: no such file or folder; {way}\n"
    removed = run("index", tmp_path / "c", f"{tmp_path}/a/*", *command)
    assert removed.stdout == "1 added, 0 updated, 0 unchanged, 1 removed, 0 skipped\n"


@pytest.mark.parametrize("options", [(), ("--poll", "0.2")])
def test_a_watched_index_equals_a_fresh_one(options, tmp_path, monkeypatch) -> None:
    """Files are copied, renamed, half written, changed and deleted while it runs; names are those given."""
    monkeypatch.chdir(tmp_path)
    model = exported_bundle()  # which needs no torch
    if not options:
        pytest.importorskip("watchfiles")
    album, place = tmp_path / "album", tmp_path / "album" / "i"
    (album / "sub").mkdir(parents=True)
    for number in range(3):
        noise(96, 64, number).save(album / f"first-{number}.png")
    (album / "bad.png").write_bytes(b"no image")
    command = ["index", "album", "--index", place, "--model", model, "--device", "cpu", "--watch", *options]
    process = started(command)
    lines = [process.stdout.readline()]
    assert lines == ["3 added, 0 updated, 0 unchanged, 0 removed, 1 skipped\n"]
    for number in range(80):
        path = album / ("sub" if number % 2 else "") / f"{number:03}.png"
        data = tmp_path / "data.png"
        noise(48, 32, number).save(data)
        path.write_bytes(data.read_bytes()[: -100 if number % 5 == 0 else None])  # the rest comes later
        if number % 5 == 0:
            path.write_bytes(data.read_bytes())
        if number % 7 == 0:
            path.rename(path.with_name(f"renamed-{number}.png"))
        elif number % 11 == 0:
            path.unlink()
    (album / "first-0.png").unlink()
    noise(96, 64, 9).save(album / "first-1.png")
    for last in ("yyy.png", "zzz.png"):  # a look that began before the changes above may find the first of them
        noise(96, 64, 10).save(album / last)
        while last not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "removed: album/first-0.png\n" in lines and "updated: album/first-1.png\n" in lines
    assert errors.count("bad.png: not an image") == 1 and "Ctrl-C ends" in errors
    with saywhere.Index(place) as watched, saywhere.Index(tmp_path / "fresh", str(model)) as fresh:
        fresh.add(sorted(str(path) for path in album.rglob("*.png")))
        kept = set(watched.store.stamps())
        assert kept == set(fresh.store.stamps()) and rest == f"{len(kept)} in {place}\n"
        for path in kept:
            one, other = watched.store.load(path), fresh.store.load(path)
            np.testing.assert_array_equal(one.vectors, other.vectors)
    for wrong in (("--poll", 1), ("--watch", "--shards", 2)):
        run("index", album, "--index", place, *wrong, code=2)


def test_a_watch_sees_folders_that_are_made_again(tmp_path) -> None:
    """Also one that took the place of a folder that was moved away, and folders in it."""
    pytest.importorskip("watchfiles")
    album = tmp_path / "album"
    album.mkdir()
    noise(48, 32, 0).save(album / "0.png")
    command = ["index", album, "--index", tmp_path / "i", "--model", exported_bundle(), "--device", "cpu", "--watch"]
    process = started(command)
    lines = [process.stdout.readline(), process.stderr.readline()]
    shutil.rmtree(album)
    lines.append(process.stderr.readline())
    assert lines[-1].startswith(f"skipped: {tmp_path / 'i'}: {album}: no such file or folder; give '{album}/*'"), lines
    for number, folder in enumerate((album, album / "sub", album), 1):
        if number == 3:
            album.rename(tmp_path / "old")
        folder.mkdir()
        noise(48, 32, number).save(folder / f"{number}.png")
        while not lines[-1].startswith("added") or f"{number}.png" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0] == f"1 in {tmp_path / 'i'}\n" and process.returncode == 0


def test_a_watch_waits_for_the_first_image_and_keeps_other_folders_up_to_date(aligner, tmp_path, monkeypatch) -> None:
    albums = [tmp_path / "one", tmp_path / "two"]
    for album in albums:
        album.mkdir()
    added = (albums[1] / "2.png", albums[1] / "3.png", albums[0] / "1.png")
    steps = iter(added)

    def sleep(seconds: float) -> None:
        if (path := next(steps, None)) is None:
            raise KeyboardInterrupt
        noise(48, 32, int(path.stem)).save(path)

    monkeypatch.setattr("saywhere.cli.index.time.sleep", sleep)
    command = ("index", *albums, "--index", tmp_path / "i", "--model", aligner)
    result = run(*command, "--watch", "--poll", 1)
    assert result.stdout.splitlines() == [*(f"added: {path}" for path in added), f"3 in {tmp_path}/i"]
    assert result.stderr.splitlines()[0].startswith(f"waiting for images: {albums[0]}: no images in this folder")
    assert len(result.stderr.splitlines()) == 2
    (tmp_path / "empty").mkdir()
    run("index", tmp_path / "empty", *command[3:], code=2)
    gone = run("index", tmp_path / "gone", *command[3:], "--watch", code=2)
    assert "gone: no such file or folder" in gone.stderr


def test_a_watch_goes_on_where_there_are_more_folders_than_the_system_watches(aligner, tmp_path, monkeypatch) -> None:
    watchfiles = pytest.importorskip("watchfiles")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("OS file watch limit reached.")

    def sleep(seconds: float) -> None:
        if (tmp_path / "1.png").exists():
            raise KeyboardInterrupt
        noise(48, 32, 1).save(tmp_path / "1.png")

    noise(48, 32, 0).save(tmp_path / "0.png")
    monkeypatch.setattr(watchfiles, "watch", refuse)
    monkeypatch.setattr("saywhere.cli.index.time.sleep", sleep)
    result = run("index", tmp_path, "--index", tmp_path / "i", "--model", aligner, "--watch")
    assert result.stdout.splitlines()[1:] == [f"added: {tmp_path}/1.png", f"2 in {tmp_path}/i"]
    assert "note: more folders than the system can watch; scanning every 2 s" in result.stderr


def test_codes_are_proposed_for_a_large_index(aligner, album, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("saywhere.cli.index.LARGE", 4)
    command = ("index", album, "--index", tmp_path / "i", "--model", aligner)
    assert "--components 64" in run(*command).stderr
    assert run(*command, "--components", 8).stderr == ""


def test_search_prints_a_table_or_json_and_draws(aligner, album, index, tmp_path) -> None:
    model = saywhere.load(aligner, device="cpu")
    paths = [str(path) for path in sorted(album.glob("*.png"))]
    scores = model.similarity(model.embed(paths), [model.embed_text(SENTENCES[1])])[:, 0]
    result = run("search", SENTENCES[1], "--index", index, "--top", 2, "--json", "-", "--out", tmp_path / "drawn")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["image"] for row in lines] == [paths[i] for i in scores.argsort()[::-1][:2]]
    assert lines[0]["similarity"] == pytest.approx(scores.max(), rel=2e-3)
    assert [phrase["words"] for phrase in lines[0]["phrases"]] == ["two dogs", "the green grass"]
    drawn = sorted((tmp_path / "drawn").iterdir())
    assert [path.name for path in drawn] == [f"{n:03}-{Path(row['image']).stem}.jpg" for n, row in enumerate(lines, 1)]
    with Image.open(drawn[0]) as image:
        assert image.width == 800 and image.height == 533
    table = run("search", "a man + a horse", "--index", index)
    assert "similarity" in table.stdout and "a man [" in table.stdout


@pytest.mark.parametrize(
    ("constant", "line"),
    [
        (3.0, ""),
        (-1.0, ""),
        (-1.2, "probably not there: no image shows all of this with a probability of more than 0.23\n"),
        (-3.0, "probably not there: no image shows all of this with a probability of more than 0.05\n"),
    ],
)
def test_search_says_how_probable_it_is_and_what_is_not_there(album, tmp_path, constant, line) -> None:
    fits = calibrated(phrase=(0, 0, 0, 0), hit=(0, 0, 0, 0, 0, 0, constant))
    model = checkpoint.save(tiny_aligner(), tmp_path / "model", calibration=fits)
    run("index", album, "--index", tmp_path / "i", "--model", model)
    likely = 1 / (1 + math.exp(-constant))
    result = run("search", "two dogs", "--index", tmp_path / "i")
    header, first, *_ = (line.split("\t") for line in result.stdout.splitlines())
    assert header == ["", "probability", "similarity", "image", "phrases"] and first[:2] == ["1", f"{likely:.2f}"]
    assert result.stderr == line
    rows = run("search", "two dogs", "--index", tmp_path / "i", "--json", "-").stdout.splitlines()
    assert [json.loads(row)["probability"] for row in rows] == [pytest.approx(likely, abs=1e-4)] * 4
    assert [key for key in json.loads(rows[0]) if "probability" in key] == ["probability"]
    by_image = run("search", "--image", album / "2.png", "--index", tmp_path / "i")
    assert "probability" not in by_image.stdout and by_image.stderr == ""


@pytest.mark.parametrize(
    ("phrase", "several", "line"),
    [
        (3.0, 0.0, r"0\.95 two dogs \["),
        (3.0, -10.0, r"0\.95 two dogs \["),
        (-1.2, 10.0, r"0\.93 two dogs \["),  # what probably shows all of it shows each
        (-3.0, 10.0, "probably not there: two dogs"),  # far from probable alone, so not probable together
        (-3.0, 0.0, "probably not there: two dogs"),
    ],
)
def test_search_prints_how_probable_each_phrase_is_as_if_asked_alone(album, tmp_path, phrase, several, line) -> None:
    """``several`` is the weight of there being more than one phrase."""
    fits = calibrated(phrase=(0, 0, 0, phrase), hit=(1, 0, 0, several, 0, 0, 0))
    model = checkpoint.save(tiny_aligner(), tmp_path / "model", calibration=fits)
    run("index", album, "--index", tmp_path / "i", "--model", model)
    both, each = (1 / (1 + math.exp(-odds)) for odds in (phrase + several / 2, phrase))
    hits = run("search", "two dogs + a horse", "--index", tmp_path / "i", "--top", 2)
    assert len(re.findall(line, hits.stdout)) == 2
    assert ("probably not there: no image" in hits.stderr) == (min(both, 4 * each) < 0.25)
    alone, likely = run("search", "two dogs", "--index", tmp_path / "i", "--top", 1), 1 / (1 + math.exp(-phrase))
    assert re.findall(r"0\.\d\d", alone.stdout) == [f"{likely:.2f}"], "of one phrase there is one, the hit's"
    assert ("probably not there: two dogs" in alone.stdout) == (phrase < 0) != ("two dogs [" in alone.stdout)
    row = json.loads(run("search", "two dogs", "--index", tmp_path / "i", "--top", 1, "--json", "-").stdout)
    assert row["probability"] == pytest.approx(likely, abs=1e-4)
    assert not any("score" in each for each in row["phrases"]) and ("not_found" in row) == (phrase < 0)


def test_a_search_that_leaves_no_image_says_by_what(index) -> None:
    told = run("search", "two dogs", "--index", index, "--under", "nowhere", "--after", "2001-02-03").stdout
    assert told == "nothing found: none of 4 images passes --after, --under\n"
    lines = run("search", "two dogs", "--index", index, "--under", "nowhere", "--json", "-")
    assert (lines.stdout, lines.stderr) == ("", "nothing found: none of 4 images passes --under\n")


def test_search_replaces_only_what_a_search_wrote(index, album, aligner, tmp_path) -> None:
    file = tmp_path / "hits.jsonl"
    file.touch()
    for query in ("two dogs", "a horse"):
        assert f"written: {file}" in run("search", query, "--index", index, "--json", file).stdout
    hits = file.read_bytes()
    assert hits == run("search", "a horse", "--index", index, "--json", "-").stdout.encode()
    refused = run("ground", album / "0.png", "a dog", "--model", aligner, "--json", file, code=2)
    assert error_of(refused) == f"error: {file} line 1 is a hit of a search; give another file\n"
    run("ground", album / "0.png", "a dog", "--model", aligner, "--json", tmp_path / "grounded.jsonl")
    for content in ((tmp_path / "grounded.jsonl").read_bytes(), (album / "0.png").read_bytes(), hits + b"my diary"):
        file.write_bytes(content)
        line = content[: len(hits)].count(b"\n") + 1 if content.startswith(hits) else 1
        told = error_of(run("search", "two dogs", "--index", tmp_path / "none", "--json", file, code=2))
        assert told == f"error: {file} line {line} is not a hit of a search, and would be lost; give another file\n"
        assert file.read_bytes() == content


def test_search_counts_what_is_left_out_for_what_it_shows(index, monkeypatch) -> None:
    whole = saywhere.Index.search
    monkeypatch.setattr(
        saywhere.Index, "search", lambda *args, **given: [replace(hit, left_out=2) for hit in whole(*args, **given)]
    )
    told = run("search", "two dogs", "--index", index).stderr
    assert told.startswith("left out: 2 images that fit as well, but probably show what is not wanted\n")


def test_search_says_nothing_of_what_is_left_out_if_nothing_is(album, tmp_path) -> None:
    fits = calibrated(phrase=(0, 0, 0, -3), hit=(0, 0, 0, 0, 0, 0, 3))
    model = checkpoint.save(tiny_aligner(), tmp_path / "model", calibration=fits)
    run("index", album, "--index", tmp_path / "i", "--model", model)
    asked = ("search", "two dogs", "--index", tmp_path / "i")
    assert run(*asked).stderr == ""
    told = run(*asked, "--without", "a horse")
    assert told.stderr == ""  # none is left out
    assert run("search", "two dogs - a horse", "--index", tmp_path / "i").output == told.output


def test_a_query_without_quotes_is_the_same_and_several_texts_are_phrases(index) -> None:
    def found(*words: str) -> list[str]:
        return run("search", *words, "--index", index, "--json", "-").stdout.splitlines()

    assert found("two", "dogs", "run") == found("two dogs run") != found("two dogs + a horse")
    assert found("two", "dogs", "+", "horse") == found("two dogs + horse")
    assert found("two dogs", "a horse") == found("two dogs + a horse")
    assert found("two dogs", "horse") == found("two dogs + horse")


def test_search_by_an_image(album, index) -> None:
    like = run("search", "--image", album / "2.png", "--index", index, "--json", "-", "--top", 1)
    assert json.loads(like.stdout)["image"] == str(album / "2.png")


def test_drawings_are_never_mixed_up_in_silence(aligner, tmp_path) -> None:
    for seed, name in enumerate(("a", "001-a")):
        noise(96, 64, seed).save(tmp_path / f"{name}.jpg")
    command = ("search", "two dogs", "--index", tmp_path / "i")
    run("index", tmp_path / "a.jpg", "--index", tmp_path / "i", "--model", aligner)
    first = run(*command, "--out", tmp_path / "drawn")
    assert first.stderr == ""
    (tmp_path / "drawn" / "002-old.jpg").write_bytes(b"of another search")
    again = run(*command, "--out", tmp_path / "drawn")
    assert again.stderr == f"note: {tmp_path / 'drawn'} also has 1 file that this search did not write\n"
    run("index", tmp_path / "001-a.jpg", "--index", tmp_path / "i")
    kept = (tmp_path / "001-a.jpg").read_bytes()
    like = ("search", "--image", tmp_path / "a.jpg", "--index", tmp_path / "i")  # which finds itself first
    refused = run(*like, "--out", tmp_path, "--top", 1, code=2)
    assert "would be overwritten" in refused.stderr
    assert (tmp_path / "001-a.jpg").read_bytes() == kept


def test_found_images_with_long_names_are_drawn(aligner, tmp_path) -> None:
    names = ["x" * 251 + ".png", "y" * 252 + "z", "\u4e16" * 83 + ".x.png"]
    for number, name in enumerate(names):
        noise(96, 64, number).save(tmp_path / name, "PNG")
    command = ("--index", tmp_path / "i", "--model", aligner)
    run("index", *(tmp_path / name for name in names), *command)
    run("search", SENTENCES[0], "--out", tmp_path / "drawn", *command)
    drawn = sorted((tmp_path / "drawn").iterdir())
    assert [path.name[:4] for path in drawn] == ["001-", "002-", "003-"]
    assert {path.name[4] for path in drawn} == {name[0] for name in names}
    assert all(Image.open(path).format == "JPEG" for path in drawn)


def test_unknown_words_and_vanished_images_are_named(aligner, tmp_path) -> None:
    noise(96, 64).save(tmp_path / "a.png")
    run("index", tmp_path, "--index", tmp_path / "i", "--model", aligner)
    (tmp_path / "a.png").unlink()
    result = run("search", "a horse + a zebra", "--index", tmp_path / "i", "--out", tmp_path / "drawn", code=1)
    assert "not know, or hardly: zebra" in result.stderr
    assert f"not drawn: {tmp_path}/a.png: no such file" in result.stderr
    result = run("search", "a dog beside a zebra", "--index", tmp_path / "i")
    assert result.stderr.splitlines()[0] == "words that the model does not know, or hardly: zebra, beside"
    result = run("search", "a dog + xyzzy", "--index", tmp_path / "i")
    assert result.stderr.count("xyzzy") == 1 and result.stderr.startswith(
        "words that the model does not know, or hardly: xyzzy\n"
    )
    result = run("search", "a dog + a hors", "--index", tmp_path / "i")
    assert result.stderr.splitlines()[0] == "words that the model does not know, or hardly: hors (did you mean horse?)"
    result = run("search", "a dog + plays", "--index", tmp_path / "i")
    assert result.stderr.splitlines()[0] == "no thing is named, so compared as a whole: plays"
    told = run("search", "plays", "--index", tmp_path / "i", "--json", "-").stdout
    assert json.loads(told)["without_noun"] == ["plays"]
    for query, words in (("un perro", "un, perro"), ("犬", "犬"), ("a hors", "hors (did you mean horse?)")):
        result = run("search", query, "--index", tmp_path / "i", code=2)
        told = f"error: the model knows none of these words: {words}; it reads English\n"
        assert result.output == told


def test_user_fixable_errors_are_one_line(album, index, tmp_path) -> None:
    for arguments, message in (
        (("search", "a dog", "--index", tmp_path / "none"), "no index is here; make one: saywhere index PATH..."),
        (("search", "--index", index), "a QUERY or --image FILE"),
        (("search", album / "0.png", "--index", index), "a text is expected here; for images like it give --image"),
        (("search", "dogs", "--index", index, "--out", index), f"--out {index}: is the folder of the index; give"),
        (("search", "a dog", "--image", album / "0.png", "--index", index), "QUERY or --image FILE, not both"),
        (("search", "...", "--index", index), "has no word"),
        (
            ("search", "a dog", "on", "grass", "--index", index),
            "'on' names nothing: say what is in the image, such as "
            "'a dog'; if all of it is one text, put it in quotes: 'a dog on grass'",
        ),
        (("search", "a dog", "--without", "the", "--index", index), "the phrase 'the' names nothing: say what is in"),
    ):
        assert message in error_of(run(*arguments, code=2))


@pytest.mark.parametrize(
    ("path", "message"), [("gone", "no such file"), ("*.jpg", "no file matches"), ("", "no images")]
)
def test_a_wrong_path_leaves_no_index(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    made = tmp_path / "made"
    assert message in error_of(run("index", tmp_path / "empty" / path, "--index", made, code=2))
    assert not made.exists()
