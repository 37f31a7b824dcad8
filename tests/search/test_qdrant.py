"""An index in Qdrant, on the client's own engine: it is what the default one is, point by point and hit by hit."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
from albums import write_noise
from commands import error_of
from local_server import Answers, answering
from photographs import noise
from refusals import refuses
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner
from typer.testing import Result
from video_clips import SquareEmbedder, Timed, moving, plate, write_clip

import saywhere
from saywhere import UserError
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.search import Qdrant
from saywhere.search.qdrant import QdrantStore, masked, point_id
from saywhere.search.scan import Question
from saywhere.search.store import Store
from saywhere.search.stores import Stamp, moment_name

qdrant_client = pytest.importorskip("qdrant_client")

FACTS = {"size": "25", "digest": "d", "model": "m"}


@pytest.fixture
def store() -> QdrantStore:
    return QdrantStore(Qdrant(":memory:", "album"), FACTS)


def rows(images: list[ImageVectors]) -> list[tuple[str, Stamp, ImageVectors]]:
    return [(image.image, Stamp(7, 8, b"hash"), image) for image in images]


def question(words: int, signs: tuple[float, ...] = (), seed: int = 3) -> Question:
    vectors = np.random.default_rng(seed).standard_normal((words, 25), np.float32)
    return Question(vectors, np.array(signs or [1.0] * words, np.float32)[:, None])


@pytest.mark.parametrize("signs", [(), (0.25, 0.25, 0.25)])
def test_hits_are_those_of_the_default_store(store, random_images, tmp_path, signs) -> None:
    images = random_images(60)
    store.put(rows(images))
    with Store(tmp_path, FACTS) as embedded:
        embedded.put(rows(images))
        for seed in range(5):
            asked = question(3, signs, seed)
            expected, found = embedded.nearest(asked, 10), store.nearest(asked, 10)
            assert [each.vectors.image for each in found] == [each.vectors.image for each in expected]
            np.testing.assert_allclose([f.similarity for f in found], [e.similarity for e in expected], rtol=1e-5)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one.vectors.vectors, other.vectors.vectors)
                np.testing.assert_array_equal(one.vectors.boxes, other.vectors.boxes)


def test_another_score_than_maxsim_is_refused(store) -> None:
    with pytest.raises(UserError, match="does not know the score 'fragments'"):
        store.nearest(Question(np.ones((1, 25), np.float32), np.ones((1, 1), np.float32), "fragments"), 5)


def test_a_collection_is_opened_again_and_another_one_is_refused(random_images) -> None:
    place = Qdrant(":memory:", "album")
    refuses(r"\(album\): no index is here; make one: .* --collection album", QdrantStore, place)
    for _ in range(2):  # points are the same whoever writes them
        QdrantStore(place, FACTS).put(rows(random_images(3)))
    again = QdrantStore(place)
    assert len(again) == 3 and {name: again.facts[name] for name in FACTS} == FACTS
    assert point_id("/photos/a.jpg") == "838ef30f-64e5-562f-8d74-2dcc1b9274c6"
    with place.asking() as client:
        client.create_collection("other", {})
    other = Qdrant(":memory:", "other")
    other.__dict__["_client"] = place.__dict__["_client"]
    refuses("is not an index of format 4", QdrantStore, other)
    refuses("Collection name cannot contain", QdrantStore, Qdrant(":memory:", "a/b"), FACTS)


def test_the_settings_of_a_collection_reach_the_server(monkeypatch) -> None:
    asked: dict = {}
    place = Qdrant(":memory:", "album")
    with place.asking() as client:
        real = client.create_collection
        monkeypatch.setattr(client, "create_collection", lambda *a, **k: asked.update(k, v=a[1]) or real(*a, **k))
        QdrantStore(place, FACTS)
    vectors = asked["v"]["regions"]
    assert (vectors.size, vectors.distance, vectors.datatype, vectors.on_disk) == (25, "Dot", "float16", True)
    assert vectors.multivector_config.comparator == "max_sim" and vectors.hnsw_config.m == 0


def test_a_server_that_is_away_and_a_wrong_url_are_one_line(monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens here
        port = free.getsockname()[1]
        with pytest.raises(UserError, match=rf"http://127.0.0.1:{port}: no Qdrant server answers \(") as error:
            Qdrant(f"http://127.0.0.1:{port}").exists()
    assert "\n" not in str(error.value)
    for url in ("localhost:6333", "localhost", "path:", "nonsense://x:1"):
        with pytest.raises(UserError, match=url):
            Qdrant(url).exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:6333", "http://127.0.0.1:6333"),
        ("http://user:p4ssword@127.0.0.1:{port}", "http://***@127.0.0.1:{port}"),
        ("http://user:p4ss@word@127.0.0.1:{port}/q", "http://***@127.0.0.1:{port}/q"),
        ("http://:p4ssword@127.0.0.1:{port}", "http://***@127.0.0.1:{port}"),
        ("https://p4ssword@127.0.0.1:{port}", "https://***@127.0.0.1:{port}"),
        ("http://user:p4ss/word@127.0.0.1:{port}", "http://***@127.0.0.1:{port}"),
        ("user:p4ssword@127.0.0.1:{port}", "***@127.0.0.1:{port}"),
        ("http://user:p4ssword@[::1", "http://***@[::1"),
        ("nonsense://user:p4ssword@x:y", "nonsense://***@x:y"),
        (":memory:", ":memory:"),
    ],
)
def test_passwords_in_urls_are_never_shown(url: str, shown: str, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens here
        url, shown = (text.replace("{port}", str(free.getsockname()[1])) for text in (url, shown))
        place = Qdrant(url, "album")
        said = [masked(url), str(place), repr(place)]
        assert all(shown in text for text in said)
        if "@" in url:
            with pytest.raises(UserError) as refused:
                saywhere.Index(place)
            said.append(str(refused.value))
            assert shown in said[-1] and "\n" not in said[-1]
        assert not [text for text in said if "p4ss" in text or "user:" in text]


def test_a_password_is_not_shown_where_a_server_answers(monkeypatch) -> None:
    sent: list[str | None] = []

    class Grumpy(Answers):
        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            self.answer(b'{"status": {"error": "who is user:p4ssword?"}}', 403)

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    shown = r"http://\*\*\*@127.0.0.1:\d+: the server answers 403, "
    with answering(Grumpy) as url, pytest.raises(UserError, match=shown) as refused:
        Qdrant(url.replace("//", "//user:p4ssword@")).exists()
    assert sent == ["Basic dXNlcjpwNHNzd29yZA=="]  # which the client leaves out
    assert "p4ss" not in str(refused.value)


def test_a_command_to_make_an_index_does_not_show_a_password(monkeypatch) -> None:
    monkeypatch.setattr(Qdrant, "exists", lambda _: False)
    with pytest.raises(UserError, match=r"--url http://\*\*\*@localhost:6333 --collection album") as refused:
        QdrantStore(Qdrant("http://user:p4ssword@localhost:6333", "album"))
    assert "p4ss" not in str(refused.value)


def test_a_missing_client_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    refuses(r"pip install 'saywhere\[qdrant\]'", Qdrant("http://localhost:6333").exists)


QUERIES = ("a man in a red shirt", "two dogs + green grass - a man", "blue sky - a white house - a dog")


@pytest.fixture(scope="module")
def model() -> Model:
    made = aligner_model(tiny_aligner())
    made.calibration = calibrated(phrase=(0.05, 0.0, 0.0, 0.3), hit=(0.02, 0.6, 0.7, 0.3, 0.5, 0.2, 0.4))
    return made


@pytest.fixture
def album(tmp_path) -> Path:
    return write_noise(tmp_path / "album", 8)


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
        assert index.remove(album / "3.png") == 1 and len(index) == 6


def test_filters_leave_the_same_images_as_in_a_folder(model, album, tmp_path) -> None:
    (album / "holidays").mkdir()
    for number in range(8, 12):
        noise(96, 64, number).save(album / "holidays" / f"{number}.png")
    for day, path in enumerate(sorted(album.rglob("*.png"))):
        os.utime(path, (at := 1_714_600_000 + 86_400 * day, at))  # from 2024-05-01 on
    with saywhere.Index(Qdrant(":memory:"), model) as index, saywhere.Index(tmp_path / "i", model) as other:
        index.add(album)
        other.add(album)
        counts: set[int] = set()
        for only in (
            {"after": "2024-05-05"}, {"before": "2024-05-04"}, {"under": "holidays"}, {"under": ["nowhere"]},
            {"after": "2024-05-11", "under": album / "holidays"}, {"without": "a man"}, {},
        ):  # fmt: skip
            for top in (2, 12):
                names = [[hit.image for hit in each.search("two dogs", top=top, **only)] for each in (index, other)]
                assert names[0] == names[1], (only, top)
                counts.add(len(names[0]))
        assert {0, 2, 4, 12} <= counts


def test_what_only_a_folder_has_is_refused_and_so_is_another_model(model, album) -> None:
    place = Qdrant(":memory:")
    index = saywhere.Index(place, model)
    for use in (lambda: index.add(album, components=8), lambda: index.add(album, repair=True)):
        refuses(r"are for an index in a folder, not for :memory: \(saywhere\)", use)
    assert not place.exists()
    index.add(album / "0.png")
    with pytest.raises(UserError, match="made it in another version, or with other --precision"):
        saywhere.Index(place, aligner_model(tiny_aligner(seed=1))).search("a dog")


def test_moments_of_videos_are_points_too(tmp_path) -> None:
    green = (Timed(2 + n / 10, plate(230, {"green": (20, 40), "blue": (140, 80)})) for n in range(10))
    clip = tmp_path / "clip.mp4"
    write_clip(clip, [*moving(2), *green])
    index = saywhere.Index(Qdrant(":memory:"), load=lambda _: SquareEmbedder())
    assert str(index.add(clip, every=0.5)).startswith("1 added")
    assert len(index) == 2 and moment_name(str(clip), 2.0) in index.store and list(index.store.videos()) == [str(clip)]
    assert str(index.add(clip)).startswith("0 added, 0 updated, 1 unchanged")
    clip.unlink()
    noise(64, 32).save(tmp_path / "a.png")
    assert str(index.add(tmp_path)).startswith("1 added, 0 updated, 0 unchanged, 1 removed")
    assert index.store.videos() == {} and list(index.store.stamps()) == [str(tmp_path / "a.png")]


def run(*arguments: object, code: int = 0) -> Result:
    return commands.run(*arguments, "--device", "cpu", code=code)


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
def test_the_commands_take_a_collection_instead_of_a_folder(album, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Qdrant, "_client", qdrant_client.QdrantClient(":memory:"))  # in the place of a server
    aligner, folder = checkpoint.save(tiny_aligner(), tmp_path / "model"), tmp_path / "i"
    where = ("--url", "http://qdrant:6333", "--collection", "mine")
    command = ("index", album, *where, "--model", aligner)
    first = run(*command)
    assert first.output == "8 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    run("index", album, "--index", folder, "--model", aligner)
    results = (run("search", "two dogs", *place, "--top", 3, "--json", "-") for place in (where, ("--index", folder)))
    names = [[json.loads(row)["image"] for row in each.stdout.splitlines()] for each in results]
    assert names[0] == names[1] and len(names[0]) == 3
    for arguments, message in (
        ((*command, "--components", 8), "codes and repair are for an index in a folder"),
        ((*command, "--shards", 2), "--shards is for an index in a folder"),
        (("search", "a dog", *where[:2]), "(saywhere): no index is here; make one: saywhere index PATH... --url http:"),
        (("search", "a dog", *where[2:]), "--collection is for an index in Qdrant: give --url as well"),
        (("search", "a dog", *where, "--index", folder), "--index and --url both say where the index is"),
        (("search", "a dog", "--url", ":memory:"), "--url :memory: would be gone when this command ends"),
        (("search", "a dog"), "--index DIR is missing"),
    ):
        assert message in error_of(run(*arguments, code=2))
