"""A whole comparison: from a recipe to a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import saywhere
from saywhere import data
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.evaluation.dense import CLEAN, DenseCaptioning, Scorer, write_truth
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.session import image_sources
from saywhere.files import write_text
from saywhere.images import open_image
from saywhere.loading import load
from saywhere.models.model import Model
from saywhere.papers.external_proposals import Proposed, find_proposal_method
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
    checkpoint_digest,
    describe_with_fcln,
    digest,
    rpn_proposals,
    take_times,
)
from saywhere.regions import Regions
from saywhere.training.dataset import evenly
from saywhere.training.densecap import DenseCapSystem
from saywhere.training.progress import track
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
        plan: the recipe.
        data: name of the data set.
        images: images measured.
        meteor: version of the scorer.
        scores: by row, column and seed ``map``, ``detection_map`` and ``language_meteor``, as fractions.
        times: by row, as :func:`saywhere.papers.table1.systems.take_times` gives them.
        boxes: mean number of boxes an image, by column.
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
            "external": self.plan.external,
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
    """Return the table in Markdown, with how it was measured below it."""
    plan, table, first = results.plan, results.to_dict(), results.plan.seeds[0]
    names = {"external": plan.external.partition(":")[0], "rpn": "RPN", "gt": "truth"}
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
        f"Boxes of the baselines: {plan.external} and the RPN of seed {first}, at most {plan.proposals} a "
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


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of a column by name of the image, and a hash of them."""

    of: dict[str, Proposed]
    digest: str


