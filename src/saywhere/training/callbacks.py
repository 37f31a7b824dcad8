"""Around the training steps: state and resuming, the best weights and their mean, curves, progress."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn

from saywhere.errors import UserError
from saywhere.training.dataset import Batch, Digest
from saywhere.training.loop import TrainingModule, stepped
from saywhere.training.progress import Progress

if TYPE_CHECKING:
    pass


class InterruptedRun(Exception):
    """The run was stopped by Ctrl-C or SIGTERM, after its state was saved."""


class AbandonedRun(BaseException):
    """The run was stopped at once, by a second Ctrl-C; Lightning ends the program with code 1 at KeyboardInterrupt."""


class RunState(lightning.Callback):
    """Save all that a killed run needs to be resumed as if nothing had happened, in ``last.ckpt``.

    The state is saved every ``save_every`` optimiser steps, after each epoch, and after Ctrl-C or SIGTERM at the end of
    the step, or of the epoch if they come in its last step or in validation; a second Ctrl-C stops at once.
    """

    def __init__(self, path: Path, save_every: int, data: Sequence[Digest]):
        self.path, self.save_every, self._data = path, save_every, list(data)
        self._interrupted, self._validating = False, False
        self._handlers: dict[int, Any] = {}
        self._position = (0, 0)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Listen for Ctrl-C and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            self._restore()
            raise AbandonedRun
        self._interrupted = True
        when = "after the validation" if self._validating else "after this step"
        print(f"\nstopping {when}; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Log the losses, and save in the middle of an epoch, when it is time: no saved state is ahead of the log.

        After its last batch :meth:`on_train_epoch_end` saves.
        """
        cast(TrainingModule, pl_module).log_training(batch_idx)
        if not stepped(trainer, batch_idx) or batch_idx + 1 == trainer.num_training_batches:
            return
        if self._interrupted or trainer.global_step % self.save_every == 0:
            self._save(trainer, (trainer.current_epoch, batch_idx + 1))
        if self._interrupted:
            raise InterruptedRun

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let a stop wait for the end of the epoch: its last steps are not saved yet."""
        self._validating = True

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let a stop wait for the end of a step again."""
        self._validating = False

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save after an epoch, when the best weights are stored."""
        self._save(trainer, (trainer.current_epoch + 1, 0))
        if self._interrupted:
            raise InterruptedRun

    def _save(self, trainer: lightning.Trainer, position: tuple[int, int]) -> None:
        self._position = position
        trainer.save_checkpoint(self.path)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add where the run is, and what its data was."""
        epoch, batches = self._position
        first = cast(TrainingModule, pl_module).first_loss
        checkpoint["position"] = {"epoch": epoch, "batches": batches, "first_loss": first}
        checkpoint["data"] = self._data

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Restore what Ctrl-C did before."""
        self._restore()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Restore what Ctrl-C did before."""
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


class Best(lightning.Callback):
    """Keep the weights with the smallest monitored value, and stop after ``patience`` epochs without a smaller one.

    Without validation the weights of the last epoch are kept.

    Args:
        monitor: name of the value, such as ``val/loss``.
        patience: epochs, or None.
        save: called with (epoch, validation losses, seconds of training) when there are better weights.
    """

    def __init__(self, monitor: str, patience: int | None, save: Callable[[int, dict[str, float], float], None]):
        self.monitor, self.patience, self._save = monitor, patience, save
        self.best, self.best_epoch, self.epochs, self.seconds = math.inf, -1, 0, 0.0
        self.metrics: dict[str, float] = {}
        self._since = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop at once if the resumed run had stopped early."""
        self._since = time.monotonic()
        trainer.should_stop = self._exhausted()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Compare with the best epoch so far."""
        losses = cast(TrainingModule, pl_module).validation_losses
        if losses and self.monitor not in losses:
            raise UserError(f"training.monitor is {self.monitor!r}, but there are {', '.join(losses)}")
        value = losses.get(self.monitor, -float(trainer.current_epoch))
        self.epochs = trainer.current_epoch + 1
        better = value < self.best
        if better:
            self.best, self.best_epoch, self.metrics = value, trainer.current_epoch, dict(losses)
            self._save(self.epochs, self.metrics, self.elapsed())
        if losses:
            mark = " (best so far)" if better else f" (best {self.best:.4f} after epoch {self.best_epoch + 1})"
            terms = "  ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
            print(f"epoch {self.epochs}/{trainer.max_epochs}: {terms}{mark}", file=sys.stderr, flush=True)
        trainer.should_stop = self._exhausted()

    def _exhausted(self) -> bool:
        return self.patience is not None and self.epochs - 1 - self.best_epoch >= self.patience

    def elapsed(self) -> float:
        """Return the seconds of training, those before an interruption included."""
        return self.seconds + time.monotonic() - self._since

    def state_dict(self) -> dict[str, Any]:
        """Return what ``last.ckpt`` stores."""
        names = ("best", "best_epoch", "epochs", "metrics")
        return {**{name: getattr(self, name) for name in names}, "seconds": self.elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``last.ckpt`` stored."""
        for name, value in state_dict.items():
            setattr(self, name, value)


class ShowProgress(lightning.Callback):
    """Show the progress of each epoch."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Start the bar, also in the middle of an epoch."""
        if self._progress is None:
            title = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self._progress = Progress(title, int(trainer.num_training_batches), batch_idx)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Count the batch."""
        if self._progress is not None:
            self._progress.advance(1, f"loss {cast(TrainingModule, pl_module).last_loss:.4f}")
            if batch_idx + 1 == trainer.num_training_batches:
                self._close()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Leave the terminal in order."""
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        self._progress = None


class AverageWeights(lightning.Callback):
    """Give validation, and what saves the best weights, the mean of the weights after the last epochs.

    It generalises better than each of them (Izmailov et al., Averaging Weights Leads to Wider Optima, 2018). Training
    itself goes on from the weights after the last step. Stands between the callbacks that are to see the mean and the
    one that saves the state of the run.

    Args:
        network: whose weights are averaged.
        epochs: at most so many count; in the first ones there are fewer.
    """

    def __init__(self, network: nn.Module, epochs: int):
        self._network = network
        self._before: deque[dict[str, Tensor]] = deque(maxlen=epochs - 1)
        self._now: dict[str, Tensor] = {}

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Put the mean into the network after the last step of an epoch."""
        if batch_idx + 1 < trainer.num_training_batches:
            return
        self._now = {name: tensor.clone() for name, tensor in self._tensors().items()}
        for name, tensor in self._tensors().items():
            before = [epoch[name].to(tensor) for epoch in self._before]
            if not all(torch.equal(other, tensor) for other in before):  # what is frozen stays as it is to the last bit
                tensor.copy_(torch.stack([tensor, *before]).mean(dim=0))

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Take the weights of the last step up again."""
        for name, tensor in self._tensors().items():
            tensor.copy_(self._now[name])
        self._before.append(self._now)
        self._now = {}

    def _tensors(self) -> dict[str, Tensor]:
        """Weights, and the statistics of normalisation."""
        return {name: tensor for name, tensor in self._network.state_dict().items() if tensor.is_floating_point()}

    def state_dict(self) -> dict[str, Any]:
        """Return what ``last.ckpt`` stores."""
        return {"before": list(self._before)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``last.ckpt`` stored."""
        self._before.extend(state_dict["before"])
