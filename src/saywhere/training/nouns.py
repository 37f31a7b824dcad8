"""Training of the region classifier: everyday kinds from named boxes, beside ImageNet's published classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import places
from saywhere.data.sample import Sample, is_held_out
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.models.nouns import Noun, NounEvidence, NounTree, noun_tree, softmax
from saywhere.networks import checkpoint
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.backbones import published_classifier
from saywhere.networks.vision.trunk import build_trunk
from saywhere.options import dataclass
from saywhere.text import Vocabulary
from saywhere.training.loop import descend
from saywhere.training.progress import rows_of_each

LEAST = 8
"""Minimum number of boxes of a kind."""
POWER = 0.5
"""A box is weighted by the number of boxes of its kind to the power of minus this: kinds differ in frequency."""
MOST = 600
"""Maximum number of training boxes per noun."""
PRIOR = 0.5
"""Exponent of the kinds' prior: 0 makes all kinds equally likely, 1 as likely as their boxes are frequent."""
DIRECTIONS = {"head": 400, "branch": 400, "image_head": 96, "image_branch": 96}
"""Principal components kept of the last layer and of the second branch: over the box, and over the whole image.

Other features are used in full.
"""
FLAT = 0.1
"""Features are divided by their standard deviation, or by this share of the median one if larger: half of an
embedding's units are hardly ever above 0 and must not dominate when they are."""
DROPOUT, DECAY, RATE, BATCH = 0.2, 0.3, 3e-3, 512
GRID = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)


@dataclass(frozen=True, eq=False)
class NamedBoxes:
    """N boxes with names.

    Attributes:
        features: ``(N, D)`` float16, the inputs of :class:`Nouns`.
        nouns: ``(N,)`` rows in the noun tree; -1 for names that it does not have.
        held_out: ``(N,)``, whether a box is for calibration rather than training.
    """

    features: np.ndarray
    nouns: np.ndarray
    held_out: np.ndarray


def train(
    model: str | Path, samples: Sequence[Sample], source: str, out: Path, cache: Path, epochs: int = 8, seed: int = 0
) -> str:
    """Train a region classifier of everyday kinds, and write it as a model folder.

    Args:
        model: its trunk computes the features, including those of a second branch or tower; its dense captioner, if it
            has one, the embeddings.

    Returns:
        A short description of what was learned.

    Raises:
        UserError: as :func:`collect` and :func:`fit`.
    """
    bundle = Bundle.read(model)
    densecap, trunk = bundle.configs.get("densecap"), bundle.trunk
    size = densecap.embed_dim if isinstance(densecap, DenseCapConfig) else 0
    config = NounsConfig(trunk=trunk, branch=bool(trunk.branch_channels), embed_dim=size)
    boxes = collect(model, samples, config, cache)
    network = fit(boxes, model, config, epochs, seed)
    made = f"{len(network.vocabulary.counts)} kinds from {len(boxes.nouns):,} boxes"
    description = f"{len(network.vocabulary.counts)} kinds and ImageNet's classes of regions"
    card = f"# Nouns of regions\n\n{description}; {len(boxes.nouns):,} boxes of {len(samples):,} images of {source}\n"
    checkpoint.save({"nouns": network}, out, card, description, torch.float16)
    return made


