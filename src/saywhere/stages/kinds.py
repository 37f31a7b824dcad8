"""The kinds of stages in a recipe: their options, what they check before the run, and what they make."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from saywhere import data as datasets
from saywhere.data import PhraseOptions, Samples
from saywhere.data.sample import digest_of, evenly
from saywhere.errors import UserError
from saywhere.evaluation.report import TASKS, figure_of
from saywhere.evaluation.session import DEV, evaluate
from saywhere.files import link_or_copy, put_in_place, write_text
from saywhere.images import Preprocess
from saywhere.models.bundle import CARD, CONFIG, GRAPH_TOWER, Bundle
from saywhere.options import dataclass
from saywhere.report import counted, leave_out
from saywhere.stages import calibration
from saywhere.training import branch, chunker, ngrams
from saywhere.training.card import BundleFacts, write_bundle_card
from saywhere.training.recipe import DataConfig, Recipe, SourceConfig, TrainingConfig

MODEL = "model"
"""Folder of a stage's result."""


class Reader:
    """Read data sets, each split only once per set of options."""

    def __init__(self) -> None:
        self.read: dict[tuple[Any, ...], Samples] = {}

    def __call__(self, source: DataSet, options: Mapping[str, Any] | None = None) -> Samples:
        """Return the samples of a split; raises as :func:`saywhere.data.read`."""
        key = source.root, source.format, source.split, json.dumps(options or {}, sort_keys=True, default=str)
        if key not in self.read:
            chosen = PhraseOptions.from_dict(dict(options or {}))
            self.read[key] = datasets.read(*source.place, chosen)
        return self.read[key]


@dataclass(frozen=True)
class DataSet:
    """A split of a data set that a stage reads.

    Attributes:
        root, format: as ``saywhere.data.read`` takes them.
        split: name of the split; None for ``train``, unless documented otherwise.
        limit: maximum number of images, evenly spaced.
    """

    root: str
    format: str | None = None
    split: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit must be at least 1, not {self.limit}")

    @property
    def place(self) -> calibration.Place:
        """Root, format and split."""
        return self.root, self.format, self.split or "train"


@dataclass(frozen=True)
class Work:
    """The folders, data and settings that a stage works with.

    Attributes:
        folder: folder of the stage; everything it writes is in there.
        facts: results of the earlier stages by name, for the card.
        recipe: the whole recipe, without the folders of the data.
    """

    name: str
    folder: Path
    seed: int
    facts: Mapping[str, Mapping[str, Any]]
    recipe: Mapping[str, Any]

    @property
    def cache(self) -> Path:
        """Folder for what a stage keeps of each image until it is done."""
        return self.folder / "cache"


@dataclass(frozen=True)
class Done:
    """The result of a stage: a one-line ``summary`` for people, and ``facts`` for the card, as JSON values."""

    summary: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Options of a stage; by default it makes a model. ``seed`` None means the recipe's."""

    MODEL_OF: ClassVar[bool] = True
    """Whether it makes a model folder."""
    CONTINUES: ClassVar[str | None] = None
    """Option naming the model that this stage changes; that model replaces the stage if it is left out."""
    UNKEYED: ClassVar[tuple[str, ...]] = ()
    """Options that do not change the result."""

    seed: int | None = None

    def output(self, folder: Path) -> Path:
        """Return what this stage's name stands for in later stages."""
        return folder / MODEL

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        """Return the data sets that are read, with their phrase options."""
        return []

    def models(self) -> list[str]:
        """Return the models that are read."""
        own = [getattr(self, f.name) for f in fields(self) if f.name == "model"]
        return [name for name in own if isinstance(name, str)]

    def check(self, read: Reader) -> None:
        """Raise ``UserError`` for options or data that cannot work."""
        for source, options in self.sets():
            if not len(read(source, options)):
                raise UserError(f"{source.root}: the split {source.split or 'train'} is empty")

    def digests(self, read: Reader) -> list[tuple[DataSet, str]]:
        """Return a hash of the contents of each data set, whatever its location."""
        return [(source, digest_of(read(source, options))) for source, options in self.sets()]

    def run(self, work: Work) -> Done:
        """Run the stage."""
        raise TypeError(f"{type(self).__name__} cannot be run")


