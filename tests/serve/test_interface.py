"""The HTTP interface in this process: answers, parameters, limits, errors."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from photographs import huge_png_header, jpeg, noise
from PIL import Image
from starlette.testclient import TestClient

import saywhere
from saywhere.images import read_image
from saywhere.serve.app import create_app
from saywhere.serve.limits import Limits
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
    assert ask("describe?threshold=0.5") == as_json(model.describe(seen, threshold=0.5).to_dict())
    assert ask("describe?box=20,30.5,200,390") == as_json(model.describe(seen, [box]).to_dict())
    assert ask("ground?text=a zebra&threshold=0") == as_json(model.ground(seen, "a zebra", threshold=0.0).to_dict())
    assert ask("ground?text=a woman in a suit") == as_json(model.ground(seen, "a woman in a suit").to_dict())
    assert ask("ground?text=a woman&text=a hat") == as_json(model.ground(seen, ["a woman", "a hat"]).to_dict())
    assert ask("caption") == as_json(model.caption(seen).to_dict())
    assert ask("caption?beam_size=1&attention=false") == {
        "image": "image", "width": 400, "height": 400, "caption": model.caption(seen, beam_size=1).sentence
    }  # fmt: skip
    embedded, vectors = ask("embed?regions=3"), model.embed(seen, regions=3)
    assert embedded["boxes"] == [[round(v, 2) for v in box] for box in vectors.boxes.tolist()]
    assert embedded["vectors"] == [[round(v, 5) for v in row] for row in vectors.vectors.tolist()]


def test_regions_read_the_answer(client: TestClient, photo: bytes) -> None:
    regions = saywhere.Regions.from_dict(client.post("/v1/describe?top=3", content=photo).json())
    assert len(regions) == 3 and regions.scores is not None and regions.width == 400


def test_words_are_embedded(client: TestClient, model: saywhere.Model) -> None:
    found = client.get("/v1/embed_text", params={"text": "a red dog"}).json()
    assert found["words"] == ["a", "red", "dog"]
    assert found["vectors"] == [[round(v, 5) for v in row] for row in model.embed_text("a red dog").vectors.tolist()]


def test_an_image_is_shown_upright(client: TestClient) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = client.post("/v1/describe?top=1", content=jpeg(noise(120, 60), exif=exif)).json()
    assert (found["width"], found["height"]) == (60, 120)


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


def test_one_image_asked_about_at_the_same_time_is_encoded_once(
    model: saywhere.Model, photo: bytes, runs: list[int]
) -> None:
    with TestClient(create_app(model, Limits(threads=4))) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/embed?regions=1", content=photo).json(), range(8)))
    assert runs == [1] and all(answer == answers[0] for answer in answers)


def test_an_encoding_that_shall_not_be_stored_is_not(model: saywhere.Model, photo: bytes, runs: list[int]) -> None:
    with TestClient(create_app(model)) as client:
        for _ in range(2):
            response = client.post("/v1/embed?regions=1", content=photo, headers={"Cache-Control": "no-store"})
            assert response.status_code == 200 and "etag" not in response.headers
    assert runs == [1, 1]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("describe?top=x", "top is a whole number from 0 to 1000, not 'x'"),
        ("describe?top=-1", "top is a whole number from 0 to 1000, not '-1'"),
        ("describe?top=1e3", "top is a whole number from 0 to 1000, not '1e3'"),
        ("describe?threshold=nan", "threshold is a number from 0 to 1, not 'nan'"),
        ("describe?threshold=1.5", "threshold is a number from 0 to 1, not '1.5'"),
        ("describe?top=1&top=2", "top is given more than once"),
        ("describe?best=1", "unknown parameter best: this question has top, threshold, box"),
        ("describe?box=1,2,3", "box is four numbers x1,y1,x2,y2, not '1,2,3'"),
        ("describe?box=1,2,inf,4", "box is four numbers x1,y1,x2,y2, not '1,2,inf,4'"),
        ("describe?box=1,2,900,4", "image: box 0 [1.0, 2.0, 900.0, 4.0] is not inside the 400 x 400 image"),
        ("describe?box=1,2,3,4&top=1", "top and threshold choose among the boxes"),
        ("ground", "the parameter text is missing"),
        ("ground?text=", "text is a text of 1 to 1000 letters, not ''"),
        ("ground?text=%2C%2C", "no word"),
        ("ground?text=a dog&part=captioner", "part is aligner or densecap, not 'captioner'"),
        ("caption?attention=yes", "attention is true or false, not 'yes'"),
        ("caption?beam_size=0", "beam_size is a whole number from 1 to 20, not '0'"),
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


def test_an_image_with_more_pixels_than_allowed_is_refused(model: saywhere.Model) -> None:
    with TestClient(create_app(model, Limits(pixels=10_000))) as client:
        assert client.post("/v1/embed", content=jpeg(noise(100, 100))).status_code == 200
        response = client.post("/v1/embed", content=jpeg(noise(100, 101)))
        assert response.status_code == 415 and "100 x 101 is over the limit" in error(response)


def form_of(disposition: str) -> bytes:
    return f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\nabc\r\n--x--\r\n".encode()


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (form_of("name=other; filename=a"), "; boundary=x", "no file image"),
        (form_of("name=image"), "; boundary=x", "no file image"),
        (b"garbage", "; boundary=x", "damaged"),
        (b"garbage", "", "damaged"),
    ],
    ids=["another name", "a field", "damaged", "no boundary"],
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
        assert go.wait(60)
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
    monkeypatch.setattr(model.engine.trunk, "encode", lambda pixels: (go.wait(60), encode(pixels))[1])
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
        assert client.post("/v1/embed?regions=1", content=photo).status_code == 200


def test_a_token_is_asked_for(model: saywhere.Model, photo: bytes) -> None:
    with TestClient(create_app(model, token="s3cret")) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            response = client.post("/v1/describe", content=photo, headers=headers)
            assert response.status_code == 401 and "token" in error(response)
            assert client.get("/v1/models", headers=headers).status_code == 401
        right = {"Authorization": "Bearer s3cret"}
        assert client.post("/v1/describe", content=photo, headers=right).status_code == 200
        assert [client.get(path).status_code for path in ("/", "/healthz", "/openapi.json")] == [200] * 3


def test_a_server_for_its_own_machine_has_no_other_name(model: saywhere.Model) -> None:
    app = create_app(model, hosts=("localhost", "::1"))
    for name, status in {"localhost:8077": 200, "[::1]:8077": 200, "rebound.example": 421, "": 421}.items():
        with TestClient(app) as client:
            assert client.get("/v1/models", headers={"Host": name}).status_code == status


def test_the_model_is_named(client: TestClient, model: saywhere.Model) -> None:
    found = client.get("/v1/models").json()
    assert found["models"] == [{"name": "flickr-coco", "parts": list(model.parts), "digest": model.digest()}]
    assert client.get("/healthz").json() == {"status": "ok", "version": saywhere.__version__}


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/describe", 405)])
def test_wrong_paths_and_methods(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status and error(response)


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
        assert {"200", "401", "413", "415", "422", "429"} <= set(post["responses"])


def test_a_search_answers_as_the_index_does(model: saywhere.Model, indexed: Path) -> None:
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        wanted = [as_json(hit.to_dict()) for hit in index.search("a dog - snow", top=2)]
        response = client.get("/v1/search", params={"q": "a dog - snow", "top": 2})
        assert response.json() == {"query": "a dog - snow", "hits": wanted}
        assert client.get("/v1/models").json()["indexed"] == 5
        copy = client.get("/v1/search/image", params={"path": str(indexed.parent / "chelsea.jpg")})
        assert copy.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(copy.content)).size == (400, 300)
        wrong = {"q=": "letters", "q=a&top=0": "from 1 to 100", "q=%2C": "no word", "": "parameter q is missing"}
        for params, message in wrong.items():
            response = client.get(f"/v1/search?{params}")
            assert response.status_code == 422 and message in error(response)


def test_a_moment_of_a_video_is_found_and_shown(model: saywhere.Model, indexed: Path) -> None:
    clip = str(indexed.parent / "clip.mp4")
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        hits = client.get("/v1/search", params={"q": "a rocket"}).json()["hits"]
        assert sorted(hit["time"] for hit in hits if hit["image"] == clip) == [0.0, 1.0]
        for time, name in ((0.0, "coffee.png"), (1.0, "rocket.jpg")):
            copy = client.get("/v1/search/image", params={"path": clip, "time": time})
            shown = np.asarray(Image.open(io.BytesIO(copy.content))).astype(int)
            expected = np.asarray(Image.open(Path(skimage.data_dir) / name).convert("RGB").resize((400, 300)))
            assert shown.shape == (300, 400, 3) and np.abs(shown - expected).mean() < 15
        for params in ({"path": clip}, {"path": clip, "time": 0.5}, {"path": f"{clip}\0{1000:010}"}):
            response = client.get("/v1/search/image", params=params)
            assert response.status_code == 404 and "the index has no image" in error(response)


def test_only_images_of_the_index_are_shown(model: saywhere.Model, indexed: Path, photo_path: Path) -> None:
    with saywhere.Index(indexed, model) as index, TestClient(create_app(model, index=index)) as client:
        for path in (photo_path, "/etc/passwd", indexed.parent / "x" / ".." / "chelsea.jpg"):
            response = client.get("/v1/search/image", params={"path": str(path)})
            assert response.status_code == 404 and "the index has no image" in error(response)
    with TestClient(create_app(model)) as client:
        assert "--index" in error(client.get("/v1/search?q=a dog"))


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


def test_all_kinds_of_images_are_read(client: TestClient) -> None:
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"):
        stream = io.BytesIO()
        noise(40, 30).save(stream, kind)
        response = client.post("/v1/describe?top=0", content=stream.getvalue())
        assert response.json() == {
            "image": "image", "width": 40, "height": 30, "boxes": [], "scores": [], "captions": []
        }  # fmt: skip
