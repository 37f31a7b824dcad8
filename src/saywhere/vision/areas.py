"""Areas: boxes of a picture with a feature vector each, from any provider (Alignments, section 3.1.1).

A provider is a module called with pixels, and with boxes if they are given; the system above it does not ask where the
areas come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from saywhere.vision.backbones import Backbone, Pyramid, by_shape
from saywhere.vision.head import CHANNELS, Head
from saywhere.vision.localization import LocalizationLayer

PLACE = 5  # numbers that say where a box is


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas of one picture.

    Attributes:
        boxes: ``(R, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input.
        features: ``(R, D)``.
        scores: ``(R,)`` logits that there is something; 0 where nobody has said, as of the whole picture. None: all 0.
    """

    boxes: Tensor
    features: Tensor
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)


class AreaProvider(Protocol):
    """Turns pictures into areas; the first area is the whole picture."""

    @property
    def feature_size(self) -> int:
        """D."""
        ...

    def __call__(
        self, pixels: Sequence[Tensor], boxes: Sequence[Tensor] | None = None, limit: int | None = None
    ) -> list[Areas]:
        """The areas of each picture.

        Args:
            pixels: ``(3, h, w)`` of each picture.
            boxes: of each picture ``(N, 4)`` in its pixels: use these and the whole picture.
            limit: at most this many areas beside the whole picture, instead of the provider's own number.
        """
        ...


def whole_picture(pixels: Tensor) -> Tensor:
    """The box ``(1, 4)`` of all of the picture ``(3, h, w)``."""
    return torch.tensor([[0.0, 0.0, pixels.shape[2], pixels.shape[1]]], device=pixels.device)


def place(boxes: Tensor, width: float, height: float) -> Tensor:
    """Where boxes ``(R, 4)`` are in their picture: ``(R, 5)``, corners and area as shares of it."""
    shares = boxes / boxes.new_tensor([width, height, width, height])
    area = (shares[:, 2:] - shares[:, :2]).clamp(min=0).prod(dim=1, keepdim=True)
    return torch.cat((shares, area), dim=1)


