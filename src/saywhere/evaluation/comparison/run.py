"""A whole comparison: from a recipe to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from saywhere import data
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.evaluation import dense_run
from saywhere.evaluation.comparison import speakers
from saywhere.evaluation.comparison.baselines import FULL, REGION, Baselines
from saywhere.evaluation.comparison.cells import Cell, checkpoint_digest, digest, write_lines
from saywhere.evaluation.comparison.material import most_frequent_phrase
from saywhere.evaluation.comparison.plan import Comparison
from saywhere.evaluation.comparison.speakers import FCLN, FREQUENT, NEAREST, REFINED, Neighbours
from saywhere.evaluation.comparison.table import COLUMNS, Results
from saywhere.evaluation.comparison.timing import Timed, take_times
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.region_lines import RegionLines
from saywhere.files import write_atomically
from saywhere.images import open_picture
from saywhere.models import checkpoint
from saywhere.models.densecap import DenseCap
from saywhere.models.encoding import Encoding
from saywhere.training import cache
from saywhere.training.dataset import evenly
from saywhere.training.progress import track
from saywhere.training.regions import DenseCapSystem
from saywhere.training.run import read_split
from saywhere.vision.backbones import build_backbone
from saywhere.vision.proposals import Proposed, find_proposer


def compare(plan: Comparison, out: Path, meteor: Meteor) -> Results:
    """Everything the recipe says, as far as it is not yet in ``out``; ``write_table`` writes what comes back.

    Raises:
        UserError: wrong data, a model that is missing, a method of proposals that is not installed.
    """
    return Run(plan, out).results(meteor)


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of a column: by name of the picture, and a hash of them."""

    of: dict[str, Proposed]
    digest: str


