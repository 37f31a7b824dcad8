"""The network shared by all systems: a backbone, a feature pyramid, and DenseCap's localization layer on top."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.boxes import BoxCoder
from saywhere.configs.parts import SUMMARY, TOWER, ProposalConfig, TrunkConfig
from saywhere.engines.engine import RpnOutput
from saywhere.engines.onnx import Session, open_tower
from saywhere.errors import UserError
from saywhere.images import Preprocess
from saywhere.networks.vision.backbones import Backbone, Branch, Head, Pyramid, build_backbone, by_shape


class AnchorGenerator:
    """Place k anchors of given shapes on every cell of every level.

    Args:
        shapes: k pairs (w, h) per level, in pixels of the network's input; k is the same for all levels.
        box_coder: defines the format and order of the anchors.
    """

    def __init__(
        self, shapes: Sequence[Sequence[tuple[float, float]]], strides: Sequence[int], box_coder: BoxCoder | None = None
    ):
        self.shapes = tuple(tuple((float(w), float(h)) for w, h in level) for level in shapes)
        self.strides = tuple(strides)
        self.per_cell = len(self.shapes[0])
        self.box_coder = box_coder or BoxCoder()

    def __call__(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the anchors ``(A, 4)`` for one image's maps ``(C, H_l, W_l)``: by level, row, column, shape.

        They are float32 for half-precision maps, since half is too coarse for them.
        """
        dtype = np.float64 if maps[0].dtype == torch.float64 else np.float32
        grids = [
            self.box_coder.anchors(shapes, level.shape[-2], level.shape[-1], stride, dtype)
            for shapes, level, stride in zip(self.shapes, maps, self.strides, strict=True)
        ]
        return torch.from_numpy(np.concatenate(grids)).to(maps[0].device)


class RpnHead(nn.Module):
    """A 3x3 convolution and ReLU, then 1x1 convolutions for scores and offsets of k anchors; shared by all levels.

    Offsets start at zero, so that the first proposals are the anchors. With ``two_way`` an anchor has two logits, for
    "region" and "background"; their difference is its score. ``box_coder`` defines the order of the anchors.
    """

    def __init__(
        self, channels: int, hidden_size: int, per_cell: int, two_way: bool, box_coder: BoxCoder | None = None
    ):
        super().__init__()
        self.per_cell, self.box_coder = per_cell, box_coder or BoxCoder()
        self.conv = nn.Conv2d(channels, hidden_size, 3, padding=1)
        self.score = nn.Conv2d(hidden_size, per_cell * (2 if two_way else 1), 1)
        self.offset = nn.Conv2d(hidden_size, per_cell * 4, 1)
        self.two_way = two_way
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.zero_()
                if name in ("conv.weight", "score.weight"):
                    parameter.normal_(std=0.01)

    def forward(self, *maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, A)`` and offsets ``(B, A, 4)`` for maps ``(B, C, H_l, W_l)``, in anchor order."""
        scores, offsets = zip(*(self.score_and_offset(features) for features in maps), strict=True)
        both = torch.cat(scores, dim=1)
        return both[..., 0] - both[..., 1] if self.two_way else both[..., 0], torch.cat(offsets, dim=1)

    def score_and_offset(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, A, 1 or 2)`` and offsets ``(B, A, 4)`` of the anchors of a map ``(B, C, H, W)``."""
        hidden = torch.relu(self.conv(features))
        rows, k = self.box_coder.rows, self.per_cell
        return rows(self.score(hidden), k), rows(self.offset(hidden), k)


