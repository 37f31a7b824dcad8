"""Measure processor milliseconds from a file to the pixels of the model's input, by format, relative to JPEG.

    python benchmarks/decode.py [--size 4032] [--long-side 512] [--repeats 5]

The photograph is one of scikit-image, enlarged. The RAW files are DNGs with a preview of the sensor's size and without.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pillow_heif
from PIL import Image

from saywhere.images import open_image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import photographs


def write_files(folder: Path, size: int) -> dict[str, Path]:
    """Write a photograph in every format; its long side has ``size`` pixels."""
    found = importlib.util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the photograph is one of scikit-image: pip install 'saywhere[demo]'")
    with Image.open(Path(found.submodule_search_locations[0]) / "data" / "motorcycle_left.png") as opened:
        image = opened.convert("RGB").resize((size, size * 3 // 4 // 2 * 2), Image.Resampling.BICUBIC)
    pillow_heif.register_heif_opener()
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    files = {"JPEG": folder / "a.jpg", "HEIC, tiles of 512": folder / "a.heic", "AVIF": folder / "a.avif"}
    files |= {"RAW, preview": folder / "a.dng", "RAW, no preview": folder / "b.dng"}
    files["JPEG"].write_bytes(stream.getvalue())
    image.save(files["HEIC, tiles of 512"], "HEIF", quality=60, tile_size=512)
    image.save(files["AVIF"], quality=60, speed=9)
    files["RAW, preview"].write_bytes(photographs.dng(image, stream.getvalue()))
    files["RAW, no preview"].write_bytes(photographs.dng(image, b""))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4032, help="long side of the files in pixels")
    parser.add_argument("--long-side", type=int, default=512, help="long side of the model's input")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), options.size)
        spent: dict[str, list[float]] = {name: [] for name in files}
        for _ in range(options.repeats + 1):
            for name, path in files.items():  # in turns, so that a busy moment is not one format's
                start = time.process_time()
                open_image(path, options.long_side)
                spent[name].append(1000 * (time.process_time() - start))
        jpeg = statistics.median(spent["JPEG"][1:])
        for name, path in files.items():
            median = statistics.median(spent[name][1:])
            print(f"{name:20} {path.stat().st_size / 1e6:6.1f} MB {median:8.1f} ms {median / jpeg:6.1f} of JPEG")


if __name__ == "__main__":
    main()
