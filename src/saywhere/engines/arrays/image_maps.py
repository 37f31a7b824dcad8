"""The graph's maps of one image, and features of regions that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from saywhere.engines.arrays.pooling import Pyramid, box_means, grid_boxes, grid_means, place
from saywhere.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """The graph's outputs for one image, and what is computed of them once.

    Attributes:
        outputs: by name, each with the batch in front.
        strides: of the maps.
        input_size: width and height of the network's input.
    """

    outputs: Mapping[str, np.ndarray]
    strides: tuple[int, ...]
    input_size: tuple[int, int]

    def output(self, name: str) -> np.ndarray:
        """Return an output without its batch; ``UserError`` if the graph has none of this name."""
        if name not in self.outputs:
            raise UserError(f"the model's graph has no {name}: an option is not what it was when it was exported")
        return self.outputs[name][0]

    @cached_property
    def regions(self) -> Pyramid:
        """The maps that regions are pooled from."""
        return Pyramid([self.output(f"region{stride}") for stride in self.strides], self.strides)

    def sources(self, levels: Sequence[int], head: bool) -> list[tuple[np.ndarray, int]]:
        """Return the maps ``(C, H, W)`` that region features are averaged from, with their strides."""
        found = [(self.output(f"map{stride}"), stride) for stride in levels]
        return [*found, (self.output("head"), self.strides[-1])] if head else found


def box_features(maps: ImageMaps, boxes: np.ndarray, levels: Sequence[int], head: bool) -> np.ndarray:
    """Return the means of an image's maps over boxes, and where the boxes are: ``(R, D)``."""
    means = [box_means(source, boxes, stride) for source, stride in maps.sources(levels, head)]
    return np.concatenate((*means, place(boxes, *maps.input_size)), axis=1)


def context_features(
    maps: Sequence[ImageMaps],
    boxes: Sequence[np.ndarray],
    levels: Sequence[int],
    embeddings: Sequence[np.ndarray] | None = None,
    context: bool = True,
) -> np.ndarray:
    """Return features of all images' boxes in their images, one after the other: ``(N, D)``.

    Args:
        maps: of each image.
        boxes: of each image, in pixels of the network's input.
        levels: strides of the maps that are averaged over a box, beside the last layer.
        embeddings: of each image's boxes, by the dense captioner; they come last.
        context: the means of the last layer over the whole image come after the features of the box.
    """
    rows: list[np.ndarray] = []
    for number, (image, own) in enumerate(zip(maps, boxes, strict=True)):
        parts = [box_features(image, own, levels, True)]
        if context:
            whole = image.output("head").mean(axis=(1, 2))
            parts.append(np.broadcast_to(whole, (len(own), len(whole))))
        if embeddings is not None:
            parts.append(embeddings[number])
        rows.append(np.concatenate(parts, axis=1))
    return np.concatenate(rows)


def grid_features(maps: ImageMaps, cells: int, levels: Sequence[int], head: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of an image's maps over the cells of a grid, ``(cells * cells, D)``, and their boxes."""
    boxes = grid_boxes(cells, *maps.input_size)
    means = [grid_means(source, cells) for source, _ in maps.sources(levels, head)]
    return np.concatenate((*means, place(boxes, *maps.input_size)), axis=1), boxes


def require_size(features: np.ndarray, size: int) -> None:
    """Refuse features ``(R, D)`` of another size than the weights take; ``UserError``."""
    if features.shape[1] != size:
        raise UserError(
            f"the weights take {size} features of a region, and the options give {features.shape[1]}: "
            "levels, head or context are not those of training"
        )


def whole_image(image: ImageMaps) -> np.ndarray:
    """Return the box ``(1, 4)`` of all of an image, in pixels of the network's input."""
    return np.array([[0, 0, *image.input_size]], np.float32)
