"""Whole commands, each in a process of its own, with the two engines in turns: seconds and memory, and their ratios.

    python benchmarks/startup.py PHOTO [--rounds 5]

Every round runs describe, ground and caption once with each engine. What is printed is the median of the rounds, with
the smallest and the largest: seconds on the wall and of the processor, which a busy machine disturbs less; memory is
the largest resident set of the process. A round before them fills the caches: of the disk, and Python's of compiled
modules, which an installation by pip has from the beginning.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENGINES = ("onnx", "torch")
COMMANDS = {
    "describe": ["describe", "{photo}", "--top", "5"],
    "ground": ["ground", "{photo}", "a dog in the snow"],
    "caption": ["caption", "{photo}"],
}


def measure(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return seconds on the wall and of the processor, and megabytes of memory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def rows(photo: Path, rounds: int) -> list[str]:
    """Measure all commands in turns; return a Markdown table."""
    program = [sys.executable, "-c", "from saywhere.cli import main; main()"]
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for number in range(rounds + 1):
        for name, words in COMMANDS.items():
            for engine in ENGINES:
                filled = [word.format(photo=photo) for word in words]
                result = measure([*program, *filled, "--engine", engine])
                if number:
                    found.setdefault((name, engine), []).append(result)
    columns = [f"{engine}, {unit}" for engine in ENGINES for unit in ("s", "s of processor", "MB")]
    lines = [f"| command | {' | '.join(columns)} | time | time of processor | memory |"]
    lines.append("|---|" + "---|" * (len(columns) + 3))
    for name in COMMANDS:
        cells, medians = [], []
        for engine in ENGINES:
            wall, processor, memory = zip(*found[name, engine], strict=True)
            cells += [f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in (wall, processor)]
            cells.append(f"{statistics.median(memory):.0f}")
            medians.append([statistics.median(values) for values in (wall, processor, memory)])
        quotients = [f"{one / other:.3f}" for one, other in zip(*medians, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells + quotients)} |")
    return lines


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("\n".join(rows(options.photo, options.rounds)))


if __name__ == "__main__":
    main()
