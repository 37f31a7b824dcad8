"""A whole run: from a recipe to a model folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saywhere import boxes as geometry
from saywhere import data
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import Config, RegionConfig
from saywhere.data import PhraseOptions, Sample, Samples
from saywhere.data.sample import digest_of, evenly, is_held_out
from saywhere.errors import UserError
from saywhere.files import explain_full_disk, write_text
from saywhere.inference.claims import locked
from saywhere.models.bundle import Bundle
from saywhere.networks.checkpoint import ARCHITECTURE
from saywhere.networks.vision.trunk import Trunk
from saywhere.options import dataclass, flatten
from saywhere.report import counted, leave_out
from saywhere.text import Vocabulary
from saywhere.training import cache
from saywhere.training import recipe as recipes
from saywhere.training.aligner import AlignerSystem
from saywhere.training.branch import BranchSystem, load_branch
from saywhere.training.captioner import CaptionerSystem
from saywhere.training.card import DataFacts, write_card
from saywhere.training.dataset import Digest, ImageDataset, System
from saywhere.training.densecap import DenseCapSystem
from saywhere.training.finetuning import freeze, keep_scale, start_from
from saywhere.training.loop import Training, find_device, read_state
from saywhere.training.recipe import DataConfig, Recipe, SourceConfig, require_own

SYSTEMS: dict[str, System] = {
    "densecap": DenseCapSystem(), "aligner": AlignerSystem(), "captioner": CaptionerSystem(), "branch": BranchSystem(),
}  # fmt: skip


def find_system(name: str) -> System:
    """Return the system of a recipe; ``UserError`` if there is none of this name."""
    if name not in SYSTEMS:
        raise UserError(f"system is {name!r}, but must be one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def build_vocabulary(system: System, samples: Sequence[Sample], min_count: int) -> Vocabulary:
    """Return the words that occur at least ``min_count`` times in the samples' texts.

    ``UserError`` if there are none.
    """
    texts = [text for sample in samples for text in system.texts(sample)]
    vocabulary = Vocabulary.build(texts, min_count)
    if texts and not vocabulary.counts:
        raise UserError(f"no word occurs {min_count} times in the training texts; lower data.min_count")
    return vocabulary


FREE_TO_CHANGE = ("description", *(f"training.{key}" for key in ("epochs", "patience", "workers", "cache", "half")))
"""Recipe keys that may change when a run is resumed; ``epochs`` moves the end of the cosine."""

SAME_BOX = 0.85
"""Boxes of two data sets with at least this IoU count as the same."""

RUN_FILES = ("last.ckpt", "metrics.csv", "recipe.yaml", "curves.png", "model")


@dataclass(frozen=True)
class Result:
    """Outcome of a run.

    Attributes:
        model: folder of the best weights.
        epoch: epoch of these weights, counted from 1.
        metrics: their validation losses.
        interrupted: whether Ctrl-C or SIGTERM stopped the run.
        facts: the training data.
    """

    model: Path
    epoch: int
    metrics: dict[str, float]
    interrupted: bool = False
    facts: DataFacts | None = None


def train(recipe: Recipe, out: str | Path, restart: bool = False) -> Result:
    """Train a model by a recipe.

    A killed run is resumed from ``out/last.ckpt``, unless ``restart`` is set, and yields the same weights as an
    uninterrupted one.

    Args:
        out: output folder; ``out/model`` has the best weights so far, a model folder with a card and the recipe.
        restart: remove an existing run and start over.

    Raises:
        UserError: wrong data, a recipe that differs from that of the run in ``out``, another process working there, an
            exploding loss, or a full disk.
        KeyboardInterrupt: at the second Ctrl-C; the state is not saved.
    """
    out = Path(out)
    system, config = find_system(recipe.system), model_config(recipe)
    for part in (recipe.data, *recipe.data.also.values()):
        PhraseOptions.from_dict(part.phrases)
    require_monitor(recipe)
    with explain_full_disk(out), locked(out):
        _prepare(recipe, out, restart)
        train_samples, name = read_training(recipe.data, system, config)
        validation_samples: list[Sample] = []
        if split := recipe.data.validation:
            validation_samples, _ = read_split(recipe.data, system, config, split, recipe.data.validation_limit)
        digests = [
            (split, len(samples), digest_of(samples))
            for split, samples in ((recipe.data.train, train_samples), (recipe.data.validation, validation_samples))
        ]
        _require_same_data(out, digests)
        network = build_network(recipe, train_samples)
        train_data = _dataset(recipe, network, train_samples, validation=False)
        validation_data = _dataset(recipe, network, validation_samples, validation=True) if validation_samples else None
        criterion = system.criterion(network, train_samples)
        return fit(recipe, out, network, criterion, train_data, validation_data, name, digests)


def require_monitor(recipe: Recipe) -> None:
    """Refuse a ``training.monitor`` that validation does not measure."""
    losses = find_system(recipe.system).losses(model_config(recipe))
    known, monitor = ["val/loss", *(f"val/{name}" for name in losses)], recipe.training.monitor
    if recipe.data.validation and monitor not in known:
        raise UserError(f"training.monitor is {monitor!r}, but there are {', '.join(known)}")


def model_config(recipe: Recipe) -> Any:
    """Return the model configuration: the recipe's options over those of ``model.preset`` (default: ``default``).

    Proposals are those of ``training.start``, or else of ``model.localizer``, where the recipe does not say.
    ``UserError`` for an unknown preset or option, or an invalid value.
    """
    system, options = find_system(recipe.system), dict(recipe.model)
    preset = options.pop("preset", "default")
    if preset not in system.presets:
        raise UserError(f"model.preset is {preset!r}, but must be one of {', '.join(system.presets)}")
    config = system.presets[preset]().merge(options, prefix="model.")
    if not isinstance(config, RegionConfig) or not config.uses_proposals:
        return config
    return _like(config, options.get("proposals") or {}, (recipe.training.start, config.localizer))


def _like(config: RegionConfig, given: Mapping[str, Any], sources: Sequence[str | None]) -> RegionConfig:
    """Return the configuration with the localization layer of the first model that has one, but for ``given`` options.

    A model that does not exist yet, or sees other maps, changes nothing; building the network refuses the latter.
    """
    for source in filter(None, sources):
        try:
            parts = Bundle.read(source).configs
        except UserError:
            continue
        own = (part for part in parts.values() if type(part) is type(config) and part.uses_proposals)
        found = next(own, parts.get("densecap"))
        if isinstance(found, DenseCapConfig | RegionConfig) and found.trunk.strides == config.trunk.strides:
            theirs = {name: getattr(found.proposals, name) for name in ARCHITECTURE if name not in given}
            return replace(config, proposals=replace(config.proposals, **theirs))
    return config


def build_network(recipe: Recipe, samples: Sequence[Sample]) -> Any:
    """Build a recipe's initial network, with the vocabulary of the training texts.

    Raises:
        UserError: no word is frequent enough, weights are missing or do not fit, or a module to freeze is missing.
    """
    system, training = find_system(recipe.system), recipe.training
    vocabulary = build_vocabulary(system, samples, recipe.data.min_count)
    torch.manual_seed(recipe.seed)
    network = system.build(model_config(recipe), vocabulary, training.pretrained and training.start is None)
    start = None if training.start is None else start_from(network, training.start)
    if start is not None:
        print(f"{training.start}: {start}", file=sys.stderr)
    if training.branch is not None:
        load_branch(network.trunk, training.branch)
    elif recipe.system != "branch":
        _require_eye(network.trunk, training.start or getattr(network.config, "localizer", None))
    if start is not None:
        keep_scale(network, start, samples)
    freeze(network, training.freeze)
    return network


def _require_eye(trunk: Trunk, source: str | None) -> None:
    """Refuse a branch that would stay untrained, and a tower without its graph."""
    there = trunk.tower if trunk.config.tower else source is not None and Bundle.read(source).trunk.branch
    for name in ("branch", "tower"):
        if getattr(trunk.config, name) and not there:
            raise UserError(f"model.trunk.{name} needs training.branch, or a model to start from that has a {name}")


def fit(
    recipe: Recipe,
    out: Path,
    network: Any,
    criterion: torch.nn.Module,
    train_data: ImageDataset,
    validation_data: ImageDataset | None,
    name: str,
    digests: Sequence[Digest],
) -> Result:
    """Train a network on prepared data of the data set ``name``, or resume the run in ``out``.

    ``digests`` identify the data to a resumed run.
    """
    system = find_system(recipe.system)
    facts = _facts(recipe, system, name, network, train_data, validation_data)

    def keep(epoch: int, metrics: dict[str, float], seconds: float) -> None:
        dtype = torch.float16 if recipe.training.half else torch.float32
        card = write_card(recipe, facts, epoch, metrics, seconds)
        system.save(network, out / "model", card, recipe.description, dtype)
        write_text(out / "model" / "recipe.yaml", recipe.text)

    extractor = system.extractor(network)
    run = Training(recipe, out, network, criterion, extractor, train_data, validation_data, digests, keep)
    interrupted = run.run()
    if run.skipped:
        print(f"{counted(len(run.skipped), 'image')} could not be read; others took their place", file=sys.stderr)
    return Result(out / "model", run.state.best_epoch + 1, run.state.metrics, interrupted, facts)


def _require_same_data(out: Path, digests: Sequence[Digest]) -> None:
    """Refuse to resume a run whose data has changed: its model would belong to neither data."""
    before = read_state(out / "last.ckpt").get("data", digests)
    for (_, images, old), (split, count, new) in zip(before, digests, strict=True):
        if old != new:
            what = f"{counted(count, 'image')}, not {images:,}" if count != images else "other images, boxes or texts"
            raise UserError(
                f"{out} holds a run whose data has changed: {split} has now {what}. Put the data back, name another "
                "folder with --out, or start over with --restart, which removes that run"
            )


def _prepare(recipe: Recipe, out: Path, restart: bool) -> None:
    """Start the run in its folder, or check that the existing run has the same recipe."""
    if not any((out / name).exists() for name in RUN_FILES[:2]):  # there is no run, or it saved nothing
        require_own(out, *RUN_FILES[3:])
    elif restart:
        for name in RUN_FILES:
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    stored = out / "recipe.yaml"
    if (out / "last.ckpt").exists() and stored.exists():
        before, now = (flatten(each.to_dict()) for each in (recipes.load(stored), recipe))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key) and key not in FREE_TO_CHANGE]
        if changed:
            key = changed[0]
            raise UserError(
                f"{out} holds a run with {key}={before.get(key)}, not {now.get(key)}: name another folder with --out, "
                "or start over with --restart, which removes that run"
            )
        print(f"resuming the run in {out}", file=sys.stderr)
    write_text(stored, recipe.text)


def read_training(config: DataConfig, system: System, model: Config) -> tuple[list[Sample], str]:
    """Return the training samples of all data sets of a recipe, one after the other, and the data sets' names."""
    samples, name = read_split(config, system, model, config.train, config.train_limit)
    names = [name]
    for part in sorted(config.also.values(), key=lambda part: part.names):  # names join what others describe
        more, name = read_split(part, system, model, part.train, part.train_limit)
        if part.words != 1:
            more = [replace(s, phrase_weights=np.full(len(s.boxes), part.words, np.float32)) for s in more]
        samples, names = join_names(samples, more) if part.names else [*samples, *more], [*names, name]
    return samples, " and ".join(names)


