"""The routes of Ollama, OpenAI and PhotoPrism, asked by the programs' own clients of a server in its own process.

PhotoPrism and Frigate have no client in Python: their requests are written down here as they send them.
"""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import httpx2
import ollama
import openai
import pytest
from commands import error_of, run
from photographs import huge_png_header, jpeg, noise
from pydantic import BaseModel, Field
from server_process import Process
from starlette.testclient import TestClient

import saywhere
from saywhere.formats.classes import Classes
from saywhere.models.layout import Layout
from saywhere.serve.app import SPOKEN, create_app
from saywhere.serve.captions import PROTOCOLS, find_labels
from saywhere.serve.limits import Limits

NAMES = ",".join(PROTOCOLS)


class Label(BaseModel):
    name: str
    confidence: float
    topicality: float


class Labels(BaseModel):
    labels: list[Label]


class Place(BaseModel):
    label: str
    bbox: list[float]
    score: float


class Places(BaseModel):
    objects: list[Place]


class Chosen(BaseModel):
    name: Literal["cat", "dog", "Person"]
    score: float | None


class Choice(BaseModel):
    labels: list[Chosen]


class Corners(BaseModel):
    label: str
    bbox_2d: tuple[int, int, int, int] | None = None
    x1: float = 0
    ymax: float = 0


class Marks(BaseModel):
    marks: list[Corners] = Field(min_length=1, max_length=2)


@pytest.fixture(scope="module")
def speaking() -> Iterator[Process]:
    with Process("--protocols", NAMES, "--label-studio", "http://127.0.0.1:9", "--token", "s3cret") as running:
        yield running


@pytest.fixture(scope="module")
def ollama_client(speaking: Process) -> ollama.Client:
    return ollama.Client(host=speaking.url, headers={"Authorization": "Bearer s3cret"}, timeout=600)


@pytest.fixture(scope="module")
def openai_client(speaking: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="s3cret", timeout=600, max_retries=0)


@pytest.fixture(scope="module")
def sentence(model: saywhere.Model, seen: saywhere.Encoding) -> str:
    return model.caption(seen).sentence


@pytest.fixture(scope="module")
def data_url(photo: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(photo).decode()}"


def check_labels(text: str) -> None:
    labels = Labels.model_validate_json(text).labels
    assert labels and labels == sorted(labels, key=lambda label: -label.confidence)
    assert all(0.1 <= label.confidence <= 1 and 0 < label.topicality <= 1 for label in labels)
    assert {"jacket", "face", "hair", "head", "woman", "person", "flag", "helmet"} & {label.name for label in labels}