def box_means(features: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """The mean of a map over each box: ``(R, C)``; a cell counts by the share of it that is inside.

    Args:
        features: ``(C, H, W)``.
        boxes: ``(R, 4)`` in pixels of the network's input. A box outside the map, or without area, has mean 0.
        stride: input pixels per cell.
    """
    x1, y1, x2, y2 = (boxes / stride).unbind(1)
    across, down = _inside(x1, x2, features.shape[2]), _inside(y1, y2, features.shape[1])
    shares = (down[:, :, None] * across[:, None, :]).flatten(1)
    return shares @ features.flatten(1).T


def _inside(low: Tensor, high: Tensor, cells: int) -> Tensor:
    """The share of each interval ``(R,)`` that lies in each cell: ``(R, cells)``, rows of sum 1."""
    left = torch.arange(cells, dtype=low.dtype, device=low.device)
    lengths = (torch.minimum(high[:, None], left + 1) - torch.maximum(low[:, None], left)).clamp(min=0)
    total = lengths.sum(dim=1, keepdim=True)
    return torch.where(total > 0, lengths / total.clamp(min=torch.finfo(low.dtype).tiny), 0.0)


class AreaFeatures(nn.Module):
    """What a frozen network sees in a box: the means of its maps over the box, and where the box is.

    Args:
        strides, channels: of the maps, finest first.
        levels: the strides whose maps are averaged.
        head: also the mean of the network's last layer, see :class:`saywhere.vision.head.Head`.
    """

    def __init__(self, strides: Sequence[int], channels: Sequence[int], levels: Sequence[int], head: bool):
        super().__init__()
        self.strides, self.levels = tuple(strides), tuple(strides.index(stride) for stride in levels)
        self.head = Head(channels[-1]) if head else None
        self.size = sum(channels[i] for i in self.levels) + (CHANNELS if head else 0) + PLACE

    def forward(self, maps: Sequence[Tensor], boxes: Tensor, width: float, height: float) -> Tensor:
        """Features ``(R, size)`` of ``boxes (R, 4)`` on the maps ``(C_l, H_l, W_l)`` of one picture."""
        sources = [(maps[i], self.strides[i]) for i in self.levels]
        if self.head is not None:
            sources.append((self.head(maps[-1]), self.strides[-1]))
        means = [box_means(source, boxes, stride) for source, stride in sources]
        return torch.cat((*means, place(boxes, width, height)), dim=1)


class WholePicture(nn.Module):
    """The provider of a single area, the whole picture; boxes that are given come after it.

    Args:
        backbone: pixels to maps.
        features: see :class:`AreaFeatures`.
    """

    def __init__(self, backbone: Backbone, features: AreaFeatures):
        super().__init__()
        self.backbone, self.features = backbone, features

    @property
    def feature_size(self) -> int:
        """D."""
        return self.features.size

    def forward(
        self, pixels: Sequence[Tensor], boxes: Sequence[Tensor] | None = None, limit: int | None = None
    ) -> list[Areas]:
        """See :class:`AreaProvider`."""
        maps = self.backbone(pixels)
        if boxes is None:
            found = self.find(maps, pixels, limit)
        else:
            found = [(rows, rows.new_zeros(len(rows))) for rows in boxes]
        areas: list[Areas] = []
        for levels, picture, (more, scores) in zip(maps, pixels, found, strict=True):
            rows = torch.cat((whole_picture(picture), more.to(picture)))
            features = self.features(levels, rows, picture.shape[2], picture.shape[1])
            areas.append(Areas(rows, features, torch.cat((rows.new_zeros(1), scores.to(rows)))))
        return areas

    def find(
        self, maps: Sequence[tuple[Tensor, ...]], pixels: Sequence[Tensor], limit: int | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The boxes ``(N, 4)`` of each picture beside the whole and their scores ``(N,)``; here none."""
        return [(picture.new_zeros(0, 4), picture.new_zeros(0)) for picture in pixels]


class ProposedAreas(WholePicture):
    """The whole picture and the best boxes of DenseCap's localization layer.

    Args:
        backbone, features: see :class:`WholePicture`.
        pyramid, localization: those of a trained DenseCap.
        limit: boxes a picture, beside the whole; the paper has 19.
    """

    def __init__(
        self,
        backbone: Backbone,
        features: AreaFeatures,
        pyramid: Pyramid | None,
        localization: LocalizationLayer,
        limit: int,
    ):
        super().__init__(backbone, features)
        self.pyramid, self.localization, self.limit = pyramid, localization, limit

    @torch.no_grad()
    def find(
        self, maps: Sequence[tuple[Tensor, ...]], pixels: Sequence[Tensor], limit: int | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The best proposals ``(N, 4)`` of each picture and their logits ``(N,)``, best first."""
        pictures = list(maps) if self.pyramid is None else by_shape(self.pyramid, maps)
        limit = self.limit if limit is None else limit
        return [
            self.localization.propose(rpn, picture.shape[2], picture.shape[1], limit)
            for rpn, picture in zip(self.localization(pictures), pixels, strict=True)
        ]


class AreaExtractor(nn.Module):
    """A provider as the extractor that training caches: of each picture ``features (1, R, D)`` and ``boxes (1, R, 4)``.

    Args:
        provider: any.
        settings: what its areas depend on beside its weights; a cache of other settings is another cache.
    """

    def __init__(self, provider: nn.Module, settings: str):
        super().__init__()
        self.provider, self.settings = provider, settings

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Pictures ``(3, h, w)`` to their areas."""
        return [(areas.features[None], areas.boxes[None]) for areas in self.provider(pixels)]

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune the backbone, or freeze it; what finds the boxes is never trained here."""
        self.requires_grad_(False)
        backbone = getattr(self.provider, "backbone", None)
        if isinstance(backbone, Backbone):
            backbone.set_trainable(trainable)