def join_names(samples: Sequence[Sample], named: Sequence[Sample]) -> list[Sample]:
    """Add boxes with mere class names to the samples of the same images, and append the remaining named images.

    Named boxes that overlap a described box by :data:`SAME_BOX` or more are dropped: a written phrase says more than a
    name.
    """
    described = {sample.image.resolve(): number for number, sample in enumerate(samples)}
    joined, rest = list(samples), list[Sample]()
    for more in named:
        if (number := described.get(more.image.resolve())) is None:
            rest.append(more)
            continue
        sample = joined[number]
        overlap = geometry.iou(more.boxes, samples[number].boxes).max(axis=1, initial=0)
        rows = np.flatnonzero(overlap < SAME_BOX).tolist()
        weights = [np.ones(len(s.boxes)) if s.phrase_weights is None else s.phrase_weights for s in (sample, more)]
        joined[number] = replace(
            sample,
            boxes=np.concatenate((sample.boxes, more.boxes[rows])),
            phrases=(*sample.phrases, *(more.phrases[row] for row in rows)),
            phrase_weights=np.concatenate((weights[0], weights[1][rows])).astype(np.float32),
        )
    return joined + rest


def read_split(
    config: DataConfig | SourceConfig, system: System, model: Config, split: str, limit: int | None
) -> tuple[list[Sample], str]:
    """Return at most ``limit`` samples of a split that the system can learn from, and the data set's name.

    Prints problems. ``UserError`` if there is no such data set or split, or nothing usable in it.
    """
    samples: Samples = data.read(config.root, config.format, split, PhraseOptions.from_dict(config.phrases))
    free = config.hold_out and split == config.train
    usable = system.usable([s for s in samples if not is_held_out(s.image)] if free else samples, model)
    before, after = (sum(1 for sample in some for _ in system.texts(sample)) for some in (samples, usable))
    if before > after:
        unused = f"{before - after} of {counted(before, 'text')} not used"
        why = "without a word, too long, of held-out images, or of a kind that this part does not learn"
        print(f"{samples.name}, {split}: {unused}: {why}", file=sys.stderr)
    samples.report.leave_out(split)
    for line in samples.report.lines() if samples.report.ok else ():
        print(f"{split}: {line}", file=sys.stderr)
    if not usable:
        raise UserError(f"{config.root}: the split {split} has no image with {system.unit}")
    return evenly(usable, limit), samples.name


