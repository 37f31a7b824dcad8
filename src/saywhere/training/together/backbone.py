"""The last stages of a backbone, which are trained, on maps of the stages before, which are not and may be cached."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saywhere.box_coding import propose
from saywhere.configs.parts import ProposalConfig
from saywhere.errors import UserError
from saywhere.networks.vision.image_maps import ImageMaps
from saywhere.networks.vision.trunk import Trunk

SMOOTH = 0.9
"""Of the running mean of a gradient's size, how much stays at each step."""


def last_stages(trunk: Trunk) -> nn.Sequential:
    """Return the layers between the two coarsest maps of a trunk's backbone.

    Raises:
        UserError: the backbone is no EfficientNet, or gives one map only.
    """
    info: Any = getattr(trunk.backbone.body, "feature_info", None)
    names = [] if info is None else [re.fullmatch(r"blocks\.(\d+)", name) for name in info.module_name()]
    before, last = names[-2:] if len(names) > 1 else (None, None)
    if before is None or last is None or trunk.head is None:
        raise UserError(
            "the end of a backbone is trained for EfficientNets with several maps and their last layer only"
        )
    blocks = trunk.backbone.body.get_submodule("blocks")
    assert isinstance(blocks, nn.Sequential)
    return blocks[int(before[1]) + 1 : int(last[1]) + 1]


class Front(nn.Module):
    """Turn pixels into all maps but the coarsest, and the best proposals: what training may cache.

    Args:
        trunk: with a localization layer.
        proposals: how many boxes, and how they are suppressed.
    """

    def __init__(self, trunk: Trunk, proposals: ProposalConfig):
        super().__init__()
        self.trunk, self.proposals = trunk, proposals
        self.settings = repr(("front", proposals))

    @torch.no_grad()
    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return of each image ``(3, h, w)`` its maps, finest first, and boxes ``(1, R, 4)`` in pixels of the input."""
        trunk, limits = self.trunk, self.proposals
        localization = trunk.localization
        assert localization is not None
        found: list[tuple[Tensor, ...]] = []
        for image, maps in zip(pixels, trunk.backbone(pixels), strict=True):
            (rpn,) = trunk.rpn(trunk.neck([maps]))
            size = (image.shape[2], image.shape[1])
            coder = localization.box_coder
            boxes, _ = propose(coder, rpn, size, limits.nms_iou, limits.pre_nms_top_n, limits.post_nms_top_n)
            found.append((*maps[:-1], coder.to_xyxy(boxes)[None]))
        return found


class BackboneEnd:
    """Train the last stages of a backbone and the layer before its classifier by what several tasks want changed.

    Gradients of tasks differ in size by orders of magnitude. Each is divided by a running mean of its size, so that
    ``weight`` says how much a task counts.

    Args:
        trunk: normalisation keeps its statistics.

    Attributes:
        sizes: the running mean of each task's gradient.
    """

    def __init__(self, trunk: Trunk):
        self.trunk, self.stages, self.sizes = trunk, last_stages(trunk), dict[str, float]()
        for module in (self.stages, trunk.head):
            assert module is not None
            module.requires_grad_(True)
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained."""
        assert self.trunk.head is not None
        return [*self.stages.parameters(), *self.trunk.head.parameters()]

    def run(self, maps: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return of each image's second coarsest map ``(C, H, W)`` the coarsest and the last layer's, with gradients.

        Images of one shape share a batch.
        """
        assert self.trunk.head is not None
        found: list[Any] = [None] * len(maps)
        for rows in _equal_shapes(maps):
            batch = torch.stack([maps[i] for i in rows]).contiguous(memory_format=torch.channels_last)
            coarse = self.stages(batch)
            last = self.trunk.head.conv(coarse).clamp(0, 6)
            for i, *pair in zip(rows, coarse.unbind(), last.unbind(), strict=True):
                found[i] = tuple(pair)
        return found


class SharedMaps:
    """Hold a batch's maps so that each task's gradient stops there, and pass the sum of all on to the backbone's end.

    Args:
        end: of the backbone.
        maps: of each image all but the coarsest, finest first.
        sizes: width and height of each image's input.
    """

    def __init__(self, end: BackboneEnd, maps: Sequence[tuple[Tensor, ...]], sizes: Sequence[tuple[int, int]]):
        self._end, self._maps, self._sizes = end, maps, sizes
        self._outputs = end.run([levels[-1] for levels in maps])
        self._leaves = [tuple(t.detach().requires_grad_() for t in pair) for pair in self._outputs]
        self._sums: list[list[Tensor | None]] = [[None, None] for _ in maps]

    def images(self, rows: Sequence[int]) -> list[ImageMaps]:
        """Return images of the batch for one task."""
        return [
            ImageMaps(self._end.trunk, (*self._maps[i], self._leaves[i][0]), *self._sizes[i], head=self._leaves[i][1])
            for i in rows
        ]

    def collect(self, task: str, weight: float = 1.0) -> float:
        """Take the gradient that a task's ``backward`` has left, and return its size; not finite, it is dropped."""
        grads = [leaf.grad for pair in self._leaves for leaf in pair if leaf.grad is not None]
        size = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        if math.isfinite(size) and size > 0:
            sizes = self._end.sizes
            sizes[task] = SMOOTH * sizes[task] + (1 - SMOOTH) * size if task in sizes else size
            for pair, sums in zip(self._leaves, self._sums, strict=True):
                for k, leaf in enumerate(pair):
                    if leaf.grad is not None:
                        before, grad = sums[k], leaf.grad * (weight / sizes[task])
                        sums[k] = grad if before is None else before + grad
        for pair in self._leaves:
            for leaf in pair:
                leaf.grad = None
        return size

    def backward(self) -> None:
        """Give the backbone's end the sum of the gradients that were collected."""
        outputs, grads = list[Tensor](), list[Tensor]()
        for pair, sums in zip(self._outputs, self._sums, strict=True):
            for output, grad in zip(pair, sums, strict=True):
                if grad is not None:
                    outputs.append(output)
                    grads.append(grad)
        if outputs:
            torch.autograd.backward(outputs, grads)


def _equal_shapes(maps: Sequence[Tensor]) -> list[list[int]]:
    rows: dict[tuple[int, ...], list[int]] = {}
    for i, level in enumerate(maps):
        rows.setdefault(tuple(level.shape), []).append(i)
    return list(rows.values())
