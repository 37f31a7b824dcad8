"""Time the similarities of all images and sentences (Eq. 8): in blocks, in one piece, and by a double loop.

    python benchmarks/rank.py [--images 1000] [--sentences 5000] [--out rank.json]

Regions and words are random, so only the arithmetic is measured: 20 regions an image, sentences of 6 to 18
words, vectors of 512 numbers. Each variant runs in its own process, which reports its time and the growth of its
peak memory. The double loop computes only ``--loop`` pairs, and its speed is that of these. All three must give the
same similarities where they overlap.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.models.aligner import similarity_matrix

REGIONS, SHORTEST, LONGEST = 20, 6, 18
WAYS = ("blocks", "one piece", "double loop")
WHOLE = 1 << 60  # products that are in memory together: all of them
SHOWN = 50  # similarities that are compared

Vectors = list[np.ndarray]


def material(images: int, sentences: int, size: int) -> tuple[Vectors, Vectors]:
    """Return random vectors of each image's regions and of each sentence's words; the same in every process."""
    generator = np.random.default_rng(0)
    regions = [generator.standard_normal((REGIONS, size), np.float32) for _ in range(images)]
    counts = generator.integers(SHORTEST, LONGEST + 1, sentences).tolist()
    return regions, [generator.standard_normal((count, size), np.float32) for count in counts]


def double_loop(regions: Vectors, words: Vectors, pairs: int) -> np.ndarray:
    """Return the first ``pairs`` similarities, sentence by sentence for one image after the other, as in Eq. 8."""
    found: list[float] = []
    for image in regions:
        for sentence in words:
            if len(found) == pairs:
                return np.array(found, np.float32)
            found.append((sentence @ image.T).max(axis=1).sum())
    return np.array(found, np.float32)


def peak() -> float:
    """Return the peak memory of this process in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return time and memory of one variant, and its first similarities."""
    regions, words = material(options.images, options.sentences, options.size)
    similarity_matrix(regions[:20], words[:20])  # warm up
    pairs, before, started = options.images * options.sentences, peak(), time.perf_counter()
    if way == "double loop":
        pairs = min(pairs, options.loop)
        found = double_loop(regions, words, pairs)
    elif way == "blocks":
        found = similarity_matrix(regions, words).reshape(-1)
    else:
        found = similarity_matrix(regions, words, block=WHOLE).reshape(-1)
    seconds = time.perf_counter() - started
    row = {"way": way, "pairs": pairs, "seconds": round(seconds, 3), "pairs_per_second": round(pairs / seconds)}
    return {**row, "grew_mb": round(peak() - before, 1), "similarities": found[:SHOWN].tolist()}


def _answer(way: str, options: argparse.Namespace, connection: Any) -> None:
    connection.send(measure(way, options))


def in_a_process(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return :func:`measure` of a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(way, options, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        return {"way": way, "failed": f"exit code {process.exitcode} (too little memory?)"}
    finally:
        process.join()


def check(rows: list[dict[str, Any]]) -> None:
    """Raise an error if variants differ."""
    found = [np.array(row["similarities"]) for row in rows if "similarities" in row]
    for other in found[1:]:
        count = min(len(found[0]), len(other))
        np.testing.assert_allclose(found[0][:count], other[:count], rtol=1e-4, atol=1e-3)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Similarities of Eq. 8: pairs per second and memory.")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--size", type=int, default=512, help="of the vectors")
    parser.add_argument("--loop", type=int, default=100_000, help="pairs of the double loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # of the processes to come
        os.environ[name] = str(options.threads)
    rows = [in_a_process(way, options) for way in options.ways]
    check(rows)
    print(f"| {options.images:,} images, {options.sentences:,} sentences | pairs a second | memory grew by |")
    print("|---|---|---|")
    for row in rows:
        row.pop("similarities", None)
        figures = row.get("failed") or f"{row['pairs_per_second']:,} | {row['grew_mb']:,.0f} MB"
        print(f"| {row['way']} | {figures} |")
    if options.out:
        facts = {"numpy": np.__version__, "machine": platform.machine(), "threads": options.threads}
        sizes = {"images": options.images, "sentences": options.sentences, "size": options.size}
        options.out.write_text(json.dumps({**facts, **sizes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
