"""Load ``saywhere serve`` with sound and unsound requests, flood it, and see whether an answer is lost or memory grows.

    python benchmarks/serve_load.py [--requests 10000] [--clients 16] [--garbage 0.01] [--images 400] [--flood 300]
                                    [--under-way 32]

One request in a hundred is garbage: truncated images, texts, bombs, wrong parameters, bodies that stop half way, and
connections that are dropped. In the end SIGTERM comes while requests are under way that the server has accepted. Ends
with code 1 if a request had another answer than it should have. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

from serve import Server, photographs, running

QUESTIONS = ("describe?top=10", "caption", "ground?text=a dog on the grass", "embed?regions=5")
GARBAGE = {"truncated": 415, "text": 415, "bomb": 415, "parameter": 422, "slow": 200, "dropped": 0}
"""Kinds of unsound requests, and the status that each gets."""
SLOW_SECONDS = 2.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load the server and see what is lost.")
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--garbage", type=float, default=0.01, help="share of unsound requests")
    parser.add_argument("--images", type=int, default=400, help="different images that are asked about")
    parser.add_argument("--flood", type=int, default=300, help="clients that ask at the same time in the end")
    parser.add_argument(
        "--under-way", type=int, default=32, help="requests that have begun when SIGTERM comes, at most 64"
    )
    return parser.parse_args(arguments)


def bomb() -> bytes:
    """A PNG of a few hundred kilobytes that claims and has 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(20_001) * 20_000, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class Load:
    """What the clients ask, and what they were answered."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self.server, self.options = server, options
        self.bodies, self.bomb = photographs(), bomb()
        self.random = random.Random(0)
        kinds = list(GARBAGE)
        garbage = round(options.requests * options.garbage)
        plan = [kinds[i % len(kinds)] for i in range(garbage)]
        plan += [QUESTIONS[i % len(QUESTIONS)] for i in range(options.requests - garbage)]
        self.random.shuffle(plan)
        self.plan = [(kind, self.random.randrange(options.images)) for kind in plan]
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.milliseconds: list[float] = []
        self.memory: list[tuple[int, int]] = []
        self.own, self.lock = threading.local(), threading.Lock()

    def image(self, number: int) -> bytes:
        return self.bodies[number % len(self.bodies)] + f"{number}".encode()

    def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        if getattr(self.own, "connection", None) is None:
            self.own.connection = HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        try:
            self.own.connection.request("POST", "/v1/" + path.replace(" ", "%20"), body)
            response = self.own.connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException):
            self.own.connection = None
            raise

    def raw(self, body: bytes, pause: float, whole: bool) -> int:
        """Send a body in two halves; the status, or 0 if the connection is dropped after the first."""
        head = f"POST /v1/describe?top=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=300) as connection:
            connection.sendall(head.encode() + body[: len(body) // 2])
            time.sleep(pause)
            if not whole:
                return 0
            connection.sendall(body[len(body) // 2 :])
            return int(connection.recv(65536).split()[1])

    def send(self, kind: str, body: bytes) -> tuple[int, bytes]:
        if kind in ("slow", "dropped"):
            return self.raw(body, SLOW_SECONDS, kind == "slow"), b"{}"
        bodies = {"truncated": body[: len(body) // 3], "text": b"I am not an image", "bomb": self.bomb}
        path = {"parameter": "describe?top=many"}.get(kind, kind if kind not in GARBAGE else "describe")
        return self.ask(path, bodies.get(kind, body))

    def one(self, job: tuple[int, tuple[str, int]]) -> None:
        number, (kind, image) = job
        body, wanted = self.image(image), GARBAGE.get(kind, 200)
        began = time.perf_counter()
        try:
            status, answer = self.send(kind, body)
            sound = status == wanted and ("error" in json.loads(answer)) == (status >= 400)
        except (OSError, HTTPException, ValueError, IndexError) as error:
            status, answer, sound = -1, repr(error).encode(), False
        took = 1000 * (time.perf_counter() - began)
        with self.lock:
            self.statuses[kind.partition("?")[0], status] += 1
            if kind not in GARBAGE:
                self.milliseconds.append(took)
            if not sound:
                self.wrong.append(f"{kind}: {status} {answer[:200]!r}")
            if number % 10 == 0:
                self.memory.append((number, self.server.resident()))

    def run(self) -> float:
        """Seconds that all requests took."""
        began = time.perf_counter()
        with ThreadPoolExecutor(self.options.clients) as pool:
            list(pool.map(self.one, enumerate(self.plan)))
        return time.perf_counter() - began


def bare_milliseconds(model_name: str, bodies: Sequence[bytes]) -> float:
    """Median time of an image in the library, in this process and alone."""
    import saywhere
    from saywhere.images import read_image

    model = saywhere.load(model_name)
    times: list[float] = []
    for number in range(40):
        began = time.perf_counter()
        model.describe(read_image(bodies[number % len(bodies)], "image", model.long_side), top=10)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[10:])


def flood(load: Load, clients: int) -> tuple[Counter[int], float]:
    """Ask from many clients at once: the statuses, and the seconds after which a request has an answer again."""

    def one(number: int) -> int:
        status, _ = load.ask("describe", load.image(10**6 + number))
        return status

    with ThreadPoolExecutor(clients) as pool:
        statuses = Counter(pool.map(one, range(clients)))
    began = time.perf_counter()
    while load.ask("describe", load.image(0))[0] != 200:
        time.sleep(0.05)
    return statuses, time.perf_counter() - began


def stop_under_load(load: Load, count: int) -> tuple[Counter[int], int]:
    """Send SIGTERM while requests are under way: their statuses, -1 for a lost one, and the server's exit code.

    Each has sent half of its image, and the server has said that it reads it.
    """
    begun, stopped = threading.Barrier(count + 1), threading.Event()

    def one(number: int) -> int:
        body = load.image(2 * 10**6 + number)
        head = "POST /v1/describe HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        with socket.create_connection(("127.0.0.1", load.server.port), timeout=300) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            accepted = b" 100 " in connection.recv(1000)
            connection.sendall(body[: len(body) // 2])
            begun.wait(300)
            stopped.wait(300)
            try:
                connection.sendall(body[len(body) // 2 :])
                status = int(connection.recv(65536).split()[1])
            except (OSError, IndexError):
                status = -1
            return status if accepted else -1

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(one, number) for number in range(count)]
        begun.wait(300)
        load.server.process.terminate()
        stopped.set()
        code = load.server.process.wait(300)
        return Counter(future.result() for future in running), code


def main() -> None:
    options = parse()
    with running("--model", options.model) as server:
        load = Load(server, options)
        bare = bare_milliseconds(options.model, load.bodies)
        seconds = load.run()
        ordered = sorted(load.milliseconds)
        print(f"{options.requests} requests of {options.clients} clients in {seconds:.0f} s")
        print(f"load of the machine {os.getloadavg()[0]:.1f}")
        for (kind, status), count in sorted(load.statuses.items()):
            print(f"  {kind:10} {status:4} {count:6}")
        print(f"unlike expected: {len(load.wrong)}")
        for line in load.wrong[:10]:
            print(f"  {line}")
        p50, p95 = ordered[len(ordered) // 2], ordered[int(0.95 * len(ordered))]
        print(f"answers: median {p50:.0f} ms, p95 {p95:.0f} ms; the library alone describes an image in {bare:.0f} ms")
        sizes = [size for _, size in sorted(load.memory)]
        tenth = max(1, len(sizes) // 10)
        first, last = statistics.mean(sizes[tenth : 2 * tenth] or sizes), statistics.mean(sizes[-tenth:])
        print(f"memory: {first / 1e6:.0f} MB in the second tenth of the requests, {last / 1e6:.0f} MB in the last")
        statuses, again = flood(load, options.flood)
        print(f"flood of {options.flood}: {dict(statuses)}; answered again after {again:.2f} s")
        finished, code = stop_under_load(load, options.under_way)
        print(f"SIGTERM with {options.under_way} requests under way: {dict(finished)}; exit code {code}")
    sys.exit(1 if load.wrong or code or set(statuses) - {200, 429} or set(finished) != {200} else 0)


if __name__ == "__main__":
    main()