def test_a_label_is_as_sure_as_the_image_and_the_phrase_together(
    model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    labels = {row["name"]: row["confidence"] for row in find_labels(model, seen)}
    regions = model.describe(seen, top=20)
    for name, confidence in labels.items():
        words = max(r.caption_score for r in regions if Classes().label(r.caption) == name)
        presence = model.placer().find(seen, Layout((name,)))[1][0]
        assert confidence == pytest.approx(math.sqrt(words * presence), abs=1e-3)


def check_places(text: str, regions: saywhere.Regions) -> None:
    places = Places.model_validate_json(text).objects
    assert [place.label for place in places] == list(regions.captions or ())
    assert [place.bbox for place in places] == [[round(v) for v in box] for box in regions.boxes.tolist()]


def test_ollamas_client(
    ollama_client: ollama.Client, photo: bytes, sentence: str, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    (entry,) = ollama_client.list().models
    assert entry.model == "saywhere:latest"
    assert "vision" in (ollama_client.show("saywhere").capabilities or [])
    assert ollama_client.generate("saywhere").done_reason == "load"
    answer = ollama_client.generate("saywhere", "What is this?", images=[photo])
    assert answer.response == sentence and answer.done and answer.done_reason == "stop"
    pieces = [*ollama_client.generate("saywhere:latest", "What is this?", images=[photo], stream=True)]
    assert "".join(piece.response for piece in pieces) == sentence and len(pieces) == len(sentence.split()) + 1
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    messages = [{"role": "user", "content": "Look", "images": [photo]}, {"role": "user", "content": "And what is it?"}]
    assert ollama_client.chat("saywhere", messages).message.content == sentence
    parts = [*ollama_client.chat("saywhere", messages, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == sentence
    check_labels(ollama_client.generate("saywhere", "Labels?", images=[photo], format="json").response)
    check_labels(ollama_client.generate("saywhere", "", images=[photo], format=Labels.model_json_schema()).response)
    regions = model.describe(seen).at_least()
    asked = ollama_client.chat("saywhere", messages, format=Places.model_json_schema()).message.content or ""
    check_places(asked, regions)
    few = ollama_client.generate("saywhere", "", images=[photo], format=Marks.model_json_schema()).response
    corners = [[round(v) for v in box] for box in regions.boxes.tolist()]
    marks = Marks.model_validate_json(few).marks
    assert [(mark.bbox_2d, mark.x1, mark.ymax) for mark in marks] == [((*c,), c[0], c[3]) for c in corners[:2]]
    lines = ollama_client.generate("saywhere", "Describe the regions.", images=[photo]).response.splitlines()
    assert len(lines) == len(regions) and lines[0].startswith((regions.captions or ("",))[0])
    with pytest.raises(ollama.ResponseError, match="no model 'llava'") as error:
        ollama_client.generate("llava", "What is this?", images=[photo])
    assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="there is no image"):
        ollama_client.chat("saywhere", [{"role": "user", "content": "Write a title."}])


def test_openais_client(
    openai_client: openai.OpenAI, data_url: str, sentence: str, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    assert [entry.id for entry in openai_client.models.list()] == ["saywhere"]
    assert openai_client.models.retrieve("saywhere").object == "model"
    image: Any = {"type": "image_url", "image_url": {"url": data_url, "detail": "low"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    chats = openai_client.chat.completions
    answer = chats.create(model="saywhere", messages=messages)
    assert answer.choices[0].message.content == sentence and answer.choices[0].finish_reason == "stop"
    chunks = [*chats.create(model="saywhere", messages=messages, stream=True, stream_options={"include_usage": True})]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == sentence and chunks[-1].usage
    check_labels(chats.create(model="saywhere", messages=messages, response_format={"type": "json_object"})
                 .choices[0].message.content or "")  # fmt: skip
    parsed = chats.parse(model="saywhere", messages=messages, response_format=Places)
    check_places(parsed.choices[0].message.content or "", model.describe(seen).at_least())
    choice = chats.parse(model="saywhere", messages=messages, response_format=Choice).choices[0].message.parsed
    people = [row["confidence"] for row in find_labels(model, seen, Classes(("cat", "dog", "Person")))]
    assert choice and [(one.name, one.score) for one in choice.labels] == [("Person", people[0])]  # no dress, no bench
    given: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"},
                                              {"type": "input_image", "image_url": data_url}]}]  # fmt: skip
    assert openai_client.responses.create(model="saywhere", input=given).output_text == sentence
    with openai_client.responses.stream(model="saywhere", input=given) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == sentence and stream.get_final_response().output_text == sentence
    check_labels(openai_client.responses.parse(model="saywhere", input=given, text_format=Labels).output_text)
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="there are no tools"):
        chats.create(model="saywhere", messages=messages, tools=[tool])
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-5-mini'"):
        chats.create(model="gpt-5-mini", messages=messages)
    with pytest.raises(openai.AuthenticationError):
        openai_client.with_options(api_key="wrong").models.list()


def post(server: Process, path: str, body: Any, token: str = "s3cret") -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.post(f"{server.url}{path}", json=body, headers=headers, timeout=600)


def test_requests_of_photoprism(speaking: Process, photo: bytes, data_url: str, sentence: str) -> None:
    """Its engine ollama with labels and a caption, and its own vision service."""
    asked = {
        "model": "saywhere:latest", "version": "latest", "system": "You are a PhotoPrism vision model.",
        "prompt": 'Return up to 3 JSON labels: {"labels": [{"name": "", "confidence": 0, "topicality": 0}]}',
        "format": "json", "images": [base64.b64encode(photo).decode()], "stream": False,
        "options": {"temperature": 0.05, "top_p": 0.9, "stop": ["\n\n"]}, "responseFormat": "ollama",
    }  # fmt: skip
    answer = post(speaking, "/api/generate", asked).json()
    assert answer["model"] == "saywhere:latest"
    check_labels(answer["response"])
    asked |= {"prompt": "Create a caption with exactly one sentence in the active voice.", "format": ""}
    assert post(speaking, "/api/generate", asked).json()["response"] == sentence
    own = {"id": "3487da77", "model": "caption", "version": "latest", "images": [data_url]}
    caption = post(speaking, "/api/v1/vision/caption", own).json()
    assert (caption["id"], caption["code"], caption["result"]["caption"]["text"]) == ("3487da77", 200, sentence)
    assert caption["model"]["type"] == "caption" and "labels" not in caption["result"]
    labels = post(speaking, "/api/v1/vision/labels", own).json()["result"]
    check_labels(json.dumps(labels))
    assert post(speaking, "/api/v1/vision", own).json()["result"].keys() == {"caption", "labels"}


def test_requests_of_frigate(speaking: Process, photo: bytes, data_url: str, sentence: str) -> None:
    """It shows the model first, and sends several frames of one thing."""
    assert post(speaking, "/api/show", {"model": "saywhere"}).status_code == 200
    frames = [base64.b64encode(photo).decode()] * 3
    asked = {"model": "saywhere", "prompt": "Describe the person.", "images": frames, "stream": False, "options": {}}
    assert post(speaking, "/api/generate", asked).json()["response"] == sentence
    image = {"type": "image_url", "image_url": {"url": data_url, "detail": "low"}}
    content = [{"type": "text", "text": "Describe the person."}, image, image]
    chat = {"model": "saywhere", "messages": [{"role": "user", "content": content}], "timeout": 60}
    answer = post(speaking, "/v1/chat/completions", chat).json()
    assert answer["choices"][0]["message"]["content"] == sentence


@pytest.fixture(scope="module")
def client(model: saywhere.Model) -> Iterator[TestClient]:
    protocols = [lambda service, kind=kind: kind(service).routes() for kind in PROTOCOLS.values()]
    with TestClient(create_app(model, Limits(body=4 << 20), protocols=protocols)) as running:
        yield running


GENERATE: dict[str, Any] = {"model": "saywhere", "prompt": "", "stream": False}
CHAT: dict[str, Any] = {"model": "saywhere"}


def chat_with(url: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/generate", b"[" * 90_000, 400, "nested too deeply"),
        ("/api/generate", b"[" + b"{}," * 60_000 + b"{}]", 400, "too many parts"),
        ("/api/generate", b"garbage", 400, "not JSON"),
        ("/api/generate", b"\xff\xfe", 400, "not JSON"),
        ("/api/generate", [], 400, "must be a JSON object"),
        ("/api/generate", b'{"model":"saywhere","images":["' + b"A" * (5 << 20) + b'"]}', 413, "larger than 4 MB"),
        ("/api/generate", {**GENERATE, "images": ["AAAA"]}, 415, "not an image"),
        ("/api/generate", {**GENERATE, "images": ["A%%%"]}, 400, "must be in base64"),
        ("/api/generate", {**GENERATE, "images": ["/etc/passwd"]}, 400, "must be in base64"),
        ("/api/generate", {**GENERATE, "images": [7]}, 400, "must be in base64"),
        ("/api/generate", {**GENERATE, "images": "AAAA"}, 400, "images must be a list"),
        ("/api/generate", {**GENERATE, "images": ["http://169.254.169.254/a.jpg"]}, 400, "URLs are not fetched"),
        ("/api/generate", {**GENERATE, "prompt": ["a"]}, 400, "prompt must be a string"),
        ("/api/generate", {**GENERATE, "stream": "no"}, 400, "stream must be true or false"),
        ("/api/generate", {**GENERATE, "images": ["A"], "format": "yaml"}, 400, "format must be json"),
        ("/api/generate", {**GENERATE, "images": ["A"], "tools": [{}]}, 400, "there are no tools"),
        ("/api/generate", {**GENERATE, "model": "llava"}, 404, "no model 'llava'"),
        ("/api/chat", {**CHAT, "messages": "hello"}, 400, "messages must be a list of objects"),
        ("/api/chat", {**CHAT, "messages": [1]}, 400, "messages must be a list of objects"),
        ("/api/show", {"model": 3}, 400, "model must be a string"),
        ("/v1/chat/completions", chat_with("file:///etc/passwd"), 400, "URLs are not fetched"),
        ("/v1/chat/completions", chat_with("data:image/png,abc"), 400, "must be in base64"),
        ("/v1/chat/completions", chat_with(None), 400, "must be in base64"),
        ("/v1/chat/completions", {**CHAT, "messages": [{"content": [{"type": "input_audio"}]}]}, 400, "input_audio"),
        ("/v1/chat/completions", {**CHAT, "messages": [], "n": 2}, 400, "n must be 1"),
        ("/v1/chat/completions", {**CHAT, "messages": [], "response_format": {"type": "x"}}, 400, "format must be"),
        ("/v1/chat/completions", {**CHAT, "messages": [], "response_format": "json"}, 400, "format must be"),
        ("/v1/chat/completions", {**CHAT, "messages": [], "response_format": 5}, 400, "format must be"),
        ("/v1/chat/completions", {**CHAT, "messages": [], "response_format": []}, 400, "format must be"),
        ("/v1/responses", {**CHAT, "input": "hello", "text": {"format": 5}}, 400, "format must be"),
        ("/v1/responses", {**CHAT, "input": "hello", "text": "json"}, 400, "text must be an object"),
        ("/v1/chat/completions", {**CHAT, "messages": [{"content": "hello"}]}, 400, "there is no image"),
        ("/v1/responses", {**CHAT, "input": "hello"}, 400, "there is no image"),
        ("/v1/responses", {**CHAT, "input": 7}, 400, "messages must be a list"),
        ("/api/v1/vision/labels", {"images": []}, 400, "images must be a list"),
        ("/api/v1/vision/labels", {"images": ["https://example.org/a.jpg"]}, 400, "URLs are not fetched"),
    ],
)  # fmt: skip
def test_malicious_and_wrong_requests_are_refused_by_one_line(
    client: TestClient, path: str, body: Any, status: int, message: str
) -> None:
    response = client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    assert response.status_code == status
    (error,) = response.json().values()
    error = error["message"] if path in ("/v1/chat/completions", "/v1/responses") else error
    assert message in error and "\n" not in error


def test_every_path_that_takes_a_body_says_so(speaking: Process) -> None:
    for path in [path for path in SPOKEN if path != "/mcp"]:
        got = httpx2.get(speaking.url + path, headers={"Authorization": "Bearer s3cret"})
        assert (got.status_code, got.json()) == (405, {"error": f"{path} takes POST, not GET"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}},
        {"type": "array", "items": {"type": "object", "properties": {"name": {}, "price": {}}, "required": ["price"]}},
        {"type": "array", "items": {"$ref": "#/$defs/None"}},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}},
        {"type": "array", "items": {"type": "object", "properties": {"name": {}, "rectangle": {}}}},
        {"properties": {"labels": 5}},
        {},
    ],
)
def test_other_schemas_are_refused(client: TestClient, schema: Any) -> None:
    image = base64.b64encode(jpeg(noise(80, 60))).decode()
    response = client.post("/api/generate", json={**GENERATE, "images": [image], "format": schema})
    assert response.status_code == 400 and "only a list of labels or of boxes" in response.json()["error"]


