"""The HTTP interface in this process: answers, parameters, limits, errors."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from photographs import huge_png_header, jpeg, noise
from PIL import Image
from refusals import refuses
from starlette.testclient import TestClient
from video_clips import Timed, write_clip

import saywhere
from saywhere.files import content_hash
from saywhere.images import read_image
from saywhere.search.phrases import LIKELY
from saywhere.serve.app import create_app
from saywhere.serve.limits import Encodings, Limits
from saywhere.serve.questions import QUESTIONS


@pytest.fixture(scope="module")
def client(model: saywhere.Model) -> Iterator[TestClient]:
    with TestClient(create_app(model)) as client:
        yield client


def library(model: saywhere.Model, photo: bytes) -> saywhere.Encoding:
    return model.encode(read_image(photo, "image", model.long_side))


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(value))


def error(response: Any) -> str:
    """The message of an error, which is JSON with one line."""
    body = response.json()
    assert list(body) == ["error"] and "\n" not in body["error"]
    return body["error"]


@pytest.mark.parametrize("form", [False, True], ids=["body", "multipart"])
def test_the_answers_are_those_of_the_library(
    client: TestClient, model: saywhere.Model, photo: bytes, form: bool
) -> None:
    def ask(question: str) -> Any:
        given: dict[str, Any] = {"files": {"image": ("a.jpg", photo)}} if form else {"content": photo}
        response = client.post(f"/v1/{question}", **given)
        assert response.status_code == 200 and response.headers["content-type"] == "application/json"
        return response.json()

    seen = library(model, photo)
    box = [20.0, 30.5, 200.0, 390.0]
    assert ask("describe") == as_json(model.describe(seen).to_dict())
    assert ask("describe?top=2") == as_json(model.describe(seen, top=2).to_dict())
    assert ask("describe?top=0") == ask("describe")
    assert ask("describe?threshold=0.5") == as_json(model.describe(seen, threshold=0.5).to_dict())
    assert ask("describe?box=20,30.5,200,390") == as_json(model.describe(seen, [box]).to_dict())
    assert ask("ground?text=a zebra&threshold=0") == as_json(model.ground(seen, "a zebra", threshold=0.0).to_dict())
    assert ask("ground?text=a woman in a suit") == as_json(model.ground(seen, "a woman in a suit").to_dict())
    assert ask("ground?text=a woman&text=a hat") == as_json(model.ground(seen, ["a woman", "a hat"]).to_dict())
    assert ask("caption") == as_json(model.caption(seen).to_dict())
    assert ask("caption?beam_size=1&attention=false") == {
        "image": "image", "width": 400, "height": 400, "caption": model.caption(seen, beam_size=1).sentence
    }  # fmt: skip
    cautious = model.caption(seen, least_probability=0.5).sentence
    assert ask("caption?least_probability=0.5")["caption"] == cautious != model.caption(seen).sentence
    embedded, vectors = ask("embed?regions=3"), model.embed(seen, regions=3)
    assert embedded["boxes"] == [[round(v, 2) for v in box] for box in vectors.boxes.tolist()]
    assert embedded["vectors"] == [[round(v, 5) for v in row] for row in vectors.vectors.tolist()]


def test_words_are_embedded(client: TestClient, model: saywhere.Model) -> None:
    found = client.get("/v1/embed_text", params={"text": "a red dog"}).json()
    assert found["words"] == ["a", "red", "dog"]
    assert found["vectors"] == [[round(v, 5) for v in row] for row in model.embed_text("a red dog").vectors.tolist()]
    found = client.get("/v1/embed_text", params={"text": "a flurble dog"}).json()
    assert found["unknown"] == ["flurble"] and found["words"] == ["a", "flurble", "dog"]


def test_a_jpeg_2000_that_would_stop_all_threads_is_refused(client: TestClient) -> None:
    """Most are stored at smaller sizes as well, and one of these is decoded."""
    for resolutions, status in ((6, 200), (1, 415)):
        stream = io.BytesIO()
        Image.new("RGB", (2000, 1500), (200, 90, 30)).save(stream, "JPEG2000", num_resolutions=resolutions)
        answer = client.post("/v1/describe?top=1", content=stream.getvalue())
        assert answer.status_code == status
    assert "a JPEG 2000 of 2000 x 1500 takes too long" in error(answer)


@pytest.fixture
def runs(model: saywhere.Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each run of the network had."""
    counted: list[int] = []
    encode = model.engine.trunk.encode

    def count(pixels: Any) -> Any:
        counted.append(len(pixels))
        return encode(pixels)

    monkeypatch.setattr(model.engine.trunk, "encode", count)
    return counted


