"""Pixels that Pillow gives wrong, and the memory that decoding takes."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import photographs
import pytest
from PIL import Image
from refusals import refuses

from saywhere import pixels
from saywhere.images import ImageError, read_image
from saywhere.pixels import BUDGET, DECODING, Budget

RANDOM = np.random.default_rng(1)


def opened(data: bytes, long_side: int | None = None) -> np.ndarray:
    return np.asarray(read_image(data, "a", long_side).pixels).astype(int)


def random_values(kind: str, *shape: int) -> np.ndarray:
    """Values over the whole range of a type; of numbers with a sign some are below zero."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return RANDOM.random(shape).astype(dtype)
    least = np.iinfo(dtype).min // 4 if dtype.kind == "i" else 0
    return RANDOM.integers(least, np.iinfo(dtype).max, shape, dtype.newbyteorder("="), endpoint=True).astype(dtype)


def means_the_same(data: bytes, values: np.ndarray, path: Path, planes: int = 1) -> None:
    """Check with a decoder that has nothing to do with Pillow, where it is installed, that a file has these values."""
    if importlib.util.find_spec("tifffile") is None:
        return
    path.write_bytes(data)
    found = importlib.import_module("tifffile").imread(path)
    np.testing.assert_array_equal(np.moveaxis(found, 0, 2) if planes == 2 else found, values)


UNSIGNED, SIGNED = ("u1", "<u2", ">u2", "<u4", ">u4", "<f4", ">f4"), ("i1", "<i2", ">i2", "<i4", ">i4")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("kind", "white"), [*((kind, white) for kind in UNSIGNED for white in "01"), *((kind, "0") for kind in SIGNED)]
)
def test_grey_tiffs_of_every_depth_and_order(tmp_path, kind, white, packed):
    """Where the least value is white, too; what is below zero is black."""
    values = random_values(kind, 10, 7)
    data = photographs.tiff(values, 1 - int(white), packed=packed)
    means_the_same(data, values, tmp_path / "a.tif")
    shown = values.astype(float).clip(0)
    top = 1 if kind.endswith("f4") else {1: 255, 2: 65535, 4: shown.max()}[values.dtype.itemsize]
    levels = shown / top * 255
    expected = 255 - levels if white == "1" else levels
    assert np.abs(opened(data) - expected[:, :, None]).max() <= 1


def test_twelve_bits():
    values = random_values("u2", 4, 6) >> 4
    nibbles = "".join(f"{value:03x}" for value in values.flat)
    data = photographs.tiff(values, 1, bits=12, data=bytes.fromhex(nibbles))
    assert np.abs(opened(data) - (values / 4095 * 255)[:, :, None]).max() <= 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("extra", [None, 2])
@pytest.mark.parametrize("kind", ["u1", "<u2", ">u2"])
def test_colours_in_planes_and_side_by_side(tmp_path, kind, extra, planes, packed):
    values = random_values(kind, 10, 7, 3 if extra is None else 4)
    data = photographs.tiff(values, 2, planes=planes, packed=packed, extra=extra)
    means_the_same(data, values, tmp_path / "a.tif", planes)
    levels = values.astype(float) / np.iinfo(values.dtype).max * 255
    alpha = levels[:, :, 3:] / 255 if extra else np.ones(1)
    expected = levels[:, :, :3] * alpha + 255 * (1 - alpha)
    assert np.abs(opened(data) - expected).max() <= 2


def test_colours_that_are_fewer_than_pixels_are_no_noise():
    values = random_values("u1", 8, 8, 3)
    whole = photographs.tiff(values, 6, data=values.tobytes())
    expected = np.asarray(Image.frombytes("YCbCr", (8, 8), values.tobytes()).convert("RGB"))
    assert np.array_equal(opened(whole), expected)
    fewer = photographs.tiff(values, 6, data=values.tobytes()[:96])
    refuses("YCbCr with fewer colours than pixels", read_image, fewer, "a", kind=ImageError)


def packed_rows(values: np.ndarray, depth: int) -> bytes:
    """The rows of a PNG, each after its filter byte."""
    rows = []
    for row in values.reshape(len(values), -1):
        bits = "".join(f"{value:0{depth}b}" for value in row.tolist())
        bits += "0" * (-len(bits) % 8)
        rows.append(b"\0" + int(bits, 2).to_bytes(len(bits) // 8))
    return b"".join(rows)


@pytest.mark.parametrize(("depth", "colour"), [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2)])
def test_the_transparent_value_of_a_png_of_eight_bits_is_white_and_nothing_else(depth, colour):
    """With fewer bits or more it keeps its colour. The bits of the value beyond those of the image do not count."""
    top = 2**depth - 1
    values = RANDOM.integers(0, top, (6, 8, 3) if colour else (6, 8), endpoint=True)
    values[0, 0] = values[0, 1] = values[0, 2]
    values[0, 1] ^= 1
    key = np.atleast_1d(values[0, 0])
    transparent = struct.pack(f">{len(key)}H", *(key + (0 if depth in (1, 16) else 2**depth)))
    expected = np.round(values / top * 255)
    hidden = (values == values[0, 0]).all(axis=2) if colour else values == values[0, 0]
    assert hidden[0, 0] and not hidden[0, 1]
    if depth == 8:
        expected[hidden] = 255
    for given in (None, 4):
        data = photographs.png(8, 6, depth, colour, packed_rows(values, depth), transparent)
        found = opened(data, given)
        if given is None:
            assert np.abs(found - (expected if colour else expected[:, :, None])).max() <= 1
        assert found.shape == ((6, 8, 3) if given is None else (3, 4, 3))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1", "I;16", "I", "F", "CMYK", "RGBa", "La"])
@pytest.mark.parametrize("long_side", [None, 40, 13])
def test_strips_are_the_whole(monkeypatch, mode, long_side):
    """However few rows are converted at a time."""
    base = photographs.noise(97, 61)
    if mode in ("I;16", "I", "F"):
        grey = np.asarray(base.convert("L"))
        image = Image.fromarray(grey.astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]) * 97)
    elif mode == "La":
        image = base.convert("LA").convert("La")
    else:
        image = base.convert("RGBA").convert(mode) if mode == "RGBa" else base.convert(mode)
    whole, _ = pixels.upright_rgb(image, long_side)
    monkeypatch.setattr(pixels, "STRIP", 500)
    strips, _ = pixels.upright_rgb(image, long_side)
    assert strips.size == whole.size and strips.tobytes() == whole.tobytes()


