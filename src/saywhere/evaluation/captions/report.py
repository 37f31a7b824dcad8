"""The report of captions of whole images: the figures, and a page of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saywhere.evaluation.captions.metrics import ORDER, CaptionScores
from saywhere.evaluation.pages import Page, choose
from saywhere.evaluation.report import facts, table, write_report
from saywhere.regions import Regions

PROTOCOL = "coco"
"""The COCO caption evaluation's rules are the only ones."""


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
        "# Captions of images",
        "",
        *table(head, [[f"{scores.metrics[name]:.4f}" for name in ORDER]]),
        "",
        *facts(
            {
                "protocol": PROTOCOL,
                "data": known["data"] + (f", split {known['split']}" if known["split"] else ""),
                "images": len(scores.cider),
                **{name: value for name, value in known.items() if name not in ("data", "split", "command", "skipped")},
                "images skipped": len(known.get("skipped", {})),
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
    images: Sequence[Path],
) -> Path:
    """Write ``examples.html``: the images whose captions have the best, median and worst CIDEr-D, with the truth.

    Args:
        folder: where to.
        scores: of each image.
        captions, references: of each image.
        images: folders that the names of the images may start from.
    """
    about = "Images by the CIDEr-D of their caption: below each the caption, then what people wrote."
    page = Page(folder, "Best, median and worst captions", about, images, across=3)
    order = sorted(scores.cider, key=lambda name: -scores.cider[name])
    for number, (kind, name) in enumerate(choose(order), 1):
        page.heading(f"{kind}: {name}, CIDEr-D {scores.cider[name]:.3f}")
        page.figure(f"{number:02}-{kind}.png", name, Regions.empty(4, 3), captions[name] or "nothing")
        for text in references[name]:
            page.paragraph(text)
    return page.write()
