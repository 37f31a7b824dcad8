"""What the tests of pages need beside Python packages: Chromium, and ONNX Runtime for the page without a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from saywhere.web.runtime import PACKAGE, cache_folder

NAMES = ("chromium", "chromium-browser", "google-chrome")
START = 240_000
"""Milliseconds that the browser may take to start on a machine with other work."""


def do_without(reason: str) -> NoReturn:
    """Skip the test, whose reason pytest shows at the end; in CI, where nobody reads that, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def chromium(patience: int) -> Iterator[Browser]:
    """Run Chromium; what is expected of a page may take ``patience`` milliseconds.

    A process can run one playwright at a time, so each file of tests has its own.
    """
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        do_without("there is no Chromium: apt-get install chromium")
    expect.set_options(timeout=patience)
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=path, args=options, timeout=START)
        yield browser
        browser.close()


def web_runtime(*folders: Path) -> Path:
    """Return the package of ONNX Runtime for browsers that ``make test`` or ``saywhere export --web`` fetched."""
    places = folders or (Path(__file__).parents[1] / ".venv", cache_folder())
    found = next((folder / PACKAGE for folder in places if (folder / PACKAGE).is_file()), None)
    if found is None:
        do_without(f"{PACKAGE} was not fetched: make test does that if npm is installed")
    return found
