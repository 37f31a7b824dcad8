"""The baseline of captioning: the sentence of the training picture that looks most alike (Alignments, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.images import Picture
from saywhere.models.captioner import Captioner
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.training import cache

NEAREST = "nearest:"
"""What a model's name begins with that stands for the neighbours as this model's image network sees them."""

AT_ONCE = 64


class NearestNeighbour:
    """Says of a picture what people said first of the training picture whose features are nearest.

    Args:
        captioner: whose image network looks.
        codes: ``(N, D)`` of the training pictures, from :meth:`saywhere.models.captioner.Captioner.codes`.
        sentences: one of each.
    """

    def __init__(self, captioner: Captioner, codes: Tensor, sentences: Sequence[str]):
        if len(codes) != len(sentences) or not sentences:
            raise ValueError(f"{len(codes)} codes and {len(sentences)} sentences")
        self.preprocess = captioner.preprocess
        self._captioner, self._codes, self._sentences = captioner, codes, tuple(sentences)

    @property
    def config(self) -> CaptionerConfig:
        """That of the captioner."""
        return self._captioner.config

    def state_dict(self) -> dict[str, Tensor]:
        """What the answers depend on: the training pictures and the image network."""
        return {**self._captioner.state_dict(), "codes": self._codes}

    @torch.no_grad()
    def caption(self, images: Sequence[Picture], beam: int | None = None) -> list[str]:
        """A sentence for each picture; there is no search, so ``beam`` changes nothing."""
        if not images:
            return []
        encodings = self._captioner.encode(images)
        codes = self._captioner.codes([(e.maps, e.input_width, e.input_height) for e in encodings])
        return [self._sentences[i] for i in torch.cdist(codes, self._codes).argmin(dim=1).tolist()]


@torch.no_grad()
def learn_neighbours(captioner: Captioner, samples: Sequence[Sample], folder: Path) -> NearestNeighbour:
    """The neighbours of training pictures with sentences; the maps of the network are kept in the cache ``folder``.

    Raises:
        UserError: there are no such pictures, or none can be read.
    """
    kept = [sample for sample in samples if sample.sentences]
    if not kept:
        raise UserError("nearest: the training split has no picture with a sentence")
    config, device = captioner.config, captioner.device
    title = "features of the training pictures"
    found = cache.build(
        folder, config.backbone, captioner.backbone, captioner.preprocess, kept, flip=False, device=device, title=title
    )
    good = [i for i in range(len(kept)) if i not in found.damaged]
    if not good:
        raise UserError("nearest: not one training picture can be read")

    def seen(some: Sequence[int]) -> Iterator[tuple[tuple[Tensor, ...], int, int]]:
        for i in some:
            size = captioner.preprocess.size(kept[i].width, kept[i].height)
            yield tuple(level.float().to(device) for level in found.read(i, False)), *size

    codes = [captioner.codes(list(seen(good[at : at + AT_ONCE]))) for at in range(0, len(good), AT_ONCE)]
    return NearestNeighbour(captioner, torch.cat(codes), [kept[i].sentences[0] for i in good])
