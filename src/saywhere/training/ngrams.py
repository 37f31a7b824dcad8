"""N-gram probabilities of an image or a region: which n-grams are frequent enough to learn, and their probabilities.

The probability that a text about an image or region contains an n-gram is a logistic function of a few numbers, which
one or two layers compute from the captioner's embedding of the image, or from the dense captioner's features of the
region. The training target is the share of the texts that contain the n-gram.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import NgramsConfig
from saywhere.data.sample import Sample, is_held_out
from saywhere.engines.arrays.layers import Ngram, ngrams_of
from saywhere.errors import UserError
from saywhere.files import printable
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.captioner import bind
from saywhere.models.encoding import Encoding
from saywhere.networks import checkpoint
from saywhere.networks.language.ngrams import Ngrams
from saywhere.options import dataclass
from saywhere.text import UNKNOWN
from saywhere.training.card import replace_section
from saywhere.training.loop import descend
from saywhere.training.progress import rows_of_each

LEAST_DEVIATION = 0.1
"""Minimum standard deviation relative to the median one, so that nearly constant features get small weights."""
HELD_OUT = 20
"""One image in this many is held out for validation; of regions, those of images held out for calibration."""
LEAST = 40
"""Minimum number of images or regions to train on."""
LONGEST = 255
"""Maximum length of a sentence, in words."""


@dataclass(frozen=True, eq=False)
class Settings:
    """How the n-grams of a part are chosen and learned.

    Attributes:
        least: minimum number of texts with an n-gram that is learned, for n from 1 on.
        epochs, rate: number of epochs, and peak learning rate of AdamW.
        dropout: dropout probability on the features.
    """

    least: tuple[int, ...]
    epochs: int
    rate: float
    dropout: float


SETTINGS = {
    "captioner": Settings((12, 20, 20, 20), epochs=40, rate=2e-3, dropout=0.8),
    "densecap": Settings((3, 4), epochs=16, rate=7e-4, dropout=0.6),
}
"""By the part whose texts they rerank."""


@dataclass(frozen=True, eq=False)
class Described:
    """Images or regions and their texts.

    Attributes:
        features: ``(N, F)``, the captioner's embeddings of images or the dense captioner's features of regions.
        sentences: token ids of one or more texts for each.
        held_out: ``(N,)`` mask of those for validation.
    """

    features: np.ndarray
    sentences: list[list[list[int]]]
    held_out: np.ndarray


def own_part(folder: str | Path, part: str) -> tuple[Bundle, CaptionerConfig | DenseCapConfig]:
    """Return a user's model with a captioner of images or a dense captioner, to be extended.

    ``UserError`` if there is no such model, it comes with saywhere, or it has no such part.
    """
    bundle = Bundle.read_own(folder, part)
    config = bundle.configs[part]
    assert isinstance(config, DenseCapConfig | CaptionerConfig)
    if isinstance(config, CaptionerConfig) and config.describe_boxes:
        raise UserError(f"{folder}: its captioner describes boxes, and n-grams are of images")
    if len(bundle.vocabularies[part]) > (most := torch.iinfo(torch.int16).max):
        raise UserError(f"{folder}: words are stored for vocabularies of at most {most}")
    return bundle, config


def embed_images(bundle: Bundle, sets: Sequence[Sequence[Sample]], device: str | None, cache: Path) -> Described:
    """Embed the images that have sentences of at least one word and at most the maximum caption length.

    Shows a progress bar; ``cache`` as in :func:`rows_of_each`. ``UserError`` if too few readable images have such
    sentences.
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

    def embed(sample: Sample, encoding: Encoding) -> list[np.ndarray]:
        return [np.asarray(bind(captioner, [encoding]).embeddings)]

    for sample, (embedding,) in rows_of_each(model, list(fitting), "images", embed, cache):
        embeddings.append(embedding)
        sentences.append(fitting[sample])
    if len(sentences) < LEAST:
        raise UserError(f"{LEAST} images with sentences are needed, and {len(sentences)} can be used")
    return Described(np.concatenate(embeddings), sentences, np.arange(len(sentences)) % HELD_OUT == 0)


