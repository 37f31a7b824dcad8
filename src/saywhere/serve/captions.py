"""The routes of Ollama, OpenAI and PhotoPrism's vision service, answered by captions, regions and nouns.

The requested format decides what is answered, see :mod:`saywhere.serve.schemas`; otherwise prompts are ignored.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import saywhere
from saywhere.errors import UserError
from saywhere.formats.classes import NAMELESS, NOUNS, Classes
from saywhere.images import ImageError
from saywhere.models.encoding import Encoding
from saywhere.models.layout import Layout
from saywhere.models.model import Model
from saywhere.regions import SHOWN
from saywhere.serve.app import Service
from saywhere.serve.limits import Problem, to_json
from saywhere.serve.schemas import CORNERS, Want, read_want
from saywhere.text import two_digits

MARKS = 100_000
"""Maximum number of brackets, braces and commas in a request; each may become an object of many bytes."""
NAME = "saywhere"
"""The model's name for clients, with or without ``:latest``; its own name works, too."""
LABELS, LEAST = 10, 0.1
"""Maximum number of nouns for an image, and their minimum probability."""
REGIONS = 20
"""Maximum number of regions for an image."""
NDJSON, EVENTS = "application/x-ndjson", "text/event-stream"

Work = Callable[[dict[str, Any]], tuple[bytes, str]]


def read_json(body: bytes) -> dict[str, Any]:
    """Return the object in a body; raise ``Problem`` 400 if there is none, or it is too large or too deeply nested."""
    if sum(body.count(mark) for mark in (b"[", b"{", b",")) > MARKS:
        raise Problem(400, "the JSON has too many parts")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON in UTF-8, or nested too deeply") from None
    if not isinstance(value, dict):
        raise Problem(400, "the body must be a JSON object")
    return value


async def answer_json(service: Service, request: Request, work: Work) -> Response:
    """Answer a request with a JSON body: ``work`` turns it into bytes and their media type, in a worker thread."""
    async with service.bodies.read(request) as body:
        made, media_type = await service.workers.run(lambda: work(read_json(body)))
    return service.json(made, {"Cache-Control": "no-store"}, media_type)


def decode_image(value: Any) -> bytes:
    """Decode an image in base64 or in a base64 data URL; raise ``Problem`` 400 for anything else."""
    text = value if isinstance(value, str) else ""
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise Problem(400, "a data URL must be in base64: data:image/jpeg;base64,...")
    elif re.match(r"[a-z]+://", text[:16], re.IGNORECASE):
        raise Problem(400, "URLs are not fetched: send the image itself, as data:image/jpeg;base64,...")
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        data = b""
    if not data:
        raise Problem(400, "an image must be in base64, or a data URL of it")
    return data


def find_labels(model: Model, seen: Encoding, classes: Classes | None = None) -> list[dict[str, Any]]:
    """Return the nouns of an image's regions, or the classes of these nouns, most probable first.

    Each has its ``name``, its ``confidence`` and its ``topicality`` (the share of the image that its largest region
    covers). The confidence is the geometric mean of two probabilities: that of ``ground`` that the image shows it,
    which is too high for what a phrase says anyway, and that of the surest phrase.
    """
    shares, words = dict[str, float](), dict[str, float]()
    for region in model.describe(seen, top=REGIONS):
        name, (x1, y1, x2, y2) = (classes or NOUNS).label(region.caption) or NAMELESS, region.box
        if name != NAMELESS:
            shares[name] = max(shares.get(name, 0), (x2 - x1) * (y2 - y1) / (seen.width * seen.height))
            words[name] = max(words.get(name, 0), 1.0 if region.caption_score is None else region.caption_score)
    presence = model.placer().find(seen, Layout(tuple(shares)))[1] if shares else None
    there = [1.0] * len(shares) if presence is None else presence.tolist()
    chances = [math.sqrt(one * other) for one, other in zip(there, words.values(), strict=True)]
    rows = [
        {"name": name, "confidence": round(chance, 3), "topicality": round(share, 3)}
        for (name, share), chance in zip(shares.items(), chances, strict=True)
        if chance >= LEAST
    ]
    return sorted(rows, key=lambda row: -row["confidence"])[:LABELS]


