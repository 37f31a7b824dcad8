"""Means of weights over several epochs or steps, in the place of those after the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn

from saywhere.training.dataset import Batch


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


class MovingAverage:
    """Hold the exponential moving average of weights, which generalises better than the weights of any one step.

    Args:
        tensors: weights, and the statistics of normalisation, by name; they are changed in place.
        decay: what stays of the average at each step; at first less does.
        share: of the average in what :meth:`applied` gives; the rest are the weights of the beginning (Wortsman et al.,
            Robust fine-tuning of zero-shot models, 2022).
    """

    def __init__(self, tensors: Mapping[str, Tensor], decay: float = 0.98, share: float = 1.0):
        self._tensors, self._decay, self._share, self._steps = dict(tensors), decay, share, 0
        self._first = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        self._mean = {name: tensor.clone() for name, tensor in self._first.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after one more step in."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        for name, tensor in self._tensors.items():
            self._mean[name].lerp_(tensor, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while."""
        with torch.no_grad():
            now = {name: tensor.clone() for name, tensor in self._tensors.items()}
            self._copy({name: first.lerp(self._mean[name], self._share) for name, first in self._first.items()})
            try:
                yield
            finally:
                self._copy(now)

    def _copy(self, source: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(source[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the average, and of how many steps."""
        return {"mean": self._mean, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._mean, self._steps = dict(state["mean"]), state["steps"]
