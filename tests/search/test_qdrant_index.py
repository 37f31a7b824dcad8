"""A folder of photographs indexed into Qdrant, on the client's own engine: kept up to date, and searched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from photographs import noise
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner
from typer.testing import CliRunner, Result
from video_clips import SquareEmbedder, Timed, moving, plate, write_clip

import saywhere
from saywhere import UserError, cli
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.search import Qdrant
from saywhere.search.stores import moment_name

pytest.importorskip("qdrant_client")

QUERIES = ("a man in a red shirt", "two dogs + green grass - a man", "blue sky - a white house - a dog")


@pytest.fixture(scope="module")
def model() -> Model:
    made = aligner_model(tiny_aligner())
    made.calibration = calibrated(phrase=(0.05, 0.0, 0.0, 0.3), hit=(0.02, 0.7, 0.3, 0.4))
    return made


@pytest.fixture
def album(tmp_path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for number in range(8):
        noise(96, 64, number).save(folder / f"{number}.png")
    return folder


def test_an_index_in_qdrant_follows_its_folder_and_finds_what_one_in_a_folder_finds(model, album, tmp_path) -> None:
    with saywhere.Index(Qdrant(":memory:"), model) as index, saywhere.Index(tmp_path / "i", model) as other:
        assert len(index) == 0 and index.folder is None
        assert str(index.add(album)) == str(other.add(album))
        os.utime(album / "0.png")
        noise(96, 64, 77).save(album / "2.png")
        (album / "1.png").unlink()
        (album / "bad.jpg").write_bytes(b"not an image")
        changes = index.add(album)
        assert str(changes) == str(other.add(album)) == "0 added, 1 updated, 6 unchanged, 1 removed, 1 skipped"
        assert str(index.add(album)) == "0 added, 0 updated, 7 unchanged, 0 removed, 1 skipped"
        for query in QUERIES:
            for hit, expected in zip(index.search(query, top=5), other.search(query, top=5), strict=True):
                assert hit.image == expected.image and hit.regions.captions == expected.regions.captions
                np.testing.assert_array_equal(hit.regions.boxes, expected.regions.boxes)
                assert hit.similarity == pytest.approx(expected.similarity, rel=1e-4)
                assert hit.probability == pytest.approx(expected.probability, rel=1e-4)
        like = index.search(image=album / "3.png", top=2)
        assert like[0].image == str(album / "3.png") and len(like) == 2
        regions, expected = (each.regions("a dog", album / "4.png", top=3) for each in (index, other))
        np.testing.assert_array_equal(regions.boxes, expected.boxes)
        assert index.remove(album / "3.png") == 1 and len(index) == 6


def test_what_only_a_folder_has_is_refused(model, album, tmp_path) -> None:
    place = Qdrant(f"path:{tmp_path / 'db'}")
    with saywhere.Index(place, model) as index:
        for use in (lambda: index.add(album, components=8), lambda: index.add(album, repair=True)):
            with pytest.raises(UserError, match="are for an index in a folder, not for path:"):
                use()
        assert not place.exists()
        index.add(album / "0.png")
    with (
        saywhere.Index(place, aligner_model(tiny_aligner(seed=1))) as other,
        pytest.raises(UserError, match="made it with another --precision"),
    ):
        other.search("a dog")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments), "--device", "cpu"], catch_exceptions=False)


def test_moments_of_videos_are_points_too(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("saywhere.cli.index.load_model", lambda *_: SquareEmbedder())
    green = (Timed(2 + n / 10, plate(230, {"green": (20, 40), "blue": (140, 80)})) for n in range(10))
    clip = tmp_path / "clip.mp4"
    write_clip(clip, [*moving(2), *green])
    place = Qdrant(f"path:{tmp_path / 'db'}")
    command = ("index", clip, "--store", "qdrant", "--url", place.url, "--every", "0.5s")
    assert run(*command).stdout == "1 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    with place.open() as store:
        assert len(store) == 2 and moment_name(str(clip), 2.0) in store and list(store.videos()) == [str(clip)]
    assert run(*command).stdout.startswith("0 added, 0 updated, 1 unchanged")
    clip.unlink()
    noise(64, 32).save(tmp_path / "a.png")
    assert run("index", tmp_path, *command[2:]).stdout.startswith("1 added, 0 updated, 0 unchanged, 1 removed")
    with place.open() as store:
        assert len(store) == 1 and store.videos() == {} and list(store.stamps()) == [str(tmp_path / "a.png")]


def test_the_commands_take_a_collection_instead_of_a_folder(album, tmp_path) -> None:
    aligner = checkpoint.save(tiny_aligner(), tmp_path / "model")
    where = ("--store", "qdrant", "--url", f"path:{tmp_path / 'db'}", "--collection", "mine")
    command = ("index", album, *where, "--model", aligner)
    first = run(*command, "--shards-of-collection", 2, "--replicas", 1)
    assert (first.exit_code, first.output) == (0, "8 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n")
    result = run("search", "two dogs", *where, "--top", 3, "--json")
    folder = tmp_path / "i"
    run("index", album, "--index", folder, "--model", aligner)
    expected = run("search", "two dogs", "--index", folder, "--top", 3, "--json")
    names = [[json.loads(row)["image"] for row in each.stdout.splitlines()] for each in (result, expected)]
    assert names[0] == names[1] and len(names[0]) == 3
    for arguments, message in (
        ((*command, "--components", 8), "codes and repair are for an index in a folder"),
        ((*command, "--shards", 2), "--shards is for an index in a folder"),
        (("search", "a dog", *where[:4]), "(saywhere): no index is here; make one: saywhere index PATH... --store"),
        (("search", "a dog", *where[2:]), "--url is for an index in Qdrant: give --store qdrant as well"),
        (("search", "a dog", *where[:2]), "--url URL is missing"),
        (("search", "a dog", *where, "--index", folder), "an index in Qdrant has no --index"),
        (("search", "a dog", *where[:3], ":memory:"), "--url :memory: would be gone when this command ends"),
        (("search", "a dog"), "--index DIR is missing"),
        (("index", album, "--index", folder, "--replicas", 2), "--replicas is for an index in Qdrant"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2 and message in refused.stderr, refused.output
        assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
