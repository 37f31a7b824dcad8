"""Speed and memory of ``describe``: by stage, at several sizes, numbers of proposals and batch sizes, beside a peer.

    python benchmarks/describe.py [--model M] [--size 720 384] [--proposals 100 300] [--batch 1 8] [--repeats 7]
                                  [--threads N] [--no-peer] [--json FILE]

Every configuration runs in a process of its own (``describe_worker.py``), so that its peak memory is its own. The
processes of one size are all started and warmed up first; then they take turns, one round over all pictures each, so
that what changes on the machine during the run meets all of them alike. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WORKER = Path(__file__).with_name("describe_worker.py")
PEER = "torchvision fasterrcnn_mobilenet_v3_large_fpn"
AIM = {"size": 720, "proposals": 300, "batch": 1, "milliseconds": 240.0}
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "camera.png",
    "hubble_deep_field.jpg",
)
QUALITY = 90
RANDOM_NOTE = (
    "Random weights: more boxes survive the final suppression than with a trained model, and no caption ends before "
    "its longest length, so the speaker's time and the gain of captioning only the survivors are not a user's."
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description="Speed and memory of describe, by stage, beside a peer.")
    parser.add_argument("--model", help="name or folder of a checkpoint; without it random weights (seed 0)")
    parser.add_argument("--size", type=_count, nargs="+", default=[720, 384], help="long side of the network's input")
    parser.add_argument("--proposals", type=_count, nargs="+", default=[100, 300])
    parser.add_argument("--batch", type=_count, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=_count, default=7, help="rounds over all pictures")
    parser.add_argument("--threads", type=_count, default=len(os.sched_getaffinity(0)), help="of torch; all cores")
    parser.add_argument("--pictures", type=_count, help="how many; as many as the largest batch")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help=PEER)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args(arguments)
    options.pictures = options.pictures or max(options.batch)
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def write_photographs(folder: Path, count: int, long_side: int) -> list[dict[str, Any]]:
    """``count`` photographs of scikit-image as JPEG files, made larger where their long side is below ``long_side``.

    With ``count`` above the number of photographs they come again, mirrored every other time.
    """
    import skimage
    from PIL import Image, ImageOps

    written = []
    for i in range(count):
        name = PHOTOGRAPHS[i % len(PHOTOGRAPHS)]
        with Image.open(Path(skimage.data_dir) / name) as image:
            image = image.convert("RGB")
        if (factor := long_side / max(image.size)) > 1:
            image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)
        if i // len(PHOTOGRAPHS) % 2:
            image = ImageOps.mirror(image)
        path = folder / f"{i:03d}-{Path(name).stem}.jpg"
        image.save(path, quality=QUALITY)
        written.append({"path": str(path), "name": path.name, "width": image.width, "height": image.height})
    return written


class Worker:
    """A configuration's process."""

    def __init__(self, task: dict[str, Any], threads: int) -> None:
        self.task = task
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps({**task, "threads": threads})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.rounds: list[dict[str, Any]] = []
        self.ready: dict[str, Any] = {}

    def __str__(self) -> str:
        return "{subject}, {proposals} proposals, batch {batch}".format(**self.task)

    def wait(self) -> None:
        """Until it is warm."""
        self.ready = self._read()

    def run(self) -> None:
        """One round."""
        assert self.process.stdin is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        self.rounds.append(self._read())

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the process of {self} ended, see above"}
        if "error" in answer:
            print(f"error: {answer['error']}", file=sys.stderr)
            sys.exit(2)
        return answer


def measure(options: argparse.Namespace, size: int, pictures: Sequence[str], say: Any) -> list[Worker]:
    """All configurations of one size, in turns; the order is reversed every other round."""
    subjects = ("ours", "peer") if options.peer else ("ours",)
    tasks = [
        {"subject": subject, "model": options.model, "size": size, "proposals": n, "batch": b, "pictures": pictures}
        for subject in subjects
        for n in options.proposals
        for b in options.batch
    ]
    workers: list[Worker] = []
    try:
        for task in tasks:
            workers.append(Worker(task, options.threads))
        for worker in workers:
            say(f"size {size}: warming up {worker}")
            worker.wait()
        for i in range(options.repeats):
            say(f"size {size}: round {i + 1} of {options.repeats}")
            for worker in workers[:: -1 if i % 2 else 1]:
                worker.run()
    finally:
        for worker in workers:
            worker.process.communicate()  # at the end of its input a process ends
    return workers


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles (linear between the values)."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": middle, "lower": lower, "upper": upper}


