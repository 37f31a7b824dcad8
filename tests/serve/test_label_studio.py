"""The ML backend of Label Studio, with requests as Label Studio sends them and a small one that gives the images."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from local_server import Answers, answering
from refusals import refuses
from server_process import Process
from starlette.testclient import TestClient

import saywhere
from saywhere.serve.app import create_app
from saywhere.serve.folders import Folders
from saywhere.serve.label_studio import Images, LabelStudio

CONFIG = """<View>
  <!-- boxes and phrases -->
  <Image name="photo" value="$picture"/>
  <RectangleLabels name="kind" toName="photo"><Label value="Hat"/><Label value="Shirt"/></RectangleLabels>
  <TextArea name="words" toName="photo" perRegion="true"/>
</View>"""
JWT = "eyJhbGciOi.eyJ0b2tlbl90.c2lnbmF0dXJl"


class Site:
    """A Label Studio that gives one image to who brings its token, and counts the requests by their paths."""

    def __init__(self, photo: bytes) -> None:
        self.asked: list[str] = []
        self.refreshed: list[str] = []
        site = self

        class Handler(Answers):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                allowed = self.headers["Authorization"] in ("Token legacy", f"Bearer access{len(site.refreshed)}")
                if self.path == "/data/moved.jpg":
                    self.answer(b"", 302, Location=f"{site.url}/data/upload/1/a.jpg")
                elif self.path == "/data/large.jpg":
                    self.answer(b"0" * (2 << 20))
                elif not allowed:
                    self.answer(b"", 401)
                elif self.path == "/data/upload/1/a.jpg":
                    self.answer(photo)
                else:
                    self.answer(b"", 404)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/api/token/refresh" or asked != {"refresh": JWT}:
                    self.answer(b"{}", 401)
                    return
                site.refreshed.append(self.path)
                self.answer(json.dumps({"access": f"access{len(site.refreshed)}"}).encode())

        self.handler = Handler


@pytest.fixture
def site(photo: bytes) -> Iterator[Site]:
    made = Site(photo)
    with answering(made.handler) as made.url:
        yield made


@pytest.fixture
def client(model: saywhere.Model) -> Iterator[Callable[[Images], TestClient]]:
    opened: list[TestClient] = []

    def make(images: Images, token: str | None = None) -> TestClient:
        app = create_app(model, token=token, protocols=[lambda service: LabelStudio(service, images).routes()])
        opened.append(TestClient(app).__enter__())
        return opened[-1]

    yield make
    for one in opened:
        one.__exit__()


@pytest.fixture
def backend(client: Callable[[Images], TestClient], site: Site) -> TestClient:
    return client(Images(site.url, "legacy", None, 1 << 20))


def asked(address: Any, *drawn: Any, config: str = CONFIG) -> dict[str, Any]:
    """A request for a prediction, as Label Studio sends it."""
    task = {"id": 1, "data": {"picture": address}, "meta": {}, "annotations": [], "predictions": []}
    params = {"login": None, "password": None, "context": {"result": list(drawn)} if drawn else None}
    return {"tasks": [task], "label_config": config, "project": "1.1764139000", "params": params}


def only(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    (found,) = response.json()["results"]
    return found


@pytest.mark.parametrize("token", ["legacy", JWT])
def test_a_task_is_described_with_names_of_its_configuration(
    client: Any, site: Site, model: saywhere.Model, seen: Any, token: str
) -> None:
    backend = client(Images(site.url, token, None, 1 << 20))
    assert backend.get("/health").json() == {"status": "UP", "model_class": "saywhere"}
    setup = {"project": "1.1764139000", "schema": CONFIG, "extra_params": None, "access_token": "x"}
    version = backend.post("/setup", json=setup).json()["model_version"]
    assert version == f"saywhere-{saywhere.__version__}-{model.digest()[:8]}"
    assert backend.get("/versions").json() == {"versions": [version]}
    assert backend.post("/webhook", json={"action": "ANNOTATION_CREATED"}).status_code == 201
    regions = model.describe(seen).at_least()
    for address in ("/data/upload/1/a.jpg", f"{site.url}/data/upload/1/a.jpg"):
        found = only(backend.post("/predict", json=asked(address)))
        assert found["model_version"] == version and 0 < found["score"] <= 1
        boxes = [row for row in found["result"] if row["type"] == "rectanglelabels"]
        texts = [row for row in found["result"] if row["type"] == "textarea"]
        assert [row["value"]["text"] for row in texts] == [[caption] for caption in regions.captions or ()]
        assert [row["id"] for row in boxes] == [row["id"] for row in texts]
        assert 0 < len({row["id"] for row in boxes}) == len(boxes) < len(model.describe(seen, threshold=0.25))
        first = boxes[0]
        assert (first["from_name"], first["to_name"], texts[0]["from_name"]) == ("kind", "photo", "words")
        assert (first["original_width"], first["original_height"]) == (400, 400)
        corner = regions.boxes[0, :2].tolist()
        assert [first["value"]["x"] * 4, first["value"]["y"] * 4] == pytest.approx(corner, abs=0.01)
        named = {label for row in boxes for label in row["value"]["rectanglelabels"]}
        assert named == {"Shirt"}
    assert len(site.refreshed) == (token == JWT)


def test_a_rectangle_asks_what_and_a_text_asks_where(backend: TestClient, model: saywhere.Model, seen: Any) -> None:
    place = {"x": 25, "y": 10, "width": 50, "height": 40, "rotation": 0}
    drawn = {"id": "d1", "type": "rectanglelabels", "from_name": "kind", "to_name": "photo", "value": place}
    found = only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", drawn)))["result"]
    (caption,) = model.describe(seen, [[100, 40, 300, 200]]).captions or ()
    assert [row["id"] for row in found] == ["d1", "d1"] and found[1]["value"]["text"] == [caption]
    text = {"id": "t1", "type": "textarea", "from_name": "words", "to_name": "photo", "value": {"text": ["a woman"]}}
    found = only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", text)))["result"]
    (region,) = model.ground(seen, "a woman")
    assert found[1]["value"]["text"] == ["a woman"]
    assert found[0]["value"]["width"] * 4 == pytest.approx(region.box[2] - region.box[0], abs=0.01)


def test_label_studios_own_sdk_takes_the_predictions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a server in its own process."""
    reason = "it brings another OpenCV than that of the tests: see CONTRIBUTING.md"
    interface = pytest.importorskip("label_studio_sdk.label_interface", reason=reason).LabelInterface(CONFIG)
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "legacy")
    place = {"x": 25.0, "y": 10.0, "width": 35.0, "height": 40.0}
    drawn = {"id": "r1", "type": "rectanglelabels", "value": {**place, "rectanglelabels": ["Hat"]}}
    with Process("--label-studio", site.url) as server:
        for given in ((), (drawn,), ({"type": "textarea", "value": {"text": ["a woman in a suit"]}},)):
            request = asked("/data/upload/1/a.jpg", *given)
            found = only(httpx2.post(f"{server.url}/predict", json=request, timeout=600))
            assert found["result"] and interface.validate_prediction(found, return_errors=True) == []


