"""A model that needs no weights: its answers follow from the size and the colours of the picture."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere.images import Picture, Preprocess
from saywhere.regions import Regions


class StubModel:
    """Two regions a picture (or the given boxes): the whole picture and its left half."""

    def __init__(self) -> None:
        self.preprocess = Preprocess(512, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.batches: list[int] = []
        self.options: set[tuple[int | None, float | None]] = set()

    def describe(
        self,
        images: list[Picture],
        boxes: list[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]:
        self.batches.append(len(images))
        self.options.add((top, threshold))
        given = [None] * len(images) if boxes is None else boxes
        return [self._one(image, chosen)[:top] for image, chosen in zip(images, given, strict=True)]

    def _one(self, image: Picture, boxes: Tensor | None) -> Regions:
        w, h = image.width, image.height
        if boxes is None:
            boxes = torch.tensor([[0, 0, w, h], [0, 0, w / 2, h]], dtype=torch.float32)
        red = image.pixels.getpixel((0, 0))[0]
        captions = tuple(f"thing {number} in {red}" for number in range(len(boxes)))
        return Regions(w, h, boxes, torch.linspace(0.9, 0.2, len(boxes)), captions)
