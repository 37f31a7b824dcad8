"""How the Region RNN is trained: crops go through the frozen backbone once, the speaker learns from what it gave.

The features of crops lie on disk in chunks, each named by a hash of all that it depends on, so that a run that was
stopped goes on with the first chunk that is missing, and another seed or another command finds them.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import open_picture
from saywhere.models.region_rnn import RegionRnn
from saywhere.text import pad
from saywhere.training.cache import file_digest

CHUNK = 512
"""Crops of one file."""

AT_ONCE = 8
"""Crops of one pass: more of them leave a processor's caches."""


@dataclass(frozen=True)
class Crop:
    """A box of a picture file: ``x1 y1 x2 y2`` in its pixels."""

    image: Path
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class FitConfig:
    """How the speaker of a Region RNN is trained (AdamW, a cosine after a warm-up).

    Attributes:
        epochs: at most so many passes over the crops; the weights of the best validation loss are kept.
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
    model: RegionRnn,
    crops: Sequence[Crop],
    half: bool = False,
    done: Callable[[int], object] = lambda n: None,
) -> Tensor:
    """Features ``(N, feature_size)`` float16 of crops, from the files below ``root`` as far as they are there.

    Args:
        root: folder of all caches.
        model: its backbone and the size of its crops count.
        crops: in any order; those of one picture next to each other cost one reading of it.
        half: compute in bfloat16, which processors with such instructions do several times faster; the features agree
            with those of float32 to a cosine of 0.9997.
        done: is told how many more crops are ready.

    Raises:
        UserError: a picture cannot be read.
    """
    folder = root / _backbone_key(model, half)
    parts: list[Tensor] = []
    for start in range(0, len(crops), CHUNK):
        chunk = crops[start : start + CHUNK]
        path = folder / f"{_crops_key(chunk)}.npy"
        values = _read(path, (len(chunk), model.feature_size))
        if values is None:
            values = _compute(model, chunk, half)
            write_atomically(path, lambda stream, values=values: numpy.save(stream, values))
        parts.append(torch.from_numpy(values))
        done(len(chunk))
    return torch.cat(parts) if parts else torch.zeros(0, model.feature_size, dtype=torch.float16)


def _backbone_key(model: RegionRnn, half: bool) -> str:
    config = model.config
    about = (config.backbone, config.strides, config.side, config.grid, half, model.preprocess)
    digest = hashlib.sha256(f"1 {about}".encode())
    for key, tensor in sorted(model.backbone.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:20]


def _crops_key(crops: Sequence[Crop]) -> str:
    digest = hashlib.sha256()
    for crop in crops:
        digest.update(f"{crop.image.resolve()} {file_digest(crop.image)} {crop.box}\n".encode())
    return digest.hexdigest()[:32]


def _read(path: Path, shape: tuple[int, int]) -> numpy.ndarray | None:
    """The array in a file; None if there is none, or not a whole one."""
    try:
        values = numpy.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape == shape and values.dtype == numpy.float16 else None


def _compute(model: RegionRnn, crops: Sequence[Crop], half: bool) -> numpy.ndarray:
    model = model.eval()
    layout = torch.channels_last if half else torch.contiguous_format
    model.backbone.to(memory_format=layout)
    pixels: list[Tensor] = []
    for image, several in groupby(crops, key=lambda crop: crop.image):
        boxes = torch.tensor([crop.box for crop in several])
        pixels += model.crop(open_picture(image), boxes).unbind()
    parts: list[Tensor] = []
    with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=half):
        for start in range(0, len(pixels), AT_ONCE):
            batch = torch.stack(pixels[start : start + AT_ONCE]).to(model.device).contiguous(memory_format=layout)
            parts.append(model.pool(batch).float().clamp(-65504, 65504).half().cpu())
    return torch.cat(parts).numpy()


@dataclass(frozen=True, eq=False)
class Taught:
    """Crops to learn from: ``features (N, feature_size)``, and for each its phrases, one or more."""

    features: Tensor
    phrases: Sequence[Sequence[str]]

    def words(self, model: RegionRnn, rows: Sequence[int], random: numpy.random.Generator | None) -> Tensor:
        """Numbers ``(N, T)`` of one phrase for each of ``rows``: a random one, or the first."""
        several = [self.phrases[row] for row in rows]
        chosen = [each[int(random.integers(len(each))) if random else 0] for each in several]
        return pad([model.vocabulary.encode(phrase) for phrase in chosen])


def fit(
    model: RegionRnn,
    train: Taught,
    validation: Taught,
    config: FitConfig,
    seed: int,
    half: bool = False,
    report: Callable[[int, float, float], None] = lambda epoch, train, validation: None,
) -> list[float]:
    """Train all but the backbone; the model ends in eval mode with the weights of the best validation loss.

    The same seed gives the same weights.

    Args:
        model: is changed.
        train, validation: crops with phrases; of validation the first phrase of each counts.
        config: how.
        seed: of the order, the phrases and the dropout.
        half: multiply in bfloat16.
        report: is told epoch (from 1), mean training loss and validation loss a phrase, in nats.

    Returns:
        the validation loss after each epoch.
    """
    parameters = [*model.layers.parameters(), *model.speaker.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(train.phrases) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, config.warmup, steps))
    losses: list[float] = []
    best = copy.deepcopy(model.state_dict())
    for epoch in range(config.epochs):
        random = numpy.random.default_rng((seed, epoch))
        torch.manual_seed(int(random.integers(1 << 62)))
        model.train()
        order, total = random.permutation(len(train.phrases)).tolist(), 0.0
        for start in range(0, len(order), config.batch_size):
            rows = order[start : start + config.batch_size]
            with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                loss = _loss(model, train, rows, random)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        losses.append(_validate(model.eval(), validation, config.batch_size))
        if losses[-1] == min(losses):
            best = copy.deepcopy(model.state_dict())
        report(epoch + 1, total / max(len(order), 1), losses[-1])
    model.load_state_dict(best)
    model.eval()
    return losses


def _rate(step: int, warmup: int, steps: int) -> float:
    """The share of the learning rate: a straight rise, then half a cosine down to 0 at the last step."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def _loss(model: RegionRnn, taught: Taught, rows: Sequence[int], random: numpy.random.Generator | None) -> Tensor:
    """Cross entropy of all words of the phrases, by phrase."""
    features = taught.features[torch.tensor(rows)].to(model.device).float()
    logits, said = model(features, taught.words(model, rows, random).to(model.device))
    return functional.cross_entropy(logits.float(), said, reduction="sum") / len(rows)


@torch.no_grad()
def _validate(model: RegionRnn, taught: Taught, size: int) -> float:
    rows = list(range(len(taught.phrases)))
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return sum(float(_loss(model, taught, part, None)) * len(part) for part in parts) / max(len(rows), 1)
