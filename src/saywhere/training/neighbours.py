"""Sentences of training images that help to caption similar ones, and the space in which they are found.

Of each image one sentence is kept: the one that is most like the others of its image, for what only one person said
helps no other image. A linear layer of the captioner's embedding of an image and a sum of vectors of the words of a
sentence learn to tell, in batches, which sentence belongs to which image (a contrastive loss, as the aligner's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.captioner import CaptionerConfig, NeighboursConfig
from saywhere.data.sample import Sample
from saywhere.engines.arrays.neighbours import STORED
from saywhere.engines.arrays.neighbours import Neighbours as Found
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.captioning import bind
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.captioner.neighbours import Neighbours
from saywhere.networks.language.cider import Cider
from saywhere.text import pad
from saywhere.training.card import replace_section
from saywhere.training.progress import track

EPOCHS, BATCH, RATE = 100, 512, 3e-3
WARM_UP = 0.1
"""Of the steps."""
IMAGE_DROPOUT, WORD_DROPOUT = 0.85, 0.3
SENTENCES = 2
"""Of an image in a batch."""
LEAST_DEVIATION = 0.1
"""Of a feature, in units of the median feature's; a feature that hardly ever moves has no large weight."""
SHARPNESS = 0.04
"""The temperature of how common a sentence is; products are between -1 and 1."""
BANK = 2000
"""Images that tell it, at most."""
HELD_OUT = 20
"""One image of so many does not teach the space, but tells how good it is."""
LEAST = 40
"""Images that are needed."""
LARGEST = 127
"""Of the whole numbers of a sentence's vector."""
LONGEST = 255
"""Words of a sentence that is stored."""
TOGETHER = 16
"""Images that pass through the network together."""
HEADING = "## Sentences of similar images"


@dataclass(frozen=True, eq=False)
class Captioned:
    """Hold images and what people said of them.

    Attributes:
        embeddings: ``(N, F)`` of the captioner.
        sentences: of each image the token ids of its sentences, one or more.
        skipped: why images could not be read.
    """

    embeddings: np.ndarray
    sentences: list[list[list[int]]]
    skipped: tuple[str, ...] = ()


def embed(model: Model, samples: Sequence[Sample]) -> Captioned:
    """Return images that have sentences of at least a word and no more words than a caption may have.

    A progress bar is shown.
    """
    captioner = model.require("captioner", "caption images")
    longest = min(captioner.config.decoding.max_words, LONGEST)
    embeddings, sentences, skipped = list[np.ndarray](), list[list[list[int]]](), list[str]()
    waiting = list[Encoding]()

    def passed() -> None:
        if waiting:
            embeddings.append(np.asarray(bind(captioner, waiting).embeddings))
            waiting.clear()

    with track("images", len(samples)) as progress:
        for sample in samples:
            progress.advance(1)
            coded = [captioner.vocabulary.encode(text) for text in sample.sentences]
            if not (fitting := [ids for ids in coded if 0 < len(ids) <= longest]):
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
    rows = np.concatenate(embeddings) if embeddings else np.zeros((0, 0), np.float32)
    return Captioned(rows, sentences, tuple(skipped))


def central(sentences: Sequence[Sequence[int]], cider: Cider) -> Sequence[int]:
    """Return the sentence that is most like the others of its image by CIDEr-D; the first of equal ones."""
    others = [[other for j, other in enumerate(sentences) if j != i] for i in range(len(sentences))]
    return max(zip(sentences, others, strict=True), key=lambda pair: cider.score(*pair))[0]