@dataclass(frozen=True)
class Start(Stage):
    """Start from a model folder, or from a backbone's published weights.

    Attributes:
        model: a model (folder or name); later stages refer to this stage to start from it.
        trunk: trunk options of all later training stages; by default those of the model.
    """

    MODEL_OF = False
    model: str | None = None
    trunk: dict[str, Any] = field(default_factory=dict)

    def output(self, folder: Path) -> Path:
        return Path(self.model) if self.model is not None else folder

    def check(self, read: Reader) -> None:
        from saywhere.configs.parts import TrunkConfig
        from saywhere.networks.vision.trunk import build_trunk

        if self.model is None:
            build_trunk(TrunkConfig().merge(self.trunk, prefix="trunk."))

    def run(self, work: Work) -> Done:
        return Done(self.model or f"published weights of {self.trunk.get('backbone', 'efficientnet_lite2')}")


@dataclass(frozen=True)
class Train(Stage):
    """Train a network: a recipe of one stage.

    Attributes:
        data, model, training, description: as in :class:`saywhere.training.recipe.Recipe`.
        keep: share of each of these models in the mean of weights that the stage makes; the trained weights have the
            rest. All must have begun at the same weights. Words are matched between the vocabularies.
    """

    SYSTEM: ClassVar[str] = ""
    CONTINUES = "training.start"
    UNKEYED = ("description", "training.cache", "training.workers")

    data: DataConfig = field(default_factory=lambda: DataConfig(""))
    model: dict[str, Any] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    description: str = ""
    keep: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(share <= 0 for share in self.keep.values()) or sum(self.keep.values()) >= 1:
            raise UserError("keep: its shares must be above 0, and together below 1")

    def recipe(self, name: str, seed: int) -> Recipe:
        """Return the stage as a recipe of one stage."""
        return Recipe(name, self.data, self.SYSTEM, self.model, self.training, seed, self.description)

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        data = self.data
        parts: Sequence[DataConfig | SourceConfig] = (data, *data.also.values())
        found: list[tuple[DataSet, Mapping[str, Any]]] = [
            (DataSet(each.root, each.format, each.train, each.train_limit), each.phrases) for each in parts
        ]
        if data.validation:
            found.append((DataSet(data.root, data.format, data.validation, data.validation_limit), data.phrases))
        return found

    def models(self) -> list[str]:
        named = [self.training.start, self.model.get("localizer"), *self.keep]
        return [name for name in named if name is not None]

    def check(self, read: Reader) -> None:
        from saywhere.text import Vocabulary
        from saywhere.training.finetuning import freeze
        from saywhere.training.run import find_system, model_config, require_monitor

        require_monitor(self.recipe("check", 0))
        system, config = find_system(self.SYSTEM), model_config(self.recipe("check", 0))
        for source, options in self.sets():
            if not system.usable(read(source, options), config):
                raise UserError(f"{source.root}: the split {source.split} has no image with {system.unit}")
        if self.SYSTEM == "densecap":
            freeze(system.build(config, Vocabulary({"a": 1}), False), self.training.freeze)

    def run(self, work: Work) -> Done:
        from saywhere.training.finetuning import average_models
        from saywhere.training.run import find_system, model_config, read_training, train

        for name in self.keep:
            if self.SYSTEM not in Bundle.read(name).configs:
                raise UserError(f"keep: {name} has no {self.SYSTEM}")
        folder = work.folder / "run" if self.keep else work.folder
        result = train(self.recipe(work.name, work.seed), folder)
        if result.interrupted:
            raise KeyboardInterrupt
        if self.keep:
            recipe = self.recipe(work.name, work.seed)
            samples, _ = read_training(recipe.data, find_system(self.SYSTEM), model_config(recipe))
            average_models(self.keep, result.model, work.folder / MODEL, samples)
        (folder / "last.ckpt").unlink(missing_ok=True)
        values = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        figures = f"weights after epoch {result.epoch}{f': {values}' if values else ''}"
        splits = result.facts.splits if result.facts else ()
        learnt = ", ".join(f"{counted(images, 'image')} of {split}" for split, images, _ in splits)
        return Done(figures, {"data": f"{result.facts.name if result.facts else ''}: {learnt}", "result": figures})


