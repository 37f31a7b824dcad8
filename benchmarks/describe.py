"""Measure speed and memory of ``describe`` by engine, stage, size and batch size, beside a peer.

    python benchmarks/describe.py [--model M] [--engines onnx torch] [--size 384 720] [--batch 1 8] [--repeats 5]
                                  [--proposals N] [--threads 1] [--images N] [--no-peer] [--json FILE]

Every configuration runs in its own process (``describe_worker.py``), so that its peak memory is its own. The processes
of one size are all started and warmed up first. Then they take turns, one round over all images each, so that other
load on the machine affects all of them alike. See README.md beside this file.
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
from typing import Any

import onnxruntime

WORKER = Path(__file__).with_name("describe_worker.py")
PEER = "torchvision fasterrcnn_mobilenet_v3_large_fpn"
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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        description="Measure speed and memory of describe by engine and stage, beside a peer."
    )
    parser.add_argument("--model", default="flickr-coco", help="name or folder of a model")
    parser.add_argument(
        "--engines", nargs="+", choices=("onnx", "int8", "openvino", "torch"), default=["onnx", "torch"]
    )
    parser.add_argument("--size", type=_count, nargs="+", default=[384, 720], help="long side of the network's input")
    parser.add_argument("--batch", type=_count, nargs="+", default=[1, 8])
    parser.add_argument("--proposals", type=_count, help="number of proposals; the model's by default")
    parser.add_argument("--repeats", type=_count, default=5, help="measured rounds over all images")
    parser.add_argument("--threads", type=_count, default=1, help="threads of a computation")
    parser.add_argument("--images", type=_count, help="number of images; the largest batch size by default")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help=PEER)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    options.images = options.images or max(options.batch)
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def write_photographs(folder: Path, count: int, long_side: int) -> list[dict[str, Any]]:
    """Write ``count`` photographs of scikit-image as JPEG files, enlarged where their long side is below ``long_side``.

    If ``count`` exceeds the number of photographs, they repeat, mirrored every other time.
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
    """The process of a configuration."""

    def __init__(self, task: dict[str, Any], threads: int) -> None:
        self.task = task
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps({**task, "threads": threads})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, "HF_HUB_OFFLINE": "1"},
        )
        self.rounds: list[dict[str, Any]] = []
        self.ready: dict[str, Any] = {}

    def __str__(self) -> str:
        return "{subject}, batch {batch}".format(**self.task)

    def wait(self) -> None:
        """Wait until it is warm."""
        self.ready = self._read()

    def run(self) -> None:
        """Run one round."""
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


def measure(options: argparse.Namespace, size: int, images: Sequence[str]) -> list[Worker]:
    """Run all configurations of one size in turns, in reversed order every other round."""
    shared = {"model": options.model, "size": size, "proposals": options.proposals, "images": images}
    subjects = [*options.engines, *(["peer"] if options.peer else [])]
    tasks = [{"subject": subject, "batch": batch, **shared} for subject in subjects for batch in options.batch]
    workers: list[Worker] = []
    try:
        for task in tasks:
            workers.append(Worker(task, options.threads))
        for worker in workers:
            print(f"size {size}: warming up {worker}", file=sys.stderr)
            worker.wait()
        for i in range(options.repeats):
            print(f"size {size}: round {i + 1} of {options.repeats}", file=sys.stderr)
            for worker in workers[:: -1 if i % 2 else 1]:
                worker.run()
    finally:
        for worker in workers:
            worker.process.communicate()  # at the end of its input a process ends
    return workers


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles (linear interpolation)."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": middle, "lower": lower, "upper": upper}