def find_regions(model: Model, seen: Encoding, classes: Classes | None = None) -> list[dict[str, Any]]:
    """Return the regions shown by default, each with ``name``, ``box`` (pixels), ``confidence`` and ``topicality``.

    With classes, those of a class, which is then their name; ``phrase`` stays. ``box`` is also there as ``x1``,
    ``y1``, ``x2``, ``y2``.
    """
    area, rows = seen.width * seen.height, list[dict[str, Any]]()
    found = model.describe(seen, threshold=SHOWN).at_least()
    found = (found if classes is None else classes.keep(found))[:REGIONS]
    names = found.captions if classes is None else classes.labels(found)
    for name, region in zip(names or (), found, strict=True):
        x1, y1, x2, y2 = box = [round(value) for value in region.box]
        row = {"name": name, "phrase": region.caption or name, "box": box, **dict(zip(CORNERS, box, strict=True))}
        chances = {"confidence": round(region.score or 0, 3), "topicality": round((x2 - x1) * (y2 - y1) / area, 3)}
        rows.append(row | chances)
    return rows


def write_answer(model: Model, seen: Encoding, want: Want) -> str:
    """Return the text of the answer: a sentence, JSON, or a line for each region.

    Raises ``Problem`` 400 if the model has none of the wanted classes, 422 if it finds fewer items than wanted.
    """
    if want.kind == "sentence":
        return str(model.caption(seen, attention=False))
    words = () if model.densecap is None else model.densecap.vocabulary
    if want.classes is not None and len(unknown := want.classes.unknown(words)) == len(want.classes.names):
        raise Problem(400, f"the model knows none of the names {', '.join(unknown)[:100]}")
    if want.least > (limit := LABELS if want.kind == "labels" else REGIONS):
        raise Problem(422, f"at most {limit} of these are answered, and the schema wants at least {want.least}")
    rows = (find_labels if want.kind == "labels" else find_regions)(model, seen, want.classes)[: want.most]
    if len(rows) < want.least:
        raise Problem(422, f"the image has {len(rows)} of these, and the schema wants at least {want.least}")
    if not want.is_json:
        return "\n".join(f"{row['name']} {row['box']} {two_digits(row['confidence'])}" for row in rows)
    fields = want.fields
    rows = [{"phrase": row["name"], **row} for row in rows]
    found = [row["name"] if fields is None else {name: row[field] for name, field in fields.items()} for row in rows]
    return json.dumps(found if want.key is None else {want.key: found})


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str | None):
        raise Problem(400, f"{name} must be a string")
    return value or ""


