"""Features of regions: values of a trunk's maps in a box, and where the box is (Alignments, section 3.1.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.configs.parts import BRANCH_CHANNELS, LAST_CHANNELS, PLACE, ProposalConfig
from saywhere.networks.vision.image_maps import ImageMaps, Source
from saywhere.networks.vision.trunk import Trunk


def feature_size(trunk: Trunk, levels: Sequence[int], head: bool, branch: bool = False) -> int:
    """Return the dimensions D of features pooled from the maps of :meth:`ImageMaps.sources`."""
    channels = dict(zip(trunk.backbone.strides, trunk.backbone.channels, strict=True))
    more = (LAST_CHANNELS if head else 0) + (sum(BRANCH_CHANNELS) if branch else 0)
    return sum(channels[stride] for stride in levels) + more + PLACE


def place(boxes: Tensor, width: float, height: float) -> Tensor:
    """Return where boxes ``(R, 4)`` are in their image: ``(R, 5)``, corners and area as shares of it."""
    shares = boxes / boxes.new_tensor([width, height, width, height])
    area = (shares[:, 2:] - shares[:, :2]).clamp(min=0).prod(dim=1, keepdim=True)
    return torch.cat((shares, area), dim=1)


def box_means(features: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """Return the mean of a map over each box: ``(R, C)``; a cell counts by the share of it that is inside.

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


