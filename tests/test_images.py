from __future__ import annotations

import io
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from PIL import Image, ImageFile
from refusals import refuses

from saywhere.errors import UserError
from saywhere.images import (
    MAX_PIXELS,
    ImageError,
    LoadedImage,
    MissingImageError,
    Preprocess,
    measure,
    open_image,
    read_image,
)
from tests import photographs
from tests.photographs import TURNED


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    """Colours well inside the four quarters: top left, top right, bottom left, bottom right."""
    xs, ys = (image.width // 5, image.width - 1 - image.width // 5), (image.height // 5, image.height * 4 // 5)
    return [image.getpixel((x, y)) for y in ys for x in xs]


def near(colours, others, tolerance: int = 40) -> bool:
    return bool(np.abs(np.array(colours, dtype=int) - np.array(others, dtype=int)).max() <= tolerance)


def written(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


# Files that are no images


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("empty.jpg", b"", "empty file"),
        ("text.jpg", b"hello, world\n" * 20, "not an image in a known format"),
        ("film.jpg", b"\0\0\0\x18ftypisom" + b"\0" * 50, "not an image in a known format; it is a video"),
        *(
            (f"{kind}.bin", b"\0\0\0\x18ftyp" + kind.encode() + b"\0" * 50, "damaged image|known format")
            for kind in ("avif", "mif1")
        ),
        ("film", b"\x1aE\xdf\xa3" + b"\0" * 50, "not an image in a known format; it is a video"),
        ("film.png", b"RIFF\0\0\0\0AVI " + b"\0" * 50, "not an image in a known format; it is a video"),
        ("half.jpg", photographs.jpeg(photographs.noise(80, 60))[:3000], "damaged image (image file is truncated"),
        ("head.jpg", photographs.jpeg(photographs.noise(80, 60))[:300], "damaged image|not an image"),
        ("huge.png", photographs.huge_png_header(), "400 megapixels are over the limit of 150"),
        ("program.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
        ("nothing.png", photographs.png(0, 5, 8, 2, b""), "not an image|without pixels|damaged image"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path, name, data, reason):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ImageError) as caught:
        open_image(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert any(part in message for part in reason.split("|")), message
    assert ("it is a video" in message) == name.startswith("film")
    assert "\n" not in message
    assert isinstance(caught.value, UserError)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "huge.png"
    path.write_bytes(photographs.png(16_000, 10_000, 8, 2, b""))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert MAX_PIXELS < 16_000 * 10_000
    refuses("16000 x 10000 is over the limit of 150", open_image, path, kind=ImageError)


def test_a_large_image_below_the_limit_gives_no_warning(tmp_path, recwarn):
    path = tmp_path / "large.png"
    path.write_bytes(photographs.png(12_000, 10_000, 8, 2, b""))  # Pillow warns from 89 megapixels
    refuses("damaged", open_image, path, kind=ImageError)
    assert not [one for one in recwarn if issubclass(one.category, Image.DecompressionBombWarning)]


def test_missing_folder_pipe_and_unreadable(tmp_path, monkeypatch):
    refuses("no such file", open_image, tmp_path / "nowhere.jpg", kind=ImageError)
    refuses("is a folder", open_image, tmp_path, kind=ImageError)
    os.mkfifo(tmp_path / "pipe.jpg")
    refuses("not a regular file", open_image, tmp_path / "pipe.jpg", kind=ImageError)
    refuses("not a regular file", measure, tmp_path / "pipe.jpg", kind=ImageError)
    refuses("no such file", measure, tmp_path / "nowhere.jpg", kind=MissingImageError)
    refuses("cannot be read", open_image, "null\0byte.jpg", kind=ImageError)
    path = written(tmp_path / "secret.png", photographs.quarters())
    refuses("no such file", open_image, path / "below.jpg", kind=ImageError)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may read all
    refuses("no permission", open_image, path, kind=ImageError)


def test_random_damage_is_an_image_error_or_an_image(tmp_path):
    """Bytes of sound files overwritten at random: Pillow raises many things, we one."""
    random = np.random.default_rng(1)
    outcomes = {"image": 0, "error": 0}
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"):
        stream = io.BytesIO()
        photographs.noise(24, 24).save(stream, kind)
        for _ in range(25):
            data = bytearray(stream.getvalue())
            for place in random.integers(0, min(len(data), 200), 6):
                data[place] = random.integers(0, 256)
            path = tmp_path / "fuzzed"
            path.write_bytes(data)
            try:
                image = open_image(path)
                assert image.pixels.mode == "RGB"
                assert measure(path)[:2] == image.pixels.size == (image.width, image.height)
                outcomes["image"] += 1
            except ImageError:
                outcomes["error"] += 1
    assert min(outcomes.values()) > 10


# Kinds of pixels


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "P"])
def test_colours_survive(tmp_path, mode):
    image = photographs.quarters().convert(mode)
    path = written(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"), image)
    image = open_image(path)
    assert image.pixels.mode == "RGB" and (image.width, image.height) == (64, 32)
    assert near(corners(image.pixels), photographs.CORNERS, 60 if mode == "P" else 3)  # P: the nearest of 216 colours
    assert image.name == str(path)


def test_adobe_inverted_cmyk(tmp_path):
    """Photoshop stores the inks of a CMYK JPEG inverted, with an Adobe marker; Pillow writes them the same way."""
    data = photographs.jpeg(Image.new("CMYK", (8, 8), (255, 0, 0, 0)))
    assert b"Adobe" in data
    (tmp_path / "cyan.jpg").write_bytes(data)
    assert near([open_image(tmp_path / "cyan.jpg").pixels.getpixel((4, 4))], [(0, 255, 255)], 3)


def test_grey(tmp_path):
    for mode, value in (("L", 100), ("1", 1)):
        image = open_image(written(tmp_path / "a.png", Image.new(mode, (5, 4), value))).pixels
        assert image.getpixel((2, 2)) == ((100,) * 3 if mode == "L" else (255,) * 3)


def test_transparency_is_on_white(tmp_path):
    rgba = Image.new("RGBA", (4, 2), (200, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 0))
    rgba.putpixel((2, 0), (0, 0, 0, 128))
    pixels = open_image(written(tmp_path / "rgba.png", rgba)).pixels
    assert [pixels.getpixel((x, 0)) for x in range(3)] == [(200, 0, 0), (255, 255, 255), (127, 127, 127)]

    grey = Image.new("LA", (2, 1), (50, 255))
    grey.putpixel((1, 0), (0, 0))
    pixels = open_image(written(tmp_path / "la.png", grey)).pixels
    assert [pixels.getpixel((x, 0)) for x in range(2)] == [(50, 50, 50), (255, 255, 255)]

    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    for options in ({"transparency": 0}, {"transparency": b"\x00\xff"}):
        pixels = open_image(written(tmp_path / "p.png", palette, **options)).pixels
        assert [pixels.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (200, 100, 50)]

    rgb = Image.new("RGB", (2, 1), (1, 2, 3))
    rgb.putpixel((1, 0), (9, 9, 9))
    pixels = open_image(written(tmp_path / "key.png", rgb, transparency=(1, 2, 3))).pixels
    assert [pixels.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (9, 9, 9)]


def test_sixteen_bits(tmp_path):
    grey = Image.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16))
    for name in ("grey.png", "grey.tif"):
        pixels = open_image(written(tmp_path / name, grey)).pixels
        assert [pixels.getpixel((x, 0)) for x in range(3)] == [(0,) * 3, (100,) * 3, (255,) * 3]
    row = b"\0" + np.array([[257 * 200, 0, 65535], [257 * 7, 257, 0]], dtype=">u2").tobytes()
    (tmp_path / "rgb.png").write_bytes(photographs.png(2, 1, 16, 2, row))
    pixels = open_image(tmp_path / "rgb.png").pixels
    assert [pixels.getpixel((x, 0)) for x in range(2)] == [(200, 0, 255), (7, 1, 0)]


