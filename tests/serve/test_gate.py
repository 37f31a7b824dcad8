"""Who is let in, asked of real servers: the host and the target of a request, pages of other sites, the token."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import NamedTuple

import pytest
from commands import error_of, run
from refusals import refuses
from server_process import Process, send_raw
from starlette.testclient import TestClient

import saywhere
from saywhere.serve.app import create_app


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        found = json.loads(self.body)
        assert list(found) == ["error"] and "\n" not in found["error"]
        return found["error"]


def ask(server: Process, target: str, body: bytes | None = None, at: str = "127.0.0.1", **headers: str) -> Answer:
    """Send a request with just these headers (``_`` for ``-``); ``Host`` is that of the connection if none is given."""
    connection = HTTPConnection(at, server.port, timeout=600)
    try:
        connection.putrequest("GET" if body is None else "POST", target, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value.encode("utf-8"))
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def locked() -> Iterator[Process]:
    """A server with a token and a name."""
    with Process("--token", "s3cret~/=", "--allowed-host", "Img.Example.org") as running:
        yield running


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Process]:
    """A server at all addresses, without a token."""
    with Process("--host", "0.0.0.0") as running:
        yield running


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "bearer   "])
def test_the_case_of_the_scheme_does_not_matter(locked: Process, scheme: str) -> None:
    assert ask(locked, "/v1/models", authorization=f"{scheme}s3cret~/=").status == 200


@pytest.mark.parametrize(
    "given", ["bearer S3CRET~/=", "Basic s3cret~/=", "s3cret~/=", "Bearer", "", "Bearer s3crét~/="]
)
def test_everything_else_is_refused(locked: Process, given: str) -> None:
    answer = ask(locked, "/v1/models", Authorization=given)
    assert answer.status == 401 and "token" in answer.error and answer.headers["www-authenticate"] == "Bearer"
    assert [ask(locked, path, Authorization=given).status for path in ("/", "/healthz", "/openapi.json")] == [200] * 3
    assert ask(locked, f"http://127.0.0.1:{locked.port}/v1/models", Authorization=given).status == 401


@pytest.mark.parametrize("options", [("--token", "schlüssel"), ("--token", " padded"), ("--token", ""),
                                     ("--allowed-host", "a b"), ("--allowed-host", "")])  # fmt: skip
def test_a_token_that_no_header_can_bring_and_a_name_that_is_none_are_one_line(options: tuple[str, str]) -> None:
    error = error_of(run("serve", *options, code=2))
    assert error.startswith(f"error: {options[0]}")
    assert options[1] == "" or options[0] == "--allowed-host" or options[1] not in error


def test_the_same_holds_in_python(model: saywhere.Model) -> None:
    refuses("ASCII", create_app, model, token="schlüssel")
    with TestClient(create_app(model, token="two words")) as client:
        for given, status in {"bearer two words": 200, "bearer two": 401}.items():
            assert client.get("/v1/models", headers={"Authorization": given}).status_code == status


@pytest.mark.parametrize(
    "host", ["[::1", "::1]", "[::1]x", "[127.0.0.1]", "a b", "a/b", "user@localhost", "localhost:x", "ä"]
)
def test_a_host_that_is_none_is_malformed(server: Process, locked: Process, host: str) -> None:
    for each in (server, locked):
        answer = ask(each, "/healthz", Host=host)
        assert answer.status == 400 and "Host" in answer.error


def test_a_server_without_a_token_answers_to_addresses_of_its_machine_alone(server: Process) -> None:
    own = (
        "localhost",
        "LOCALHOST.",
        f"127.0.0.1:{server.port}",
        "127.0.0.2",
        "[::1]:1",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    )
    assert [ask(server, "/v1/models", Host=host).status for host in own] == [200] * len(own)
    for host in ("rebound.example", "127.0.0.1.rebound.example", "localhost.example", "10.0.0.5", "[2001:db8::1]", ""):
        answer = ask(server, "/v1/models", Host=host)
        assert answer.status == 421 and "--allowed-host" in answer.error
        assert ask(server, "/", Host=host).status == 421


def test_so_does_one_at_all_addresses_and_the_one_that_was_reached(everywhere: Process) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # which sends nothing
            address = probe.getsockname()[0]
        except OSError:  # no network
            address = "127.0.0.3"
    assert ask(everywhere, "/v1/models", at=address).status == 200
    assert ask(everywhere, "/v1/models", at="127.0.0.2").status == 200
    for at in ("127.0.0.1", "127.0.0.2", address):
        assert ask(everywhere, "/v1/models", at=at, Host="rebound.example").status == 421
        assert ask(everywhere, "/v1/models", at=at, Host="203.0.113.9").status == 421


def test_one_at_another_loopback_address_is_not_rebound_either() -> None:
    with Process("--host", "127.0.0.2", "--allowed-host", "mine.example") as running:
        names = {f"127.0.0.2:{running.port}": 200, "mine.example:443": 200, "rebound.example": 421}
        assert {host: ask(running, "/v1/models", at="127.0.0.2", Host=host).status for host in names} == names


def test_a_name_that_is_allowed_is_the_only_one_with_a_token_too(locked: Process) -> None:
    names = {"img.example.org": 200, "IMG.example.ORG:443": 200, "127.0.0.1": 200, "rebound.example": 421}
    assert {host: ask(locked, "/healthz", Host=host).status for host in names} == names


def test_a_star_and_a_token_allow_any_name(model: saywhere.Model) -> None:
    for app in (create_app(model, hosts=["*"]), create_app(model, token="s3cret")):
        with TestClient(app) as client:
            assert client.get("/healthz", headers={"Host": "any.example"}).status_code == 200


def test_the_absolute_form_of_a_target_is_served(server: Process, photo: bytes) -> None:
    place = f"http://127.0.0.1:{server.port}"
    assert json.loads(ask(server, f"{place}/healthz").body)["status"] == "ok"
    assert ask(server, place.upper(), Host="x").headers["content-type"].startswith("text/html")
    found = json.loads(ask(server, f"{place}/v1/describe?top=2", photo).body)
    assert found == json.loads(ask(server, "/v1/describe?top=2", photo).body) and len(found["captions"]) == 2
    # The host of the target counts, and not the header.
    assert ask(server, "http://rebound.example/v1/models", Host="localhost").status == 421
    assert ask(server, "http://localhost/v1/models", Host="rebound.example").status == 200
    for wrong in ("http://[::1/v1/models", "http://user@localhost/v1/models"):
        head = f"GET {wrong} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert send_raw(server.port, head.encode()).startswith(b"HTTP/1.1 400 ")
    assert ask(server, "/http://localhost/v1/models").status == 404


def test_two_lengths_of_a_body_are_refused(server: Process) -> None:
    head = b"POST /v1/describe HTTP/1.1\r\nHost: localhost\r\n"
    body = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(body)
    received = send_raw(server.port, head + lengths + body)
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1") == 1 and b"exclude" in received


def test_pages_of_other_sites_are_refused(server: Process, locked: Process, photo: bytes) -> None:
    own = f"http://127.0.0.1:{server.port}"
    foreign: list[dict[str, str]] = [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:3000"},
        {"Origin": own.replace("http", "chrome-extension")}, {"Origin": ""},
        {"Origin": "http://localhost"}, {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "Cross-Site"},
        {"Origin": own, "Sec_Fetch_Site": "cross-site"},
    ]  # fmt: skip
    for headers in foreign:
        for path, body in (("/v1/models", None), ("/v1/search?q=a+dog", None), ("/v1/describe", photo)):
            answer = ask(server, path, body, **headers)
            assert answer.status == 403 and "other sites" in answer.error, headers
        assert ask(server, "/healthz", **headers).status == 200
        assert ask(locked, "/v1/models", Authorization="Bearer s3cret~/=", **headers).status == 403
    for headers in ({"Origin": own}, {"Sec_Fetch_Site": "same-origin", "Origin": own}, {"Sec_Fetch_Site": "none"}, {}):
        assert ask(server, "/v1/describe?top=0", photo, **headers).status == 200


def test_each_of_several_headers_counts(server: Process) -> None:
    own = f"http://127.0.0.1:{server.port}"
    for name, good, bad in (("Origin", own, "https://evil.example"), ("Sec-Fetch-Site", "same-origin", "cross-site")):
        for values, status in (((good, bad), 403), ((bad, good), 403), ((good, good), 200)):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
            connection.putrequest("GET", "/v1/models")
            for value in values:
                connection.putheader(name, value)
            connection.endheaders()
            assert connection.getresponse().status == status, (name, values)
            connection.close()


def test_a_proxy_may_give_another_host(locked: Process) -> None:
    right = {"Authorization": "Bearer s3cret~/="}
    assert ask(locked, "/v1/models", Origin="https://img.example.org", **right).status == 200
    assert ask(locked, "/v1/models", Origin="https://img.example.org", Host="img.example.org", **right).status == 200
    assert ask(locked, "/v1/models", Origin="https://any.example", Sec_Fetch_Site="same-origin", **right).status == 200


def test_no_other_site_shows_an_answer(server: Process, photo: bytes) -> None:
    for path, body in (("/", None), ("/page/page.js", None), ("/healthz", None), ("/v1/nowhere", None),
                       ("/v1/describe?top=0", photo), ("/v1/describe?top=x", photo)):  # fmt: skip
        headers = ask(server, path, body).headers
        assert headers["cross-origin-resource-policy"] == "same-origin", path
        assert headers["x-content-type-options"] == "nosniff", path
