"""Pages of examples: headings, pictures side by side, nothing that has to be fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from saywhere.describing.outputs import resized, save_picture
from saywhere.files import write_atomically
from saywhere.images import ImageError, Picture, open_picture
from saywhere.regions import Regions

SIDE = 640
"""Pixels on the long side of a drawing."""

STYLE = """body{font:16px/1.5 sans-serif;max-width:1340px;margin:2em auto;padding:0 1em}
figure{display:inline-block;margin:0 1em 1em 0;vertical-align:top;width:calc(WIDTH - 1.2em)}img{width:100%}"""


class Page:
    """A page ``examples.html`` in ``folder``, and its pictures in ``examples/``.

    Args:
        folder: where to.
        title: of the page.
        about: a paragraph below it.
        pictures: folders that names of pictures may start from.
        across: pictures in a row.
    """

    def __init__(self, folder: Path, title: str, about: str, pictures: Sequence[Path], across: int = 2) -> None:
        self.folder, self.title, self.about = folder, title, about
        self._pictures, self._across, self._parts = pictures, across, list[str]()

    def heading(self, text: str) -> None:
        """A heading."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def figure(self, file: str, name: str, regions: Regions, below: str) -> None:
        """The picture ``name`` with its regions drawn, written as ``examples/<file>``, and a line below it.

        A picture that is in none of the folders is drawn as a grey area.
        """
        image = open_from(name, self._pictures, (regions.width, regions.height))
        save_picture(self.folder / "examples" / file, regions.draw(image) if len(regions) else image)
        heard = escape("; ".join(regions.captions or ()) or "nothing", quote=True)
        shown = f'<img src="examples/{file}" alt="{escape(below, quote=True)}: {heard}">'
        self._parts.append(f"<figure>{shown}<figcaption>{escape(below)}</figcaption></figure>")

    def write(self) -> Path:
        """Write the page; its path."""
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
    """The picture ``name`` of one of ``folders`` in the size of a drawing, or a grey area of the shape of ``size``."""
    for folder in folders:
        try:
            picture: Picture = open_picture(folder / name, SIDE)
            return resized(picture, SIDE, SIDE)
        except ImageError:
            continue
    factor = SIDE / max(size)
    return Image.new("RGB", (max(1, round(size[0] * factor)), max(1, round(size[1] * factor))), (225, 225, 225))
