"""Measure the page without a server in Chromium: bytes, seconds to the first result, time per image, correctness.

    python benchmarks/web.py [--model M] [--images FOLDER] [--count N] [--runtime FILE] [--json FILE]

Writes the page into a temporary folder, serves its files from this machine, opens it, drops an image, then processes
N more images, and compares every answer with Python's. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import base64
import functools
import io
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SUFFIXES = (".jpg", ".jpeg", ".png")
SHOWN = 0.3
"""Score of the regions that the page shows at first."""
DROP = """async data => {
    const transfer = new DataTransfer();
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
    transfer.items.add(new File([bytes], "photo.png", {type: "image/png"}));
    document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""
ASK = """async ([data, text]) => {
    const {Server} = await import("./page/server.js");
    window.own ??= new Server();
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
    const photo = {blob: new Blob([bytes], {type: "image/png"}), tag: null}, seconds = {}, answers = {};
    for (const [verb, parameters] of [["describe", {}], ["caption", {}], ["ground", {text}]]) {
        const began = performance.now();
        answers[verb] = await own.ask(verb, photo, parameters);
        seconds[verb] = (performance.now() - began) / 1000;
    }
    return {answers, seconds};
}"""
TEXT = "a man in a red shirt and a dog on the grass"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the page without a server in Chromium.")
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model")
    parser.add_argument("--images", type=Path, help="folder of images; those of scikit-image if it is not given")
    parser.add_argument("--count", type=int, default=20, help="number of images")
    parser.add_argument("--runtime", type=Path, help="onnxruntime-web package")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(arguments)


def photographs(folder: Path | None, count: int) -> list[bytes]:
    """Return images as PNG files, which Python and the browser decode alike, evenly spaced in a folder."""
    from PIL import Image

    if folder is None:
        import skimage

        folder = Path(skimage.data_dir)
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    files: list[bytes] = []
    for path in paths[:: max(1, len(paths) // count)][:count]:
        image = Image.open(path).convert("RGB")
        image.thumbnail((500, 500))
        stream = io.BytesIO()
        image.save(stream, "PNG")
        files.append(stream.getvalue())
    return files


class Files(SimpleHTTPRequestHandler):
    """Serve files and count the bytes of their contents."""

    sent: dict[str, int]

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        self.sent[self.path] = self.sent.get(self.path, 0) + len(data)
        outputfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Serve a folder; yield its address and the bytes sent of each file."""
    sent: dict[str, int] = {}
    handler = type("Counted", (Files,), {"sent": sent})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", sent
    server.shutdown()


def processor_seconds(browser: Any) -> float:
    """Return the processor seconds of all processes of the browser."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(process["cpuTime"] for process in found)


def agreement(model: Any, file: bytes, answers: dict[str, Any]) -> dict[str, Any]:
    """Return the differences between the browser's and Python's answers for an image."""
    import numpy as np

    from saywhere.images import read_image

    seen = model.encode(read_image(file, "image", model.long_side))
    regions, found = model.describe(seen, threshold=SHOWN), answers["describe"]
    shown = [i for i, score in enumerate(found["scores"]) if score >= SHOWN]
    captions = [found["captions"][i] for i in shown]
    distance = None  # of other regions it would say nothing
    if captions == list(regions.captions or ()):
        distance = float(np.abs(np.reshape([found["boxes"][i] for i in shown], (-1, 4)) - regions.boxes).max(initial=0))
    placed = model.ground(seen, TEXT, threshold=0)
    return {
        "words": captions == list(regions.captions or ()),
        "pixels": distance,
        "sentence": answers["caption"]["caption"] == model.caption(seen).sentence,
        "placed": bool(np.abs(np.array(answers["ground"]["boxes"]) - placed.boxes).max() <= 1),
    }


def measure(address: str, sent: dict[str, int], files: list[bytes], model: Any) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    coded = [base64.b64encode(file).decode() for file in files]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(600_000)
        began, used = time.perf_counter(), processor_seconds(browser)
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        ready = time.perf_counter() - began
        page.evaluate(DROP, coded[0])
        page.wait_for_selector("#stage.ready")
        first, first_used = time.perf_counter() - began, processor_seconds(browser) - used
        bytes_first = dict(sent)
        page.click("#tab-find")
        page.fill("#text", TEXT)
        page.wait_for_selector("#found-list button")
        page.click("#tab-sentence")
        page.wait_for_selector("#words button")
        bytes_all = dict(sent)
        page.close()
        page = browser.new_page()  # nothing of the page runs beside what is measured
        page.set_default_timeout(600_000)
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        page.goto(f"{address}NOTICES.txt")
        page.evaluate(ASK, [coded[0], TEXT])
        rows: list[dict[str, Any]] = []
        for file, data in zip(files, coded, strict=True):
            before = processor_seconds(browser)
            found = page.evaluate(ASK, [data, TEXT])
            row = {"seconds": found["seconds"], "cpu": processor_seconds(browser) - before}
            rows.append(row | agreement(model, file, found["answers"]))
        browser.close()
    return {
        "bytes_first": bytes_first, "bytes_all": bytes_all, "ready": ready, "first": first, "first_cpu": first_used,
        "images": rows,
    }  # fmt: skip


def report(figures: dict[str, Any]) -> None:
    """Print the results."""
    rows = figures["images"]
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    for name, text in (("bytes_first", "until the first result"), ("bytes_all", "with all tabs opened")):
        sizes = figures[name]
        print(f"{sum(sizes.values()) / 1e6:.2f} MB in {len(sizes)} files {text}")
    print(f"page ready after {figures['ready']:.2f} s, first result after {figures['first']:.2f} s", end="")
    print(f" ({figures['first_cpu']:.2f} s of processor, all processes)")
    for verb in ("describe", "caption", "ground"):
        seconds = [row["seconds"][verb] for row in rows]
        print(f"{verb:9} {1000 * statistics.median(seconds):.0f} ms an image (least {1000 * min(seconds):.0f})")
    print(f"all three {1000 * statistics.median(row['cpu'] for row in rows):.0f} ms of processor an image")
    near = [row["pixels"] for row in rows if row["pixels"] is not None]
    print(f"of {len(rows)} images as in Python: all words of the regions {sum(row['words'] for row in rows)}", end="")
    print(f", their boxes within 1 px {sum(p <= 1 for p in near)} (farthest {max(near, default=0):.2f} px)", end="")
    print(f", sentences {sum(row['sentence'] for row in rows)}, boxes of phrases {sum(row['placed'] for row in rows)}")


def main() -> None:
    options = parse()
    import saywhere
    from saywhere.web.site import write_site

    with tempfile.TemporaryDirectory() as folder:
        sizes = write_site(options.model, Path(folder), options.runtime)
        print(f"{sum(sizes.values()) / 1e6:.2f} MB in {len(sizes)} files")
        files, model = photographs(options.images, options.count), saywhere.load(options.model, threads=1)
        with serving(Path(folder)) as (address, sent):
            figures = measure(address, sent, files, model)
    report(figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
