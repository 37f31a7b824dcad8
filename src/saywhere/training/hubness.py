"""Hubness of images and texts, fitted by ``saywhere calibrate`` (:class:`saywhere.engines.engine.Hubness`).

The bank is drawn from the training data. The hubness of an image is its similarity to the bank's texts, ``T log mean
over texts of exp(S / T)``, as in normalisation by the inverted softmax (Smith et al., 2017). A bank is too large to
ship, so typical vectors are trained to give the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.models.aligner import similarity_matrix
from saywhere.models.model import Model
from saywhere.networks.aligner.network import Hubs
from saywhere.options import dataclass
from saywhere.text import tokenize
from saywhere.training.calibration import Fitted
from saywhere.training.loop import descend
from saywhere.training.progress import encode_each, track

HUBS = 512
"""Number of typical texts, and of typical images."""
BANK_IMAGES, BANK_TEXTS = 1500, 3000
"""Maximum images and texts of each data set in the bank."""
SENTENCES = 3
"""Maximum sentences per image in the fit."""
SHARPNESS = 0.37
"""Temperature in standard deviations of the similarities; docs/experiments.md compares others."""
TOGETHER = 500
"""Images or texts compared with the bank at a time."""
LEAST = 32
"""Minimum number of images for a fit."""
HELD_OUT = 10
"""One image or text in this many is held out to test the fit."""
EPOCHS, BATCH, RATE = 12, 128, 0.02


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embedded images and sentences of data sets, one set after the other.

    Attributes:
        images: one ``(R, D)`` per image, the vectors of its regions.
        texts: one ``(T, D)`` per sentence, the weighted vectors of its words.
        owner: ``(L,)`` index of each sentence's image.
        starts: index of the first image of each data set.
    """

    images: list[np.ndarray]
    texts: list[np.ndarray]
    owner: np.ndarray
    starts: list[int]


def embed(model: Model, sets: Sequence[Sequence[Sample]]) -> Embedded:
    """Embed the images that have sentences, and the sentences; unreadable images are reported.

    Shows a progress bar for each set.
    """
    images, sentences = list[np.ndarray](), list[tuple[int, str]]()
    starts = list[int]()
    for samples in sets:
        starts.append(len(images))
        for sample, encoding in encode_each(model, [s for s in samples if any(map(tokenize, s.sentences))], "images"):
            texts = [text for text in sample.sentences if tokenize(text)]
            sentences += [(len(images), text) for text in texts[:SENTENCES]]
            images.append(model.embed(encoding).vectors)
    words = [text.vectors for text in model.embed_text([text for _, text in sentences])]
    return Embedded(images, words, np.array([row for row, _ in sentences], np.int64), starts)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Training data of the typical vectors.

    Attributes:
        items: N images as region vectors ``(R, D)``, or texts as sums of word vectors ``(1, D)``.
        hubness: ``(N,)`` similarity of each to the bank.
        bank: ``(B, D)``, one vector per member, from which typical vectors are initialised.
    """

    items: list[np.ndarray]
    hubness: np.ndarray
    bank: np.ndarray


def prepare(embedded: Embedded, temperature: float) -> tuple[Lesson, Lesson]:
    """Return the training data of typical texts and of typical images; pairs of the same image are left out.

    The hubness of texts is centred at 0, so that a similarity is positive if image and text fit better than others.
    Each data set has the same share of the bank.
    """
    images, texts, owner = embedded.images, embedded.texts, embedded.owner
    some_images, some_texts = _bank(embedded)
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


def _bank(embedded: Embedded) -> tuple[np.ndarray, np.ndarray]:
    """Draw the images and the texts of the bank, as many of each data set; return their indices."""
    generator, ends = np.random.default_rng(0), [*embedded.starts[1:], len(embedded.images)]
    of_set = np.searchsorted(ends, embedded.owner, side="right")
    images = [
        start + generator.permutation(end - start)[:BANK_IMAGES]
        for start, end in zip(embedded.starts, ends, strict=True)
    ]
    texts = [generator.permutation(np.flatnonzero(of_set == number))[:BANK_TEXTS] for number in range(len(ends))]
    return np.concatenate(images), np.concatenate(texts)


def soft_maximum(similarity: np.ndarray, same: np.ndarray, temperature: float) -> np.ndarray:
    """Return ``T log mean exp(S / T)`` ``(N,)`` of similarities ``(N, B)`` to the bank, ignoring the ``same`` ones."""
    logits = np.where(same, -np.inf, similarity / temperature)
    top = logits.max(axis=1, keepdims=True)
    return temperature * (top[:, 0] + np.log(np.exp(logits - top).sum(axis=1) / (~same).sum(axis=1)))


@dataclass(frozen=True, eq=False)
class Fit:
    """Typical vectors, and how well they approximate the bank.

    Attributes:
        layer: vectors and constants, divided by the temperature.
        temperature: of the log-sum-exp.
        error, spread: on held-out items (one in ten), the root mean squared error, and the standard deviation of the
            bank's values.
    """

    layer: nn.Linear
    temperature: float
    error: float
    spread: float


def fit(lesson: Lesson, temperature: float, count: int, title: str) -> Fit:
    """Fit ``count`` typical vectors and constants that approximate the bank; shows a progress bar.

    ``temperature`` is the one used with the bank, and the unit of all that is trained.
    """
    generator = torch.Generator().manual_seed(0)
    items = pad_sequence([torch.from_numpy(np.asarray(item)) for item in lesson.items], batch_first=True)
    real = torch.tensor([len(item) for item in lesson.items])[:, None] > torch.arange(items.shape[1])
    wanted = torch.from_numpy(lesson.hubness / temperature).float()
    held_out = torch.arange(len(items)) % HELD_OUT == 0
    teaching, others = torch.nonzero(~held_out)[:, 0], torch.nonzero(held_out)[:, 0]
    drawn = np.random.default_rng(0).choice(len(lesson.bank), count, replace=len(lesson.bank) < count)
    hubs = _Typical(torch.from_numpy(lesson.bank[drawn] / np.float32(temperature)))

    def hubness(rows: Tensor) -> Tensor:
        return hubs(items[rows], real[rows])

    with torch.no_grad():
        some = teaching[torch.randperm(len(teaching), generator=generator)[: 4 * BATCH]]
        hubs.shift.copy_((wanted[some] - hubness(some)).mean())
    optimizer = torch.optim.Adam(hubs.groups())
    orders = [torch.randperm(len(teaching), generator=generator) for _ in range(EPOCHS)]
    batches = [teaching[rows] for order in orders for rows in order.split(BATCH)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    descend(
        title, batches, lambda rows: functional.mse_loss(hubness(rows), wanted[rows]), optimizer, schedule,
        lambda loss: f"off by {temperature * loss**0.5:.3g}",
    )  # fmt: skip
    with torch.no_grad():
        found = torch.cat([hubness(rows) for rows in others.split(BATCH)])
        error = temperature * float((found - wanted[others]).square().mean().sqrt())
    layer, scale = hubs.layer()
    return Fit(layer, temperature * scale, error, temperature * float(wanted[others].std()))


class _Typical(nn.Module):
    """Typical vectors and constants that approximate a bank: a scaled log-sum-exp of products, and a shift.

    ``vectors (count, D)`` are the initial ones, divided by the temperature.
    """

    def __init__(self, vectors: Tensor):
        super().__init__()
        self.spread = float(vectors.std())
        self.vectors, self.constants = nn.Parameter(vectors.clone()), nn.Parameter(torch.zeros(len(vectors)))
        self.shift, self.log_scale = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, items: Tensor, real: Tensor) -> Tensor:
        """Return the hubness ``(N,)`` of items ``(N, L, D)``, of whose vectors those are used that are ``real``."""
        products = (items @ self.vectors.T).masked_fill(~real[..., None], -torch.inf).amax(dim=1)
        scale = self.log_scale.exp()
        return scale * torch.logsumexp((products + self.constants) / scale, dim=1) + self.shift

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups of parameters."""
        return [
            {"params": [self.vectors], "lr": RATE * self.spread},
            {"params": [self.constants], "lr": 2 * RATE},
            {"params": [self.shift, self.log_scale], "lr": RATE / 2},
        ]

    @torch.no_grad()
    def layer(self) -> tuple[nn.Linear, float]:
        """Return a layer with vectors and constants, divided by the scale, and the scale."""
        scale, layer = float(self.log_scale.exp()), nn.Linear(self.vectors.shape[1], len(self.vectors))
        layer.weight.copy_(self.vectors / scale)
        layer.bias.copy_((self.constants + self.shift) / scale)
        return layer, scale


