"""The training loop: steps, loss checks, validation, the saved state of a run, and its best weights."""

from __future__ import annotations

import csv
import functools
import io
import math
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from saywhere import reproductions
from saywhere.errors import UserError
from saywhere.files import write_atomically, write_text
from saywhere.networks import checkpoint
from saywhere.options import dataclass
from saywhere.report import leave_out
from saywhere.training.dataset import Batch, Digest, ImageDataset, epoch_batches
from saywhere.training.progress import Progress, track
from saywhere.training.recipe import OptimizerConfig, Recipe, TrainingConfig


def build_optimizer(network: nn.Module, extractor: nn.Module, config: TrainingConfig) -> Optimizer:
    """Return the optimiser with the groups ``rest`` and ``backbone``, the trained parameters of ``extractor``.

    Parameters without gradients are left out. ``UserError`` if the groups have different kinds of optimisers.
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
        return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups, fused=True)
    return {"sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}[kind](groups)


def _settings(config: OptimizerConfig) -> dict[str, Any]:
    """Return the options of a parameter group, by torch's names."""
    own = {"sgd": ("momentum",), "rmsprop": ("alpha", "eps")}.get(config.kind, ("betas", "eps"))
    return {name: getattr(config, name) for name in ("lr", "weight_decay", *own)}


def build_schedule(optimizer: Optimizer, config: TrainingConfig, steps: int) -> LambdaLR:
    """Return the learning-rate schedule: linear warm-up, then constant or half a cosine down to 0 at ``steps``."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, config.warmup, config.schedule))


def learning_rate_factor(step: int, steps: int, warmup: float, schedule: str) -> float:
    """Return the factor on the learning rates in step ``step`` (counted from 0) of ``steps``."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


COLUMNS = ("step", "epoch", "name", "value")


class CsvLog:
    """Append rows ``step, epoch, name, value`` to a CSV file.

    Args:
        step: optimiser step at which the run resumes; later rows, of a killed run, are dropped.
    """

    def __init__(self, path: Path, step: int = 0):
        self.path = path
        rows = [row for row in _rows(self.path) if int(row[0]) <= step] if step else []
        text = io.StringIO()
        csv.writer(text).writerows([COLUMNS, *rows])
        write_text(self.path, text.getvalue())

    def write(self, step: int, epoch: int, values: dict[str, float]) -> None:
        """Append one row for each of ``values``."""
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows((step, epoch, name, repr(float(value))) for name, value in values.items())


