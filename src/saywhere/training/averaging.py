"""The mean of the weights after several epochs, in the place of those after the last one."""

from __future__ import annotations

from collections import deque
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