def fit_hubness(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the hubness of images and texts for a model's aligner.

    Args:
        sets: images with sentences, of one or several data sets.

    Raises:
        UserError: the aligner does not score by Eq. 8, too few images with sentences are readable, or the fit is no
            better than a constant.
    """
    config = model.require("aligner", "be calibrated").config
    if config.score != "max":
        raise UserError(f"{model.name}: its aligner has the score {config.score}, and hubness goes with max only")
    embedded = embed(model, sets)
    if len(embedded.images) < LEAST:
        raise UserError(f"calibration needs {LEAST} images with sentences, and {len(embedded.images)} can be read")
    temperature = SHARPNESS * spread(embedded)
    if not temperature:
        raise UserError(f"{model.name}: all its similarities are the same")
    of_images, of_texts = prepare(embedded, temperature)
    texts = fit(of_images, temperature, HUBS, "typical texts")
    images = fit(of_texts, temperature, HUBS, "typical images")
    for what, found in (("images", texts), ("texts", images)):
        if not found.error < found.spread:
            raise UserError(
                f"the hubness of {what} could not be learnt: off by {found.error:.3g} where it varies by "
                f"{found.spread:.3g}; give it more images with sentences"
            )
    hubs = Hubs(config.embed_dim, HUBS)
    hubs.texts, hubs.images = texts.layer, images.layer
    hubs.temperatures.copy_(torch.tensor((texts.temperature, images.temperature)))
    more = (
        f"{HUBS} typical texts and as many typical images tell it, learnt from {len(embedded.images):,} images and "
        f"{len(embedded.texts):,} sentences. On a tenth of them, which did not teach, it is off by {texts.error:.3g} "
        f"where it varies by {texts.spread:.3g}, and by {images.error:.3g} of {images.spread:.3g}."
    )
    return Fitted({}, f"similarity: hubness of images and texts, fitted to {source}", more, hubs=hubs)


def spread(embedded: Embedded) -> float:
    """Return the standard deviation of similarities between random images and random sentences of all sets."""
    generator, both = np.random.default_rng(0), (embedded.images, embedded.texts)
    images, texts = ([some[i] for i in generator.permutation(len(some))[:300]] for some in both)
    return float(similarity_matrix(images, texts).std())
