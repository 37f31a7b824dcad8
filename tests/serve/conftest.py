"""What the tests of the server share: the bundled model, a photograph, and a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import skimage
from photographs import jpeg
from PIL import Image
from server_process import Process, be_patient
from video_clips import Timed, write_clip

import saywhere
from saywhere.images import read_image

be_patient()


@pytest.fixture(scope="session")
def model() -> saywhere.Model:
    return saywhere.load(threads=1)


@pytest.fixture(scope="session")
def photo_path() -> Path:
    return Path(skimage.data_dir) / "astronaut.png"


@pytest.fixture(scope="session")
def photo(photo_path: Path) -> bytes:
    """A photograph of 400 x 400 pixels as a JPEG of the best quality, a region of which is surely right."""
    return jpeg(Image.open(photo_path).convert("RGB").resize((400, 400)), quality=100, subsampling=0)


@pytest.fixture(scope="session")
def seen(model: saywhere.Model, photo: bytes) -> saywhere.Encoding:
    return model.encode(read_image(photo, "image", model.long_side))


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory, model: saywhere.Model) -> Path:
    """An index of three photographs and two moments of a video."""
    folder = tmp_path_factory.mktemp("indexed")
    for name in ("astronaut.png", "chelsea.png", "motorcycle_left.png"):
        image = Image.open(Path(skimage.data_dir) / name).convert("RGB")
        image.resize((400, 300)).save(folder / name.replace(".png", ".jpg"))
    shown = [Image.open(Path(skimage.data_dir) / name).convert("RGB") for name in ("coffee.png", "rocket.jpg")]
    write_clip(folder / "clip.mp4", (Timed(time / 2, shown[time // 2].resize((400, 300))) for time in range(4)))
    with saywhere.Index(folder / "index", model) as index:
        index.add([folder], every=0.5)
        assert len(index) == 5
    return folder / "index"


@pytest.fixture(scope="session")
def server(indexed: Path) -> Iterator[Process]:
    running = Process("--index", str(indexed))
    yield running
    if running.process.poll() is None:
        running.stop()
