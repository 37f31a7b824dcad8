"""Compare the speed of METEOR with pycocoevalcap's bridge to the authors' Java program, on one core.

    python benchmarks/meteor.py --data data/flickr8k [--pairs 300000] [--slow 2000] [--out meteor.json]

A pair is a phrase of one region of an image and all phrases of another region of any image of the split, drawn with
seed 0, no pair twice. pycocoevalcap scores one pair after the other, and only the first ``--slow``. Both must
give equal scores. Startup is measured separately. ``of a processor`` is the processor time of ours, which does not
depend on other load of the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycocoevalcap.meteor.meteor import Meteor as Bridge

from saywhere import data
from saywhere.evaluation.meteor import Meteor

WARM = 300


def draw(regions: list[tuple[str, ...]], count: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return distinct pairs of a phrase and the phrases of a region; fewer than ``count`` where there are no more."""
    choice, pairs = random.Random(0), dict[tuple[str, tuple[str, ...]], None]()
    for _ in range(20 * count):
        if len(pairs) < count:
            pairs[choice.choice(choice.choice(regions)), choice.choice(regions)] = None
    return list(pairs)


def bridge(pairs: list[tuple[str, tuple[str, ...]]]) -> list[float]:
    """Return scores by pycocoevalcap, one pair after the other."""
    program = Bridge()
    try:
        return [program.compute_score({0: list(phrases)}, {0: [caption]})[1][0] for caption, phrases in pairs]
    finally:
        program.meteor_p.kill()


def timed(score: Callable[[Any], list[float]], pairs: list[Any]) -> tuple[list[float], float]:
    """Return scores, and pairs per second."""
    start = time.perf_counter()
    scores = score(pairs)
    return scores, len(pairs) / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a data set with phrases")
    parser.add_argument("--format", default="flickr8k")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--pairs", type=int, default=300000)
    parser.add_argument("--slow", type=int, default=2000, help="pairs for the bridge")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    samples = data.read(options.data, options.format, options.split)
    regions = [phrases for sample in samples for phrases in sample.phrases]
    pairs = draw(regions, options.pairs + WARM) if regions else []
    warm, pairs = pairs[:WARM], pairs[WARM:]
    if not pairs:
        raise SystemExit(f"{options.data}: too few phrases")
    speeds: dict[str, float] = {}
    start = time.perf_counter()
    meteor = Meteor()
    meteor.score(warm[:1])
    begin = time.perf_counter() - start
    meteor.score(warm)
    busy = time.process_time()
    scores, speeds["ours"] = timed(meteor.score, pairs)
    speeds["ours, of a processor"] = len(pairs) / (time.process_time() - busy)
    slow, speeds["Java, pair by pair"] = timed(bridge, pairs[: options.slow])
    if scores[: len(slow)] != slow:
        raise SystemExit("the scores differ")
    print(f"{len(pairs)} pairs, equal scores; {platform.processor() or platform.machine()}")
    for name, speed in speeds.items():
        print(f"{name:20} {speed:8.0f} pairs a second" + (f", start {begin:.2f} s" if name == "ours" else ""))
    if options.out:
        figures = {"pairs": len(pairs), "pairs_a_second": speeds, "start_seconds": begin}
        options.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
