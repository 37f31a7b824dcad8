"""Attention correctness of a captioner on a data set, one line a picture, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saywhere.data.entities import MarkedPicture
from saywhere.errors import UserError
from saywhere.evaluation.attention import (
    AttentionCorrectness,
    Spread,
    entity_boxes,
    generated_mentions,
    given_mentions,
    names,
)
from saywhere.evaluation.task_report import facts, table, write_report
from saywhere.images import ImageError
from saywhere.models.captioner import Captioner

LINES = "attention.jsonl"
"""The file of a run: of each picture the correctness of each mention."""
SENTENCES = ("given", "generated")
PAPER = ("paper: Areas of Attention, Flickr30k test", "40.2", "61.1", "", "")
"""Table 3: its spatial transformers, trained on Flickr30k, in percent; uniform attention is not in the paper."""

Row = Mapping[str, Any]


def measure_picture(
    model: Captioner, picture: MarkedPicture, generated: bool, beam: int | None, spread: Spread
) -> dict[str, Any]:
    """Of one picture the correctness of each mention, in the ``given`` sentences and in the ``generated`` one.

    ``uniform_given`` and ``uniform_generated`` are those of uniform attention over the same areas.
    """
    (encoding,) = model.encode([picture.image])
    boxes, size = entity_boxes(picture), (picture.width, picture.height)
    given, said = AttentionCorrectness(spread), AttentionCorrectness(spread)
    heard = model.attend(encoding, [sentence.text for sentence in picture.sentences])
    for sentence, seen in zip(picture.sentences, heard, strict=True):
        given.add(seen.weights, given_mentions(sentence), seen.areas, boxes, size)
    row: dict[str, Any] = {"given": given.found, "uniform_given": given.control}
    if generated:
        seen = model.caption(encoding, beam, attention=True)
        said.add(seen.weights, generated_mentions(seen.words, names(picture)), seen.areas, boxes, size)
        row |= {"generated": said.found, "uniform_generated": said.control, "sentence": seen.sentence}
    return row


def measure_missing(
    model: Captioner,
    pictures: Mapping[str, MarkedPicture],
    path: Path,
    generated: bool,
    beam: int | None,
    spread: Spread,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Add a line to ``path`` for each of the named ``pictures`` that has none.

    Returns:
        the names of those that cannot be read, with the reasons.
    """
    skipped: dict[str, str] = {}
    done = read_rows(path)
    for name, picture in pictures.items():
        if name in done:
            continue
        try:
            row = measure_picture(model, picture, generated, beam, spread)
            _append(path, {"image": name, **row})
        except ImageError as error:
            skipped[name] = str(error).removeprefix(f"{picture.image}: ")
        advance()
    return skipped


def _append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_rows(path: Path) -> dict[str, Row]:
    """The lines of a run by picture; half a line, which a killed run may leave at the end, is cut off the file.

    Raises:
        UserError: a line is something else.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with open(path, "r+b") as lines:
            lines.truncate(len(whole))
    rows: dict[str, Row] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            rows[row.pop("image")] = row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} line {number}: not a line of saywhere evaluate attention; remove it") from error
    return rows


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over all mentions of all pictures, from 0 to 1, and how many there are.

    ``given``, ``generated``, ``uniform_given`` and ``uniform_generated`` are None without a mention.
    """
    result: dict[str, Any] = {"images": len(rows)}
    for kind in SENTENCES:
        for name in (kind, f"uniform_{kind}"):
            values = [value for row in rows for value in row.get(name, ())]
            result[name] = sum(values) / len(values) if values else None
        result[f"{kind}_mentions"] = sum(len(row.get(kind, ())) for row in rows)
    return result


def write_attention_report(folder: Path, figures: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.md``: the figures of :func:`total`, and how they came about."""
    rows = [
        (title, *(percent(figures[f"{prefix}{kind}"]) for kind in SENTENCES), *(figures[k] for k in counts))
        for title, prefix, counts in (
            ("model", "", ("given_mentions", "generated_mentions")),
            ("uniform attention", "uniform_", ("given_mentions", "generated_mentions")),
        )
    ]
    head = ("attention correctness, %", "given sentences", "generated sentences", "mentions, given", "generated")
    lengths = {"skipped", "data_problems"}
    shown = {name.replace("_", " "): len(v) if name in lengths else v for name, v in known.items()}
    lines = ["# Attention correctness", "", *table(head, [*rows, PAPER]), ""]
    lines += facts({"pictures": figures["images"], **shown})
    write_report(folder, {"task": "attention", **figures, **known}, lines)


def percent(share: float | None) -> str:
    """A share as the paper prints it, or a dash if there is none."""
    return "–" if share is None else f"{100 * share:.1f}"
