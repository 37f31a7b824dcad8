"""A whole comparison: from a recipe to a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import saywhere
from saywhere import data
from saywhere.data.sample import Sample
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.evaluation.dense import CLEAN, write_truth
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.session import image_sources
from saywhere.files import write_atomically, write_text
from saywhere.images import open_image
from saywhere.loading import load
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.networks.vision.backbones import build_backbone
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import Trunk
from saywhere.papers.external_proposals import Proposed, find_proposal_method
from saywhere.papers.table1 import systems
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.systems import (
    FCLN,
    FREQUENT,
    FULL,
    NEAREST,
    REFINED,
    REGION,
    STAGES,
    Baselines,
    Cell,
    Neighbours,
    Timed,
    checkpoint_digest,
    digest,
    most_frequent_phrase,
    take_times,
    write_lines,
)
from saywhere.training import cache
from saywhere.training.dataset import evenly
from saywhere.training.densecap import DenseCapSystem
from saywhere.training.progress import track
from saywhere.training.run import read_split

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
REFINED_CONTROLS = ("frequent-phrase-refined", "nearest-region-refined")
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
        times: ``systems``, as :func:`saywhere.papers.table1.systems.take_times` gives them, and ``about``.
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
            ("AP of FCLN over the better control's on FCLN's boxes", REFINED_CONTROLS, 2.0),
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


TRUTH = "truth.jsonl"
"""The file with the true boxes."""


def compare(plan: Comparison, out: Path, meteor: Meteor) -> Results:
    """Do everything the recipe says, as far as it is not yet in ``out``; ``write_table`` writes what is returned.

    Raises:
        UserError: wrong data, a model that is missing, a method of proposals that is not installed.
    """
    return Run(plan, out).results(meteor)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of a column by name of the image, and a hash of them."""

    of: dict[str, Proposed]
    digest: str


