"""The report of attention correctness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.evaluation.report import facts, table, write_report

SENTENCES = ("given", "generated")
"""Whose sentences: people's, or the model's own."""
PAPER = ("paper: Areas of Attention, Flickr30k test", "40.2", "61.1", "", "")
"""Table 3: its spatial transformers, trained on Flickr30k, in percent; uniform attention is not in the paper."""


def write_attention_report(folder: Path, figures: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.md``.

    Args:
        folder: where to.
        figures: of :func:`saywhere.evaluation.attention.run.total`.
        known: how they came about.
    """
    counts = [figures[f"{kind}_mentions"] for kind in SENTENCES]
    rows = [
        (title, *(percent(figures[f"{prefix}{kind}"]) for kind in SENTENCES), *counts)
        for title, prefix in (("model", ""), ("uniform attention", "uniform_"))
    ]
    head = ("attention correctness, %", "given sentences", "generated sentences", "mentions, given", "generated")
    lines = ["# Attention correctness", "", *table(head, [*rows, PAPER]), ""]
    lines += facts({"images": figures["images"], **known})
    write_report(folder, {"task": "attention", **figures, **known}, lines)


def percent(share: float | None) -> str:
    """Return a share as the paper prints it, or a dash if there is none."""
    return "–" if share is None else f"{100 * share:.1f}"
