"""Check that two checkouts give bit for bit the same answers, each with its own bundled model.

    git worktree add OTHER COMMIT
    python benchmarks/answers.py OTHER IMAGE [IMAGE ...]

Compares regions, phrases of given boxes, scores of phrases, grounding, captions with their attention, vectors, and
search in an index of all the images. Prints for each question how many answers differ, and the first images with
differences. Exits with code 1 if there are any. The other checkout may be of any commit since 88de8b9.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
SENTENCE = "a man in a red shirt and a dog on the grass"
QUERIES = ("a dog", "a woman in a red shirt", "two children play on the beach", "a bus on a street")


def digest(*values: Any) -> str:
    """Return a hash of arrays, texts and None."""
    total = hashlib.sha256()
    for value in values:
        total.update(repr(value).encode() if isinstance(value, str | tuple | None) else np.asarray(value).tobytes())
        total.update(b"\0")
    return total.hexdigest()[:16]


def numbers_of(hit: Any) -> tuple[Any, ...]:
    """Return probability, similarity and the boxes of phrases of a hit."""
    return hit.probability, hit.similarity, hit.regions.boxes


def answer(images: list[Path]) -> dict[str, dict[str, Any]]:
    """Return the answers of the saywhere on the path: question -> image -> hash, or text."""
    import saywhere

    model, answers = saywhere.load(threads=1), {}

    def keep(question: str, name: str, value: Any) -> None:
        answers.setdefault(question, {})[name] = value

    for path in images:
        seen, name = model.encode(path), path.name
        regions = model.describe(seen)
        keep("describe", name, digest(regions.boxes, regions.scores, regions.captions, regions.features))
        given = model.describe(seen, regions.boxes[:5])
        keep("describe given boxes", name, digest(given.scores, given.captions))
        for part in ("densecap", "aligner"):
            found = model.ground(seen, SENTENCE, part=part, threshold=0)
            keep(f"ground {part}", name, digest(found.boxes, found.scores, found.similarities, found.captions))
        keep("align", name, digest(model.align(seen, SENTENCE).regions().boxes))
        scores = model.score(seen, ["a dog", "a red shirt", "the sky"])
        keep("score", name, digest(scores.log_probs))
        keep("embed", name, digest(model.embed(seen).vectors))
        caption = model.caption(seen)
        keep("caption", name, caption.sentence)
        keep("attention", name, digest(caption.sentence, caption.attention))
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        words = [sys.executable, "-m", "saywhere", "index", *map(str, images), "--index", str(index), "--threads", "1"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        with saywhere.Index(index, model) as opened:
            for query in QUERIES:
                hits = opened.search(query, top=20)
                keep("search", query, digest(*(each for hit in hits for each in (hit.image, *numbers_of(hit)))))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        asked.answer.write_text(json.dumps(answer(asked.images)), encoding="utf-8")
        return
    if not (asked.other / "src" / "saywhere").is_dir():
        parser.error(f"{asked.other} is no checkout of saywhere")
    both: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for checkout in (asked.other.resolve(), HERE):
            file = Path(folder) / f"{len(both)}.json"
            words = [sys.executable, __file__, str(checkout), *map(str, asked.images), "--answer", str(file)]
            one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            environment = {**os.environ, **one, "PYTHONPATH": str(checkout / "src")}
            subprocess.run(words, env=environment, check=True)
            both.append(json.loads(file.read_text(encoding="utf-8")))
    differ = 0
    for question, before in both[0].items():
        now = both[1].get(question, {})
        names = [name for name, value in before.items() if now.get(name) != value]
        differ += len(names)
        print(f"{question}: {len(before) - len(names)} of {len(before)} the same")
        for name in names[:5]:
            print(f"  {name}: {before[name]} -> {now.get(name)}" if question == "caption" else f"  {name}")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
