"""The order in which the program's sort leaves equal numbers, for tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere import torch7_sort


def ascending_order(values: Tensor) -> Tensor:
    """Return indices ``(N,)`` that sort ``values (N,)`` upwards, as :func:`saywhere.torch7_sort.ascending_order`."""
    return torch.from_numpy(torch7_sort.ascending_order(values.detach().cpu().numpy())).to(values.device)
