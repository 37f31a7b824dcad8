"""Reports of all tasks: ``report.json`` for programs, ``report.md`` for people, tables, plots, pages of examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

import saywhere
from saywhere.files import write_atomically
from saywhere.images import ImageError, LoadedImage, open_image, resized, save_image
from saywhere.regions import Regions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIGURES: dict[str, dict[str, str]] = {
    "dense": {"mAP": "map", "boxes alone": "detection_map", "language METEOR": "language_meteor"},
    "caption": {"BLEU-1": "bleu_1", "BLEU-4": "bleu_4", "METEOR": "meteor", "ROUGE-L": "rouge_l", "CIDEr-D": "cider"},
    "ground": {
        "IoU ≥ 0.5": "accuracy", "pointing": "pointing", "there or not, AUC": "presence.auc",
        "calibration error": "presence.calibration_error",
    },
    "rank": {
        "annotation R@1": "image_to_text.r1", "annotation R@10": "image_to_text.r10", "search R@1": "text_to_image.r1",
        "search R@10": "text_to_image.r10",
    },
}  # fmt: skip
"""For each task that compares models: a column's name, and where a report has its figure."""


def write_report(folder: Path, row: Mapping[str, Any], lines: Sequence[str]) -> list[Path]:
    """Write ``report.json`` (``row`` and the version of saywhere) and ``report.md`` (``lines``), each atomically.

    Returns their paths.
    """
    texts = {
        "report.json": json.dumps({**row, "saywhere": saywhere.__version__}, indent=2) + "\n",
        "report.md": "\n".join(lines) + "\n",
    }
    for name, text in texts.items():
        data = text.encode("utf-8", "replace")
        write_atomically(folder / name, lambda stream, data=data: stream.write(data))
    return [folder / name for name in texts]


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; None is an empty cell."""
    cells = [[cell(value) for value in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def facts(values: Mapping[str, object]) -> list[str]:
    """Return a Markdown table of how figures came about, from names to values.

    Empty values and zeros are left out, underscores in names become spaces, a mapping (such as the images that were
    skipped, with the reasons) is shown by its length, and the items of a list are joined by commas.
    """
    return table(("", ""), [(name.replace("_", " "), _fact(value)) for name, value in values.items() if value])


def _fact(value: object) -> object:
    if isinstance(value, Mapping):
        return len(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def cell(value: object) -> str:
    """Return a value as the text of one cell of a Markdown table."""
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a plot of matplotlib as a PNG, atomically."""
    write_atomically(path, lambda stream: figure.savefig(stream, dpi=120, format="png"))


SIDE = 640
"""Pixels on the long side of a drawing."""

STYLE = """body{font:16px/1.5 sans-serif;max-width:1340px;margin:2em auto;padding:0 1em}
figure{display:inline-block;margin:0 1em 1em 0;vertical-align:top;width:calc(WIDTH - 1.2em)}img{width:100%}"""

T = TypeVar("T")


def choose(ranking: Sequence[T], each: int = 3) -> list[tuple[str, T]]:
    """Choose the ``each`` best, median and worst items of a ranking, and return them with these words.

    No item is chosen twice, so there are fewer of a short ranking. Of fewer than three, the first is the best and the
    last the worst.
    """
    count = len(ranking)
    each = min(each, max(1, count // 3))
    middle = (count - each) // 2
    kinds: dict[int, str] = dict.fromkeys(range(min(each, count)), "best")
    if count >= 3:
        kinds |= dict.fromkeys(range(middle, middle + each), "median")
    if count >= 2:
        kinds |= dict.fromkeys(range(count - each, count), "worst")
    return [(kinds[place], ranking[place]) for place in sorted(kinds)]


class Page:
    """Build a page ``examples.html`` in ``folder``, with its images in ``examples/``.

    Args:
        folder: where to.
        title: of the page.
        about: a paragraph below the title.
        images: folders that the names of images are relative to.
        across: images in a row.
    """

    def __init__(self, folder: Path, title: str, about: str, images: Sequence[Path], across: int = 2) -> None:
        self.folder, self.title, self.about = folder, title, about
        self._images, self._across, self._parts = images, across, list[str]()

    def heading(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def figure(self, file: str, name: str, regions: Regions, below: str) -> None:
        """Add the image ``name`` with its regions drawn on it, and a line below it.

        The drawing is written to ``examples/<file>``. An image that is in none of the folders is drawn as a grey area.
        """
        image = open_from(name, self._images, (regions.width, regions.height))
        save_image(self.folder / "examples" / file, regions.draw(image) if len(regions) else image)
        captions = escape("; ".join(regions.captions or ()) or "nothing", quote=True)
        shown = f'<img src="examples/{file}" alt="{escape(below, quote=True)}: {captions}">'
        self._parts.append(f"<figure>{shown}<figcaption>{escape(below)}</figcaption></figure>")

    def write(self) -> Path:
        """Write the page, and return its path."""
        style = STYLE.replace("WIDTH", f"{100 / self._across:.4g}%")
        title = escape(self.title)
        text = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
            f"</head><body>\n<h1>{title}</h1>\n<p>{escape(self.about)}</p>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )
        path = self.folder / "examples.html"
        write_atomically(path, lambda stream: stream.write(text.encode("utf-8", "replace")))
        return path


def open_from(name: str, folders: Sequence[Path], size: tuple[float, float]) -> Image.Image:
    """Return the image ``name`` of one of ``folders``, resized for a drawing, or a grey area shaped as ``size``."""
    for folder in folders:
        try:
            image: LoadedImage = open_image(folder / name, SIDE)
            return resized(image, SIDE, SIDE)
        except ImageError:
            continue
    factor = SIDE / max(size)
    return Image.new("RGB", (max(1, round(size[0] * factor)), max(1, round(size[1] * factor))), (225, 225, 225))


def figure_of(report: Mapping[str, Any], path: str) -> Any:
    """Return the value of a report at a path with dots; None if there is none."""
    value: Any = report
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
