"""Load ``saywhere serve`` with valid and invalid requests, flood it, and check for lost responses and memory growth.

    python benchmarks/serve_load.py [--requests 10000] [--clients 16] [--garbage 0.01] [--images 400] [--flood 300]
                                    [--under-way 32] [--alone 40] [--protocols]

One request in a hundred is invalid: truncated images, texts, bombs, wrong parameters, incomplete bodies, dropped
connections. At the end SIGTERM is sent while accepted requests are in progress. Exits with code 1 if a response is not
the expected one. See README.md beside this file.

With --protocols, requests also use the protocols of Ollama, OpenAI, PhotoPrism, MCP and Label Studio, with a token. A
small Label Studio here serves the images; the servers may connect to nothing else.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from serve import Server, photographs, running

QUESTIONS = ("describe?top=10", "caption", "ground?text=a dog on the grass", "embed?regions=5")
GARBAGE = {"truncated": 415, "text": 415, "bomb": 415, "parameter": 422, "slow": 200, "dropped": 0}
"""Kinds of unsound requests, and the status that each gets."""
SLOW_SECONDS = 2.0
TOKEN, LABEL_STUDIO_TOKEN = "s3cret", "legacy"
CONFIG = """<View><Image name="image" value="$image"/><RectangleLabels name="label" toName="image"/>
<TextArea name="phrase" toName="image"/></View>"""
FIRST = """
import sys
def watch(event, given):
    host = given[1] if event == "socket.connect" else given[0] if event == "socket.getaddrinfo" else "127.0.0.1"
    if isinstance(host, tuple):
        host = f"{{host[0]}}:{{host[1]}}"
    if host not in ("127.0.0.1", {allowed!r}):
        open({file!r}, "a").write(f"{{event}} {{host}}\\n")
        raise OSError("this host may not be asked")
sys.addaudithook(watch)
"""
"""Writes down and refuses connections to other hosts, and questions for their names."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load the server and check for lost responses.")
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--garbage", type=float, default=0.01, help="share of invalid requests")
    parser.add_argument("--images", type=int, default=400, help="number of different images")
    parser.add_argument("--flood", type=int, default=300, help="concurrent clients of the flood at the end")
    parser.add_argument("--under-way", type=int, default=32, help="requests in progress at SIGTERM, at most 64")
    parser.add_argument("--alone", type=int, default=40, help="images that the library alone describes first")
    parser.add_argument("--protocols", action="store_true", help="also use the protocols of other programs")
    return parser.parse_args(arguments)


