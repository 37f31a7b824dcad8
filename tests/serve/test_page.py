"""The page in a real Chromium, as a user has it: no request leaves the server, and the console stays silent."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import PATIENCE, chromium, drop, transfer, wait_for_paint
from local_server import served
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, Route, TimeoutError, expect
from server_process import Process

import saywhere
from saywhere.images import read_image
from saywhere.search.phrases import LIKELY

BUSY = re.compile("status of (422|429|503)")
"""Answers on a busy machine: it has other work, or a text was asked for whose last word was only half typed (422)."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


OTHER = """async ([image, verb]) => {
  const shown = await new Promise((done) => {
    const element = new Image();
    element.onload = () => done(true);
    element.onerror = () => done(false);
    element.src = image;
  });
  const sent = fetch(verb, {method: "POST", mode: "no-cors", body: "x"});
  return [shown, await sent.then((response) => response.type, () => "refused")];
}"""
"""What a page can do with a server that does not know it: an image in it, and a request that is not asked about."""


@pytest.fixture
def visit(browser: Browser, server: Process) -> Iterator[Callable[..., Page]]:
    """Open the page in a window of its own; in the end nothing was fetched from elsewhere and nothing complained."""
    said: list[str] = []
    contexts: list[BrowserContext] = []

    def request(address: str, url: str) -> None:
        if not address.startswith((f"{url}/", "blob:", "data:")):
            said.append(f"request of {address}")

    def complaint(kind: str, text: str) -> None:
        if kind in ("error", "warning") and not BUSY.search(text):  # which a machine with other work may well say
            said.append(text)

    def visit(url: str = server.url, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaint(message.type, message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda sent: request(sent.url, url.partition("/#")[0]))
        page.goto(url)
        wait_for_paint(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture
def page(visit: Callable[..., Page]) -> Page:
    return visit()


def describe(page: Page, photo: bytes) -> None:
    drop(page, photo_jpg=photo)
    page.wait_for_selector("#region-list button")


def phrases(page: Page, name: str = "region-list") -> list[str]:
    return page.locator(f"#{name} button > span").all_inner_texts()


def boxes(page: Page, size: int = 400) -> dict[int, list[float]]:
    """The boxes shown, by number, in pixels of an image of ``size`` x ``size``."""
    stage = page.locator("#stage").bounding_box()
    found: dict[int, list[float]] = {}
    for frame in page.locator("#boxes .box").all():
        area = frame.bounding_box()
        left, top = area["x"] - stage["x"], area["y"] - stage["y"]
        corners = [left, top, left + area["width"], top + area["height"]]
        found[int(frame.get_attribute("data-number") or 0)] = [v * size / stage["width"] for v in corners]
    return found


def test_a_dropped_image_has_boxes_and_phrases(
    page: Page, photo: bytes, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    describe(page, photo)
    every = model.describe(seen)
    assert phrases(page) == list(every.at_least().captions or ())
    page.locator("#score").fill("0.1")
    regions = every.at_least(0.1)
    expect(page.locator("#region-list button > span")).to_have_text(list(regions.captions or ()))
    shown, numbers = boxes(page), [i for i, one in enumerate(every) if one.score * one.caption_score >= 0.1]
    np.testing.assert_allclose([shown[i] for i in numbers], regions.boxes, atol=1)
    second = page.locator("#region-list button").nth(1)
    second.hover()
    expect(page.locator("#boxes .box.on")).to_have_attribute("data-number", str(numbers[1]))
    x1, y1, _, _ = shown[0]
    stage = page.locator("#stage").bounding_box()
    scale = stage["width"] / 400
    page.mouse.move(stage["x"] + (x1 + 4) * scale, stage["y"] + (y1 + 30) * scale, steps=3)
    expect(page.locator("#region-list button.on > span")).to_have_text((regions.captions or ("",))[0])
    page.locator("#score").fill("0.5")
    expect(page.locator("#region-list button")).to_have_count(len(model.describe(seen).at_least(0.5)))
    expect(page.locator("#score-value")).to_have_text("0.50")
    page.locator("#score").fill("1")
    expect(page.locator("#no-regions")).to_be_visible()


def test_a_busy_server_is_asked_again(page: Page, photo: bytes) -> None:
    asked = [0]

    def answer(route: Route) -> None:
        asked[0] += 1
        if asked[0] == 1:
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": "the server is busy"})
        else:
            route.continue_()

    page.route("**/v1/describe*", answer)
    describe(page, photo)
    assert asked == [2]


def test_a_text_is_grounded_as_it_is_typed(
    page: Page, photo: bytes, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    drop(page, photo_jpg=photo)
    page.click("#tab-find")
    text = "a woman, a person and a flurble zebra in a lake"
    page.locator("#text").press_sequentially(text, delay=20)
    found = model.ground(seen, text)
    assert len(found) and found.captions
    expect(page.locator("#found-list button > span")).to_have_text(list(found.captions))
    absent = [f"{phrase}not found" for phrase in found.not_found]
    absent += [f"{words}not used to place phrases" for words in found.unused]
    absent += [f"{word}the model does not know this word" for word in found.unknown]
    assert found.unknown == ("flurble",)
    expect(page.locator("#found-list .absent")).to_have_text(absent)
    shown = boxes(page)
    np.testing.assert_allclose([shown[i] for i in range(len(found))], found.boxes, atol=1)
    of_one_box: dict[int, list[str]] = {}
    for box, caption in zip(found.boxes, found.captions, strict=True):
        of_one_box.setdefault(found.boxes.tolist().index(box.tolist()), []).append(caption)
    assert any(len(captions) > 1 for captions in of_one_box.values())
    for first, captions in of_one_box.items():
        expect(page.locator(f'#boxes .box[data-number="{first}"] > span')).to_have_text("; ".join(captions))
    page.locator("#text").fill("")
    expect(page.locator("#found-list li")).to_have_count(0)


def test_a_drawn_box_is_described(page: Page, photo: bytes, model: saywhere.Model, seen: saywhere.Encoding) -> None:
    drop(page, photo_jpg=photo)
    page.wait_for_selector("#stage.ready")
    stage = page.locator("#stage").bounding_box()
    for (x, y), act in {(0.55, 0.6): page.mouse.down, (0.95, 0.98): page.mouse.up}.items():
        page.mouse.move(stage["x"] + stage["width"] * x, stage["y"] + stage["height"] * y, steps=4)
        act()
    expect(page.locator("#region-list button[aria-pressed=true]")).to_have_count(1)
    box = boxes(page)[-1]
    np.testing.assert_allclose(box, [220, 240, 380, 392], atol=1.5)
    with page.expect_download() as download:
        page.click("#save-json")
    saved = json.loads(Path(download.value.path()).read_text())
    assert saved["image"] == "photo.jpg" and download.value.suggested_filename == "photo-regions.json"
    assert model.describe(seen, saved["boxes"][:1]).captions == (saved["captions"][0],)
    assert phrases(page) == [f"your box: {saved['captions'][0]}", *saved["captions"][1:]]


def test_a_caption_is_shown_word_by_word(
    page: Page, photo: bytes, model: saywhere.Model, seen: saywhere.Encoding
) -> None:
    drop(page, photo_jpg=photo)
    page.click("#tab-sentence")
    words = model.caption(seen).words
    expect(page.locator("#words button")).to_have_text(list(words))
    expect(page.locator("#heat")).to_be_hidden()
    page.locator("#words button").nth(1).hover()
    expect(page.locator("#heat")).to_be_visible()
    dark = page.evaluate("Math.max(...heat.getContext('2d').getImageData(0, 0, heat.width, heat.height).data)")
    assert dark > 100
    page.mouse.move(5, 5)
    expect(page.locator("#heat")).to_be_hidden()
    page.click("#play")
    for number in (0, 1, 2):
        expect(page.locator("#words button").nth(number)).to_have_class("on")


def test_several_images_and_downloads(page: Page, photo: bytes) -> None:
    image = Image.open(io.BytesIO(photo)).rotate(90)
    stream = io.BytesIO()
    image.resize((300, 200)).save(stream, "JPEG")
    drop(page, first_jpg=photo, second_jpg=stream.getvalue())
    page.wait_for_selector("#region-list button")
    assert page.locator("#photos button").count() == 2
    page.locator("#photos button").nth(1).click()
    expect(page.locator("#status")).to_contain_text("second.jpg: ")
    with page.expect_download() as download:
        page.click("#save-image")
    assert Image.open(download.value.path()).size == (300, 200)
    pasted = transfer(page, {"third.jpg": photo})
    page.evaluate("data => document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data}))", pasted)
    expect(page.locator("#status")).to_contain_text("third.jpg: ")
    assert page.locator("#photos button").count() == 3


def test_a_search_shows_a_gallery(page: Page, model: saywhere.Model, indexed: Path) -> None:
    page.locator("#query").press_sequentially("a man on a motorcycle", delay=20)
    expect(page.locator("#hits li")).to_have_count(5)
    expect(page.locator("#examples")).to_be_hidden()
    with saywhere.Index(indexed, model) as index:
        hits = index.search("a man on a motorcycle")
    moments = {None: "", 0.0: " at 0:00", 1.0: " at 0:01"}
    assert {hit.time for hit in hits} == moments.keys()
    names = [f"{Path(hit.image).name}{moments[hit.time]}" for hit in hits]
    expect(page.locator("#hits .caption")).to_have_text(names)
    expect(page.locator("#hits li:first-child .box")).to_have_count(len(hits[0].regions))
    page.wait_for_function("() => [...document.querySelectorAll('#hits img')].every(i => i.naturalWidth === 400)")
    chances = [hit.probability or 0 for hit in hits]
    pale = [chance < LIKELY for chance in chances]
    assert not pale[0] and pale[-1]
    notes = [f"{chance:.2f}{', probably not' if low else ''}" for chance, low in zip(chances, pale, strict=True)]
    assert page.locator("#hits small").all_inner_texts() == notes
    shown = page.locator("#hits button").evaluate_all("all => all.map(b => b.classList.contains('unlikely'))")
    assert shown == pale
    expect(page.locator("#search-status")).not_to_contain_text("probably")
    page.locator("#query").fill("a submarine")
    expect(page.locator("#search-status")).to_contain_text("5 images; probably not there: no image shows all of this")
    expect(page.locator("#hits .unlikely")).to_have_count(5)
    page.locator("#query").fill("a cat + a zzyx")
    expect(page.locator("#search-status")).to_contain_text("words that the model does not know, or hardly: zzyx")
    page.locator("#query").fill("a girafe + surfing")
    expect(page.locator("#search-status")).to_contain_text(
        "not know, or hardly: girafe (did you mean giraffe?); no thing is named"
    )
    page.locator("#query").fill("a man on a motorcycle")
    expect(page.locator("#search-status")).not_to_contain_text("probably")
    with saywhere.Index(indexed, model) as index:
        others = index.search("a man on a motorcycle", without="a cat")
    assert 0 < len(others) < 5
    page.locator("#without").fill("a cat")
    expect(page.locator("#hits li")).to_have_count(len(others))
    count = others[0].left_out or 0
    left_out = f"{count} image{'' if count == 1 else 's'} left out because of unwanted things"
    expect(page.locator("#search-status")).to_contain_text(left_out)
    names = [f"{Path(hit.image).name}{moments[hit.time]}" for hit in others]
    expect(page.locator("#hits .caption")).to_have_text(names)
    page.locator("#without").fill("")
    expect(page.locator("#hits li")).to_have_count(5)
    page.locator("#hits button").first.click()
    expect(page.locator("#tab-find")).to_have_attribute("aria-selected", "true")
    page.wait_for_selector("#found-list li")
    assert page.locator("#photo").get_attribute("alt") == Path(hits[0].image).name


def test_an_image_that_is_gone_is_named_on_its_card(page: Page) -> None:
    page.evaluate("""() => {
        const real = window.fetch;
        let first = true;
        window.fetch = (path, options) => {
            if (!path.startsWith("v1/search/image") || !first) return real(path, options);
            first = false;
            return Promise.resolve(new Response('{"error": "a.jpg is gone"}', {status: 404}));
        };
    }""")
    page.locator("#query").fill("a submarine")
    expect(page.locator("#hits .gone")).to_have_count(1)
    expect(page.locator("#hits .gone")).to_contain_text("a.jpg is gone")
    expect(page.locator("#search-status")).to_contain_text("5 images; probably not there: ")
    expect(page.locator("#alert")).to_be_empty()


def test_an_image_that_comes_before_the_model_is_known_stays_in_sight(
    browser: Browser, server: Process, photo: bytes
) -> None:
    context, held = browser.new_context(), list[Route]()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/v1/models", lambda route: held.append(route))
    page.goto(server.url)
    page.wait_for_function("() => !document.getElementById('unstarted')")
    describe(page, photo)
    held[0].continue_()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#tab-regions")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#region-list")).to_be_visible()
    context.close()


def test_an_example_can_be_tried(visit: Callable[..., Page], model: saywhere.Model) -> None:
    with Process() as server:
        page = visit(server.url)
        examples = page.locator("#examples button")
        assert examples.count() == 4 and page.locator("#examples").is_visible()
        for image in page.locator("#examples img").all():
            expect(image).to_have_js_property("naturalWidth", 400)
        page.get_by_role("button", name="cat").focus()
        page.keyboard.press("Enter")
        data = resources.files("saywhere.serve").joinpath("page", "cat.jpg").read_bytes()
        captions = model.describe(read_image(data, "image", model.long_side), threshold=0.25).at_least().captions
        expect(page.locator("#region-list button > span")).to_have_text(list(captions or ()))
        assert page.locator("#photo").get_attribute("alt") == "cat.jpg"
        expect(page.locator("#examples")).to_be_hidden()


def test_what_is_no_file_or_no_image_is_named(page: Page, photo: bytes) -> None:
    drop(page)
    expect(page.locator("#alert")).to_contain_text("That is no file")
    drop(page, notes_txt=b"not an image")
    expect(page.locator("#alert")).to_have_text("notes.txt is not an image")
    drop(page, photo_jpg=photo, notes_txt=b"not an image")
    page.wait_for_selector("#region-list button")
    expect(page.locator("#alert")).to_have_text("notes.txt is not an image")


def test_an_image_that_cannot_be_read_is_named_in_sight_and_no_longer_than_it_is_shown(
    page: Page, photo: bytes
) -> None:
    describe(page, photo)
    page.route("**/v1/describe*", lambda route: route.fulfill(status=422, json={"error": "image: damaged image"}))
    drop(page, broken_jpg=b"no image")
    expect(page.locator("#alert")).to_have_text("broken.jpg: damaged image")
    expect(page.locator("#alert")).to_be_in_viewport()
    page.locator("#photos button").nth(0).click()
    expect(page.locator("#status")).to_contain_text("photo.jpg: ")
    expect(page.locator("#alert")).to_be_empty()


def test_an_image_that_only_the_server_can_read_is_said_to_be_such(page: Page, photo: bytes) -> None:
    stream = io.BytesIO()
    Image.open(io.BytesIO(photo)).save(stream, "TIFF")
    drop(page, scan_tif=stream.getvalue())
    expect(page.locator("#status")).to_contain_text("this browser cannot show the file")
    page.click("#save-image")
    expect(page.locator("#alert")).to_contain_text("cannot draw on it")


def test_the_webcam_is_described_live(page: Page) -> None:
    page.click("#webcam")
    expect(page.locator("#status")).to_contain_text("Live")
    expect(page.locator("#video")).to_be_visible()
    page.locator("#score").fill("0")
    page.wait_for_selector("#region-list button")
    page.click("#webcam")
    expect(page.locator("#status")).to_contain_text("webcam-1.jpg: ")
    expect(page.locator("#video")).to_be_hidden()


def test_the_keyboard_suffices(page: Page, photo_path: Path) -> None:

    def focus(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} is not reached")

    page.on("filechooser", lambda chooser: chooser.set_files(photo_path))
    for _ in range(6):  # A busy machine may lose the dialog, which belongs to the browser and not to the page.
        focus("#files")
        page.keyboard.press("Space")
        with suppress(TimeoutError):
            page.wait_for_selector("#region-list button", timeout=PATIENCE / 24)
            break
    focus("#region-list button")
    expect(page.locator("#boxes .box.on")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#region-list button[aria-pressed=true]")).to_have_count(1)
    focus("#draw")
    page.keyboard.press("Enter")
    expect(page.locator("#pen")).to_be_focused()
    for key in ("ArrowLeft", "Shift+ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#region-list button > span").first).to_contain_text("your box: ")
    expect(page.locator("#draw")).to_be_focused()
    focus("[role=tab]")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-find")).to_be_focused()
    for key, name in (("End", "search"), ("ArrowRight", "regions"), ("ArrowLeft", "search"), ("Home", "regions")):
        page.keyboard.press(key)
        expect(page.locator(f"#tab-{name}")).to_be_focused()
    page.keyboard.press("ArrowRight")
    focus("#text")
    page.keyboard.type("a woman")
    expect(page.locator("#found-list li")).to_have_count(1)


def test_a_phone_in_the_dark(visit: Callable[..., Page], photo: bytes) -> None:
    page = visit(viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True, is_mobile=True)
    describe(page, photo)
    page.locator("#score").fill("0.1")  # more than one phrase
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in background[4:-1].split(",")) < 40
    sides = [page.locator(name).bounding_box() for name in ("#stage", "#region-list", "#downloads")]
    stage, listed, downloads = [(area["y"], area["height"]) for area in sides if area]
    assert stage[0] >= 0 and stage[1] > 0.3 * 844 and listed[0] >= sum(stage) and listed[1] > 0.1 * 844
    assert sum(listed) <= downloads[0] and sum(downloads) <= 844  # image, phrases and buttons on one screen
    page.locator("#region-list button").first.tap()
    expect(page.locator("#boxes .box.on")).to_have_count(1)
    for control in page.locator("button:visible, input:visible:not(.unseen), label.button").all():
        area = control.bounding_box()
        assert area and (area["height"] >= 24 or control.get_attribute("type") == "range")


CONTRAST = """() => {
    const light = colour => {
        const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255);
        const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = node => {
        const colour = getComputedStyle(node).backgroundColor;
        return colour !== 'rgba(0, 0, 0, 0)' || !node.parentElement ? colour : ground(node.parentElement);
    };
    const texts = [...document.querySelectorAll('h1, p, label, button, output, small, span')];
    return texts.filter(node => node.offsetParent && node.textContent.trim() && !node.closest('#boxes')).map(node => {
        const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
        return [node.textContent.trim().slice(0, 20), (a + 0.05) / (b + 0.05)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(visit: Callable[..., Page], photo: bytes, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    describe(page, photo)
    for tab in ("regions", "find", "sentence"):
        page.click(f"#tab-{tab}")
        weak = [(text, round(ratio, 2)) for text, ratio in page.evaluate(CONTRAST) if ratio < 4.5]
        assert weak == []
        tree = page.locator("main").aria_snapshot()
        assert 'tab "Regions"' in tree and f'tabpanel "{tab.capitalize()}"' in tree
        nameless = ("- button", "- textbox", "- searchbox", "- slider", "- img")
        assert not [line for line in tree.splitlines() if line.strip() in nameless]


def test_a_token_is_asked_for_once(visit: Callable[..., Page], photo: bytes) -> None:
    with Process("--token", "s3cret") as server:
        page = visit(f"{server.url}/#token=s3cret")
        describe(page, photo)
        assert "s3cret" not in page.url


def test_a_wrong_token_is_said_to_be_wrong(browser: Browser) -> None:
    with Process("--token", "s3cret") as server, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(server.url)
        expect(page.locator("#token-wrong")).to_be_hidden()
        page.fill("#token", "s3cre")
        page.keyboard.press("Enter")
        expect(page.locator("#token-wrong")).to_be_visible()
        page.fill("#token", "s3cret")
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready]")
        expect(page.locator("#token-dialog")).to_be_hidden()


def test_a_page_of_another_port_gets_nothing(
    browser: Browser, server: Process, model: saywhere.Model, indexed: Path, tmp_path: Path
) -> None:
    with saywhere.Index(indexed, model) as index:
        entry = index.search("a cat")[0].entry
    (tmp_path / "index.html").write_text("<title>Other</title>")
    refused: list[tuple[str, str | None]] = []
    with served(tmp_path) as other, browser.new_context() as context:
        page = context.new_page()
        page.on("requestfailed", lambda request: refused.append((request.url.partition("/v1/")[2], request.failure)))
        page.goto(other)
        shown = page.evaluate(OTHER, [f"{server.url}/v1/search/image?entry={entry}", f"{server.url}/v1/describe"])
    assert shown == [False, "refused"]
    reason = "net::ERR_BLOCKED_BY_RESPONSE.NotSameOrigin"
    assert refused == [(f"search/image?entry={entry}", reason), ("describe", reason)]
