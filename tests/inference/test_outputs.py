from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saywhere.errors import UserError
from saywhere.images import LoadedImage, open_image
from saywhere.inference import ImageResult, Outputs, ResultsFile, Source, find_images
from saywhere.inference.outputs import resized
from saywhere.regions import Regions
from tests import photographs


def result(source: Source) -> ImageResult[Regions]:
    image = open_image(source.path)
    return ImageResult(source, Regions(image.width, image.height, [[0, 0, 30, 20]], [0.5], ("a thing",)), image)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    photographs.quarters(100, 60).save(tmp_path / "a.png")
    return find_images([tmp_path / "a.png"])[0]


def test_an_image_of_a_line_that_lacks_it_is_written_from_the_line(tmp_path: Path, source: Source):
    folder = tmp_path / "out"
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        outputs = Outputs(lines, folder)
        assert outputs.long_side == 1600 and not outputs.lacks_image(source)
        outputs.keep(result(source))
        drawn = (folder / "a.png").read_bytes()
        (folder / "a.png").unlink()
        assert outputs.lacks_image(source)
        for one in outputs.read_back([source]):
            outputs.keep(one)
        assert (folder / "a.png").read_bytes() == drawn and len(lines) == 1
        assert (tmp_path / "r.jsonl").read_text().count("\n") == 1


def test_an_image_that_vanished_is_an_error_of_its_own(tmp_path: Path, source: Source):
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        outputs = Outputs(lines, tmp_path / "out")
        outputs.keep(result(source))
        source.path.unlink()
        assert [(one.result, one.error) for one in outputs.read_back([source])] == [(None, "no such file")]


def test_nothing_is_drawn_on_bare_images(tmp_path: Path, source: Source):
    outputs = Outputs(None, tmp_path / "out", bare=50)
    assert outputs.long_side == 50 and Outputs().long_side == 0
    outputs.keep(result(source))
    with Image.open(tmp_path / "out" / "a.png") as written:
        assert written.size == (50, 30)
        assert np.abs(np.array(written.getpixel((0, 0)), int) - photographs.CORNERS[0]).max() < 20
    with pytest.raises(ValueError, match="no file of results"):
        outputs.regions(source)


def test_originals_are_not_written_over(tmp_path: Path, source: Source):
    with pytest.raises(UserError, match="would be written over"):
        Outputs(None, tmp_path).check([source])
    with pytest.raises(UserError, match="cannot be made a folder"):
        Outputs(None, source.path).check([source])


def test_drawn_images_have_a_long_side_within_bounds():
    for size, expected in (((100, 50), (80, 40)), ((10, 5), (40, 20)), ((60, 30), (60, 30)), ((500, 1), (80, 1))):
        image = LoadedImage(Image.new("RGB", size), *size)
        assert resized(image, 40, 80).size == expected
