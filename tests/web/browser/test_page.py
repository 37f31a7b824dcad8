"""The page without a server as a visitor has it: nothing is fetched from elsewhere, and the console stays silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chromium import PATIENCE, drop
from playwright.sync_api import Browser, Page, expect

import saywhere
from saywhere.images import read_image


@pytest.fixture(scope="module")
def model(as_rounded: saywhere.Model) -> saywhere.Model:
    return as_rounded


def test_a_page_opened_as_a_file_says_why_it_is_dead(browser: Browser, site: Path) -> None:
    dead = browser.new_page()
    dead.set_default_timeout(PATIENCE)
    dead.goto((site / "index.html").as_uri())
    expect(dead.locator("#unstarted")).to_be_visible()
    expect(dead.locator("#unstarted")).to_contain_text("it cannot run when opened as a file")
    expect(dead.locator("#unstarted code")).to_have_text("python3 -m http.server")
    dead.close()


def test_every_question_of_the_page(page: Page, photographs: dict[str, bytes], model: saywhere.Model) -> None:
    seen = model.encode(read_image(photographs["astronaut"], "image", model.long_side))
    expect(page.locator("#unstarted")).to_have_count(0)
    expect(page.locator("#model")).to_contain_text("Images stay in this browser.")
    drop(page, photo_png=photographs["astronaut"])
    regions = model.describe(seen, threshold=0.25).at_least()
    expect(page.locator("#region-list button > span")).to_have_text(list(regions.captions or ()))
    expect(page.locator("#tab-search")).to_be_hidden()
    stage = page.locator("#stage").bounding_box()
    first = page.locator("#boxes .box[data-number='0']").bounding_box()
    corner = [first["x"] - stage["x"], first["y"] - stage["y"]]
    np.testing.assert_allclose(np.array(corner) * 400 / stage["width"], regions.boxes[0, :2], atol=1.5)

    page.click("#tab-find")
    text = "a woman in an orange suit and a flag"
    page.locator("#text").fill(text)
    phrases = model.ground(seen, text, threshold=0).captions or ()
    expect(page.locator("#found-list button > span")).to_have_text(list(phrases))
    expect(page.locator("#find-note")).not_to_contain_text("probability")

    page.click("#tab-sentence")
    expect(page.locator("#words button")).to_have_text(list(model.caption(seen).words))
    page.locator("#words button").nth(1).hover()
    expect(page.locator("#heat")).to_be_visible()

    page.click("#tab-regions")
    page.click("#draw")
    stage = page.locator("#stage").bounding_box()  # drawing may have moved it into sight
    page.mouse.move(stage["x"] + 0.1 * stage["width"], stage["y"] + 0.2 * stage["height"])
    page.mouse.down()
    page.mouse.move(stage["x"] + 0.5 * stage["width"], stage["y"] + 0.9 * stage["height"], steps=4)
    page.mouse.up()
    expect(page.locator("#region-list button > span").first).to_contain_text("your box: ")

    page.click("#webcam")
    expect(page.locator("#status")).to_contain_text("Live")
    page.click("#webcam")
    expect(page.locator("#status")).to_contain_text("webcam-2.jpg: ")


def test_an_example_can_be_tried(page: Page) -> None:
    page.get_by_role("button", name="cat").click()
    expect(page.locator("#status")).to_contain_text("cat.jpg: ")
    expect(page.locator("#region-list button > span").first).to_contain_text("cat")
