"""Checks of a data set before training: statistics, test decoding of every image, and drawn samples with boxes."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from PIL import Image

from saywhere import boxes as geometry
from saywhere.data.sample import Sample, Samples, evenly
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import ImageError, open_image
from saywhere.text import tokenize

LEGIBLE = 640
"""Images with a shorter long side, in pixels, are enlarged to it before phrases are drawn."""

LONGEST_PART = 100
"""Maximum bytes of a split's name, and of an image's, in the file name of a drawing."""

DRAWN = 4
"""Number of samples drawn per split."""

LEGIBLE_REGIONS = 15
"""Maximum number of regions drawn on an image; of more, an evenly spaced selection."""


def summary(samples: Samples) -> dict[str, str]:
    """Return the statistics of a split by name; medians of nothing are ``-``."""
    counts = [len(sample.boxes) for sample in samples]
    lengths = [len(tokenize(phrase)) for phrase in samples.phrases()]
    words = {word for phrase in samples.phrases() for word in tokenize(phrase)}
    shares = [
        100 * share / (sample.width * sample.height)
        for sample in samples
        for share in geometry.area(sample.boxes).tolist()
    ]
    return {
        "images listed": str(samples.report.listed),
        "images read": str(len(samples)),
        "with regions": str(sum(count > 0 for count in counts)),
        "regions": str(sum(counts)),
        "phrases": str(len(lengths)),
        "words in phrases": str(sum(lengths)),
        "different words": str(len(words)),
        "sentences": str(len(samples.sentences())),
        "median regions an image": _median(counts),
        "median words a phrase": _median(lengths),
        "median box, % of image": _median(shares),
        "median image, pixels": f"{_median([s.width for s in samples])} x {_median([s.height for s in samples])}",
    }


def _median(values: list[int] | list[float]) -> str:
    return f"{round(median(values), 1):g}" if values else "-"


def decode(samples: Samples) -> int:
    """Decode every image completely, add damaged ones to the report, and return their number."""

    def complaint(sample: Sample) -> str | None:
        try:
            open_image(sample.image)
        except ImageError as error:
            return str(error).removeprefix(f"{sample.image}: ")
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor() as pool:
        found = [(s, reason) for s, reason in zip(samples, pool.map(complaint, samples), strict=True) if reason]
    for sample, reason in found:
        samples.report.problem("image that cannot be decoded", f"{sample.image.name}: {reason}")
    return len(found)


def draw(samples: Samples, folder: Path) -> list[Path]:
    """Write a few evenly spaced samples with regions as PNGs, with boxes and first phrases, and return their paths.

    Damaged images among them are added to the report.

    Raises:
        UserError: the folder cannot be created.
    """
    labelled = [sample for sample in samples if len(sample.boxes)]
    chosen = evenly(labelled, DRAWN)
    try:
        if chosen:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder for the drawn samples ({error.strerror})") from error
    written = []
    for i, sample in enumerate(chosen, start=1):
        try:
            pixels = open_image(sample.image).pixels
        except ImageError as error:
            kind, name = "image that cannot be decoded", f"{sample.image.name}: "
            if not any(known.startswith(name) for known in samples.report.problems.get(kind, [])):
                samples.report.problem(kind, name + str(error).removeprefix(f"{sample.image}: "))
            continue
        path = folder / f"{_file_part(samples.split)}-{i}-{_file_part(sample.image.stem)}.png"
        regions = sample.regions()[evenly(range(len(sample.boxes)), LEGIBLE_REGIONS)]
        drawn = regions.draw(_enlarged(pixels))
        write_atomically(path, partial(drawn.save, format="PNG"))
        written.append(path)
    return written


def _file_part(name: str) -> str:
    """Return ``name`` for a file name: all but letters, digits and ``-_. `` is escaped, as in ``%2F``."""
    safe = "".join(c if c.isalnum() or c in "-_. " else f"%{ord(c):02X}" for c in name)
    return safe.encode()[:LONGEST_PART].decode(errors="ignore")


def _enlarged(pixels: Image.Image) -> Image.Image:
    factor = LEGIBLE / max(pixels.size)
    if factor <= 1:
        return pixels
    return pixels.resize((round(pixels.width * factor), round(pixels.height * factor)), Image.Resampling.BICUBIC)