def test_one_encoding_serves_several_questions(model: saywhere.Model, photo: bytes, runs: list[int]) -> None:
    with TestClient(create_app(model)) as client:
        first = client.post("/v1/describe", content=photo)
        tag = first.headers["etag"]
        again = client.post("/v1/describe", headers={"If-Match": tag})
        caption = client.post("/v1/caption", headers={"If-Match": tag})
        sent_again = client.post("/v1/ground?text=a dog", files={"image": photo})
        assert runs == [1]
        assert again.json() == first.json() and again.headers["etag"] == tag == sent_again.headers["etag"]
        assert caption.json()["caption"]
        unknown = client.post("/v1/caption", headers={"If-Match": '"0123"'})
        assert unknown.status_code == 412 and "send it again" in error(unknown)
        both = client.post("/v1/caption", headers={"If-Match": tag}, content=photo)
        assert both.status_code == 400 and "no other may be sent with it" in error(both)


def test_one_image_asked_about_at_the_same_time_is_encoded_once(
    model: saywhere.Model, photo: bytes, runs: list[int]
) -> None:
    with TestClient(create_app(model, Limits(threads=4))) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/embed?regions=1", content=photo).json(), range(8)))
    assert runs == [1] and all(answer == answers[0] for answer in answers)


def test_an_encoding_that_shall_not_be_stored_is_not(model: saywhere.Model, photo: bytes, runs: list[int]) -> None:
    with TestClient(create_app(model)) as client:
        for _ in range(2):
            for said in ("no-store", "No-Store", "max-age=0 , NO-STORE"):
                response = client.post("/v1/embed?regions=1", content=photo, headers={"Cache-Control": said})
                assert response.status_code == 200 and "etag" not in response.headers
        assert "etag" in client.post("/v1/embed", content=photo, headers={"Cache-Control": "x-no-store"}).headers
    assert runs == [1] * 7


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("describe?top=x", "top must be a whole number from 0 to 1000, not 'x'"),
        ("describe?top=-1", "top must be a whole number from 0 to 1000, not '-1'"),
        ("describe?top=1e3", "top must be a whole number from 0 to 1000, not '1e3'"),
        ("describe?threshold=nan", "threshold must be a number from 0 to 1, not 'nan'"),
        ("describe?threshold=1.5", "threshold must be a number from 0 to 1, not '1.5'"),
        ("describe?top=1&top=2", "top is given more than once"),
        ("describe?best=1", "unknown parameter best: this question has top, threshold, box"),
        ("describe?box=1,2,3", "box must be four numbers x1,y1,x2,y2, not '1,2,3'"),
        ("describe?box=1,2,inf,4", "box must be four numbers x1,y1,x2,y2, not '1,2,inf,4'"),
        ("describe?box=1,2,900,4", "image: box 0 [1.0, 2.0, 900.0, 4.0] is not inside the 400 x 400 image"),
        ("describe?box=1,2,3,4&top=1", "top and threshold choose among the boxes"),
        ("ground", "the parameter text is missing"),
        ("ground?text=a dog&regions=0", "regions must be a whole number from 1 to 1000, not '0'"),
        ("embed?regions=-1", "regions must be a whole number from 0 to 1000, not '-1'"),
        ("ground?text=", "text must be a string of 1 to 1000 characters, not ''"),
        ("ground?text=%2C%2C", "no word"),
        ("ground?text=a dog&part=captioner", "part must be aligner or densecap, not 'captioner'"),
        ("caption?attention=yes", "attention must be true or false, not 'yes'"),
        ("caption?beam_size=0", "beam_size must be a whole number from 1 to 20, not '0'"),
    ],
)
def test_wrong_parameters_are_named(client: TestClient, photo: bytes, question: str, message: str) -> None:
    response = client.post(f"/v1/{question}", content=photo)
    assert response.status_code == 422
    assert message in error(response)