def embed_regions(bundle: Bundle, sets: Sequence[Sequence[Sample]], device: str | None, cache: Path) -> Described:
    """Return the features of the true boxes of images, and their phrases.

    Shows a progress bar; ``cache`` as in :func:`rows_of_each`. ``UserError`` if too few boxes of readable images have
    phrases, or all are held out.
    """
    model = load(bundle.folder, device, options={"densecap.ngrams.weight": 0.0})
    detector = model.require("densecap", "describe boxes")
    features, sentences, held_out = list[np.ndarray](), list[list[list[int]]](), list[bool]()
    samples = [sample for sample in chain.from_iterable(sets) if len(sample.boxes)]

    def features_of(sample: Sample, encoding: Encoding) -> list[np.ndarray]:
        maps, boxes = [encoding.maps], [encoding.to_input(encoding.check(sample.boxes))]
        embeddings = [out.embeddings for out in detector.region_head(maps, boxes)]
        return [*detector.phrase_features(maps, boxes, embeddings)]

    for sample, rows in rows_of_each(model, samples, "images", features_of, cache):
        features += rows
        sentences += [[detector.vocabulary.encode(text) for text in texts] for texts in sample.phrases]
        held_out += [is_held_out(sample.image)] * len(sample.boxes)
    if (teaching := len(held_out) - sum(held_out)) < LEAST or teaching == len(held_out):
        raise UserError(
            f"{LEAST} boxes with phrases are needed, and more to check what was learnt; {teaching:,} can be used, and "
            f"{sum(held_out):,} to check"
        )
    return Described(np.concatenate(features), sentences, np.array(held_out))


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


BATCH, DECAY = 256, 0.3
WARM_UP = 0.1
"""Share of the steps for warm-up."""
HIDDEN_DROPOUT = 0.3
"""Dropout probability on the hidden layer."""
RAREST = 1e-5
"""Initial probabilities of n-grams are at least this far from 0 and 1."""
LARGEST = 127
"""Maximum of the integers in an n-gram's key."""
HEADINGS = {"captioner": "## N-gram probabilities", "densecap": "## N-gram probabilities of phrases"}


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
    def of(cls, sentences: Sequence[Sequence[Sequence[int]]], least: Sequence[int]) -> Said:
        """Return the frequent n-grams of the texts of images or regions; those with the unknown word are left out.

        ``least`` is the minimum number of texts with an n-gram, for n from 1 on.
        """
        counts = [Counter(chain.from_iterable(_said(ids, len(least)) for ids in own)) for own in sentences]
        of_all = Counter[Ngram]()
        for own in counts:
            of_all.update(own)
        ngrams = sorted(ngram for ngram, count in of_all.items() if count >= least[len(ngram) - 1])
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


def _said(token_ids: Sequence[int], longest: int) -> set[Ngram]:
    runs = chain.from_iterable(ngrams_of(token_ids, n) for n in range(1, longest + 1))
    return {run for run in runs if UNKNOWN not in run}


