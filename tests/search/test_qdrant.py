"""An index in Qdrant, on the client's own engine: it is what the default one is, point by point and hit by hit."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
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
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.search import Qdrant
from saywhere.search.qdrant import QdrantStore, masked, point_id
from saywhere.search.scan import Question, with_hubness
from saywhere.search.store import Store
from saywhere.search.stores import Located, Stamp, Video, moment_name

qdrant_client = pytest.importorskip("qdrant_client")

FACTS = {"size": "25", "digest": "d", "model": "m"}


@pytest.fixture
def store() -> QdrantStore:
    return Qdrant(":memory:", "album").open(FACTS)


def rows(images: list[ImageVectors]) -> list[tuple[str, Stamp, ImageVectors]]:
    return [(image.image, Stamp(7, 8, b"hash"), image) for image in images]


def plain(image: ImageVectors | None) -> tuple:
    assert image is not None
    return (
        image.image,
        image.width,
        image.height,
        image.boxes.tolist(),
        image.vectors.tolist(),
        image.logits.tolist(),
        image.hubness,
    )


def question(words: int, signs: tuple[float, ...] = (), seed: int = 3) -> Question:
    vectors = np.random.default_rng(seed).standard_normal((words, 25), np.float32)
    return Question(vectors, np.array(signs or [1.0] * words, np.float32)[:, None])


def test_images_are_given_back_updated_and_forgotten(store, random_images) -> None:
    images = random_images(70)  # more than one request
    store.put(rows(images))
    assert len(store) == 70 and store.facts["digest"] == "d"
    assert all(plain(store.load(image.image)) == plain(image) for image in images)
    assert store.stamps() == {image.image: Stamp(7, 8, b"hash") for image in images}
    changed = random_images(1, seed=5)[0]
    store.put([(images[2].image, Stamp(1, 2), changed)])
    assert plain(store.load(images[2].image))[1:] == plain(changed)[1:]
    assert store.remove([images[0].image, "/not/there.jpg"]) == 1
    assert images[0].image not in store and images[1].image in store and len(store) == 69
    store.restamp({images[1].image: Stamp(2**40, 2**60, b"\xff")})
    assert store.stamps()[images[1].image] == Stamp(2**40, 2**60, b"\xff")
    assert plain(store.load(images[1].image)) == plain(images[1])


def test_videos_are_kept_with_their_moments(store, random_images) -> None:
    image, first, second = random_images(3)
    video = Video("/v/clip.mp4", Stamp(5, 6), 90_000, 180_000, 2.0, (3, [[0.5, 1.0]]))
    moments = [(moment_name(video.path, time), Stamp(0, 0), seen) for time, seen in ((0.0, first), (2.0, second))]
    store.put([(image.image, Stamp(7, 8, b"h"), image), *moments], video)
    kept = replace(video, damage=[3, [[0.5, 1.0]]])  # as the default store returns it
    assert store.videos() == {video.path: kept} and set(store.stamps()) == {image.image} and len(store) == 3
    found = store.nearest(Question(with_hubness(second)[:1], np.ones((1, 1), np.float32)), 3)
    assert sorted((each.vectors.image, each.time) for each in found) == [
        (image.image, None), ("/v/clip.mp4", 0.0), ("/v/clip.mp4", 2.0)
    ]  # fmt: skip
    assert plain(store.load(moment_name(video.path, 2.0)))[1:] == plain(second)[1:]
    assert {store.locate(each.entry) for each in found} == {
        Located(image.image, None, Stamp(7, 8, b"h")),
        *(Located("/v/clip.mp4", time, video.stamp) for time in (0.0, 2.0)),
    }
    for other in (point_id(video.path), point_id("/not/there.jpg"), "0-0", "", point_id(image.image).upper(), "\0"):
        assert store.locate(other) is None
    assert store.load(video.path) is None  # its state is no image
    assert store.remove([video.path]) == 1 and store.videos() == {} and len(store) == 1


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
            assert [plain(f.vectors) for f in found] == [plain(e.vectors) for e in expected]


def test_an_empty_collection_has_no_answer(store) -> None:
    assert store.nearest(question(2), 5) == []
    assert store.stamps() == {} and store.videos() == {} and store.remove([]) == 0


def test_another_score_than_maxsim_is_refused(store) -> None:
    with pytest.raises(UserError, match="does not know the score 'fragments'"):
        store.nearest(Question(np.ones((1, 25), np.float32), np.ones((1, 1), np.float32), "fragments"), 5)


def test_names_that_are_no_text_are_kept(store, random_images) -> None:
    name = os.fsdecode(b"/photos/\xff.jpg")
    store.put([(name, Stamp(1, 1), random_images(1)[0])])
    assert list(store.stamps()) == [name] and name in store and plain(store.load(name))[0] == name
    assert store.remove([name]) == 1 and len(store) == 0


def test_a_collection_is_opened_again_and_another_one_is_refused(tmp_path: Path, random_images) -> None:
    place = Qdrant(f"path:{tmp_path / 'db'}", "album")
    assert not place.exists()
    with pytest.raises(UserError, match=r"\(album\): no index is here; make one: .* --collection album"):
        place.open()
    with place.open(FACTS) as store:
        store.put(rows(random_images(3)))
        with pytest.raises(UserError, match="already accessed"):
            Qdrant(place.url).exists()
    with Qdrant(place.url, "album").open() as again:
        assert len(again) == 3 and {name: again.facts[name] for name in FACTS} == FACTS
    foreign = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    foreign.create_collection("other", {})
    foreign.close()
    with pytest.raises(UserError, match="is not an index of format 2"):
        Qdrant(place.url, "other").open()


def test_the_settings_of_a_collection_reach_the_server(monkeypatch) -> None:
    asked: dict = {}
    place = Qdrant(":memory:", "album", shards=6, replicas=2)
    with place.asking() as client:
        real = client.create_collection
        monkeypatch.setattr(client, "create_collection", lambda *a, **k: asked.update(k, v=a[1]) or real(*a, **k))
        place.open(FACTS)
    vectors = asked["v"]["regions"]
    assert (asked["shard_number"], asked["replication_factor"]) == (6, 2)
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
    for url in ("localhost:6333", "localhost", "nonsense://x:1"):
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
        ("path:/home/me@work/db", "path:/home/me@work/db"),
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
        if "@" in url and not url.startswith("path:"):
            with pytest.raises(UserError) as refused:
                saywhere.Index(place)
            said.append(str(refused.value))
            assert shown in said[-1] and "\n" not in said[-1]
        assert not [text for text in said if "p4ss" in text or "user:" in text]


def test_a_password_is_not_shown_where_a_server_answers(monkeypatch) -> None:
    sent: list[str | None] = []

    class Grumpy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b'{"status": {"error": "who is user:p4ssword?"}}')

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Grumpy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=r"http://\*\*\*@127.0.0.1:\d+: the server answers 403, ") as refused:
            Qdrant(f"http://user:p4ssword@127.0.0.1:{server.server_port}").exists()
        server.shutdown()
    assert sent == ["Basic dXNlcjpwNHNzd29yZA=="]  # which the client leaves out
    assert "p4ss" not in str(refused.value)


def test_a_command_to_make_an_index_does_not_show_a_password(monkeypatch) -> None:
    monkeypatch.setattr(Qdrant, "exists", lambda _: False)
    with pytest.raises(UserError, match=r"--url http://\*\*\*@localhost:6333 --collection album") as refused:
        Qdrant("http://user:p4ssword@localhost:6333", "album").open()
    assert "p4ss" not in str(refused.value)


def test_points_are_the_same_whoever_writes_them(random_images) -> None:
    place, images = Qdrant(":memory:", "album"), random_images(5)
    for _ in range(2):
        place.open(FACTS).put(rows(images))
    assert len(place.open()) == 5 and point_id("/photos/a.jpg") == "838ef30f-64e5-562f-8d74-2dcc1b9274c6"


def test_a_missing_client_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(UserError, match=r"pip install 'saywhere\[qdrant\]'"):
        Qdrant("http://localhost:6333").exists()


def test_what_the_clients_own_engine_refuses_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Collection name cannot contain"):
        Qdrant(":memory:", "a/b").open(FACTS)
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "meta.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged: cannot be opened \("):
        Qdrant(f"path:{folder}").exists()
    with pytest.raises(UserError, match="not a URL"):
        Qdrant("path:").open(FACTS)


def test_a_collection_whose_points_are_lost_does_not_look_empty(tmp_path: Path, random_images) -> None:
    place = Qdrant(f"path:{tmp_path / 'db'}")
    with place.open(FACTS) as store:
        store.put(rows(random_images(2)))
    with place.open() as again:
        assert len(again) == 2
    (points,) = (tmp_path / "db").rglob("*.sqlite")
    points.unlink()
    with pytest.raises(
        UserError, match="is missing, and with it all images; remove .*db and index them again"
    ) as refused:
        place.exists()
    assert str(points) in str(refused.value) and "\n" not in str(refused.value) and not points.exists()


def test_looking_for_an_index_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no index is here"):
        Qdrant(f"path:{tmp_path / 'nothing'}").open()
    assert not (tmp_path / "nothing").exists()


pytest.importorskip("qdrant_client")

QUERIES = ("a man in a red shirt", "two dogs + green grass - a man", "blue sky - a white house - a dog")


@pytest.fixture(scope="module")
def model() -> Model:
    made = aligner_model(tiny_aligner())
    made.calibration = calibrated(phrase=(0.05, 0.0, 0.0, 0.3), hit=(0.02, 0.7, 0.3, 0.5, 0.2, 0.4))
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
    monkeypatch.setattr("saywhere.cli.options.load_model", lambda *_: SquareEmbedder())
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
    result = run("search", "two dogs", *where, "--top", 3, "--json", "-")
    folder = tmp_path / "i"
    run("index", album, "--index", folder, "--model", aligner)
    expected = run("search", "two dogs", "--index", folder, "--top", 3, "--json", "-")
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
