"""Measure search in indexes of several sizes: milliseconds per query, bytes per image, and the loss by codes.

    saywhere evaluate search --data data/flickr8k --out scores
    python benchmarks/search.py --index scores/index [--sizes 1000 100000 1000000] [--components 64] [--folder DIR]

The vectors are those of the given index. For larger sizes, every other region of an image comes from another image, and
each number gets noise, a fifth of its spread over all regions: images of a large collection differ, while mere
repetitions would differ by noise alone. ``search`` is a whole search in an open index: words to vectors, images, the
regions of ten hits. ``command`` is ``saywhere search`` in its own process, with the files in the page cache. Overlap is
the share of the ten best by whole vectors that a search by codes also finds. Above ``--exact`` images, whole vectors
are read once for all queries, untimed. NumPy has one thread, as in the command: on a busy machine its threads only wait
for each other. With ``--qdrant URL`` the images are also put into a collection there (``:memory:`` is the client's own
engine), which is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported

import numpy as np

import saywhere
from saywhere.files import write_text
from saywhere.models.aligner import ImageVectors
from saywhere.search import Qdrant
from saywhere.search.index import TOP
from saywhere.search.qdrant import QdrantStore, masked
from saywhere.search.scan import Question, Snapshot, best, similarities, without_hubness
from saywhere.search.store import Stamp, Store

QUERIES = (
    "a dog in the snow",
    "two children on a swing",
    "a man rides a bicycle",
    "people at a market",
    "a girl in a red dress",
    "a surfer on a wave",
    "a black dog with a ball in its mouth",
    "a climber on a rock face",
    "a crowd watches a football player",
    "an old man with a beard sits on a bench",
    "a boy jumps into a swimming pool",
    "a woman with sunglasses and a hat",
    "two dogs fight over a stick",
    "a skateboarder on a ramp",
    "a child eats ice cream",
    "a group of people around a fire at night",
    "a bird flies over the water",
    "a motorcyclist on a dirt road",
    "a street with cars and shops",
    "a baby in a bath",
)
SPREAD = 0.2
COLLECTION = "saywhere-benchmark"
TOGETHER = 500
"""Images that are written together."""


def enlarged(snapshot: Snapshot, count: int, seed: int = 0) -> Iterator[list[tuple[str, Stamp, ImageVectors]]]:
    """Yield ``count`` images in parts: those of the snapshot, then copies with regions of others and noise."""
    generator = np.random.default_rng(seed)
    deviation = SPREAD * without_hubness(snapshot.vectors[::10].astype(np.float32))[0].std(axis=0)
    entries = snapshot.extent.entries
    for start in range(0, count, TOGETHER):
        rows = []
        for number in range(start, min(start + TOGETHER, count)):
            image = snapshot.load(number % entries, "")
            if number >= entries:
                other = snapshot.load(int(generator.integers(entries)), "").vectors[1 : len(image) : 2]
                image.vectors[1 : 2 * len(other) : 2] = other
                image.vectors[:] += deviation * generator.standard_normal(image.vectors.shape, np.float32)
            rows.append((f"/images/{number}.jpg", Stamp(0, 0), image))
        yield rows


def build(source: Path, folder: Path, count: int, components: int) -> None:
    """Make an index of that many images unless it exists."""
    if (folder / "index.sqlite").exists():
        return
    with Store(source) as store:
        snapshot, facts = store.snapshot(), store.facts
    with Store(folder, {name: facts[name] for name in ("digest", "model", "size")}) as made:
        for rows in enlarged(snapshot, count):
            made.put(rows)
        made.encode(components)


def spread(seconds: list[float]) -> dict[str, float]:
    """Return median and quartiles in milliseconds."""
    lower, middle, upper = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {"median": round(1e3 * middle, 1), "lower": round(1e3 * lower, 1), "upper": round(1e3 * upper, 1)}


def timed(ask: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall-clock and processor seconds, and the answer."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = ask()
    return time.perf_counter() - wall, time.process_time() - cpu, answer


def best_of_all(index: saywhere.Index, queries: int) -> list[set[str]]:
    """Return the ten best images of each query by whole vectors, which are read once."""
    asked = QUERIES[:queries]
    snapshot = index.store.snapshot()
    score, texts = index.model.require("aligner", "search").config.score, index.model.embed_text(list(asked))
    question = Question.of(texts, np.eye(len(texts), dtype=np.float32), score)
    columns = similarities(snapshot, question).T
    found = (index.store.look_up(snapshot, best(column, TOP).tolist()) for column in columns)
    exact = [set(names or ()) for names in found]
    return [exact[number % len(asked)] for number in range(queries)]


def measure(folder: Path, model: saywhere.Model, threads: int, queries: int, exact: int) -> dict[str, Any]:
    """Search an open index in turns by codes and, up to ``--exact`` images, by whole vectors."""
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with saywhere.Index(folder, model, threads=threads) as index:
        index.search(QUERIES[0])  # warm up
        snapshot, count = index.store.snapshot(), len(index)
        ways = (True, False) if count <= exact else (False,)
        found: dict[bool, list[set[str]]] = {True: [] if count <= exact else best_of_all(index, queries), False: []}
        for number in range(queries):
            for way in ways:
                wall, cpu, hits = timed(lambda way=way, n=number: index.search(QUERIES[n % len(QUERIES)], exact=way))
                times[way].append((wall, cpu))
                found[way].append({hit.image for hit in hits})
    shared = [len(one & other) / len(one) for one, other in zip(found[True], found[False], strict=True)]
    row: dict[str, Any] = {"images": count, "overlap": round(statistics.mean(shared), 4)}
    for way, name in ((True, "exact"), (False, "codes")):
        if times[way]:
            row[name] = {"wall": spread([w for w, _ in times[way]]), "cpu": spread([c for _, c in times[way]])}
    row["bytes"] = round((snapshot.vectors.nbytes + snapshot.regions.nbytes) / count)
    return {**row, "code_bytes": round(snapshot.codes.nbytes / count)}


def command(folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Run the command in its own processes; the first run, which fills the page cache, is not counted."""
    program = [sys.executable, "-c", "from saywhere.cli import main; main()", "search", QUERIES[0]]
    arguments = ["--index", str(folder), "--threads", str(threads), "--json", "-"]
    walls: list[float] = []
    busy: list[float] = []
    for _ in range(rounds + 1):
        before = os.times()
        wall, _, _ = timed(lambda: subprocess.run([*program, *arguments], check=True, stdout=subprocess.DEVNULL))
        after = os.times()
        walls.append(wall)
        busy.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return {"wall": spread(walls[1:]), "cpu": spread(busy[1:])}


