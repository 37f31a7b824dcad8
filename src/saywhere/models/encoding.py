"""A picture after the convolutional network, and what comes of its regions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from saywhere import boxes as geometry


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

    def to_input(self, boxes: Tensor) -> Tensor:
        """Boxes of the picture in pixels of the network's input."""
        return geometry.scale(boxes, self.input_width / self.width, self.input_height / self.height)

    def to_picture(self, boxes: Tensor) -> Tensor:
        """Boxes of the network's input in pixels of the picture, clipped to it."""
        scaled = geometry.scale(boxes, self.width / self.input_width, self.height / self.input_height)
        return geometry.clip(scaled, self.width, self.height)
