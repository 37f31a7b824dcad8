"""The page without a server, as files and in a real Chromium."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import skimage
from chromium import PATIENCE, chromium, wait_for_paint, web_runtime
from local_server import served
from PIL import Image
from playwright.sync_api import Browser, Page
from safetensors.numpy import load_file, save_file

import saywhere
from saywhere.calibration import FILE as CALIBRATION
from saywhere.models.bundle import CONFIG, GRAPH, GRAPH_WEIGHTS, VOCABULARY, WEIGHTS, find_folder
from saywhere.networks import checkpoint
from saywhere.stages.kinds import copy_model
from saywhere.web.site import MOST_HYPOTHESES, SMALL, shrunk, write_site

PHOTOGRAPHS = {
    "astronaut": (400, 400), "chelsea": (451, 300), "coffee": (600, 400), "motorcycle_left": (900, 600),
    "rocket": (640, 427),
}  # fmt: skip
"""Photographs of scikit-image, and the sizes that they have here; one is more than twice as large as the network's."""


@pytest.fixture(scope="session")
def as_the_page() -> dict[str, float]:
    """Options of a model as the page has it: the likeliest caption and phrases of a few, with all their words."""
    weights = {f"captioner.{name}": 0.0 for name in ("similarity_weight", "seen_weight", "ngrams.weight")}
    of_phrases = ("similarity_weight", "noun_weight", "ngrams.weight", "person_threshold", "colour_threshold")
    weights |= {f"densecap.{name}": 0.0 for name in of_phrases}
    return weights | {"captioner.decoding.beam_size": MOST_HYPOTHESES}


@pytest.fixture(scope="session")
def as_rounded(tmp_path_factory: pytest.TempPathFactory, as_the_page: dict[str, float]) -> saywhere.Model:
    """The bundled model with the weights that the browser gets."""
    source, folder = find_folder(saywhere.DEFAULT_MODEL), tmp_path_factory.mktemp("rounded")
    for name in (CONFIG, VOCABULARY, CALIBRATION, GRAPH, GRAPH_WEIGHTS):
        (folder / name).symlink_to(source / name)
    arrays = load_file(source / WEIGHTS)
    for name, values in arrays.items():
        if values.ndim > 1 and values.size > SMALL and not name.startswith(("trunk.", "aligner.")):
            arrays[name] = shrunk(name, values).unpacked()
    save_file(arrays, folder / WEIGHTS)
    return saywhere.load(folder, threads=1, options=as_the_page)


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The package of ONNX Runtime that ``make test`` fetched."""
    return web_runtime()


@pytest.fixture(scope="session")
def site(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the bundled model."""
    folder = tmp_path_factory.mktemp("site")
    write_site(saywhere.DEFAULT_MODEL, folder, runtime)
    return folder


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the page's files are served."""
    with served(site) as address:
        yield address


@pytest.fixture(scope="module")
def finetuned(browser: Browser, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """As ``engine``, for the bundled model with other phrases and scores, those from before, and a name of its own."""
    folder = tmp_path_factory.mktemp("finetuned")
    copy_model(find_folder(saywhere.DEFAULT_MODEL), folder / "model")
    parts = ("phrase_head.", "decoder.")
    stored = checkpoint.read_weights(folder / "model")
    own = {name.removeprefix("densecap."): value for name, value in stored.items() if name.startswith("densecap.")}
    layers = {name: value for name, value in own.items() if name.startswith(parts)}
    weights = {**own, **{f"start.{name}": value.clone() for name, value in layers.items()}}
    score = {name: value for name, value in own.items() if name.startswith("region_head.score.")}
    weights |= {name.replace("region_head", "start"): value for name, value in score.items()}
    weights |= {name: -value for name, value in score.items()}
    weights |= {name: value.flip(0) if name.endswith("output.bias") else value for name, value in layers.items()}
    options = {
        "finetuned": True, "own_names": {"space farer": "woman"},
        "own_words": {"black": "pizza", "red": ""},  # nothing is black without pizza
    }  # fmt: skip
    named = {f"densecap.{name}": value for name, value in options.items()}
    checkpoint.change_weights(folder / "model", "densecap", weights, named)
    write_site(folder / "model", folder / "site", runtime)
    with served(folder / "site") as address, opened(browser, address, "NOTICES.txt") as page:
        yield page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one file of tests."""
    with chromium() as browser:
        yield browser


@contextmanager
def opened(browser: Browser, address: str, path: str) -> Iterator[Page]:
    """A file of the site in a window of its own; in the end nothing came from elsewhere, and nothing complained."""
    said: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    own = (address, "blob:", "data:")
    context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # a text has none
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    context.on("request", lambda sent: None if sent.url.startswith(own) else said.append(sent.url))
    page.goto(f"{address}/{path}")
    yield page
    context.close()
    assert said == []


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page as a visitor has it."""
    with opened(browser, address, "") as page:
        wait_for_paint(page)
        yield page


@pytest.fixture(scope="module")
def engine(browser: Browser, address: str) -> Iterator[Page]:
    """A window of the same origin that runs what a test asks for, and no page."""
    with opened(browser, address, "NOTICES.txt") as page:
        yield page


@pytest.fixture(scope="session")
def photographs() -> dict[str, bytes]:
    """PNG files, which all programs decode to the same pixels."""
    files: dict[str, bytes] = {}
    for name, size in PHOTOGRAPHS.items():
        path = next(Path(skimage.data_dir).glob(f"{name}.*"))
        stream = io.BytesIO()
        Image.open(path).convert("RGB").resize(size).save(stream, "PNG")
        files[name] = stream.getvalue()
    return files
