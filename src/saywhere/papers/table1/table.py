"""The table of a comparison: mean and spread over the seeds, what was aimed at, and how each figure was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import saywhere
from saywhere.files import write_text
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.timing import STAGES

COLUMNS = ("external", "rpn", "gt")
ROWS = {
    "full-image-rnn": "Full image RNN",
    "region-rnn": "Region RNN",
    "fcln-external": "FCLN on external",
    "fcln": "FCLN",
    "frequent-phrase": "control: most frequent phrase",
    "nearest-region": "control: nearest region's phrase",
    "frequent-phrase-refined": "most frequent phrase on FCLN's boxes",
    "nearest-region-refined": "nearest region's phrase on FCLN's boxes",
}
BASELINES, CONTROLS = ("full-image-rnn", "region-rnn"), ("frequent-phrase", "nearest-region")
REFINED = ("frequent-phrase-refined", "nearest-region-refined")
TIMED = {
    "full-image-rnn": "region-rnn/external",
    "region-rnn": "region-rnn/external",
    "fcln-external": "fcln/external",
    "fcln": "fcln/rpn",
}
"""The row of the table for each of the timed systems."""


@dataclass(frozen=True, eq=False)
class Results:
    """The measurements of a table.

    Attributes:
        plan: the recipe.
        data: name of the data set.
        images: images measured.
        meteor: version of the scorer.
        scores: by row, column and seed ``map``, ``detection_map`` and ``language_meteor``, as fractions.
        times: ``systems``, as :func:`saywhere.papers.table1.timing.take_times` gives them, and ``about``.
        boxes: mean number of boxes an image, by column.
    """

    plan: Comparison
    data: str
    images: int
    meteor: str
    scores: Mapping[tuple[str, str, int], Mapping[str, float]]
    times: Mapping[str, Any]
    boxes: Mapping[str, float]

    def values(self, row: str, column: str, score: str) -> list[float]:
        """Return a score of a cell, for each seed in order."""
        found = (self.scores.get((row, column, seed)) for seed in self.plan.seeds)
        return [scores[score] for scores in found if scores is not None]

    def ratios(self, row: str, others: tuple[str, ...]) -> list[float]:
        """Return for each seed AP of ``row`` over the best of ``others``, with RPN proposals."""
        best = [max(found) for found in zip(*(self.values(other, "rpn", "map") for other in others), strict=True)]
        own = self.values(row, "rpn", "map")
        return [mine / theirs if theirs else float("inf") for mine, theirs in zip(own, best, strict=True)]

    def aims(self) -> list[dict[str, Any]]:
        """Return what the comparison is to show, with each seed's figure (time: each clock's)."""
        found = []
        for name, others, at_least in (
            ("AP of FCLN over the best baseline's", BASELINES, 1.0),
            ("AP of FCLN over the Region RNN's", ("region-rnn",), 1.3),
            ("AP of FCLN over the better control's", CONTROLS, 2.0),
            ("AP of FCLN over the better control's on FCLN's boxes", REFINED, 2.0),
        ):
            ratios = self.ratios("fcln", others)
            reached = fmean(ratios) > 1 if at_least == 1 else fmean(ratios) >= at_least
            found.append({"aim": name, "at_least": at_least, "each": ratios, "mean": fmean(ratios), "reached": reached})
        for system in ("region-rnn/rpn", "region-rnn/external"):
            clocks = [
                self.times["systems"][system][clock]["total"] / self.times["systems"]["fcln/rpn"][clock]["total"]
                for clock in ("wall", "processor")
            ]
            name = f"time of the Region RNN ({system.partition('/')[2]} proposals) over FCLN's, wall and processor"
            found.append(
                {"aim": name, "at_least": 13.0, "each": clocks, "mean": fmean(clocks), "reached": min(clocks) >= 13}
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``table.json``; scores are fractions, times milliseconds."""
        rows: dict[str, Any] = {}
        for row in ROWS:
            cells = {}
            for column in COLUMNS:
                source = ("fcln", "external") if (row, column) == ("fcln-external", "external") else (row, column)
                names = ("map", "detection_map", "language_meteor")
                values = {score: self.values(*source, score) for score in names}
                if values["map"]:
                    cells[column] = {score: _summary(of) for score, of in values.items()}
            rows[row] = {"name": ROWS[row], "cells": cells, "milliseconds": self._times(row)}
        return {
            "task": "comparison",
            "name": self.plan.name,
            "protocol": "clean",
            "data": self.data,
            "split": self.plan.data.validation,
            "images": self.images,
            "seeds": list(self.plan.seeds),
            "external": self.plan.external,
            "proposals": self.plan.proposals,
            "boxes_an_image": dict(self.boxes),
            "meteor_version": self.meteor,
            "rows": rows,
            "times": dict(self.times),
            "aims": self.aims(),
            "saywhere": saywhere.__version__,
        }

    def _times(self, row: str) -> dict[str, Any] | None:
        return self.times["systems"].get(TIMED.get(row, ""))


