"""Captions of whole pictures: by a model, as one region that is all of the picture, and their scores on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from saywhere.evaluation.captioning import ORDER, CaptionScores
from saywhere.evaluation.examples import choose
from saywhere.evaluation.pages import Page
from saywhere.evaluation.task_report import facts, table, write_report
from saywhere.files import write_text
from saywhere.images import Picture, Preprocess
from saywhere.regions import Regions

PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run with a model: what it said, and what is true."""

PROTOCOL = "coco"
"""The COCO caption evaluation's rules are the only ones."""


class CaptionModel(Protocol):
    """What is asked of a model."""

    preprocess: Preprocess

    def caption(self, images: list[Picture], beam: int | None = None) -> list[str]:
        """A sentence for each picture."""
        ...


class WholePictures:
    """A captioning model as a describer: each picture has one region, which is all of it.

    Args:
        model: the model.
        beam: hypotheses in decoding; None for the model's own.
    """

    def __init__(self, model: CaptionModel, beam: int | None = None) -> None:
        self.preprocess = model.preprocess
        self._model, self._beam = model, beam

    def describe(
        self,
        images: list[Picture],
        boxes: list[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]:
        """One region for each picture, with its caption; there is nothing to choose by the other arguments."""
        said = self._model.caption(images, beam=self._beam)
        return [
            Regions(p.width, p.height, torch.tensor([[0.0, 0, p.width, p.height]]), captions=(text,), image=p.name)
            for p, text in zip(images, said, strict=True)
        ]


def write_references(references: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write the true sentences as lines ``{"image": NAME, "captions": [TEXT, ...]}``."""
    rows = [{"image": name, "captions": list(texts)} for name, texts in references.items()]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_caption_report(folder: Path, scores: CaptionScores, known: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.md``.

    Args:
        folder: where to.
        scores: the figures.
        known: how they came about: ``data``, ``split``, ``skipped``, ``command`` and whatever else is known.
    """
    row = {"task": "caption", "protocol": PROTOCOL, "data": known["data"], "split": known["split"]}
    head = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")
    lines = [
        "# Captions of pictures",
        "",
        *table(head, [[f"{scores.metrics[name]:.4f}" for name in ORDER]]),
        "",
        *facts(
            {
                "protocol": PROTOCOL,
                "data": known["data"] + (f", split {known['split']}" if known["split"] else ""),
                "pictures": len(scores.cider),
                **{name: value for name, value in known.items() if name not in ("data", "split", "command", "skipped")},
                "pictures skipped": len(known.get("skipped", {})),
                "command": f"`{known['command']}`",
            }
        ),
    ]
    write_report(folder, row | {"images": len(scores.cider)} | scores.metrics | dict(known), lines)


def write_caption_examples(
    folder: Path,
    scores: CaptionScores,
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    pictures: Sequence[Path],
) -> Path:
    """Write ``examples.html``: the pictures whose captions have the best, median and worst CIDEr-D, with the truth."""
    about = "Pictures by the CIDEr-D of their caption: below each what was said, then what people said."
    page = Page(folder, "Best, median and worst captions", about, pictures, across=3)
    order = sorted(scores.cider, key=lambda name: -scores.cider[name])
    for number, (kind, name) in enumerate(choose(order), 1):
        page.heading(f"{kind}: {name}, CIDEr-D {scores.cider[name]:.3f}")
        nothing = Regions(4, 3, torch.zeros(0, 4))
        page.figure(f"{number:02}-{kind}.png", name, nothing, captions[name] or "nothing")
        for text in references[name]:
            page.paragraph(text)
    return page.write()