class LocalizationLayer(nn.Module):
    """Score the anchors of feature maps; :func:`saywhere.boxes.propose` turns the result into proposals."""

    def __init__(self, head: RpnHead, anchors: AnchorGenerator):
        super().__init__()
        self.head, self.anchors, self.box_coder = head, anchors, anchors.box_coder

    def forward(self, images: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Return scores and offsets of all anchors for each image, given its maps. Image sizes may differ."""
        scored = by_shape(self.head, images)
        return [RpnOutput(self.anchors(maps), *out) for maps, out in zip(images, scored, strict=True)]


class Tower:
    """CLIP's image tower beside a backbone: a frozen graph that ONNX Runtime runs on the CPU.

    :func:`saywhere.engines.tower.build_tower` builds the graph; the first image opens it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def session(self) -> Session:
        """The ONNX Runtime session; ``UserError`` if the graph is damaged or not that of a tower."""
        return open_tower(self.path, torch.get_num_threads())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the graph."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the map ``(C, S, S)`` and the embedding ``(E, 1, 1)`` of an image ``(3, h, w)``."""
        image = pixels[None].detach().float().cpu().numpy()
        seen, summary = self.session.run({"pixels": image}, [TOWER, SUMMARY]).values()
        return torch.from_numpy(seen[0]).to(pixels), torch.from_numpy(summary[0])[:, None, None].to(pixels)


class Eye(nn.Module):
    """Extractor of the maps of a backbone and its image tower; training may cache them under ``settings``."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.backbone, self._trunk = trunk.backbone, (trunk,)  # a tuple: the extractor does not own other weights
        self.strides, self.settings = trunk.backbone.strides, f"{trunk.config.backbone} {trunk.tower_digest}"

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """See :meth:`Trunk.look`."""
        return self._trunk[0].look(pixels)

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune or freeze the backbone."""
        self.backbone.set_trainable(trainable)


TAKEN = ("backbone", "head", "branch", "pyramid", "localization")


class Trunk(nn.Module):
    """A backbone and the parts on top of it that several systems share.

    Args:
        head: the backbone's last layer before the classifier, frozen; or None.
        pyramid: of the maps that regions are found on; None: the backbone's only map is used.
        localization: scores anchors on these maps; None: no proposals.
        branch: a second branch beside the backbone's last stages, frozen; or None.
        config: options; None for the defaults.

    Attributes:
        tower: CLIP's image tower, if the options name one and its graph is available.
    """

    tower: Tower | None = None

    def __init__(
        self,
        backbone: Backbone,
        preprocess: Preprocess,
        head: Head | None = None,
        pyramid: Pyramid | None = None,
        localization: LocalizationLayer | None = None,
        branch: Branch | None = None,
        config: TrunkConfig | None = None,
    ):
        super().__init__()
        self.backbone, self.preprocess, self.config = backbone, preprocess, config or TrunkConfig()
        self.head = None if head is None else head.requires_grad_(False)
        self.branch, self.pyramid, self.localization = branch, pyramid, localization

    @property
    def region_channels(self) -> int:
        """Channels of the maps that regions are found on and pooled from."""
        return self.backbone.channels[0] if self.pyramid is None else self.pyramid.out_channels

    @property
    def extractor(self) -> nn.Module:
        """Module that computes the maps that training may cache: the backbone, and the tower if there is one."""
        return Eye(self) if self.config.tower else self.backbone

    @property
    def tower_digest(self) -> str:
        """SHA-256 of the tower's graph; empty without a tower."""
        return "" if self.tower is None else self.tower.digest

    def look(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return the backbone's maps of images ``(3, h, w)``, from fine to coarse, then the outputs of :class:`Tower`.

        ``UserError`` if the options name a tower and the trunk has no graph of it.
        """
        maps = self.backbone(pixels)
        if not self.config.tower:
            return maps
        if self.tower is None:
            raise UserError("trunk.tower needs training.branch, or a model to start from that has its graph")
        return [(*levels, *self.tower(image)) for levels, image in zip(maps, pixels, strict=True)]

    def require_parts(self, proposals: bool, head: bool) -> None:
        """Raise ``UserError`` if the trunk lacks a localization layer or a head that a network needs."""
        if proposals and self.localization is None:
            raise UserError("the trunk has no localization layer, which proposals need")
        if head and self.head is None:
            raise UserError("the trunk has no head, the last layer before the classifier: set head to false")

    def take_from(self, other: Trunk) -> None:
        """Copy from ``other`` the weights of the parts that this trunk has, and the pixel mean and standard deviation.

        Head, branch and tower are copied only if ``other`` has them; the other parts must exist.

        Raises:
            UserError: ``other`` lacks a part, or its sizes, anchors or box format differ.
        """
        if self.localization is not None:
            if other.localization is None or (self.pyramid is None) != (other.pyramid is None):
                raise UserError("localizer: that model and this network do not both have a pyramid and proposals")
            mine, theirs = self.localization.anchors, other.localization.anchors
            if mine.shapes != theirs.shapes or mine.strides != theirs.strides:
                raise UserError("localizer: that model has other anchors than proposals.anchors here")
            if type(mine.box_coder) is not type(theirs.box_coder):
                raise UserError("localizer: that model has the published program's boxes, which only DenseCap knows")
        parts = [(name, getattr(self, name), getattr(other, name)) for name in TAKEN]
        parts = [part for part in parts if part[1] is not None and part[2] is not None]
        for name, mine, theirs in parts:
            if difference := _difference(mine, theirs):
                raise UserError(f"localizer: the {name} of that model does not fit this network: {difference}")
        for _, mine, theirs in parts:
            mine.load_state_dict(theirs.state_dict())
        if self.config.tower:
            self.tower = other.tower
        pixels = other.preprocess
        self.preprocess = replace(self.preprocess, mean=pixels.mean, std=pixels.std)


def _difference(mine: nn.Module, theirs: nn.Module) -> str:
    """Return the first difference in the names or shapes of the weights; empty if there is none."""
    one, two = mine.state_dict(), theirs.state_dict()
    for key in (*one, *two):
        if key not in one or key not in two:
            return f"only one of them has {key}"
        if one[key].shape != two[key].shape:
            return f"{key} is {tuple(two[key].shape)} there and {tuple(one[key].shape)} here"
    return ""


def build_trunk(
    trunk: TrunkConfig,
    proposals: ProposalConfig | None = None,
    head: bool = False,
    box_coder: BoxCoder | None = None,
    pretrained: bool = True,
) -> Trunk:
    """Build a trunk.

    Args:
        proposals: options of the pyramid and the localization layer; None for neither.
        head: add the backbone's last layer before the classifier.
        box_coder: box format of the localization layer.
        pretrained: start from ImageNet weights.

    Raises:
        UserError: unknown backbone or stride, or weights that are not available.
    """
    backbone = build_backbone(trunk.backbone, trunk.strides, pretrained, trunk.vgg_channels)
    preprocess = backbone.preprocess(trunk.long_side, trunk.multiple, backbone.mean, backbone.std)
    last = Head(backbone.channels[-1]) if head else None
    if last is not None and pretrained:
        last.load_published(trunk.backbone)
    branch = Branch(backbone) if trunk.branch else None
    if proposals is None:
        return Trunk(backbone, preprocess, last, branch=branch, config=trunk)
    channels, coder = proposals.pyramid_channels, box_coder or BoxCoder()
    pyramid = Pyramid(backbone.channels, channels) if channels else None
    anchors = AnchorGenerator(proposals.anchors, trunk.strides, coder)
    region_channels = channels or backbone.channels[0]
    rpn = RpnHead(region_channels, proposals.hidden_size, anchors.per_cell, proposals.two_way, coder)
    return Trunk(backbone, preprocess, last, pyramid, LocalizationLayer(rpn, anchors), branch, trunk)