class Run:
    """The parts of a comparison that all seeds share, and what is made of them in ``out``.

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
        dense_run.write_truth(measured, root, out / dense_run.TRUTH)
        self.truth = RegionLines(out / dense_run.TRUTH, several=True)
        by_file = {sample.image: sample for sample in chosen}
        sources = dense_run.picture_sources(measured, root)
        self.pictures: dict[str, Sample] = {source.name: by_file[source.path] for source in sources}
        system, config = DenseCapSystem(), self._fcln(plan.seeds[0]).config
        self.train, self.data_name = read_split(plan.data, system, config, plan.data.train, plan.data.train_limit)
        dev, _ = read_split(plan.data, system, config, split, None)
        self.baselines = Baselines(plan, self.train, [sample for sample in dev if sample.image in by_file])

    def _fcln(self, seed: int) -> DenseCap:
        model = checkpoint.load(self.plan.fcln_folder(seed))
        if not isinstance(model, DenseCap):
            raise UserError(f"{self.plan.fcln_folder(seed)} is no DenseCap")
        return model

    def results(self, meteor: Meteor) -> Results:
        """Boxes, then the cells of each seed, their scores, and the times."""
        boxes = {"external": self.external(), "rpn": self.rpn(), "gt": self.true_boxes()}
        cells: list[Cell] = []
        for seed in self.plan.seeds:
            cells += self.fcln_cells(seed, boxes)
            cells += self.baseline_cells(seed, boxes)
        names, scores = list(self.pictures), {}
        with track("scoring", len(cells)) as progress:
            for cell in cells:
                scores[cell.row, cell.column, cell.seed] = cell.score(self.truth, names, meteor.score)
                progress.advance(1)
        counts = {column: sum(map(len, some.of.values())) / len(some.of) for column, some in boxes.items()}
        return Results(self.plan, self.data_name, len(names), meteor.version, scores, self.times(), counts)

    # Boxes

    def external(self) -> Boxes:
        """External proposals, those that overlap a better one suppressed."""
        plan = self.plan

        def find() -> dict[str, Proposed]:
            proposer, found = find_proposer(plan.external), {}
            with track(f"proposals: {plan.external}", len(self.pictures)) as progress:
                for name, sample in self.pictures.items():
                    found[name] = proposer(sample.image).suppressed(plan.nms, plan.proposals)
                    progress.advance(1)
            return found

        return self._boxes("external", [plan.external], find)

    def rpn(self) -> Boxes:
        """Proposals of the first seed's RPN, for the baselines of all seeds: so a crop is computed once."""
        plan, seed = self.plan, self.plan.seeds[0]

        @torch.no_grad()
        def find() -> dict[str, Proposed]:
            model, found = self._fcln(seed), {}
            with track(f"proposals: RPN of seed {seed}", len(self.pictures)) as progress:
                for name, sample in self.pictures.items():
                    encoding = model.encode(sample.image)
                    found[name] = speakers.rpn_proposals(model, encoding, plan.nms, plan.proposals)
                    progress.advance(1)
            return found

        return self._boxes("rpn", [checkpoint_digest(plan.fcln_folder(seed))], find)

    def true_boxes(self) -> Boxes:
        """The true boxes, merged as the metric does; the baselines have no score for them, so all score 1."""
        merged = dense_run.TrueBoxes(self.truth, {name: (name,) for name in self.pictures})
        rows = {name: torch.tensor(merged[name], dtype=torch.float32).reshape(-1, 4) for name in self.pictures}
        found = {name: Proposed(boxes, torch.ones(len(boxes))) for name, boxes in rows.items()}
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
        for name in self.pictures:
            read = lines[name]
            scores = torch.as_tensor(read.scores if read.scores is not None else [], dtype=torch.float32)
            found[name] = Proposed(torch.as_tensor(read.boxes, dtype=torch.float32), scores)
        return Boxes(found, key)

    def _data(self) -> list[Any]:
        return [self.data_name, self.plan.data.validation, list(self.pictures)]

    # Cells

    def fcln_cells(self, seed: int, boxes: dict[str, Boxes]) -> list[Cell]:
        """FCLN and the two controls with the boxes of all columns."""
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
        with track(f"FCLN and controls of seed {seed}", len(self.pictures)) as progress:
            for name, sample in self.pictures.items():
                given = {column: some.of[name] for column, some in boxes.items()}
                picture = open_picture(sample.image)
                said = speakers.fcln_rows(model, picture, given, plan.proposals, frequent, neighbours)
                for key, regions in said.items():
                    lines[key].append(speakers.line(name, regions))
                progress.advance(1)
        for cell in cells:
            cell.write(lines[cell.row, cell.column])
        return cells

    def _neighbours(self, model: DenseCap, seed: int, model_digest: str) -> Neighbours:
        """The codes of true regions of training pictures, computed once."""
        numbers = evenly_numbers(len(self.train), self.plan.neighbours)
        samples = [self.train[i] for i in numbers]
        phrases = [references[0] for sample in samples for references in sample.phrases]
        key = digest([model_digest, str(self.plan.data), self.plan.neighbours])
        path = self.out / "codes" / f"{seed}-{key[:10]}.npy"
        if not path.is_file():
            values = torch.cat(self._codes(model, numbers)).half().numpy()
            write_atomically(path, lambda stream: numpy.save(stream, values))
        return Neighbours.of(torch.from_numpy(numpy.load(path)), phrases)

    @torch.no_grad()
    def _codes(self, model: DenseCap, numbers: Sequence[int]) -> list[torch.Tensor]:
        plan, codes = self.plan, []
        maps = None
        if plan.features is not None:
            name, size = model.config.backbone, model.preprocess
            # The checkpoint may hold the frozen backbone in half precision; the cache was made with the published one.
            backbone = build_backbone(name, model.config.strides) if plan.pretrained else model.backbone
            maps = cache.build(plan.features, name, backbone, size, self.train, flip=False)
        with track("codes of training regions", len(numbers)) as progress:
            for number in numbers:
                sample = self.train[number]
                if maps is None:
                    encoding = model.encode(sample.image)
                else:
                    levels = tuple(level.float() for level in maps.read(number, False))
                    size = model.preprocess.size(sample.width, sample.height)
                    encoding = Encoding(model.neck([levels])[0], sample.width, sample.height, *size, str(sample.image))
                codes.append(model.recognise([encoding], [encoding.to_input(sample.boxes)])[0].codes)
                progress.advance(1)
        return codes

    def baseline_cells(self, seed: int, boxes: dict[str, Boxes]) -> list[Cell]:
        """Both RNN baselines with the boxes of all columns."""
        cells: list[Cell] = []
        for row in (FULL, REGION):
            model, model_digest = self.baselines.model(row, seed, self.out / "baselines")
            for column in COLUMNS:
                cell = Cell.of(
                    self.out / "cells", row, column, seed, [model_digest, self._data(), boxes[column].digest]
                )
                if not cell.path.is_file():
                    said = self.baselines.say(model, self.pictures, boxes[column].of, column)
                    cell.write(speakers.line(name, regions) for name, regions in said)
                cells.append(cell)
        return cells

    # Time

    def times(self) -> dict[str, Any]:
        """Times of all systems of the first seed, taken anew in every run."""
        plan, seed = self.plan, self.plan.seeds[0]
        folder = self.out / "baselines"
        timed = Timed(
            fcln=self._fcln(seed),
            region=self.baselines.model(REGION, seed, folder)[0],
            proposer=find_proposer(plan.external),
            nms=plan.nms,
            limit=plan.proposals,
        )
        pictures = [sample.image for sample in evenly(list(self.pictures.values()), plan.timing.pictures)]
        steps = len(pictures) * plan.timing.rounds * len(timed.systems())
        with track("time", steps) as progress:
            found = take_times(timed, pictures, plan.timing.rounds, lambda: progress.advance(1))
        about = {"threads": torch.get_num_threads(), "pictures": len(pictures), "rounds": plan.timing.rounds}
        return {"about": about, "systems": found}


def evenly_numbers(count: int, limit: int | None) -> list[int]:
    """At most ``limit`` of the numbers below ``count``, at even distances."""
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]
