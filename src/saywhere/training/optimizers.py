"""Optimisers of several parameter groups used as one, and the schedule of their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from saywhere import reproductions
from saywhere.training.recipe import OptimizerConfig, TrainingConfig


class Several(Optimizer):
    """Use optimisers of different kinds on different parameters as one.

    The paper trains the convolutional network by SGD and the rest by Adam (section 3.4).
    """

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = list(optimizers)
        super().__init__([{"params": g["params"]} for o in self.optimizers for g in o.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make our groups those of the parts: schedulers change ours."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def names(self) -> list[str]:
        """The name of each group."""
        return [group["name"] for group in self.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step of each optimiser; ``closure`` computes the loss and the gradients once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._share()


def build_optimizer(network: nn.Module, extractor: nn.Module, config: TrainingConfig) -> Several:
    """Return the optimisers of the groups ``rest`` and, if it is ever trained, ``backbone``.

    Args:
        network: all that is trained; parameters that take no gradients are left out.
        extractor: its part whose trained parameters are the group ``backbone``.
        config: the settings of both groups.
    """
    inside = {id(p) for p in extractor.parameters()}
    rest = [p for p in network.parameters() if p.requires_grad and id(p) not in inside]
    optimizers = [_single(config.rest, rest, "rest")]
    if trained := [p for p in extractor.parameters() if p.requires_grad]:
        optimizers.append(_single(config.backbone, trained, "backbone"))
    return Several(optimizers)


def _single(config: OptimizerConfig, parameters: list[nn.Parameter], name: str) -> Optimizer:
    groups = [{"params": parameters, "name": name}]
    if config.kind == "sgd":
        return torch.optim.SGD(groups, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.kind == "rmsprop":
        return torch.optim.RMSprop(groups, config.lr, config.alpha, config.eps, config.weight_decay)
    settings: Any = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
    if config.kind == "original_adam":
        return reproductions.find("kind=original_adam")(groups, config.lr, **settings)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.kind]
    return kind(groups, config.lr, **settings, fused=True)  # a third of the time on a CPU


def build_schedule(optimizer: Optimizer, config: TrainingConfig, steps: int) -> LambdaLR:
    """Return the learning rates of ``steps`` steps: linear warm-up, then constant or half a cosine down to 0."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, config.warmup, config.schedule))


def learning_rate_factor(step: int, steps: int, warmup: int, schedule: str) -> float:
    """Return what the learning rates are multiplied by in step ``step`` (counted from 0) of ``steps``."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