def _rows(path: Path) -> list[list[str]]:
    """Return the complete rows of the file, without the header."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.reader(file) if len(row) == len(COLUMNS) and row[0].isdigit() and row[3]]


def read_log(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each name, in the order of the file."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step, _, name, value in _rows(path):
        series[name].append((int(step), float(value)))
    return dict(series)


def draw_curves(log: Path, image: Path) -> None:
    """Plot the losses over optimiser steps, with a panel for the sum and for each term, training and validation."""
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
"""A run stops if a loss exceeds this many times the first one."""
VALIDATION = 1 << 32
"""Epoch number that seeds the randomness of validation: the same in every epoch."""


def save_state(state: Any, path: Path) -> None:
    """Write what is needed to resume a run, atomically and synced to disk; ``OSError`` names the file."""

    def write(stream: IO[bytes]) -> None:
        try:
            torch.save(state, stream)
        except RuntimeError as error:  # torch reports this way that the stream could not be written
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    write_atomically(path, write)


def seed_step(seed: int, epoch: int, batch: int) -> torch.Generator:
    """Seed torch's global generator (dropout) for one step, and return a generator (samplers) with the same seed.

    A step's randomness thus depends on its position in the run rather than on earlier steps, so a resumed run equals an
    uninterrupted one.
    """
    number = int(np.random.SeedSequence((seed, epoch, batch, 0)).generate_state(1, np.uint64)[0] >> 1)
    torch.manual_seed(number)
    return torch.Generator().manual_seed(number)


def descend(
    title: str, batches: Sequence[Any], loss: Callable[[Any], Tensor], optimizer: Optimizer,
    schedule: LRScheduler, note: Callable[[float], str] = "loss {:.3f}".format,
) -> None:  # fmt: skip
    """Take a step down the loss of each batch while showing a :class:`Progress`, with a note about the loss."""
    with track(title, len(batches)) as progress:
        for batch in batches:
            found = loss(batch)
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            schedule.step()
            progress.advance(1, note(found.item()))


@dataclass
class Losses:
    """Sums of named losses over images: ``total (names,)``, and the number of images."""

    names: list[str] = field(default_factory=list)
    total: Tensor | None = None
    count: int = 0

    def add(self, losses: dict[str, Tensor], count: int) -> None:
        """Add means over ``count`` images."""
        values = torch.stack([value.detach().double() for value in losses.values()]).cpu() * count
        self.names, self.count = list(losses), self.count + count
        self.total = values if self.total is None else self.total + values

    def means(self, prefix: str) -> dict[str, float]:
        """Return the mean of each loss, and their sum as ``<prefix>/loss``."""
        if self.total is None:
            return {}
        values = [total / self.count for total in self.total.tolist()]
        terms = {f"{prefix}/{name}": value for name, value in zip(self.names, values, strict=True)}
        return {f"{prefix}/loss": sum(values), **terms}


@dataclass
class State:
    """The progress of a run.

    Attributes:
        epoch, batches, step: completed epochs, batches of the next one, and optimiser steps.
        first_loss: of the run.
        best, best_epoch, metrics: lowest monitored value, its epoch (from 0) and all its validation losses.
        seconds: training time.
        losses: since the last row of the log.
    """

    epoch: int = 0
    batches: int = 0
    step: int = 0
    first_loss: float | None = None
    best: float = math.inf
    best_epoch: int = -1
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    losses: Losses = field(default_factory=Losses)


def read_state(path: Path) -> dict[str, Any]:
    """Return the saved contents of a run, with its ``state``; empty if nothing is saved."""
    if not path.exists():
        return {}
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        state = State(**{**stored["state"], "losses": Losses(**stored["state"]["losses"])})
        return {**stored, "state": state}
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} cannot be read ({reason}); start over with --restart") from error


class AverageWeights:
    """Temporarily replace a network's weights by their mean over the last epochs.

    The mean generalises better than each of them (Izmailov et al., Averaging Weights Leads to Wider Optima, 2018). At
    most ``epochs`` sets of weights and normalisation statistics are averaged, fewer in the first epochs.
    """

    def __init__(self, network: nn.Module, epochs: int):
        self._network = network
        self.before: deque[dict[str, Tensor]] = deque(maxlen=epochs - 1)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put the mean into the network for the duration of a block, at the end of an epoch."""
        state = self._network.state_dict()
        tensors = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
        now = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            before = [epoch[name].to(tensor) for epoch in self.before]
            if not all(torch.equal(other, tensor) for other in before):  # keeps frozen weights exact to the last bit
                tensor.copy_(torch.stack([tensor, *before]).mean(dim=0))
        yield
        for name, tensor in tensors.items():
            tensor.copy_(now[name])
        self.before.append(now)


