"""Scores of all pictures with all sentences (Eq. 8): in blocks, in one piece, and with a plain double loop.

    python benchmarks/rank.py [--pictures 1000] [--sentences 5000] [--out rank.json]

Areas and words are random, so that nothing but the arithmetic counts: 20 areas a picture, sentences of 6 to 18 words,
vectors of 512 numbers. Each way runs in a process of its own, which reports its time and by how much its memory grew at
its highest; the double loop scores only as many pairs as ``--loop`` says, and its speed is that of those. All three
must give the same scores where they overlap.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saywhere.models.alignment_score import pair_scores, score_matrix

AREAS, SHORTEST, LONGEST = 20, 6, 18
WAYS = ("blocks", "one piece", "double loop")
SHOWN = 50  # scores that are compared


def material(pictures: int, sentences: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random areas and words with their masks; the same in every process."""
    generator = torch.Generator().manual_seed(0)
    areas = torch.randn(pictures, AREAS, size, generator=generator)
    words = torch.randn(sentences, LONGEST, size, generator=generator)
    counts = torch.randint(SHORTEST, LONGEST + 1, (sentences,), generator=generator)
    return areas, torch.ones(pictures, AREAS, dtype=torch.bool), words, torch.arange(LONGEST) < counts[:, None]


def double_loop(areas: Tensor, areas_real: Tensor, words: Tensor, words_real: Tensor, pairs: int) -> Tensor:
    """The first ``pairs`` scores, sentence by sentence for one picture after the other, as Eq. 8 is written."""
    scores: list[Tensor] = []
    for picture, there in zip(areas, areas_real, strict=True):
        for sentence, real in zip(words, words_real, strict=True):
            if len(scores) == pairs:
                return torch.stack(scores)
            scores.append((sentence[real] @ picture[there].T).amax(dim=1).sum())
    return torch.stack(scores)


def peak() -> float:
    """The largest memory this process has had, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@torch.no_grad()
def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of one way, and its first scores."""
    torch.set_num_threads(options.threads)
    sets = material(options.pictures, options.sentences, options.size)
    small = tuple(part[:20] for part in sets)
    pair_scores(small[0], small[1], small[2], small[3])  # warm up
    pairs, before, started = options.pictures * options.sentences, peak(), time.perf_counter()
    if way == "double loop":
        pairs = min(pairs, options.loop)
        scores = double_loop(*sets, pairs)
    else:
        scores = (score_matrix if way == "blocks" else pair_scores)(*sets).flatten()
    seconds = time.perf_counter() - started
    row = {"way": way, "pairs": pairs, "seconds": round(seconds, 3), "pairs_per_second": round(pairs / seconds)}
    return {**row, "grew_mb": round(peak() - before, 1), "scores": scores[:SHOWN].tolist()}


def _answer(way: str, options: argparse.Namespace, connection: Any) -> None:
    connection.send(measure(way, options))


def in_a_process(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """:func:`measure` in a fresh process, whose memory is its own."""
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
    """Refuse figures of ways that do not compute the same."""
    found = [torch.tensor(row["scores"]) for row in rows if "scores" in row]
    for other in found[1:]:
        count = min(len(found[0]), len(other))
        torch.testing.assert_close(found[0][:count], other[:count], rtol=1e-4, atol=1e-3)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Scores of Eq. 8: pairs per second and memory.")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--size", type=int, default=512, help="of the vectors")
    parser.add_argument("--loop", type=int, default=100_000, help="pairs of the double loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = [in_a_process(way, options) for way in options.ways]
    check(rows)
    print(f"| {options.pictures:,} pictures, {options.sentences:,} sentences | pairs a second | memory grew by |")
    print("|---|---|---|")
    for row in rows:
        row.pop("scores", None)
        figures = row.get("failed") or f"{row['pairs_per_second']:,} | {row['grew_mb']:,.0f} MB"
        print(f"| {row['way']} | {figures} |")
    if options.out:
        facts = {"torch": torch.__version__, "machine": platform.machine(), "threads": options.threads}
        sizes = {"pictures": options.pictures, "sentences": options.sentences, "size": options.size}
        options.out.write_text(json.dumps({**facts, **sizes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
