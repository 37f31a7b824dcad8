"""How the Region RNN is trained: crops go through the frozen backbone once, the decoder learns from their features.

The features of crops are on disk in chunks, each named by a hash of all that it depends on, so that a run that was
stopped is resumed at the first chunk that is missing, and another seed or another command finds them.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import open_image
from saywhere.networks.region_rnn import RegionRnn
from saywhere.text import pad
from saywhere.training.cache import HALF_MAX, file_digest
from saywhere.training.optimizers import learning_rate_factor
from saywhere.training.precision import explain_precision

CHUNK = 512
"""Crops of one file."""

AT_ONCE = 8
"""Crops of one pass: more of them leave a processor's caches."""


@dataclass(frozen=True)
class Crop:
    """A box of an image file: ``x1 y1 x2 y2`` in its pixels."""

    image: Path
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class FitConfig:
    """Say how the decoder of a Region RNN is trained (AdamW, a cosine after a warm-up).

    Attributes:
        epochs: at most this many passes over the crops; the weights of the best validation loss are kept.
        batch_size: crops a step.
        lr, weight_decay: of AdamW.
        warmup: steps over which the learning rate grows from 0.
        clip: largest norm of the gradient.
    """

    epochs: int = 8
    batch_size: int = 128
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 100
    clip: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "clip"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "warmup"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, but is {getattr(self, name)}")


def crop_features(
    root: Path,
    network: RegionRnn,
    crops: Sequence[Crop],
    half: bool = False,
    done: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """Return features ``(N, feature_size)`` float16 of crops; those that are in files below ``root`` are read.

    Args:
        root: folder of all caches.
        network: its backbone and the size of its crops count.
        crops: in any order; an image is opened once for neighbouring crops of it.
        half: compute in bfloat16, which processors with such instructions do several times faster; the features agree
            with those of float32 to a cosine of 0.9997.
        done: called with the number of further crops that are ready.

    Raises:
        ImageError: an image cannot be read.
    """
    folder = root / _network_key(network, half)
    parts: list[Tensor] = []
    for start in range(0, len(crops), CHUNK):
        chunk = crops[start : start + CHUNK]
        path = folder / f"{_crops_key(chunk)}.npy"
        values = _read(path, (len(chunk), network.feature_size))
        if values is None:
            values = _compute(network, chunk, half)
            write_atomically(path, lambda stream, values=values: np.save(stream, values))
        parts.append(torch.from_numpy(values))
        done(len(chunk))
    return torch.cat(parts) if parts else torch.zeros(0, network.feature_size, dtype=torch.float16)


def _network_key(network: RegionRnn, half: bool) -> str:
    config = network.config
    about = (config.trunk.backbone, config.trunk.strides, config.side, config.grid, half, network.preprocess)
    digest = hashlib.sha256(f"1 {about}".encode())
    for key, tensor in sorted(network.trunk.backbone.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:20]


def _crops_key(crops: Sequence[Crop]) -> str:
    digest = hashlib.sha256()
    for crop in crops:
        digest.update(f"{crop.image.resolve()} {file_digest(crop.image)} {crop.box}\n".encode())
    return digest.hexdigest()[:32]


def _read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The array in a file; None if there is none, or not a whole one."""
    try:
        values = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape == shape and values.dtype == np.float16 else None


def _compute(network: RegionRnn, crops: Sequence[Crop], half: bool) -> np.ndarray:
    network.eval()
    layout = torch.channels_last if half else torch.contiguous_format
    network.trunk.backbone.to(memory_format=layout)
    pixels: list[Tensor] = []
    for image, several in groupby(crops, key=lambda crop: crop.image):
        boxes = torch.tensor([crop.box for crop in several])
        pixels += network.crop(open_image(image), boxes).unbind()
    parts: list[Tensor] = []
    with torch.inference_mode(), torch.autocast(network.device.type, torch.bfloat16, enabled=half):
        for start in range(0, len(pixels), AT_ONCE):
            batch = torch.stack(pixels[start : start + AT_ONCE]).to(network.device).contiguous(memory_format=layout)
            parts.append(network.pool(batch).float().clamp(-HALF_MAX, HALF_MAX).half().cpu())
    return torch.cat(parts).numpy()


@dataclass(frozen=True, eq=False)
class LabelledCrops:
    """Hold crops to learn from: ``features (N, feature_size)``, and for each its phrases, one or more."""

    features: Tensor
    phrases: Sequence[Sequence[str]]

    def token_ids(self, network: RegionRnn, rows: Sequence[int], random: np.random.Generator | None) -> Tensor:
        """Return token ids ``(N, T)`` of one phrase for each of ``rows``: a random one, or the first."""
        several = [self.phrases[row] for row in rows]
        chosen = [each[int(random.integers(len(each))) if random else 0] for each in several]
        return torch.from_numpy(pad([network.vocabulary.encode(phrase) for phrase in chosen]))


def fit(
    network: RegionRnn,
    train: LabelledCrops,
    validation: LabelledCrops,
    config: FitConfig,
    seed: int,
    half: bool = False,
    report: Callable[[int, float, float], None] = lambda epoch, train, validation: None,
) -> list[float]:
    """Train all but the backbone; the network ends in eval mode with the weights of the best validation loss.

    The same seed gives the same weights.

    Args:
        network: is changed.
        train, validation: crops with phrases; of validation the first phrase of each counts.
        config: how.
        seed: of the order, the phrases and the dropout.
        half: multiply in bfloat16.
        report: called with epoch (from 1), mean training loss and validation loss a phrase, in nats.

    Returns:
        the validation loss after each epoch.

    Raises:
        UserError: the processor cannot compute in bfloat16.
    """
    parameters = [*network.layers.parameters(), *network.decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(train.phrases) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, config.warmup, "cosine")
    )
    losses: list[float] = []
    best = copy.deepcopy(network.state_dict())
    for epoch in range(config.epochs):
        random = np.random.default_rng((seed, epoch))
        torch.manual_seed(int(random.integers(1 << 62)))
        network.train()
        order, total = random.permutation(len(train.phrases)).tolist(), 0.0
        for start in range(0, len(order), config.batch_size):
            rows = order[start : start + config.batch_size]
            with explain_precision("half=false"), torch.autocast(network.device.type, torch.bfloat16, enabled=half):
                loss = _loss(network, train, rows, random)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        losses.append(validate(network, validation, config.batch_size))
        if losses[-1] == min(losses):
            best = copy.deepcopy(network.state_dict())
        report(epoch + 1, total / max(len(order), 1), losses[-1])
    network.load_state_dict(best)
    network.eval()
    return losses


@torch.no_grad()
def validate(network: RegionRnn, crops: LabelledCrops, batch_size: int) -> float:
    """Return the mean loss of the first phrase of each crop, in nats; the network ends in eval mode."""
    network.eval()
    rows = list(range(len(crops.phrases)))
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return sum(float(_loss(network, crops, batch, None)) * len(batch) for batch in batches) / max(len(rows), 1)


def _loss(network: RegionRnn, crops: LabelledCrops, rows: Sequence[int], random: np.random.Generator | None) -> Tensor:
    """Cross entropy of all words of the phrases, by phrase."""
    features = crops.features[torch.tensor(rows)].to(network.device).float()
    logits, token_ids = network(features, crops.token_ids(network, rows, random).to(network.device))
    return functional.cross_entropy(logits.float(), token_ids, reduction="sum") / len(rows)