class Training:
    """Train a network with a criterion; a run in the same folder is resumed.

    The state is saved every ``save_every`` steps and after each epoch. Ctrl-C or SIGTERM saves it at the end of the
    step, or of the epoch if it arrives in its last step or in validation. A second Ctrl-C stops at once.

    Args:
        out: folder of the run, for ``last.ckpt``, ``metrics.csv`` and ``curves.png``.
        network: called with features, targets and a generator.
        criterion: turns the network's output into named losses, whose sum is minimised.
        extractor: part of the network that computes the features and may be frozen.
        train, validation: the data; without validation the last epoch has the best weights.
        digests: of the data; saved with the state.
        keep: called with (epoch from 1, validation losses, training seconds) whenever weights are the best so far.

    Attributes:
        skipped: one line per unreadable image; another image took its place.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        network: nn.Module,
        criterion: nn.Module,
        extractor: nn.Module,
        train: ImageDataset,
        validation: ImageDataset | None,
        digests: Sequence[Digest],
        keep: Callable[[int, dict[str, float], float], None],
    ):
        self.recipe, self.out, self.extractor, self._digests, self._keep = recipe, out, extractor, digests, keep
        self.train_data, self.validation_data, self.skipped = train, validation, dict[str, None]()
        training = recipe.training
        self.device = find_device(training.accelerator)
        self._mixed = training.precision == "bf16-mixed" and (self.device.type != "cpu" or has_bfloat16())
        self.network, self.criterion = network.train().to(self.device), criterion.train().to(self.device)
        getattr(extractor, "set_trainable", extractor.requires_grad_)(training.unfreeze_after is not None)
        self.batches = math.ceil(len(train) / training.batch_size)
        steps = math.ceil(self.batches / training.accumulate) * training.epochs
        if training.warmup > steps:
            short = f"training.warmup is {training.warmup} steps and the run has {steps}"
            print(f"{short}: its rates stay below those of the recipe; give it a tenth of them", file=sys.stderr)
        self.optimizer = build_optimizer(network, getattr(network, "copied", extractor), training)
        self.schedule = build_schedule(self.optimizer, training, steps)
        self.average = AverageWeights(network, training.average)
        saved = read_state(out / "last.ckpt")
        self.state: State = saved.get("state", State())
        if saved:
            network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.schedule.load_state_dict(saved["schedule"])
            self.average.before.extend(saved["before"])
        self._log = CsvLog(out / "metrics.csv", self.state.step)
        self._since = time.monotonic()
        self._images: list[Path] = []  # of the batches since the last step
        self._stopping, self._validating = False, False

    def run(self) -> bool:
        """Train to the end; return whether Ctrl-C or SIGTERM stopped the run, with its state saved."""
        training, state = self.recipe.training, self.state
        with self._signals():
            while state.epoch < training.epochs and not self._stopping:
                if training.patience is not None and state.epoch - 1 - state.best_epoch >= training.patience:
                    break
                if not self._train_epoch():
                    break
                with self.average():
                    self._judge(self._validate())
                    draw_curves(self.out / "metrics.csv", self.out / "curves.png")
                state.epoch, state.batches = state.epoch + 1, 0
                self._save()
        return self._stopping

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Delay Ctrl-C and SIGTERM until the end of a step."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stopping:
                saved = (self.out / "last.ckpt").exists()
                more = "; run it again to continue from the last state that was saved" if saved else ""
                raise KeyboardInterrupt(f"stopped{more}")
            self._stopping = True
            when = "after the validation" if self._validating else "after this step"
            print(f"\nstopping {when}; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

        for number in before:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # Training

    def _train_epoch(self) -> bool:
        """Run the steps of an epoch, from where the run resumes; return False if stopped before its end."""
        training, state = self.recipe.training, self.state
        bar = Progress(f"epoch {state.epoch + 1}/{training.epochs}", self.batches, state.batches)
        with closing(bar):
            for batch in self._load(self.train_data, training.shuffle, state.batches):
                frozen = training.frozen(state.epoch)
                losses = self._losses(batch, seed_step(self.recipe.seed, state.epoch, state.batches), frozen)
                loss = torch.stack(list(losses.values())).sum()
                if not loss.requires_grad:
                    raise UserError("training.freeze leaves nothing to train")
                self._guard(loss, losses, batch)
                if state.batches % training.accumulate == 0:
                    self.optimizer.zero_grad()
                (loss / training.accumulate).backward()
                state.losses.add(losses, len(batch))
                self._images += batch.images
                state.batches += 1
                if state.batches == self.batches or state.batches % training.accumulate == 0:
                    self._step()
                bar.advance(1, f"loss {float(loss.detach()):.4f}")
                if not self.after_batch():
                    return False
        return True

    def after_batch(self) -> bool:
        """Write the log, and save in the middle of an epoch, when due; return whether training continues.

        No saved state is ahead of the log.
        """
        training, state = self.recipe.training, self.state
        last = state.batches == self.batches
        if not last and state.batches % training.accumulate:
            return True
        if state.step % training.log_every == 0 or last:
            rates = {f"lr/{group['name']}": group["lr"] for group in self.optimizer.param_groups}
            self._log.write(state.step, state.epoch, {**state.losses.means("train"), **rates})
            state.losses = Losses()
        if last:  # the state is saved after validation
            return True
        if self._stopping or state.step % training.save_every == 0:
            self._save()
        return not self._stopping

    def _load(self, data: ImageDataset, shuffle: bool, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch on the device; each unreadable image is reported once."""
        training = self.recipe.training
        keys = epoch_batches(len(data), training.batch_size, self.recipe.seed, self.state.epoch, shuffle)
        loader = DataLoader(data, batch_sampler=keys[skip:], collate_fn=_as_is, num_workers=training.workers)
        for batch in loader:
            for reason in batch.skipped:
                if reason not in self.skipped:
                    leave_out(f"skipped: {reason}")
            self.skipped |= dict.fromkeys(batch.skipped)
            yield batch.to(self.device)

    def _losses(self, batch: Batch, generator: torch.Generator, frozen: bool) -> dict[str, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._mixed):
            features = batch.features
            if features is None:
                assert batch.pixels is not None
                if self.extractor.training == frozen:
                    self.extractor.train(not frozen)
                with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
                    features = self.extractor(batch.pixels)
            return self.criterion(self.network(features, batch.targets, generator))

    def _guard(self, loss: Tensor, losses: dict[str, Tensor], batch: Batch) -> None:
        """Stop before the gradients of a broken loss reach the weights."""
        value, first = float(loss.detach()), self.state.first_loss
        if first is None and math.isfinite(value):
            self.state.first_loss = first = value
        if math.isfinite(value) and value <= EXPLODED * max(first or 0.0, 1e-3):
            return
        what = f"exploded to {value:.4g} (the first was {first:.4g})" if math.isfinite(value) else "is NaN"
        what = "is infinite" if math.isinf(value) else what
        raise self._broken(f"the loss {what} in step {self.state.step} ({_terms(losses)})", batch.images)

    def _broken(self, what: str, images: Sequence[Path]) -> UserError:
        rest, names = self.recipe.training.rest, ", ".join(map(str, images))
        clip = "" if self.recipe.training.clip else " training.clip=10"
        return UserError(
            f"{what}; its images: {names}. What was saved before stays, but would end here again; start over in "
            f"another folder: --out DIR training.rest.lr={rest.lr / 4:g}{clip}"
        )

    def _step(self) -> None:
        """Clip the gradients and update the weights; refuse gradients that are not finite."""
        training, images = self.recipe.training, self._images
        self._images = []
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = float(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm())
        if not math.isfinite(norm):
            raise self._broken(f"the gradient is not finite (its norm is {norm}) in step {self.state.step}", images)
        if training.clip is not None:
            clip = {"norm": nn.utils.clip_grad_norm_, "value": nn.utils.clip_grad_value_}[training.clip_by]
            clip(parameters, training.clip)
        self.optimizer.step()
        self.schedule.step()
        self.state.step += 1

    # After an epoch

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """Return and log the mean losses over all validation images, with the same random choices in every epoch."""
        if self.validation_data is None:
            return {}
        self._validating, sums, seed = True, Losses(), self.recipe.seed
        self.network.eval()
        self.criterion.eval()
        for number, batch in enumerate(self._load(self.validation_data, shuffle=False)):
            losses = self._losses(batch, seed_step(seed, VALIDATION, number), frozen=True)
            if not math.isfinite(float(torch.stack(list(losses.values())).sum())):
                what = f"the validation loss is not finite after epoch {self.state.epoch + 1}"
                raise self._broken(f"{what} ({_terms(losses)})", batch.images)
            sums.add(losses, len(batch))
        self.network.train()
        self.criterion.train()
        self._validating, means = False, sums.means("val")
        self._log.write(self.state.step, self.state.epoch, means)
        return means

    def _judge(self, losses: dict[str, float]) -> None:
        """Keep the weights if they are better than those of all earlier epochs."""
        monitor, state = self.recipe.training.monitor, self.state
        value = losses[monitor] if losses else -float(state.epoch)
        mark = f" (best {state.best:.4f} after epoch {state.best_epoch + 1})"
        if value < state.best:
            state.best, state.best_epoch, state.metrics, mark = value, state.epoch, losses, " (best so far)"
            self._keep(state.epoch + 1, losses, self._seconds())
        if losses:
            terms = "  ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
            done = f"epoch {state.epoch + 1}/{self.recipe.training.epochs}"
            print(f"{done}: {terms}{mark}", file=sys.stderr, flush=True)

    def _seconds(self) -> float:
        """Return the training time in seconds, including the time before interruptions."""
        now = time.monotonic()
        self.state.seconds, self._since = self.state.seconds + now - self._since, now
        return self.state.seconds

    def _save(self) -> None:
        self._seconds()
        parts = {"network": self.network, "optimizer": self.optimizer, "schedule": self.schedule}
        stored = {name: part.state_dict() for name, part in parts.items()}
        more = {"state": asdict(self.state), "before": list(self.average.before), "data": list(self._digests)}
        save_state({**stored, **more}, self.out / "last.ckpt")


def _terms(losses: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {float(term.detach()):.4g}" for name, term in losses.items())


def _as_is(batch: Any) -> Batch:
    return batch


def find_device(name: str) -> torch.device:
    """Return the training device: ``auto`` is the best available, ``gpu`` an accelerator, others by torch's names.

    ``UserError`` if it is not available.
    """
    found = checkpoint.find_device(None if name in ("auto", "gpu") else name)
    if name == "gpu" and found.type == "cpu":
        raise UserError("training.accelerator is gpu, and there is none here; leave it out, or say cpu")
    return found


@functools.cache
def has_bfloat16() -> bool:
    """Return whether this processor trains in bfloat16; if not, print a note to stderr, once."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            skip_init(torch.nn.LSTM, 1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:  # oneDNN does not support it
        print("this processor has no bfloat16: it trains in single precision, which is slower", file=sys.stderr)
        return False
    return True
