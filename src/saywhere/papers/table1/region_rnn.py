"""Region RNN: each region is cropped, resized and passed through the full network (DenseCap, section 4.1, baselines).

It has the backbone, embedding size and decoder of :class:`saywhere.networks.densecap.network.DenseCap`, but sees only a
region's own pixels and finds no regions. Trained on sentences of whole images, it is the Full Image RNN.

In training, crops pass the frozen backbone once, and the decoder is trained on their features. These are stored in
chunks, each named by a hash of everything it depends on. A stopped run resumes at the first missing chunk, and other
seeds or commands reuse the chunks.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.data.sample import Sample
from saywhere.files import write_atomically
from saywhere.images import LoadedImage, open_image
from saywhere.models.decoding import decode
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.protocol import TorchDecoder, with_end
from saywhere.networks.vision.trunk import Trunk
from saywhere.options import dataclass
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.papers.table1.plan import FitConfig
from saywhere.text import PAD, Vocabulary, pad, tokenize
from saywhere.training.cache import HALF_MAX, file_digest
from saywhere.training.loop import has_bfloat16, learning_rate_factor

CHUNK = 512
"""Crops per file."""

AT_ONCE = 8
"""Crops per forward pass: more would not fit a processor's caches."""

CHOICE = 0
"""Seed for choosing crops: the baselines of all seeds train on the same crops."""


