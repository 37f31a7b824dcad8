"""The HTTP application: routes, error handling, request bodies and the page's files."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import hashlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any

from python_multipart.exceptions import FormParserError
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import saywhere
from saywhere.errors import UserError, is_oom
from saywhere.files import content_hash
from saywhere.images import ImageError, read_image
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.search.index import why_improbable
from saywhere.search.indexing import is_as_indexed, open_found
from saywhere.search.phrases import LIKELY
from saywhere.serve.gate import HEADERS, Gate, check_access
from saywhere.serve.limits import Budget, Encodings, Limits, Problem, Workers, to_json
from saywhere.serve.questions import (
    EMBED_TEXT,
    QUESTIONS,
    SEARCH,
    SEARCH_IMAGE,
    Question,
    describe_api,
    embed_text,
    read_query,
)

if TYPE_CHECKING:
    from saywhere.search import Index

SIDE = 640
"""Long side of the small copies, in pixels."""


class Gallery:
    """An index to search, with small copies of its images."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def search(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hits for ``values["q"]`` in JSON form and, if so, why they probably do not show it."""
        options = {name: values[name] for name in ("without", "after", "before", "under") if name in values}
        hits = self.index.search(values["q"], top=values.get("top", 10), **options)
        rows = [{"entry": hit.entry, **hit.to_dict()} for hit in hits]
        return {"query": values["q"], "hits": rows, "probably_not_there": why_improbable(hits), "unlikely": LIKELY}

    def small_copy(self, entry: str) -> bytes:
        """Return a small JPEG of an image or a video frame of the index.

        Raises ``Problem`` 404 if the index does not have the entry, or the file has changed since it was indexed.
        """
        found = self.index.store.locate(entry)
        if found is None:
            raise Problem(404, f"the index has no entry {entry[:100]} (any more): search again")
        try:
            if not is_as_indexed(found.path, found.stamp):
                raise FileNotFoundError
            pixels = open_found(found.path, found.time, SIDE, refuse_slow=True).pixels
        except OSError:
            gone = f"{found.path[:200]} is gone or has changed since it was indexed: run saywhere index again"
            raise Problem(404, gone) from None
        pixels.thumbnail((SIDE, SIDE))
        stream = io.BytesIO()
        pixels.save(stream, "JPEG", quality=85)
        return stream.getvalue()


PUBLIC = ("/healthz", "/openapi.json")
"""Paths that need no token, besides those of the page."""
FIELD = "image"
"""Name of the form field with the image."""


