"""N-gram probabilities of an image: which n-grams are frequent enough to learn, and their probabilities.

The probability that a sentence of an image contains an n-gram is a logistic function of a few numbers, which a linear
layer computes from the captioner's image embedding. The training target is the share of an image's sentences that
contain the n-gram.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.captioner import CaptionerConfig, NgramsConfig
from saywhere.data.sample import Sample
from saywhere.engines.arrays.ngrams import ORDER, Ngram, ngrams_of
from saywhere.errors import UserError
from saywhere.files import printable
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.captioner import bind
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Ngrams
from saywhere.text import UNKNOWN
from saywhere.training.card import replace_section
from saywhere.training.progress import encode_each, track

LEAST_DEVIATION = 0.1
"""Minimum standard deviation relative to the median one, so that nearly constant features get small weights."""
HELD_OUT = 20
"""One image in this many is held out for validation."""
LEAST = 40
"""Minimum number of images to train on."""
LONGEST = 255
"""Maximum length of a sentence, in words."""


@dataclass(frozen=True, eq=False)
class Captioned:
    """Images and their captions.

    Attributes:
        embeddings: ``(N, F)`` of the captioner.
        sentences: token ids of one or more sentences per image.
    """

    embeddings: np.ndarray
    sentences: list[list[list[int]]]


def own_captioner(folder: str | Path) -> tuple[Bundle, CaptionerConfig]:
    """Return a user's model with a captioner of images, to be extended.

    ``UserError`` if there is no such model, it comes with saywhere, or it has no such captioner.
    """
    bundle = Bundle.read_own(folder)
    config = bundle.configs.get("captioner")
    if not isinstance(config, CaptionerConfig) or config.describe_boxes:
        raise UserError(f"{folder} has no captioner of images, but {', '.join(bundle.configs)}")
    if len(bundle.vocabularies["captioner"]) > (most := torch.iinfo(torch.int16).max):
        raise UserError(f"{folder}: words are stored for vocabularies of at most {most}")
    return bundle, config


def embed(bundle: Bundle, sets: Sequence[Sequence[Sample]], device: str | None) -> Captioned:
    """Embed the images that have sentences of at least one word and at most the maximum caption length.

    Shows a progress bar. ``UserError`` if too few readable images have such sentences.
    """
    model = load(bundle.folder, device, options={"captioner.ngrams.weight": 0.0})
    captioner = model.require("captioner", "caption images")
    longest = min(captioner.config.decoding.max_words, LONGEST)
    fitting: dict[Sample, list[list[int]]] = {}
    for sample in chain.from_iterable(sets):
        coded = [captioner.vocabulary.encode(text) for text in sample.sentences]
        if kept := [ids for ids in coded if 0 < len(ids) <= longest]:
            fitting[sample] = kept
        elif coded:
            name = printable(str(sample.image))
            print(f"left out: {name}: no sentence has 1 to {longest} words", file=sys.stderr)
    embeddings, sentences = list[np.ndarray](), list[list[list[int]]]()
    for sample, encoding in encode_each(model, list(fitting), "images"):
        embeddings.append(np.asarray(bind(captioner, [encoding]).embeddings))
        sentences.append(fitting[sample])
    if len(sentences) < LEAST:
        raise UserError(f"{LEAST} images with sentences are needed, and {len(sentences)} can be used")
    return Captioned(np.concatenate(embeddings), sentences)


def is_held_out(count: int) -> np.ndarray:
    """Return which of ``count`` images are held out for validation, ``(count,)``."""
    return np.arange(count) % HELD_OUT == 0


class Standardised(nn.Module):
    """Standardise features to mean 0 and variance 1 over ``embeddings (N, F)`` of some images."""

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        deviation = embeddings.std(dim=0)
        self.mean = embeddings.mean(dim=0)
        self.deviation = torch.maximum(deviation, LEAST_DEVIATION * deviation.median()).clamp(min=1e-6)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the standardised embeddings ``(N, F)``."""
        return (embeddings - self.mean) / self.deviation

    @torch.no_grad()
    def folded(self, layer: nn.Linear, scale: float = 1.0) -> nn.Linear:
        """Return a layer that does for raw embeddings what ``layer``, of F inputs, does for standardised ones.

        ``scale`` is a factor on its output.
        """
        made = nn.Linear(layer.in_features, layer.out_features)
        made.weight.copy_(scale * layer.weight / self.deviation)
        made.bias.copy_(scale * layer.bias - made.weight @ self.mean)
        return made