def times(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return milliseconds per image: processor time with its spread, and median wall-clock time."""
    return {**spread([row["cpu"] for row in rounds]), "wall": statistics.median(row["wall"] for row in rounds)}


def configuration(task: dict[str, Any], ready: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the report of one configuration."""
    total = times([r["total"] for r in rounds])
    row = {
        **{key: task[key] for key in ("subject", "size", "batch")},
        **ready,
        "boxes": rounds[-1]["boxes"],
        "total": total,
        "images_a_second_and_core": 1000 / total["median"],
    }
    if task["subject"] == "peer":
        return row
    parts = [sum(stage["cpu"] for stage in r["stages"].values()) for r in rounds]
    return {
        **row,
        "stages": {name: times([r["stages"][name] for r in rounds]) for name in rounds[0]["stages"]},
        "rest": spread([r["total"]["cpu"] - part for r, part in zip(rounds, parts, strict=True)]),
    }


def ratios(measured: Sequence[tuple[dict[str, Any], Sequence[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return ratios of processor time; each has ``what``, the size, the batch and the spread over the rounds."""
    taken: dict[Any, dict[str, list[float]]] = {}
    for task, rounds in measured:
        stages = {"describe": [r["total"]["cpu"] for r in rounds]}
        if "stages" in rounds[0]:
            stages["trunk"] = [r["stages"]["trunk"]["cpu"] for r in rounds]
        taken[task["subject"], task["size"], task["batch"]] = stages
    found = []
    for (subject, size, batch), stages in taken.items():
        others = ((other, taken.get((other, size, batch), {})) for other in ("torch", "peer", "onnx"))
        pairs = [(f"{other} / {subject}", times) for other, times in others if other != subject != "peer"]
        pairs += [("one by one / in batches", taken.get((subject, size, 1), {}))] if batch != 1 else []
        for what, times in pairs:
            for stage in stages.keys() & times.keys():
                quotients = [a / b for a, b in zip(times[stage], stages[stage], strict=True)]
                name = f"{what}, {stage}" + (f" ({subject})" if "batches" in what else "")
                found.append({"what": name, "size": size, "batch": batch, **spread(quotients)})
    return sorted(found, key=lambda row: (row["size"], row["what"], row["batch"]))


def machine(threads: int) -> dict[str, Any]:
    """Return a description of the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    packages = ("saywhere", "numpy", "torch", "torchvision", "timm", "pillow")
    return {
        "processor": names[0] if names else platform.processor(),
        "instructions": [flag for flag in ("avx2", "avx512f", "avx512_vnni") if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,  # several packages bring it
        **{name: version(name) for name in packages},
    }


def show(report: dict[str, Any]) -> None:
    """Print the tables, the ratios and the note."""
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    for size in dict.fromkeys(row["size"] for row in report["configurations"]):
        rows = [row for row in report["configurations"] if row["size"] == size]
        print(f"\nlong side {size}: milliseconds of processor an image, median (quartiles)\n")
        print("\n".join(table(rows)))
    print("\n| ratio, round by round | size | batch | median (quartiles) |\n|---|---|---|---|")
    for row in report["ratios"]:
        cell = f"{row['median']:.2f} ({row['lower']:.2f} to {row['upper']:.2f})"
        print(f"| {row['what']} | {row['size']} | {row['batch']} | {cell} |")
    if report["load_before"] > 0.25 * report["machine"]["cores"]:
        cores = report["machine"]["cores"]
        print(f"\nThe machine was busy: load {report['load_before']:.1f} on {cores} cores at the start.")


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the Markdown table of the configurations of one size."""
    lines = ["| | " + " | ".join(f"{row['subject']}, batch {row['batch']}" for row in rows) + " |"]
    lines.append("|---|" + "---|" * len(rows))
    names = next((list(row["stages"]) for row in rows if "stages" in row), [])
    cells = {name: [_cell(row["stages"][name]) if "stages" in row else "" for row in rows] for name in names}
    cells["rest"] = [_cell(row["rest"]) if "rest" in row else "" for row in rows]
    cells["describe"] = [_cell(row["total"]) for row in rows]
    cells["describe, on the wall"] = [f"{row['total']['wall']:.1f}" for row in rows]
    cells["images a second and core"] = [f"{row['images_a_second_and_core']:.1f}" for row in rows]
    cells["peak MB"] = [f"{row['peak_mb']:.0f}" for row in rows]
    cells["boxes"] = [f"{row['boxes']:.0f}" for row in rows]
    return lines + [f"| {name} | " + " | ".join(row) + " |" for name, row in cells.items()]


def _cell(row: dict[str, float]) -> str:
    return f"{row['median']:.1f} ({row['lower']:.1f} to {row['upper']:.1f})"


def main() -> None:
    """Measure, print, write."""
    options = parse()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        images = write_photographs(Path(temporary), options.images, max(options.size))
        paths = [image.pop("path") for image in images]
        workers = [w for size in options.size for w in measure(options, size, paths)]
    report: dict[str, Any] = {
        "model": options.model,
        "machine": machine(options.threads),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "repeats": options.repeats,
        "images": images,
        "configurations": [configuration(w.task, w.ready, w.rounds) for w in workers],
        "ratios": ratios([(w.task, w.rounds) for w in workers]),
    }
    report["table"] = table(report["configurations"])
    show(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
