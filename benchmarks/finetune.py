"""Measure what ``saywhere finetune`` gains on three sets of category names, and what it forgets.

    python benchmarks/finetune.py DATA [--sets wildlife umbrellas rooms] [--images 30 100 250] [--everyday 157]
                                       [--seed 0] [--folder DIR] [--json FILE]

DATA is a folder with ``wider`` and ``everyday``. From each set ``--images`` images are drawn for training, of
which the command itself holds out a fifth. Sixty others of the set, those of its validation split first, and
photographs of everyday's validation split are described before and after. Existing results in the folder are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETS = {
    "wildlife": ["african_wildlife"],
    "umbrellas": ["umbrella_mask"],
    "rooms": ["robot_home", "amenities"],
}
"""Sets of ``wider``, by the name of what they show."""
OTHERS = 60
"""Images of a set, at most, that are described."""
BUNDLED = "flickr-coco"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what fine-tuning gains and forgets.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--images", nargs="+", type=int, default=[30, 100, 250], help="numbers of training images")
    parser.add_argument("--everyday", type=int, default=157, help="everyday photographs that measure forgetting")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw and of training")
    parser.add_argument("--folder", type=Path, help="keep data, models and reports there, and reuse them")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(arguments)


def read_set(data: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a set's images with boxes; images unseen by the bundled model come last."""
    lines = (json.loads(line) for line in (data / "wider" / "kinds.jsonl").read_text().splitlines())
    rows = [row for row in lines if row["set"] in SETS[name] and row["regions"]]
    for row in rows:
        row["image"] = str((data / "wider" / row["image"]).resolve())
    return sorted(rows, key=lambda row: row["split"] != "train")


def cut(rows: list[dict[str, Any]], images: int, seed: int, folder: Path) -> int:
    """Write ``train.jsonl`` with images of the split train and ``test.jsonl`` with others; return their number."""
    learnt = [number for number, row in enumerate(rows) if row["split"] == "train"]
    chosen = set(np.random.default_rng(seed).permutation(learnt)[:images].tolist())
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for number, row in enumerate(rows):
        split = "train" if number in chosen else "test"
        parts[split].append(json.dumps({**row, "split": split, "sentences": []}) + "\n")
    parts["test"] = parts["test"][-OTHERS:]
    for split, lines in parts.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / f"{split}.jsonl").write_text("".join(lines))
    return len(parts["test"])


def command(*arguments: object) -> float:
    """Run saywhere on one thread and return the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "saywhere", *map(str, arguments)], env=environment)
    if done.returncode > 1:  # 1 says that something of the data is broken
        raise SystemExit(f"saywhere {' '.join(map(str, arguments))}: exit code {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def evaluate(model: object, data: Path, split: str, out: Path, limit: int | None = None) -> dict[str, float]:
    """Return mAP, that of boxes alone, and the METEOR of phrases of given boxes."""
    found: dict[str, float] = {}
    for task, keys in (("dense", ("map", "detection_map")), ("region-captions", ("meteor",))):
        report = out / task / "report.json"
        if not report.exists():
            some = () if limit is None else ("--limit", limit)
            command("evaluate", task, "--model", model, "--data", data, "--split", split, "--out", report.parent, *some)
        found |= {key: json.loads(report.read_text())[key] for key in keys}
    return found


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    everyday = options.data / "everyday" / "coco.jsonl"

    def forgets(model: object, out: Path) -> dict[str, float]:
        return evaluate(model, everyday, "val", out, options.everyday)

    start, rows = forgets(BUNDLED, folder / "everyday"), list[dict[str, Any]]()
    for name in options.sets:
        for images in options.images:
            own = folder / f"{name}-{images}"
            others = cut(read_set(options.data, name), images, options.seed, own)
            seconds, record = own / "seconds.json", own / "model" / "finetune.json"
            if not seconds.exists():
                taken = command("finetune", own / "train", "--out", own / "model", "--seed", options.seed)
                seconds.write_text(json.dumps(taken))
            learnt = {key: json.loads(record.read_text())["result"][key] for key in ("learnt", "held_out", "share")}
            before = evaluate(BUNDLED, own / "test", "test", own / "before")
            after = evaluate(own / "model", own / "test", "test", own / "after")
            row = {"set": name, "images": learnt["learnt"] + learnt["held_out"], "others": others, **learnt}
            row |= {"seconds": json.loads(seconds.read_text()), "before": before, "after": after}
            rows.append(row | {"everyday_before": start, "everyday_after": forgets(own / "model", own / "everyday")})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        rows = measure(options, (options.folder or Path(temporary)).resolve())
    print("| my-images | others | mAP | METEOR of phrases | everyday: METEOR | mAP | share | processor |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        pairs = (("before", "after", "map"), ("before", "after", "meteor"))
        pairs += (("everyday_before", "everyday_after", "meteor"), ("everyday_before", "everyday_after", "map"))
        cells = " | ".join(f"{row[a][key]:.3f}, {row[b][key]:.3f}" for a, b, key in pairs)
        print(f"| {row['images']} {row['set']} | {row['others']} | {cells} | {row['share']} | {row['seconds']:.0f} s |")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