def box_maxima(features: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """Return the largest value of each channel of a map in the cells that a box touches: ``(R, C)``.

    Args:
        features: ``(C, H, W)``.
        boxes: ``(R, 4)`` in pixels of the network's input. A box outside the map, or without area, has 0.
        stride: input pixels per cell.
    """
    height, width = features.shape[1:]
    rows = []
    for x1, y1, x2, y2 in (boxes / stride).tolist():
        left, top = max(0, math.floor(x1)), max(0, math.floor(y1))
        right, bottom = min(width, math.ceil(x2)), min(height, math.ceil(y2))
        solid = x2 > x1 and y2 > y1 and left < right and top < bottom
        rows.append(
            features[:, top:bottom, left:right].amax(dim=(1, 2)) if solid else features.new_zeros(len(features))
        )
    return torch.stack(rows) if rows else features.new_zeros(0, len(features))


def mean_features(sources: Sequence[Source], boxes: Tensor, width: float, height: float) -> Tensor:
    """Return the means of an image's maps over boxes and where these are.

    Args:
        sources: the maps, see :meth:`ImageMaps.sources`.
        boxes: ``(R, 4)`` in pixels of the network's input.
        width, height: of the network's input.

    Returns:
        ``(R, D)`` with D of :func:`feature_size`.
    """
    means = [box_means(features, boxes, stride) for features, stride in sources]
    return torch.cat((*means, place(boxes, width, height)), dim=1)


def context_features(image: ImageMaps, boxes: Tensor, levels: Sequence[int], embeddings: Tensor) -> Tensor:
    """Return features of regions in their image, see :func:`context_size`.

    They are those of :func:`mean_features`, the last layer among them; its means over the whole image; the embeddings.
    If the trunk has a second branch, its maps take the place of the last layer, behind the place of the region.

    Args:
        image: maps of the image.
        boxes: ``(R, 4)`` in pixels of the network's input.
        levels: strides of the maps that are averaged, beside the last layer or the branch's.
        embeddings: ``(R, E)`` of the regions by the dense captioner.
    """
    branch = image.branch
    parts = [mean_features(image.sources(levels, not branch), boxes, *image.size)]
    parts += [box_means(features, boxes, stride) for features, stride in branch]
    whole = [features for features, _ in branch] or [image.head]
    parts += [features.mean(dim=(1, 2)).expand(len(boxes), -1) for features in whole]
    return torch.cat((*parts, embeddings), dim=1)


def context_size(trunk: Trunk, levels: Sequence[int], embed_dim: int) -> int:
    """Return the dimensions of :func:`context_features` with embeddings of ``embed_dim``."""
    channels = LAST_CHANNELS if trunk.branch is None else sum(BRANCH_CHANNELS)
    return feature_size(trunk, levels, False) + 2 * channels + embed_dim


def max_features(sources: Sequence[Source], boxes: Tensor, width: float, height: float) -> Tensor:
    """Return features as :func:`mean_features`, with the largest values in the boxes instead of the means."""
    peaks = [box_maxima(features, boxes, stride) for features, stride in sources]
    return torch.cat((*peaks, place(boxes, width, height)), dim=1)


def position_features(sources: Sequence[Source], cells: int, width: float, height: float) -> tuple[Tensor, int]:
    """Return features of every position of the coarsest map; finer maps are averaged there.

    Args:
        sources: the maps, see :meth:`ImageMaps.sources`.
        cells: rows and columns of a grid over the image; a position's place is that of a box of its cells' size.
        width, height: of the network's input.

    Returns:
        ``(H, W, D)``, as :func:`mean_features` of a box; and the stride of that map.
    """
    stride = max(stride for _, stride in sources)
    size = next((features.shape[1], features.shape[2]) for features, its in sources if its == stride)
    pooled = [functional.adaptive_avg_pool2d(features, size).permute(1, 2, 0) for features, _ in sources]
    y, x = torch.meshgrid(*((torch.arange(n, dtype=torch.float32) + 0.5) * stride for n in size), indexing="ij")
    sides = torch.tensor([width / cells, height / cells]).expand(x.numel(), 2)
    boxes = geometry.from_center(torch.cat((torch.stack((x.flatten(), y.flatten()), dim=1), sides), dim=1))
    places = place(geometry.clip(boxes, width, height), width, height).to(pooled[0])
    return torch.cat((*pooled, places.reshape(*size, -1)), dim=2), stride


def whole_image(image: ImageMaps) -> Tensor:
    """Return the box ``(1, 4)`` of all of an image, in pixels of the network's input."""
    return torch.tensor([[0.0, 0.0, image.width, image.height]], device=image.maps[0].device)


@torch.no_grad()
def propose_regions(images: Sequence[ImageMaps], settings: ProposalConfig) -> list[Tensor]:
    """Return the best proposals ``(B, 4)`` ``x1 y1 x2 y2`` of images in pixels of the network's input, best first.

    Args:
        images: whose trunk has a localization layer.
        settings: of the suppression, and how many boxes are kept.
    """
    limits = settings.nms_iou, settings.pre_nms_top_n, settings.post_nms_top_n
    found: list[Tensor] = []
    for image, rpn in zip(images, ImageMaps.rpns(images), strict=True):
        layer = image.trunk.localization
        assert layer is not None
        found.append(layer.box_coder.to_xyxy(propose(layer.box_coder, rpn, image.size, *limits)[0]))
    return found


class RegionExtractor(nn.Module):
    """Turn pixels into the regions of each image, the whole image first: what training may cache.

    Args:
        trunk: its backbone may be trained, and nothing else of it.
        levels, head, branch: of :meth:`ImageMaps.sources`.
        proposals: of the trunk's localization layer; None for the whole image alone.
        settings: what the regions depend on beside the weights and the pixels; a cache of others is another cache.
    """

    def __init__(
        self,
        trunk: Trunk,
        levels: Sequence[int],
        head: bool,
        branch: bool,
        proposals: ProposalConfig | None,
        settings: str,
    ):
        super().__init__()
        self.trunk, self.levels, self.head, self.branch = trunk, tuple(levels), head, branch
        self.proposals, self.settings = proposals, settings

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return ``features (1, R, D)`` and ``boxes (1, R, 4)``, in pixels of the input, of images ``(3, h, w)``."""
        maps = self.trunk.backbone(pixels)
        images = [ImageMaps(self.trunk, m, x.shape[2], x.shape[1]) for m, x in zip(maps, pixels, strict=True)]
        found = [whole_image(image)[:0] for image in images]
        if self.proposals is not None:
            found = propose_regions(images, self.proposals)
        regions: list[tuple[Tensor, Tensor]] = []
        for image, more in zip(images, found, strict=True):
            boxes = torch.cat((whole_image(image), more.to(image.maps[0])))
            features = mean_features(image.sources(self.levels, self.head, self.branch), boxes, *image.size)
            regions.append((features[None], boxes[None]))
        return regions

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune the backbone, or freeze it; what proposes the boxes is never trained here."""
        self.requires_grad_(False)
        self.trunk.backbone.set_trainable(trainable)