@pytest.mark.parametrize(
    "body",
    [b"", b"I am not an image.", jpeg(noise(80, 60))[:2000], huge_png_header(), b"\x89PNG\r\n\x1a\n"],
    ids=["empty", "text", "truncated", "bomb", "header"],
)
def test_what_is_not_an_image_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/describe", content=body)
    assert response.status_code == 415 and error(response)
    if body:
        response = client.post("/v1/describe", files={"image": ("a.jpg", body)})
        assert response.status_code == 415 and error(response).startswith("image: ")


def test_nobody_waits_for_an_image_that_is_being_encoded(
    model: saywhere.Model, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, under_way, asked, encode, find = (
        threading.Event(), threading.Event(), threading.Event(), model.engine.trunk.encode, Encodings.find
    )  # fmt: skip

    def wait(pixels: Any) -> Any:
        under_way.set()
        assert go.wait(600)
        return encode(pixels)

    monkeypatch.setattr(model.engine.trunk, "encode", wait)
    monkeypatch.setattr(Encodings, "find", lambda *arguments: (asked.set(), find(*arguments))[1])
    with TestClient(create_app(model, Limits(threads=2))) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, "/v1/embed?regions=1", content=photo)
        assert under_way.wait(600)
        again = pool.submit(client.post, "/v1/embed?regions=1", headers={"If-Match": f'"{content_hash(photo).hex()}"'})
        assert asked.wait(600)
        assert client.get("/healthz").status_code == 200
        assert not first.done() and not again.done()
        go.set()
        assert first.result().json() == again.result().json()


def test_nobody_waits_for_the_database_of_an_index(
    model: saywhere.Model, indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, asked = threading.Event(), threading.Event()
    with (
        saywhere.Index(indexed, model) as index,
        TestClient(create_app(model, index=index)) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        monkeypatch.setattr(saywhere.Index, "__len__", lambda _: (asked.set(), go.wait(600), 7)[2])
        models = pool.submit(client.get, "/v1/models")
        assert asked.wait(600)
        assert client.get("/healthz").status_code == 200 and not models.done()
        go.set()
        assert models.result().json()["indexed"] == 7


@pytest.mark.parametrize(("question", "parameter", "most"), [
    ("describe", "box=1,1,90,90", 1000), ("embed", "box=1,1,90,90", 1000), ("ground?text=a dog", "box=1,1,90,90", 1000),
    ("ground", "text=a dog", 100),
])  # fmt: skip
def test_repeated_parameters_are_counted(
    client: TestClient, photo: bytes, question: str, parameter: str, most: int
) -> None:
    url = f"/v1/{question}{'&' if '?' in question else '?'}"
    response = client.post(url + "&".join([parameter] * (most + 1)), content=photo)
    name = parameter.partition("=")[0]
    assert response.status_code == 422 and error(response) == f"{name} is given more than {most} times"
    response = client.post(url + "&".join([parameter] * most), content=photo)
    assert response.status_code == 200 and len(response.content) < 10_000_000


def test_answers_that_are_too_large_together_are_refused(model: saywhere.Model, photo: bytes) -> None:
    with TestClient(create_app(model, Limits(answers=2000))) as client:
        response = client.post("/v1/embed", content=photo)
        assert response.status_code == 429 and response.headers["retry-after"] == "1"
        assert [client.post("/v1/describe?top=1", content=photo).status_code for _ in range(9)] == [200] * 9


def test_an_image_with_more_pixels_than_allowed_is_refused(model: saywhere.Model) -> None:
    with TestClient(create_app(model, Limits(pixels=10_000))) as client:
        assert client.post("/v1/embed", content=jpeg(noise(100, 100))).status_code == 200
        response = client.post("/v1/embed", content=jpeg(noise(100, 101)))
        assert response.status_code == 415 and "100 x 101 is over the limit" in error(response)


def form_of(*dispositions: str) -> bytes:
    parts = (f"--x\r\nContent-Disposition: form-data; {one}\r\n\r\nabc\r\n" for one in dispositions)
    return f"{''.join(parts)}--x--\r\n".encode()


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (form_of("name=other; filename=a"), "; boundary=x", "no file image"),
        (form_of("name=image"), "; boundary=x", "no file image"),
        (b"garbage", "; boundary=x", "damaged"),
        (b"garbage", "", "damaged"),
        (form_of("name=image; filename=a", "name=top"), "; boundary=x", "a part 'top': parameters belong in the"),
        (form_of("name=image; filename=a", "name=mask; filename=b"), "; boundary=x", "a part 'mask'"),
        (form_of(*2 * ["name=image; filename=a"]), "; boundary=x", "2 parts image: one image is looked at"),
    ],
    ids=["another name", "a field", "damaged", "no boundary", "a parameter", "another file", "another image"],
)
def test_wrong_forms_are_refused(client: TestClient, body: bytes, content_type: str, message: str) -> None:
    headers = {"Content-Type": f"multipart/form-data{content_type}"}
    response = client.post("/v1/describe", content=body, headers=headers)
    assert response.status_code == 422 and message in error(response)