def collect(model: str | Path, samples: Sequence[Sample], config: NounsConfig, cache: Path) -> NamedBoxes:
    """Return the boxes of images with their features and the nouns of their phrases; skip images without boxes.

    The noun of a box is the most frequent one of its phrases. Unreadable images are reported. ``cache`` as in
    :func:`rows_of_each`. ``UserError`` if no image is readable, or ``config.embed_dim`` is set and the model has no
    dense captioner.
    """
    networks: dict[str, Any] = dict(checkpoint.load_networks(model))
    classifier = build_network(model, Vocabulary({}), config)
    for network in networks.values():
        network.trunk.head = classifier.trunk.head  # the published head if the model has none
    seen = Model(TorchEngine(networks), Path(model).name)
    tree, rows = noun_tree(), list[tuple[np.ndarray, list[int], bool]]()

    def features_of(sample: Sample, encoding: Encoding) -> list[np.ndarray]:
        boxes = encoding.to_input(encoding.check(sample.boxes))
        embeddings = np.zeros((len(boxes), 0), np.float32)
        if config.embed_dim:
            (found,) = seen.require("densecap", "embed regions").region_head([encoding.maps], [boxes])
            embeddings = found.embeddings
        with torch.inference_mode():
            given = torch.from_numpy(boxes), torch.from_numpy(embeddings)
            return [classifier.features(encoding.maps, *given).half().numpy()]

    named = [sample for sample in samples if len(sample.boxes)]
    for sample, (features,) in rows_of_each(seen, named, "boxes", features_of, cache):
        nouns = [noun_of(tree, phrases) for phrases in sample.phrases]
        rows.append((features, nouns, is_held_out(sample.image)))
    if not rows:
        raise UserError("a classifier is taught by images with boxes, and not one can be read")
    features, nouns = (np.concatenate([row[i] for row in rows]) for i in (0, 1))
    return NamedBoxes(features, nouns, np.concatenate([np.full(len(row[1]), row[2]) for row in rows]))


def noun_of(tree: NounTree, phrases: Sequence[str]) -> int:
    """Return the row of the most frequent noun among a box's phrases; -1 if that is not in the noun tree."""
    found = [tree.find(phrase) for phrase in phrases]
    return Counter(-1 if noun is None else noun.row for noun in found).most_common(1)[0][0]


def choose_kinds(tree: NounTree, nouns: np.ndarray) -> dict[str, int]:
    """Return the kinds with enough boxes, as counts by name in the order of the tree."""
    entries = [tree.entry(tree.nouns[row]) for row in nouns.tolist() if row >= 0]
    counts = Counter(noun.row for noun in entries if noun is not None and noun.sort != "group")
    return {tree.nouns[row].name: count for row, count in sorted(counts.items()) if count >= LEAST}


def allowed_groups(tree: NounTree, kinds: Sequence[Noun], groups: np.ndarray) -> np.ndarray:
    """Return which groups a box of each noun may belong to, ``(nouns + 1, G + 2)``; the last row is for no noun.

    A box called an animal may be any kind of animal; one called a poodle is of the kind dog.
    """
    count = len(kinds)
    allowed = np.zeros((len(tree.nouns) + 1, count + 2), bool)
    for noun in tree.nouns:
        below = [number for number, kind in enumerate(kinds) if noun.row in kind.ancestors]
        allowed[noun.row, below] = True
        classes = [leaf for leaf in noun.leaves.tolist() if tree.nouns[leaf].sort == "class"]
        if not below or noun.sort == "group":
            allowed[noun.row, groups[classes]] = True
        if not allowed[noun.row].any():
            near = [(noun.ancestors[k.row], number) for number, k in enumerate(kinds) if k.row in noun.ancestors]
            allowed[noun.row, min(near)[1] if near else count + 1] = True
    allowed[-1, count + 1] = True
    return allowed