def bomb() -> bytes:
    """A PNG of a few hundred kilobytes that claims and has 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(20_001) * 20_000, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def in_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def chat(url: str) -> dict[str, Any]:
    content = [{"type": "text", "text": "Describe this."}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "saywhere", "messages": [{"role": "user", "content": content}]}


def generate(image: bytes, **more: Any) -> dict[str, Any]:
    return {"model": "saywhere", "prompt": "Describe this.", "images": [in_base64(image)], "stream": False, **more}


def task(path: str, *drawn: dict[str, Any]) -> dict[str, Any]:
    context = {"context": {"result": drawn}} if drawn else {}
    return {"tasks": [{"id": 1, "data": {"image": path}}], "label_config": CONFIG, "project": "1.1", "params": context}


def tool(name: str, image: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"image": image, **arguments}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


TEXT = {"type": "textarea", "value": {"text": ["a dog on the grass"]}}
PROTOCOLS: dict[str, tuple[str, int, Callable[[bytes, int], Any]]] = {
    "ollama sentence": ("/api/generate", 200, lambda image, _: generate(image)),
    "ollama labels": ("/api/generate", 200, lambda image, _: generate(image, format="json")),
    "ollama stream": ("/api/generate", 200, lambda image, _: generate(image, stream=True)),
    "openai chat": ("/v1/chat/completions", 200, lambda image, _: chat(f"data:image/jpeg;base64,{in_base64(image)}")),
    "openai responses": ("/v1/responses", 200, lambda image, _: {"model": "saywhere", "input": [{
        "role": "user", "content": [{"type": "input_image", "image_url": f"data:image/jpeg;base64,{in_base64(image)}"}],
    }]}),
    "photoprism": ("/api/v1/vision/labels", 200, lambda image, _: {
        "id": "1", "images": [f"data:image/jpeg;base64,{in_base64(image)}"],
    }),
    "label studio task": ("/predict", 200, lambda _, number: task(f"/data/upload/{number}.jpg")),
    "label studio text": ("/predict", 200, lambda _, number: task(f"/data/upload/{number}.jpg", TEXT)),
    "mcp describe": ("/mcp", 200, lambda _, number: tool("describe", f"{number % 6}.jpg")),
    "mcp ground": ("/mcp", 200, lambda _, number: tool("ground", f"{number % 6}.jpg", text="a dog on the grass")),
    "mcp crop": ("/mcp", 200, lambda _, number: tool("crop", f"{number % 6}.jpg", box=[9, 9, 90, 90])),
}  # fmt: skip
"""Requests in the languages of other programs: their path, the status of the answer, and the body as JSON."""
PROTOCOLS_GARBAGE: dict[str, tuple[str, int, Callable[[bytes, int], Any]]] = {
    "wrong token": ("/api/generate", 401, lambda image, _: generate(image)),
    "nested": ("/v1/chat/completions", 400, lambda *_: b"[" * 90_000),
    "not json": ("/mcp", 400, lambda *_: b"garbage"),
    "base64 text": ("/api/generate", 415, lambda *_: generate(b"I am not an image")),
    "base64 bomb": ("/api/generate", 415, lambda *_: generate(BOMB)),
    "foreign url": ("/v1/chat/completions", 400, lambda *_: chat("http://192.0.2.1/a.jpg")),
    "foreign task": ("/predict", 400, lambda *_: task("http://192.0.2.1/a.jpg")),
    "redirect": ("/predict", 422, lambda *_: task("/data/moved.jpg")),
    "outside": ("/mcp", 200, lambda *_: tool("describe", "../../etc/passwd")),
}


BOMB = bomb()


class LabelStudio(BaseHTTPRequestHandler):
    """A small Label Studio that serves images to requests with its token."""

    load: Load

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        moved, known = "moved" in self.path, self.headers["Authorization"] == f"Token {LABEL_STUDIO_TOKEN}"
        body = b"" if moved or not known else self.load.image(int(self.path.rpartition("/")[2].removesuffix(".jpg")))
        self.send_response(302 if moved else 200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        if moved:
            self.send_header("Location", "http://192.0.2.1/a.jpg")
        self.end_headers()
        self.wfile.write(body)


class Load:
    """The requests of the clients, and their responses."""

    def __init__(self, server: Server, options: argparse.Namespace, tools: Server | None = None) -> None:
        self.server, self.options, self.tools = server, options, tools
        self.bodies, self.bomb = photographs(), BOMB
        self.random = random.Random(0)
        kinds = [*GARBAGE, *(PROTOCOLS_GARBAGE if options.protocols else ())]
        questions = [*QUESTIONS, *(PROTOCOLS if options.protocols else ())]
        garbage = round(options.requests * options.garbage)
        plan = [kinds[i % len(kinds)] for i in range(garbage)]
        plan += [questions[i % len(questions)] for i in range(options.requests - garbage)]
        self.random.shuffle(plan)
        self.plan = [(kind, self.random.randrange(options.images)) for kind in plan]
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.milliseconds: list[float] = []
        self.memory: list[tuple[int, int]] = []
        self.own, self.lock = threading.local(), threading.Lock()

    def image(self, number: int) -> bytes:
        return self.bodies[number % len(self.bodies)] + f"{number}".encode()

    def ask(self, path: str, body: bytes, kind: str = "image/jpeg", token: str = TOKEN) -> tuple[int, bytes]:
        server = self.tools if path == "/mcp" and self.tools else self.server
        if self.tools or getattr(self.own, "connection", None) is None:  # of two, one closes what is idle
            self.own.connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
        headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
        try:
            self.own.connection.request("POST", path.replace(" ", "%20"), body, headers)
            response = self.own.connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException):
            self.own.connection = None
            raise

    def speak(self, kind: str, image: bytes, number: int) -> tuple[int, bytes]:
        """Send a request in another program's protocol."""
        path, _, make = {**PROTOCOLS, **PROTOCOLS_GARBAGE}[kind]
        asked = make(image, number)
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        return self.ask(path, body, "application/json", "wrong" if kind == "wrong token" else TOKEN)

    def raw(self, body: bytes, pause: float, whole: bool) -> int:
        """Send a body in two halves; return the status, or 0 if the connection is dropped after the first."""
        head = f"POST /v1/describe?top=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
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
        return self.ask(f"/v1/{path}", bodies.get(kind, body))

    def one(self, job: tuple[int, tuple[str, int]]) -> None:
        number, (kind, image) = job
        spoken = {**PROTOCOLS, **PROTOCOLS_GARBAGE}.get(kind)
        body, wanted = self.image(image), spoken[1] if spoken else GARBAGE.get(kind, 200)
        began = time.perf_counter()
        try:
            status, answer = self.speak(kind, body, image) if spoken else self.send(kind, body)
            first = json.loads(answer.splitlines()[0] if kind == "ollama stream" else answer)
            failed = first.get("error") or (kind.startswith(("mcp", "outside")) and first["result"].get("isError"))
            sound = status == wanted and bool(failed) == (status >= 400 or kind == "outside")
        except (OSError, HTTPException, ValueError, IndexError) as error:
            status, answer, sound = -1, repr(error).encode(), False
        took = 1000 * (time.perf_counter() - began)
        with self.lock:
            self.statuses[kind.partition("?")[0], status] += 1
            if kind not in GARBAGE and kind not in PROTOCOLS_GARBAGE:
                self.milliseconds.append(took)
            if not sound:
                self.wrong.append(f"{kind}: {status} {answer[:200]!r}")
            if number % 10 == 0:
                self.memory.append((number, sum(one.resident() for one in (self.server, self.tools) if one)))

    def run(self) -> float:
        """Run all requests and return the seconds they took."""
        began = time.perf_counter()
        with ThreadPoolExecutor(self.options.clients) as pool:
            list(pool.map(self.one, enumerate(self.plan)))
        return time.perf_counter() - began


