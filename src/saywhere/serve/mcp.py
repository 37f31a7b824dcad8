"""The Model Context Protocol: image tools for language models, over standard input and output or HTTP.

A tool server needs only a few of the protocol's messages, which are implemented here: importing the SDK takes 0.8 s,
and clients wait for the servers that they start. The tests use the SDK's client.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import saywhere
from saywhere.errors import UserError
from saywhere.serve.folders import Folders

if TYPE_CHECKING:
    from starlette.routing import Route

    from saywhere.models.model import Model
    from saywhere.serve.app import Service
    from saywhere.serve.calls import Tools

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Supported revisions of the protocol; newer clients fall back to the last one."""
LINE = 1 << 20
"""Maximum length of a message, in bytes; paths and texts are short."""
THREADS = 2
"""Number of tool calls of one pipe that run at the same time."""
WAITING = 64
"""Maximum number of waiting calls; more are refused."""
PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

_IMAGE = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "Path of an image in the server's folders.",
}
_CORNERS = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
_BOX = {**_CORNERS, "description": "x1, y1, x2, y2 in pixels, from the top left corner of the image."}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 1000}
_CHANCE = {"type": "number", "minimum": 0, "maximum": 1}


def _tool(name: str, description: str, example: Mapping[str, Any], required: Sequence[str], **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    shown = f"{description} Example: {json.dumps(example)}"
    hints = {"readOnlyHint": True, "openWorldHint": False}
    return {"name": name, "description": shown, "inputSchema": schema, "annotations": hints}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "describe",
        "Find the regions of an image. Each has a phrase, a box, and the probabilities that the box is right (score) "
        "and that the phrase names what is in it (words). With boxes, describe only these.",
        {"image": "holiday/beach.jpg", "top": 5},
        ["image"],
        image=_IMAGE,
        top={"type": "integer", "minimum": 1, "maximum": 100, "description": "Maximum number of regions (10)."},
        threshold={**_CHANCE, "description": "Minimum probability that box and words are right (0.25); 0: all."},
        boxes={"type": "array", "items": _BOX, "minItems": 1, "maxItems": 100, "description": "Describe these boxes."},
    ),
    _tool(
        "ground",
        "Find the things that a sentence names: the box of each phrase, with the probability that the image shows it "
        "and that the box is right (score). not_found lists the phrases that are not in the image, unknown the words "
        "that the model ignored, judged_as the words that are judged as their kind of thing.",
        {"image": "holiday/beach.jpg", "text": "a dog beside a red umbrella"},
        ["image", "text"],
        image=_IMAGE,
        text={**_TEXT, "description": "A sentence in English, or a phrase."},
        threshold={
            **_CHANCE,
            "description": "Minimum probability that the image shows a phrase (0.5), "
            "whatever its box, so that a score may be smaller; 0 finds all.",
        },
    ),
    _tool("caption", "Say in a sentence what an image shows.", {"image": "holiday/beach.jpg"}, ["image"], image=_IMAGE),
    _tool(
        "search",
        "Find the images that match a text, best first, with the boxes of its phrases; + and - may join phrases. "
        "judged_as lists the words that are judged as their kind of thing. A hit with a time (in seconds) is a moment "
        "of a video, which the other tools do not read. not_shown counts, by reason, better hits "
        "that may not be shown; left_out of a hit counts images left out because they show what is unwanted.",
        {"query": "a dog + snow - people", "top": 5},
        ["query"],
        query={**_TEXT, "description": "A sentence in English, or phrases."},
        top={"type": "integer", "minimum": 1, "maximum": 100, "description": "Maximum number of images (10)."},
    ),
    _tool(
        "crop",
        "Zoom into a region of an image: return it as a JPEG, with its box.",
        {"image": "holiday/beach.jpg", "box": [120, 40, 380, 300]},
        ["image", "box"],
        image=_IMAGE,
        box=_BOX,
        size={"type": "integer", "minimum": 64, "maximum": 2048, "description": "Longer side, in pixels (768)."},
    ),
)
"""The tools as clients see them: name, description with an example, and schema of the arguments."""

_KINDS: dict[str, type | tuple[type, ...]] = {"string": str, "array": list, "integer": int, "number": (int, float)}


