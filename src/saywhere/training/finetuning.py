"""Fine-tuning: start a run from the weights of a trained model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.configs.parts import PLACE, Shapes, SystemConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.models.bundle import CARD, Bundle
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner, region_cells
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import AnchorGenerator
from saywhere.report import counted
from saywhere.text import RESERVED, Vocabulary
from saywhere.training.cache import read_pixels

ANCHOR_SCORES = "trunk.localization.head.score.weight"
WORD_ROWS = ("words.weight", "output.weight", "output.bias")
"""Ends of the names of tensors that have a row for each word."""
ANCHOR_ROWS = re.compile(r"\.localization\.head\.(score|offset)\.")
"""In the names of tensors that have rows for each shape of the anchors."""
SCALE_IMAGES = 64
"""Images that tell how the scale of features changes."""
CLOSE = 0.01
"""Share of their length by which the sides of anchors may differ that count as the same: recipes round them."""


@dataclass(frozen=True)
class Start:
    """Weights that a network took over from another.

    Attributes:
        tensors: how many were taken over, whole or the rows of common words.
        new: names of the tensors that were left as they were made.
        words: how many words of the new vocabulary the other has, and how many there are.
        other: the network that they were taken from.
        wider: names of the tensors to which the features of the trunk's second branch or tower are new.
    """

    tensors: int
    new: tuple[str, ...]
    words: tuple[int, int]
    other: Any
    wider: tuple[str, ...] = ()

    def __str__(self) -> str:
        known, count = self.words
        new = f"; new: {', '.join(self.new)}" if self.new else ""
        return f"{counted(self.tensors, 'tensor')} taken over, {known} of {counted(count, 'word')} known{new}"


def start_from(network: Any, name: str) -> Start:
    """Give a network the weights of the same part of a model, wherever they fit.

    A tensor fits if both networks have it in one shape. Of tensors with a row for each word, the rows of words that
    both vocabularies have are taken over. The backbone's last layer, if the network has it, is that of the model,
    whatever part of it uses that layer, or else the published one. A localization layer with more shapes of anchors
    takes over those of the first, which must come first in it, too, at every stride that both have. A network that
    reads the trunk's second branch or tower, which the other does not, begins with weights of 0 for what is new to it.

    Args:
        network: one of :data:`saywhere.networks.checkpoint.NETWORKS`; it is changed.
        name: folder of a bundle or of a training checkpoint, or name of a bundled model.

    Raises:
        UserError: there is no such model, it lacks the part, it has nothing in common with this network, or the first
            anchors differ.
    """
    part, head = checkpoint.part_of(network), network.trunk.head
    configs = Bundle.read(name).configs
    with_head = [other for other, config in configs.items() if isinstance(config, SystemConfig) and config.uses_head]
    others = with_head[:1] if head is not None and part not in with_head else []
    other: Any = checkpoint.load_networks(name, parts=[part, *others])[part]
    if head is not None and other.trunk.head is None:  # a frozen layer of the published backbone
        head.load_published(network.config.trunk.backbone)
    if network.trunk.config.tower:
        network.trunk.tower = other.trunk.tower
    start = take_over(network, other)
    if not start.tensors:
        raise UserError(f"training.start: {name} has no weights that fit this model")
    if ANCHOR_SCORES in network.state_dict() and ANCHOR_SCORES not in start.new:
        _require_first_anchors(network.trunk.localization.anchors, other.trunk.localization.anchors, name)
    return start


def _require_first_anchors(new: AnchorGenerator, old: AnchorGenerator, name: str) -> None:
    """Refuse weights of other anchors than those that they would score here."""
    before = dict(zip(old.strides, old.shapes, strict=True))
    for stride, shapes in zip(new.strides, new.shapes, strict=True):
        first = shapes[: old.per_cell]
        if stride in before and not np.allclose(first, before[stride], rtol=CLOSE):
            raise UserError(
                f"training.start: {name} has the anchors {_text(before[stride])} at stride {stride}, but "
                f"model.proposals.anchors begins with {_text(first)} there: put those of {name} first"
            )


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{width:g} x {height:g}" for width, height in shapes)


def freeze(network: nn.Module, modules: Sequence[str]) -> None:
    """Keep the weights of ``modules``, such as ``trunk.pyramid``, as they are: the optimiser does not get them.

    ``UserError`` if the network has no such module.
    """
    for name in modules:
        try:
            network.get_submodule(name).requires_grad_(False)
        except AttributeError as error:
            there = ", ".join(key for key, _ in network.named_modules() if key and key.count(".") < 2)
            raise UserError(f"training.freeze: the network has no module {name!r}, but {there}") from error


def common_rows(old: Vocabulary, new: Vocabulary) -> Tensor:
    """Return the token ids ``(2, K)`` of the K tokens that both vocabularies have, in the old and in the new one."""
    token_ids = {token: number for number, token in enumerate(old.tokens)}
    pairs = [(token_ids[token], number) for number, token in enumerate(new.tokens) if token in token_ids]
    return torch.tensor(pairs).T


@torch.no_grad()
def take_over(network: Any, other: Any) -> Start:
    """Copy what fits of the weights of ``other`` into ``network``, which has the same part of a model."""
    rows, words = common_rows(other.vocabulary, network.vocabulary), (len(other.vocabulary), len(network.vocabulary))
    old, new, eyes = other.state_dict(), network.state_dict(), (_eye(other), _eye(network))
    more = sum(eyes[1]) - sum(eyes[0])
    left, wider = list[str](), list[str]()
    for name, target in new.items():
        said = ".ngrams." in f".{name}"  # in another vocabulary
        source = None if said else old.get(name)
        if source is None or source.ndim != target.ndim:
            left.append(name)
        elif name.endswith(WORD_ROWS) and (len(source), len(target)) == words and source.shape[1:] == target.shape[1:]:
            target[rows[1]] = source[rows[0]].to(target)
        elif source.shape == target.shape:
            target.copy_(source)
        elif ANCHOR_ROWS.search(name) and len(source) < len(target) and source.shape[1:] == target.shape[1:]:
            target[: len(source)] = source
        elif source.shape[:-1] == target.shape[:-1] and target.shape[-1] - source.shape[-1] == more != 0:
            _take_columns(target, source, eyes, name.endswith("weight"))
            wider.append(name)
        else:
            left.append(name)
    known = rows.shape[1] - len(RESERVED), words[1] - len(RESERVED)
    return Start(len(new) - len(left), tuple(left), known, other, tuple(wider))


def _eye(network: Any) -> tuple[int, int]:
    """How many features of a region are the second branch's or the tower's: before its place, and behind it."""
    config = network.config
    reads = getattr(config, "branch", False)
    return (sum(config.trunk.branch_channels), config.trunk.summary_channels) if reads else (0, 0)


def _take_columns(target: Tensor, source: Tensor, eyes: tuple[tuple[int, int], tuple[int, int]], empty: bool) -> None:
    """Copy the columns of features of regions that both have, see :func:`_eye`; others become 0, if ``empty``."""
    (before, behind), (_, last) = eyes
    common, place, own = source.shape[-1] - before - PLACE - behind, source.shape[-1] - behind, target.shape[-1] - last
    if empty:
        target.zero_()
    target[..., :common] = source[..., :common]
    target[..., own - PLACE : own] = source[..., place - PLACE : place]


@torch.no_grad()
def keep_scale(network: Any, start: Start, samples: Sequence[Sample]) -> None:
    """Let a captioner say what it said although the features of the second branch or the tower are new to it.

    It normalises all features of a region together, so the new ones change the scale of the others, which is undone
    here as it is on average over a few of the samples; other networks are left as they are. ``network`` comes from
    :func:`start_from`, which returned ``start``; its trunk has the weights of its branch or tower.
    """
    found = [network.get_submodule(name.rpartition(".")[0]) for name in start.wider]
    layers = [layer for layer in found if isinstance(layer, nn.Linear)]
    if not isinstance(network, Captioner) or not layers:
        return
    rows, old_rows = list[Tensor](), list[Tensor]()
    for sample in samples[:: max(1, len(samples) // SCALE_IMAGES)]:
        try:
            pixels = read_pixels(sample, network.trunk.preprocess)
        except ImageError:
            continue
        for some, of in ((rows, network), (old_rows, start.other)):
            image = ImageMaps(of.trunk, of.trunk.look([pixels])[0], pixels.shape[2], pixels.shape[1])
            some.append(region_cells(of.config, image)[0])
    features, old = torch.cat(rows), torch.cat(old_rows)
    spread, old_spread = (rows.std(dim=1, unbiased=False) for rows in (features, old))
    scale, shift = (spread / old_spread).mean(), ((features.mean(dim=1) - old.mean(dim=1)) / old_spread).mean()
    for layer in layers:
        layer.bias.add_(layer.weight.sum(dim=1) * shift)
        layer.weight.mul_(scale)


def average_models(
    start: str | Path, trained: str | Path, share: float, out: Path, samples: Sequence[Sample] = ()
) -> Path:
    """Write the mean of a model's weights and of those that it was trained from; all else is the trained one's.

    Rows of words are averaged where both vocabularies have the word, other tensors where both have one of the same
    shape; what is the same in both stays bit for bit. Where the features of the second branch or the tower are new to
    the trained one, they have no weight in the other, see :func:`keep_scale`. ``share`` is of the weights of ``start``.

    Raises:
        UserError: there is no such model, or ``start`` lacks the part.
    """
    bundle = Bundle.read(trained)
    (part,) = bundle.configs
    network, other, wide = (checkpoint.load_network(each, part) for each in (trained, start, trained))
    keep_scale(wide, take_over(wide, other), samples)
    before = wide.state_dict()
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                mean = torch.lerp(value, before[name].to(value), share)
                value.copy_(torch.where(before[name] == value, value, mean))
    kinds = {value.dtype for value in checkpoint.read_weights(bundle.folder).values()}
    dtype = torch.float16 if torch.float16 in kinds else torch.float32
    card = (bundle.folder / CARD).read_text(encoding="utf-8")
    replaced = f"{card.rstrip()}\n\n## Mean of weights\n\n{share:g} of the weights that training started from.\n"
    return checkpoint.save({part: network}, out, replaced, bundle.description, dtype)