class Predictor(nn.Module):
    """Network that predicts the probabilities of n-grams.

    ``features (N, F)`` are those of the training images or regions; ``shares (G,)`` are the prior probabilities.
    """

    def __init__(self, features: Tensor, shares: Tensor, config: NgramsConfig, dropout: float) -> None:
        super().__init__()
        self.features, self.dropout = Standardised(features), nn.Dropout(dropout)
        self.hidden = nn.Linear(features.shape[1], config.hidden) if config.hidden else None
        self.query = nn.Linear(config.hidden or features.shape[1], config.size)
        self.keys = nn.Linear(config.size, len(shares))
        with torch.no_grad():
            self.keys.weight.mul_(0.5)
            self.keys.bias.copy_(torch.logit(shares.clamp(RAREST, 1 - RAREST)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the log-odds ``(N, G)`` of n-grams for features ``(N, F)``."""
        rows = self.dropout(self.features(features))
        if self.hidden is not None:
            rows = functional.dropout(torch.relu(self.hidden(rows)), HIDDEN_DROPOUT, self.training)
        return self.keys(self.query(rows))


def learn(described: Described, said: Said, config: NgramsConfig, settings: Settings, seed: int = 0) -> Predictor:
    """Train a predictor of n-grams on the images or regions that are not held out."""
    random = np.random.default_rng(seed)
    teaching = np.flatnonzero(~described.held_out)
    features = torch.from_numpy(described.features).float()
    count = max(1, len(teaching) // BATCH)
    batches = [rows for _ in range(settings.epochs) for rows in np.array_split(random.permutation(teaching), count)]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        predictor = Predictor(features[teaching], said.mean(teaching.tolist()), config, settings.dropout)
        optimizer = torch.optim.AdamW(predictor.parameters(), settings.rate, weight_decay=DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, settings.rate, total_steps=len(batches) + 1, pct_start=WARM_UP
        )

        def loss(rows: np.ndarray) -> Tensor:
            return _loss(predictor(features[rows]), said.targets(rows.tolist()))

        descend("n-grams", batches, loss, optimizer, schedule)
    return predictor.eval()


def _loss(log_odds: Tensor, shares: Tensor) -> Tensor:
    """Return the cross entropy summed over n-grams, averaged over images or regions."""
    return functional.binary_cross_entropy_with_logits(log_odds, shares, reduction="none").sum(dim=1).mean()


@torch.no_grad()
def store(predictor: Predictor, said: Said) -> Ngrams:
    """Return the weights in the format of the part."""
    keys, first = predictor.keys.weight, predictor.hidden
    unit = float(keys.abs().max()) / LARGEST
    words = sum(map(len, said.ngrams))
    config = NgramsConfig(len(said.ngrams), words, keys.shape[1], 0 if first is None else first.out_features)
    stored = Ngrams(len(predictor.features.mean), config)
    if first is None:
        stored.query = predictor.features.folded(predictor.query, unit)
    else:
        stored.hidden = predictor.features.folded(first)
        stored.query.weight.copy_(unit * predictor.query.weight)
        stored.query.bias.copy_(unit * predictor.query.bias)
    stored.requires_grad_(False)
    stored.keys.copy_((keys / unit).round())
    stored.offsets.copy_(predictor.keys.bias)
    stored.rarity.copy_(-said.mean(range(len(said.rows)), any_sentence=True).log())
    stored.lengths.copy_(torch.tensor([len(ngram) for ngram in said.ngrams]))
    stored.token_ids.copy_(torch.tensor(list(chain.from_iterable(said.ngrams))))
    return stored


@dataclass(frozen=True)
class Worth:
    """Cross entropy in nats of the n-grams of ``count`` images or regions, knowing these (``known``) or not."""

    count: int
    known: float
    unknown: float


@torch.no_grad()
def judge(predictor: Predictor, described: Described, said: Said) -> Worth:
    """Evaluate the predictor on what is held out."""
    rows, others = np.flatnonzero(described.held_out), np.flatnonzero(~described.held_out)
    targets = said.targets(rows.tolist())
    known = _loss(predictor(torch.from_numpy(described.features[rows]).float()), targets)
    shares = said.mean(others.tolist()).clamp(RAREST, 1 - RAREST)
    return Worth(len(rows), float(known), float(_loss(torch.logit(shares).expand_as(targets), targets)))


def train(
    folder: str | Path, sets: Sequence[Sequence[Sample]], source: str, cache: Path, device: str | None = None,
    seed: int = 0, part: str = "captioner",
) -> None:  # fmt: skip
    """Train the n-gram probabilities of captions of images or of phrases of regions, and write them into a folder.

    Args:
        folder: a model with the part; its other weights stay.
        sets: images with sentences, or with boxes and phrases, of one or several data sets.
        cache: folder that keeps the features of each image, for a run that continues after a stop.
        part: ``captioner`` or ``densecap``. The latter does not learn from images that are held out for calibration.

    Raises:
        UserError: no such model, it comes with saywhere, it has no such part, too few images with sentences or boxes
            with phrases are readable, no n-gram is frequent, or the predictor is no better than the prior.
    """
    bundle, config = own_part(folder, part)
    described = (embed_images if part == "captioner" else embed_regions)(bundle, sets, device, cache)
    settings = SETTINGS[part]
    said = Said.of(described.sentences, settings.least)
    if not said.ngrams:
        word, *runs = settings.least
        raise UserError(f"no word is in {word} texts, and no run of words in {min(runs)}")
    predictor = learn(described, said, config.ngrams, settings, seed)
    worth = judge(predictor, described, said)
    things = "images" if part == "captioner" else "boxes"
    if not worth.known < worth.unknown:
        raise UserError(
            f"nothing was learnt: the texts of {worth.count:,} {things} have a cross-entropy of {worth.known:.3f}, and "
            f"{worth.unknown:.3f} without looking at them"
        )
    stored = store(predictor, said)
    sizes = {"count": len(stored.keys), "words": len(stored.token_ids)}
    options = {f"{part}.ngrams.{name}": value for name, value in sizes.items()}
    checkpoint.change_weights(bundle.folder, f"{part}.ngrams", stored.state_dict(), options)
    replace_section(bundle.folder / CARD, HEADINGS[part], _section(stored, worth, source, things))


def _section(stored: Ngrams, worth: Worth, source: str, things: str) -> str:
    texts = "Captions" if things == "images" else "Phrases"
    return f"""{texts} are reranked by the probabilities of {len(stored.keys):,} n-grams,
learned from {source}. Of {worth.count:,} of its {things}, which did not teach them, the
n-grams have a cross-entropy of {worth.known:.1f} nats, and {worth.unknown:.1f} without looking at the {things}.
"""