def test_integers_in_thirty_two_bits_have_the_range_that_holds_them(tmp_path):
    for number, largest in enumerate([255, 65535, 255 * 70000]):
        wide = Image.fromarray(np.array([[0, 100 * largest // 255, largest]], dtype=np.int32))
        pixels = open_image(written(tmp_path / f"{number}.tif", wide)).pixels
        assert [pixels.getpixel((x, 0))[0] for x in range(3)] == [0, 100, 255]
    assert open_image(Image.fromarray(np.zeros((2, 2), np.int32))).pixels.getpixel((0, 0)) == (0, 0, 0)


def test_float_images(tmp_path):
    unit = Image.fromarray(np.array([[0, 0.4, 1, np.nan]], dtype=np.float32))
    pixels = open_image(written(tmp_path / "a.tif", unit)).pixels
    assert [pixels.getpixel((x, 0))[0] for x in range(4)] == [0, 102, 255, 0]
    wide = Image.fromarray(np.array([[-5, 500, 1000]], dtype=np.float32))
    assert [open_image(wide).pixels.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_the_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (30, 20), colour) for colour in photographs.CORNERS]
    for name in ("a.gif", "a.png", "a.webp"):
        path = written(tmp_path / name, frames[0], save_all=True, append_images=frames[1:])
        assert near([open_image(path).pixels.getpixel((15, 10))], [photographs.CORNERS[0]], 12)


# Sizes and turns


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_exif_orientation(tmp_path, orientation, suffix):
    """A viewer shows the same image for all eight; so do we, and its size is the one shown."""
    stored = photographs.quarters(640, 320)
    if orientation in TURNED:
        stored = stored.transpose(TURNED[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = written(tmp_path / f"a{suffix}", stored, exif=exif)
    assert measure(path) == (640, 320, orientation)
    for long_side in (None, 100):
        image = open_image(path, long_side)
        assert (image.width, image.height) == (640, 320)
        assert (image.pixels.width > image.pixels.height) and near(corners(image.pixels), photographs.CORNERS)


@pytest.mark.parametrize("long_side", [None, 16])
def test_upright_pixels_are_not_turned_again(tmp_path, long_side):
    (tmp_path / "a.jpg").write_bytes(photographs.turned(0)[0])
    pixels = open_image(tmp_path / "a.jpg", long_side).pixels
    assert open_image(pixels).pixels.tobytes() == pixels.tobytes()
    assert open_image(pixels).pixels.size == pixels.size


def test_damaged_exif_is_ignored(tmp_path):
    data = photographs.jpeg(photographs.quarters(), exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff garbage")
    (tmp_path / "a.jpg").write_bytes(data)
    assert near(corners(open_image(tmp_path / "a.jpg").pixels), photographs.CORNERS)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1)])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_thin_images(tmp_path, size, suffix):
    path = written(tmp_path / f"a{suffix}", Image.new("RGB", size, (200, 100, 50)))
    for long_side in (None, 512):
        image = open_image(path, long_side)
        assert (image.width, image.height) == size
        assert near([image.pixels.getpixel((0, 0))], [(200, 100, 50)], 4)
    assert Preprocess(512, 32, (0, 0, 0), (1, 1, 1))(image).shape[0] == 3


def test_a_large_jpeg_is_decoded_small(tmp_path):
    """With ``long_side`` the pixels are reduced, not below it; the size is the full one."""
    path = written(tmp_path / "a.jpg", photographs.quarters(5_000, 3_200), quality=50)
    image = open_image(path, 720)
    assert (image.width, image.height) == (5_000, 3_200)
    assert 720 <= max(image.pixels.size) < 2 * 720
    assert near(corners(image.pixels), photographs.CORNERS, 12)


@pytest.mark.parametrize("long_side", [None, 100])
def test_a_file_in_memory_is_read_as_one_on_the_disk(tmp_path, long_side):
    path = written(tmp_path / "a.jpg", photographs.quarters(400, 200))
    on_disk, in_memory = open_image(path, long_side), read_image(path.read_bytes(), "b", long_side)
    assert in_memory.pixels.tobytes() == on_disk.pixels.tobytes()
    assert (in_memory.width, in_memory.height, in_memory.name) == (400, 200, "b")
    with pytest.raises(ImageError, match="b: 400 x 200 is over the limit"):
        read_image(path.read_bytes(), "b", long_side, max_pixels=79_999)
    for damaged in (b"", b"no image", path.read_bytes()[:500]):
        refuses(r"^b: ", read_image, damaged, "b", long_side, kind=ImageError)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".tif"])
@pytest.mark.parametrize("long_side", [100, 333, 999, 1000, 1001, 5000])
def test_long_side_never_goes_below(tmp_path, suffix, long_side):
    path = written(tmp_path / f"a{suffix}", photographs.quarters(1000, 700))
    image = open_image(path, long_side)
    assert (image.width, image.height) == (1000, 700)
    assert min(long_side, 1000) <= max(image.pixels.size) <= max(2 * long_side, 1000)
    assert max(image.pixels.size) < 1000 or long_side > 500
    assert image.pixels.width / image.pixels.height == pytest.approx(10 / 7, rel=0.02)
    assert near(corners(image.pixels), photographs.CORNERS)


# Phones and cameras


def heic(path: Path, image: Image.Image, **options: Any) -> Path:
    pytest.importorskip("pillow_heif").register_heif_opener()
    image.save(path, "HEIF", quality=90, **options)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_heic_is_turned_once_by_what_the_container_says(tmp_path, orientation):
    """The encoder writes ``irot`` and ``imir``; the EXIF orientation, which phones write as well, does not count."""
    image = photographs.quarters(640, 320)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = image.transpose(TURNED[orientation]) if orientation > 1 else image
    path = heic(tmp_path / "a.heic", stored, exif=exif.tobytes())  # the encoder knows the orientation of bytes alone
    assert orientation == 1 or {b"irot", b"imir"} & set(re.findall(b"i[rm][oi][tr]", path.read_bytes()))
    heic(tmp_path / "exif.heic", image, exif=exif)
    assert near(corners(open_image(tmp_path / "exif.heic").pixels), photographs.CORNERS)
    assert measure(path) == measure(tmp_path / "exif.heic") == (640, 320, 1)
    for opened in (open_image(path), open_image(path, 100), read_image(path.read_bytes(), "a", 100)):
        assert (opened.width, opened.height) == (640, 320)
        assert opened.pixels.width > opened.pixels.height and near(corners(opened.pixels), photographs.CORNERS)


def test_of_a_heic_the_primary_image_counts_and_transparency_is_on_white(tmp_path):
    others = [Image.new("RGB", (90, 60), colour) for colour in photographs.CORNERS]
    path = heic(tmp_path / "burst.heif", others[0], save_all=True, append_images=others[1:], primary_index=2)
    assert near([open_image(path).pixels.getpixel((45, 30))], [photographs.CORNERS[2]])
    clear = photographs.quarters(200, 100).convert("RGBA")
    clear.paste((0, 0, 0, 0), (0, 0, 100, 50))
    path = heic(tmp_path / "alpha.heic", clear)
    assert near(corners(open_image(path).pixels), [(255, 255, 255), *photographs.CORNERS[1:]])
    path = heic(tmp_path / "thumb.heic", photographs.quarters(800, 400), thumbnails=[256])
    for long_side, least in ((100, 100), (300, 300)):
        opened = open_image(path, long_side)
        assert (opened.width, opened.height) == (800, 400) and max(opened.pixels.size) >= least
        assert near(corners(opened.pixels), photographs.CORNERS)


def test_a_damaged_heic_and_a_bomb_are_told_in_one_line(tmp_path, monkeypatch):
    data = heic(tmp_path / "a.heic", photographs.noise(200, 100)).read_bytes()
    for length in (40, len(data) // 2):
        (tmp_path / "cut.heic").write_bytes(data[:length])
        refuses(r"cut.heic: (damaged image|not an image)", open_image, tmp_path / "cut.heic", kind=ImageError)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    sizes = (struct.pack(">4sI2I", b"ispe", 0, *size) for size in ((200, 100), (13_000, 13_000)))
    (tmp_path / "bomb.heic").write_bytes(data.replace(*sizes))
    with pytest.raises(ImageError, match="bomb.heic: 13000 x 13000 is over the limit of 150 megapixels"):
        open_image(tmp_path / "bomb.heic")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_previews_of_raw_files_are_turned_once(tmp_path, orientation):
    """A preview lies as the sensor does, or is upright already, with an EXIF block of its own or without."""
    pytest.importorskip("rawpy")
    image = photographs.quarters(800, 400)
    sensor = image.transpose(TURNED[orientation]) if orientation > 1 else image
    small = sensor.resize((sensor.width * 3 // 4, sensor.height * 3 // 4))
    exif = Image.Exif()
    exif[0x0112] = orientation
    previews = [photographs.jpeg(small), photographs.jpeg(small, exif=exif), b""]
    previews += [photographs.jpeg(image.resize((600, 300)))] if orientation >= 5 else []
    path = tmp_path / "a.dng"
    for preview in previews:
        path.write_bytes(photographs.dng(sensor, preview, orientation))
        assert measure(path) == (800, 400, orientation)
        for long_side in (None, 500, 100):
            opened = open_image(path, long_side)
            assert (opened.width, opened.height) == (800, 400)
            assert max(opened.pixels.size) >= min(long_side or 400, 600 if preview else 400)
            assert near(corners(opened.pixels), photographs.CORNERS, 40 if preview else 120)


def test_the_preview_of_a_raw_file_is_large_enough_and_of_all_of_it(tmp_path):
    """Else half of the sensor's pixels are taken. A RAW file is known by its content, too."""
    pytest.importorskip("rawpy")
    sensor, red = photographs.quarters(800, 400), (200, 0, 0)
    for size, long_side, shown in (
        ((200, 100), 150, True), ((200, 100), 300, False), ((200, 100), None, False), ((300, 300), 150, False),
        ((1600, 800), 700, False),
    ):  # fmt: skip
        preview = photographs.jpeg(Image.new("RGB", size, red))
        path = tmp_path / "a.tif"
        path.write_bytes(photographs.dng(sensor, preview))
        opened = open_image(path, long_side)
        assert (opened.width, opened.height) == (800, 400)
        assert near([opened.pixels.getpixel((5, 5))], [red], 12) == shown, size
        assert read_image(path.read_bytes(), "a", long_side).pixels.tobytes() == opened.pixels.tobytes()


def test_a_damaged_raw_file_and_a_bomb_are_told_in_one_line(tmp_path):
    pytest.importorskip("rawpy")
    data = photographs.dng(photographs.noise(80, 60), photographs.jpeg(photographs.noise(80, 60)))
    for name, content, reason in (
        ("cut.dng", data[: len(data) // 2], "damaged image"),
        ("none.cr2", b"II*\0\x10\0\0\0CR\2\0" + bytes(200), "damaged image"),
        ("bomb.dng", photographs.dng(photographs.noise(80, 60), b"", size=(20_000, 20_000)), "20000 x 20000 is over"),
    ):
        (tmp_path / name).write_bytes(content)
        refuses(f"{name}: {reason}", open_image, tmp_path / name, 50, kind=ImageError)


def test_without_the_extra_one_line_names_it(tmp_path, monkeypatch):
    for module in ("pillow_heif", "rawpy"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("a.heic", "b.HEIC", "c.cr3"):
        brand = b"crx " if name == "c.cr3" else b"heic"
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1" + brand + bytes(40))
        refuses(r"pip install 'saywhere\[photos\]'", open_image, tmp_path / name, kind=ImageError)
    written(tmp_path / "d.jpg", photographs.quarters())
    done = run("describe", tmp_path, "--json", tmp_path / "r.jsonl", code=1)
    assert "1 described" in done.output and "3 skipped" in done.output
    lines = [line for line in done.output.splitlines() if "saywhere[photos]" in line]
    assert len(lines) == 1 and f"skipped: {tmp_path}/a.heic and 2 more: " in lines[0]


# Images in memory


def test_arrays():
    values = np.asarray(photographs.quarters())
    for array in (values, values / 255, (values / 255).astype(np.float32)):
        image = open_image(array)
        assert np.array_equal(np.asarray(image.pixels), values)
        assert (image.width, image.height, image.name) == (64, 32, "<image>")
    assert open_image(np.full((3, 4), 9, np.uint8)).pixels.getpixel((0, 0)) == (9, 9, 9)
    assert open_image(np.full((3, 4, 1), 9, np.uint8)).pixels.getpixel((0, 0)) == (9, 9, 9)
    assert open_image(np.zeros((3, 4, 4), np.uint8)).pixels.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 2, 2), np.uint8), "shape"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((2, 2), np.int64), "dtype"),
        (np.full((2, 2), 1.5), "from 0 to 1"),
        (np.full((2, 2), -0.1), "from 0 to 1"),
        (np.full((2, 2), np.nan), "from 0 to 1"),
    ],
)
def test_bad_arrays(array, reason):
    refuses(reason, open_image, array, kind=ImageError)


def test_pil_images_and_images(tmp_path):
    quarters = photographs.quarters()
    image = open_image(quarters)
    assert image.pixels.tobytes() == quarters.tobytes()
    assert open_image(image) is image
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(written(tmp_path / "a.jpg", quarters, exif=exif)) as turned:
        image = open_image(turned)
    assert (image.width, image.height, image.name) == (32, 64, str(tmp_path / "a.jpg"))
    (tmp_path / "cut.jpg").write_bytes(photographs.jpeg(photographs.noise(80, 60))[:3000])
    with Image.open(tmp_path / "cut.jpg") as cut, pytest.raises(ImageError, match=r"cut\.jpg: damaged image"):
        open_image(cut)


# The way into a network


def test_preprocess_size():
    preprocess = Preprocess(512, 32, (0, 0, 0), (1, 1, 1))
    assert preprocess.size(1000, 500) == (512, 256)
    assert preprocess.size(500, 1000) == (256, 512)
    assert preprocess.size(300, 200) == (512, 352)
    assert preprocess.size(3000, 1) == (512, 32)


def test_preprocess_values():
    image = LoadedImage(Image.new("RGB", (8, 4), (255, 51, 0)), 8, 4)
    pixels = Preprocess(64, 32, (0.5, 0.2, 0.0), (0.5, 0.1, 2.0))(image)
    assert pixels.shape == (3, 32, 64)
    assert pixels[:, 5, 5].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    assert Preprocess(64, 32, (0.5, 0.2, 0.0), (0.5, 0.1, 2.0)).restore(pixels)[5, 5].tolist() == [255, 51, 0]