def _dicts(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Problem(400, f"{name} must be a list of objects")
    return value


class Captions:
    """The base of the three protocols."""

    def __init__(self, service: Service) -> None:
        self.service, self.model = service, service.model
        self.names = {NAME, self.model.name}

    def check(self, asked: Mapping[str, Any]) -> str:
        """Return the model name in a request; raise ``Problem`` 404 for another model, 400 for tools."""
        name = _text(asked.get("model"), "model")
        if name.removesuffix(":latest") not in self.names:
            raise Problem(404, f"there is no model {name[:80]!r}: ask for {NAME}")
        if asked.get("tools") or asked.get("functions"):
            raise Problem(400, "there are no tools: leave them out of the request")
        return name

    def answer(self, images: Sequence[Any], want: Want) -> str:
        """Return the answer about the first image; raise ``Problem`` 400 if there is none."""
        if not images:
            raise Problem(400, "there is no image: send one, and saywhere answers what it shows")
        return write_answer(self.model, self.service.see(decode_image(images[0])), want)

    def post(self, path: str, work: Work) -> Route:
        """Return a route that takes and returns JSON."""
        return Route(path, functools.partial(answer_json, self.service, work=work), methods=["POST"])

    def get(self, path: str, value: Callable[[Request], Awaitable[Any]]) -> Route:
        """Return a route that returns a value as JSON."""

        async def answer(request: Request) -> Response:
            return self.service.json(to_json(await value(request)))

        return Route(path, answer, methods=["GET"])


def _pieces(text: str) -> list[str]:
    """Split a text into words with their leading spaces, for streaming."""
    return re.findall(r"\s*\S+", text) or [text]


def _streamed(asked: Mapping[str, Any], default: bool) -> bool:
    value = asked.get("stream", default)
    if not isinstance(value, bool | None):
        raise Problem(400, "stream must be true or false")
    return default if value is None else value


class Ollama(Captions):
    """The routes of Ollama."""

    def routes(self) -> list[Route]:
        """Return the routes."""

        async def tags(_: Request) -> Any:
            digest = self.service.digest
            entry = {"name": f"{NAME}:latest", "model": f"{NAME}:latest", "modified_at": _now(), "size": 0}
            return {"models": [{**entry, "digest": digest, "details": self._details()}]}

        async def version(_: Request) -> Any:
            return {"version": saywhere.__version__}

        return [
            self.post("/api/generate", functools.partial(self._say, "response")),
            self.post("/api/chat", functools.partial(self._say, "message")),
            self.post("/api/show", self._show),
            self.get("/api/tags", tags),
            self.get("/api/version", version),
        ]

    def _details(self) -> dict[str, Any]:
        named = {"format": "onnx", "family": NAME, "families": [NAME], "parameter_size": "", "quantization_level": ""}
        return {"parent_model": "", **named}

    def _show(self, asked: dict[str, Any]) -> tuple[bytes, str]:
        self.check({"model": asked.get("model") or asked.get("name")})
        info = {"general.architecture": NAME, "general.basename": self.model.name}
        shown = {"modelfile": "", "parameters": "", "template": "{{ .Prompt }}", "details": self._details()}
        more = {"model_info": info, "capabilities": ["completion", "vision"], "modified_at": _now()}
        return to_json(shown | more), "application/json"

    def _say(self, place: str, asked: dict[str, Any]) -> tuple[bytes, str]:
        began = time.perf_counter_ns()
        name, stream = self.check(asked), _streamed(asked, True)
        if place == "message":
            messages = _dicts(asked.get("messages"), "messages")
            prompt = _text(messages[-1].get("content"), "content") if messages else ""
            images = next((m["images"] for m in reversed(messages) if m.get("images")), [])
        else:
            prompt, images = _text(asked.get("prompt"), "prompt"), asked.get("images") or []
        if not isinstance(images, list):
            raise Problem(400, "images must be a list")
        begins = not images and not prompt  # a client's request to load the model
        text = "" if begins else self.answer(images, read_want(prompt, asked.get("format")))
        head, took = {"model": name, "created_at": _now()}, time.perf_counter_ns() - began

        def part(piece: str) -> dict[str, Any]:
            return {place: {"role": "assistant", "content": piece} if place == "message" else piece}

        done = {"done": True, "done_reason": "load" if begins else "stop", "total_duration": took, "load_duration": 0}
        words = len(_pieces(text))
        done |= {"prompt_eval_count": 0, "prompt_eval_duration": 0, "eval_count": words, "eval_duration": took}
        if not stream:
            return to_json(head | part(text) | done), "application/json"
        rows = [head | part(piece) | {"done": False} for piece in _pieces(text) if piece]
        return b"".join(to_json(row) + b"\n" for row in [*rows, head | part("") | done]), NDJSON


class OpenAI(Captions):
    """The routes of OpenAI's Chat Completions and Responses APIs."""

    def routes(self) -> list[Route]:
        """Return the routes; ``/v1/models`` also contains saywhere's own answer."""
        entry = {"id": NAME, "object": "model", "created": 0, "owned_by": NAME}

        async def models(request: Request) -> Any:
            return {**await self.service.facts(request), "object": "list", "data": [entry]}

        async def one(request: Request) -> Any:
            self.check({"model": request.path_params["name"]})
            return entry

        return [
            self.post("/v1/chat/completions", self._chat),
            self.post("/v1/responses", self._respond),
            self.get("/v1/models", models),
            self.get("/v1/models/{name}", one),
        ]

    def post(self, path: str, work: Work) -> Route:
        """Return a route that takes and returns JSON, with errors in OpenAI's format."""

        async def answer(request: Request) -> Response:
            try:
                return await answer_json(self.service, request, work)
            except (Problem, UserError) as error:
                status = error.status if isinstance(error, Problem) else 415 if isinstance(error, ImageError) else 422
                told = {"message": " ".join(str(error).split()), "type": "invalid_request_error", "param": None}
                headers = error.headers if isinstance(error, Problem) else None
                return Response(to_json({"error": {**told, "code": None}}), status, headers, "application/json")

        return Route(path, answer, methods=["POST"])

    def _ask(self, messages: Any, form: Any) -> str:
        """Return the answer to the last message, about the first image of the last message that has images."""
        prompt, images = "", []
        for message in _dicts(messages, "messages"):
            content = message.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str | None) else content
            found: list[Any] = []
            prompt = ""
            for part in _dicts(parts, "content"):
                if part.get("type") in ("text", "input_text", "output_text"):
                    prompt += _text(part.get("text"), "text")
                elif part.get("type") in ("image_url", "input_image"):
                    url = part.get("image_url")
                    found.append(url.get("url") if isinstance(url, dict) else url)
                else:
                    raise Problem(400, f"parts of the type {str(part.get('type'))[:40]!r} are not supported")
            images = found or images
        form = {"type": "text"} if form is None else form
        kind = form.get("type") if isinstance(form, dict) else None
        if kind not in ("text", "json_object", "json_schema"):
            raise Problem(400, "the format must be text, json_object or json_schema")
        schema: Any = None
        if kind == "json_schema":
            schema = form.get("json_schema", form)
            schema = schema.get("schema") if isinstance(schema, dict) else None
            if not isinstance(schema, dict):
                raise Problem(400, "json_schema must have a schema")
        return self.answer(images, read_want(prompt, {"json_object": "json", "text": None}.get(kind, schema)))

    def _chat(self, asked: dict[str, Any]) -> tuple[bytes, str]:
        name, stream = self.check(asked), _streamed(asked, False)
        if asked.get("n") not in (None, 1):
            raise Problem(400, "n must be 1: there is one answer")
        text = self._ask(asked.get("messages"), asked.get("response_format"))
        usage = {"prompt_tokens": 0, "completion_tokens": len(_pieces(text)), "total_tokens": len(_pieces(text))}
        head = {"id": _id("chatcmpl"), "created": int(time.time()), "model": name}
        if not stream:
            message = {"role": "assistant", "content": text, "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            answer = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return to_json(answer), "application/json"
        options = asked.get("stream_options")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in _pieces(text)]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        rows = [{**head, "object": "chat.completion.chunk", "choices": choice} for choice in choices]
        if isinstance(options, dict) and options.get("include_usage"):
            rows.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return b"".join(b"data: " + to_json(row) + b"\n\n" for row in rows) + b"data: [DONE]\n\n", EVENTS

    def _respond(self, asked: dict[str, Any]) -> tuple[bytes, str]:
        name, stream, given = self.check(asked), _streamed(asked, False), asked.get("input")
        messages = [{"content": given}] if isinstance(given, str) else given
        form = asked.get("text") or {}
        if not isinstance(form, dict):
            raise Problem(400, "text must be an object")
        text = self._ask(messages, form.get("format"))
        words = len(_pieces(text))
        usage = {"input_tokens": 0, "output_tokens": words, "total_tokens": words}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": _id("msg"), "status": "completed", "role": "assistant", "content": [part]}
        whole = {"id": _id("resp"), "object": "response", "created_at": int(time.time()), "status": "completed"}
        whole |= {"model": name, "output": [item], "usage": usage, "error": None, "incomplete_details": None}
        whole |= {"instructions": None, "metadata": {}, "tools": [], "tool_choice": "none"}
        whole |= {"parallel_tool_calls": False, "temperature": None, "top_p": None}
        if not stream:
            return to_json(whole), "application/json"
        return b"".join(_events(whole, item, part)), EVENTS


