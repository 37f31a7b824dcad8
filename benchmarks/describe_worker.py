"""Run one configuration in its own process: ``describe.py`` starts it and requests one round at a time.

The task is JSON on the command line. Standard output gets one JSON line after the warm-up, and one for each line of
standard input: the times of one round over all images.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WARM_UP = 2
PROPOSALS = 100
"""Of the peer, unless another number is asked for: as many as the bundled model has."""
STAGES = ("decode + resize", "trunk", "proposals", "region head", "final NMS", "decoder")


def peak_mb() -> float:
    """Return the peak memory of this process in MB of 1024 * 1024 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


class Stopwatch:
    """Sum wall-clock and CPU milliseconds by name until they are taken."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, with its time added to ``name`` at each call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                total = self.times.setdefault(name, [0.0, 0.0])
                total[0] += 1000 * (time.perf_counter() - wall)
                total[1] += 1000 * (time.process_time() - cpu)

        return call

    def take(self, images: int) -> dict[str, dict[str, float]]:
        """Return the times so far per image, and reset them."""
        times, self.times = self.times, {}
        return {name: {"wall": wall / images, "cpu": cpu / images} for name, (wall, cpu) in times.items()}


class TimedTrunk:
    """An engine's trunk whose time is added to the stages; the outputs of the anchors count as the trunk's."""

    def __init__(self, trunk: Any, watch: Stopwatch) -> None:
        self.long_side, self.restore = trunk.preprocess.long_side, trunk.preprocess.restore
        self._resize = watch.timed("decode + resize", trunk.preprocess)
        self.encode, self.propose = watch.timed("trunk", trunk.encode), watch.timed("trunk", trunk.propose)

    @property
    def preprocess(self) -> Any:
        """Return this object, which is called like preprocessing."""
        return self

    def __call__(self, image: Any) -> Any:
        return self._resize(image)


class Ours:
    """``Model.describe`` itself, with a stopwatch around each part once it is warm.

    Args:
        task: ``subject`` (the engine; ``int8`` and ``openvino`` are ``onnx`` in that precision or on that device),
            ``model``, ``size``, ``proposals`` (or None), ``threads``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        import saywhere

        options = {"trunk.long_side": task["size"]}
        if task["proposals"] is not None:
            options["densecap.proposals.post_nms_top_n"] = task["proposals"]
        precision = {"precision": "int8"} if task["subject"] == "int8" else {}
        engine = "torch" if task["subject"] == "torch" else "onnx"
        device = "openvino" if task["subject"] == "openvino" else "cpu"
        self.model = saywhere.load(
            task["model"], device, engine=engine, threads=task["threads"], options=options, **precision
        )
        self.watch = Stopwatch()

    def describe(self, paths: Sequence[str]) -> list[Any]:
        """Return the regions of one batch."""
        return self.model.describe(list(paths))

    def start_watching(self) -> None:
        """Wrap the functions that ``describe`` calls with the stopwatch; nothing else here calls them."""
        from saywhere.models import densecap, encoding, model, phrases

        engine: Any = self.model.engine
        engine.trunk = TimedTrunk(engine.trunk, self.watch)
        parts: list[tuple[Any, str, str]] = [
            (model, "open_image", "decode + resize"),
            (encoding, "propose", "proposals"),
            (self.model.densecap, "region_head", "region head"),
            (densecap, "select", "final NMS"),
            (phrases, "search_each", "decoder"),
        ]
        for owner, attribute, name in parts:
            setattr(owner, attribute, self.watch.timed(name, getattr(owner, attribute)))

    def round(self, batches: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Describe all images once, batch by batch."""
        whole = self.watch.timed("total", self.describe)
        described = [regions for batch in batches for regions in whole(batch)]
        times = self.watch.take(len(described))
        boxes = sum(len(regions) for regions in described) / len(described)
        return {"total": times["total"], "stages": {name: times[name] for name in STAGES}, "boxes": boxes}


class Peer:
    """torchvision's Faster R-CNN (MobileNetV3-Large, feature pyramid) with random weights: boxes without captions.

    Args:
        task: ``size``, ``proposals``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        import torch
        from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

        torch.manual_seed(0)
        self.size = task["size"]
        self.model = fasterrcnn_mobilenet_v3_large_fpn(
            weights=None,
            weights_backbone=None,
            min_size=self.size,
            max_size=self.size,
            rpn_post_nms_top_n_test=task["proposals"] or PROPOSALS,
        ).eval()
        torch.set_num_threads(task["threads"])
        self.watch = Stopwatch()

    def describe(self, paths: Sequence[str]) -> list[Any]:
        """Return the detections of one batch; images are decoded like ours."""
        import torch
        from torchvision.transforms.functional import pil_to_tensor

        from saywhere.images import open_image

        images = [pil_to_tensor(open_image(path, self.size).pixels).float() / 255 for path in paths]
        with torch.inference_mode():
            return self.model(images)

    def start_watching(self) -> None:
        """Do nothing: only the whole is timed."""

    def round(self, batches: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Detect in all images once, batch by batch."""
        whole = self.watch.timed("total", self.describe)
        found = [detection for batch in batches for detection in whole(batch)]
        boxes = sum(len(detection["boxes"]) for detection in found)
        return {"total": self.watch.take(len(found))["total"], "boxes": boxes / len(found)}


def work(task: dict[str, Any], requests: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Warm up, report the memory, then run one round for each request."""
    subject = Peer(task) if task["subject"] == "peer" else Ours(task)
    start = peak_mb()
    size, images = task["batch"], task["images"]
    batches = [images[i : i + size] for i in range(0, len(images), size)]
    for _ in range(WARM_UP):
        for batch in batches:
            subject.describe(batch)
    answer({"loaded_mb": start, "peak_mb": peak_mb()})
    subject.start_watching()
    for _ in requests:
        answer(subject.round(batches))


def main() -> None:
    """Keep standard output for the answers; output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])

    from saywhere.errors import UserError

    def answer(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=answers, flush=True)

    try:
        work(task, iter(sys.stdin.readline, ""), answer)
    except UserError as error:
        answer({"error": str(error)})
        sys.exit(2)


if __name__ == "__main__":
    main()
