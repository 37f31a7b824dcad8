"""A whole comparison: from a recipe to a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import saywhere
from saywhere import data
from saywhere.data.sample import evenly
from saywhere.errors import UserError
from saywhere.evaluation.dense import CLEAN, DenseCaptioning
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.session import image_name
from saywhere.files import write_text
from saywhere.images import open_image
from saywhere.loading import load
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.papers.external_proposals import NAME, Proposed, SelectiveSearch
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.systems import (
    FCLN,
    FCLN_EXTERNAL,
    FULL,
    NMS,
    REGION,
    ROUNDS,
    STAGES,
    Baselines,
    Timed,
    describe_with_fcln,
    rpn_proposals,
    take_times,
)
from saywhere.regions import Regions
from saywhere.training.densecap import DenseCapSystem
from saywhere.training.progress import track, tracked
from saywhere.training.run import read_split

COLUMNS = ("external", "rpn", "gt")
ROWS = {FULL: "Full image RNN", REGION: "Region RNN", FCLN_EXTERNAL: "FCLN on external", FCLN: "FCLN"}
PROTOCOL = "clean"
SCORES = ("map", "detection_map", "language_meteor")
TIMED_IMAGES = 3


@dataclass(frozen=True, eq=False)
class Results:
    """The measurements of a table.

    Attributes:
        data: name of the data set.
        meteor: version of the scorer.
        scores: ``map``, ``detection_map`` and ``language_meteor``, as fractions, by row, column and seed.
        times: by row, from :func:`saywhere.papers.table1.systems.take_times`.
        boxes: mean number of boxes per image, by column.
    """

    plan: Comparison
    data: str
    images: int
    meteor: str
    scores: Mapping[tuple[str, str, int], Mapping[str, float]]
    times: Mapping[str, Mapping[str, float]]
    boxes: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``table.json``; scores are fractions, times milliseconds."""
        rows: dict[str, Any] = {}
        for row, name in ROWS.items():
            system, columns = (FCLN, ("external",)) if row == FCLN_EXTERNAL else (row, COLUMNS)
            cells = {column: {score: self._summary(system, column, score) for score in SCORES} for column in columns}
            times = self.times[REGION if row == FULL else row]
            rows[row] = {"name": name, "cells": cells, "milliseconds": dict(times)}
        return {
            "task": "comparison",
            "name": self.plan.name,
            "protocol": PROTOCOL,
            "data": self.data,
            "split": self.plan.data.validation,
            "images": self.images,
            "seeds": list(self.plan.seeds),
            "external": NAME,
            "proposals": self.plan.proposals,
            "boxes_an_image": dict(self.boxes),
            "meteor_version": self.meteor,
            "rows": rows,
            "threads": torch.get_num_threads(),
            "saywhere": saywhere.__version__,
        }

    def _summary(self, row: str, column: str, score: str) -> dict[str, Any]:
        values = [self.scores[row, column, seed][score] for seed in self.plan.seeds]
        return {"mean": fmean(values), "spread": stdev(values) if len(values) > 1 else None, "each": values}


def write_table(results: Results, out: Path, command: str) -> list[Path]:
    """Write ``table.json`` and ``table.md`` into ``out``; return their paths."""
    table = {**results.to_dict(), "command": command}
    write_text(out / "table.json", json.dumps(table, indent=2) + "\n")
    write_text(out / "table.md", markdown(results, command))
    return [out / "table.json", out / "table.md"]


def markdown(results: Results, command: str) -> str:
    """Return the table in Markdown, followed by how it was measured."""
    plan, table, first = results.plan, results.to_dict(), results.plan.seeds[0]
    names = {"external": NAME, "rpn": "RPN", "gt": "truth"}
    heads = [f"METEOR, {names[column]}" for column in COLUMNS] + [f"AP, {names[column]}" for column in COLUMNS]
    heads += [*STAGES, "total"]
    lines = [f"# Comparison {plan.name}", "", f"| Region source | {' | '.join(heads)} |"]
    lines.append("|---" * (len(heads) + 1) + "|")
    for row in table["rows"].values():
        cells = [_shown(row["cells"].get(c, {}).get("language_meteor"), 1) for c in COLUMNS]
        cells += [_shown(row["cells"].get(c, {}).get("map"), 100) for c in COLUMNS]
        cells += [f"{row['milliseconds'][stage]:.0f}" for stage in (*STAGES, "total")]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    seeds = ", ".join(map(str, plan.seeds))
    spread = f"mean ± standard deviation over the seeds {seeds}" if len(plan.seeds) > 1 else f"seed {seeds}"
    counts = ", ".join(f"{results.boxes[column]:.1f} {names[column]}" for column in COLUMNS)
    lines += [
        "",
        f"{results.data}, split {plan.data.validation}, {results.images} images; {spread}. AP in per cent, protocol "
        f"{PROTOCOL}; METEOR: captions against all phrases of the image; {results.meteor}.",
        "",
        f"Boxes of the baselines: {NAME} and the RPN of seed {first}, at most {plan.proposals} per "
        f"image after suppression at IoU {NMS}, and the true boxes (on average {counts}). The baselines' scores "
        "are those of the proposals (of the true boxes: all equal), and their boxes are not refined. FCLN takes the "
        f"external boxes and the {plan.proposals} best of its own RPN as proposals, and scores and refines them; true "
        "boxes it describes as they stand. 'FCLN on external' is the same FCLN, trained with its RPN, given the "
        "external boxes.",
        "",
        f"Milliseconds an image (wall clock, {table['threads']} threads, float32; median of {ROUNDS} rounds, all "
        "systems by turns in one run; external proposals, but for FCLN; both RNNs are one network).",
        "",
        f"Command: `{command}`",
    ]
    return "\n".join(lines) + "\n"


