"""The network that all systems share: a backbone, and on it a feature pyramid with DenseCap's localization layer."""

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
    """Places k anchors of given shapes on every cell of every level.

    Args:
        shapes: for each level its k pairs (w, h), as many on every level, in pixels of the network's input.
        box_coder: format and order of the anchors.
    """

    def __init__(
        self, shapes: Sequence[Sequence[tuple[float, float]]], strides: Sequence[int], box_coder: BoxCoder | None = None
    ):
        self.shapes = tuple(tuple((float(w), float(h)) for w, h in level) for level in shapes)
        self.strides = tuple(strides)
        self.per_cell = len(self.shapes[0])
        self.box_coder = box_coder or BoxCoder()

    def __call__(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the anchors ``(A, 4)`` of the maps ``(C, H_l, W_l)`` of one image: by level, row, column, shape.

        They are float32 for maps in half precision, which could not hold them.
        """
        dtype = np.float64 if maps[0].dtype == torch.float64 else np.float32
        grids = [
            self.box_coder.anchors(shapes, level.shape[-2], level.shape[-1], stride, dtype)
            for shapes, level, stride in zip(self.shapes, maps, self.strides, strict=True)
        ]
        return torch.from_numpy(np.concatenate(grids)).to(maps[0].device)


class RpnHead(nn.Module):
    """A 3x3 convolution, ReLU, then scores and offsets of k anchors by 1x1 convolutions; shared by all levels.

    Offsets start at zero, so that the first proposals are the anchors. With ``two_way`` an anchor has two logits, for
    "region" and "background", whose difference is its score; the order of the anchors is the ``box_coder``'s.
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
        """Return logits ``(B, A)`` and offsets ``(B, A, 4)`` of maps ``(B, C, H_l, W_l)``, in the anchors' order."""
        scores, offsets = zip(*(self.score_and_offset(features) for features in maps), strict=True)
        both = torch.cat(scores, dim=1)
        return both[..., 0] - both[..., 1] if self.two_way else both[..., 0], torch.cat(offsets, dim=1)

    def score_and_offset(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, A, 1 or 2)`` and offsets ``(B, A, 4)`` of the anchors of a map ``(B, C, H, W)``."""
        hidden = torch.relu(self.conv(features))
        rows, k = self.box_coder.rows, self.per_cell
        return rows(self.score(hidden), k), rows(self.offset(hidden), k)


class LocalizationLayer(nn.Module):
    """Scores the anchors of feature maps by a head; :func:`saywhere.boxes.propose` makes proposals of that."""

    def __init__(self, head: RpnHead, anchors: AnchorGenerator, box_coder: BoxCoder):
        super().__init__()
        self.head, self.anchors, self.box_coder = head, anchors, box_coder

    def forward(self, images: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Return scores and offsets of every anchor, for images of any sizes given by their maps."""
        scored = by_shape(self.head, images)
        return [RpnOutput(self.anchors(maps), *out) for maps, out in zip(images, scored, strict=True)]

    def boxes(self, rpn: RpnOutput) -> Tensor:
        """Return the regressed box of every anchor ``(A, 4)``, not clipped, in the box coder's format."""
        return self.box_coder.decode(rpn.offsets, rpn.anchors)


class Tower:
    """CLIP's image tower beside a backbone: a frozen graph, which ONNX Runtime runs on the CPU.

    The graph is that of :func:`saywhere.engines.tower.build_tower`, opened for the first image.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def session(self) -> Session:
        """ONNX Runtime's session; ``UserError`` if the graph is damaged or another one."""
        return open_tower(self.path, torch.get_num_threads())

    @cached_property
    def digest(self) -> str:
        """A hash of the graph."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the map ``(C, S, S)`` and the embedding ``(E, 1, 1)`` of an image ``(3, h, w)``."""
        image = pixels[None].detach().float().cpu().numpy()
        seen, summary = self.session.run({"pixels": image}, [TOWER, SUMMARY]).values()
        return torch.from_numpy(seen[0]).to(pixels), torch.from_numpy(summary[0])[:, None, None].to(pixels)


class Eye(nn.Module):
    """A backbone and the image tower beside it, as an extractor of maps, which training may cache by ``settings``."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.backbone, self._trunk = trunk.backbone, (trunk,)  # the other weights are not the extractor's
        self.strides, self.settings = trunk.backbone.strides, f"{trunk.config.backbone} {trunk.tower_digest}"

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """See :meth:`Trunk.look`."""
        return self._trunk[0].look(pixels)

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune the backbone, or freeze it."""
        self.backbone.set_trainable(trainable)


TAKEN = ("backbone", "head", "branch", "pyramid", "localization")


class Trunk(nn.Module):
    """A backbone and what stands on it for several systems at once.

    Args:
        head: the backbone's last layer before the classifier, frozen; or None.
        pyramid: of the maps that regions are found on; None where that is the backbone's one map.
        localization: scores of anchors on those maps; None where no regions are proposed.
        branch: a second branch beside the backbone's last stages, frozen; or None.
        config: options; those of the default if None.

    Attributes:
        tower: CLIP's image tower, if the options have one and its graph is there.
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
        """Channels of the maps that :meth:`neck` returns."""
        return self.backbone.channels[0] if self.pyramid is None else self.pyramid.out_channels

    @property
    def extractor(self) -> nn.Module:
        """Pixels to the maps that training may cache: the backbone, with the tower if there is one."""
        return Eye(self) if self.config.tower else self.backbone

    @property
    def tower_digest(self) -> str:
        """A hash of the tower's graph; empty without one."""
        return "" if self.tower is None else self.tower.digest

    def look(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return the backbone's maps of images ``(3, h, w)``, finest first; behind them what :class:`Tower` gives.

        ``UserError`` if the trunk has no graph of the tower that its options name.
        """
        maps = self.backbone(pixels)
        if not self.config.tower:
            return maps
        if self.tower is None:
            raise UserError("trunk.tower needs training.branch, or a model to start from that has its graph")
        return [(*levels, *self.tower(image)) for levels, image in zip(maps, pixels, strict=True)]

    def neck(self, features: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """Return the maps that regions are found on and pooled from, of each image's maps by :meth:`look`."""
        features = [maps[: len(self.backbone.strides)] for maps in features]
        return features if self.pyramid is None else by_shape(self.pyramid, features)

    def rpn(self, maps: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Return what the localization layer computes for every anchor of images, given their :meth:`neck` maps."""
        assert self.localization is not None, "this trunk was built without proposals"
        return self.localization(maps)

    def require_parts(self, proposals: bool, head: bool) -> None:
        """Refuse a trunk without the parts that a network needs: ``UserError`` without localization layer or head."""
        if proposals and self.localization is None:
            raise UserError("the trunk has no localization layer, which proposals need")
        if head and self.head is None:
            raise UserError("the trunk has no head, the last layer before the classifier: set head to false")

    def take_from(self, other: Trunk) -> None:
        """Take over the weights of ``other``'s parts that this trunk has too, and its pixels' mean and deviation.

        A head, a branch or a tower is taken if ``other`` has one, the other parts must be there.

        Raises:
            UserError: ``other`` lacks a part, or one has other sizes, anchors or boxes; one line.
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
    """The first difference between the weights' names and shapes; empty if there is none."""
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
        proposals: of the pyramid and the localization layer; None for neither.
        head: also the backbone's last layer before the classifier.
        box_coder: format of the localization layer's boxes.
        pretrained: start from ImageNet weights.

    Raises:
        UserError: no such backbone or stride, or weights that cannot be had.
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
    return Trunk(backbone, preprocess, last, pyramid, LocalizationLayer(rpn, anchors, coder), branch, trunk)