class Run:
    """Make what is not yet in ``out`` of a comparison: the boxes that all seeds share, the baselines, and the cells.

    Args:
        plan: the recipe.
        out: folder of the table, of the boxes, of the trained baselines and of the cells.

    Raises:
        UserError: wrong data, or a model that is missing.
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
        samples = data.read(root, plan.data.format, split)
        chosen = evenly(samples.samples, plan.data.validation_limit)
        measured = data.Samples(tuple(chosen), samples.name, samples.split)
        write_truth(measured, root, out / "truth.jsonl")
        self.truth = RegionLines(out / "truth.jsonl", several=True)
        by_file = {sample.image: sample for sample in chosen}
        self.images = {source.name: by_file[source.path] for source in image_sources(measured, root)}
        system, config = DenseCapSystem(), self._fcln(plan.seeds[0]).require("densecap", "be FCLN").config
        train, self.data_name = read_split(plan.data, system, config, plan.data.train, plan.data.train_limit)
        dev, _ = read_split(plan.data, system, config, split, None)
        self.baselines = Baselines(plan, train, [sample for sample in dev if sample.image in by_file])
        self._data = [self.data_name, split, list(self.images)]

    def _fcln(self, seed: int) -> Model:
        model = load(self.plan.fcln_folder(seed), device="cpu", engine="torch")
        model.require("densecap", "be FCLN")
        return model

    def results(self, meteor: Meteor) -> Results:
        """Return the figures of the table: boxes, then the cells of each seed, their scores, and the times.

        Raises:
            UserError: the method of external proposals is not installed.
        """
        boxes = {"external": self._external(), "rpn": self._rpn(), "gt": self._true_boxes()}
        cells: dict[tuple[str, str, int], Path] = {}
        for seed in self.plan.seeds:
            cells |= self._fcln_cells(seed, boxes) | self._baseline_cells(seed, boxes)
        scores = {}
        with track("scoring", len(cells)) as progress:
            for key, path in cells.items():
                scores[key] = _score(path, self.truth, list(self.images), meteor.score)
                progress.advance(1)
        counts = {column: sum(map(len, some.of.values())) / len(some.of) for column, some in boxes.items()}
        return Results(self.plan, self.data_name, len(self.images), meteor.version, scores, self._times(), counts)

    # Boxes

    def _external(self) -> Boxes:
        external, limit = self.plan.external, self.plan.proposals

        def finder() -> Callable[[Sample], Proposed]:
            proposer = find_proposal_method(external)
            return lambda sample: proposer(sample.image).suppressed(NMS, limit)

        return self._boxes("external", external, external, finder)

    def _rpn(self) -> Boxes:
        """Proposals of the first seed's RPN, for the baselines of all seeds: so a crop is computed once."""
        seed, limit = self.plan.seeds[0], self.plan.proposals

        def finder() -> Callable[[Sample], Proposed]:
            model = self._fcln(seed)
            detector = model.require("densecap", "be FCLN")
            return lambda sample: rpn_proposals(detector, model.encode(sample.image), limit)

        return self._boxes("rpn", f"RPN of seed {seed}", checkpoint_digest(self.plan.fcln_folder(seed)), finder)

    def _true_boxes(self) -> Boxes:
        """The true boxes, merged as the metric does; the baselines have no score for them, so all score 1."""
        rows = {name: CLEAN.merge(self.truth[name].boxes)[0].astype(np.float32) for name in self.images}
        found = {name: Proposed(boxes, np.ones(len(boxes), np.float32)) for name, boxes in rows.items()}
        return Boxes(found, digest({name: boxes.tolist() for name, boxes in rows.items()}))

    def _boxes(
        self, column: str, title: str, depends: str, finder: Callable[[], Callable[[Sample], Proposed]]
    ) -> Boxes:
        """Boxes from their file, or found and written to it."""
        key = digest([column, depends, self.plan.proposals, self._data])
        path = self.out / "boxes" / f"{column}-{key[:10]}.jsonl"
        if not path.is_file():
            find, rows = finder(), []
            with track(f"proposals: {title}", len(self.images)) as progress:
                for name, sample in self.images.items():
                    found = find(sample)
                    rows.append({"image": name, "boxes": found.boxes.tolist(), "scores": found.scores.tolist()})
                    progress.advance(1)
            _write_lines(path, rows)
        lines, boxes = RegionLines(path, needs=("scores",)), dict[str, Proposed]()
        for name in self.images:
            scores = np.asarray([] if lines[name].scores is None else lines[name].scores, np.float32)
            boxes[name] = Proposed(np.asarray(lines[name].boxes, np.float32), scores)
        return Boxes(boxes, key)

    # Cells: what a row says of the boxes of a column, in files of lines

    def _cell(self, row: str, column: str, seed: int, depends: Any) -> Path:
        """Return the file of a cell that was or will be made from ``depends`` (plain values)."""
        return self.out / "cells" / f"{row}-{column}-{seed}-{digest([row, column, seed, depends])[:10]}.jsonl"

    def _fcln_cells(self, seed: int, boxes: Mapping[str, Boxes]) -> dict[tuple[str, str, int], Path]:
        depends = [checkpoint_digest(self.plan.fcln_folder(seed)), self.plan.proposals, self._data]
        paths = {column: self._cell(FCLN, column, seed, [*depends, boxes[column].digest]) for column in COLUMNS}
        if not all(path.is_file() for path in paths.values()):
            model, found = self._fcln(seed), {}
            with track(f"FCLN of seed {seed}", len(self.images)) as progress:
                for name, sample in self.images.items():
                    given = {column: some.of[name] for column, some in boxes.items()}
                    found[name] = describe_with_fcln(model, open_image(sample.image), given, self.plan.proposals)
                    progress.advance(1)
            for column, path in paths.items():
                _write_lines(path, (_line(name, columns[column]) for name, columns in found.items()))
        return {(FCLN, column, seed): path for column, path in paths.items()}

    def _baseline_cells(self, seed: int, boxes: Mapping[str, Boxes]) -> dict[tuple[str, str, int], Path]:
        cells: dict[tuple[str, str, int], Path] = {}
        for row in (FULL, REGION):
            network, network_digest = self.baselines.network(row, seed, self.out / "baselines")
            for column in COLUMNS:
                path = self._cell(row, column, seed, [network_digest, self._data, boxes[column].digest])
                if not path.is_file():
                    described = self.baselines.describe(network, self.images, boxes[column].of, column)
                    _write_lines(path, (_line(name, regions) for name, regions in described))
                cells[row, column, seed] = path
        return cells

    def _times(self) -> dict[str, dict[str, float]]:
        """Take the times of all systems of the first seed, anew in every run."""
        plan, seed = self.plan, self.plan.seeds[0]
        network, _ = self.baselines.network(REGION, seed, self.out / "baselines")
        timed = Timed(self._fcln(seed), network, find_proposal_method(plan.external), plan.proposals)
        images = [sample.image for sample in evenly(list(self.images.values()), TIMED_IMAGES)]
        with track("time", len(images) * ROUNDS * len(timed.systems())) as progress:
            return take_times(timed, images, lambda: progress.advance(1))


def _score(path: Path, truth: RegionLines, names: Sequence[str], scorer: Scorer) -> dict[str, float]:
    """Return the scores of a cell over the images ``names``; they are kept beside it."""
    place = path.with_suffix(".json")
    if not place.is_file():
        metric, found = DenseCaptioning(PROTOCOL), RegionLines(path, needs=("scores", "captions"))
        for name in names:
            ours, true = found[name], truth[name]
            scores = () if ours.scores is None else ours.scores
            phrases = [[caption] for caption in true.captions or ()]
            metric.add_arrays(ours.boxes, scores, ours.captions or (), true.boxes, phrases, name)
        result = metric.result(scorer)
        write_text(place, json.dumps({key: getattr(result, key) for key in SCORES}, indent=2) + "\n")
    return json.loads(place.read_text())


def _line(name: str, regions: Regions) -> dict[str, object]:
    """Return regions as a line of JSON, without their features."""
    return {
        "image": name,
        "width": regions.width,
        "height": regions.height,
        "boxes": [[round(v, 2) for v in box] for box in regions.boxes.tolist()],
        "scores": [] if regions.scores is None else regions.scores.tolist(),
        "captions": list(regions.captions or ()),
    }


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line; the file is whole or not there."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