LEAST_SAID = (12, 20, 20, 20)
"""Minimum number of sentences with an n-gram that is learned, for n from 1 to 4."""
EPOCHS, BATCH, RATE, DECAY = 40, 256, 2e-3, 0.3
WARM_UP = 0.1
"""Share of the steps for warm-up."""
DROPOUT = 0.8
"""Dropout probability on the features of an image."""
RAREST = 1e-5
"""Initial probabilities of n-grams are at least this far from 0 and 1."""
LARGEST = 127
"""Maximum of the integers in an n-gram's key."""
HEADING = "## N-gram probabilities"


@dataclass(frozen=True, eq=False)
class Said:
    """Which n-grams occur in the captions of which images.

    Attributes:
        ngrams: the G n-grams, ordered by their token ids.
        rows: per image, the indices of its n-grams.
        shares: per image, the share of its sentences with each of them.
    """

    ngrams: list[Ngram]
    rows: list[Tensor]
    shares: list[Tensor]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[Sequence[int]]]) -> Said:
        """Return the frequent n-grams of the sentences of images; n-grams with the unknown word are left out."""
        counts = [Counter(chain.from_iterable(_said(ids) for ids in own)) for own in sentences]
        of_all = Counter[Ngram]()
        for own in counts:
            of_all.update(own)
        ngrams = sorted(ngram for ngram, count in of_all.items() if count >= LEAST_SAID[len(ngram) - 1])
        numbers = {ngram: number for number, ngram in enumerate(ngrams)}
        rows, shares = list[Tensor](), list[Tensor]()
        for own, texts in zip(counts, sentences, strict=True):
            kept = {numbers[ngram]: count for ngram, count in own.items() if ngram in numbers}
            rows.append(torch.tensor(list(kept), dtype=torch.int64))
            shares.append(torch.tensor(list(kept.values())) / len(texts))
        return cls(ngrams, rows, shares)

    def targets(self, images: Sequence[int]) -> Tensor:
        """Return the shares ``(N, G)`` of all n-grams for images given by index."""
        targets = torch.zeros(len(images), len(self.ngrams))
        for target, image in zip(targets, images, strict=True):
            target[self.rows[image]] = self.shares[image]
        return targets

    def mean(self, images: Sequence[int], any_sentence: bool = False) -> Tensor:
        """Return the mean share ``(G,)`` over images; ``any_sentence``: the share of images with the n-gram instead."""
        total = torch.zeros(len(self.ngrams))
        for image in images:
            total[self.rows[image]] += 1 if any_sentence else self.shares[image]
        return total / len(images)


def _said(token_ids: Sequence[int]) -> set[Ngram]:
    runs = chain.from_iterable(ngrams_of(token_ids, n) for n in range(1, ORDER + 1))
    return {run for run in runs if UNKNOWN not in run}