def list_of(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def each_with(**properties: Any) -> dict[str, Any]:
    return list_of({"type": "object", "properties": {"name": STRING, **properties}, "required": ["name", *properties]})


STRING, NUMBER, INTEGER = ({"type": kind} for kind in ("string", "number", "integer"))
DOGS = {"$defs": {"A": {"type": "string", "enum": ["dog"]}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (each_with(confidence=INTEGER), "confidence can only be of the type number"),
        (each_with(confidence=STRING), "confidence can only be of the type number"),
        (each_with(confidence={**NUMBER, "minimum": 0.5}), "confidence is from 0 to 1; another minimum or maximum"),
        (each_with(confidence={**NUMBER, "multipleOf": 0.1}), "confidence: multipleOf cannot be kept"),
        (each_with(name=INTEGER), "name can only be of the type string"),
        (each_with(box=STRING), "box can only be of the type array"),
        (each_with(box=list_of(STRING)), "box can only be of the type number or integer"),
        (each_with(box=list_of({**NUMBER, "maximum": 1})), "box is in pixels, from 0 without a maximum"),
        (each_with(box=list_of(NUMBER, maxItems=2)), "box is a list of four numbers"),
        (each_with(box=list_of(NUMBER)) | {"uniqueItems": True}, "uniqueItems cannot be kept for boxes"),
        (each_with(x1={**NUMBER, "maximum": 1000}), "x1 is in pixels, from 0 without a maximum"),
        (list_of({**STRING, "pattern": "^a"}), "an item: pattern cannot be kept"),
        (list_of({**STRING, "enum": []}), "an item: enum must be a list of 1 to 1,000 names"),
        (list_of({**STRING, "enum": ["qwrtz", "flurble"]}), "the model knows none of the names qwrtz, flurble"),
        (list_of({"enum": ["dog"], "const": "person"}), "an item: enum and const cannot both be kept"),
        (each_with(name={"enum": ["dog"]}, label={"const": "person"}), "label: a second enum or const cannot be kept"),
        (list_of({"$ref": "#/$defs/A", "const": "person"}) | DOGS, "const beside $ref cannot be kept"),
        (list_of({"$ref": "#/$defs/A", "anyOf": [{"const": "cat"}]}) | DOGS, "anyOf beside $ref cannot be kept"),
        (list_of({"$ref": "#/$defs/A", "type": "integer"}) | DOGS, "type beside $ref cannot be kept"),
        (list_of({"$ref": "$defs/A"}) | DOGS, "only a list of labels or of boxes"),
        (list_of({**STRING, "anyOf": [INTEGER, {"type": "null"}]}), "type beside anyOf cannot be kept"),
        (list_of({"type": "object", "properties": {"name": STRING}, "required": [1]}), "required must be a list of n"),
        (list_of(STRING, minItems=3, maxItems=2), "the list: minItems is larger than maxItems"),
        (list_of(STRING, maxItems=-1), "maxItems must be a whole number"),
        (list_of(STRING, contains=STRING), "the list: contains cannot be kept"),
        ({"properties": {"labels": list_of(STRING)}, "minProperties": 2}, "the schema: minProperties cannot be kept"),
    ],
)
def test_what_an_answer_could_not_keep_is_refused(client: TestClient, schema: Any, message: str) -> None:
    image = base64.b64encode(jpeg(noise(80, 60))).decode()
    response = client.post("/api/generate", json={**GENERATE, "images": [image], "format": schema})
    assert response.status_code == 400 and message in response.json()["error"]


def test_a_list_of_names_can_be_asked_for(client: TestClient, photo: bytes) -> None:
    def ask(items: Any = STRING, **more: Any) -> Any:
        asked = {**GENERATE, "images": [base64.b64encode(photo).decode()], "format": list_of(items, **more)}
        return client.post("/api/generate", json=asked)

    found = json.loads(ask(minItems=1, uniqueItems=True).json()["response"])
    assert len(found) > 1 and all(isinstance(name, str) for name in found)
    assert json.loads(ask(maxItems=1).json()["response"]) == found[:1]
    short = ask(minItems=11)
    assert (
        short.status_code == 422 and "at most 10 of these are answered, and the schema wants at least 11" in short.text
    )
    few = ask({"$ref": "#/$defs/A", "title": "A dog"}, minItems=3, **DOGS)
    assert few.status_code == 422 and "has 0 of these, and the schema wants at least 3" in few.text


def test_a_phrase_beside_a_chosen_name_stays_the_phrase(
    client: TestClient, photo: bytes, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    chosen = {"label": {"enum": ["clothing", "dog"]}, "phrase": STRING}
    asked = {**GENERATE, "images": [base64.b64encode(photo).decode()]}

    def ask(**properties: Any) -> Any:
        schema = list_of({"type": "object", "properties": {**chosen, **properties}})
        return json.loads(client.post("/api/generate", json={**asked, "format": schema}).json()["response"])

    (phrase,) = model.describe(seen).at_least().captions or ()
    assert phrase != "clothing" and ask(box={})[0].items() >= {"label": "clothing", "phrase": phrase}.items()
    assert ask() == [{"label": "clothing", "phrase": "clothing"}]  # a label has no phrase


def test_a_bomb_in_base64_is_refused(client: TestClient) -> None:
    image = base64.b64encode(huge_png_header()).decode()
    response = client.post("/api/generate", json={**GENERATE, "images": [image]})
    assert response.status_code == 415 and "over the limit" in response.json()["error"]


HUGE = {
    "/v1/describe": b"",
    "/api/generate": b'{"model":"saywhere","images":["data:image/jpeg;base64,',
    "/api/chat": b'{"model":"saywhere","messages":[{"images":["data:image/jpeg;base64,',
    "/v1/chat/completions": b'{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,',
    "/v1/responses": b'{"input":[{"content":[{"type":"input_image","image_url":"data:image/png;base64,',
    "/api/v1/vision/labels": b'{"id":"1","images":["data:image/jpeg;base64,',
    "/predict": b'{"tasks":[{"data":{"image":"data:image/jpeg;base64,',
}


def test_data_urls_of_100_mb_are_refused_before_they_are_in_memory(speaking: Process, photo: bytes) -> None:
    body = {**GENERATE, "images": ["A" * ((32 << 20) - 100)]}  # the largest that is read
    assert post(speaking, "/api/generate", body).status_code == 415
    before = speaking.peak
    for path, text in HUGE.items():
        for status, answer in speaking.refuse_huge(path, text):
            error = answer["error"]["message"] if path in ("/v1/chat/completions", "/v1/responses") else answer["error"]
            assert status == 413 and error == "the body is larger than 32 MB: send a smaller image"
    assert speaking.peak - before < 32 << 20
    assert post(speaking, "/api/generate", {**GENERATE, "images": [base64.b64encode(photo).decode()]}).json()[
        "response"
    ]


def test_a_server_without_protocols_has_none_of_their_paths_or_modules() -> None:
    code = (
        "import sys\nfrom saywhere.serve import server\nfrom starlette.testclient import TestClient\n"
        "def run(app, listening, *_):\n    listening.close()\n    client = TestClient(app)\n"
        "    assert client.post('/api/generate', json={}).status_code == 404\n"
        "    assert 'data' not in client.get('/v1/models').json()\nserver.run = run\n"
        "sys.argv = ['saywhere', 'serve', '--port', '0']\nfrom saywhere.cli import app\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sorted(name for name in sys.modules if name.startswith('saywhere.serve')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert found == {"serve", "app", "gate", "limits", "questions", "server"}


def test_an_unknown_protocol_is_named() -> None:
    error = error_of(run("serve", "--port", 0, "--protocols", "ollama,grpc", code=2))
    assert error == "error: --protocols 'grpc': unknown; choose from ollama, openai, photoprism\n"
