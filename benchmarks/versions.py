"""How long this checkout's program takes with its bundled model, beside another checkout with its own, in turns.

    git worktree add OTHER COMMIT
    python benchmarks/versions.py OTHER IMAGE [IMAGE ...] [--question caption|describe|ground|embed] [--rounds 5]
                                  [--batch N] [--threads 1]

Prints milliseconds of the processor an image, decoding of the files included, and the ratio of each round. Each
measurement is a process of its own, in which all images are asked once before; the other checkout may be of any
commit whose models have these methods.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
SENTENCE = "a man in a red shirt and a dog on the grass"
QUESTIONS = ("caption", "describe", "ground", "embed")


def measure(question: str, images: list[Path], batch: int, threads: int) -> float:
    """Return the processor's milliseconds an image, of the program that this process imports."""
    import saywhere

    model = saywhere.load(threads=threads)
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    begin = 0.0
    for _ in range(2):  # the first time warms up
        begin = time.process_time()
        for part in parts:
            more = ([SENTENCE] * len(part),) if question == "ground" else ()
            getattr(model, question)(part, *more)
    return (time.process_time() - begin) / len(images) * 1e3


def run(checkout: Path, asked: argparse.Namespace) -> float:
    """Measure a checkout in a process of its own."""
    words = [sys.executable, __file__, str(checkout), *map(str, asked.images), "--question", asked.question]
    words += ["--batch", str(asked.batch), "--threads", str(asked.threads), "--measure"]
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(asked.threads))
    environment = {**os.environ, **one, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {checkout}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--question", choices=QUESTIONS, default="caption")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(measure(asked.question, asked.images, asked.batch, asked.threads))
        return
    if missing := [str(image) for image in asked.images if not image.is_file()]:
        parser.error(f"no such file: {missing[0]}")
    if not (asked.other / "src" / "saywhere").is_dir():
        parser.error(f"{asked.other} is no checkout of saywhere")
    times = np.array([[run(asked.other.resolve(), asked), run(HERE, asked)] for _ in range(asked.rounds)])
    ratios = np.percentile(times[:, 1] / times[:, 0], (0, 50, 100))
    before, now = np.median(times, axis=0)
    print(f"{asked.question}, batch {asked.batch}: {asked.other} {before:.1f} ms, here {now:.1f} ms")
    print(f"here it takes {ratios[1]:.2f} times as long ({ratios[0]:.2f} to {ratios[2]:.2f})")


if __name__ == "__main__":
    main()
