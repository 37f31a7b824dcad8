"""Training data that an aligner infers: pieces of sentences on areas of pictures (Alignments, section 3.1.4)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from saywhere.files import write_text
from saywhere.images import Picture
from saywhere.models.aligner import Aligner
from saywhere.regions import Regions


class Snippets:
    """An aligner as one that describes: what it says of a picture are pieces of the sentences that people wrote.

    Args:
        aligner: the model.
        sentences: of each picture, by the name it is opened with.
        beta: affinity of neighbouring words to the same area (Eq. 12); the model's own if None.
    """

    def __init__(self, aligner: Aligner, sentences: Mapping[str, Sequence[str]], beta: float | None = None):
        self.preprocess = aligner.preprocess
        self._aligner, self._sentences = aligner, sentences
        self._beta = aligner.config.beta if beta is None else beta

    def describe(
        self,
        images: list[Picture],
        boxes: list[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]:
        """The snippets of each picture, sentence by sentence; there is nothing to choose by the other arguments."""
        found: list[Regions] = []
        for picture, seen in zip(images, self._aligner.embed_pictures(images), strict=True):
            aligned = [self._aligner.align_vectors(seen, text, self._beta) for text in self._sentences[picture.name]]
            pairs = [pair for alignment in aligned for pair in alignment.snippets()]
            corners = torch.tensor([box for box, _ in pairs]).reshape(-1, 4)
            words = tuple(text for _, text in pairs)
            found.append(Regions(picture.width, picture.height, corners, captions=words, image=picture.name))
        return found


def write_snippets(rows: Iterable[tuple[Path, str, Regions]], file: Path) -> int:
    """Write a data set in lines of JSON (docs/data.md) that :func:`saywhere.data.read` reads.

    Args:
        rows: of each picture its file, its split and its snippets.
        file: ends with ``.jsonl``; pictures are named by the way to them from its folder.

    Returns:
        how many snippets were written.
    """
    lines, count = [], 0
    for image, split, regions in rows:
        pairs = zip(regions.boxes.tolist(), regions.captions or (), strict=True)
        snippets = [{"box": box, "phrase": words} for box, words in pairs]
        name = Path(os.path.relpath(image.resolve(), file.resolve().parent)).as_posix()
        size = {"width": regions.width, "height": regions.height}
        lines.append(json.dumps({"image": name, "split": split, **size, "regions": snippets}, ensure_ascii=False))
        count += len(snippets)
    write_text(file, "".join(line + "\n" for line in lines))
    return count
