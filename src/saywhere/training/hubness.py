"""Hubness of images and texts: what ``saywhere calibrate-similarity`` fits (:mod:`saywhere.engines.arrays.hubness`).

The bank is drawn from the training data. How similar an image is to the bank's texts, ``T log mean over texts of
exp(S / T)``, is what counts where the bank is normalised by the inverted softmax (Smith et al., 2017). A bank is too
large to ship, so typical vectors learn to say the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from saywhere.configs.aligner import AlignerConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.model import Model
from saywhere.models.similarity import similarity_matrix
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Hubs
from saywhere.training.card import replace_section
from saywhere.training.progress import track

HUBS = 512
"""Typical texts, and typical images."""
BANK_IMAGES, BANK_TEXTS = 1500, 3000
"""Of each data set in the bank, at most."""
SENTENCES = 3
"""Of an image that teach what images at large are similar to, at most."""
SHARPNESS = 1.4
"""The temperature in units of that by which the aligner was trained: from 1.1 to 1.7 dev hardly changes."""
TOGETHER = 500
"""Images, or texts, that are compared with the bank together."""
LEAST = 32
"""Images that a fit needs."""
EPOCHS, BATCH, RATE = 12, 128, 0.02
HEADING = "## Hubness"


@dataclass(frozen=True, eq=False)
class Embedded:
    """Hold images and sentences of data sets, the sets one after the other.

    Attributes:
        images: of each the vectors ``(R, D)`` of its regions.
        texts: of each sentence the weighted vectors ``(T, D)`` of its words.
        owner: ``(L,)`` of each sentence the number of its image.
        starts: of each data set the number of its first image.
    """

    images: list[np.ndarray]
    texts: list[np.ndarray]
    owner: np.ndarray
    starts: list[int]


def embed(model: Model, sets: Sequence[Sequence[Sample]]) -> Embedded:
    """Return the vectors of images that have sentences, and of the sentences; images that cannot be read are left out.

    A progress bar is shown.
    """
    images, sentences, starts = list[np.ndarray](), list[tuple[int, str]](), list[int]()
    with track("images", sum(len(samples) for samples in sets)) as progress:
        for samples in sets:
            starts.append(len(images))
            for sample in samples:
                progress.advance(1)
                try:
                    vectors = model.embed(sample.image).vectors if sample.sentences else None
                except ImageError:
                    continue
                if vectors is not None:
                    sentences += [(len(images), text) for text in sample.sentences[:SENTENCES]]
                    images.append(vectors)
    texts = [text.vectors for text in model.embed_text([text for _, text in sentences])]
    return Embedded(images, texts, np.array([row for row, _ in sentences], np.int64), starts)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Hold what typical vectors learn from.

    Attributes:
        items: N images, by the vectors ``(R, D)`` of their regions, or texts, by the sum ``(1, D)`` of their words.
        hubness: ``(N,)`` how similar they are to the bank.
        bank: ``(B, D)`` a vector for each of its members, which typical ones begin with.
    """

    items: list[np.ndarray]
    hubness: np.ndarray
    bank: np.ndarray


