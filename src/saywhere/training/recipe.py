"""Recipes: training runs as files, with everything that is needed to repeat them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from saywhere import options
from saywhere.errors import UserError
from saywhere.files import is_utf8, parse_yaml, read_whole
from saywhere.options import dataclass

IN_WHEEL, IN_CHECKOUT = Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes"
"""Folders of the recipes that come with the package."""


@dataclass(frozen=True)
class SourceConfig:
    """Options of an additional training data set.

    Attributes:
        root, format, train, phrases, train_limit, hold_out: as in :class:`DataConfig`.
        words: loss weight of its phrases in dense captioners. 0 trains boxes alone, and in an aligner that learns from
            phrases (``region_phrases``) sentences alone.
        names: whether its phrases are mere class names. In images that another data set describes, its boxes are added
            to those with phrases, except where they coincide (:func:`saywhere.training.run.join_names`).
    """

    root: str
    format: str | None = None
    train: str = "train"
    phrases: dict[str, Any] = field(default_factory=dict)
    train_limit: int | None = None
    hold_out: bool = False
    words: float = 1.0
    names: bool = False

    def __post_init__(self) -> None:
        _check(self.words >= 0, "words", self.words, "not negative")
        _check(self.root != "", "root", "''", "a folder or a file")
        _check_data(self)


@dataclass(frozen=True)
class DataConfig:
    """Options of the data: where images and texts come from.

    Attributes:
        format: one of ``saywhere.data.FORMATS``; None detects it from the files.
        root: the folder (or JSONL file) as ``saywhere.data.read`` takes it.
        train, validation: names of the splits; without validation the weights of the last epoch are kept.
        phrases: options of ``saywhere.data.PhraseOptions``.
        min_count: rarer words of the training texts become the unknown word.
        train_limit, validation_limit: maximum number of images, evenly spaced.
        hold_out: leave out the tenth of the training images that calibration holds out
            (:func:`saywhere.data.sample.is_held_out`).
        also: additional training data sets by any name; they are not used for validation.
    """

    root: str
    format: str | None = None
    train: str = "train"
    validation: str | None = None
    phrases: dict[str, Any] = field(default_factory=dict)
    min_count: int = 1
    train_limit: int | None = None
    validation_limit: int | None = None
    hold_out: bool = False
    also: dict[str, SourceConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)
        _check(self.validation != "", "validation", "''", "the name of a split, or null")
        limit = self.validation_limit
        _check(limit is None or limit >= 1, "validation_limit", limit, "at least 1")
        _check(self.min_count >= 1, "min_count", self.min_count, "at least 1")


@dataclass(frozen=True)
class OptimizerConfig:
    """Options of the optimiser of one of the two parameter groups.

    Attributes:
        kind: ``adam``, ``sgd`` and ``rmsprop`` add the weight decay to the gradient (L2); ``adamw`` decouples it;
            ``original_adam`` is the published program's Adam (``saywhere.papers.densecap2016``).
        lr: learning rate after the warm-up.
        betas: of Adam and its variants.
        alpha: smoothing constant of RMSprop.
        eps: of RMSprop, Adam and its variants.
        weight_decay: see ``kind``.
        momentum: of SGD.
    """

    kind: Literal["adamw", "adam", "original_adam", "sgd", "rmsprop"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr >= 0, "lr", self.lr, "not negative")
        _check(all(0 <= beta < 1 for beta in self.betas), "betas", self.betas, "two numbers from 0 to below 1")
        _check(0 <= self.alpha < 1, "alpha", self.alpha, "from 0 to below 1")
        for name in ("weight_decay", "eps", "momentum"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "not negative")


@dataclass(frozen=True)
class TrainingConfig:
    """Options of training.

    Attributes:
        epochs: passes over the training images.
        batch_size: images per batch.
        accumulate: batches whose gradients are summed for one optimiser step.
        backbone, rest: optimisers of the two parameter groups, of the same kind: the backbone, and everything else.
        warmup: optimiser steps of linear warm-up from 0.
        schedule: ``cosine`` anneals the learning rates to 0 at the last step, ``constant`` keeps them.
        clip: maximum gradient norm; None for no clipping.
        clip_by: ``norm``, or ``value`` to clip each element of the gradient to ``clip``.
        average: number of epochs whose mean weights are validated and kept; 1 for the last epoch's alone
            (:class:`saywhere.training.loop.AverageWeights`).
        precision: ``32`` or ``bf16-mixed``.
        accelerator: ``auto`` (the best available), ``cpu``, ``gpu``, or another device by its name in torch.
        pretrained: start from the backbone's published weights.
        start: a model (name or folder) whose part of the same kind provides initial weights, where they fit; see
            :mod:`saywhere.training.finetuning`.
        branch: weights of the trunk's second branch, a file written by the system ``branch``; or the graph of its image
            tower, see :func:`saywhere.training.branch.make_tower`.
        unfreeze_after: epochs after which the backbone is trained too; None for never, 0 for the start.
        freeze: modules of the network to freeze, such as ``trunk.localization``.
        cache: folder for the features of the frozen network; None recomputes them in each epoch.
        flip: mirror half of the images, and swap left and right in their texts.
        shuffle: reshuffle the images in each epoch; otherwise keep the order of the data set.
        patience: stop after this many epochs without improvement of ``monitor``; None trains all epochs.
        monitor: value that selects the best weights, lower is better: ``val/loss`` (sum of the validation losses) or
            one term, such as ``val/caption``.
        workers: processes that prepare batches; 0 is best for cached features.
        log_every, save_every: optimiser steps between rows of the log, and between saves of the run's state.
        half: store the best weights as float16, in half the bytes; training keeps full precision.
    """

    epochs: int = 10
    batch_size: int = 8
    accumulate: int = 1
    backbone: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-5))
    rest: OptimizerConfig = field(default_factory=OptimizerConfig)
    warmup: int = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float | None = None
    clip_by: Literal["norm", "value"] = "norm"
    average: int = 1
    precision: Literal["32", "bf16-mixed"] = "32"
    accelerator: str = "auto"
    pretrained: bool = True
    start: str | None = None
    branch: str | None = None
    unfreeze_after: int | None = None
    freeze: tuple[str, ...] = ()
    cache: str | None = None
    flip: bool = True
    shuffle: bool = True
    patience: int | None = None
    monitor: str = "val/loss"
    workers: int = 0
    log_every: int = 20
    save_every: int = 200
    half: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "average", "log_every", "save_every"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("warmup", "workers", "unfreeze_after"):
            _check((getattr(self, name) or 0) >= 0, name, getattr(self, name), "not negative")
        for name in ("accelerator", "start", "branch", "cache", "monitor"):
            _check(getattr(self, name) != "", name, "''", "a name")
        _check(all(self.freeze), "freeze", list(self.freeze), "names of modules")
        _check(self.clip is None or self.clip > 0, "clip", self.clip, "above 0")
        _check(self.patience is None or self.patience >= 1, "patience", self.patience, "at least 1")

    def frozen(self, epoch: int) -> bool:
        """Return whether the backbone is frozen in ``epoch`` (counted from 0)."""
        return self.unfreeze_after is None or epoch < self.unfreeze_after


@dataclass(frozen=True)
class Recipe:
    """Description of one training run.

    Attributes:
        name: name of the run; its default folder is ``runs/NAME``.
        data: images and texts.
        system: kind of model, see :mod:`saywhere.training.run`.
        model: options of its configuration, nested in the same way (``{"decoding": {"beam_size": 3}}``) and checked at
            the start of training; ``preset`` names the configuration that they change.
        training: options of training.
        seed: seed of all randomness.
        description: one line for the model card and ``saywhere models``.
    """

    name: str
    data: DataConfig
    system: str = "densecap"
    model: dict[str, Any] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0
    description: str = ""

    def __post_init__(self) -> None:
        _check(self.seed >= 0, "seed", self.seed, "not negative")
        _check(self.seed < 2**63, "seed", self.seed, "below 2**63")
        _check(self.data.root != "", "data.root", "''", "a folder or a file")
        check_name(self.name)
        _check(len(self.description.splitlines()) <= 1, "description", repr(self.description), "one line")

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested values, for YAML and comparison."""
        return _plain(dataclasses.asdict(self))

    @cached_property
    def text(self) -> str:
        """The YAML text that :func:`load` reads."""
        return to_yaml(dataclasses.asdict(self))


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return the YAML text that :func:`read` reads."""
    return yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and change it by ``key=value`` pairs such as ``model.decoding.beam_size=3``; values are YAML.

    The recipe is a file, or the name of one that comes with the package.

    Raises:
        UserError: no such file, not YAML, an unknown key (the nearest known one is named) or a wrong value.
    """
    return options.from_dict(Recipe, read(path, overrides), source=str(path))


