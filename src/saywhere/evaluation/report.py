"""Reports of all tasks: ``report.json`` for programs, ``report.md`` for people, and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import saywhere
from saywhere.files import write_atomically


class MeasuredTask(NamedTuple):
    """A task of evaluation.

    Attributes:
        module: module of :mod:`saywhere.evaluation` whose ``run`` measures it.
        parts: model parts that it can measure; one suffices.
        figures: figures for comparisons of models and for model cards: name, and path in a report.
    """

    module: str
    parts: tuple[str, ...]
    figures: dict[str, str]


TASKS = {
    "dense": MeasuredTask("dense", ("densecap",), {
        "mAP": "map", "boxes alone": "detection_map", "language METEOR": "language_meteor",
    }),
    "caption": MeasuredTask("captions", ("captioner",), {
        "BLEU-1": "bleu_1", "BLEU-4": "bleu_4", "METEOR": "meteor", "ROUGE-L": "rouge_l", "CIDEr-D": "cider",
    }),
    "region-captions": MeasuredTask("region_captions", ("densecap",), {
        "METEOR": "meteor", "CIDEr-D": "cider", "words a phrase": "words", "different phrases": "distinct",
    }),
    "rank": MeasuredTask("ranking", ("aligner",), {
        "annotation R@1": "image_to_text.r1", "annotation R@10": "image_to_text.r10", "search R@1": "text_to_image.r1",
        "search R@10": "text_to_image.r10",
    }),
    "search": MeasuredTask("search", ("aligner",), {"R@1": "recall.r1", "R@10": "recall.r10"}),
    "ground": MeasuredTask("grounding", ("densecap", "aligner"), {
        "IoU ≥ 0.5": "accuracy", "pointing": "pointing", "there or not, AUC": "presence.auc",
        "calibration error": "presence.calibration_error",
    }),
    "nouns": MeasuredTask("nouns", ("densecap",), {
        "right nouns, mean over kinds": "kinds.decoder", "of all boxes": "objects.decoder",
    }),
    "attention": MeasuredTask("attention", ("captioner",), {
        "attention correctness, given": "given", "generated": "generated",
    }),
}  # fmt: skip
"""The tasks by name."""


def write_report(folder: Path, row: Mapping[str, Any]) -> None:
    """Write the figures of a task, with the version of saywhere, to ``report.json`` and as tables to ``report.md``."""
    tables = [f"# {row['task']}", "", *as_tables(row)]
    stored = json.dumps({**row, "saywhere": saywhere.__version__}, indent=2)
    for name, text in (("report.json", stored), ("report.md", "\n".join(tables))):
        data = f"{text}\n".encode("utf-8", "replace")
        write_atomically(folder / name, lambda stream, data=data: stream.write(data))


def as_tables(values: Mapping[str, Any], title: str = "") -> list[str]:
    """Return nested figures as Markdown tables: one of the single values, then those of each nested mapping."""
    nested = {name: rows for name, value in values.items() if (rows := _rows(value))}
    single = {name: value for name, value in values.items() if name not in nested}
    lines = [*([f"## {title}", ""] if title else []), *facts(single), ""] if single else []
    for name, rows in nested.items():
        below = f"{title} {name}".strip().replace("_", " ")
        if not all(isinstance(row, Mapping) for row in rows.values()):
            lines += as_tables(rows, below)
            continue
        head = list(dict.fromkeys(column for row in rows.values() for column in row if not _rows(row[column])))
        cells = [(key, *(row.get(column) for column in head)) for key, row in rows.items()]
        lines += [f"## {below}", "", *table(("", *head), cells), ""]
        for key, row in rows.items():
            lines += as_tables({column: value for column, value in row.items() if _rows(value)}, f"{below} {key}")
    return lines


def _rows(value: Any) -> dict[str, Any]:
    """Return the entries of a mapping of figures, or of a list of mappings by number; empty for anything else."""
    if isinstance(value, list | tuple):
        return {str(i): row for i, row in enumerate(value, 1)} if isinstance(next(iter(value), None), Mapping) else {}
    return dict(value) if isinstance(value, Mapping) and not any(isinstance(v, str) for v in value.values()) else {}


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; None is an empty cell."""
    cells = [[cell(value) for value in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def facts(values: Mapping[str, object]) -> list[str]:
    """Return a Markdown table of the circumstances of a run, as names and values.

    Empty values and counts of 0 are left out. Underscores in names become spaces. A mapping (such as the skipped images
    with reasons) is shown by its length, and list items are joined by commas.
    """
    return table(
        ("", ""),
        [(name.replace("_", " "), _fact(value)) for name, value in values.items() if value or type(value) is float],
    )


def _fact(value: object) -> object:
    if isinstance(value, Mapping):
        return len(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def cell(value: object) -> str:
    """Return a value as the text of one cell of a Markdown table."""
    value = round(value, 4) if isinstance(value, float) else value
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def figure_of(report: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a report; None if there is none."""
    value: Any = report
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