def test_large_bodies_are_refused(model: saywhere.Model) -> None:
    with TestClient(create_app(model, Limits(body=1 << 20))) as client:
        response = client.post("/v1/describe", content=b"0" * ((1 << 20) + 1))
        assert response.status_code == 413 and "larger than 1 MB" in error(response)
        response = client.post("/v1/describe", content=(b"0" * 70_000 for _ in range(16)))  # without Content-Length
        assert response.status_code == 413
        response = client.post("/v1/describe", content=b"0" * (1 << 20))
        assert response.status_code == 415


def test_bodies_that_are_too_large_together_are_refused(model: saywhere.Model) -> None:
    with TestClient(create_app(model, Limits(bodies=1000))) as client:
        response = client.post("/v1/describe", content=b"0" * 1001)
        assert response.status_code == 429 and response.headers["retry-after"] == "1"
        assert client.post("/v1/describe", content=b"0" * 1000).status_code == 415


def test_a_full_queue_refuses_and_recovers(
    model: saywhere.Model, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, encode = threading.Event(), model.engine.trunk.encode

    def wait(pixels: Any) -> Any:
        assert go.wait(600)
        return encode(pixels)

    monkeypatch.setattr(model.engine.trunk, "encode", wait)
    with TestClient(create_app(model, Limits(threads=1, queue=2))) as client, ThreadPoolExecutor(8) as pool:
        running = [pool.submit(client.post, "/v1/embed?regions=1", content=photo) for _ in range(8)]
        while sum(future.done() for future in running) < 5:
            time.sleep(0.01)
        go.set()
        answers = [future.result() for future in running]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) == 5 and all(answer.headers["retry-after"] == "1" for answer in refused)
        assert [answer.status_code for answer in answers if answer not in refused] == [200] * 3
        assert client.post("/v1/embed?regions=1", content=photo).status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(
    model: saywhere.Model, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, encode = threading.Event(), model.engine.trunk.encode
    monkeypatch.setattr(model.engine.trunk, "encode", lambda pixels: (go.wait(600), encode(pixels))[1])
    with TestClient(create_app(model, Limits(threads=1, answer_seconds=0.2))) as client:
        response = client.post("/v1/embed", content=photo)
        go.set()
        assert response.status_code == 503 and "within 0.2 seconds" in error(response)


def test_a_failure_of_the_server_is_one_line(model: saywhere.Model, photo: bytes) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret\nof the inside")

    broken = saywhere.Model(model.engine, "broken")
    broken.describe = fail  # pyright: ignore[reportAttributeAccessIssue]
    with TestClient(create_app(broken), raise_server_exceptions=False) as client:
        response = client.post("/v1/describe", content=photo)
        assert response.status_code == 500 and "secret" not in error(response)
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert client.post("/v1/embed?regions=1", content=photo).status_code == 200


@pytest.mark.parametrize("kind", [MemoryError, OSError])
def test_too_little_memory_is_said_and_outlived(
    model: saywhere.Model, photo: bytes, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """Wherever it is short: for the answer, the network, the image or threads."""
    text = "Failed to allocate memory for requested buffer"

    def fail(*_: Any, **__: Any) -> Any:
        raise kind(text)

    def check(client: TestClient) -> None:
        response = client.post("/v1/describe", content=photo, headers={"Cache-Control": "no-store"})
        assert response.status_code == 503 and "short of memory" in error(response)
        assert int(response.headers["retry-after"]) > 0

    broken = saywhere.Model(model.engine, "broken")
    with TestClient(create_app(broken), raise_server_exceptions=False) as client:
        places = [(broken, "describe"), (broken, "encode"), ("saywhere.serve.app", "to_json"), (Image, "open")]
        for owner, name in places if kind is MemoryError else places[:2]:
            with monkeypatch.context() as patch:
                if isinstance(owner, str):
                    patch.setattr(f"{owner}.{name}", fail)
                else:
                    patch.setattr(owner, name, fail, raising=False)
                patch.setattr("starlette._exception_handler.run_in_threadpool", fail)
                patch.setattr("starlette.middleware.errors.run_in_threadpool", fail)
                check(client)
        assert client.post("/v1/describe?top=1", content=photo).status_code == 200


def test_the_model_is_named(client: TestClient, model: saywhere.Model) -> None:
    found = client.get("/v1/models").json()
    assert found["models"] == [{"name": "flickr-coco", "parts": list(model.parts), "digest": model.digest()}]
    assert client.get("/healthz").json() == {"status": "ok", "version": saywhere.__version__}


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "there is no /nowhere; /openapi.json lists all paths"),
        ("GET", "/describe", 404, "no /describe, but /v1/describe: curl --data-binary @photo.jpg 'URL/v1/describe'"),
        ("GET", "/api/generate", 404, "there is no /api/generate; start the server with --protocols ollama"),
        ("GET", "/v1/describe", 405, "/v1/describe takes POST, not GET: curl --data-binary @photo.jpg 'URL/v1/descr"),
        ("GET", "/v1/ground?top=3", 405, "curl --data-binary @photo.jpg 'URL/v1/ground?text=a+dog'"),
        ("POST", "/v1/search", 405, "/v1/search takes GET, not POST: curl 'URL/v1/search?q=a+dog'"),
        ("DELETE", "/", 405, "/ takes GET, not DELETE: curl 'URL/'"),
    ],
)
def test_wrong_paths_and_methods(client: TestClient, method: str, path: str, status: int, message: str) -> None:
    response = client.request(method, path)
    assert response.status_code == status and message.replace("URL", str(client.base_url)) in error(response)


