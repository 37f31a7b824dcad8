"""The training step, the check of the losses, and validation, as Lightning runs them."""

from __future__ import annotations

import csv
import functools
import io
import logging
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import lightning.pytorch as lightning
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from saywhere import reproductions
from saywhere.errors import UserError
from saywhere.files import write_atomically, write_text
from saywhere.report import leave_out
from saywhere.training.dataset import Batch, EpochSampler, ImageDataset
from saywhere.training.recipe import OptimizerConfig, Recipe, TrainingConfig


def build_optimizer(network: nn.Module, extractor: nn.Module, config: TrainingConfig) -> Optimizer:
    """Return the optimiser of the groups ``rest`` and, if it is ever trained, ``backbone``.

    Args:
        network: all that is trained; parameters that take no gradients are left out.
        extractor: its part whose trained parameters are the group ``backbone``.
        config: the settings of both groups.

    Raises:
        UserError: the two groups are to have different kinds of optimisers.
    """
    inside = {id(p) for p in extractor.parameters()}
    rest = [p for p in network.parameters() if p.requires_grad and id(p) not in inside]
    groups: list[dict[str, Any]] = [{"params": rest, "name": "rest", **_settings(config.rest)}]
    kind = config.rest.kind
    if trained := [p for p in extractor.parameters() if p.requires_grad]:
        if config.backbone.kind != kind:
            raise UserError(
                f"training.backbone.kind is {config.backbone.kind}, but must be {kind}, as training.rest.kind"
            )
        groups.append({"params": trained, "name": "backbone", **_settings(config.backbone)})
    if kind == "original_adam":
        return reproductions.find("kind=original_adam")(groups)
    if kind in ("adam", "adamw"):  # fused: a third of the time on a CPU
        optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups, fused=True)
        vars(optimizer)["_step_supports_amp_scaling"] = False  # no loss is scaled, and Lightning would clip nothing
        return optimizer
    return {"sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}[kind](groups)


def _settings(config: OptimizerConfig) -> dict[str, Any]:
    """The options of a parameter group, by torch's names."""
    own = {"sgd": ("momentum",), "rmsprop": ("alpha", "eps")}.get(config.kind, ("betas", "eps"))
    return {name: getattr(config, name) for name in ("lr", "weight_decay", *own)}


def build_schedule(optimizer: Optimizer, config: TrainingConfig, steps: int) -> LambdaLR:
    """Return the learning rates of ``steps`` steps: linear warm-up, then constant or half a cosine down to 0."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, config.warmup, config.schedule))


def learning_rate_factor(step: int, steps: int, warmup: float, schedule: str) -> float:
    """Return what the learning rates are multiplied by in step ``step`` (counted from 0) of ``steps``."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


COLUMNS = ("step", "epoch", "name", "value")


class CsvLog:
    """Write a file with a row ``step, epoch, name, value`` for each number; rows are appended.

    Args:
        path: of the file.
        step: optimiser step from which the run is resumed: later rows, of a run that was killed, are dropped.
    """

    def __init__(self, path: Path, step: int = 0):
        self.path = path
        rows = [row for row in _rows(self.path) if int(row[0]) <= step] if step else []
        text = io.StringIO()
        csv.writer(text).writerows([COLUMNS, *rows])
        write_text(self.path, text.getvalue())

    def write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Append a row for each of ``values``."""
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows((step, epoch, name, repr(float(value))) for name, value in values.items())


def _rows(path: Path) -> list[list[str]]:
    """Return the whole rows of the file, without the header."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.reader(file) if len(row) == len(COLUMNS) and row[0].isdigit() and row[3]]


def read_log(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return for each name its (step, value) pairs, in the order of the file."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step, _, name, value in _rows(path):
        series[name].append((int(step), float(value)))
    return dict(series)


def draw_curves(log: Path, image: Path) -> None:
    """Draw the losses over the optimiser steps, one panel for the sum and for each term, training and validation."""
    from matplotlib.figure import Figure

    series = read_log(log)
    terms = list(dict.fromkeys(name.partition("/")[2] for name in series if name.startswith(("train/", "val/"))))
    if not terms:
        return
    columns = min(3, len(terms))
    rows = -(-len(terms) // columns)
    figure = Figure(figsize=(4.2 * columns, 3 * rows), layout="constrained")
    for i, term in enumerate(terms):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(term)
        for kind, marker in (("train", ""), ("val", "o")):
            if points := series.get(f"{kind}/{term}"):
                steps, values = zip(*points, strict=True)
                axes.plot(steps, values, marker=marker, markersize=4, linewidth=1, label=kind)
        axes.set_xlabel("optimiser step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    write_atomically(image, lambda stream: figure.savefig(stream, dpi=100, format="png"))


EXPLODED = 100.0
"""A loss above this many times the first one stops a run."""
VALIDATION = 1 << 32
"""The epoch number that seeds the randomness of validation: the same in every epoch."""


@dataclass(frozen=True)
class Position:
    """Position of a run: batches of ``epoch`` (counted from 0) that are done, and the first loss."""

    epoch: int = 0
    batches: int = 0
    first_loss: float | None = None


def save_state(state: Any, path: Path) -> None:
    """Write what a run needs to be resumed; the file is whole or not there, and on the disk.

    Raises:
        OSError: naming ``path``, such as a full disk.
    """

    def write(stream: IO[bytes]) -> None:
        try:
            torch.save(state, stream)
        except RuntimeError as error:  # by which torch reports that the stream could not be written to
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    write_atomically(path, write)


class StateFiles(TorchCheckpointIO):
    """Write Lightning's checkpoints beside their place; its own way leads through ``$TMPDIR``, which may be small."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, see :func:`save_state`."""
        save_state(checkpoint, Path(path))


def seed_step(seed: int, epoch: int, batch: int) -> torch.Generator:
    """Seed torch's global randomness (dropout) for one step, and return a generator (samplers) seeded alike.

    A step's randomness thus depends on where in the run it is, not on the steps before, which makes a resumed run equal
    to an uninterrupted one.
    """
    number = int(np.random.SeedSequence((seed, epoch, batch, 0)).generate_state(1, np.uint64)[0] >> 1)
    torch.manual_seed(number)
    return torch.Generator().manual_seed(number)


class TrainingModule(lightning.LightningModule):
    """Train a network with a criterion, under Lightning.

    Args:
        network: called with features, targets and a generator.
        criterion: turns the network's output into named losses, whose sum is minimised.
        extractor: the network's part that gives the features, and may be frozen.
        recipe: of the run.
        train, validation: the data; ``validation`` may be None.
        position: where the run is resumed.
        log: of the losses and rates; None for none.

    Attributes:
        validation_losses: means of the last validation: ``val/loss`` and ``val/<term>``.
        skipped: of the images that could not be read, in whose places others were, a line each.
    """

    def __init__(
        self,
        network: nn.Module,
        criterion: nn.Module,
        extractor: nn.Module,
        recipe: Recipe,
        train: ImageDataset,
        validation: ImageDataset | None,
        position: Position,
        log: CsvLog | None = None,
    ):
        super().__init__()
        self.network, self.criterion, self.recipe = network, criterion, recipe
        self._extractor = (extractor,)  # in a tuple: its weights are the network's and not to be listed twice
        self.train_data, self.validation_data, self.start, self._log = train, validation, position, log
        self.first_loss = position.first_loss
        self.validation_losses: dict[str, float] = {}
        self.skipped = dict[str, None]()
        self.last_loss = math.nan
        self._train_sums, self._validation_sums = _Sums(), _Sums()
        self._images: list[Path] = []  # of the batches since the last optimiser step
        network.train()
        trainable = getattr(self.extractor, "set_trainable", self.extractor.requires_grad_)
        trainable(recipe.training.unfreeze_after is not None)

    @property
    def extractor(self) -> nn.Module:
        """The network's part that may be frozen."""
        return self._extractor[0]

    # Data

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches, from where the run is resumed."""
        training, start = self.recipe.training, self.start
        sampler = EpochSampler(
            len(self.train_data), training.batch_size, self.recipe.seed, training.shuffle, start.epoch, start.batches
        )
        return self._loader(self.train_data, sampler)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return the validation batches, in the order of the data; none without validation data."""
        if self.validation_data is None:
            return []
        sampler = EpochSampler(len(self.validation_data), self.recipe.training.batch_size, 0, shuffle=False)
        return self._loader(self.validation_data, sampler)

    def _loader(self, data: ImageDataset, sampler: EpochSampler) -> DataLoader[Any]:
        workers = self.recipe.training.workers
        return DataLoader(data, batch_sampler=sampler, collate_fn=_as_is, num_workers=workers)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Return the batch on the device of the step; name the images that could not be read, each once."""
        for reason in batch.skipped:
            if reason not in self.skipped:
                leave_out(f"skipped: {reason}")
        self.skipped |= dict.fromkeys(batch.skipped)
        return batch.to(device)

    # Steps

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the losses of a batch; ``UserError`` if it is not finite or explodes."""
        epoch = self.current_epoch
        generator = seed_step(self.recipe.seed, epoch, batch_idx)
        features = self._features(batch, frozen=self.recipe.training.frozen(epoch))
        losses: dict[str, Tensor] = self.criterion(self.network(features, batch.targets, generator))
        loss = torch.stack(list(losses.values())).sum()
        self._guard(loss, losses, batch)
        self._train_sums.add(losses, len(batch))
        self._images += batch.images
        return loss

    def _features(self, batch: Batch, frozen: bool) -> list[tuple[Tensor, ...]]:
        if batch.features is not None:
            return batch.features
        if self.extractor.training == frozen:
            self.extractor.train(not frozen)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return self.extractor(batch.pixels)

    def _guard(self, loss: Tensor, losses: dict[str, Tensor], batch: Batch) -> None:
        """Stop before the gradients of a broken loss reach the weights."""
        self.last_loss = value = float(loss.detach())
        if self.first_loss is None and math.isfinite(value):
            self.first_loss = value
        if math.isfinite(value) and value <= EXPLODED * max(self.first_loss or 0.0, 1e-3):
            return
        what = f"exploded to {value:.4g} (the first was {self.first_loss:.4g})" if math.isfinite(value) else "is NaN"
        what = "is infinite" if math.isinf(value) else what
        what = f"the loss {what} in step {self.trainer.global_step}"
        raise self._broken(f"{what} ({_terms(losses)})", batch.images)

    def _broken(self, what: str, images: Sequence[Path]) -> UserError:
        rest, names = self.recipe.training.rest, ", ".join(map(str, images))
        clip = "" if self.recipe.training.clip else " training.clip=10"
        return UserError(
            f"{what}; its images: {names}. What was saved before stays, but would end here again; start over in "
            f"another folder: --out DIR training.rest.lr={rest.lr / 4:g}{clip}"
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Stop before gradients that are not finite reach the weights."""
        images, self._images = self._images, []
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = float(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm())
        if not math.isfinite(norm):
            step = self.trainer.global_step
            raise self._broken(f"the gradient is not finite (its norm is {norm}) in step {step}", images)

    def log_training(self, batch_idx: int) -> None:
        """Log the mean losses since the last row, every ``log_every`` optimiser steps."""
        step = self.trainer.global_step
        if step % self.recipe.training.log_every == 0 and stepped(self.trainer, batch_idx):
            rates = {f"lr/{g['name']}": g["lr"] for g in self.trainer.optimizers[0].param_groups}
            self._write({**self._train_sums.means("train"), **rates})
            self._train_sums = _Sums()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up the losses of a validation batch; the same random choices in every epoch."""
        generator = seed_step(self.recipe.seed, VALIDATION, batch_idx)
        features = self._features(batch, frozen=True)
        losses: dict[str, Tensor] = self.criterion(self.network(features, batch.targets, generator))
        if not math.isfinite(float(torch.stack(list(losses.values())).sum())):
            what = f"the validation loss is not finite after epoch {self.current_epoch + 1}"
            raise self._broken(f"{what} ({_terms(losses)})", batch.images)
        self._validation_sums.add(losses, len(batch))

    def on_validation_epoch_end(self) -> None:
        """Log the mean losses over all validation images."""
        self.validation_losses = self._validation_sums.means("val")
        self._validation_sums = _Sums()
        self._write(self.validation_losses)

    def _write(self, values: dict[str, float]) -> None:
        if self._log is not None:
            self._log.write(self.trainer.global_step, self.current_epoch, values)

    # Optimiser and state

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the losses since the last row of the log, so that the next row is that of an uninterrupted run."""
        checkpoint["train_sums"] = vars(self._train_sums)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the losses since the last row of the log."""
        vars(self._train_sums).update(checkpoint.get("train_sums", {}))

    def configure_optimizers(self) -> Any:
        """Return the optimiser of two parameter groups, and a schedule over all optimiser steps of the run."""
        training = self.recipe.training
        batches = math.ceil(len(self.train_data) / training.batch_size)
        steps = math.ceil(batches / training.accumulate) * training.epochs
        optimizer = build_optimizer(self.network, getattr(self.network, "copied", self.extractor), training)
        schedule = build_schedule(optimizer, training, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class _Sums:
    """Sums of named losses over images."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.total: Tensor | None = None
        self.count = 0

    def add(self, losses: dict[str, Tensor], count: int) -> None:
        """Add means over ``count`` images."""
        values = torch.stack([value.detach().double() for value in losses.values()]) * count
        self.names, self.count = list(losses), self.count + count
        self.total = values if self.total is None else self.total.to(values) + values

    def means(self, prefix: str) -> dict[str, float]:
        """The mean of each loss, and of their sum as ``<prefix>/loss``."""
        if self.total is None:
            return {}
        values = [total / self.count for total in self.total.tolist()]
        terms = {f"{prefix}/{name}": value for name, value in zip(self.names, values, strict=True)}
        return {f"{prefix}/loss": sum(values), **terms}


def _terms(losses: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {float(term.detach()):.4g}" for name, term in losses.items())


def _as_is(batch: Any) -> Batch:
    return batch


def stepped(trainer: lightning.Trainer, batch_idx: int) -> bool:
    """Return whether the optimiser stepped after this batch."""
    last = batch_idx + 1 == trainer.num_training_batches
    return last or (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def build_trainer(recipe: Recipe, out: Path, callbacks: Sequence[lightning.Callback]) -> lightning.Trainer:
    """Return Lightning's trainer for a recipe that is run in ``out``."""
    _quiet()
    training = recipe.training
    on_cpu = training.accelerator == "cpu" or not torch.accelerator.is_available()
    mixed = training.precision != "32" and (not on_cpu or has_bfloat16())
    try:
        return lightning.Trainer(
            max_epochs=training.epochs,
            accelerator=training.accelerator,
            devices=1,
            precision="bf16-mixed" if mixed else "32-true",
            accumulate_grad_batches=training.accumulate,
            gradient_clip_val=training.clip,
            gradient_clip_algorithm=training.clip_by,
            logger=False,
            callbacks=list(callbacks),
            plugins=[StateFiles()],
            default_root_dir=out,
            limit_val_batches=1.0 if recipe.data.validation else 0,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"training on this machine: {str(error).strip().splitlines()[0]}") from error


@functools.cache
def has_bfloat16() -> bool:
    """Return whether this processor trains in bfloat16; if it does not, say on stderr what follows, once."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            skip_init(torch.nn.LSTM, 1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:  # oneDNN has none for it
        print("this processor has no bfloat16: it trains in single precision, which is slower", file=sys.stderr)
        return False
    return True


def _quiet() -> None:
    """Silence Lightning's advice that does not apply: batches come ready-made, and the data can be resumed."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*dataloader is\\s+not resumable.*",
        ".*smaller than the logging interval.*",
        ".*LeafSpec.*",
        ".*in eval mode.*",
    ):
        warnings.filterwarnings("ignore", message=message)