class RegionRnn(nn.Module):
    """A decoder of single crops; arguments are those of :class:`saywhere.networks.densecap.network.DenseCap`."""

    def __init__(self, config: RegionRnnConfig, vocabulary: Vocabulary, trunk: Trunk):
        super().__init__()
        self.config, self.vocabulary, self.trunk = config, vocabulary, trunk
        self.feature_size = sum(trunk.backbone.channels) * config.grid**2
        self.layers = nn.Sequential(
            nn.LayerNorm(self.feature_size),  # as normalisation in FCLN's pyramid: a frozen backbone has any scale
            nn.Linear(self.feature_size, config.embed_dim),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.embed_dim, config.embed_dim),
            nn.ReLU(),
            nn.Dropout(config.dropout),
        )
        self.decoder = LstmDecoder(
            config.embed_dim, len(vocabulary), config.word_size, config.hidden_size, config.decoder_dropout
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.decoder.output.weight.device

    def crop(self, image: LoadedImage, boxes: Tensor) -> Tensor:
        """Return the pixels ``(N, 3, side, side)`` in boxes ``(N, 4)`` of an image, resized whatever their shape."""
        side = self.config.trunk.long_side
        sx, sy = image.pixels.width / image.width, image.pixels.height / image.height
        crops = torch.empty(len(boxes), 3, side, side)
        for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            left, right = _whole_pixels(x1 * sx, x2 * sx, image.pixels.width)
            top, bottom = _whole_pixels(y1 * sy, y2 * sy, image.pixels.height)
            pixels = image.pixels.crop((left, top, right, bottom))
            # The preprocessing sees every crop as a square: both of its sides become ``side`` pixels.
            crops[row] = torch.from_numpy(self.trunk.preprocess(LoadedImage(pixels, side, side)))
        return crops

    def pool(self, crops: Tensor) -> Tensor:
        """Return features ``(N, feature_size)`` of crops ``(N, 3, side, side)``: maps averaged over a grid."""
        maps = self.trunk.backbone.body(crops)
        return torch.cat([functional.adaptive_avg_pool2d(m, self.config.grid).flatten(1) for m in maps], dim=1)

    @torch.no_grad()
    def features(self, image: LoadedImage, boxes: Tensor) -> Tensor:
        """Return the features ``(N, feature_size)`` of the boxes ``(N, 4)`` of an image.

        One crop at a time: the maps of several would not fit a CPU's caches.
        """
        pooled = [self.pool(self.crop(image, box[None]).to(self.device)) for box in boxes]
        return torch.cat(pooled) if pooled else torch.zeros(0, self.feature_size, device=self.device)

    def forward(self, features: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of crops' phrases, for training.

        ``features`` are from :meth:`pool`, ``token_ids (N, T)`` one phrase each, without START and END, padded.

        Returns:
            Logits ``(K, V)`` and the token ids ``(K,)`` that they predict: all words and ENDs, row after row.
        """
        targets = with_end([token_ids])
        real = targets != PAD
        return self.decoder(self.layers(features), token_ids, real), targets[real]

    @torch.no_grad()
    def caption(self, features: Tensor) -> list[str]:
        """Return a caption for each row of ``features (N, feature_size)``."""
        decoder = TorchDecoder(self.decoder, self.decoder.output.weight)
        decoded = decode(decoder, self.layers(features), self.config.decoding)
        return [self.vocabulary.decode(row) for row in decoded.token_ids.tolist()]


def _whole_pixels(low: float, high: float, size: int) -> tuple[int, int]:
    """Return the range of whole pixels that an interval touches, at least one, inside ``size``."""
    first = min(max(math.floor(low), 0), size - 1)
    return first, max(first + 1, min(math.ceil(high), size))


# Training data


@dataclass(frozen=True)
class Crop:
    """A box of an image file, ``x1 y1 x2 y2`` in its pixels, and the phrases that describe it."""

    image: Path
    box: tuple[float, float, float, float]
    phrases: tuple[str, ...] = ()

    @classmethod
    def of(cls, image: Path, box: Iterable[float], phrases: tuple[str, ...] = ()) -> Crop:
        """Build one from any four numbers."""
        x1, y1, x2, y2 = map(float, box)
        return cls(image, (x1, y1, x2, y2), phrases)


def region_crops(samples: Sequence[Sample], most: int | None) -> list[Crop]:
    """Return true regions, at most ``most`` per image, in random order: first one of each image, then further ones.

    Crops for a smaller ``most`` are thus the first of those for a larger one, and their features are reused.
    """
    orders = [np.random.default_rng((CHOICE, i)).permutation(len(s.boxes)).tolist() for i, s in enumerate(samples)]
    longest = max(map(len, orders), default=0)
    return [
        Crop.of(sample.image, sample.boxes[order[rank]], sample.phrases[order[rank]])
        for rank in range(longest if most is None else min(most, longest))
        for sample, order in zip(samples, orders, strict=True)
        if rank < len(order)
    ]


def sentence_crops(samples: Sequence[Sample], longest: int) -> list[Crop]:
    """Return whole images with those of their sentences that have 1 to ``longest`` words."""
    fitting = [tuple(t for t in sample.sentences if 0 < len(tokenize(t)) <= longest) for sample in samples]
    pairs = zip(samples, fitting, strict=True)
    return [Crop.of(sample.image, (0, 0, sample.width, sample.height), texts) for sample, texts in pairs if texts]


def crop_features(
    root: Path,
    network: RegionRnn,
    crops: Sequence[Crop],
    half: bool = False,
    done: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """Return float16 features ``(N, feature_size)`` of crops; those stored below ``root`` are read.

    An image is opened once for consecutive crops. ``half`` computes in bfloat16, several times faster on processors
    with such instructions; the features agree with float32 to a cosine of 0.9997. ``done`` is called with the number of
    further crops that are ready.

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
    trunk = network.config.trunk
    about = (trunk.backbone, trunk.strides, trunk.long_side, network.config.grid, half, network.trunk.preprocess)
    digest = hashlib.sha256(f"1 {about}".encode())
    for key, tensor in sorted(network.trunk.backbone.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:20]


def _crops_key(crops: Sequence[Crop]) -> str:
    digest = hashlib.sha256()
    for crop in crops:
        digest.update(os.fsencode(f"{crop.image.resolve()} {file_digest(crop.image)} {crop.box}\n"))
    return digest.hexdigest()[:32]


def _read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Return the array in a file; None if it is missing or incomplete."""
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


Lessons = tuple[Tensor, Sequence[Crop]]
"""Training data: ``features (N, feature_size)`` of crops, and the N crops with one or more phrases."""
WEIGHT_DECAY, WARMUP, CLIP = 0.05, 100, 10.0
"""Weight decay of AdamW, warm-up steps from a learning rate of 0, and maximum gradient norm."""


def fit(
    network: RegionRnn, train: Lessons, validation: Lessons, config: FitConfig, seed: int, half: bool = False
) -> list[float]:
    """Train all but the backbone; the network ends in eval mode with the weights of the best validation loss.

    The same seed gives the same weights. ``validation`` uses the first phrase of each crop. ``half`` multiplies in
    bfloat16 if the processor can. Returns the validation loss after each epoch, in nats per phrase.
    """
    half = half and (network.device.type != "cpu" or has_bfloat16())
    parameters = [*network.layers.parameters(), *network.decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=WEIGHT_DECAY)
    steps = config.epochs * math.ceil(len(train[1]) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, WARMUP, "cosine")
    )
    losses: list[float] = []
    best = copy.deepcopy(network.state_dict())
    for epoch in range(config.epochs):
        random = np.random.default_rng((seed, epoch))
        torch.manual_seed(int(random.integers(1 << 62)))
        network.train()
        order, total = random.permutation(len(train[1])).tolist(), 0.0
        for start in range(0, len(order), config.batch_size):
            rows = order[start : start + config.batch_size]
            with torch.autocast(network.device.type, torch.bfloat16, enabled=half):
                loss = _loss(network, train, rows, random)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        losses.append(_validate(network, validation, config.batch_size))
        if losses[-1] == min(losses):
            best = copy.deepcopy(network.state_dict())
        means = f"train {total / max(len(order), 1):.3f}, validation {losses[-1]:.3f}"
        print(f"seed {seed} epoch {epoch + 1}: {means}", file=sys.stderr)
    network.load_state_dict(best)
    network.eval()
    return losses


@torch.no_grad()
def _validate(network: RegionRnn, crops: Lessons, batch_size: int) -> float:
    """Return the mean loss of each crop's first phrase, in nats; the network ends in eval mode."""
    network.eval()
    rows = list(range(len(crops[1])))
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return sum(float(_loss(network, crops, batch, None)) * len(batch) for batch in batches) / max(len(rows), 1)


def _loss(network: RegionRnn, crops: Lessons, rows: Sequence[int], random: np.random.Generator | None) -> Tensor:
    """Return the cross entropy per phrase, summed over words, of a random or the first phrase of each crop."""
    several = [crops[1][row].phrases for row in rows]
    chosen = [each[int(random.integers(len(each))) if random else 0] for each in several]
    token_ids = torch.from_numpy(pad([network.vocabulary.encode(phrase) for phrase in chosen]))
    features = crops[0][torch.tensor(rows)].to(network.device).float()
    logits, targets = network(features, token_ids.to(network.device))
    return functional.cross_entropy(logits.float(), targets, reduction="sum") / len(rows)