def _summary(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "spread": stdev(values) if len(values) > 1 else None, "each": values}


def write_table(results: Results, out: Path, command: str) -> list[Path]:
    """Write ``table.json`` and ``table.md`` into ``out``; return their paths."""
    table = {**results.to_dict(), "command": command}
    write_text(out / "table.json", json.dumps(table, indent=2) + "\n")
    write_text(out / "table.md", markdown(results, command))
    return [out / "table.json", out / "table.md"]


def markdown(results: Results, command: str) -> str:
    """Return the table in Markdown, with the aims and how it was measured below it."""
    table = results.to_dict()
    names = {"external": results.plan.external.partition(":")[0], "rpn": "RPN", "gt": "truth"}
    heads = [f"METEOR, {names[column]}" for column in COLUMNS] + [f"AP, {names[column]}" for column in COLUMNS]
    heads += [*STAGES, "total"]
    lines = [
        f"# Comparison {results.plan.name}",
        "",
        f"| Region source | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for row in table["rows"].values():
        cells = [_shown(row["cells"].get(c, {}).get("language_meteor"), 1) for c in COLUMNS]
        cells += [_shown(row["cells"].get(c, {}).get("map"), 100) for c in COLUMNS]
        times = row["milliseconds"]
        cells += [f"{times['wall'][s]:.0f}" if times else "" for s in (*STAGES, "total")]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    lines += [
        "",
        *_caption(results, names, command),
        "",
        "| aim | at least | each | mean | reached |",
        "|---" * 5 + "|",
    ]
    for aim in table["aims"]:
        each = ", ".join(f"{value:.2f}" for value in aim["each"])
        reached = "yes" if aim["reached"] else "no"
        lines.append(f"| {aim['aim']} | {aim['at_least']:g} | {each} | {aim['mean']:.2f} | {reached} |")
    return "\n".join(lines) + "\n"


def _shown(summary: Mapping[str, Any] | None, factor: float) -> str:
    if summary is None:
        return ""
    digits = 2 if factor == 100 else 3
    spread = "" if summary["spread"] is None else f" ± {factor * summary['spread']:.{digits}f}"
    return f"{factor * summary['mean']:.{digits}f}{spread}"


def _caption(results: Results, names: Mapping[str, str], command: str) -> list[str]:
    plan, about = results.plan, results.times["about"]
    first = plan.seeds[0]
    seeds = ", ".join(map(str, plan.seeds))
    spread = f"mean ± standard deviation over the seeds {seeds}" if len(plan.seeds) > 1 else f"seed {seeds}"
    counts = ", ".join(f"{results.boxes[column]:.1f} {names[column]}" for column in COLUMNS)
    return [
        f"{results.data}, split {plan.data.validation}, {results.images} images; {spread}. AP in per cent, protocol "
        f"clean; METEOR: captions against all phrases of the image; {results.meteor}.",
        "",
        f"Boxes of the baselines: {plan.external} and the RPN of seed {first}, at most {plan.proposals} a "
        f"image after suppression at IoU {plan.nms}, and the true boxes (on average {counts}). The baselines' scores "
        "are those of the proposals (of the true boxes: all equal), and their boxes are not refined. FCLN takes the "
        f"external boxes and the {plan.proposals} best of its own RPN as proposals, and scores and refines them; true "
        "boxes it describes as they stand. 'FCLN on external' is the same FCLN, trained with its RPN, given the "
        "external boxes. The controls put their phrases on the baselines' boxes with the proposals' scores; the last "
        "two rows on FCLN's boxes with FCLN's scores, so that only the language differs.",
        "",
        f"Milliseconds an image (wall clock, {about['threads']} threads, float32; median of {about['rounds']} rounds, "
        f"mean of {about['images']} images, all systems by turns in one run; external proposals, but for FCLN; "
        "both RNNs are one network). Processor time and the Region RNN on RPN proposals are in table.json.",
        "",
        f"Command: `{command}`",
    ]
