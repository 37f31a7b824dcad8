"""Access control: well-formed requests to this server's name, from its own page or a program, with the token."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import ipaddress
import re
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saywhere.errors import UserError
from saywhere.serve.limits import Problem

ANY = "*"
"""Host name that means: accept any name."""
HEADERS = ((b"cross-origin-resource-policy", b"same-origin"), (b"x-content-type-options", b"nosniff"))
"""Headers of every response: other sites may not embed it, and browsers must not guess its type."""
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\]|([\w.~%!$&'()*+,;=-]*))(?::(\d*))?", re.ASCII)
_ABSOLUTE = re.compile(rb"(https?)://([^/?#]*)(/[^?#]*)?", re.IGNORECASE)
_PORTS = {"http": "80", "https": "443"}


class Host(NamedTuple):
    """A host name in lower case, or an address as :mod:`ipaddress` writes it, and the port, if given."""

    name: str
    port: str

    @classmethod
    def parse(cls, text: str) -> Host:
        """Read a name or an address with an optional port; raise ``ValueError`` if it is neither."""
        parts = _AUTHORITY.fullmatch(text)
        if not parts:
            raise ValueError(text)
        if parts[1] is not None:
            return cls(_plain(str(ipaddress.IPv6Address(parts[1]))), parts[3] or "")
        return cls(_plain(parts[2]), parts[3] or "")

    @classmethod
    def name_of(cls, text: str) -> str:
        """Return the name in a user's text, like :meth:`parse`, but an IPv6 address needs no brackets."""
        return cls.parse(f"[{text}]" if text.count(":") > 1 and "[" not in text else text).name

    @property
    def is_this_machine(self) -> bool:
        """Whether the host is this machine itself, such as localhost."""
        try:
            address = ipaddress.ip_address(self.name)
        except ValueError:
            return self.name == "localhost"
        return address.is_loopback or address.is_unspecified


def check_access(token: str | None, hosts: Collection[str]) -> None:
    """Check a :class:`Gate`'s arguments; raise ``UserError`` if a header cannot carry the token, or a host is none."""
    if token is not None and not re.fullmatch("[!-~]([ -~]*[!-~])?", token):
        raise UserError(
            "--token: only ASCII letters, digits, signs and inner spaces are possible in a header; give another token"
        )
    for host in hosts:
        try:
            known = Host.name_of(host)
        except ValueError:
            known = ""
        if not known:
            raise UserError(f"--allowed-host {host!r}: is not a host name; give one such as images.example.org")


class Gate:
    """Pass requests on to ``app``, or respond with what is wrong with them.

    Args:
        token, hosts: see :func:`saywhere.serve.app.create_app`; checked before by :func:`check_access`.
        public: paths that need no token, and that pages of other sites may request.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str], public: Collection[str]) -> None:
        self._app, self._token, self._public = app, token, public
        self._open = ANY in hosts or (token is not None and not hosts)
        self._names = {Host.name_of(host) for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            scope = _in_origin_form(scope)
            self._check(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise _malformed("Transfer-Encoding and Content-Length exclude each other: send one of them")
        hosts = headers.getlist("host")
        try:
            host = Host.parse(hosts[0] if hosts else "")
        except ValueError:
            raise _malformed(f"Host must be a name or an address, not {hosts[0][:80]!r}") from None
        if len(hosts) > 1:
            raise _malformed("there is more than one Host")
        if not self._is_own(host, scope):
            way_out = f"to allow this name, start it with --allowed-host {host.name[:200] or 'NAME'}"
            raise Problem(421, f"this server is not known as {host.name[:200]!r}; {way_out}")
        if scope["path"] not in self._public:
            if self._is_foreign(headers, host):
                raise Problem(403, "this server answers its own page and programs, not the pages of other sites")
            self._check_token(headers)

    def _is_own(self, host: Host, scope: Scope) -> bool:
        """Whether a request names this server; other sites can make their own names resolve to this machine."""
        if self._open or host.is_this_machine or host.name in self._names:
            return True
        reached = (scope.get("server") or ("",))[0]
        return host.name == _plain(reached) != ""

    def _is_foreign(self, headers: Headers, host: Host) -> bool:
        """Whether a request comes from another site's page, according to the browser's headers."""
        if sites := [site.strip().lower() for site in headers.getlist("sec-fetch-site") if site]:
            return not {*sites} <= {"same-origin", "none"}
        return not all(self._is_own_page(origin, host) for origin in headers.getlist("origin"))

    def _is_own_page(self, origin: str, host: Host) -> bool:
        scheme, _, rest = origin.strip().lower().partition("://")
        try:
            page = Host.parse(rest)
        except ValueError:
            return False
        default = _PORTS.get(scheme)
        same = page.name == host.name and (page.port or default) == (host.port or default)
        return default is not None and (same or page.name in self._names)

    def _check_token(self, headers: Headers) -> None:
        if self._token is None:
            return
        scheme, _, text = headers.get("authorization", "").partition(" ")
        given = text.strip().encode("latin-1")
        if scheme.lower() == "basic":  # for programs that send user and password; the user is ignored
            with contextlib.suppress(binascii.Error):
                given = base64.b64decode(given).partition(b":")[2]
        right = hmac.compare_digest(given, self._token.encode("ascii"))
        if scheme.lower() not in ("bearer", "basic") or not right:
            message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
            raise Problem(401, message, {"WWW-Authenticate": "Bearer"})


def _in_origin_form(scope: Scope) -> Scope:
    """Rewrite a request for an absolute URL to one for its path; the URL's host replaces the header's."""
    absolute = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if not absolute:
        return scope
    path = absolute[3] or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    target = {"path": unquote(path.decode("ascii")), "raw_path": path, "headers": [(b"host", absolute[2]), *headers]}
    return {**scope, **target}


def _plain(name: str) -> str:
    """Return a name in lower case, or an address without its zone; an IPv4-mapped address becomes IPv4."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower().removesuffix(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


def _malformed(message: str) -> Problem:
    return Problem(400, message, {"Connection": "close"})
