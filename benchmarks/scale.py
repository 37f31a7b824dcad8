"""Estimate the cost of millions of images from measured processor time and bytes per image.

    python benchmarks/scale.py measure IMAGES [--images 200] [--out benchmarks/scale.json]
    python benchmarks/scale.py table [--measured benchmarks/scale.json] [--processors 16] [--machines 10]

``measure`` puts the first images of a folder into tar archives and measures the processor time of each step on one
thread: listing the archives, embedding for the index, describing, merging shards, coding. ``table`` extrapolates, for
processors of the same speed, an even load and a file system that is no bottleneck.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import saywhere
from saywhere.files import write_text
from saywhere.inference import ResultsFile, find_images, run_images
from saywhere.inference.shards import Shard, Shards
from saywhere.report import silent
from saywhere.search.indexing import index_digest
from saywhere.search.store import Store

RECORD = Path(__file__).with_suffix(".json")
SIZES = (10**6, 10**8, 10**9)
ARCHIVES, TOP, COMPONENTS = 4, 10, 64


def seconds(do: Callable[[], Any]) -> float:
    """Return seconds of processor time."""
    start = time.process_time()
    do()
    return time.process_time() - start


def write_archives(images: Sequence[Path], folder: Path) -> None:
    """Write the images into a few tar archives."""
    for number in range(ARCHIVES):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for path in images[number::ARCHIVES]:
                archive.add(path, path.name)


def embed(index: saywhere.Index, shard: Shard) -> None:
    """Embed the images of a shard, as ``saywhere index --shards`` does."""
    with saywhere.Index(shard.part, index.model) as part:
        for _ in shard.claim.check(part.begin(shard.sources).results(8)):
            pass


def merge(index: saywhere.Index, pattern: str, shards: Shards) -> None:
    """Merge finished shards into an empty index."""
    for results in shards.merging(silent):
        with ExitStack() as stack:
            index.begin([pattern]).merge((stack.enter_context(Store(result)) for result in results), {})


def measure(images: Sequence[Path], folder: Path, name: str) -> dict[str, Any]:
    """Return processor milliseconds and bytes per image, by step."""
    write_archives(images, folder)
    pattern, count = str(folder / "*.tar"), len(images)
    model = saywhere.load(name, threads=1)
    model.describe(images[0])
    model.embed(images[0])  # warm up
    sources = find_images([pattern])
    listing = seconds(lambda: find_images([pattern]))
    with saywhere.Index(folder / "index", model) as index:
        about = {"model": index_digest(model)}
        shards, embedding = Shards(folder / "index" / "shards", ARCHIVES, sources, about, ".index"), 0.0
        for shard in shards.work():
            embedding += seconds(lambda shard=shard: embed(index, shard))
            shard.finish({})
        merging = seconds(lambda: merge(index, pattern, shards))
        coding = seconds(lambda: index.store.encode(COMPONENTS))
        snapshot, sizes = index.store.snapshot(), {path.name: path.stat().st_size for path in index.folder.iterdir()}
        assert len(index) == count
    with ResultsFile(folder / "lines.jsonl") as lines:

        def describe() -> None:
            answers = run_images(lambda images, _: model.describe(images, top=TOP), sources, long_side=model.long_side)
            for one in answers:
                assert one.result is not None
                lines.append(one.result.to_dict(), one.source.name)

        describing = seconds(describe)
    each = {"list": listing, "embed": embedding, "describe": describing, "merge": merging, "code": coding}
    totals = {
        "images": sum(path.stat().st_size for path in folder.glob("*.tar")),
        "lines": (folder / "lines.jsonl").stat().st_size,
        "vectors": snapshot.vectors.nbytes + snapshot.regions.nbytes + snapshot.entries.nbytes,
        "codes": snapshot.codes.nbytes,
        "names": sizes["index.sqlite"],
    }
    return {
        "count": count,
        "ms": {step: round(1000 * value / count, 3) for step, value in each.items()},
        "bytes": {what: round(value / count) for what, value in totals.items()},
    }


def table(measured: dict[str, Any], processors: int, machines: int) -> str:
    """Return the costs as a Markdown table, a column for each number of images."""
    ms, size = measured["ms"], measured["bytes"]
    index = size["vectors"] + size["names"]
    rows: dict[str, Callable[[int], str]] = {
        "index: processor hours": lambda n: hours(n * ms["embed"]),
        f"index: hours of {machines} machines": lambda n: hours(n * ms["embed"] / processors / machines),
        "index: machines to be done in a day": lambda n: f"{-(-n * ms['embed'] // (86_400_000 * processors)):,.0f}",
        "then merged by one process, hours": lambda n: hours(n * ms["merge"]),
        "codes, hours of one process": lambda n: hours(n * ms["code"]),
        "describe: processor hours": lambda n: hours(n * ms["describe"]),
        f"describe: hours of {machines} machines": lambda n: hours(n * ms["describe"] / processors / machines),
        "each process lists its archives, hours": lambda n: hours(n * ms["list"]),
        "images that are read": lambda n: amount(n * size["images"]),
        "the index": lambda n: amount(n * index),
        "shards beside it until they are merged": lambda n: amount(n * index),
        "codes, to be held in memory for searches": lambda n: amount(n * size["codes"]),
        "lines of describe": lambda n: amount(n * size["lines"]),
    }
    lines = [f"| images | {' | '.join(f'{n:,}' for n in SIZES)} |", "|---" * (1 + len(SIZES)) + "|"]
    lines += [f"| {name} | {' | '.join(map(cost, SIZES))} |" for name, cost in rows.items()]
    return "\n".join(lines) + "\n"


def hours(ms: float) -> str:
    """Return a time in hours with two significant digits."""
    return rounded(ms / 3_600_000)


def amount(size: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("MB", "GB", "TB"):
        size /= 1000 if unit != "MB" else 1_000_000
        if size < 1000 or unit == "TB":
            return f"{rounded(size)} {unit}"
    raise AssertionError


def rounded(value: float) -> str:
    """Return a number with two significant digits."""
    short = float(f"{value:.2g}")
    return f"{short:,.0f}" if short >= 10 else f"{short:g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    measuring = what.add_parser("measure")
    measuring.add_argument("folder", type=Path, help="of the images")
    measuring.add_argument("--images", type=int, default=200)
    measuring.add_argument("--model", default=saywhere.DEFAULT_MODEL)
    measuring.add_argument("--out", type=Path, default=RECORD)
    printing = what.add_parser("table")
    printing.add_argument("--measured", type=Path, default=RECORD)
    printing.add_argument("--processors", type=int, default=16, help="of a machine")
    printing.add_argument("--machines", type=int, default=10)
    options = parser.parse_args(arguments)
    if options.what == "table":
        print(table(json.loads(options.measured.read_text()), options.processors, options.machines), end="")
        return
    images = list(itertools.islice((source.path for source in find_images([options.folder])), options.images))
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(images, Path(folder), options.model)
    write_text(options.out, json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