def _shown(summary: Mapping[str, Any] | None, factor: float) -> str:
    if summary is None:
        return ""
    digits = 2 if factor == 100 else 3
    spread = "" if summary["spread"] is None else f" ± {factor * summary['spread']:.{digits}f}"
    return f"{factor * summary['mean']:.{digits}f}{spread}"


Cell = tuple[str, str, int]
"""Row, column and seed."""


class Run:
    """Train a comparison's baselines that are missing in ``out``, and describe and measure its images.

    Args:
        out: folder of the trained baselines.

    Attributes:
        images: the measured images, by name.

    Raises:
        UserError: wrong data, or a missing model.
    """

    def __init__(self, plan: Comparison, out: Path) -> None:
        self.plan, self.out, root = plan, out, Path(plan.data.root)
        for seed in plan.seeds:
            if not (plan.fcln_folder(seed) / "config.json").is_file():
                raise UserError(
                    f"{plan.fcln_folder(seed)}: no FCLN of seed {seed}; train it first (docs/comparison.md), or leave "
                    "the seed out: seeds=[...]"
                )
        split = plan.data.validation or ""
        measured = evenly(data.read(root, plan.data.format, split).samples, plan.data.validation_limit)
        self.images = {image_name(sample.image, root if root.is_dir() else root.parent): sample for sample in measured}
        system, config = DenseCapSystem(), self._fcln(plan.seeds[0]).require("densecap", "be FCLN").config
        train, self.data_name = read_split(plan.data, system, config, plan.data.train, plan.data.train_limit)
        dev, _ = read_split(plan.data, system, config, split, None)
        files = {sample.image for sample in measured}
        self.baselines = Baselines(plan, out / "baselines", train, [sample for sample in dev if sample.image in files])

    def _fcln(self, seed: int) -> Model:
        model = load(self.plan.fcln_folder(seed), device="cpu", engine="torch")
        model.require("densecap", "be FCLN")
        return model

    @cached_property
    def boxes(self) -> dict[str, dict[str, Proposed]]:
        """The boxes of each column by image name, shared by the baselines of all seeds: a crop is computed once.

        Proposals are from the first seed's RPN. True boxes are merged as in the metric; the baselines have no scores
        for them, so all score 1.

        Raises:
            UserError: Selective Search is not installed.
        """
        propose, limit, model = SelectiveSearch(), self.plan.proposals, self._fcln(self.plan.seeds[0])
        detector = model.require("densecap", "be FCLN")
        found: dict[str, dict[str, Proposed]] = {column: {} for column in COLUMNS}
        for name, sample in tracked("proposals", self.images.items()):
            found["external"][name] = propose(sample.image).suppressed(NMS, limit)
            found["rpn"][name] = rpn_proposals(detector, model.encode(sample.image), limit)
            every = np.repeat(sample.boxes, [len(phrases) for phrases in sample.phrases], axis=0)
            merged = CLEAN.merge(every.astype(np.float64))[0].astype(np.float32)
            found["gt"][name] = Proposed(merged, np.ones(len(merged), np.float32))
        return found

    @cached_property
    def cells(self) -> dict[Cell, dict[str, Regions]]:
        """The descriptions by each row of the boxes in each column, by image name."""
        cells: dict[Cell, dict[str, Regions]] = {}
        for seed in self.plan.seeds:
            model = self._fcln(seed)
            cells |= {(FCLN, column, seed): {} for column in COLUMNS}
            for name, sample in tracked(f"FCLN of seed {seed}", self.images.items()):
                given = {column: some[name] for column, some in self.boxes.items()}
                found = describe_with_fcln(model, open_image(sample.image), given, self.plan.proposals)
                for column in COLUMNS:
                    cells[FCLN, column, seed][name] = found[column]
            for row in (FULL, REGION):
                network = self.baselines.network(row, seed)
                for column, some in self.boxes.items():
                    cells[row, column, seed] = self.baselines.describe(network, self.images, some, column)
        return cells

    def results(self, meteor: Meteor) -> Results:
        """Return the figures of the table: the scores of all cells, and the times."""
        scores: dict[Cell, dict[str, float]] = {}
        for cell, described in tracked("scoring", self.cells.items()):
            metric = DenseCaptioning(PROTOCOL)
            for name, sample in self.images.items():
                metric.add(described[name], sample.boxes, sample.phrases)
            result = metric.result(meteor.score)
            scores[cell] = {key: getattr(result, key) for key in SCORES}
        counts = {column: sum(map(len, some.values())) / len(some) for column, some in self.boxes.items()}
        return Results(self.plan, self.data_name, len(self.images), meteor.version, scores, self._times(), counts)

    def _times(self) -> dict[str, dict[str, float]]:
        """Measure the times of all systems of the first seed."""
        plan, seed = self.plan, self.plan.seeds[0]
        network = self.baselines.network(REGION, seed)
        timed = Timed(self._fcln(seed), network, SelectiveSearch(), plan.proposals)
        images = [sample.image for sample in evenly(list(self.images.values()), TIMED_IMAGES)]
        with track("time", len(images) * ROUNDS * len(timed.systems())) as progress:
            return take_times(timed, images, lambda: progress.advance(1))