def check_arguments(schema: Mapping[str, Any], value: Any, where: str = "arguments") -> None:
    """Check a value against the subset of JSON Schema in :data:`TOOLS`; ``UserError`` says where and what is wrong."""
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        if missing := [name for name in schema["required"] if name not in value]:
            raise UserError(f"{missing[0]} is missing; this tool needs {', '.join(schema['required'])}")
        if unknown := [name for name in value if name not in properties]:
            raise UserError(f"{unknown[0][:40]!r} is unknown; this tool has {', '.join(properties)}")
        for name, inner in value.items():
            check_arguments(properties[name], inner, name)
        return
    if isinstance(value, bool) or not isinstance(value, _KINDS[kind]):
        raise UserError(f"{where} must be {'an' if kind[0] in 'ai' else 'a'} {kind}")
    size = len(value) if kind in ("string", "array") else value
    low, high = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}.get(
        kind, ("minimum", "maximum")
    )
    if low in schema and not schema[low] <= size <= schema[high]:  # also refuses NaN
        unit = {"string": " characters", "array": " items"}.get(kind, "")
        raise UserError(f"{where} must {'have' if unit else 'be from'} {schema[low]} to {schema[high]}{unit}")
    for number, item in enumerate(value if kind == "array" else ()):
        check_arguments(schema["items"], item, f"{where}[{number}]")


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Protocol:
    """Answer the messages of clients.

    Args:
        folders: folders whose images the tools may read.
        model: function that returns the model; called with the first tool call.
        index: folder of an index to search. None: search the images of the folders, which is slow the first time.
        service: the HTTP server's, for its limits and cached encodings; None without a server.
    """

    def __init__(
        self, folders: Folders, model: Callable[[], Model], index: Path | None, service: Service | None = None
    ) -> None:
        self._folders, self._model, self._index, self._service = folders, model, index, service
        self._lock = threading.Lock()

    @cached_property
    def _opened(self) -> Tools:
        from saywhere.serve.calls import Tools

        return Tools(self._folders, self._model(), self._index, self._service)

    @property
    def tools(self) -> Tools:
        """The tools, made at the first call."""
        with self._lock:
            return self._opened

    def answer(self, message: Any) -> dict[str, Any] | None:
        """Return the response to a message, or None if it expects none."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _error(
                None, INVALID_REQUEST, "a message must be an object with jsonrpc 2.0; batches are not answered"
            )
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if not isinstance(method, str) or "id" not in message:
            return None  # a notification, or a response, although nothing was requested
        if not isinstance(number, str | int) or isinstance(number, bool):
            return _error(None, INVALID_REQUEST, "id must be a string or a whole number")
        if not isinstance(params, dict):
            return _error(number, INVALID_PARAMS, "params must be an object")
        try:
            result = self._result(method, params)
        except _Refused as refused:
            return _error(number, refused.code, str(refused))
        except Exception:
            traceback.print_exc()
            return _error(number, INTERNAL_ERROR, "the server failed to answer this request; its log says why")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            asked = params.get("protocolVersion")
            roots = ", ".join(self._folders.roots)
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "saywhere", "version": saywhere.__version__},
                "instructions": f"Say what is where in the images below {roots}. Boxes are x1, y1, x2, y2 in pixels.",
            }
        if method == "tools/call":
            return self._call(params)
        if method == "tools/list":
            return {"tools": list(TOOLS)}
        if method == "ping":
            return {}
        raise _Refused(UNKNOWN_METHOD, f"no method {method[:80]!r}")

    def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments") or {}
        tool = next((tool for tool in TOOLS if tool["name"] == name), None)
        if tool is None:
            have = ", ".join(tool["name"] for tool in TOOLS)
            raise _Refused(INVALID_PARAMS, f"no tool {str(name)[:40]!r}; there are {have}")
        if not isinstance(arguments, dict):
            raise _Refused(INVALID_PARAMS, "arguments must be an object")
        try:
            check_arguments(tool["inputSchema"], arguments)
            return {"content": self.tools.call(tool["name"], arguments), "isError": False}
        except UserError as error:  # so that the language model sees it and corrects itself (SEP-1303)
            return {"content": [{"type": "text", "text": " ".join(str(error).split())}], "isError": True}


def _error(number: str | int | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def parse(text: bytes) -> Any:
    """Parse a message; raise ``ValueError`` if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON in UTF-8, or nested too deeply") from None


class Pipe:
    """Answer messages line by line until the end of the input; tool calls run in a few threads."""

    def __init__(self, protocol: Protocol, source: BinaryIO, sink: BinaryIO) -> None:
        self._protocol, self._source, self._sink = protocol, source, sink
        self._writing, self._places = threading.Lock(), threading.BoundedSemaphore(THREADS + WAITING)

    def run(self) -> None:
        """Answer all messages."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS, "saywhere") as pool:
            while line := self._source.readline(LINE + 1):
                if len(line) > LINE:
                    while line and not line.endswith(b"\n"):
                        line = self._source.readline(LINE)
                    self._send(_error(None, INVALID_REQUEST, f"the message is longer than {LINE >> 20} MB"))
                    continue
                if not line.strip():
                    continue
                try:
                    message = parse(line)
                except ValueError as error:
                    self._send(_error(None, PARSE_ERROR, str(error)))
                    continue
                if not isinstance(message, dict) or message.get("method") != "tools/call":
                    self._send(self._protocol.answer(message))
                elif self._places.acquire(blocking=False):
                    pool.submit(self._work, message)
                else:
                    self._send(_error(message.get("id"), INTERNAL_ERROR, "the server is busy: try again in a second"))

    def _work(self, message: Any) -> None:
        try:
            self._send(self._protocol.answer(message))
        finally:
            self._places.release()

    def _send(self, answer: dict[str, Any] | None) -> None:
        if answer is not None:
            with self._writing:
                self._sink.write(json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")
                self._sink.flush()


def serve_pipe(protocol: Protocol) -> None:
    """Serve over standard input and output; everything else that is printed goes to standard error."""
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # removes the temporary index
    Pipe(protocol, sys.stdin.buffer, sink).run()


def routes(folders: Folders, index: Path | None, service: Service) -> Sequence[Route]:
    """Return the route of the protocol's streamable HTTP, without sessions and without unsolicited messages."""
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from saywhere.serve.limits import Problem, to_json

    protocol = Protocol(folders, lambda: service.model, index, service)

    def work(body: bytes) -> bytes | None:
        try:
            message = parse(body)
        except ValueError as error:
            raise Problem(400, str(error)) from None
        answer = protocol.answer(message)
        return None if answer is None else to_json(answer)

    async def answer(request: Request) -> Response:
        version = request.headers.get("mcp-protocol-version", VERSIONS[-1])
        if version not in VERSIONS:
            raise Problem(400, f"MCP-Protocol-Version must be {' or '.join(VERSIONS)}, not {version[:40]!r}")
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            raise Problem(415, "Content-Type must be application/json")
        async with service.bodies.read(request) as body:
            if len(body) > LINE:
                raise Problem(413, f"the message is longer than {LINE >> 20} MB")
            found = await service.workers.run(lambda: work(body))
        return Response(status_code=202) if found is None else service.json(found, {"Cache-Control": "no-store"})

    return [Route("/mcp", answer, methods=["POST"])]