def times(rounds: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Wall milliseconds a picture and their spread, and the median of the CPU milliseconds."""
    return {**spread([row["wall"] for row in rounds]), "cpu": statistics.median(row["cpu"] for row in rounds)}


def with_all(row: dict[str, Any]) -> float:
    """Wall time of a round had it captioned all proposals, as the original did."""
    return row["total"]["wall"] - row["stages"]["speaker"]["wall"] + row["speaker_all"]["wall"]


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Spread of the quotients of the same rounds."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def configuration(task: dict[str, Any], ready: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is reported of one configuration."""
    row = {
        **{key: task[key] for key in ("subject", "size", "proposals", "batch")},
        **ready,
        "boxes": rounds[-1]["boxes"],
        "total": times([r["total"] for r in rounds]),
    }
    if task["subject"] == "peer":
        return row
    parts = [sum(stage["wall"] for stage in r["stages"].values()) for r in rounds]
    return {
        **row,
        "proposals_found": rounds[-1]["proposals"],
        "words": rounds[-1]["words"],
        "stages": {name: times([r["stages"][name] for r in rounds]) for name in rounds[0]["stages"]},
        "rest": spread([r["total"]["wall"] - part for r, part in zip(rounds, parts, strict=True)]),
        "speaker_all": times([r["speaker_all"] for r in rounds]),
        "total_all": spread([with_all(r) for r in rounds]),
    }


def ratios(measured: Sequence[tuple[dict[str, Any], Sequence[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """The comparisons: each has ``what``, the configuration and the spread of its quotients over the rounds."""
    wall = {
        (task["subject"], task["size"], task["proposals"], task["batch"]): [r["total"]["wall"] for r in rounds]
        for task, rounds in measured
    }
    found = []
    for task, rounds in measured:
        subject, size, proposals, batch = key = tuple(task[k] for k in ("subject", "size", "proposals", "batch"))
        where = {"subject": subject, "size": size, "proposals": proposals, "batch": batch}
        if subject == "ours":
            everything, spoken = [with_all(r) for r in rounds], [r["speaker_all"]["wall"] for r in rounds]
            kept = [r["stages"]["speaker"]["wall"] for r in rounds]
            found.append({"what": "all captions / survivors' captions", **where, **ratio(everything, wall[key])})
            found.append({"what": "the same, speaker alone", **where, **ratio(spoken, kept)})
            if (peer := wall.get(("peer", *key[1:]))) is not None:
                found.append({"what": "ours / peer", **where, **ratio(wall[key], peer)})
        one = wall.get((*key[:3], 1))
        if batch != 1 and one is not None:
            found.append({"what": f"batch {batch} / batch 1", **where, **ratio(wall[key], one)})
    return found


def machine(threads: int) -> dict[str, Any]:
    """What it ran on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    packages = ("saywhere", "torch", "torchvision", "timm", "pillow")
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def show(report: dict[str, Any]) -> None:
    """Print the tables, the ratios and the notes."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for size in dict.fromkeys(row["size"] for row in report["configurations"]):
        _show_size(console, size, [row for row in report["configurations"] if row["size"] == size])
    quotients = Table("ratio", "size", "proposals", "batch", "median (quartiles)", title="ratios, round by round")
    for row in report["ratios"]:
        what = row["what"] + (" (peer)" if row["subject"] == "peer" else "")
        cell = f"{row['median']:.2f} ({row['lower']:.2f} to {row['upper']:.2f})"
        quotients.add_row(what, *(str(row[k]) for k in ("size", "proposals", "batch")), cell)
    console.print(quotients)
    for note in report["notes"]:
        console.print(note)


def _show_size(console: Console, size: int, rows: Sequence[dict[str, Any]]) -> None:
    """The table of the configurations of one size."""
    from rich.table import Table

    ours = [row for row in rows if row["subject"] == "ours"]
    table = Table(title=f"long side {size}: ms a picture, median (quartiles)")
    table.add_column("stage")
    for row in ours:
        table.add_column(f"{row['proposals']} proposals\nbatch {row['batch']}", justify="right")
    for name in ours[0]["stages"]:
        table.add_row(name, *(_cell(row["stages"][name]) for row in ours))
    table.add_row("rest", *(_cell(row["rest"]) for row in ours), end_section=True)
    table.add_row("describe, whole", *(_cell(row["total"]) for row in ours))
    table.add_row("with all captions", *(_cell(row["total_all"]) for row in ours))
    table.add_row("speaker, all captions", *(_cell(row["speaker_all"]) for row in ours), end_section=True)
    if peers := [row for row in rows if row["subject"] == "peer"]:
        table.add_row("peer, whole", *(_cell(row["total"]) for row in peers))
        table.add_row("peer, peak MB", *(f"{row['peak_mb']:.0f}" for row in peers), end_section=True)
    table.add_row("peak MB", *(f"{row['peak_mb']:.0f}" for row in ours))
    table.add_row("MB with model loaded", *(f"{row['loaded_mb']:.0f}" for row in ours))
    table.add_row("boxes described", *(f"{row['boxes']:.0f} of {row['proposals_found']:.0f}" for row in ours))
    table.add_row("words a caption", *(f"{row['words']:.1f}" for row in ours))
    console.print(table)


def _cell(row: dict[str, float]) -> str:
    digits = 1 if row["median"] < 100 else 0
    return f"{row['median']:.{digits}f} ({row['lower']:.{digits}f}-{row['upper']:.{digits}f})"


def notes(report: dict[str, Any]) -> list[str]:
    """What a reader of the figures must know."""
    found = [] if report["model"] else [RANDOM_NOTE]
    cores, threads, before = report["machine"]["cores"], report["machine"]["threads"], report["load_before"]
    if before > 0.25 * cores:
        found.append(f"The machine was busy (load {before:.1f} on {cores} cores at the start): no figures to keep.")
    for row in report["configurations"]:
        if row["subject"] == "ours" and all(row[key] == AIM[key] for key in ("size", "proposals", "batch")):
            reached = "reached" if row["total"]["median"] < AIM["milliseconds"] else "not reached"
            found.append(
                f"Aim {reached}: {row['total']['median']:.0f} ms at 720 px, 300 proposals, one picture at a time, on "
                f"{threads} threads; aim below 240 ms."
            )
    return found


def main() -> None:
    """Measure, print, write."""
    from rich.console import Console

    options = parse()
    status = Console(stderr=True)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        pictures = write_photographs(Path(temporary), options.pictures, max(options.size))
        paths = [picture.pop("path") for picture in pictures]
        workers = [w for size in options.size for w in measure(options, size, paths, status.print)]
    report: dict[str, Any] = {
        "model": options.model,
        "machine": machine(options.threads),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "repeats": options.repeats,
        "pictures": pictures,
        "configurations": [configuration(w.task, w.ready, w.rounds) for w in workers],
        "ratios": ratios([(w.task, w.rounds) for w in workers]),
    }
    report["notes"] = notes(report)
    show(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
