"""``saywhere serve`` as a process: strange clients, the end at SIGTERM, and the command line. PyTorch is not there."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from server_process import Process, send_raw
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from tiny_bundle import exported_bundle

from saywhere.serve import server as serving
from saywhere.serve.limits import Limits
from saywhere.serve.server import bind, run


def ask(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_large_answer_arrives_whole(server: Process, photo: bytes) -> None:
    boxes = "&".join(f"box={n % 20},{n % 30},{200 + n % 150},{210 + n % 150}" for n in range(1000))
    status, found = ask(server.port, f"/v1/embed?{boxes}", photo)
    assert status == 200 and found["boxes"][-1] == [19.0, 9.0, 299.0, 309.0] and len(found["vectors"]) == 1001


def test_what_is_not_http_gets_an_error_in_json(server: Process) -> None:
    head, _, body = send_raw(server.port, b"GARBAGE\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and list(json.loads(body)) == ["error"]


def test_dropped_connections_and_early_refusals_harm_nobody(server: Process, photo: bytes) -> None:
    for cut in (10, 80, 5000):
        head = b"POST /v1/describe HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(photo)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall((head + photo)[:cut])
    assert ask(server.port, "/v1/describe", b"0" * (33 << 20))[0] == 413
    assert ask(server.port, "/v1/describe?top=x", photo)[0] == 422
    assert ask(server.port, "/v1/describe?top=0", photo)[0] == 200


def test_sigterm_loses_no_request_that_has_begun(photo: bytes) -> None:
    server = Process("--workers", "2")
    busy, stopped, answers, lost = threading.Event(), threading.Event(), [], []

    def client(number: int) -> None:
        """Ask again and again on one connection, as long as the server takes requests."""
        connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
        while True:
            try:
                connection.request("POST", f"/v1/embed?regions={number}", photo, {"Cache-Control": "no-store"})
            except OSError:  # no connection is accepted any more
                return
            early = not stopped.is_set()  # what is sent later may not be accepted any more
            try:
                response = connection.getresponse()
                answers.append((response.status, len(json.loads(response.read())["boxes"]) - 1, number))
                if {number for _, _, number in answers} == set(range(8)):
                    busy.set()
            except (OSError, HTTPException) as error:
                if early:
                    lost.append(repr(error))
                return
            if response.getheader("Connection") == "close":
                return

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(client, number) for number in range(8)]
        busy.wait(600)  # all are connected, and most wait for their next answer
        stopped.set()
        code, errors = server.stop()
        for future in running:
            future.result()
    assert (code, errors) == (0, "")
    assert lost == []
    assert busy.is_set() and all(status == 200 and found == wanted for status, found, wanted in answers)


MUCH = 16 << 20
"""Bytes of an answer that the system does not take from the server before they are read."""


class Quick(NamedTuple):
    """A server with short limits in a thread."""

    port: int
    connections: Collection[Any]


@pytest.fixture
def quick() -> Iterator[Quick]:
    much, little = PlainTextResponse(b"0" * MUCH), PlainTextResponse("here")

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"0" * (MUCH // 64)

    app = Starlette(
        routes=[
            Route("/", lambda request: little),
            Route("/much", lambda request: much),
            Route("/pieces", lambda request: StreamingResponse(in_pieces())),
        ]
    )
    listening, started = bind("127.0.0.1", 0), threading.Event()
    servers: list[uvicorn.Server] = []
    keep = uvicorn.Server.startup

    async def startup(self: uvicorn.Server, sockets: Any = None) -> None:
        servers.append(self)
        await keep(self, sockets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "startup", startup)
        patch.setattr(serving, "DRAIN_SECONDS", 0)
        thread = threading.Thread(
            target=run, args=(app, listening, Limits(idle_seconds=1, reading_seconds=1), started.set)
        )
        thread.start()
        assert started.wait(600)
        yield Quick(listening.getsockname()[1], servers[0].server_state.connections)
        servers[0].should_exit = True
        thread.join(600)
        assert not thread.is_alive()


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def test_idle_connections_are_closed(quick: Quick) -> None:
    """After nothing, half a request and one, at the same time."""
    with ThreadPoolExecutor(3) as pool:
        nothing, half, one = pool.map(lambda sent: send_raw(quick.port, sent), [b"", REQUEST[:8], REQUEST])
    assert b"here" in one and b"here" not in nothing + half


def test_who_does_not_read_is_dropped(quick: Quick) -> None:
    with contextlib.ExitStack() as stack:
        silent: list[socket.socket] = []
        for path in (b"/much ", b"/pieces "):
            connection = socket.create_connection(("127.0.0.1", quick.port), timeout=600)
            silent.append(stack.enter_context(connection))
            connection.sendall(2 * REQUEST.replace(b"/ ", path, 1))
            assert len(connection.recv(1)) == 1
        while quick.connections:
            time.sleep(0.02)
        for connection in silent:
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(1 << 20):
                    received += len(chunk)
            assert received < MUCH


def test_a_port_in_use_is_one_line(server: Process) -> None:
    command = [sys.executable, "-c", "from saywhere.cli import main; main()", "serve", "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"error: --host 127.0.0.1 --port {server.port}: cannot listen there \(.*\); .*\n", done.stderr)


def test_the_extra_is_named_where_it_is_not_installed() -> None:
    code = "import sys; sys.modules['starlette'] = None; from saywhere.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "serve"], capture_output=True, text=True)
    assert done.returncode == 2
    wanted = "error: this command needs starlette, which is not installed: pip install 'saywhere[serve]'\n"
    assert done.stderr == wanted


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str, *options: str) -> str:
    command = [sys.executable, BENCHMARKS / name, "--model", exported_bundle(), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_load_in_all_languages() -> None:
    said = benchmark("serve_load.py", "--protocols", "--requests=45", "--clients=4", "--garbage=0.67", "--images=2",
               "--flood=4", "--under-way=6", "--alone=2")  # fmt: skip
    assert "unlike expected: 0\n" in said and "connections to other hosts: 0 " in said
    assert "SIGTERM with 6 requests under way: {200: 6}; exit code 0\n" in said


def test_speed(tmp_path: Path) -> None:
    said = benchmark("serve.py", "--images=2", "--rounds=1", "--workers=1", f"--json={tmp_path / 'figures.json'}")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert "http / better library" in said
    assert len(figures["ratios"]) == 1 and figures["page"]["bytes"] < 30_000


def test_a_second_ctrl_c_ends_at_once_and_quietly() -> None:
    server = Process()
    with socket.create_connection(("127.0.0.1", server.port), timeout=600) as connection:
        connection.sendall(b"POST /v1/describe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")  # and no more
        for _ in range(100):
            if server.process.poll() is not None:
                break
            server.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(0.05)
        assert server.process.wait(600) in (0, 130)
    assert "Traceback" not in server.process.communicate()[1]
