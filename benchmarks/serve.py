"""Measure images per second through ``saywhere serve`` and by the library, and how fast the page is ready.

    python benchmarks/serve.py [--model M] [--images N] [--rounds R] [--workers W] [--json FILE]

Every round describes the same images three times: by the library one after the other with all threads, by the library
on W threads, and through HTTP from 2 W clients, always with new contents, so that no encoding is cached. The page is
opened in Chromium if it and playwright are installed. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the program does; read when NumPy is imported

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "camera.png")
LONG_SIDE = 500


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure images per second through HTTP and by the library.")
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model")
    parser.add_argument("--images", type=int, default=48, help="images in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="threads of the server")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(arguments)


def photographs() -> list[bytes]:
    """Write photographs of scikit-image as JPEG files of a data set's size."""
    import skimage
    from PIL import Image

    files: list[bytes] = []
    for name in PHOTOGRAPHS:
        image = Image.open(Path(skimage.data_dir) / name).convert("RGB")
        image.thumbnail((LONG_SIDE, LONG_SIDE))
        stream = BytesIO()
        image.save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


class Server:
    """A running ``saywhere serve`` or other server; ``first`` is Python code that its process runs first."""

    def __init__(self, *options: str, command: str = "serve", first: str = "") -> None:
        code = f"{first}\nfrom saywhere.cli import main\nmain()"
        command_line = [sys.executable, "-c", code, command, "--port", "0", *options]
        began = time.perf_counter()
        self.process = subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        self.start_seconds = time.perf_counter() - began
        self.url = next(word for word in line.split() if word.startswith("http"))
        self.port = urlsplit(self.url).port or 0

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Return bytes of memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """Return the exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


@contextmanager
def running(*options: str, command: str = "serve", first: str = "") -> Iterator[Server]:
    server = Server(*options, command=command, first=first)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def timed(work: Callable[[], Any], cpu: Callable[[], float]) -> tuple[float, float]:
    """Return wall-clock and processor seconds."""
    wall, used = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - wall, cpu() - used


def measure(options: argparse.Namespace, server: Server) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each round by variant."""
    import saywhere
    from saywhere.images import read_image

    all_threads, one_thread = saywhere.load(options.model), saywhere.load(options.model, threads=1)
    bodies = photographs()
    serial = iter(range(10**9))

    def files() -> list[bytes]:
        """Return new files: bytes after a JPEG's end are not decoded, but change its hash."""
        return [bodies[i % len(bodies)] + f"{next(serial)}".encode() for i in range(options.images)]

    def describe(model: saywhere.Model, file: bytes) -> str:
        return json.dumps(model.describe(read_image(file, "image", model.long_side)).to_dict())

    def ask(file: bytes) -> None:
        connection = HTTPConnection("127.0.0.1", server.port)  # an old one may be closed: it is idle between rounds
        connection.request("POST", "/v1/describe", file)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        connection.close()

    found: dict[str, list[tuple[float, float]]] = {"one after the other": [], "threads": [], "http": []}
    with ThreadPoolExecutor(options.workers) as pool, ThreadPoolExecutor(2 * options.workers) as clients:
        ways: dict[str, tuple[Callable[[], Any], Callable[[], float]]] = {
            "one after the other": (lambda: [describe(all_threads, f) for f in files()], time.process_time),
            "threads": (lambda: list(pool.map(lambda f: describe(one_thread, f), files())), time.process_time),
            "http": (lambda: list(clients.map(ask, files())), server.cpu_seconds),
        }
        for number in range(options.rounds + 1):
            for way, (work, cpu) in ways.items():
                seconds = timed(work, cpu)
                if number:  # the first round warms up
                    found[way].append(seconds)
    return found


def page(server: Server, rounds: int) -> dict[str, Any]:
    """Return the page's bytes as transferred, and milliseconds until it is ready in Chromium, in each round."""
    connection = HTTPConnection("127.0.0.1", server.port)
    sizes: dict[str, int] = {}
    for path in ("/", "/page/page.css", "/page/page.js", "/page/overlay.js", "/page/server.js"):
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        body = connection.getresponse().read()
        assert gzip.decompress(body)
        sizes[path] = len(body)
    figures: dict[str, Any] = {"bytes": sum(sizes.values()), "files": len(sizes)}
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return figures
    if chromium is None:
        return figures
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        times: list[float] = []
        for _ in range(rounds + 1):
            context = browser.new_context()  # nothing of an earlier visit is kept
            tab = context.new_page()
            tab.goto(server.url)
            tab.wait_for_selector("body[data-ready]")
            times.append(tab.evaluate("Math.max(...performance.getEntries().map(e => e.responseEnd || e.duration))"))
            context.close()
        browser.close()
    return figures | {"ready_ms": times[1:]}


def main() -> None:
    options = parse()
    with running("--model", options.model, "--workers", str(options.workers)) as server:
        found = measure(options, server)
        of_page = page(server, options.rounds)
        print(f"{options.workers} workers, {options.rounds} rounds of {options.images} images")
        print(f"load of the machine {os.getloadavg()[0]:.1f}")
        print(f"{'':22} images/s   CPU ms an image")
        for way, rounds in found.items():
            rate = statistics.median(options.images / wall for wall, _ in rounds)
            cpu = statistics.median(1000 * used / options.images for _, used in rounds)
            print(f"{way:22} {rate:8.2f}   {cpu:8.1f}")
        library = [min(a, b) for (a, _), (b, _) in zip(found["one after the other"], found["threads"], strict=True)]
        ratios = [best / wall for best, (wall, _) in zip(library, found["http"], strict=True)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"http / better library, round by round: {shown}; median {statistics.median(ratios):.2f}")
        print(f"server started in {server.start_seconds:.2f} s, {server.resident() / 1e6:.0f} MB")
        print(f"page: {of_page['bytes'] / 1000:.1f} kB in {of_page['files']} files", end="")
        print(f", ready after {statistics.median(of_page['ready_ms']):.0f} ms" if "ready_ms" in of_page else "")
        if options.json is not None:
            options.json.write_text(json.dumps({"rounds": found, "ratios": ratios, "page": of_page}))


if __name__ == "__main__":
    main()
