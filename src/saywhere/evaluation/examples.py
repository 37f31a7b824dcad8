"""A page of example images: the truth, and the answers of one or several models, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from saywhere import images
from saywhere.drawing import draw_boxes
from saywhere.evaluation.region_lines import RegionLines, read_captions, read_references
from saywhere.files import write_atomically

PAGE = "examples.html"
MOST = 48
"""Maximum number of images on a page, evenly spaced."""
SIDE = 512
"""Length of a drawing's long side, in pixels."""
REGIONS = 10
"""Maximum regions drawn on an image: those with the highest scores, or else the first."""
STYLE = """body{font:16px/1.4 sans-serif;margin:1em}section{display:flex;flex-wrap:wrap;gap:1em;margin:0 0 2em}
figure{margin:0;width:30em;max-width:100%}img{width:100%}"""

Answers = Callable[[str], tuple[np.ndarray | None, Sequence[str]]]
"""Answers for an image: boxes ``(N, 4)`` with a phrase each; or None, and sentences about the whole image."""


def of_regions(lines: RegionLines) -> Answers:
    """Return the answers in lines with boxes."""

    def answer(name: str) -> tuple[np.ndarray, Sequence[str]]:
        found = lines[name]
        scores = np.zeros(len(found.boxes)) if found.scores is None else found.scores
        rows = np.argsort(-scores, kind="stable")[:REGIONS].tolist()
        ends = np.sort(found.boxes[rows].reshape(-1, 2, 2), axis=1)  # other programs' may have x2 < x1
        return ends.reshape(-1, 4), [found.captions[row] for row in rows] if found.captions else [""] * len(rows)

    return answer


def of_captions(texts: Mapping[str, str | Sequence[str]]) -> Answers:
    """Return sentences about whole images as answers."""

    def answer(name: str) -> tuple[None, Sequence[str]]:
        said = texts.get(name, ())
        return None, [said] if isinstance(said, str) else said

    return answer


def compare_answers(task: str, folder: Path, data: Path, runs: Mapping[str, Path]) -> None:
    """Write the page for several models' runs of the task ``dense`` or ``caption``, given their folders ``runs``."""
    truth, *_ = (run / "truth.jsonl" for run in runs.values())
    files = {name: run / "predictions.jsonl" for name, run in runs.items()}
    if task == "dense":
        lines = {name: RegionLines(path) for name, path in files.items()}
        columns = {"true": of_regions(RegionLines(truth, several=True))}
        columns |= {name: of_regions(each) for name, each in lines.items()}
        known = [each.names for each in lines.values()]
    else:
        texts = {name: read_captions(path) for name, path in files.items()}
        columns = {"true": of_captions(read_references(truth))}
        columns |= {name: of_captions(each) for name, each in texts.items()}
        known = [list(each) for each in texts.values()]
    names = [name for name in known[0] if all(name in other for other in known[1:])]
    write_examples(folder, data, names, columns)


def write_examples(folder: Path, data: Path, names: Sequence[str], columns: Mapping[str, Answers]) -> None:
    """Write ``examples.html``, with its images in ``examples/``; the originals are below ``data``.

    ``columns`` has the answers to show side by side, by caption, the truth first.
    """
    count = min(MOST, len(names))
    chosen = [names[len(names) * number // count] for number in range(count)]
    parts = [part for number, name in enumerate(chosen) for part in _section(folder, data, number, name, columns)]
    page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Examples</title><style>{STYLE}</style>\n'
    text = f"{page}<h1>{count} of {len(names)} images</h1>\n" + "\n".join(parts) + "\n</html>\n"
    write_atomically(folder / PAGE, lambda stream: stream.write(text.encode("utf-8", "replace")))


def _section(folder: Path, data: Path, number: int, name: str, columns: Mapping[str, Answers]) -> Iterable[str]:
    """Return an image's part of the page; if the image is not there, only its texts."""
    try:
        image = images.open_image(data / name, SIDE)
    except images.ImageError:
        image = None
    yield f"<h2>{escape(name)}</h2><section>"
    answers = {column: answer(name) for column, answer in columns.items()}
    if image is not None and all(boxes is None for boxes, _ in answers.values()):
        answers = {"": (np.zeros((0, 4)), ()), **answers}  # show it once, without regions
    for place, (column, (boxes, texts)) in enumerate(answers.items()):
        shown = ""
        if image is not None and boxes is not None:
            size = image.width, image.height
            drawn = draw_boxes(images.resized(image, SIDE, SIDE), boxes.clip(0, [*size, *size]), size, texts)
            images.save_image(folder / "examples" / f"{number:02}-{place}.jpg", drawn)
            shown = f'<img src="examples/{number:02}-{place}.jpg" alt="">'
        said = f"<b>{escape(column)}</b> {escape('; '.join(texts) or 'nothing')}" if column else ""
        yield f"<figure>{shown}<figcaption>{said}</figcaption></figure>"
    yield "</section>"
