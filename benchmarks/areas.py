"""Measure the speed of captions by the kind of attended region (Areas of Attention, section 4.2).

    python benchmarks/areas.py [--repeats 5] [--threads N] [--beam-size 1] [--localizer flickr-coco] [--json FILE]

One photograph of scikit-image; captioners with random weights (seed 0), the default sizes, 2,200 words. They
take turns. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhere.models.model import Model

KINDS: dict[str, dict[str, Any]] = {
    "no regions": {"terms": ["word-state", "word"]},
    "grid": {"attend_to": "grid"},
    "transformer": {"attend_to": "transformer"},
    "proposals": {"attend_to": "proposals"},
}
SEARCHED = "selective search"
"""Proposals as the paper had them: found outside the network, beforehand, from the pixels."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Speed of captions by kind of region.")
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds, after one of warm-up")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of torch; all cores by default"
    )
    parser.add_argument("--beam-size", type=int, default=1, help="beam size in decoding")
    parser.add_argument("--localizer", default="flickr-coco", help="model whose localization layer makes the proposals")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="other sizes of all models")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.threads, options.beam_size) < 1:
        parser.error("--repeats, --threads and --beam-size are at least 1")
    return options


def build(kind: dict[str, Any], sizes: dict[str, Any], localizer: str) -> Model:
    """Return a captioner with random weights; proposals come from a trained layer."""
    import torch

    from saywhere.configs.captioner import CaptionerConfig
    from saywhere.engines.torch import TorchEngine
    from saywhere.models.model import Model
    from saywhere.networks import checkpoint
    from saywhere.networks.captioner.network import Captioner
    from saywhere.options import nest
    from saywhere.text import Vocabulary

    torch.manual_seed(0)
    vocabulary = Vocabulary({f"word{number}": 1 for number in range(2200)})
    network = checkpoint.new_network(Captioner, CaptionerConfig().merge(nest({**sizes, **kind})), vocabulary)
    if network.config.attend_to == "proposals":
        network.trunk.take_from(checkpoint.load_network(localizer, "densecap").trunk)
    return Model(TorchEngine({"captioner": network}))


def ways(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return the timed functions by name: from pixels to caption."""
    import skimage.data

    from saywhere.errors import UserError
    from saywhere.images import open_image
    from saywhere.options import assignments
    from saywhere.papers.external_proposals import SelectiveSearch

    image = open_image(skimage.data.astronaut())
    sizes, beam_size = assignments(options.set), options.beam_size
    models = {name: build(kind, sizes, options.localizer) for name, kind in KINDS.items()}
    found: dict[str, Callable[[], object]] = {
        name: lambda model=model: model.caption(image, beam_size=beam_size, attention=False)
        for name, model in models.items()
    }
    proposing = models["proposals"]
    limit = proposing.require("captioner", "be timed").config.proposals.post_nms_top_n
    try:
        search = SelectiveSearch()
    except UserError:  # the extra proposals is not installed
        return found

    def searched() -> object:
        boxes = search(image).boxes[:limit]
        return proposing.caption(image, beam_size=beam_size, boxes=boxes, attention=False)

    return {**found, SEARCHED: searched}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds per image of each kind, and their ratios to the grid in each round."""
    import torch

    torch.set_num_threads(options.threads)
    work = ways(options)
    wall: dict[str, list[float]] = {name: [] for name in work}
    cpu: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(options.repeats + 1):
        for name, caption in work.items():
            began = time.perf_counter(), time.process_time()
            caption()
            if turn:
                wall[name].append(1000 * (time.perf_counter() - began[0]))
                cpu[name].append(1000 * (time.process_time() - began[1]))
    rows = {
        name: {
            "wall": statistics.median(wall[name]),
            "cpu": statistics.median(cpu[name]),
            "ratio": statistics.median(a / b for a, b in zip(wall[name], wall["grid"], strict=True)),
            "cpu_ratio": statistics.median(a / b for a, b in zip(cpu[name], cpu["grid"], strict=True)),
        }
        for name in work
    }
    return {"threads": options.threads, "beam_size": options.beam_size, "repeats": options.repeats, "kinds": rows}


def main() -> None:
    """Measure, print, write."""
    options = parse()
    report = measure(options)
    print(f"captions of one image, {report['threads']} threads, beam {report['beam_size']}: {report['repeats']} rounds")
    for name, row in report["kinds"].items():
        print(f"{name:17} {row['wall']:7.0f} ms   cpu {row['cpu']:7.0f} ms   {row['ratio']:5.2f} x grid")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
