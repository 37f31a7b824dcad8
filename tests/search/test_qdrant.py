"""An index in Qdrant, on the client's own engine: it is what the default one is, point by point and hit by hit."""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

import saywhere
from saywhere import UserError
from saywhere.models.aligner import ImageVectors
from saywhere.search import Qdrant
from saywhere.search.points import point_id
from saywhere.search.qdrant import QdrantStore, masked
from saywhere.search.scan import Question
from saywhere.search.stamps import Stamp, Video, moment_name
from saywhere.search.store import Store
from saywhere.search.stores import Located
from saywhere.search.vectors import with_hubness

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


@pytest.mark.parametrize("signs", [(), (1.0, 1.0, -1.0), (0.25, 0.25, 0.25)])
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
    assert store.nearest(question(2), 5) == [] and store.nearest(question(2, (1.0, -1.0)), 5) == []
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