class Space(nn.Module):
    """Put images and sentences into one space, as vectors of length 1.

    Args:
        embeddings: ``(N, F)`` of the images that teach it; each feature is standardised.
        vocabulary_size: V.
        size: D.
    """

    def __init__(self, embeddings: Tensor, vocabulary_size: int, size: int) -> None:
        super().__init__()
        deviation = embeddings.std(dim=0)
        self.mean = embeddings.mean(dim=0)
        self.deviation = torch.maximum(deviation, LEAST_DEVIATION * deviation.median()).clamp(min=1e-6)
        self.image = nn.Linear(embeddings.shape[1], size)
        self.words = nn.Embedding(vocabulary_size, size, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.1)
        self.log_scale = nn.Parameter(torch.tensor(2.7))
        self.image_dropout, self.word_dropout = nn.Dropout(IMAGE_DROPOUT), nn.Dropout(WORD_DROPOUT)

    def of_images(self, embeddings: Tensor) -> Tensor:
        """Return the vectors ``(N, D)`` of images."""
        standard = self.image_dropout((embeddings - self.mean) / self.deviation)
        return functional.normalize(self.image(standard), dim=1)

    def of_sentences(self, token_ids: Tensor) -> Tensor:
        """Return the vectors ``(S, D)`` of sentences ``(S, T)``."""
        return functional.normalize(self.word_dropout(self.words(token_ids)).sum(dim=1), dim=1)

    def query(self) -> nn.Linear:
        """Return the layer that gives an image's vector, but for its length, of the embedding as it is."""
        layer = nn.Linear(self.image.in_features, self.image.out_features)
        with torch.no_grad():
            layer.weight.copy_(self.image.weight / self.deviation)
            layer.bias.copy_(self.image.bias - layer.weight @ self.mean)
        return layer


