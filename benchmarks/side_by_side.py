"""Write a page that shows the answers of two checkouts' bundled models side by side.

    git worktree add OTHER COMMIT
    python benchmarks/side_by_side.py OTHER IMAGE [IMAGE ...] --out FOLDER [--top 5] [--threshold P]
                                      [--sample N --seed 0]

Writes FOLDER/index.html: for each photograph regions and caption of the other checkout, and beside them those of this
one. Each shows the regions that its command shows: --threshold is the minimum probability that a region is right, of
its box alone in a checkout that does not judge words. With --sample, N of the images are chosen at random. The page
contains copies of the photographs: mind their licence.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SIDE = 640
"""Pixels of the long side of a drawn photograph."""
STYLE = "body{font:15px sans-serif;margin:1em}td{vertical-align:top;padding:.5em}img{max-width:100%}p{margin:.2em 0}"


BOX = 0.3
"""Default threshold of checkouts that do not judge words."""


def answer(images: list[Path], top: int, threshold: float | None) -> list[dict[str, Any]]:
    """Return the shown regions and the caption of each image by the saywhere on the path."""
    import saywhere

    model, found = saywhere.load(), []
    for path in images:
        seen = model.encode(path)
        regions = model.describe(seen)
        if hasattr(regions, "at_least"):
            regions = regions.at_least(threshold)[:top]
        else:
            regions = regions[regions.scores >= (BOX if threshold is None else threshold)][:top]
        rows = zip(regions.boxes, regions.scores, regions.captions, strict=True)
        said = [[box.tolist(), float(score), words] for box, score, words in rows]
        found.append({"regions": said, "sentence": model.caption(seen).sentence})
    return found


def side(path: Path, said: dict[str, Any], file: Path) -> str:
    """Draw the regions of an image into ``file`` and return the cell of the table."""
    from saywhere.drawing import draw_boxes
    from saywhere.images import open_image

    opened = open_image(path)
    image = opened.pixels
    image.thumbnail((SIDE, SIDE))
    boxes, scores, words = zip(*said["regions"], strict=True) if said["regions"] else ((), (), ())
    draw_boxes(image, boxes, (opened.width, opened.height), words, scores).save(file, quality=85)
    lines = "".join(f"<p>{score:.2f} {html.escape(text)}</p>" for score, text in zip(scores, words, strict=True))
    return f'<td><img src="{file.name}" alt=""><p><b>{html.escape(said["sentence"])}</b></p>{lines}</td>'


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        said = answer(asked.images, asked.top, asked.threshold)
        asked.answer.write_text(json.dumps(said), encoding="utf-8")
        return
    if not (asked.other / "src" / "saywhere").is_dir():
        parser.error(f"{asked.other} is no checkout of saywhere")
    images = asked.images
    if asked.sample is not None:
        images = random.Random(asked.seed).sample(images, min(asked.sample, len(images)))
    asked.out.mkdir(parents=True, exist_ok=True)
    both = []
    for name, checkout in (("before", asked.other.resolve()), ("after", HERE)):
        file = asked.out / f"{name}.json"
        options = ["--top", str(asked.top), "--out", str(asked.out), "--answer", str(file)]
        options += [] if asked.threshold is None else ["--threshold", str(asked.threshold)]
        words = [sys.executable, __file__, str(checkout), *map(str, images), *options]
        subprocess.run(words, env={**os.environ, "PYTHONPATH": str(checkout / "src")}, check=True)
        both.append(json.loads(file.read_text(encoding="utf-8")))
    rows = [f"<tr><th>{html.escape(asked.other.name)}</th><th>this checkout</th></tr>"]
    for number, (path, before, after) in enumerate(zip(images, *both, strict=True)):
        cells = side(path, before, asked.out / f"{number}-before.jpg") + side(
            path, after, asked.out / f"{number}-after.jpg"
        )
        rows.append(f'<tr><td colspan="2">{html.escape(path.name)}</td></tr><tr>{cells}</tr>')
    head = f'<!doctype html><meta charset="utf-8"><title>Side by side</title><style>{STYLE}</style>'
    page = f"{head}<table>{''.join(rows)}</table>"
    (asked.out / "index.html").write_text(page, encoding="utf-8")
    print(f"written: {asked.out / 'index.html'}, {len(images)} photographs")


if __name__ == "__main__":
    main()
