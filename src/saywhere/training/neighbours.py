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

from saywhere.configs.captioner import NeighboursConfig
from saywhere.data.sample import Sample
from saywhere.engines.arrays.neighbours import STORED
from saywhere.engines.arrays.neighbours import Neighbours as Found
from saywhere.errors import UserError
from saywhere.models.bundle import CARD
from saywhere.networks import checkpoint
from saywhere.networks.captioner.neighbours import Neighbours
from saywhere.networks.language.cider import Cider
from saywhere.text import pad
from saywhere.training.captioned import Captioned, Standardised, embed, is_held_out, own_captioner
from saywhere.training.card import replace_section
from saywhere.training.progress import track

EPOCHS, BATCH, RATE = 100, 512, 3e-3
WARM_UP = 0.1
"""Of the steps."""
IMAGE_DROPOUT, WORD_DROPOUT = 0.85, 0.3
SENTENCES = 2
"""Of an image in a batch."""
SHARPNESS = 0.04
"""The temperature of how common a sentence is; products are between -1 and 1."""
BANK = 2000
"""Images that tell it, at most."""
LARGEST = 127
"""Of the whole numbers of a sentence's vector."""
HEADING = "## Sentences of similar images"


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
        self.features = Standardised(embeddings)
        self.image = nn.Linear(embeddings.shape[1], size)
        self.words = nn.Embedding(vocabulary_size, size, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.1)
        self.log_scale = nn.Parameter(torch.tensor(2.7))
        self.image_dropout, self.word_dropout = nn.Dropout(IMAGE_DROPOUT), nn.Dropout(WORD_DROPOUT)

    def of_images(self, embeddings: Tensor) -> Tensor:
        """Return the vectors ``(N, D)`` of images."""
        return functional.normalize(self.image(self.image_dropout(self.features(embeddings))), dim=1)

    def of_sentences(self, token_ids: Tensor) -> Tensor:
        """Return the vectors ``(S, D)`` of sentences ``(S, T)``."""
        return functional.normalize(self.word_dropout(self.words(token_ids)).sum(dim=1), dim=1)

    def query(self) -> nn.Linear:
        """Return the layer that gives an image's vector, but for its length, of the embedding as it is."""
        return self.features.folded(self.image)


def learn(captioned: Captioned, vocabulary_size: int, size: int, epochs: int = EPOCHS, seed: int = 0) -> Space:
    """Return the space that images and their sentences teach; a progress bar is shown.

    Args:
        captioned: those of :func:`is_held_out` do not teach.
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
        why images were left out.

    Raises:
        UserError: there is no such model, it comes with saywhere, it has no such captioner, too few images with
            sentences can be read, or what was learnt is worth nothing.
    """
    bundle, config = own_captioner(folder)
    captioned, vocabulary_size = embed(bundle, sets, device), len(bundle.vocabularies["captioner"])
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
