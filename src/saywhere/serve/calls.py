"""The tools of the Model Context Protocol: questions about the images in given folders."""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from saywhere.errors import UserError
from saywhere.files import content_hash
from saywhere.images import read_image
from saywhere.inference import find_images
from saywhere.inference.run import TOP
from saywhere.inference.sources import Source
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.regions import SHOWN, TEXTS, Regions, check_boxes
from saywhere.search import Index
from saywhere.serve.folders import Folders, Outside
from saywhere.serve.limits import Encodings, Limits

if TYPE_CHECKING:
    from saywhere.serve.app import Service

MOST_IMAGES = 500
"""Maximum number of images searched without an index: the first search embeds them all, in about half a minute."""
MOST_HITS = 1000
"""Number of hits of an index that are checked for being in the folders."""
GONE = "no longer there; update the index"
ENLARGED = 4
"""Maximum factor by which a region is enlarged."""
Content = list[dict[str, Any]]


class Tools:
    """The tools, thread-safe; arguments as in :class:`saywhere.serve.mcp.Protocol`."""

    def __init__(self, folders: Folders, model: Model, index: Path | None, service: Service | None = None) -> None:
        self._folders, self._model = folders, model
        self._limits = service.limits if service else Limits()
        self._encodings = service.encodings if service else Encodings(self._limits)
        self._searching = threading.Lock()
        self._own = None if index else tempfile.TemporaryDirectory(prefix="saywhere-")
        self._place = index or Path(self._own.name if self._own else "") / "index"

    def call(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Call a tool with arguments of its schema; raise ``UserError`` if image, box or model are not suitable."""
        return getattr(self, f"_{name}")(**arguments)

    def _see(self, image: str) -> Encoding:
        data = self._folders.read(image)
        return self._encodings.make(content_hash(data).hex(), functools.partial(self._encode, data, image))

    def _encode(self, data: bytes, name: str) -> Encoding:
        return self._model.encode(read_image(data, name, self._model.long_side, self._limits.pixels, refuse_slow=True))

    def _describe(
        self, image: str, top: int | None = None, threshold: float | None = None, boxes: Any = None
    ) -> Content:
        seen = self._see(image)
        if boxes is not None:
            return _text(_rows(image, self._model.describe(seen, boxes, top=top, threshold=threshold)))
        least = SHOWN if threshold is None else threshold
        found = self._model.describe(seen, threshold=least).at_least(threshold)
        return _text(_rows(image, found[: TOP if top is None else top]))

    def _ground(self, image: str, text: str, threshold: float | None = None) -> Content:
        found = self._model.ground(self._see(image), text, threshold=threshold)
        words = {name: list(getattr(found, name)) for name in TEXTS}
        return _text({**_rows(image, found), **words})

    def _caption(self, image: str) -> Content:
        return _text({"image": image, "caption": str(self._model.caption(self._see(image), attention=False))})

    def _search(self, query: str, top: int = 10) -> Content:
        with self._searching, Index(self._place, load=lambda _: self._model) as index:
            if self._own is not None:
                self._look_through(index)
            hits = index.search(query, top=MOST_HITS)
        shown: list[dict[str, Any]] = []
        not_shown = Counter[str]()
        for hit in hits:
            if len(shown) == top:
                break
            if why := self._why_not_shown(hit.image):
                not_shown[why] += 1
            else:
                shown.append(hit.to_dict())
        tells = not_shown and self._own is None  # in its own index only files that are gone are not shown
        return _text({"query": query, "hits": shown} | ({"not_shown": not_shown} if tells else {}))

    def _look_through(self, index: Index) -> None:
        """Update the temporary index of the folders' images."""
        sources: list[Source] = []
        for root in self._folders.roots:
            try:
                sources += [source for source in find_images([root]) if not self._why_not_shown(str(source.path))]
            except UserError:
                continue  # a folder without images
        if len(sources) > MOST_IMAGES:
            raise UserError(
                f"{len(sources):,} images are too many to search without an index (limit {MOST_IMAGES}): make one with "
                f"saywhere index {self._folders.roots[0]} --index DIR, and start this server with --index DIR"
            )
        if not sources:
            raise UserError("there are no images in the folders of this server")
        for _ in index.begin(sources).results(8):
            pass

    def _why_not_shown(self, path: str) -> str:
        """Return why an image or video may not be shown; empty if it may."""
        try:
            real = self._folders.resolve(path)
        except Outside:
            return f"outside the folders of this server ({', '.join(self._folders.roots)})"
        except UserError:
            return GONE
        return GONE if os.path.exists(real) and not os.path.isfile(real) else ""

    def _crop(self, image: str, box: list[float], size: int = 768) -> Content:
        pixels = read_image(self._folders.read(image), image, None, self._limits.pixels, refuse_slow=True).pixels
        x1, y1, x2, y2 = (round(v) for v in check_boxes([box], *pixels.size, image)[0].tolist())
        place = x1, y1, max(x2, x1 + 1), max(y2, y1 + 1)
        region = pixels.crop(place)
        scale = min(size / max(region.size), ENLARGED)
        shape = tuple(max(1, round(side * scale)) for side in region.size)
        region = region.resize((shape[0], shape[1]), Image.Resampling.BICUBIC, reducing_gap=3.0)
        stream = io.BytesIO()
        region.save(stream, "JPEG", quality=88)
        shown = {"type": "image", "data": base64.b64encode(stream.getvalue()).decode(), "mimeType": "image/jpeg"}
        return [shown, *_text({"image": image, "box": list(place), "width": shape[0], "height": shape[1]})]


def _rows(image: str, regions: Regions) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for region in regions:
        row: dict[str, Any] = {"phrase": region.caption, "box": [round(v) for v in region.box]}
        chances = {"score": region.score, "words": region.caption_score}
        rows.append({**row, **{name: round(value, 3) for name, value in chances.items() if value is not None}})
    return {"image": image, "width": regions.width, "height": regions.height, "regions": rows}


def _text(value: Any) -> Content:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return [{"type": "text", "text": text.encode("utf-8", "replace").decode()}]  # file names may not be UTF-8
