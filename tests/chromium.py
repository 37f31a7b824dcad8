"""What the tests of pages need beside Python packages: Chromium, and ONNX Runtime for the page without a server."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from saywhere.web.runtime import PACKAGE, cache_folder

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 240_000
"""Milliseconds that the browser's start or an answer may take on a machine with other work: the server's 60 s, and the
page asks three times."""
FILES = """async files => {
    const transfer = new DataTransfer();
    for (const [name, data] of files) {
        const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], name, {type: name.endsWith('.txt') ? 'text/plain' : 'image/jpeg'}));
    }
    return transfer;
}"""


def do_without(reason: str) -> NoReturn:
    """Skip the test, whose reason pytest shows at the end; in CI, where nobody reads that, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium; a process can run one playwright at a time, so each file of tests has its own."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        do_without("there is no Chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=path, args=options, timeout=PATIENCE)
        yield browser
        browser.close()


def wait_for_paint(page: Page) -> None:
    """Wait until a page is ready and painted: Chromium drops keys and clicks that come before the first paint."""
    page.wait_for_selector("body[data-ready]")
    # A function: the page's policy forbids to evaluate a text, which the first look is exempt from and the next is not.
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")


def transfer(page: Page, files: dict[str, bytes]) -> Any:
    """What is pasted or dropped, with these files."""
    return page.evaluate_handle(FILES, [[name, base64.b64encode(data).decode()] for name, data in files.items()])


def drop(page: Page, **files: bytes) -> None:
    """Drop files on a page; ``_`` stands for the dot in their names."""
    given = transfer(page, {name.replace("_", "."): data for name, data in files.items()})
    page.dispatch_event("body", "drop", {"dataTransfer": given})


def web_runtime(*folders: Path) -> Path:
    """Return the package of ONNX Runtime for browsers that ``make test`` or ``saywhere export --web`` fetched."""
    places = folders or (Path(__file__).parents[1] / ".venv", cache_folder())
    found = next((folder / PACKAGE for folder in places if (folder / PACKAGE).is_file()), None)
    if found is None:
        do_without(f"{PACKAGE} was not fetched: make test does that if npm is installed")
    return found
