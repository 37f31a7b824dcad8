"""Compare the speed of this checkout with another's, each with its own bundled model, in turns.

    git worktree add OTHER COMMIT
    python benchmarks/versions.py OTHER IMAGE [IMAGE ...] [--question caption|describe|ground|embed] [--rounds 5]
                                  [--batch N] [--threads 1]

Prints processor milliseconds per image, decoding included, and the ratio: its median and quartiles over all batches and
rounds. ``describe`` has the command's threshold. Each checkout has one process for all rounds, and each batch goes to
both, one right after the other, so that a busy machine slows both alike. The other checkout may be of any commit whose
models have these methods.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

HERE = Path(__file__).resolve().parents[1]
SENTENCE = "a man in a red shirt and a dog on the grass"
READY = "ready"
QUESTIONS = ("caption", "describe", "ground", "embed")


def answer(question: str, images: list[Path], batch: int, threads: int) -> None:
    """For each batch number read from standard input, print its processor milliseconds per image.

    Other output goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import saywhere
    from saywhere import regions

    model = saywhere.load(threads=threads)
    parts = batches(images, batch)

    def ask(part: list[Path]) -> float:
        more = ([SENTENCE] * len(part),) if question == "ground" else ()
        shown = {"top": 10, "threshold": getattr(regions, "SHOWN", 0.3)} if question == "describe" else {}
        begin = time.process_time()
        getattr(model, question)(part, *more, **shown)
        return (time.process_time() - begin) / len(part) * 1e3

    for part in parts:  # the first time warms up
        ask(part)
    print(READY, file=answers, flush=True)
    for line in sys.stdin:
        print(ask(parts[int(line)]), file=answers, flush=True)


def batches(images: list[Path], batch: int) -> list[list[Path]]:
    """Return the images in batches."""
    return [images[start : start + batch] for start in range(0, len(images), batch)]


class Version:
    """A checkout's program in its own process."""

    def __init__(self, checkout: Path, asked: argparse.Namespace, errors: IO[str]) -> None:
        words = [sys.executable, __file__, str(checkout), *map(str, asked.images), "--question", asked.question]
        words += ["--batch", str(asked.batch), "--threads", str(asked.threads), "--answer"]
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(asked.threads))
        environment = {**os.environ, **one, "PYTHONPATH": str(checkout / "src")}
        self._checkout, self._errors, pipe = checkout, errors, subprocess.PIPE
        self._process = subprocess.Popen(
            words, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True
        )  # a pipe of errors that nobody reads would fill up
        if self._read().strip() != READY:
            self._fail()

    def ask(self, number: int) -> float:
        """Return the time of a batch."""
        assert self._process.stdin is not None
        try:
            print(number, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._fail()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or self._fail()

    def _fail(self) -> NoReturn:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        sys.exit(f"error: {self._checkout}: {(self._errors.read().strip().splitlines() or ['failed'])[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--question", choices=QUESTIONS, default="caption")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        answer(asked.question, asked.images, asked.batch, asked.threads)
        return
    if asked.rounds < 1 or asked.batch < 1:
        parser.error("--rounds and --batch are at least 1")
    if missing := [str(image) for image in asked.images if not image.is_file()]:
        parser.error(f"no such file: {missing[0]}")
    if not (asked.other / "src" / "saywhere").is_dir():
        parser.error(f"{asked.other} is no checkout of saywhere")
    numbers = range(len(batches(asked.images, asked.batch)))
    with contextlib.ExitStack() as stack:
        versions = [
            Version(checkout, asked, stack.enter_context(tempfile.TemporaryFile("w+")))
            for checkout in (asked.other.resolve(), HERE)
        ]
        times = np.array([[each.ask(n) for each in versions] for _ in range(asked.rounds) for n in numbers])
    ratios = np.percentile(times[:, 1] / times[:, 0], (25, 50, 75))
    before, now = np.median(times, axis=0)
    print(f"{asked.question}, batch {asked.batch}: {asked.other} {before:.1f} ms, here {now:.1f} ms")
    print(f"here it takes {ratios[1]:.2f} times as long ({ratios[0]:.2f} to {ratios[2]:.2f})")


if __name__ == "__main__":
    main()