def fit(boxes: NamedBoxes, trunk_of: str | Path, config: NounsConfig, epochs: int = 8, seed: int = 0) -> Nouns:
    """Train a classifier on boxes, on the trunk of the model that computed their features.

    It is a softmax regression with dropout on principal components of the features, added to the evidence of ImageNet's
    classifier for each kind. A box whose name covers several kinds trains the sum of their probabilities. Frequent
    kinds are weighted down in training and in the prior (:data:`POWER`, :data:`MOST`, :data:`PRIOR`). Temperature and
    sharpness maximise the likelihood of the held-out images.

    Raises:
        UserError: the backbone has no published classifier, or no kind has enough boxes.
    """
    tree = noun_tree()
    vocabulary = Vocabulary(choose_kinds(tree, boxes.nouns))
    if not vocabulary.counts:
        raise UserError(f"no kind has {LEAST} boxes: phrases of boxes name the kinds of things that are taught")
    network = build_network(trunk_of, vocabulary, config)
    # Without embeddings, and without regions: what it is asked about kinds and groups needs neither.
    published: Any = SimpleNamespace(config=replace(network.config, embed_dim=0), vocabulary=network.vocabulary)
    evidence = NounEvidence(published)
    allowed = torch.from_numpy(allowed_groups(tree, evidence.kinds, evidence.groups))[torch.from_numpy(boxes.nouns)]
    held = boxes.held_out
    classes = _class_logits(network, boxes.features)
    temperature = min(GRID, key=lambda t: _class_loss(evidence, classes[held] / t, allowed[held].numpy()))
    says = [evidence.evidence(evidence.of_groups(softmax(part / temperature))) for part in np.array_split(classes, 64)]
    prior = torch.from_numpy(np.concatenate(says))
    trust = _fit_layer(network, boxes, allowed, prior, ~held, epochs, seed)
    _weigh_kinds(network.kinds, boxes, allowed, ~held)
    with torch.no_grad():
        logits = network.kinds(torch.from_numpy(boxes.features[held].astype(np.float32))) + trust * prior[held]
    sharpness = min(GRID, key=lambda s: float(_loss(s * logits, allowed[held]).mean()))
    network.config = replace(network.config, temperature=temperature, trust=round(trust, 4), sharpness=sharpness)
    return network


def build_network(trunk_of: str | Path, vocabulary: Vocabulary, config: NounsConfig) -> Nouns:
    """Build a classifier on a model's trunk, with ImageNet's published weights and untrained kinds.

    If the model lacks the last layer, the published one is used, rounded as in stored models.
    """
    other: Any = next(iter(checkpoint.load_networks(trunk_of).values()))
    config = replace(config, trunk=other.config.trunk)
    trunk = build_trunk(config.trunk, head=True, pretrained=False)
    trunk.take_from(other.trunk)
    if other.trunk.head is None and trunk.head is not None:
        trunk.head.load_published(config.trunk.backbone)
        for value in trunk.head.state_dict().values():
            value.copy_(value.half() if value.is_floating_point() else value)
    network = Nouns(config, vocabulary, trunk)
    weight, bias = published_classifier(config.trunk.backbone)
    with torch.no_grad():
        network.imagenet.weight.copy_(weight)
        network.imagenet.bias.copy_(bias)
        network.kinds.weight.zero_()
        network.kinds.bias.zero_()
    return network.eval()