class BranchStage(Train):
    """Train a second branch of the trunk, which later stages then use."""

    SYSTEM = "branch"
    MODEL_OF = False
    CONTINUES = None

    def output(self, folder: Path) -> Path:
        return folder / MODEL / branch.FILE

    def teacher(self) -> Path:
        """Return the teacher's file; ``UserError`` if there is none."""
        return branch.find_teacher(str(self.model.get("teacher") or ""))

    def check(self, read: Reader) -> None:
        branch.teacher_weights(self.teacher())
        if self.training.start is not None:
            raise UserError("training.start: a branch begins as a copy of the backbone's last layers")
        super().check(read)

    def digests(self, read: Reader) -> list[tuple[DataSet, str]]:
        digest = hashlib.sha256(self.teacher().read_bytes()).hexdigest()
        return [*super().digests(read), (DataSet(str(self.model["teacher"]), None, "teacher"), digest)]


class DenseCapStage(Train):
    """Train a dense captioner."""

    SYSTEM = "densecap"


class AlignerStage(Train):
    """Train an aligner."""

    SYSTEM = "aligner"


class CaptionerStage(Train):
    """Train a captioner."""

    SYSTEM = "captioner"


@dataclass(frozen=True)
class FromData(Stage):
    """Options of stages that read a list of data sets."""

    data: tuple[DataSet, ...] = ()

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("data must name a data set, as in data: [{root: $flickr8k}]")

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        return [(source, {}) for source in self.data]

    def read(self) -> tuple[list[Any], str]:
        """Return the samples of the data sets, and a joint description."""
        sets, source = calibration.read_sets(each.place for each in self.data)
        return [evenly(samples, each.limit) for samples, each in zip(sets, self.data, strict=True)], source