def test_the_description_has_every_route_and_parameter(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    routes = {getattr(route, "path", "") for route in client.app.routes}  # pyright: ignore[reportAttributeAccessIssue]
    assert {path for path in routes if path.startswith("/v1/")} | {"/healthz"} == set(described["paths"])
    for question in QUESTIONS:
        post = described["paths"][f"/v1/{question.name}"]["post"]
        names = [parameter["name"] for parameter in post["parameters"]]
        assert names == [*(parameter.name for parameter in question.parameters), "If-Match"]
        assert set(post["requestBody"]["content"]) == {"image/*", "multipart/form-data"}
        assert {"200", "401", "405", "413", "415", "422", "429", "500"} <= set(post["responses"])


def test_the_description_says_what_needs_the_token(model: saywhere.Model) -> None:
    with TestClient(create_app(model, token="s3cret")) as client:
        described = client.get("/openapi.json").json()
        assert described["security"] == [{"token": []}]
        free = {path for path, methods in described["paths"].items() for one in methods.values() if "security" in one}
        assert free == {"/healthz"} and described["paths"]["/healthz"]["get"]["security"] == []
        assert client.get("/healthz").status_code == 200 and client.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"queue": -1}, "queue must be a whole number of at least 0, not -1"),
        ({"body": "x"}, "body must be a whole number of at least 1, not 'x'"),
        ({"threads": 0}, "threads must be a whole number of at least 1, not 0"),
        ({"pixels": None}, "pixels must be a number from 0, not None"),
        ({"answer_seconds": -0.5}, "answer_seconds must be a number from 0, not -0.5"),
        ({"idle_seconds": "10"}, "idle_seconds must be a number from 0, not '10'"),
    ],
)
def test_limits_that_cannot_be_are_refused(wrong: Any, message: str) -> None:
    refuses(f"^{re.escape(message)}$", Limits, **wrong)
    assert Limits(queue=0, encodings=0, upload_seconds=0.5).queue == 0


