"""The program's Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT


class Adam(Optimizer):
    """Adam with ``eps`` added to the root of the second moment before its bias is corrected, not after.

    Where torch's Adam divides by ``sqrt(v / c) + eps``, with the correction ``c = 1 - beta2 ** t``, this divides by
    ``(sqrt(v) + eps) / sqrt(c)``: in the first steps ``eps`` counts for more.

    Args:
        params: parameters or groups of them.
        lr: step size.
        betas: decay of the two moments.
        eps: keeps the division finite.
        weight_decay: L2, added to the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; ``closure`` computes the loss and its gradients again, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        gradient = gradient + group["weight_decay"] * parameter
        beta1, beta2 = group["betas"]
        mean = state["mean"].lerp_(gradient, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction = (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
        parameter.addcdiv_(mean, square.sqrt() + group["eps"], value=-group["lr"] * correction)