def shipped() -> dict[str, Path]:
    """Return the recipes that come with the package, by name."""
    folder = IN_WHEEL if IN_WHEEL.is_dir() else IN_CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(path: str | Path) -> Path:
    """Return the file of a recipe; names, also below ``recipes/``, may be those of the package's recipes."""
    found = Path(path)
    if not found.exists() and found.parent in (Path(), Path("recipes")):
        return shipped().get(found.name.removesuffix(".yaml"), found)
    return found


def about(path: Path) -> str:
    """Return the first sentence of the comment at the top of a recipe."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = " ".join(line.lstrip("# ") for line in lines)
    return re.split(r"(?<!\bEq)(?<!\bal)\. ", text, maxsplit=1)[0].rstrip(".")


def read(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of a YAML file, changed by ``key=value`` pairs; ``UserError`` as for :func:`load`."""
    try:
        tree = parse_yaml(read_whole(find(path)))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; with saywhere come {', '.join(shipped())}") from None
    except (ValueError, IsADirectoryError) as error:
        raise UserError(f"{path} is not a YAML recipe: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: it has no keys such as name, data, model, training")
    for override in overrides:
        _override(tree, override)
    return tree


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override!r} is not key=value, for example training.epochs=2")
    try:
        value = parse_yaml(text) if is_utf8(text) else text  # a path that is not UTF-8 is no YAML
    except ValueError as error:
        raise UserError(f"the value of {override!r} is not YAML: {error}") from error
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            raise UserError(f"{override!r}: {parent} holds a value, not keys")
    node[last] = value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def check_name(name: str) -> None:
    """Raise ``UserError`` if the name of a run is not usable as a folder name."""
    _check(name not in ("", ".", "..") and Path(name).name == name, "name", repr(name), "the name of a folder")


def _check_data(config: SourceConfig | DataConfig) -> None:
    _check(config.train != "", "train", "''", "the name of a split")
    _check(config.format != "", "format", "''", "the name of a format, or null")
    limit = config.train_limit
    _check(limit is None or limit >= 1, "train_limit", limit, "at least 1")


def require_own(folder: Path, *others: str) -> None:
    """Refuse to start a run in a folder where it would overwrite files that no run has written.

    Args:
        others: names of files that a run writes beside its recipe.

    Raises:
        UserError: the folder has a hand-written recipe, or one of ``others`` without a recipe.
    """
    path = folder / "recipe.yaml"
    if path.exists():
        if path.read_text(encoding="utf-8", errors="replace") != to_yaml(read(path)):
            raise UserError(f"{path} was written by no run, and would be replaced: name another folder with --out")
    elif found := [name for name in others if (folder / name).exists()]:
        raise UserError(f"{folder} has {found[0]}, which is of no run: name another folder with --out")


def _check(right: bool, name: str, value: Any, wanted: str) -> None:
    if not right:
        raise UserError(f"{name} must be {wanted}, not {value}")