def test_a_search_answers_as_the_index_does(model: saywhere.Model, indexed: Path) -> None:
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        found = index.search("a cat - snow", top=2)
        wanted = [{"entry": hit.entry, **as_json(hit.to_dict())} for hit in found]
        response = client.get("/v1/search", params={"q": "a cat - snow", "top": 2})
        sure = {"probably_not_there": None, "unlikely": LIKELY}
        assert response.json() == {"query": "a cat - snow", "hits": wanted, **sure}
        doubt = client.get("/v1/search", params={"q": "a submarine"}).json()["probably_not_there"]
        assert doubt.startswith("no image shows all of this with a probability of more than 0.0")
        part = client.get("/v1/search", params={"q": "a cat + a zzyx"}).json()["hits"]
        assert all(hit["unknown"] == {"zzyx": None} and "unused" not in hit for hit in part) and len(part) == 5
        part = client.get("/v1/search", params={"q": "a girafe + surfing"}).json()["hits"]
        assert {(hit["unknown"]["girafe"], *hit["without_noun"]) for hit in part} == {("giraffe", "surfing")}
        for hit in client.get("/v1/search", params={"q": "a cat sleeping"}).json()["hits"]:
            texts = [phrase["words"] for phrase in hit["phrases"]] + hit.get("not_found", [])
            assert sorted(texts) == ["a cat", "sleeping"] and "unused" not in hit
        assert client.get("/v1/models").json()["indexed"] == 5
        entries = {hit.image: hit.entry for hit in index.search("a cat")}
        copy = client.get("/v1/search/image", params={"entry": entries[str(indexed.parent / "chelsea.jpg")]})
        assert copy.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(copy.content)).size == (400, 300)
        for options in (
            {"under": ["nowhere"]},
            {"without": ["a cat"]},
            {"after": "2000-01-01"},
            {"before": "2000-01-01"},
        ):
            answer = client.get("/v1/search", params={"q": "a cat", **options}).json()
            assert [hit["entry"] for hit in answer["hits"]] == [hit.entry for hit in index.search("a cat", **options)]
            assert len(answer["hits"]) < 5 or "after" in options
        wrong = {
            "q=a&after=2024-13-01": "after must be a date",
            "q=a&before=2024": "before must be a date such as 2024-05-01",
            "q=": "characters",
            "q=a&top=0": "from 1 to 100",
            "q=%2C": "no word",
            "q=el+perro": "the model knows none of these words: el, perro; it reads English",
            "": "parameter q is missing",
        }
        for params, message in wrong.items():
            response = client.get(f"/v1/search?{params}")
            assert response.status_code == 422 and message in error(response)


def test_a_moment_of_a_video_is_found_and_shown(model: saywhere.Model, indexed: Path) -> None:
    clip = str(indexed.parent / "clip.mp4")
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        hits = client.get("/v1/search", params={"q": "a rocket"}).json()["hits"]
        entries = {hit["time"]: hit["entry"] for hit in hits if hit["image"] == clip}
        assert sorted(entries) == [0.0, 1.0]
        for time, name in ((0.0, "coffee.png"), (1.0, "rocket.jpg")):
            copy = client.get("/v1/search/image", params={"entry": entries[time]})
            shown = np.asarray(Image.open(io.BytesIO(copy.content))).astype(int)
            expected = np.asarray(Image.open(Path(skimage.data_dir) / name).convert("RGB").resize((400, 300)))
            assert shown.shape == (300, 400, 3) and np.abs(shown - expected).mean() < 15


def test_only_entries_of_the_index_are_shown(model: saywhere.Model, indexed: Path) -> None:
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        for entry in ("0-5", "1-0", "0", "-1", "0-0x", "0-\u0663", f"0-{2**63}", "/etc/passwd", "../chelsea.jpg", "\0"):
            response = client.get("/v1/search/image", params={"entry": entry})
            assert response.status_code == 404 and "the index has no entry" in error(response), entry
        assert client.get("/v1/search/image", params={"path": str(indexed.parent / "chelsea.jpg")}).status_code == 422
    with TestClient(create_app(model)) as client:
        assert "--index" in error(client.get("/v1/search?q=a dog"))
        assert "--index" in error(client.get("/v1/search/image?entry=0-0"))