class Predictor(nn.Module):
    """Network that predicts the probabilities of n-grams through D numbers.

    ``embeddings (N, F)`` are those of the training images; ``shares (G,)`` are the prior probabilities.
    """

    def __init__(self, embeddings: Tensor, shares: Tensor, size: int) -> None:
        super().__init__()
        self.features, self.dropout = Standardised(embeddings), nn.Dropout(DROPOUT)
        self.query, self.keys = nn.Linear(embeddings.shape[1], size), nn.Linear(size, len(shares))
        with torch.no_grad():
            self.keys.weight.mul_(0.5)
            self.keys.bias.copy_(torch.logit(shares.clamp(RAREST, 1 - RAREST)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the log-odds ``(N, G)`` of n-grams for image embeddings ``(N, F)``."""
        return self.keys(self.query(self.dropout(self.features(embeddings))))


def learn(captioned: Captioned, said: Said, size: int, epochs: int = EPOCHS, seed: int = 0) -> Predictor:
    """Train a predictor of n-grams through ``size`` numbers, on the images that are not held out."""
    random = np.random.default_rng(seed)
    teaching = np.flatnonzero(~is_held_out(len(captioned.sentences)))
    embeddings = torch.from_numpy(captioned.embeddings).float()
    steps = epochs * (batches := max(1, len(teaching) // BATCH))
    with torch.random.fork_rng(devices=()), track("n-grams", steps) as progress:
        torch.manual_seed(seed)
        predictor = Predictor(embeddings[teaching], said.mean(teaching.tolist()), size)
        optimizer = torch.optim.AdamW(predictor.parameters(), RATE, weight_decay=DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=WARM_UP)
        for _ in range(epochs):
            for rows in np.array_split(random.permutation(teaching), batches):
                loss = _loss(predictor(embeddings[rows]), said.targets(rows.tolist()))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.advance(1, f"loss {float(loss.detach()):.3f}")
    return predictor.eval()


def _loss(log_odds: Tensor, shares: Tensor) -> Tensor:
    """Return the cross entropy summed over n-grams, averaged over images."""
    return functional.binary_cross_entropy_with_logits(log_odds, shares, reduction="none").sum(dim=1).mean()


@torch.no_grad()
def store(predictor: Predictor, said: Said) -> Ngrams:
    """Return the weights in the captioner's format."""
    keys = predictor.keys.weight
    unit = float(keys.abs().max()) / LARGEST
    config = NgramsConfig(len(said.ngrams), sum(map(len, said.ngrams)), keys.shape[1])
    stored = Ngrams(predictor.query.in_features, config)
    stored.query = predictor.features.folded(predictor.query, unit).requires_grad_(False)
    stored.keys.copy_((keys / unit).round())
    stored.offsets.copy_(predictor.keys.bias)
    stored.rarity.copy_(-said.mean(range(len(said.rows)), any_sentence=True).log())
    stored.lengths.copy_(torch.tensor([len(ngram) for ngram in said.ngrams]))
    stored.token_ids.copy_(torch.tensor(list(chain.from_iterable(said.ngrams))))
    return stored


@dataclass(frozen=True)
class Worth:
    """Cross entropy in nats of the n-grams of ``images`` images, knowing the image (``known``) or not."""

    images: int
    known: float
    unknown: float


@torch.no_grad()
def judge(predictor: Predictor, captioned: Captioned, said: Said) -> Worth:
    """Evaluate the predictor on the held-out images."""
    held_out = is_held_out(len(captioned.sentences))
    rows, others = np.flatnonzero(held_out), np.flatnonzero(~held_out)
    targets = said.targets(rows.tolist())
    known = _loss(predictor(torch.from_numpy(captioned.embeddings[rows]).float()), targets)
    shares = said.mean(others.tolist()).clamp(RAREST, 1 - RAREST)
    return Worth(len(rows), float(known), float(_loss(torch.logit(shares).expand_as(targets), targets)))


def train(
    folder: str | Path, sets: Sequence[Sequence[Sample]], source: str, device: str | None = None, seed: int = 0
) -> None:
    """Train n-gram probabilities for captions of images, and write them beside the captioner in a folder.

    Args:
        folder: a model with a captioner of images; its other weights stay.
        sets: images with sentences, of one or several data sets.

    Raises:
        UserError: no such model, it comes with saywhere, it has no such captioner, too few images with sentences are
            readable, no n-gram is frequent, or the predictor is no better than the prior.
    """
    bundle, config = own_captioner(folder)
    captioned = embed(bundle, sets, device)
    said = Said.of(captioned.sentences)
    if not said.ngrams:
        raise UserError(f"no word is in {LEAST_SAID[0]} sentences, and no run of words in {LEAST_SAID[1]}")
    predictor = learn(captioned, said, config.ngrams.size, seed=seed)
    worth = judge(predictor, captioned, said)
    if not worth.known < worth.unknown:
        raise UserError(
            f"nothing was learnt: the captions of {worth.images} images have a cross-entropy of {worth.known:.3f}, and "
            f"{worth.unknown:.3f} without looking at the images"
        )
    stored = store(predictor, said)
    sizes = {"count": len(stored.keys), "words": len(stored.token_ids)}
    options = {f"captioner.ngrams.{name}": value for name, value in sizes.items()}
    checkpoint.change_weights(bundle.folder, "captioner.ngrams", stored.state_dict(), options)
    replace_section(bundle.folder / CARD, HEADING, _section(stored, worth, source))


def _section(stored: Ngrams, worth: Worth, source: str) -> str:
    return f"""Captions are reranked by the probabilities of {len(stored.keys):,} n-grams,
learned from {source}. Of {worth.images} of these images, which did not teach them, the
n-grams of an image have a cross-entropy of {worth.known:.1f} nats, and {worth.unknown:.1f} without looking at the
image.
"""