class Run:
    """Make the parts of a comparison that all seeds share, and the cells, in ``out``.

    Args:
        plan: the recipe.
        out: folder of the table, of the boxes, of the trained baselines and of the cells.
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
        write_truth(measured, root, out / TRUTH)
        self.truth = RegionLines(out / TRUTH, several=True)
        by_file = {sample.image: sample for sample in chosen}
        sources = image_sources(measured, root)
        self.images: dict[str, Sample] = {source.name: by_file[source.path] for source in sources}
        system, config = DenseCapSystem(), self._fcln(plan.seeds[0]).require("densecap", "be FCLN").config
        self.train, self.data_name = read_split(plan.data, system, config, plan.data.train, plan.data.train_limit)
        dev, _ = read_split(plan.data, system, config, split, None)
        self.baselines = Baselines(plan, self.train, [sample for sample in dev if sample.image in by_file])

    def _fcln(self, seed: int) -> Model:
        model = load(self.plan.fcln_folder(seed), device="cpu", engine="torch")
        model.require("densecap", "be FCLN")
        return model

    def results(self, meteor: Meteor) -> Results:
        """Return the figures of the table: boxes, then the cells of each seed, their scores, and the times."""
        boxes = {"external": self.external(), "rpn": self.rpn(), "gt": self.true_boxes()}
        cells: list[Cell] = []
        for seed in self.plan.seeds:
            cells += self.fcln_cells(seed, boxes)
            cells += self.baseline_cells(seed, boxes)
        names, scores = list(self.images), {}
        with track("scoring", len(cells)) as progress:
            for cell in cells:
                scores[cell.row, cell.column, cell.seed] = cell.score(self.truth, names, meteor.score)
                progress.advance(1)
        counts = {column: sum(map(len, some.of.values())) / len(some.of) for column, some in boxes.items()}
        return Results(self.plan, self.data_name, len(names), meteor.version, scores, self.times(), counts)

    # Boxes

    def external(self) -> Boxes:
        """Return external proposals, those that overlap a better one suppressed."""
        plan = self.plan

        def find() -> dict[str, Proposed]:
            proposer, found = find_proposal_method(plan.external), {}
            with track(f"proposals: {plan.external}", len(self.images)) as progress:
                for name, sample in self.images.items():
                    found[name] = proposer(sample.image).suppressed(plan.nms, plan.proposals)
                    progress.advance(1)
            return found

        return self._boxes("external", [plan.external], find)

    def rpn(self) -> Boxes:
        """Return proposals of the first seed's RPN, for the baselines of all seeds: so a crop is computed once."""
        plan, seed = self.plan, self.plan.seeds[0]

        def find() -> dict[str, Proposed]:
            model, found = self._fcln(seed), {}
            with track(f"proposals: RPN of seed {seed}", len(self.images)) as progress:
                for name, sample in self.images.items():
                    detector, encoding = model.require("densecap", "be FCLN"), model.encode(sample.image)
                    found[name] = systems.rpn_proposals(detector, encoding, plan.nms, plan.proposals)
                    progress.advance(1)
            return found

        return self._boxes("rpn", [checkpoint_digest(plan.fcln_folder(seed))], find)

    def true_boxes(self) -> Boxes:
        """Return the true boxes, merged as the metric does; the baselines have no score for them, so all score 1."""
        rows = {name: CLEAN.merge(self.truth[name].boxes)[0].astype(np.float32) for name in self.images}
        found = {name: Proposed(boxes, np.ones(len(boxes), np.float32)) for name, boxes in rows.items()}
        return Boxes(found, digest({name: boxes.tolist() for name, boxes in rows.items()}))

    def _boxes(self, column: str, depends: list[Any], find: Any) -> Boxes:
        """Boxes from their file, or found and written to it."""
        plan = self.plan
        key = digest([column, depends, plan.nms, plan.proposals, self._data()])
        path = self.out / "boxes" / f"{column}-{key[:10]}.jsonl"
        if not path.is_file():
            rows = [{"image": n, "boxes": p.boxes.tolist(), "scores": p.scores.tolist()} for n, p in find().items()]
            write_lines(path, rows)
        lines = RegionLines(path, needs=("scores",))
        found: dict[str, Proposed] = {}
        for name in self.images:
            read = lines[name]
            scores = np.asarray([] if read.scores is None else read.scores, np.float32)
            found[name] = Proposed(np.asarray(read.boxes, np.float32), scores)
        return Boxes(found, key)

    def _data(self) -> list[Any]:
        return [self.data_name, self.plan.data.validation, list(self.images)]

    # Cells

    def fcln_cells(self, seed: int, boxes: dict[str, Boxes]) -> list[Cell]:
        """Return the cells of FCLN and the two controls with the boxes of all columns."""
        plan, model_digest = self.plan, checkpoint_digest(self.plan.fcln_folder(seed))
        depends = [model_digest, plan.proposals, plan.neighbours, plan.data, self._data()]
        cells = [
            Cell.of(self.out / "cells", row, column, seed, [*depends, boxes[column].digest])
            for row in (FCLN, *(control + suffix for suffix in ("", REFINED) for control in (FREQUENT, NEAREST)))
            for column in COLUMNS
        ]
        if all(cell.path.is_file() for cell in cells):
            return cells
        model = self._fcln(seed)
        neighbours, frequent = self._neighbours(model, seed, model_digest), most_frequent_phrase(self.train)
        lines: dict[tuple[str, str], list[dict[str, object]]] = {(cell.row, cell.column): [] for cell in cells}
        with track(f"FCLN and controls of seed {seed}", len(self.images)) as progress:
            for name, sample in self.images.items():
                given = {column: some.of[name] for column, some in boxes.items()}
                image = open_image(sample.image)
                rows = systems.fcln_rows(model, image, given, plan.proposals, frequent, neighbours)
                for key, regions in rows.items():
                    lines[key].append(systems.line(name, regions))
                progress.advance(1)
        for cell in cells:
            cell.write(lines[cell.row, cell.column])
        return cells

    def _neighbours(self, model: Model, seed: int, model_digest: str) -> Neighbours:
        """The embeddings of true regions of training images, computed once."""
        numbers = evenly_numbers(len(self.train), self.plan.neighbours)
        samples = [self.train[i] for i in numbers]
        phrases = [references[0] for sample in samples for references in sample.phrases]
        key = digest([model_digest, str(self.plan.data), self.plan.neighbours])
        path = self.out / "embeddings" / f"{seed}-{key[:10]}.npy"
        if not path.is_file():
            values = np.concatenate(self.region_embeddings(model, numbers)).astype(np.float16)
            write_atomically(path, lambda stream: np.save(stream, values))
        return Neighbours.of(np.load(path), phrases)

    def region_embeddings(self, model: Model, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the embeddings ``(N, D)`` of the true regions of each of some training images."""
        detector, embeddings = model.require("densecap", "be FCLN"), []
        encode = self._encoder(model)
        with track("embeddings of training regions", len(numbers)) as progress:
            for number in numbers:
                encoding = encode(number)
                boxes = encoding.to_input(self.train[number].boxes)
                embeddings.append(detector.region_head([encoding.maps], [boxes])[0].embeddings)
                progress.advance(1)
        return embeddings

    def _encoder(self, model: Model) -> Callable[[int], Encoding]:
        """What encodes a training image by its number: the model, or its trunk's cached maps."""
        plan = self.plan
        if plan.features is None:
            return lambda number: model.encode(self.train[number].image)
        assert isinstance(model.engine, TorchEngine)
        trunk = model.engine.networks["densecap"].get_submodule("trunk")
        assert isinstance(trunk, Trunk)
        config, preprocess = model.require("densecap", "be FCLN").config.trunk, trunk.preprocess
        # The checkpoint may hold the frozen backbone in half precision; the cache was made with the published one.
        backbone = build_backbone(config.backbone, config.strides) if plan.pretrained else trunk.backbone
        maps = cache.build(plan.features, config.backbone, backbone, preprocess, self.train, flip=False)

        def encode(number: int) -> Encoding:
            sample = self.train[number]
            width, height = preprocess.size(sample.width, sample.height)
            levels = [level.float() for level in maps.read(number, False)]
            image = ImageMaps(trunk, levels, width, height)
            size = (sample.width, sample.height, width, height)
            return Encoding(image, *size, str(sample.image), model.engine.trunk)

        return encode

    def baseline_cells(self, seed: int, boxes: dict[str, Boxes]) -> list[Cell]:
        """Return the cells of both RNN baselines with the boxes of all columns."""
        cells: list[Cell] = []
        for row in (FULL, REGION):
            network, network_digest = self.baselines.network(row, seed, self.out / "baselines")
            for column in COLUMNS:
                depends = [network_digest, self._data(), boxes[column].digest]
                cell = Cell.of(self.out / "cells", row, column, seed, depends)
                if not cell.path.is_file():
                    described = self.baselines.describe(network, self.images, boxes[column].of, column)
                    cell.write(systems.line(name, regions) for name, regions in described)
                cells.append(cell)
        return cells

    # Time

    def times(self) -> dict[str, Any]:
        """Take the times of all systems of the first seed, anew in every run."""
        plan, seed = self.plan, self.plan.seeds[0]
        folder = self.out / "baselines"
        timed = Timed(
            fcln=self._fcln(seed),
            region=self.baselines.network(REGION, seed, folder)[0],
            proposer=find_proposal_method(plan.external),
            nms=plan.nms,
            limit=plan.proposals,
        )
        images = [sample.image for sample in evenly(list(self.images.values()), plan.timing.images)]
        steps = len(images) * plan.timing.rounds * len(timed.systems())
        with track("time", steps) as progress:
            found = take_times(timed, images, plan.timing.rounds, lambda: progress.advance(1))
        about = {"threads": torch.get_num_threads(), "images": len(images), "rounds": plan.timing.rounds}
        return {"about": about, "systems": found}


def evenly_numbers(count: int, limit: int | None) -> list[int]:
    """Return at most ``limit`` of the numbers below ``count``, at even distances."""
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]