# JPEG 2000


@pytest.mark.parametrize("kind", ["jp2", "j2k"])
@pytest.mark.parametrize("size", [(900, 700), (1003, 777), (50, 40)])
@pytest.mark.parametrize("resolutions", [6, 2, 1])
def test_a_jpeg_2000_is_decoded_at_the_size_that_it_stores(size, resolutions, kind):
    stream = io.BytesIO()
    photographs.quarters(*size).save(stream, "JPEG2000", num_resolutions=resolutions, no_jp2=kind == "j2k")
    stored = max(size) >> (resolutions - 1)
    for long_side in (None, 100):
        image = read_image(stream.getvalue(), "a", long_side)
        assert (image.width, image.height) == size
        assert long_side is None or min(100, max(size)) <= max(image.pixels.size) < 201
        width, height = image.pixels.size
        for x, y, colour in zip((1, 3, 1, 3), (1, 1, 3, 3), photographs.CORNERS, strict=True):
            assert image.pixels.getpixel((x * width // 4, y * height // 4)) == pytest.approx(colour, abs=12)
    assert read_image(stream.getvalue(), "a", None, refuse_slow=True).width == size[0]
    if stored > 200:
        with pytest.raises(ImageError, match=r"^a: a JPEG 2000 of \d+ x \d+ takes too long"):
            read_image(stream.getvalue(), "a", 100, refuse_slow=True)
    else:
        assert read_image(stream.getvalue(), "a", 100, refuse_slow=True).width == size[0]


@pytest.mark.parametrize("tiles", [(128, 128), (100, 90), (333, 64)])
@pytest.mark.parametrize("long_side", [125, 250, 300])
def test_a_jpeg_2000_in_tiles_has_them_in_their_places(tiles, long_side):
    stream = io.BytesIO()
    photographs.quarters(1004, 778).crop((0, 0, 1003, 777)).save(stream, "JPEG2000", num_resolutions=6, tile_size=tiles)
    whole = read_image(stream.getvalue(), "a").pixels
    found = opened(stream.getvalue(), long_side)
    height, width = found.shape[:2]
    expected = np.asarray(whole.resize((width, height))).astype(int)
    apart = np.minimum(  # from where the quarters meet
        np.abs(np.arange(height) - height / 2)[:, None] / height, np.abs(np.arange(width) - width / 2) / width
    )
    assert (np.abs(found - expected)[apart > 0.08] > 25).mean() < 0.01


# Memory


def test_a_budget_is_never_exceeded_and_serves_all():
    budget, lock, held, most, done = Budget(10), threading.Lock(), [0], [0], []

    def work(number: int, amount: int) -> None:
        with budget.take(amount):
            with lock:
                held[0] += min(amount, 10)
                most[0] = max(most[0], held[0])
            with lock:
                held[0] -= min(amount, 10)
                done.append(number)

    amounts = [6, 3, 100, 4, 10, 0, 5, 5] * 10
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(amounts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert sorted(done) == list(range(len(amounts))) and most[0] <= 10


def test_an_error_gives_its_bytes_back():
    budget = Budget(10)
    for _ in range(3):
        with pytest.raises(RuntimeError), budget.take(10):
            raise RuntimeError
    with budget.take(10):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
def test_a_process_that_is_forked_off_while_images_are_decoded_has_a_budget_of_its_own():
    with DECODING.take(BUDGET):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends it if it waits for a thread that it does not have
            with DECODING.take(BUDGET):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


MEASURE = """
import resource, sys, threading
from saywhere import images
from saywhere.pixels import Budget

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

images.DECODING = Budget(int(sys.argv[2]) << 20)
images.open_image(sys.argv[3], 100)  # what is loaded and kept once
before = peak()
threads = [threading.Thread(target=images.open_image, args=(sys.argv[1], 100)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how memory is counted differs")
@pytest.mark.parametrize(("suffix", "budget"), [("webp", 61), ("png", 16), ("tif", 31)])
def test_three_large_images_take_no_more_memory_than_one(tmp_path, suffix, budget):
    """Of 4 megapixels with transparency, 15 MB decoded; as a WebP of 40 bytes 61 MB: they wait for one another."""
    Image.new("RGBA", (2000, 2000), (9, 200, 30, 100)).save(tmp_path / f"a.{suffix}", lossless=True)
    Image.new("RGBA", (20, 20)).save(tmp_path / f"small.{suffix}")
    arguments = [str(tmp_path / f"a.{suffix}"), str(budget), str(tmp_path / f"small.{suffix}")]
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    assert float(done.stdout) < budget + 25
