"""A picture after the convolutional network, and what comes of its regions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.errors import UserError


@dataclass(frozen=True, eq=False)
class Encoding:
    """A picture after the convolutional network, to be asked several times.

    Attributes:
        maps: one ``(C, H_l, W_l)`` a stride, finest first.
        width, height: of the picture as a viewer shows it.
        input_width, input_height: of the network's input; boxes inside the model are in its pixels.
        name: of the picture.
    """

    maps: tuple[Tensor, ...]
    width: int
    height: int
    input_width: int
    input_height: int
    name: str

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network's input."""
        return self.input_width, self.input_height

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the picture in one of the network's input, across and down."""
        return self.width / self.input_width, self.height / self.input_height

    def to_input(self, boxes: Tensor) -> Tensor:
        """Boxes of the picture in pixels of the network's input."""
        return geometry.scale(boxes, self.input_width / self.width, self.input_height / self.height)

    def to_picture(self, boxes: Tensor) -> Tensor:
        """Boxes of the network's input in pixels of the picture, clipped to it."""
        scaled = geometry.scale(boxes, *self.scale)
        return geometry.clip(scaled, self.width, self.height)


def inside(encoding: Encoding, boxes: Tensor) -> Tensor:
    """A user's boxes ``(N, 4)`` in pixels of the picture, on the model's device.

    Raises:
        UserError: another shape, or a box that is inside out or leaves the picture.
    """
    if boxes.numel() == 0:
        boxes = boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise UserError(f"{encoding.name}: boxes have the shape (N, 4), not {tuple(boxes.shape)}")
    boxes = boxes.to(encoding.maps[0].device, torch.float32)
    clipped = geometry.clip(boxes, encoding.width, encoding.height)
    good = clipped.isclose(boxes, rtol=0, atol=1e-3).all(dim=1) & (boxes[:, 2:] >= boxes[:, :2]).all(dim=1)
    if bad := (~good).nonzero().flatten().tolist():
        box = [round(v, 2) for v in boxes[bad[0]].tolist()]
        size = f"{encoding.width} x {encoding.height}"
        raise UserError(f"{encoding.name}: box {bad[0]} {box} is inside out or leaves the {size} picture")
    return clipped