def _events(whole: dict[str, Any], item: dict[str, Any], part: dict[str, Any]) -> Iterator[bytes]:
    """Yield a response as a stream of events."""
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    rows: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    fresh = {**item, "status": "in_progress", "content": []}
    rows.append({"type": "response.output_item.added", "output_index": 0, "item": fresh})
    rows.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
    delta = {"type": "response.output_text.delta", **place, "logprobs": []}
    rows += [{**delta, "delta": piece} for piece in _pieces(part["text"])]
    rows.append({"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []})
    rows.append({"type": "response.content_part.done", **place, "part": part})
    rows.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    rows.append({"type": "response.completed", "response": whole})
    for number, row in enumerate(rows):
        yield f"event: {row['type']}\n".encode() + b"data: " + to_json({**row, "sequence_number": number}) + b"\n\n"


class PhotoPrism(Captions):
    """The routes of PhotoPrism's vision service."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        kinds = {"caption": ("caption",), "labels": ("labels",), "": ("caption", "labels")}
        paths = {f"/api/v1/vision/{kind}".rstrip("/"): asked for kind, asked in kinds.items()}
        return [self.post(path, functools.partial(self._look, asked)) for path, asked in paths.items()]

    def _look(self, kinds: Sequence[str], asked: dict[str, Any]) -> tuple[bytes, str]:
        images = asked.get("images")
        if not isinstance(images, list) or not images:
            raise Problem(400, "images must be a list of data URLs")
        seen = self.service.see(decode_image(images[0]))
        result: dict[str, Any] = {}
        if "caption" in kinds:  # sentences have no probability
            result["caption"] = {"text": write_answer(self.model, seen, Want("sentence")), "confidence": 1}
        if "labels" in kinds:
            result["labels"] = find_labels(self.model, seen)
        model = {"type": kinds[0], "name": NAME, "version": saywhere.__version__, "resolution": self.model.long_side}
        name = _text(asked.get("id"), "id")
        return to_json({"id": name, "code": 200, "model": model, "result": result}), "application/json"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _id(kind: str) -> str:
    return f"{kind}-{time.time_ns():x}"


PROTOCOLS: dict[str, type[Ollama | OpenAI | PhotoPrism]] = {
    "ollama": Ollama,
    "openai": OpenAI,
    "photoprism": PhotoPrism,
}
"""The protocols, by their names in ``serve --protocols``."""
