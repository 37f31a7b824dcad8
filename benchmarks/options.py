"""Measure the cost of an option: processor milliseconds per image with and without it, in turns.

    python benchmarks/options.py IMAGE [IMAGE ...] --set OPTION=VALUE [--set ...] [--question caption] [--model M]
                                 [--rounds 7] [--threads 1] [--batch]

Images are processed one by one, with ``--batch`` all together. Ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import saywhere
from saywhere.options import assignments

SENTENCE = "a man in a red shirt and a dog on the grass"


def ground(model: saywhere.Model, images: Any) -> object:
    """Find four phrases in one image, or in each of a list."""
    return model.ground(images, SENTENCE if isinstance(images, Path) else [SENTENCE] * len(images))


QUESTIONS: dict[str, Callable[[saywhere.Model, Any], object]] = {
    "caption": lambda model, images: model.caption(images, attention=False),
    "describe": lambda model, images: model.describe(images),
    "ground": ground,
    "embed": lambda model, images: model.embed(images),
}


def seconds(model: saywhere.Model, question: str, images: list[Path], batch: bool) -> float:
    """Return the processor's seconds that the answers take, decoding of the files included."""
    begin = time.process_time()
    for one in [images] if batch else images:
        QUESTIONS[question](model, one)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--set", dest="change", action="append", required=True, metavar="OPTION=VALUE")
    parser.add_argument("--question", choices=QUESTIONS, default="caption")
    parser.add_argument("--model", default=saywhere.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", action="store_true")
    asked = parser.parse_args()
    if missing := [str(image) for image in asked.images if not image.is_file()]:
        parser.error(f"no such file: {missing[0]}")
    own = saywhere.load(asked.model, threads=asked.threads)
    changed = saywhere.load(asked.model, threads=asked.threads, options=assignments(asked.change))
    pair = (changed, own)
    rounds = [[seconds(m, asked.question, asked.images, asked.batch) for m in pair] for _ in range(asked.rounds + 1)]
    times = np.array(rounds[1:]) / len(asked.images) * 1e3  # the first round warms up
    ratios = np.percentile(times[:, 1] / times[:, 0], (25, 50, 75))
    print(f"{' '.join(asked.change)}: {np.median(times[:, 0]):.1f} ms; own options: {np.median(times[:, 1]):.1f} ms")
    print(f"own options take {ratios[1]:.2f} times as long (quartiles {ratios[0]:.2f} to {ratios[2]:.2f})")


if __name__ == "__main__":
    main()
