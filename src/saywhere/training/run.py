"""A whole run: from a recipe to a checkpoint folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saywhere import data
from saywhere.data import PhraseOptions, Sample, Samples
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.models import checkpoint
from saywhere.models.config import Config
from saywhere.training import cache
from saywhere.training import recipe as recipes
from saywhere.training.callbacks import Best, InterruptedRun, LossLog, Pictures, RunState, ShowProgress
from saywhere.training.card import DataFacts, write_card
from saywhere.training.dataset import PictureDataset, evenly
from saywhere.training.loop import Position, TrainingModule, build_trainer
from saywhere.training.recipe import DataConfig, Recipe
from saywhere.training.start import start_from
from saywhere.training.systems import System, build_vocabulary, find_system

FREE_TO_CHANGE = (
    "description",
    *(f"training.{key}" for key in ("epochs", "patience", "workers", "cache", "samples", "half")),
)
"""Keys of a recipe that may differ when a run goes on; ``epochs`` moves the end of the cosine."""

RUN_FILES = ("last.ckpt", "recipe.yaml", "metrics.csv", "curves.png", "tensorboard", "samples", "model")


@dataclass(frozen=True)
class Result:
    """How a run ended: the folder of the best weights, their losses, and whether it was interrupted."""

    model: Path
    epoch: int
    metrics: dict[str, float]
    interrupted: bool = False


def train(recipe: Recipe, out: str | Path, restart: bool = False) -> Result:
    """Train what ``recipe`` says; everything is written under ``out``.

    A run that was killed goes on from ``out/last.ckpt``, unless ``restart`` is set, and gives the same weights as one
    that was not. The best weights so far are in ``out/model``, a checkpoint folder with a card and the recipe.

    Raises:
        UserError: wrong data, a recipe other than that of the run in ``out``, a loss that explodes, a full disk.
    """
    out = Path(out)
    system, config = find_system(recipe.system), model_config(recipe)
    PhraseOptions.from_dict(recipe.data.phrases)
    _prepare(recipe, out, restart)
    train_samples, name = read_split(recipe.data, system, config, recipe.data.train, recipe.data.train_limit)
    validation_samples: list[Sample] = []
    if split := recipe.data.validation:
        validation_samples, _ = read_split(recipe.data, system, config, split, recipe.data.validation_limit)
    model = build_model(recipe, train_samples)
    train_data = _dataset(recipe, model, train_samples, validation=False)
    validation_data = _dataset(recipe, model, validation_samples, validation=True) if validation_samples else None
    return fit(recipe, out, model, system.criterion(model, train_samples), train_data, validation_data, name)


def model_config(recipe: Recipe) -> Any:
    """The model's configuration: the recipe's keys over those of ``model.preset``, ``default`` if not given."""
    system, options = find_system(recipe.system), dict(recipe.model)
    preset = options.pop("preset", "default")
    if preset not in system.presets:
        raise UserError(f"model.preset is {preset!r}, but must be one of {', '.join(system.presets)}")
    base = system.presets[preset]()
    return type(base).from_dict({**base.to_dict(), **options}, prefix="model.")


def build_model(recipe: Recipe, samples: Sequence[Sample]) -> Any:
    """The model that a recipe begins with, its vocabulary from the training texts."""
    system, training = find_system(recipe.system), recipe.training
    vocabulary = build_vocabulary(system, samples, recipe.data.min_count)
    torch.manual_seed(recipe.seed)
    model = system.build(model_config(recipe), vocabulary, training.pretrained and training.start is None)
    if training.start is not None:
        start = start_from(model, vocabulary, training.start)
        if first_process():
            print(f"{training.start}: {start}", file=sys.stderr)
    return model


def fit(
    recipe: Recipe,
    out: Path,
    model: Any,
    criterion: torch.nn.Module,
    train_data: PictureDataset,
    validation_data: PictureDataset | None,
    name: str,
) -> Result:
    """Train ``model`` on data that is ready (``name``: of the data set), or go on where the run in ``out`` was."""
    system = find_system(recipe.system)
    facts = _facts(recipe, system, name, model, train_data, validation_data)
    last = out / "last.ckpt"
    position, step = _read_position(last)
    module = TrainingModule(model, criterion, system.extractor, recipe, train_data, validation_data, position)

    def save(epoch: int, metrics: dict[str, float], seconds: float) -> None:
        dtype = torch.float16 if recipe.training.half else torch.float32
        card = write_card(recipe, facts, epoch, metrics, seconds)
        checkpoint.save(model, out / "model", card, recipe.description, dtype)
        write_text(out / "model" / "recipe.yaml", recipe.to_yaml())

    best = Best(recipe.training.monitor, recipe.training.patience, save)
    shown = evenly(validation_data.samples, recipe.training.samples) if validation_data else []
    pictures = Pictures(out, [sample.image for sample in shown], system.draw)
    state = RunState(last, recipe.training.save_every)
    trainer = build_trainer(recipe, out, [ShowProgress(), LossLog(), best, pictures, state], step)
    try:
        trainer.fit(module, ckpt_path=last if last.exists() else None, weights_only=True)
    except InterruptedRun:
        return Result(out / "model", best.best_epoch + 1, best.metrics, interrupted=True)
    return Result(out / "model", best.best_epoch + 1, best.metrics)


def _read_position(last: Path) -> tuple[Position, int]:
    if not last.exists():
        return Position(), 0
    try:
        state = torch.load(last, map_location="cpu", weights_only=True, mmap=True)
        return Position(**state["position"]), int(state["global_step"])
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{last} cannot be read ({reason}); begin anew with --restart") from error


def first_process() -> bool:
    """Lightning starts the other processes with the same command; only the first prepares the folder and prints."""
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def _prepare(recipe: Recipe, out: Path, restart: bool) -> None:
    """Make the folder of the run, or see whether the run in it is this one."""
    if not first_process():
        return
    out.mkdir(parents=True, exist_ok=True)
    if restart:
        for name in RUN_FILES:
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    stored = out / "recipe.yaml"
    if (out / "last.ckpt").exists() and stored.exists():
        before, now = _flat(recipes.load(stored).to_dict()), _flat(recipe.to_dict())
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key) and key not in FREE_TO_CHANGE]
        if changed:
            key = changed[0]
            raise UserError(
                f"{out} holds a run with {key}={before.get(key)}, not {now.get(key)}: name another folder with --out, "
                "or begin anew with --restart, which removes that run"
            )
        print(f"going on with the run in {out}", file=sys.stderr)
    write_text(stored, recipe.to_yaml())


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def read_split(
    config: DataConfig, system: System, model: Config, split: str, limit: int | None
) -> tuple[list[Sample], str]:
    """At most ``limit`` samples of a split that the system can learn, and the name of the data set.

    Problems are printed.
    """
    samples: Samples = data.read(config.root, config.format, split, PhraseOptions.from_dict(config.phrases))
    usable = system.usable(samples, model)
    if first_process():
        before, after = (sum(1 for sample in some for _ in system.texts(sample)) for some in (samples, usable))
        if before > after:
            print(f"{split}: {before - after} of {before} texts left out: no word, or too many", file=sys.stderr)
        for line in samples.report.lines():
            print(f"{split}: {line}", file=sys.stderr)
    if not usable:
        raise UserError(f"{config.root}: the split {split} has no picture with {system.unit}")
    return evenly(usable, limit), samples.name


def _dataset(recipe: Recipe, model: Any, samples: list[Sample], validation: bool) -> PictureDataset:
    """The data of one split, its features cached if the recipe says so and they are ever used."""
    training, system = recipe.training, find_system(recipe.system)
    features, cached_epochs = None, None if validation else training.unfreeze_after
    if training.cache is not None and (training.unfreeze_after is None or not (validation or cached_epochs == 0)):
        extractor = model.get_submodule(system.extractor)
        built = cache.build(
            training.cache,
            getattr(extractor, "settings", model.config.backbone),
            extractor,
            model.preprocess,
            samples,
            flip=training.flip and not validation,
            device=_device(training.accelerator),
            batch_size=training.batch_size,
            title=f"features of the {'validation' if validation else 'training'} pictures",
        )
        for reason in built.damaged.values():
            print(f"skipped: {reason}", file=sys.stderr)
        good = [i for i in range(len(samples)) if i not in built.damaged]
        if not good:
            raise UserError(f"{recipe.data.root}: not one picture can be read")
        samples, features = [samples[i] for i in good], built.subset(good)
    return PictureDataset(
        samples,
        system.targets(model),
        model.preprocess,
        recipe.seed,
        features,
        cached_epochs,
        flip=training.flip,
        fixed=validation,
    )


def _device(accelerator: str) -> str:
    wants = accelerator in ("auto", "gpu", "cuda")
    return "cuda" if wants and torch.cuda.is_available() else "cpu"


def _facts(
    recipe: Recipe,
    system: System,
    name: str,
    model: Any,
    train_data: PictureDataset,
    validation_data: PictureDataset | None,
) -> DataFacts:
    parts = [(recipe.data.train, train_data), (recipe.data.validation, validation_data)]
    splits = [(split, len(d), sum(map(system.count, d.samples))) for split, d in parts if d is not None]
    return DataFacts(system.about, name, splits, system.unit, len(model.vocabulary.counts))