def small_index(model: saywhere.Model, folder: Path, *names: str) -> saywhere.Index:
    """An index of photographs of these names, all of one size, in ``folder``."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(jpeg(noise(120, 80 + number)))
    index = saywhere.Index(folder.parent / "index", model)
    assert str(index.add(folder)).startswith(f"{len(names)} added")
    return index


def test_names_that_are_not_utf_8_are_found_and_shown(model: saywhere.Model, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xff.jpg")
    with small_index(model, tmp_path / "photos", name) as index, TestClient(create_app(model, index=index)) as client:
        response = client.get("/v1/search?q=a dog in a café")
        assert response.status_code == 200 and response.content.isascii()
        (hit,) = response.json()["hits"]
        assert hit["image"] == str(tmp_path / "photos" / name) and response.json()["query"] == "a dog in a café"
        url = f"/v1/search/image?entry={hit['entry']}"
        assert Image.open(io.BytesIO(client.get(url).content)).size == (120, 80)
        (tmp_path / "photos" / name).unlink()
        response = client.get(url)
        assert response.status_code == 404 and name in error(response)


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """An image that was never indexed, and is not to be shown."""
    path = tmp_path / "home" / "a.jpg"
    path.parent.mkdir()
    path.write_bytes(jpeg(noise(60, 60)))
    return path


def disguise(path: Path, like: Path) -> None:
    """Give a file the size and the time of another one."""
    status = like.stat()
    path.write_bytes(path.read_bytes().ljust(status.st_size, b"\0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def link_folder(path: Path, target: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))
    path.parent.symlink_to(target.parent)


def put(path: Path, target: Path) -> None:
    path.write_bytes(target.read_bytes())


def pipe(path: Path, target: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("disguised", [False, True])
@pytest.mark.parametrize("replace", [link, link_folder, put, pipe])
def test_a_file_in_the_place_of_an_indexed_one_is_not_shown(
    model: saywhere.Model, tmp_path: Path, stranger: Path, replace: Callable[[Path, Path], None], disguised: bool
) -> None:
    path = tmp_path / "photos" / "a.jpg"
    with small_index(model, path.parent, "a.jpg") as index, TestClient(create_app(model, index=index)) as client:
        (hit,) = client.get("/v1/search?q=a dog").json()["hits"]
        url = f"/v1/search/image?entry={hit['entry']}"
        assert client.get(url).status_code == 200
        if disguised:
            disguise(stranger, path)
        replace(path, stranger)
        response = client.get(url)
        assert response.status_code == 404 and "run saywhere index again" in error(response)


def test_a_file_with_the_same_content_is_shown(model: saywhere.Model, tmp_path: Path) -> None:
    path = tmp_path / "photos" / "a.jpg"
    with small_index(model, path.parent, "a.jpg") as index, TestClient(create_app(model, index=index)) as client:
        (hit,) = client.get("/v1/search?q=a dog").json()["hits"]
        url = f"/v1/search/image?entry={hit['entry']}"
        wanted = client.get(url).content
        os.utime(path, (1, 1))
        assert client.get(url).content == wanted
        path.parent.rename(tmp_path / "moved")
        path.parent.symlink_to(tmp_path / "moved")
        assert [client.get(url).content for _ in range(2)] == [wanted] * 2


def test_a_member_of_an_archive_is_shown_as_long_as_it_is_the_same(model: saywhere.Model, tmp_path: Path) -> None:
    def write(side: int) -> Path:
        data = jpeg(noise(120, side))
        with tarfile.open(tmp_path / "photos.tar", "w") as archive:
            member = tarfile.TarInfo("a.jpg")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        return tmp_path / "photos.tar"

    with saywhere.Index(tmp_path / "index", model) as index, TestClient(create_app(model, index=index)) as client:
        index.add(write(80))
        (hit,) = client.get("/v1/search?q=a dog").json()["hits"]
        url = f"/v1/search/image?entry={hit['entry']}"
        assert Image.open(io.BytesIO(client.get(url).content)).size == (120, 80)
        write(81)
        assert client.get(url).status_code == 404


def test_another_video_in_the_place_of_an_indexed_one_is_not_shown(model: saywhere.Model, tmp_path: Path) -> None:
    clip, stranger = tmp_path / "photos" / "clip.mp4", tmp_path / "home.mp4"
    clip.parent.mkdir()
    for path, shade in ((clip, 0), (stranger, 200)):
        write_clip(path, [Timed(0, Image.new("RGB", (96, 64), (shade, 90, 60)))])
    longest = max(path.stat().st_size for path in (clip, stranger))
    clip.write_bytes(clip.read_bytes().ljust(longest, b"\0"))
    with saywhere.Index(tmp_path / "index", model) as index, TestClient(create_app(model, index=index)) as client:
        index.add(clip.parent)
        (hit,) = client.get("/v1/search?q=a dog").json()["hits"]
        url = f"/v1/search/image?entry={hit['entry']}"
        wanted = client.get(url)
        assert wanted.status_code == 200
        os.utime(clip, (1, 1))
        assert client.get(url).content == wanted.content
        disguise(stranger, clip)
        link(clip, stranger)
        assert client.get(url).status_code == 404


def test_an_entry_of_before_an_image_was_indexed_anew_is_gone(model: saywhere.Model, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    with small_index(model, folder, "a.jpg", "b.jpg") as index, TestClient(create_app(model, index=index)) as client:
        old = {hit["image"]: hit["entry"] for hit in client.get("/v1/search?q=a dog").json()["hits"]}
        (folder / "a.jpg").write_bytes(jpeg(noise(40, 30)))
        index.add(folder)  # which also writes the files anew, and with them gives "b.jpg" another number
        for entry in old.values():
            assert client.get(f"/v1/search/image?entry={entry}").status_code == 404
        new = {hit["image"]: hit["entry"] for hit in client.get("/v1/search?q=a dog").json()["hits"]}
        copy = client.get(f"/v1/search/image?entry={new[str(folder / 'a.jpg')]}")
        assert Image.open(io.BytesIO(copy.content)).size == (40, 30)


def test_the_page_is_whole_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/page/page.js", "/page/server.js", "/page/overlay.js", "/page/page.css"):
        file = client.get(path)
        assert file.status_code == 200 and file.headers["content-encoding"] == "gzip"
        assert "//" not in file.text.replace("// ", "") and "http" not in file.text.replace("https,", "")
        assert client.get(path, headers={"If-None-Match": file.headers["etag"]}).status_code == 304
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers and plain.text == file.text
    examples = [client.get(f"/{path}") for path in re.findall(r'img src="(page/[^"]+)"', page.text)]
    assert len(examples) == 4 and {file.headers["content-type"] for file in examples} == {"image/jpeg"}
    assert sum(len(file.content) for file in examples) < 150_000


def made(name: str) -> Any:
    return lambda: name


def test_the_last_are_kept() -> None:
    kept = Encodings(Limits(encodings=2))
    assert [kept.make(tag, made(tag)) for tag in "ab"] == ["a", "b"]
    assert kept.find("a") == "a"  # and so "b" is the oldest
    assert kept.make("c", made("c")) == "c"
    assert [kept.find(tag) for tag in "abc"] == ["a", None, "c"] and len(kept) == 2
    assert kept.make("a", made("another")) == "a"


def test_an_error_is_raised_and_not_kept() -> None:
    kept = Encodings(Limits())

    def fail() -> Any:
        raise ValueError("no image")

    with pytest.raises(ValueError, match="no image"):
        kept.make("a", fail)
    assert kept.make("a", made("a")) == "a"


def test_small_copies_of_slow_files_are_refused(model: saywhere.Model, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (2000, 1500)).save(tmp_path / "photos" / "a.jp2", "JPEG2000", num_resolutions=1)
    with saywhere.Index(tmp_path / "index", model) as index, TestClient(create_app(model, index=index)) as client:
        index.add(tmp_path / "photos")
        (hit,) = client.get("/v1/search?q=a+dog").json()["hits"]
        response = client.get(f"/v1/search/image?entry={hit['entry']}")
        assert "a JPEG 2000 of 2000 x 1500 takes too long" in error(response)
