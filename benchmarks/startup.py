"""Measure seconds and memory of whole commands, with the two engines in turns, and their ratios.

    python benchmarks/startup.py [PHOTO] [--rounds 5] [--engines onnx torch] [--model flickr-coco] [--json FILE]

Without a photograph it is scikit-image's astronaut. Every round runs describe, ground and caption once with each
engine. Prints medians of the rounds with minimum and maximum: wall-clock seconds, and processor seconds, which a busy
machine disturbs less. Memory is the peak resident set of the process. A first, uncounted round fills the disk cache and
Python's compiled modules, which an installation by pip has from the beginning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from saywhere.files import write_text

ENGINES = ("onnx", "torch")
COMMANDS = {
    "describe": ["describe", "{photo}", "--top", "5"],
    "ground": ["ground", "{photo}", "a dog in the snow"],
    "caption": ["caption", "{photo}"],
}


def measure(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return wall-clock and processor seconds, and megabytes of memory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


Found = dict[str, dict[str, list[tuple[float, float, float]]]]
"""Of each command and engine what each round measured: seconds on the wall and of the processor, megabytes."""


def take_turns(photo: Path, rounds: int, engines: Sequence[str], model: str) -> Found:
    """Measure all commands with each engine in turns; the first round is not counted."""
    program = [sys.executable, "-c", "from saywhere.__main__ import main; main()"]  # as the command saywhere does
    found: Found = {name: {engine: [] for engine in engines} for name in COMMANDS}
    for number in range(rounds + 1):
        for name, words in COMMANDS.items():
            for engine in engines:
                filled = [word.format(photo=photo) for word in words]
                result = measure([*program, *filled, "--engine", engine, "--model", model])
                if number:
                    found[name][engine].append(result)
    return found


def medians(found: Found) -> dict[str, dict[str, list[float]]]:
    """Return the medians of the rounds."""
    return {
        name: {engine: [statistics.median(values) for values in zip(*rows, strict=True)] for engine, rows in by.items()}
        for name, by in found.items()
    }


def table(found: Found) -> list[str]:
    """Return a Markdown table: medians with the smallest and the largest, and ratios of two engines."""
    engines = list(next(iter(found.values())))
    columns = [f"{engine}, {unit}" for engine in engines for unit in ("s", "s of processor", "MB")]
    ratios = ["time on the wall", "time of the processor", "memory"] if len(engines) == 2 else []
    columns += [f"ratio of {what}" for what in ratios]
    lines = [f"| command | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, middle in medians(found).items():
        cells: list[str] = []
        for engine in engines:
            wall, processor, memory = zip(*found[name][engine], strict=True)
            cells += [f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in (wall, processor)]
            cells.append(f"{statistics.median(memory):.0f}")
        if ratios:
            cells += [f"{one / other:.3f}" for one, other in zip(*middle.values(), strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--model", default="flickr-coco")
    parser.add_argument("--json", type=Path, help="write the medians and the table to this file")
    options = parser.parse_args()
    if options.photo is None:
        import skimage

        options.photo = Path(skimage.data_dir) / "astronaut.png"
    found = take_turns(options.photo, options.rounds, options.engines, options.model)
    print("\n".join(table(found)))
    if options.json is not None:
        write_text(options.json, json.dumps({"medians": medians(found), "table": table(found)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
