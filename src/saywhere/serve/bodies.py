"""The image in the body of a request, read into memory within limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from saywhere.serve.limits import Budget, Limits
from saywhere.serve.problems import Problem

FIELD = "image"
"""Name of the part of a form that holds the image."""


class Bodies:
    """Read bodies, and know how many bytes of them are in memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._memory = limits, Budget(limits.bodies)

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request.

        Raises:
            Problem: 408 if it does not arrive in time, 413 if it is too large, and 429 if all bodies together are.
        """
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
        """Append what arrives to ``body``, and count it."""
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
    spool_max_size = 1 << 40  # or parts would be written to the disk


def image_in(body: bytes, headers: Headers) -> bytes:
    """Return the image of a request: the body, or the part ``image`` of a form. It takes a while: for a thread.

    Raises:
        Problem: 415 if there is nothing in it, 422 if a form is damaged or has no part ``image``.
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
    return await part.read()
