"""Compare Florence-2 as graphs in ONNX Runtime and by transformers on torch, with random weights.

    python benchmarks/hub.py [--sizes base large] [--kinds fp32 int8 torch] [--tokens 100] [--rounds 3] [--threads N]
                             [--folder DIR] [--json FILE]

No published weights are needed: time and memory do not depend on them. The graphs are exported by the tests' exporter
with the published names, int8 as ``onnxruntime.quantization`` makes it. Each kind runs in a process of its own. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SIZES: dict[str, tuple[Any, ...]] = {
    "tiny": (64, 16, 2, 1, (1, 1, 1, 1), (8, 8, 8, 8), (1, 1, 1, 1), 2),
    "base": (768, 768, 12, 6, (1, 1, 9, 1), (128, 256, 512, 1024), (4, 8, 16, 32), 12, 51289),
    "large": (768, 1024, 16, 12, (1, 1, 9, 1), (256, 512, 1024, 2048), (8, 16, 32, 64), 12, 51289),
}
"""As :class:`tiny_adapters.Florence2Size` has them; tiny is that of the tests."""
KINDS = ("fp32", "int8", "torch")
PROMPT = "What does the image describe?"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure time and memory of Florence-2, as graphs and by transformers."
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer, decoded greedily")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="keep the models there, and reuse them")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)  # of a process of its own: what, folder, size
    return parser.parse_args(arguments)


def make(folder: Path, size: str) -> None:
    """Write missing weights, and missing graphs in fp32 and int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from tiny_adapters import Florence2Size, write_florence2
    from tiny_graphs import export_florence2

    part = folder / "part"  # of what an interrupted run leaves unfinished
    shutil.rmtree(part, ignore_errors=True)
    if not (folder / "weights").is_dir():
        write_florence2(part, Florence2Size(*SIZES[size]), 0.1).rename(folder / "weights")
    if not (folder / "graphs").is_dir():
        export_florence2(part, folder / "weights")
        for path in list((part / "onnx").glob("*.onnx")):
            out = path.with_name(f"{path.stem}_quantized.onnx")
            quantize_dynamic(path, out, weight_type=QuantType.QUInt8, extra_options={"EnableSubgraph": True})
        part.rename(folder / "graphs")


def measure(folder: Path, kind: str, tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Load a model and generate ``tokens`` tokens about a photograph, then one; return medians of the rounds."""
    import skimage
    from PIL import Image

    import saywhere

    if kind == "torch":
        model = saywhere.load(folder / "weights", engine="torch", threads=threads)
    else:
        model = saywhere.load(folder / "graphs", engine="onnx", precision=kind, threads=threads)
    runner: Any = model.adapter.runner  # pyright: ignore[reportAttributeAccessIssue]
    image = Image.open(Path(skimage.data_dir) / "astronaut.png").convert("RGB")
    taken: dict[int, list[tuple[float, float]]] = {1: [], tokens: []}
    lengths: set[int] = set()
    runner.write([image], [PROMPT], 1, 1)  # the first takes longer
    for _ in range(rounds):
        for most, rows in taken.items():
            wall, used = time.perf_counter(), time.process_time()
            ((written, _),) = runner.write([image], [PROMPT], most, 1)
            rows.append((time.perf_counter() - wall, time.process_time() - used))
            lengths.add(len(written))
    walls, used = ([statistics.median(row[i] for row in taken[n]) for n in (1, tokens)] for i in (0, 1))
    return {
        "seconds": walls[1],
        "first": walls[0],
        "processor": used[1],
        "first_processor": used[0],
        "rate": (max(lengths) - 1) / (used[1] - used[0]),
        "tokens": max(lengths),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def megabytes(folder: Path, kind: str) -> float:
    """Return the size of the files that a kind reads."""
    graphs = (folder / "graphs" / "onnx").glob("*.onnx")
    paths = [path for path in graphs if path.stem.endswith("_quantized") == (kind == "int8")]
    paths = [folder / "weights" / "model.safetensors"] if kind == "torch" else paths
    return sum(path.stat().st_size for path in paths) / 1e6


def main() -> None:
    options = parse()
    if options.step:
        what, folder, size = options.step
        logging.disable(logging.WARNING)  # of each shape that the quantization does not infer
        given = options.tokens, options.rounds, options.threads
        print(json.dumps(make(Path(folder), size) if what == "make" else measure(Path(folder), what, *given)))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.sizes:
            folder = (options.folder or Path(temporary)) / size
            for kind in ("make", *options.kinds):
                command = [sys.executable, __file__, "--step", kind, str(folder), size]
                command += [f"--{name}={getattr(options, name)}" for name in ("tokens", "rounds", "threads")]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                if kind != "make":
                    row = json.loads(done.stdout.splitlines()[-1])
                    found[f"{size}, {kind}"] = row | {"file_mb": megabytes(folder, kind)}
    print(f"{options.threads} threads, {options.rounds} rounds, load of the machine {os.getloadavg()[0]:.1f}")
    print("Seconds until a sentence and until its first token, on the wall and of the processor.\n")
    print("| | MB of files | peak MB | s | s of first | processor | of first | tokens | tokens a second of processor |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in found.items():
        times = " | ".join(f"{row[each]:.2f}" for each in ("seconds", "first", "processor", "first_processor"))
        sizes = f"{row['file_mb']:.0f} | {row['peak_mb']:.0f}"
        print(f"| {name} | {sizes} | {times} | {row['tokens']} | {row['rate']:.1f} |")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
