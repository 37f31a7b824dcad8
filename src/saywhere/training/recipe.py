"""Recipes: training runs as files, with everything that is needed to repeat them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from saywhere import options
from saywhere.errors import UserError
from saywhere.files import is_utf8, parse_yaml, read_whole

IN_WHEEL, IN_CHECKOUT = Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes"
"""Folders of the recipes that come with the package."""


@dataclass(frozen=True)
class SourceConfig:
    """Options of a further data set to train on.

    Attributes:
        root, format, train, phrases, train_limit, hold_out: as of :class:`DataConfig`.
        words: how much its phrases count where the dense captioner learns words; 0 teaches boxes alone, and an aligner
            that learns from phrases (``region_phrases``) sentences alone.
        names: its phrases are mere names of classes. In an image that another data set describes, its boxes join those
            with phrases, but for those that lie on one of them (:func:`saywhere.training.run.join_names`).
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
    """Options of the data: where the images and texts come from.

    Attributes:
        format: one of ``saywhere.data.FORMATS``; None guesses it from the files.
        root: the folder (or JSONL file) as ``saywhere.data.read`` takes it.
        train, validation: names of the splits; without validation the weights of the last epoch are kept.
        phrases: options of ``saywhere.data.PhraseOptions``.
        min_count: words that occur less often in the training texts become the unknown word.
        train_limit, validation_limit: use at most this many images, taken at even distances.
        hold_out: leave the tenth of the training images out that calibration holds out
            (:func:`saywhere.training.nouns.is_held_out`).
        also: data sets that are trained on beside this one, by a name of your choice; they are not validated on.
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
        kind: ``adam``, ``sgd`` and ``rmsprop`` add the weight decay to the gradient (L2), ``adamw`` shrinks the weights
            themselves; ``original_adam`` is the published program's Adam (``saywhere.papers.densecap2016``).
        lr: learning rate after the warm-up.
        betas: of the Adams.
        alpha: smoothing of RMSprop's mean of squared gradients.
        eps: of the Adams and of RMSprop.
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
        batch_size: images a batch.
        accumulate: batches whose gradients are added up for one step of the optimiser.
        backbone, rest: optimisers of the two parameter groups, of one kind: the backbone, and all else.
        warmup: optimiser steps over which the learning rates grow from 0.
        schedule: ``cosine`` lets the learning rates fall to 0 at the last step, ``constant`` leaves them.
        clip: largest norm of the gradient, or None.
        clip_by: ``norm``, or ``value``: ``clip`` bounds each element of the gradient.
        average: epochs after which the mean of the weights is validated and kept, in the place of the last one's alone
            (:class:`saywhere.training.loop.AverageWeights`).
        precision: ``32`` or ``bf16-mixed``.
        accelerator: ``auto`` (the best there is), ``cpu``, ``gpu``, or another device by its name in torch.
        pretrained: start from the backbone's published weights.
        start: a model (name or folder) whose part of the same kind gives its weights, wherever they fit; see
            :mod:`saywhere.training.finetuning`.
        branch: weights of the trunk's second branch, a file that the system ``branch`` writes, or the graph of its
            image tower, see :func:`saywhere.training.branch.make_tower`.
        unfreeze_after: epochs after which the backbone is trained too; None never, 0 from the start.
        freeze: modules of the network whose weights stay as they are, such as ``trunk.localization``.
        cache: folder for the features of the frozen network, or None to compute them again in each epoch.
        flip: mirror half of the images, and swap the words left and right in their texts.
        shuffle: another order of the images in each epoch; false keeps that of the data set.
        patience: stop after this many epochs without improvement of ``monitor``; None trains all epochs.
        monitor: the value that picks the best weights, smaller is better: ``val/loss`` (sum of the validation losses)
            or one term, such as ``val/caption``.
        workers: processes that prepare batches; 0 is best for cached features.
        log_every, save_every: optimiser steps between two rows of the log, and between two saves of the run's state.
        half: store the best weights as float16, in half the bytes; training itself keeps full precision.
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
    """Describe one training run.

    Attributes:
        name: of the run; its folder is ``runs/NAME`` by default.
        data: images and texts.
        system: kind of model, see :mod:`saywhere.training.run`.
        model: options of its configuration, nested as there (``{"decoding": {"beam_size": 3}}``) and checked when
            training begins; ``preset`` names the configuration that they change.
        training: how to train.
        seed: of all randomness.
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
        """Return plain nested values, for YAML and for comparison."""
        return _plain(dataclasses.asdict(self))

    def to_yaml(self) -> str:
        """Return the text of a file that :func:`load` reads."""
        return to_yaml(dataclasses.asdict(self))


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return the text of a YAML file that :func:`read` reads."""
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
    """Return the file of a recipe: of the name or, below ``recipes/``, the file of one that comes with the package."""
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
    """Refuse a name of a run that is no name of a folder; ``UserError`` says so."""
    _check(name not in ("", ".", "..") and Path(name).name == name, "name", repr(name), "the name of a folder")


def _check_data(config: SourceConfig | DataConfig) -> None:
    _check(config.train != "", "train", "''", "the name of a split")
    _check(config.format != "", "format", "''", "the name of a format, or null")
    limit = config.train_limit
    _check(limit is None or limit >= 1, "train_limit", limit, "at least 1")


def require_own(folder: Path, *others: str) -> None:
    """Refuse to begin a run in a folder where it would replace what no run has written.

    Args:
        others: names of what a run writes beside its recipe.

    Raises:
        UserError: there is a recipe that somebody wrote, or one of the others without a recipe.
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
