"""The HTTP interface: routes, and what holds for all of them."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import saywhere
from saywhere.errors import UserError
from saywhere.images import ImageError, read_image
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.serve.bodies import Bodies
from saywhere.serve.description import describe_api
from saywhere.serve.encodings import Encodings, tag_of
from saywhere.serve.gallery import search, small_copy
from saywhere.serve.limits import Limits
from saywhere.serve.pages import Page, read_pages
from saywhere.serve.parameters import read_query
from saywhere.serve.problems import Problem
from saywhere.serve.questions import EMBED_TEXT, QUESTIONS, SEARCH, SEARCH_IMAGE, Question, embed_text
from saywhere.serve.workers import Workers

if TYPE_CHECKING:
    from saywhere.search import Index

NAME = "image"
"""What results and messages call the image of a request."""


class Service:
    """Answer the requests; one model, which :func:`create_app` binds to paths."""

    def __init__(self, model: Model, limits: Limits, index: Index | None) -> None:
        self.model, self.limits, self.index, self.digest = model, limits, index, model.digest()
        self.workers, self.bodies, self.encodings = Workers(limits), Bodies(limits), Encodings(limits)

    async def ask(self, question: Question, request: Request) -> Response:
        """Answer a question about the image in the body, or about the one that ``If-Match`` names."""
        values = read_query(question.parameters, request.query_params)
        if match := request.headers.get("if-match"):
            tag = match.strip().strip('"')
            encoding = self.encodings.find(tag)
            if encoding is None:
                raise Problem(412, "this image is not kept here (any more): send it again")
            return await self._answer(question, values, lambda: encoding, tag)
        async with self.bodies.image(request) as data:
            if not data:
                raise Problem(415, "the body is empty: send an image")
            tag = tag_of(data)
            keep = "no-store" not in request.headers.get("cache-control", "")
            encode = functools.partial(self._encode, data)
            see = functools.partial(self.encodings.make, tag, encode) if keep else encode
            return await self._answer(question, values, see, tag if keep else None)

    def _encode(self, data: bytes) -> Encoding:
        return self.model.encode(read_image(data, NAME, self.model.long_side, self.limits.pixels, refuse_slow=True))

    async def _answer(
        self, question: Question, values: Mapping[str, Any], see: Callable[[], Encoding], tag: str | None
    ) -> Response:
        def work() -> bytes:
            return _json(question.answer(self.model, see(), values))

        headers = {"Cache-Control": "no-store"} | ({"ETag": f'"{tag}"'} if tag else {})
        return Response(await self.workers.run(work), headers=headers, media_type="application/json")

    async def embed_text(self, request: Request) -> Response:
        """Return the vectors of a text's words."""
        values = read_query(EMBED_TEXT, request.query_params)
        body = await self.workers.run(lambda: _json(embed_text(self.model, values)))
        return Response(body, media_type="application/json")

    async def search(self, request: Request) -> Response:
        """Return the images of the index that fit a text."""
        index, values = self._index, read_query(SEARCH, request.query_params)
        body = await self.workers.run(lambda: _json(search(index, values)))
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def search_image(self, request: Request) -> Response:
        """Return a small copy of an image of the index, or of a frame of one of its videos."""
        index, values = self._index, read_query(SEARCH_IMAGE, request.query_params)
        body = await self.workers.run(lambda: small_copy(index, values["path"], values.get("time")))
        return Response(body, headers={"Cache-Control": "private, max-age=600"}, media_type="image/jpeg")

    @property
    def _index(self) -> Index:
        if self.index is None:
            raise Problem(404, "this server has no index: start it with --index DIR")
        return self.index

    async def models(self, request: Request) -> Response:
        """Name the model that answers, its parts and the limits."""
        read_query((), request.query_params)
        model = {"name": self.model.name, "parts": list(self.model.parts), "digest": self.digest}
        indexed = None if self.index is None else len(self.index)
        return JSONResponse({"models": [model], "indexed": indexed, "max_body": self.limits.body})

    async def health(self, request: Request) -> Response:
        """Say that the server answers."""
        return JSONResponse({"status": "ok", "version": saywhere.__version__})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def create_app(
    model: Model,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: Collection[str] = (),
    index: Index | None = None,
) -> Starlette:
    """Return the application, for any ASGI server.

    Args:
        model: that answers.
        limits: of requests; the defaults if None.
        token: that requests below ``/v1`` must bring, as ``Authorization: Bearer TOKEN``; none is needed if None.
        hosts: names that requests may call the server by, in the header ``Host``; any if empty. A server for this
            machine alone gives its own, or a site could reach it by a name of its own that leads here.
        index: that is searched; a server without one answers 404 to searches.

    Example:
        >>> app = create_app(saywhere.load(threads=1))
    """
    service = Service(model, limits or Limits(), index)
    description = _json(describe_api(token is not None))
    routes = [
        Route(f"/v1/{question.name}", functools.partial(service.ask, question), methods=["POST"])
        for question in QUESTIONS
    ]
    routes += [
        Route("/v1/embed_text", service.embed_text, methods=["GET"]),
        Route("/v1/search", service.search, methods=["GET"]),
        Route("/v1/search/image", service.search_image, methods=["GET"]),
        Route("/v1/models", service.models, methods=["GET"]),
        Route("/healthz", service.health, methods=["GET"]),
        Route("/openapi.json", _fixed(Page(description, "application/json")), methods=["GET"]),
    ]
    routes += [Route(path, _fixed(page), methods=["GET"]) for path, page in read_pages().items()]

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
    app.add_middleware(_Gate, token=token, hosts=hosts)
    return app


def _fixed(page: Page) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return page.response(request)

    return answer


class _Gate:
    """Refuse requests below ``/v1`` without the token, compared in constant time, and all for a strange host."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        await (self._app if problem is None else problem.response())(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        headers = dict(scope["headers"])
        host = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname
        if self._hosts and host not in self._hosts:
            return Problem(421, f"this server is not called {host}: it is for its own machine")
        given = headers.get(b"authorization", b"")
        if self._token and scope["path"].startswith("/v1/") and not hmac.compare_digest(given, self._token):
            message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
            return Problem(401, message, {"WWW-Authenticate": "Bearer"})
        return None


def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"there is no {request.url.path[:80]}; /openapi.json names what there is"}
    return Problem(error.status_code, messages.get(error.status_code, error.detail), error.headers).response()


def _refused(status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: Problem(status, str(error) or "the connection was closed").response()


def _failure(_: Request, error: Exception) -> Response:
    return Problem(500, "the server failed at this request; its log says why").response()