def measure_served(url: str, folder: Path, model: saywhere.Model, queries: int) -> dict[str, Any]:
    """Search a collection in Qdrant with the images of an index."""
    place = Qdrant(url, COLLECTION)
    if place.exists():
        sys.exit(f"{place} is left from another run: remove it")
    times: list[float] = []
    shared: list[float] = []
    with saywhere.Index(folder, model) as index, QdrantStore(place, index.store.facts) as store:
        try:
            snapshot, exact = index.store.snapshot(), best_of_all(index, queries)
            for start in range(0, snapshot.extent.entries, TOGETHER):
                some = range(start, min(start + TOGETHER, snapshot.extent.entries))
                store.put([(f"/images/{n}.jpg", Stamp(0, 0), snapshot.load(n, "")) for n in some])
            served = saywhere.Index(place, model)
            for number in range(queries):
                wall, _, hits = timed(lambda n=number: served.search(QUERIES[n % len(QUERIES)]))
                times.append(wall)
                shared.append(len(exact[number] & {hit.image for hit in hits}) / len(hits))
        finally:
            with place.asking() as client:
                client.delete_collection(COLLECTION)
    return {"url": masked(url), "overlap": round(statistics.mean(shared), 4), "wall": spread(times)}


def main(arguments: list[str] | None = None) -> None:
    """Build, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="index with the real vectors")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--queries", type=int, default=len(QUERIES))
    parser.add_argument("--exact", type=int, default=200_000, help="images up to which whole vectors are timed too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="runs of the command")
    parser.add_argument("--folder", type=Path, help="folder in which indexes are made and kept; temporary by default")
    parser.add_argument("--qdrant", metavar="URL", help="also search a server, or the client's own engine (:memory:)")
    parser.add_argument("--model", default=saywhere.DEFAULT_MODEL)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    model = saywhere.load(options.model, threads=options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.sizes:
            folder = (options.folder or Path(temporary)) / f"{size}-{options.components}"
            build(options.index, folder, size, options.components)
            row = measure(folder, model, options.threads, options.queries, options.exact)
            if options.qdrant:
                row["qdrant"] = measure_served(options.qdrant, folder, model, options.queries)
            row["command"] = command(folder, options.threads, options.rounds)
            print(json.dumps(row), flush=True)
            rows.append(row)
    if options.out:
        write_text(
            options.out, json.dumps({"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}) + "\n"
        )


if __name__ == "__main__":
    main()