@torch.no_grad()
def _class_logits(network: Nouns, features: np.ndarray) -> np.ndarray:
    """Return the logits ``(N, 1000)`` of ImageNet's classes, computed a few thousand rows at a time."""
    last = features[:, places(network.config.layout, features.shape[1])["head"]]
    parts = np.array_split(last, max(1, len(features) // 4096))
    return np.concatenate([network.imagenet(torch.from_numpy(part.astype(np.float32))).numpy() for part in parts])


def _class_loss(evidence: NounEvidence, classes: np.ndarray, allowed: np.ndarray) -> float:
    """Return the mean loss of ImageNet's probabilities on boxes that only ImageNet's kinds allow."""
    of_group = evidence.of_groups(softmax(classes))
    known = np.append(evidence.known, False)
    sure = allowed.any(axis=1) & ~(allowed & ~known).any(axis=1)
    right = (of_group * allowed[:, :-1]).sum(axis=1)[sure]
    return float(-np.log(np.maximum(right, 1e-6)).mean()) if len(right) else 0.0


def _fit_layer(
    network: Nouns, boxes: NamedBoxes, allowed: Tensor, prior: Tensor, use: np.ndarray, epochs: int, seed: int
) -> float:
    """Fit the kinds to the features of the boxes in ``use``; return the weight of the prior logits."""
    layer = network.kinds
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    rows = _choose_rows(boxes.nouns, generator.permutation(np.flatnonzero(use)))
    inputs = torch.from_numpy(boxes.features[rows].astype(np.float32))
    mean, spread = inputs.mean(dim=0), inputs.std(dim=0)
    scale = spread.clamp(min=max(FLAT * spread.median().item(), 1e-3))
    inputs = inputs.sub_(mean).div_(scale)
    basis = _basis(inputs, network.config)
    inputs, allowed, prior = inputs @ basis, allowed[rows], prior[rows]
    counts = np.bincount(boxes.nouns[rows] + 1)[boxes.nouns[rows] + 1]
    weights = torch.from_numpy((counts**-POWER).astype(np.float32))
    weights /= weights.mean()
    small = nn.Linear(inputs.shape[1], layer.out_features)
    trust = nn.Parameter(torch.ones(()))
    with torch.no_grad():
        small.weight.zero_()
        small.bias.zero_()
    groups = [{"params": small.parameters()}, {"params": [trust], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)
    count = max(1, len(rows) // BATCH)
    batches = [each for _ in range(epochs) for each in np.array_split(generator.permutation(len(rows)), count)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [RATE, 5 * RATE], total_steps=len(batches) + 1)

    def loss(batch: np.ndarray) -> Tensor:
        logits = small(functional.dropout(inputs[batch], DROPOUT)) + trust * prior[batch]
        return (_loss(logits, allowed[batch]) * weights[batch]).mean()

    descend("kinds", batches, loss, optimizer, schedule)
    with torch.no_grad():  # the layer takes raw features
        layer.weight.copy_((small.weight @ basis.T) / scale)
        layer.bias.copy_(small.bias - layer.weight @ mean)
    return trust.item()


def _weigh_kinds(layer: nn.Linear, boxes: NamedBoxes, allowed: Tensor, use: np.ndarray) -> None:
    """Shift the layer's bias so that the prior of kinds is their frequency in ``use``, raised to :data:`PRIOR`."""
    counts = np.bincount(boxes.nouns[use] + 1)[boxes.nouns[use] + 1]
    most = np.where(boxes.nouns[use] >= 0, MOST, 4 * MOST)
    taught = np.minimum(counts, most) ** (1 - POWER) / counts
    shares = allowed[torch.from_numpy(use)].double()
    shares /= shares.sum(dim=1, keepdim=True)
    all_of, taught_of = shares.sum(dim=0), torch.from_numpy(taught) @ shares
    with torch.no_grad():
        layer.bias.add_((PRIOR * (all_of + 1).log() - taught_of.clamp(min=0.5).log()).float())


def _choose_rows(nouns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows with at most :data:`MOST` per noun, and four times as many of boxes without a noun."""
    seen = Counter[int]()
    chosen: list[int] = []
    for row, noun in zip(rows.tolist(), nouns[rows].tolist(), strict=True):
        seen[noun] += 1
        if seen[noun] <= (MOST if noun >= 0 else 4 * MOST):
            chosen.append(row)
    return np.array(chosen)


def _basis(inputs: Tensor, config: NounsConfig) -> Tensor:
    """Return the directions ``(D, d)`` of features that are used.

    These are principal components for the last layer and the second branch; all other features are kept.
    """
    size = inputs.shape[1]
    kept = torch.ones(size, dtype=torch.bool)
    columns: list[Tensor] = []
    found = places(config.layout, size)
    for place, count in [(found[name], count) for name, count in DIRECTIONS.items() if config.layout[name]]:
        kept[place] = False
        part = inputs[:: max(1, len(inputs) // 8192), place]
        values, directions = _eigenvectors(part.T @ part / len(part))
        block = torch.zeros(size, count)
        block[place] = directions[:, -count:] / values[-count:].mean().clamp(min=1e-6).sqrt()
        columns.append(block)
    return torch.cat((torch.eye(size)[:, kept], *columns), dim=1)


def _eigenvectors(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, smallest first, and eigenvectors, in double precision if single fails, as for few boxes."""
    try:
        return torch.linalg.eigh(covariance)
    except RuntimeError:
        values, directions = torch.linalg.eigh(covariance.double())
        return values.float(), directions.float()


def _loss(logits: Tensor, allowed: Tensor) -> Tensor:
    """Return the negative log-probability ``(N,)`` of the union of all allowed groups."""
    logs = functional.log_softmax(logits, dim=1)
    return -logs.masked_fill(~allowed, -torch.inf).logsumexp(dim=1)