@dataclass(frozen=True)
class TowerStage(FromData):
    """Build the image tower for the trunk of later stages, from CLIP's and trained additions.

    Attributes:
        data: images over which its outputs are standardised.
        model: the model whose trunk defines the input pixels.
        teacher: an ONNX file of CLIP's image tower, a folder with one, or the name of an installed package.
        tuning: file of trained additions to the tower, such as ``large-model/tuning.safetensors``; None for none.
    """

    MODEL_OF = False
    model: str = ""
    teacher: str = ""
    tuning: str | None = None

    def output(self, folder: Path) -> Path:
        return folder / MODEL / GRAPH_TOWER

    def check(self, read: Reader) -> None:
        super().check(read)
        branch.tower_graph(branch.find_teacher(self.teacher), self.tuning, (0.5,) * 3, (0.5,) * 3)

    def digests(self, read: Reader) -> list[tuple[DataSet, str]]:
        files = [branch.find_teacher(self.teacher), *([Path(self.tuning)] if self.tuning is not None else [])]
        digests = [(DataSet(str(path), None, "file"), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
        return [*super().digests(read), *digests]

    def run(self, work: Work) -> Done:
        samples, source = self.read()
        bundle, images = Bundle.read(self.model), [sample for some in samples for sample in some]
        preprocess = Preprocess(bundle.trunk.long_side, bundle.trunk.multiple, bundle.mean, bundle.std)
        made = branch.make_tower(
            branch.find_teacher(self.teacher), self.tuning, images, preprocess, self.output(work.folder)
        )
        return Done(made, {"data": source, "result": made})


@dataclass(frozen=True)
class Nouns(FromData):
    """Train a region classifier on the kinds that boxes are called, for a number of ``epochs``.

    Attributes:
        model: a dense captioner, whose trunk and region embeddings are the input.
    """

    model: str = ""
    epochs: int = 8

    def run(self, work: Work) -> Done:
        from saywhere.training import nouns

        sets, source = self.read()
        samples = [sample for samples in sets for sample in samples]
        made = nouns.train(self.model, samples, source, work.folder / MODEL, work.cache, self.epochs, work.seed)
        return Done(made, {"data": source, "result": made})


@dataclass(frozen=True)
class NgramsStage(FromData):
    """Train n-gram probabilities, which rerank captions or phrases, beside the part that writes them.

    Attributes:
        part: ``captioner``, for captions of images, or ``densecap``, for phrases of regions.
    """

    CONTINUES = "model"
    model: str = ""
    part: str = "captioner"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part not in ngrams.SETTINGS:
            raise UserError(f"part is {self.part!r}, but must be one of {', '.join(ngrams.SETTINGS)}")

    def run(self, work: Work) -> Done:
        sets, source = self.read()
        copy_model(self.model, work.folder / MODEL)
        ngrams.train(work.folder / MODEL, sets, source, work.cache, None, work.seed, self.part)
        config: Any = Bundle.read(work.folder / MODEL).configs[self.part]
        made = f"{config.ngrams.count:,} n-grams"
        return Done(made, {"data": source, "result": made})


@dataclass(frozen=True)
class ChunkerStage(FromData):
    """Train a chunker, which cuts sentences into phrases, for a number of ``epochs``.

    Attributes:
        data: Flickr8k or Flickr30k with Entities, or files with one marked sentence per line.
    """

    MODEL_OF = False
    epochs: int = 3

    def output(self, folder: Path) -> Path:
        return folder / "chunker.npz"

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        """Return nothing: sentences are not samples."""
        return []

    def sentences(self) -> list[list[chunker.TaggedSentence]]:
        """Return the marked sentences of each data set."""
        places = [(Path(each.root), each.split or "train") for each in self.data]
        return [
            chunker.read_text(root) if root.is_file() else chunker.read_split(root, split) for root, split in places
        ]

    def check(self, read: Reader) -> None:
        """Refuse missing data; :meth:`digests` refuses data without marked sentences."""
        for each in self.data:
            if not Path(each.root).exists():
                raise UserError(f"{each.root}: no such file or folder")

    def digests(self, read: Reader) -> list[tuple[DataSet, str]]:
        texts = [json.dumps([(each.text, each.tags) for each in sentences]) for sentences in self.sentences()]
        digests = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
        return list(zip(self.data, digests, strict=True))

    def run(self, work: Work) -> Done:
        sentences = [sentence for each in self.sentences() for sentence in each]
        chunker.train(sentences, self.epochs, work.seed).save(self.output(work.folder))
        made = counted(len(sentences), "sentence")
        return Done(made, {"data": " and ".join(Path(each.root).name for each in self.data), "result": made})


@dataclass(frozen=True)
class Export(Stage):
    """Merge several models into one that runs without torch.

    Attributes:
        parts: models with different parts on one trunk.
        description: one line for ``saywhere models``.
        int8: data set whose images calibrate an int8 graph.
        options: options of the new model, by dotted name.
        replace: if several models have a part, take the last one's.
    """

    parts: tuple[str, ...] = ()
    description: str = ""
    int8: DataSet | None = None
    options: dict[str, Any] = field(default_factory=dict)
    replace: bool = False

    def __post_init__(self) -> None:
        if not self.parts:
            raise UserError("parts must name a stage that makes a model, as in parts: [$densecap, $aligner]")

    def models(self) -> list[str]:
        return list(self.parts)

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        return [] if self.int8 is None else [(self.int8, {})]

    def run(self, work: Work) -> Done:
        from saywhere.engines.export import export
        from saywhere.engines.quantize import draw_images

        images = None
        if self.int8 is not None:
            (samples,), _ = calibration.read_sets([self.int8.place])
            images = draw_images([sample.image for sample in evenly(samples, self.int8.limit)])
        export(self.parts, work.folder / MODEL, self.description, int8=images, replace=self.replace,
               options=self.options)  # fmt: skip
        size = sum(path.stat().st_size for path in (work.folder / MODEL).iterdir()) / 1e6
        made = f"{', '.join(Bundle.read(work.folder / MODEL).configs)}; {size:.0f} MB"
        return Done(made, {"result": made})


@dataclass(frozen=True)
class Question:
    """The data sets that one question of a calibration is fitted to; if empty, those of the stage."""

    data: tuple[DataSet, ...] = ()


@dataclass(frozen=True)
class Calibrate(Stage):
    """Fit what turns scores into probabilities, as ``saywhere calibrate`` does.

    Attributes:
        model: a model, exported or not; it is copied.
        data: for questions without data sets of their own.
        questions: from :data:`saywhere.stages.calibration.FITS`; if empty, the usual ones. Questions whose parts the
            model lacks are skipped.
    """

    CONTINUES = "model"
    model: str = ""
    data: tuple[DataSet, ...] = ()
    questions: dict[str, Question] = field(default_factory=dict)

    def asked(self) -> dict[str, tuple[DataSet, ...]]:
        """Return the questions in order, each with its data."""
        chosen = self.questions or dict.fromkeys(calibration.USUAL, Question())
        found = {what: chosen[what].data or self.data for what in calibration.FITS if what in chosen}
        return {
            what: tuple(replace(s, split=s.split or calibration.default_split(what, s.root, s.format)) for s in sources)
            for what, sources in found.items()
        }

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        return [(source, {}) for sources in self.asked().values() for source in sources]

    def check(self, read: Reader) -> None:
        if unknown := [what for what in self.questions if what not in calibration.FITS]:
            raise UserError(f"questions.{unknown[0]}: known are {', '.join(calibration.FITS)}")
        if empty := [what for what, sources in self.asked().items() if not sources]:
            raise UserError(f"questions.{empty[0]}.data must name a data set")
        super().check(read)

    def run(self, work: Work) -> Done:
        folder = work.folder / MODEL
        copy_model(self.model, folder)
        able = calibration.possible(Bundle.read(folder).configs)
        facts: dict[str, str] = {}
        for what, sources in self.asked().items():
            if what not in able:
                continue
            sets, source = calibration.read_sets(each.place for each in sources)
            try:
                facts[what] = str(calibration.fit(what, folder, sets, source, [each.limit for each in sources]))
            except UserError as error:
                if self.questions:
                    raise UserError(f"{what}: {error}") from error
                print(f"left out: {what}: {error}", file=sys.stderr)
        return Done(", ".join(facts) or "nothing to calibrate", {"questions": facts, "result": ", ".join(facts)})


@dataclass(frozen=True)
class Task:
    """One measurement.

    Attributes:
        task: a task of ``saywhere evaluate``; by default the name of this entry.
        data: the data set; its default split is ``dev``.
        options: options of the task, named as those of the command.
    """

    data: DataSet
    task: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluate(Stage):
    """Measure a ``model``; tasks that it has no part for are skipped."""

    MODEL_OF = False
    model: str = ""
    tasks: dict[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, task in self.tasks.items():
            if (kind := task.task or name) not in TASKS:
                raise UserError(f"tasks.{name}.task is {kind!r}, but must be one of {', '.join(TASKS)}")

    def output(self, folder: Path) -> Path:
        return folder

    def sets(self) -> list[tuple[DataSet, Mapping[str, Any]]]:
        return [(replace(task.data, split=task.data.split or DEV), {}) for task in self.tasks.values()]

    def check(self, read: Reader) -> None:
        super().check(read)
        for name, task in self.tasks.items():
            run = importlib.import_module(f"saywhere.evaluation.{TASKS[task.task or name].module}").run
            known = [each for each in inspect.signature(run).parameters if each not in ("model", "session")]
            if unknown := [each for each in task.options if each not in known]:
                raise UserError(
                    f"unknown key tasks.{name}.options.{unknown[0]}; known are {', '.join(known) or 'none'}"
                )
            if importlib.util.find_spec("pycocoevalcap") is None:
                raise UserError("evaluation needs pip install 'saywhere[evaluate]'")

    def run(self, work: Work) -> Done:
        """Measure; results from before an interruption are read."""
        parts, figures = Bundle.read(self.model).configs, dict[str, Any]()
        for name, task in self.tasks.items():
            kind, source, out = task.task or name, task.data, work.folder / name
            if not set(TASKS[kind].parts) & set(parts):
                continue
            evaluate(self.model, source.root, kind, out=out, format=source.format, split=source.split,
                     limit=source.limit, **task.options)  # fmt: skip
            report = json.loads((out / "report.json").read_text(encoding="utf-8"))
            for image, reason in report["skipped"].items():
                leave_out(f"skipped: {image}: {reason}")
            found = {label: figure_of(report, path) for label, path in TASKS[kind].figures.items()}
            numbers = {label: value for label, value in found.items() if isinstance(value, int | float)}
            asked = [f"saywhere evaluate {kind} --data {Path(source.root).name} --split {source.split or DEV}"]
            asked += [f"--limit {source.limit}"] if source.limit else []
            asked += [f"--{option.replace('_', '-')} {value}" for option, value in task.options.items()]
            figures[name] = {"command": " ".join(asked), "figures": numbers}
        first = [
            f"{name} {next(iter(each['figures'].values())):.3f}" for name, each in figures.items() if each["figures"]
        ]
        return Done(", ".join(first) or "nothing to measure", {"figures": figures, "result": ", ".join(first)})


@dataclass(frozen=True)
class Card(Stage):
    """Write the model card: stages, data, figures, limits and the recipe.

    Attributes:
        title: by default the name of the recipe.
        licence: a paragraph about the terms of the data and the model.
        limits: what the model cannot do, one line each.
    """

    CONTINUES = "model"
    model: str = ""
    title: str = ""
    licence: str = ""
    limits: tuple[str, ...] = ()

    def run(self, work: Work) -> Done:
        copy_model(self.model, work.folder / MODEL)
        bundle = Bundle.read(work.folder / MODEL)
        facts = BundleFacts(
            self.title or str(work.recipe["name"]),
            str(work.recipe.get("description") or bundle.description),
            work.facts, self.licence, self.limits, work.recipe,
        )  # fmt: skip
        write_text(work.folder / MODEL / CARD, write_bundle_card(facts))
        return Done(f"{CARD} of {', '.join(bundle.configs)}")


KINDS: dict[str, type[Stage]] = {
    "start": Start,
    "branch": BranchStage,
    "tower": TowerStage,
    "densecap": DenseCapStage,
    "phrases": DenseCapStage,
    "nouns": Nouns,
    "aligner": AlignerStage,
    "captioner": CaptionerStage,
    "ngrams": NgramsStage,
    "chunker": ChunkerStage,
    "export": Export,
    "calibration": Calibrate,
    "evaluation": Evaluate,
    "card": Card,
}
"""The kinds by name; ``phrases`` trains the phrases of a dense captioner whose regions are frozen."""

EYES: dict[type[Stage], dict[str, bool]] = {BranchStage: {"branch": True}, TowerStage: {"branch": False, "tower": True}}
"""The kinds whose result becomes part of the trunk of later stages, and the trunk options that say so."""


def copy_model(source: str | Path, out: Path) -> None:
    """Make a model folder a copy of another, with hard links where possible, since files are never changed in place.

    During the copy the folder has no configuration and thus is no model: a mixture of files would answer wrongly.
    """
    folder = Bundle.read(source).folder
    out.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in folder.iterdir() if path.is_file()]
    changed = [name for name in names if not ((out / name).exists() and (out / name).samefile(folder / name))]
    if changed:
        (out / CONFIG).unlink(missing_ok=True)
        changed = [*(name for name in changed if name != CONFIG), CONFIG]
    for path in out.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in changed:
        part = out / f".{name}.part"
        part.unlink(missing_ok=True)
        try:
            link_or_copy(folder / name, part)
            put_in_place(part, out / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            error.filename, error.filename2 = str(out / name), None  # the file that could not be written
            raise
