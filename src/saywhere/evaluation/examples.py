"""A page of pictures where a model did best, middling and worst: the truth beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from saywhere.describing.outputs import resized, save_picture
from saywhere.evaluation.dense_captioning import PROTOCOLS
from saywhere.evaluation.dense_rules import merge
from saywhere.evaluation.dense_run import RANKED, Ranked
from saywhere.evaluation.region_lines import Array, PictureRegions, RegionLines
from saywhere.files import write_atomically
from saywhere.images import ImageError, Picture, open_picture
from saywhere.regions import Regions

EACH = 3
"""Pictures of each kind."""

SHOWN = 10
"""Predicted regions that are drawn on a picture, the best."""

SIDE = 640
"""Pixels on the long side of a drawing."""

STYLE = """body{font:16px/1.5 sans-serif;max-width:1340px;margin:2em auto;padding:0 1em}
figure{display:inline-block;margin:0 1em 1em 0;vertical-align:top;width:calc(50% - 1.2em)}img{width:100%}"""


def choose(ranking: Sequence[Ranked], each: int = EACH) -> list[tuple[str, Ranked]]:
    """``each`` best, median and worst pictures of a ranking, with these words; none twice, so fewer of a few pictures.

    Of fewer than three pictures, the first are the best and the last the worst.
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


def write_examples(
    folder: Path,
    ranking: Sequence[Ranked],
    predictions: RegionLines,
    truth: RegionLines,
    pictures: Sequence[Path],
    protocol: str,
) -> Path:
    """Write ``examples.html`` and its drawings in ``examples/``; the path of the page.

    Args:
        folder: where to.
        ranking: pictures, best first.
        predictions, truth: what was scored.
        pictures: folders that the names of the pictures may start from. One that is in none of them is drawn as a grey
            area.
        protocol: by which true boxes are merged.
    """
    parts: list[str] = []
    for number, (kind, one) in enumerate(choose(ranking), 1):
        said, true = predictions[one.name], truth[one.name]
        size = true.size or said.size or _extent(said, true)
        picture = _picture(one.name, pictures, size)
        drawn = {"truth": _truth(true, size, protocol), "prediction": _best(said, size)}
        parts.append(f"<h2>{kind}: {escape(one.name)}, mAP {one.map:.3f}, boxes alone {one.detection_map:.3f}</h2>")
        for what, regions in drawn.items():
            file = folder / "examples" / f"{number:02}-{kind}-{what}.png"
            save_picture(file, regions.draw(picture))
            heard = escape("; ".join(regions.captions or ()) or "nothing", quote=True)
            image = f'<img src="examples/{file.name}" alt="{what}: {heard}">'
            parts.append(f"<figure>{image}<figcaption>{what}</figcaption></figure>")
    page = _page(parts, protocol).encode("utf-8", "replace")
    write_atomically(folder / "examples.html", lambda stream: stream.write(page))
    return folder / "examples.html"


def _page(parts: Sequence[str], protocol: str) -> str:
    about = (
        f"Pictures by their own mean average precision (protocol {escape(protocol)}), of at most {RANKED:,} evenly "
        f"spread over the data. Left what is true, right the {SHOWN} best predicted regions."
    )
    body = "\n".join(parts) or "<p>No picture has a true region.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Examples</title><style>{STYLE}</style>'
        f"</head><body>\n<h1>Best, median and worst pictures</h1>\n<p>{about}</p>\n{body}\n</body></html>\n"
    )


def _extent(*parts: PictureRegions) -> tuple[float, float]:
    """A size that has all boxes inside, for a picture whose size no file tells."""
    corners = np.concatenate([np.ones((1, 2)), *(part.boxes[:, 2:] for part in parts)])
    return tuple(np.ceil(corners.max(axis=0)).tolist())


def _picture(name: str, folders: Sequence[Path], size: tuple[float, float]) -> Image.Image:
    for folder in folders:
        try:
            picture: Picture = open_picture(folder / name, SIDE)
            return resized(picture, SIDE, SIDE)
        except ImageError:
            continue
    factor = SIDE / max(size)
    return Image.new("RGB", (max(1, round(size[0] * factor)), max(1, round(size[1] * factor))), (225, 225, 225))


def _truth(true: PictureRegions, size: tuple[float, float], protocol: str) -> Regions:
    boxes, groups = merge(PROTOCOLS[protocol], true.boxes)
    captions = true.captions or ()
    return _regions(boxes, [" / ".join(dict.fromkeys(captions[i] for i in group)) for group in groups], size)


def _best(said: PictureRegions, size: tuple[float, float]) -> Regions:
    scores = np.zeros(len(said.boxes)) if said.scores is None else said.scores
    best: list[int] = np.argsort(-scores, kind="stable")[:SHOWN].tolist()
    captions = said.captions or ()
    return _regions(said.boxes[best], [captions[i] for i in best], size)


def _regions(boxes: Array, captions: Sequence[str], size: tuple[float, float]) -> Regions:
    """For drawing, in this order: boxes are cut to the picture, and turned right side out."""
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 2, 2)
    inside = np.sort(corners.clip(0, np.array(size)), axis=1).reshape(-1, 4)
    width, height = size
    return Regions(int(np.ceil(width)), int(np.ceil(height)), torch.from_numpy(inside), captions=tuple(captions))