def learn(captioned: Captioned, vocabulary_size: int, size: int, epochs: int = EPOCHS, seed: int = 0) -> Space:
    """Return the space that images and their sentences teach; a progress bar is shown.

    Args:
        captioned: one image of :data:`HELD_OUT` does not teach.
        vocabulary_size, size: of :class:`Space`.
        epochs: passes over the images.
        seed: of weights, dropout and draws.
    """
    random = np.random.default_rng(seed)
    teaching = np.flatnonzero(~is_held_out(len(captioned.sentences)))
    embeddings = torch.from_numpy(captioned.embeddings).float()
    token_ids = torch.from_numpy(pad(list(chain.from_iterable(captioned.sentences))))
    counts = np.array([len(rows) for rows in captioned.sentences])
    starts = np.cumsum(counts) - counts
    steps = epochs * (batches := max(1, len(teaching) // BATCH))
    with torch.random.fork_rng(devices=()), track("sentences and images", steps) as progress:
        torch.manual_seed(seed)
        space = Space(embeddings[teaching], vocabulary_size, size)
        optimizer = torch.optim.AdamW(space.parameters(), RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=WARM_UP)
        for _ in range(epochs):
            for rows in np.array_split(random.permutation(teaching), batches):
                images, same = space.of_images(embeddings[rows]), torch.arange(len(rows))
                losses = list[Tensor]()
                for _ in range(SENTENCES):
                    chosen = starts[rows] + random.integers(0, counts[rows])
                    fits = space.log_scale.exp() * images @ space.of_sentences(token_ids[chosen]).T
                    losses += [functional.cross_entropy(fits, same), functional.cross_entropy(fits.T, same)]
                loss = torch.stack(losses).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.advance(1, f"loss {float(loss.detach()):.3f}")
    return space.eval()


def is_held_out(count: int) -> np.ndarray:
    """Return which of ``count`` images ``(count,)`` do not teach the space."""
    return np.arange(count) % HELD_OUT == 0


@torch.no_grad()
def store(space: Space, captioned: Captioned, cider: Cider) -> Neighbours:
    """Return the weights: of each image its central sentence, and where it is in the space."""
    kept = [central(rows, cider) for rows in captioned.sentences]
    vectors = space.of_sentences(torch.from_numpy(pad(kept)))
    scale = vectors.abs().max() / LARGEST
    keys = (vectors / scale).round()
    embeddings = torch.from_numpy(captioned.embeddings).float()
    bank = space.of_images(embeddings[:: -(-len(embeddings) // BANK)])
    commonness = SHARPNESS * torch.logsumexp(bank @ (keys * scale).T / SHARPNESS, dim=0) / scale
    config = NeighboursConfig(len(kept), sum(map(len, kept)), keys.shape[1])
    stored = Neighbours(embeddings.shape[1], config)
    stored.query = space.query().requires_grad_(False)
    stored.keys.copy_(keys)
    stored.commonness.copy_(commonness - commonness.mean())
    stored.lengths.copy_(torch.tensor([len(ids) for ids in kept]))
    stored.token_ids.copy_(torch.tensor(list(chain.from_iterable(kept))))
    return stored


@dataclass(frozen=True)
class Worth:
    """Say how well the sentences fit images that did not teach the space, by CIDEr-D with what people said of them.

    Attributes:
        images: so many.
        nearest: mean of the nearest sentences of other images.
        random: of sentences drawn at random.
    """

    images: int
    nearest: float
    random: float


def judge(stored: Neighbours, captioned: Captioned, cider: Cider, vocabulary_size: int, count: int) -> Worth:
    """Return what ``count`` nearest sentences of each held-out image are worth."""
    arrays = {name: getattr(stored, name).numpy() for name in STORED}
    weight, bias = (parameter.detach().numpy() for parameter in stored.query.parameters())
    found = Found.unpack(weight.T, bias, arrays, vocabulary_size)
    rows = np.flatnonzero(is_held_out(len(captioned.sentences)))
    nearest, random, generator = list[float](), list[float](), np.random.default_rng(0)
    for row, sentences in zip(rows.tolist(), found.nearest(captioned.embeddings[rows], count + 1), strict=True):
        truths, own = captioned.sentences[row], found.sentences[row]
        others = [sentence for sentence in sentences if sentence is not own][:count]
        drawn = [found.sentences[j] for j in generator.permutation(len(found.sentences))[: count + 1] if j != row]
        nearest += [cider.score(sentence.tolist(), truths) for sentence in others]
        random += [cider.score(sentence.tolist(), truths) for sentence in drawn]
    return Worth(len(rows), float(np.mean(nearest)), float(np.mean(random)))


def train(
    folder: str | Path, sets: Sequence[Sequence[Sample]], source: str, device: str | None = None, seed: int = 0
) -> tuple[str, ...]:
    """Choose sentences for the captioner in a folder, learn to find them, and write both to the folder.

    Args:
        folder: of a model with a captioner of images; its other weights stay as they are.
        sets: images with sentences, of one data set or several.
        source: name of the images, for the card.
        device: where the model runs; the best there is if None.
        seed: of the training.

    Returns:
        why images were left out that could not be read.

    Raises:
        UserError: there is no such model, it comes with saywhere, it has no such captioner, too few images with
            sentences can be read, or what was learnt is worth nothing.
    """
    bundle = Bundle.read_own(folder)
    config = bundle.configs.get("captioner")
    if not isinstance(config, CaptionerConfig) or config.describe_boxes:
        raise UserError(f"{folder} has no captioner of images, but {', '.join(bundle.configs)}")
    vocabulary_size = len(bundle.vocabularies["captioner"])
    if vocabulary_size > (most := torch.iinfo(torch.int16).max):
        raise UserError(f"{folder}: sentences are stored for vocabularies of at most {most} words")
    options = {"captioner.neighbours.weight": 0.0} if config.neighbours.sentences else None
    captioned = embed(load(bundle.folder, device, options=options), list(chain.from_iterable(sets)))
    if len(captioned.sentences) < LEAST:
        raise UserError(f"{LEAST} images with sentences are needed, and {len(captioned.sentences)} can be read")
    cider = Cider(captioned.sentences)
    space = learn(captioned, vocabulary_size, config.neighbours.size, seed=seed)
    stored = store(space, captioned, cider)
    worth = judge(stored, captioned, cider, vocabulary_size, config.neighbours.nearest)
    if not worth.nearest > worth.random:
        raise UserError(
            f"nothing was learnt: of {worth.images} images the nearest sentences have a CIDEr-D of "
            f"{worth.nearest:.3f}, and others {worth.random:.3f}"
        )
    sizes = {"sentences": len(stored.keys), "words": len(stored.token_ids)}
    changed = {f"captioner.neighbours.{name}": value for name, value in sizes.items()}
    checkpoint.change_weights(bundle.folder, "captioner.neighbours", stored.state_dict(), changed)
    replace_section(bundle.folder / CARD, HEADING, _section(stored, worth, config.neighbours.nearest, source))
    return captioned.skipped


def _section(stored: Neighbours, worth: Worth, nearest: int, source: str) -> str:
    return f"""Captions are guided by what people said of similar images: {len(stored.keys):,} sentences of {source},
one of each image, chosen and placed by `saywhere train-neighbours`. Of {worth.images} of these images, which did not
teach where they are, the {nearest} nearest sentences of others have a mean CIDEr-D of {worth.nearest:.3f}, and
sentences at random {worth.random:.3f}.
"""