def bare_milliseconds(model_name: str, bodies: Sequence[bytes], images: int) -> float:
    """Return the library's median time per image, in this process without load; the first quarter is not counted."""
    import saywhere
    from saywhere.images import read_image

    model = saywhere.load(model_name)
    times: list[float] = []
    for number in range(images):
        began = time.perf_counter()
        model.describe(read_image(bodies[number % len(bodies)], "image", model.long_side), top=10)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[images // 4 :])


def flood(load: Load, clients: int) -> tuple[Counter[int], float]:
    """Send requests from many clients at once; return statuses, and seconds until a request is answered again."""

    def one(number: int) -> int:
        status, _ = load.ask("/v1/describe", load.image(10**6 + number))
        return status

    with ThreadPoolExecutor(clients) as pool:
        statuses = Counter(pool.map(one, range(clients)))
    began = time.perf_counter()
    while load.ask("/v1/describe", load.image(0))[0] != 200:
        time.sleep(0.05)
    return statuses, time.perf_counter() - began


def stop_under_load(load: Load, count: int) -> tuple[Counter[int], int]:
    """Send SIGTERM while requests are in progress; return their statuses, -1 for a lost one, and the exit code.

    Each has sent half of its image, and the server has started to read it.
    """
    begun, stopped = threading.Barrier(count + 1), threading.Event()

    def one(number: int) -> int:
        body = load.image(2 * 10**6 + number)
        head = "POST /v1/describe HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        head += f"Authorization: Bearer {TOKEN}\r\n"
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


@contextmanager
def started(options: argparse.Namespace, folder: Path) -> Iterator[Load]:
    """Start the server, and for the protocols one for MCP and a Label Studio; ``connections`` gets other hosts."""
    with ExitStack() as stack:
        if not options.protocols:
            yield Load(stack.enter_context(running("--model", options.model, "--token", TOKEN)), options)
            return
        site = ThreadingHTTPServer(("127.0.0.1", 0), LabelStudio)
        threading.Thread(target=site.serve_forever, daemon=True).start()
        stack.callback(site.server_close)
        stack.callback(site.shutdown)
        address = f"127.0.0.1:{site.server_port}"
        os.environ["LABEL_STUDIO_API_KEY"] = LABEL_STUDIO_TOKEN
        first = FIRST.format(allowed=address, file=str(folder / "connections"))
        for number, image in enumerate(photographs()):
            (folder / "photos").mkdir(exist_ok=True)
            (folder / "photos" / f"{number}.jpg").write_bytes(image)
        both = ("--model", options.model, "--token", TOKEN)
        spoken = ("--protocols", "ollama,openai,photoprism", "--label-studio", f"http://{address}")
        server = stack.enter_context(running(*both, *spoken, first=first))
        tools = stack.enter_context(running(str(folder / "photos"), *both, command="mcp", first=first))
        LabelStudio.load = Load(server, options, tools)
        yield LabelStudio.load


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as name, started(options, Path(name)) as load:
        bare = bare_milliseconds(options.model, load.bodies, options.alone)
        seconds = load.run()
        ordered = sorted(load.milliseconds)
        print(f"{options.requests} requests of {options.clients} clients in {seconds:.0f} s")
        print(f"load of the machine {os.getloadavg()[0]:.1f}")
        for (kind, status), count in sorted(load.statuses.items()):
            print(f"  {kind:17} {status:4} {count:6}")
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
        others = Path(name, "connections").read_text().splitlines() if Path(name, "connections").exists() else []
        if options.protocols:
            print(f"connections to other hosts: {len(others)} {others[:3]}")
    sys.exit(1 if load.wrong or others or code or set(statuses) - {200, 429} or set(finished) != {200} else 0)


if __name__ == "__main__":
    main()
