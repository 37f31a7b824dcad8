"""Measure memory and time of ``saywhere papers convert`` on a synthetic checkpoint of the released size.

    python benchmarks/convert.py FOLDER

writes FOLDER/made-up.t7 (1.2 GB: weights and gradients), converts it in its own process and prints memory and time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def make(path: Path) -> None:
    """Write the checkpoint."""
    import numpy as np
    from torch7_writer import random_checkpoint, write

    words = (*(f"word{i}" for i in range(10_496)), "<UNK>")
    sizes = {"channels": (64, 128, 256, 512, 512), "rpn": 256, "fc6": 4096, "fc7": 4096, "word": 512, "hidden": 512}
    shapes = ((45, 90), (90, 45), (64, 64), (90, 180), (180, 90), (128, 128))
    anchors = (*shapes, (181, 362), (362, 181), (256, 256), (362, 724), (724, 362), (512, 512))
    checkpoint = random_checkpoint(words=words, pool=7, anchors=anchors, **sizes)
    checkpoint["gradients"] = np.zeros(count_weights(sizes, len(words)), np.float32)
    write(path, checkpoint)


def count_weights(sizes: dict[str, Any], words: int) -> int:
    """Return about as many numbers as the weights have."""
    fc = sizes["channels"][-1] * 49 * sizes["fc6"] + sizes["fc6"] * sizes["fc7"]
    return fc + 15_000_000 + 2 * words * sizes["word"]


def main() -> None:
    """Make the checkpoint if it does not exist, convert it, print."""
    parser = argparse.ArgumentParser(description="Memory and time of saywhere papers convert.")
    parser.add_argument("folder", type=Path, help="for the checkpoint (1.2 GB) and the model")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "made-up.t7"
    if not file.exists():
        make(file)
    start = time.perf_counter()
    program = "from saywhere.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, "papers", "convert", str(file), str(folder / "model")], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{file.stat().st_size / 1e9:.2f} GB converted in {time.perf_counter() - start:.0f} s, at most {used:.1f} GB")


if __name__ == "__main__":
    main()