def test_without_texts_only_regions_with_its_labels_are_predicted(backend: TestClient) -> None:
    config = CONFIG.replace('<TextArea name="words" toName="photo" perRegion="true"/>', "")
    found = only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", config=config)))["result"]
    assert [row["value"]["rectanglelabels"] for row in found] == [["Shirt"]]
    others = config.replace("Shirt", "jacket")
    assert only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", config=others)))["result"] == []
    plain = '<View><Image name="i" value="$picture"/><Rectangle name="r" toName="i"/></View>'
    found = only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", config=plain)))["result"]
    assert [row["type"] for row in found] == ["rectangle"]


def test_images_of_a_mounted_folder(client: Any, tmp_path: Path, photo: bytes) -> None:
    (tmp_path / "media" / "upload").mkdir(parents=True)
    (tmp_path / "media" / "upload" / "a b.jpg").write_bytes(photo)
    (tmp_path / "secret.jpg").write_bytes(photo)
    (tmp_path / "media" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    backend = client(Images(None, None, Folders([tmp_path / "media"]), 1 << 20))
    for address in ("/data/local-files/?d=upload/a%20b.jpg", "/data/upload/a%20b.jpg"):
        assert only(backend.post("/predict", json=asked(address)))["result"]
    both = asked("/data/upload/a%20b.jpg")
    both["tasks"].append({"id": 2, "data": {"picture": "/data/upload/nothing.jpg"}})
    one, other = backend.post("/predict", json=both).json()["results"]
    assert one["result"] and not other["result"] and "nothing.jpg" in other["error"]
    for address in ("/data/local-files/?d=../secret.jpg", "/data/%2e%2e/secret.jpg", "/data/link.jpg"):
        response = backend.post("/predict", json=asked(address))
        assert response.status_code == 422 and "outside the folders" in response.json()["error"]
    for address in ("/etc/passwd", "http://example.org/a.jpg"):
        response = backend.post("/predict", json=asked(address))
        assert response.status_code == 400 and "only images of the mounted folder" in response.json()["error"]


def test_an_image_that_cannot_be_read_costs_the_other_tasks_nothing(backend: TestClient) -> None:
    both = asked("/data/upload/1/a.jpg")
    both["tasks"] += [{"id": 2, "data": {"picture": "/data/nothing.jpg"}}, 3]
    found, *others = backend.post("/predict", json=both).json()["results"]
    assert found["result"] and "error" not in found
    assert [(one["result"], one["score"]) for one in others] == [([], 0), ([], 0)]
    assert "answered 404" in others[0]["error"] and "only images of" in others[1]["error"]


def test_labels_are_classes_with_their_kinds(backend: TestClient) -> None:
    """As with ``describe --classes``: a shirt is clothing, and capitals do not matter."""
    for label, found in (("Shirt", True), ("clothing", True), ("vehicle", False)):
        config = CONFIG.replace('value="Shirt"', f'value="{label}"')
        rows = only(backend.post("/predict", json=asked("/data/upload/1/a.jpg", config=config)))["result"]
        named = {name for row in rows for name in row["value"].get("rectanglelabels", ())}
        assert named == ({label} if found else set())


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("http://example.org/data/a.jpg", 400, "only images of http://127.0.0.1"),
        ("//example.org/data/a.jpg", 400, "only images of"),
        ("https://127.0.0.1/data/a.jpg", 400, "only images of"),
        ("s3://bucket/a.jpg", 400, "only images of"),
        ("file:///etc/passwd", 400, "only images of"),
        ("http://[/a.jpg", 400, "damaged"),
        ("http://a:x/a.jpg", 400, "damaged"),
        (None, 400, "only images of"),
        ({"a": 1}, 400, "only images of"),
        ("/data/a\r\nX: y.jpg", 422, "cannot be reached"),
        ("/data/a b.jpg", 422, "cannot be reached"),
        ("/data/nothing.jpg", 422, "answered 404"),
        ("/data/moved.jpg", 422, "redirects are not followed"),
        ("/data/large.jpg", 422, "larger than 1 MB"),
    ],
)
def test_other_images_are_refused_by_one_line(
    backend: TestClient, site: Site, address: Any, status: int, message: str
) -> None:
    response = backend.post("/predict", json=asked(address))
    assert response.status_code == status
    assert message in response.json()["error"] and "\n" not in response.json()["error"]
    assert "/data/upload/1/a.jpg" not in site.asked


