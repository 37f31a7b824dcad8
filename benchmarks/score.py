"""Measure the speed of ``model.score``: all phrases in one call, and one call per phrase.

    python benchmarks/score.py [--model flickr-coco] [--regions 100] [--phrases 100] [--repeats 5] [--threads N]
                               [--json FILE]

The regions are a grid of boxes on a photograph of scikit-image. The phrases are words of the model's vocabulary, two to
five each, drawn by their counts (seed 0). Both variants take turns. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from saywhere.text import Vocabulary


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure the speed of model.score, beside one call per phrase.")
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model with a dense captioner")
    parser.add_argument("--regions", type=int, default=100)
    parser.add_argument("--phrases", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds, after one of warm-up")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of the engine; all cores by default"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    if min(options.regions, options.phrases, options.repeats, options.threads) < 1:
        parser.error("--regions, --phrases, --repeats and --threads are at least 1")
    return options


def grid(width: int, height: int, count: int) -> np.ndarray:
    """Return ``count`` boxes ``(count, 4)`` of four sizes, spread over an image."""
    import numpy as np

    sides = np.tile([0.15, 0.3, 0.5, 0.8], -(-count // 4))[:count, None]
    corners = np.random.default_rng(0).random((count, 2)) * (1 - sides)
    return (np.concatenate((corners, corners + sides), axis=1) * [width, height, width, height]).astype(np.float32)


def invent(vocabulary: Vocabulary, count: int) -> list[str]:
    """Return ``count`` different texts of two to five words, drawn by their counts."""
    draw, found = random.Random(0), dict[str, None]()
    words, weights = list(vocabulary.counts), list(vocabulary.counts.values())
    for _ in range(1000 * count):
        found[" ".join(draw.choices(words, weights, k=draw.randint(2, 5)))] = None
        if len(found) == count:
            return list(found)
    raise SystemExit(f"error: the vocabulary of {len(words)} words is too small for {count} phrases")


def clock(work: Callable[[], object]) -> tuple[float, float]:
    """Return milliseconds of wall-clock and processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time both variants in turns, and compare their results."""
    import numpy as np
    import skimage.data

    import saywhere

    model = saywhere.load(options.model, device="cpu", threads=options.threads)
    encoding = model.encode(skimage.data.astronaut())
    boxes = grid(encoding.width, encoding.height, options.regions)
    phrases = invent(model.require("densecap", "be timed").vocabulary, options.phrases)
    found: dict[str, np.ndarray] = {}

    def together() -> None:
        found["one call"] = model.score(encoding, phrases, boxes).log_probs

    def apart() -> None:
        columns = [model.score(encoding, [phrase], boxes).log_probs for phrase in phrases]
        found["a call a phrase"] = np.concatenate(columns, axis=1)

    def describe() -> None:
        model.describe(encoding, boxes)

    ways = {"one call": together, "a call a phrase": apart, "describe alone": describe}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(options.repeats + 1):
        for name, work in ways.items():
            figures = clock(work)
            if turn:
                times[name].append(figures)
    medians = {name: [statistics.median(part) for part in zip(*rows, strict=True)] for name, rows in times.items()}
    ratios = [
        [a / b for a, b in zip(one, other, strict=True)]
        for one, other in zip(times["a call a phrase"], times["one call"], strict=True)
    ]
    return {
        "model": options.model,
        "regions": options.regions,
        "phrases": options.phrases,
        "threads": options.threads,
        "milliseconds": {name: {"wall": wall, "cpu": cpu} for name, (wall, cpu) in medians.items()},
        "ratio": dict(zip(("wall", "cpu"), (statistics.median(p) for p in zip(*ratios, strict=True)), strict=True)),
        "largest_difference": float(np.abs(found["one call"] - found["a call a phrase"]).max()),
    }


def main() -> None:
    """Measure, print, write."""
    options = parse()
    report = measure(options)
    size = f"{report['regions']} regions x {report['phrases']} phrases"
    print(f"{size}, {report['threads']} threads, {report['model']}: medians of {options.repeats} rounds")
    for name, figures in report["milliseconds"].items():
        print(f"{name:16} {figures['wall']:9.0f} ms   cpu {figures['cpu']:9.0f} ms")
    print(f"a call a phrase / one call: {report['ratio']['wall']:.1f} (cpu {report['ratio']['cpu']:.1f})")
    print(f"largest difference of a log-probability: {report['largest_difference']:.1e}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
