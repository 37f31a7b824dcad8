"""Training images as a captioner sees them, with their captions: for what is trained beside the captioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.configs.captioner import CaptionerConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import Bundle
from saywhere.models.captioner import bind
from saywhere.models.encoding import Encoding
from saywhere.training.progress import track

LEAST_DEVIATION = 0.1
"""Of a feature, in units of the median feature's; a feature that hardly ever moves has no large weight."""
HELD_OUT = 20
"""One image of so many does not teach, but tells what was learnt."""
LEAST = 40
"""Images that are needed."""
LONGEST = 255
"""Words of a sentence that is stored."""
TOGETHER = 16
"""Images that pass through the network together."""


@dataclass(frozen=True, eq=False)
class Captioned:
    """Images and their captions.

    Attributes:
        embeddings: ``(N, F)`` of the captioner.
        sentences: of each image the token ids of its sentences, one or more.
        skipped: why images were left out.
    """

    embeddings: np.ndarray
    sentences: list[list[list[int]]]
    skipped: tuple[str, ...] = ()


def own_captioner(folder: str | Path) -> tuple[Bundle, CaptionerConfig]:
    """Return a user's model with a captioner of images, to which something is to be added.

    Raises:
        UserError: there is no such model, it comes with saywhere, or it has no such captioner.
    """
    bundle = Bundle.read_own(folder)
    config = bundle.configs.get("captioner")
    if not isinstance(config, CaptionerConfig) or config.describe_boxes:
        raise UserError(f"{folder} has no captioner of images, but {', '.join(bundle.configs)}")
    if len(bundle.vocabularies["captioner"]) > (most := torch.iinfo(torch.int16).max):
        raise UserError(f"{folder}: words are stored for vocabularies of at most {most}")
    return bundle, config


def embed(bundle: Bundle, sets: Sequence[Sequence[Sample]], device: str | None) -> Captioned:
    """Return images that have sentences of at least a word and no more words than a caption may have.

    A progress bar is shown.

    Args:
        bundle: see :func:`own_captioner`.
        sets: images with sentences, of one data set or several.
        device: where the model runs; the best there is if None.

    Raises:
        UserError: too few of them have such sentences and can be read.
    """
    model = load(bundle.folder, device, options={"captioner.ngrams.weight": 0.0})
    captioner = model.require("captioner", "caption images")
    longest = min(captioner.config.decoding.max_words, LONGEST)
    embeddings, sentences, skipped = list[np.ndarray](), list[list[list[int]]](), list[str]()
    waiting, samples = list[Encoding](), list(chain.from_iterable(sets))

    def passed() -> None:
        if waiting:
            embeddings.append(np.asarray(bind(captioner, waiting).embeddings))
            waiting.clear()

    with track("images", len(samples)) as progress:
        for sample in samples:
            progress.advance(1)
            coded = [captioner.vocabulary.encode(text) for text in sample.sentences]
            if not (fitting := [ids for ids in coded if 0 < len(ids) <= longest]):
                if coded:
                    skipped.append(f"{sample.image}: no sentence has 1 to {longest} words")
                continue
            try:
                waiting.append(model.encode(sample.image))
            except ImageError as error:
                skipped.append(str(error))
                continue
            sentences.append(fitting)
            if len(waiting) == TOGETHER:
                passed()
        passed()
    if len(sentences) < LEAST:
        raise UserError(f"{LEAST} images with sentences are needed, and {len(sentences)} can be used")
    return Captioned(np.concatenate(embeddings), sentences, tuple(skipped))


def is_held_out(count: int) -> np.ndarray:
    """Return which of ``count`` images ``(count,)`` do not teach, but tell what was learnt."""
    return np.arange(count) % HELD_OUT == 0


class Standardised(nn.Module):
    """Give each feature the mean 0 and the deviation 1 that it has over some images.

    Args:
        embeddings: ``(N, F)`` of them.
    """

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        deviation = embeddings.std(dim=0)
        self.mean = embeddings.mean(dim=0)
        self.deviation = torch.maximum(deviation, LEAST_DEVIATION * deviation.median()).clamp(min=1e-6)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return embeddings ``(N, F)`` standardised."""
        return (embeddings - self.mean) / self.deviation

    @torch.no_grad()
    def folded(self, layer: nn.Linear, scale: float = 1.0) -> nn.Linear:
        """Return the layer that says of embeddings as they are what ``layer`` says of standardised ones.

        Args:
            layer: of F features.
            scale: what it says is multiplied by this.
        """
        made = nn.Linear(layer.in_features, layer.out_features)
        made.weight.copy_(scale * layer.weight / self.deviation)
        made.bias.copy_(scale * layer.bias - made.weight @ self.mean)
        return made