def _dataset(recipe: Recipe, network: Any, samples: list[Sample], validation: bool) -> ImageDataset:
    """Return the data of one split, with cached features if the recipe has a cache and they are ever used."""
    training, system = recipe.training, find_system(recipe.system)
    features, cached_epochs = None, None if validation else training.unfreeze_after
    if training.cache is not None and (training.unfreeze_after is None or not (validation or cached_epochs == 0)):
        extractor = system.extractor(network)
        built = cache.build(
            training.cache,
            getattr(extractor, "settings", network.config.trunk.backbone),
            extractor,
            network.trunk.preprocess,
            samples,
            flip=training.flip and not validation,
            device=find_device(training.accelerator),
            batch_size=training.batch_size,
            title=f"features of the {'validation' if validation else 'training'} images",
        )
        for reason in built.damaged.values():
            leave_out(f"skipped: {reason}")
        if not built.numbers:
            raise UserError(f"{recipe.data.root}: not one image can be read")
        samples, features = [samples[i] for i in built.numbers], built
    return ImageDataset(
        samples,
        system.targets(network),
        network.trunk.preprocess,
        recipe.seed,
        features,
        cached_epochs,
        flip=training.flip,
        fixed=validation,
    )


def _facts(
    recipe: Recipe,
    system: System,
    name: str,
    network: Any,
    train_data: ImageDataset,
    validation_data: ImageDataset | None,
) -> DataFacts:
    parts = [(recipe.data.train, train_data), (recipe.data.validation, validation_data)]
    splits = [(split, len(d), sum(map(system.count, d.samples))) for split, d in parts if d is not None]
    return DataFacts(system.about, name, splits, system.unit, len(network.vocabulary.counts))
