"""One configuration in a process of its own: ``describe.py`` starts it and asks it for one round at a time.

It gets its task as JSON on the command line. On its standard output it writes one JSON line when it is warm, and one
for each line it reads from its standard input: the times of one round over all pictures.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WARM_UP = 2
STAGES = (
    "decode + resize",
    "backbone",
    "pyramid",
    "RPN head",
    "RPN NMS",
    "pooling",
    "recognition",
    "final NMS",
    "speaker",
)
VOCABULARY_SIZE = 2200


def peak_mb() -> float:
    """The most memory this process ever held, in MB of 1024 * 1024 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


class Stopwatch:
    """Wall and CPU milliseconds by name, added up until they are taken."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with its time added to ``name`` at each call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                total = self.times.setdefault(name, [0.0, 0.0])
                total[0] += 1000 * (time.perf_counter() - wall)
                total[1] += 1000 * (time.process_time() - cpu)

        return call

    def take(self, pictures: int) -> dict[str, dict[str, float]]:
        """The times so far, a picture, and start again from nothing."""
        times, self.times = self.times, {}
        return {name: {"wall": wall / pictures, "cpu": cpu / pictures} for name, (wall, cpu) in times.items()}


class Ours:
    """``DenseCap.describe`` itself, with a stopwatch around each part once it is warm.

    Args:
        task: ``model`` (name, folder or None), ``size``, ``proposals``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        from saywhere.models import densecap
        from saywhere.models.checkpoint import load
        from saywhere.models.densecap_config import DenseCapConfig

        options = {"long_side": task["size"], "proposals": task["proposals"]}
        if task["model"] is None:
            import torch

            from saywhere.text import Vocabulary

            torch.manual_seed(0)
            vocabulary = Vocabulary({f"word{i}": 1 for i in range(VOCABULARY_SIZE)})
            self.model = densecap.DenseCap(DenseCapConfig(**options), vocabulary, pretrained_backbone=False).eval()
        else:
            trained = load(task["model"])
            config = dataclasses.replace(trained.config, **options)
            self.model = densecap.DenseCap(config, trained.vocabulary, pretrained_backbone=False).eval()
            self.model.load_state_dict(trained.state_dict())
        self.watch = Stopwatch()
        self.codes: list[Any] = []
        self.module: Any = densecap

    def describe(self, paths: Sequence[str]) -> list[Any]:
        """Regions of one batch."""
        return self.model.describe(list(paths))

    def start_watching(self) -> None:
        """Put the stopwatch around the parts of ``describe``; each is called by it and by nothing else here."""
        model, timed = self.model, self.watch.timed
        self.module.open_picture = timed("decode + resize", self.module.open_picture)
        parts: list[tuple[Any, str, str]] = [
            (model.backbone, "forward", "backbone"),
            (model, "neck", "pyramid"),
            (model.localization, "forward", "RPN head"),
            (model.localization, "propose", "RPN NMS"),
            (model, "pool", "pooling"),
            (model.recognition, "forward", "recognition"),
            (model, "select", "final NMS"),
            (model, "_say", "speaker"),
        ]
        for owner, attribute, name in parts:
            setattr(owner, attribute, timed(name, getattr(owner, attribute)))
        model.preprocess = timed("decode + resize", model.preprocess)
        recognise = model.recognition.forward

        def remember(features: Any) -> Any:
            found = recognise(features)
            self.codes = [found.codes]
            return found

        model.recognition.forward = remember
        self.speak_all = self.watch.timed("speaker, all proposals", type(model)._say)

    def round(self, batches: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Describe all pictures once, batch by batch, and after each also say captions of all its proposals."""
        described: list[Any] = []
        whole = self.watch.timed("total", self.describe)
        said = 0
        for batch in batches:
            described += whole(batch)
            codes = self.codes.pop()
            said += len(codes)
            self.speak_all(self.model, codes)
        times = self.watch.take(len(described))
        captions = [caption for regions in described for caption in regions.captions]
        return {
            "total": times.pop("total"),
            "speaker_all": times.pop("speaker, all proposals"),
            "stages": {name: times[name] for name in STAGES},
            "boxes": len(captions) / len(described),
            "proposals": said / len(described),
            "words": sum(len(caption.split()) for caption in captions) / max(len(captions), 1),
        }


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
            rpn_post_nms_top_n_test=task["proposals"],
        ).eval()
        self.watch = Stopwatch()

    def describe(self, paths: Sequence[str]) -> list[Any]:
        """Detections of one batch; pictures are decoded as ours are."""
        import torch
        from torchvision.transforms.functional import pil_to_tensor

        from saywhere.images import open_picture

        pictures = [pil_to_tensor(open_picture(path, self.size).pixels).float() / 255 for path in paths]
        with torch.inference_mode():
            return self.model(pictures)

    def start_watching(self) -> None:
        """Nothing: only the whole is timed."""

    def round(self, batches: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Detect in all pictures once, batch by batch."""
        whole = self.watch.timed("total", self.describe)
        found = [detection for batch in batches for detection in whole(batch)]
        boxes = sum(len(detection["boxes"]) for detection in found)
        return {"total": self.watch.take(len(found))["total"], "boxes": boxes / len(found)}


def work(task: dict[str, Any], requests: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Warm up, say so with the memory it took, then answer each request with one round."""
    import torch

    torch.set_num_threads(task["threads"])
    subject = {"ours": Ours, "peer": Peer}[task["subject"]](task)
    start = peak_mb()
    size, pictures = task["batch"], task["pictures"]
    batches = [pictures[i : i + size] for i in range(0, len(pictures), size)]
    for _ in range(WARM_UP):
        for batch in batches:
            subject.describe(batch)
    ready: dict[str, Any] = {"loaded_mb": start, "peak_mb": peak_mb()}
    if isinstance(subject, Ours):
        ready["parameters"] = sum(p.numel() for p in subject.model.parameters())
    subject.start_watching()
    answer(ready)
    for _ in requests:
        answer(subject.round(batches))


def main() -> None:
    """Keep the standard output for answers; what libraries print goes to the error stream."""
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