def test_a_wrong_token_of_label_studio_is_named(client: Any, site: Site) -> None:
    for token, message in {"wrong": "its token into LABEL_STUDIO", f"{JWT}x": "refuses the token"}.items():
        backend = client(Images(site.url, token, None, 1 << 20))
        response = backend.post("/predict", json=asked("/data/upload/1/a.jpg"))
        assert response.status_code == 422 and message in response.json()["error"]


OUTSIDE = {"x": 1, "y": 1, "width": 500, "height": 1}
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><View>&b;</View>'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_config": BOMB}, "without declarations"),
        ({"label_config": "<View>"}, "is not XML"),
        ({"label_config": "<a>" * 100_000}, "is not XML"),
        ({"label_config": "<View/>"}, "must have an Image"),
        ({"label_config": None}, "must be XML"),
        ({"tasks": []}, "a list of 1 to 100"),
        ({"tasks": [{}] * 101}, "a list of 1 to 100"),
        ({"tasks": [7]}, "only images of"),
        ({"params": {"context": {"result": [{"type": "rectangle", "value": OUTSIDE}]}}}, "is not inside"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused_by_one_line(backend: TestClient, change: dict[str, Any], message: str) -> None:
    response = backend.post("/predict", json=asked("/data/upload/1/a.jpg") | change)
    assert response.status_code in (400, 422)
    assert message in response.json()["error"] and "\n" not in response.json()["error"]


def test_label_studio_gives_the_token_as_a_password(client: Any, site: Site) -> None:
    backend = client(Images(site.url, "legacy", None, 1 << 20), token="s3cret")
    for password, status in {"s3cret": 200, "wrong": 401, "": 401}.items():
        pair = base64.b64encode(f"user:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}"}
        assert backend.get("/health", headers=headers).status_code == status
    assert backend.get("/health", headers={"Authorization": "Basic %%%"}).status_code == 401


def test_a_url_that_is_none_is_named() -> None:
    refuses("must be a URL such as", Images, "localhost:8080", None, None, 1)
