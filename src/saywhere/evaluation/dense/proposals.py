"""The boxes that a model is to describe: its own, the true ones, those of a file, or of Selective Search."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saywhere.data import Samples
from saywhere.errors import UserError
from saywhere.evaluation.dense.protocols import CLEAN
from saywhere.evaluation.region_lines import Box, Proposals, RegionLines
from saywhere.evaluation.session import image_name
from saywhere.files import write_atomically
from saywhere.images import ImageError
from saywhere.inference import Source

if TYPE_CHECKING:
    from saywhere.networks.vision.external_proposals import ProposalMethod

EXTERNAL = 300
"""External proposals of an image, at most, as in the paper."""


def write_truth(samples: Samples, root: Path, path: Path) -> None:
    """Write the true boxes of ``samples`` as lines of JSON, a box once for each of its phrases; atomically."""
    folder = root if root.is_dir() else root.parent

    def write(stream: Any) -> None:
        for sample in samples:
            boxes = sample.boxes.tolist()
            pairs = [(box, text) for box, phrases in zip(boxes, sample.phrases, strict=True) for text in phrases]
            row = {"image": image_name(sample.image, folder), "width": sample.width, "height": sample.height}
            row |= {"boxes": [box for box, _ in pairs], "captions": [text for _, text in pairs]}
            stream.write((json.dumps(row) + "\n").encode())

    write_atomically(path, write)


class TrueBoxes(Proposals):
    """The true boxes as proposals: merged as the metric merges them (protocol clean), each once."""

    def __getitem__(self, image: str) -> list[Box]:
        rows = np.array(super().__getitem__(image), dtype=np.float64).reshape(-1, 4)
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in CLEAN.merge(rows)[0].tolist()]


class ExternalBoxes(Mapping[str, Sequence[Box]]):
    """The best ``EXTERNAL`` boxes of a method such as Selective Search, found when they are asked for.

    An image that cannot be read has none; whoever describes it reports that.
    """

    def __init__(self, method: ProposalMethod, sources: Sequence[Source]) -> None:
        self._method = method
        self._files = {source.name: source.path for source in sources}

    def __getitem__(self, image: str) -> list[Box]:
        try:
            found = self._method(self._files[image])[:EXTERNAL]
        except ImageError:
            return []
        return [(x1, y1, x2, y2) for x1, y1, x2, y2 in found.boxes.tolist()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def find_proposals(kind: str, truth: RegionLines, sources: Sequence[Source]) -> Mapping[str, Sequence[Box]] | None:
    """Return the boxes to describe, by name of the image.

    Args:
        kind: ``rpn`` (the model's own: None is returned), ``gt`` (the true ones), a file of lines with boxes, or a
            method of :mod:`saywhere.networks.vision.external_proposals`.
        truth: the true boxes.
        sources: the images.

    Raises:
        UserError: the method is not installed, or the file cannot be read or has none of the images.
    """
    if kind == "rpn":
        return None
    names = {source.name: (source.name, str(source.path)) for source in sources}
    if kind == "gt":
        return TrueBoxes(truth, names)
    if Path(kind).is_file():
        return Proposals(RegionLines(Path(kind), needs=(), several=True), names)
    from saywhere.networks.vision.external_proposals import KINDS, find_proposal_method, is_proposer

    if not is_proposer(kind):
        raise UserError(f"--proposals {kind}: neither rpn, gt nor {KINDS}, and no such file")
    return ExternalBoxes(find_proposal_method(kind), sources)


def proposals_digest(kind: str) -> str:
    """Return what tells these proposals from others: the hash of a file, else the kind."""
    if not Path(kind).is_file():
        return kind
    with open(kind, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