def prepare(embedded: Embedded, temperature: float, seed: int = 0) -> tuple[Lesson, Lesson]:
    """Return what typical texts and what typical images learn from; a bank is asked but for what is of the same image.

    The hubness of texts is counted from its mean: so that a similarity is above 0 where an image and a text fit each
    other better than others.

    Args:
        embedded: images and sentences; each data set has the same share of the bank.
        temperature: of similarities.
        seed: of the draws.
    """
    generator, images, texts, owner = np.random.default_rng(seed), embedded.images, embedded.texts, embedded.owner
    ends = [*embedded.starts[1:], len(images)]
    of_set = np.searchsorted(ends, owner, side="right")
    some_images = np.concatenate(
        [a + generator.permutation(b - a)[:BANK_IMAGES] for a, b in zip(embedded.starts, ends, strict=True)]
    )
    some_texts = np.concatenate(
        [generator.permutation(np.flatnonzero(of_set == number))[:BANK_TEXTS] for number in range(len(ends))]
    )
    bank_images, bank_texts = [images[i] for i in some_images], [texts[i] for i in some_texts]
    of_images, of_texts = [], []
    with track("similarities", len(images) + len(texts)) as progress:
        for rows in np.array_split(np.arange(len(images)), -(-len(images) // TOGETHER)):
            similarity = similarity_matrix([images[i] for i in rows], bank_texts)
            of_images.append(soft_maximum(similarity, rows[:, None] == owner[some_texts], temperature))
            progress.advance(len(rows))
        for rows in np.array_split(np.arange(len(texts)), -(-len(texts) // TOGETHER)):
            similarity = similarity_matrix(bank_images, [texts[i] for i in rows]).T
            of_texts.append(soft_maximum(similarity, owner[rows][:, None] == some_images, temperature))
            progress.advance(len(rows))
    of_text = np.concatenate(of_texts)
    sums = [text.sum(axis=0, keepdims=True) for text in texts]
    return (
        Lesson(images, np.concatenate(of_images), np.concatenate([sums[i] for i in some_texts])),
        Lesson(sums, of_text - of_text.mean(), np.stack([image[0] for image in bank_images])),
    )


def soft_maximum(similarity: np.ndarray, same: np.ndarray, temperature: float) -> np.ndarray:
    """Return ``T log mean exp(S / T)`` ``(N,)`` of similarities ``(N, B)`` to the bank, but the ``same`` ones."""
    logits = np.where(same, -np.inf, similarity / temperature)
    top = logits.max(axis=1, keepdims=True)
    return temperature * (top[:, 0] + np.log(np.exp(logits - top).sum(axis=1) / (~same).sum(axis=1)))


def fit(lesson: Lesson, temperature: float, count: int, title: str, seed: int = 0) -> tuple[nn.Linear, float]:
    """Return typical vectors and constants that say what the bank says, and their temperature.

    Args:
        lesson: what they learn from.
        temperature: that the bank was asked with.
        count: J, of typical vectors.
        title: of the progress bar.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    items = pad_sequence([torch.from_numpy(np.asarray(item)) for item in lesson.items], batch_first=True)
    real = torch.tensor([len(item) for item in lesson.items])[:, None] > torch.arange(items.shape[1])
    wanted = torch.from_numpy(lesson.hubness).float()
    begin = torch.from_numpy(lesson.bank[_draw(len(lesson.bank), count, seed)])
    vectors, constants = nn.Parameter(begin.clone()), nn.Parameter(torch.zeros(count))
    shift, scale = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(float(temperature)))

    def hubness(rows: Tensor) -> Tensor:
        products = (items[rows] @ vectors.T).masked_fill(~real[rows][..., None], -torch.inf).amax(dim=1)
        return scale * torch.logsumexp((products + constants) / scale, dim=1) + shift

    with torch.no_grad():
        some = torch.randperm(len(items), generator=generator)[: 4 * BATCH]
        shift.copy_((wanted[some] - hubness(some)).mean())
    groups = [{"params": [vectors], "lr": RATE * float(begin.std())}, {"params": [constants], "lr": 1.0},
              {"params": [shift, scale], "lr": 0.3}]  # fmt: skip
    optimizer = torch.optim.Adam(groups)
    steps = EPOCHS * -(-len(items) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    with track(title, steps) as progress:
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(items), generator=generator).split(BATCH):
                loss = functional.mse_loss(hubness(rows), wanted[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.advance(1, f"off by {float(loss.detach()) ** 0.5:.2f}")
    layer = nn.Linear(vectors.shape[1], count)
    with torch.no_grad():
        layer.weight.copy_(vectors / scale)
        layer.bias.copy_((constants + shift) / scale)
    return layer, float(scale.detach())


def _draw(total: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(total, count, replace=total < count)


def calibrate(
    folder: str | Path, sets: Sequence[Sequence[Sample]], source: str, device: str | None = None, hubs: int = HUBS
) -> Hubs:
    """Fit the hubness of images and texts for the aligner in a folder, and write it to the folder.

    Args:
        folder: of a model with an aligner whose score is Eq. 8; its other weights stay as they are.
        sets: images with sentences, of one data set or several.
        source: name of the images, for the card.
        device: where the model runs; the best there is if None.
        hubs: of typical texts, and of typical images.

    Raises:
        UserError: there is no such model, it has no such aligner, or too few images with sentences can be read.
    """
    bundle = Bundle.read(folder)
    config = bundle.configs.get("aligner")
    if not isinstance(config, AlignerConfig):
        raise UserError(
            f"{folder} has no aligner, which compares images with texts; it has {', '.join(bundle.configs)}"
        )
    if config.score != "max":
        raise UserError(f"{folder}: its aligner has the score {config.score}, and hubness goes with max only")
    embedded = embed(load(bundle.folder, device), sets)
    if len(embedded.images) < LEAST:
        raise UserError(f"calibration needs {LEAST} images with sentences, and {len(embedded.images)} can be read")
    temperature = SHARPNESS * math.exp(-float(checkpoint.read_weights(bundle.folder)["aligner.log_scale"]))
    texts, images = prepare(embedded, temperature)
    found = Hubs(config.embed_dim, hubs)
    found.texts, of_images = fit(texts, temperature, hubs, "typical texts")
    found.images, of_texts = fit(images, temperature, hubs, "typical images")
    found.temperatures.copy_(torch.tensor((of_images, of_texts)))
    checkpoint.change_weights(bundle.folder, "aligner.hubs", found.state_dict(), {"aligner.hubs": hubs})
    replace_section(bundle.folder / CARD, HEADING, _section(embedded, hubs, temperature, source))
    return found


def _section(embedded: Embedded, hubs: int, temperature: float, source: str) -> str:
    return f"""What an image has in common with all texts, and a text with all images, is taken off similarities.
{hubs} typical texts and as many typical images tell it, fitted by `saywhere calibrate-similarity` to
{len(embedded.images):,} images and {len(embedded.texts):,} sentences of {source}; temperature {temperature:.3g}.
"""