class Bodies:
    """Read request bodies, within the limit of their total memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._memory = limits, Budget(limits.bodies)

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield a request's body; raise ``Problem`` 408 if it is late, 413 if too large, 429 if all together are."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limits.body:
            raise self._too_large()
        body = bytearray()
        try:
            await self._read(request, body)
            yield bytes(body)
        finally:
            self._memory.give_back(len(body))

    async def _read(self, request: Request, body: bytearray) -> None:
        """Append the arriving data to ``body``, and count it."""
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._limits.body:
                        raise self._too_large()
                    self._memory.take(len(chunk))
                    body += chunk
        except TimeoutError:
            seconds = f"{self._limits.upload_seconds:g}"
            raise Problem(408, f"the body did not arrive within {seconds} seconds", {"Connection": "close"}) from None

    def _too_large(self) -> Problem:
        megabytes = self._limits.body / (1 << 20)
        return Problem(413, f"the body is larger than {megabytes:g} MB: send a smaller image")


class _InMemory(MultiPartParser):
    spool_max_size = 1 << 40  # otherwise parts would be written to disk


def image_in(body: bytes, headers: Headers) -> bytes:
    """Return the image of a request: its body, or the part ``image`` of a form. Slow: call it in a thread.

    Raises ``Problem`` 415 if the body is empty, 422 if a form is damaged or has other parts than one ``image``.
    """
    is_form = headers.get("content-type", "").lower().startswith("multipart/form-data")
    data = asyncio.run(_image_part(body, headers)) if is_form and body else body
    if not data:
        raise Problem(415, "the body is empty: send an image")
    return data


async def _image_part(body: bytes, headers: Headers) -> bytes:
    async def whole() -> AsyncIterator[bytes]:
        yield body
        yield b""

    try:
        parser = _InMemory(headers, whole(), max_files=8, max_fields=8)  # pyright: ignore[reportArgumentType]
        form = await parser.parse()
    except (MultiPartException, FormParserError, KeyError, ValueError) as error:
        reason = getattr(error, "message", "") or str(error)
        raise Problem(422, f"the form in the body is damaged: {reason}") from None
    part = form.get(FIELD)
    if not isinstance(part, UploadFile):
        raise Problem(422, f"the form has no file {FIELD}: send the image as the part {FIELD}, or as the whole body")
    names = [name for name, _ in form.multi_items()]
    if other := next((name for name in names if name != FIELD), None):
        raise Problem(422, f"the form has a part {other[:40]!r}: parameters belong in the address, behind a ?")
    if len(names) > 1:
        raise Problem(422, f"the form has {len(names)} parts {FIELD}: one image is looked at, so send each by itself")
    return await part.read()


TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".jpg": "image/jpeg"}
PAGE_HEADERS = {
    # The page loads only its own files, and no other site may show it in a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Page:
    """A file that does not change while the server runs."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self.content, self.media_type = content, media_type

    @cached_property
    def tag(self) -> str:
        """The ETag."""
        return f'"{hashlib.blake2b(self.content, digest_size=8).hexdigest()}"'

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    async def response(self, request: Request) -> Response:
        """Return the file, compressed if the client accepts that, or 304 if the client has it."""
        headers = PAGE_HEADERS | {"ETag": self.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers = self._compressed, headers | {"Content-Encoding": "gzip"}
        return Response(content, headers=headers, media_type=self.media_type)


def read_pages() -> dict[str, Page]:
    """Return the files of the page by their paths; ``/`` is the page itself."""
    pages: dict[str, Page] = {}
    for file in resources.files("saywhere.serve").joinpath("page").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in TYPES:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            pages[path] = Page(file.read_bytes(), TYPES[suffix])
    return pages


NAME = "image"
"""Name of a request's image in results and messages."""


PIECE = 1 << 16
"""Size of the pieces in which an answer is sent, in bytes."""


class Answer(Response):
    """A response sent in pieces, as fast as the client reads; its bytes count as memory until all are sent."""

    def __init__(self, body: bytes, memory: Budget, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(body, headers=headers, media_type=media_type)
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; raise ``Problem`` 429 if too many answers are still unread."""
        body = bytes(self.body)
        self._memory.take(len(body))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(body), PIECE):
                await send({"type": "http.response.body", "body": body[start : start + PIECE], "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._memory.give_back(len(body))


class Service:
    """The request handlers of one model, which :func:`create_app` binds to paths."""

    def __init__(self, model: Model, limits: Limits, index: Index | None) -> None:
        self.model, self.limits, self.index, self.digest = model, limits, index, model.digest()
        self.workers, self.bodies, self.encodings = Workers(limits), Bodies(limits), Encodings(limits)
        self.unread = Budget(limits.answers)
        self._gallery = None if index is None else Gallery(index)

    async def ask(self, question: Question, request: Request) -> Response:
        """Answer a question about the image in the body, or about the cached one named by ``If-Match``."""
        values = read_query(question.parameters, request.query_params)
        async with self.bodies.read(request) as body:
            if match := request.headers.get("if-match"):
                if body:
                    raise Problem(400, "If-Match names an image that is kept here, so no other may be sent with it")
                tag = match.strip().strip('"')
                return await self._answer(question, values, lambda: (self._find(tag), tag))
            see = functools.partial(self._see, body, request.headers)
            return await self._answer(question, values, see)

    def see(self, data: bytes) -> Encoding:
        """Return the encoding of an image, cached for further questions. Slow: call it in a worker."""
        return self.encodings.make(content_hash(data).hex(), functools.partial(self._encode, data))

    def _find(self, tag: str) -> Encoding:
        encoding = self.encodings.find(tag)
        if encoding is None:
            raise Problem(412, "this image is not kept here (any more): send it again")
        return encoding

    def _see(self, body: bytes, headers: Headers) -> tuple[Encoding, str | None]:
        """Return the encoding of the image in a body, and its tag in the cache; None if it is not cached."""
        data = image_in(body, headers)
        directives = ",".join(headers.getlist("cache-control")).lower().split(",")
        if "no-store" in map(str.strip, directives):
            return self._encode(data), None
        return self.see(data), content_hash(data).hex()

    def _encode(self, data: bytes) -> Encoding:
        return self.model.encode(read_image(data, NAME, self.model.long_side, self.limits.pixels, refuse_slow=True))

    async def _answer(
        self, question: Question, values: Mapping[str, Any], see: Callable[[], tuple[Encoding, str | None]]
    ) -> Response:
        """Return the answer to a question about the image that ``see`` returns; it is slow, and runs in a worker."""

        def work() -> tuple[bytes, str | None]:
            encoding, tag = see()
            return to_json(question.answer(self.model, encoding, values)), tag

        body, tag = await self.workers.run(work)
        return self.json(body, {"Cache-Control": "no-store"} | ({"ETag": f'"{tag}"'} if tag else {}))

    def json(
        self, body: bytes, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
    ) -> Response:
        """Return a response whose bytes count as memory until they are read."""
        return Answer(body, self.unread, media_type, headers or {})

    async def embed_text(self, request: Request) -> Response:
        """Return the word vectors of a text."""
        values = read_query(EMBED_TEXT, request.query_params)
        return self.json(await self.workers.run(lambda: to_json(embed_text(self.model, values))), {})

    async def search(self, request: Request) -> Response:
        """Return the images of the index that match a text."""
        gallery, values = self.gallery, read_query(SEARCH, request.query_params)
        body = await self.workers.run(lambda: to_json(gallery.search(values)))
        return self.json(body, {"Cache-Control": "no-store"})

    async def search_image(self, request: Request) -> Response:
        """Return a small copy of an image of the index, or of a frame of one of its videos."""
        gallery, values = self.gallery, read_query(SEARCH_IMAGE, request.query_params)
        body = await self.workers.run(lambda: gallery.small_copy(values["entry"]))
        return Answer(body, self.unread, "image/jpeg", {"Cache-Control": "private, max-age=600"})

    @property
    def gallery(self) -> Gallery:
        """The index and its images; raises ``Problem`` 404 if there is none."""
        if self._gallery is None:
            raise Problem(404, "this server has no index: start it with --index DIR")
        return self._gallery

    async def models(self, request: Request) -> Response:
        """Return the model's name and parts, the size of the index and the size limit of a body."""
        return Response(to_json(await self.facts(request)), media_type="application/json")

    async def facts(self, request: Request) -> dict[str, Any]:
        """Return the answer of :meth:`models`."""
        read_query((), request.query_params)
        model = {"name": self.model.name, "parts": list(self.model.parts), "digest": self.digest}
        indexed = None if self.index is None else await asyncio.to_thread(len, self.index)
        return {"models": [model], "indexed": indexed, "max_body": self.limits.body}

    async def health(self, request: Request) -> Response:
        """Report that the server is running."""
        body = to_json({"status": "ok", "version": saywhere.__version__})
        return Response(body, media_type="application/json")


def create_app(
    model: Model,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: Collection[str] = (),
    index: Index | None = None,
    protocols: Sequence[Callable[[Service], Sequence[Route]]] = (),
) -> Starlette:
    """Return the application, for any ASGI server; raise ``UserError`` if the token or a host is invalid.

    Args:
        model: the model that answers.
        limits: limits of the server; None: the defaults.
        token: token that requests must have, as ``Authorization: Bearer TOKEN``, except for the page and
            :data:`PUBLIC`. None: no token is needed.
        hosts: names accepted in the header ``Host``, besides this machine's own addresses and the address that the
            request reached; ``*`` accepts any. Empty: any name with a token, none without; otherwise a web site could
            reach the server through a name of its own that resolves to this machine.
        index: index to search; None: searches get the status 404.
        protocols: functions that return the routes of other programs' protocols, which precede saywhere's own.

    Example:
        >>> app = create_app(saywhere.load(threads=1))
    """
    check_access(token, hosts)
    service = Service(model, limits or Limits(), index)
    pages = read_pages()
    routes = [route for protocol in protocols for route in protocol(service)]
    routes += _own_routes(service, pages, to_json(describe_api(token is not None)))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.workers.close()

    handlers: dict[Any, Any] = {
        Problem: _problem,
        HTTPException: _http_exception,
        ImageError: _refused(415),
        UserError: _refused(422),
        ClientDisconnect: _refused(400),
        Exception: _failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.add_middleware(Gate, token=token, hosts=hosts, public={*pages, *PUBLIC})
    return app


def _own_routes(service: Service, pages: Mapping[str, Page], description: bytes) -> list[Route]:
    """Return the routes of saywhere's own interface and page."""
    routes = [
        Route(f"/v1/{question.name}", functools.partial(service.ask, question), methods=["POST"])
        for question in QUESTIONS
    ]
    told = {
        "/v1/embed_text": service.embed_text,
        "/v1/search": service.search,
        "/v1/search/image": service.search_image,
        "/v1/models": service.models,
        "/healthz": service.health,
        "/openapi.json": Page(description, "application/json").response,
    } | {path: page.response for path, page in pages.items()}
    return routes + [Route(path, answer, methods=["GET"]) for path, answer in told.items()]


SPOKEN: Mapping[str, str] = {
    **dict.fromkeys(("/api/generate", "/api/chat", "/api/show"), "--protocols ollama"),
    **dict.fromkeys(("/v1/chat/completions", "/v1/responses"), "--protocols openai"),
    **{f"/api/v1/vision{kind}": "--protocols photoprism" for kind in ("", "/caption", "/labels")},
    **dict.fromkeys(("/setup", "/predict", "/webhook"), "--label-studio URL"),
    "/mcp": "saywhere mcp --port PORT",
}
"""The POST paths of other programs' protocols, and the options that serve them."""


def _example(request: Request, path: str) -> str:
    """Return an example command for a path."""
    questions = {f"/v1/{question.name}": question.parameters for question in QUESTIONS}
    needs = questions | {"/v1/embed_text": EMBED_TEXT, "/v1/search": SEARCH}
    needed = next((one.name for one in needs.get(path, ()) if one.required), None)
    address = request.url.replace(path=path, query=f"{needed}=a+dog" if needed else "")
    return f"curl {'--data-binary @photo.jpg ' if path in questions else ''}'{address}'"


# These are coroutines because Starlette runs plain functions in threads, which may fail when memory is short.


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, message = request.url.path[:80], error.detail
    if error.status_code == 404 and path in SPOKEN:
        message = f"there is no {path}; start the server with {SPOKEN[path]}"
    elif error.status_code == 404 and path[1:] in {question.name for question in QUESTIONS}:
        message = f"there is no {path}, but /v1{path}: {_example(request, f'/v1{path}')}"
    elif error.status_code == 404:
        message = f"there is no {path}; /openapi.json lists all paths"
    elif error.status_code == 405:
        wanted = "POST" if "POST" in (error.headers or {}).get("Allow", "") else "GET"
        example = "" if path in SPOKEN else f": {_example(request, path)}"
        message = f"{path} takes {wanted}, not {request.method[:20]}{example}"
    return Problem(error.status_code, message, error.headers).response()


def _refused(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error.__context__, MemoryError):  # the image itself may be fine
            return _too_little_memory({}).response()
        return Problem(status, str(error) or "the connection was closed").response()

    return refuse


async def _failure(_: Request, error: Exception) -> Response:
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    if is_oom(error):
        return _too_little_memory(headers).response()
    return Problem(500, "the server failed to answer this request; its log says why", headers).response()


def _too_little_memory(headers: Mapping[str, str]) -> Problem:
    message = "the server is short of memory: try again later, or send a smaller image"
    return Problem(503, message, {"Retry-After": "10", **headers})
