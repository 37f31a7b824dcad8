"""Fine-tuning: start a run from the weights of a trained model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.configs.parts import RegionConfig, Shapes, SystemConfig, places
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.models.bundle import CARD, Bundle
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner, region_cells
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import AnchorGenerator
from saywhere.options import dataclass
from saywhere.report import counted
from saywhere.text import RESERVED, Vocabulary
from saywhere.training.cache import read_pixels

ANCHOR_SCORES = "trunk.localization.head.score.weight"
WORD_ROWS = ("words.weight", "output.weight", "output.bias")
"""Suffixes of the names of tensors with one row per word."""
ANCHOR_ROWS = re.compile(r"\.localization\.head\.(score|offset)\.")
"""Pattern in the names of tensors with rows for each anchor shape."""
SCALE_IMAGES = 64
"""Number of images from which the change of feature scale is estimated."""
CLOSE = 0.01
"""Relative tolerance within which anchor sides count as equal: recipes round them."""


@dataclass(frozen=True)
class Start:
    """Weights that a network took over from another.

    Attributes:
        tensors: number of tensors taken over, fully or for the common words.
        new: names of the tensors that keep their initialisation.
        words: how many words of the new vocabulary were known, and its size.
        other: the source network.
        wider: names of tensors whose inputs gained the features of the trunk's second branch or tower.
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
    """Initialise a network with the weights of the same part of a model, wherever they fit.

    A tensor fits if both networks have it in the same shape. Of tensors with one row per word, the rows of common words
    are copied. The backbone's last layer, if the network has it, comes from any part of the model that uses it, or else
    from the published weights. A localization layer with more anchor shapes copies those of the model, which must be
    its first ones at every common stride. If only this network reads the trunk's second branch or tower, the
    weights of its features start at 0.

    Args:
        network: one of :data:`saywhere.networks.checkpoint.NETWORKS`; modified in place.
        name: folder of a bundle or of a training checkpoint, or name of a bundled model.

    Raises:
        UserError: no such model, it lacks the part, nothing fits, or the first anchors differ.
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
    """Refuse weights that were trained for other anchors."""
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
    """Freeze the weights of ``modules``, such as ``trunk.pyramid``; the optimiser does not get them.

    ``UserError`` if the network has no such module.
    """
    for name in modules:
        try:
            network.get_submodule(name).requires_grad_(False)
        except AttributeError as error:
            there = ", ".join(key for key, _ in network.named_modules() if key and key.count(".") < 2)
            raise UserError(f"training.freeze: the network has no module {name!r}, but {there}") from error


def common_rows(old: Vocabulary, new: Vocabulary) -> Tensor:
    """Return the token ids ``(2, K)`` of the K common tokens in the old and in the new vocabulary."""
    token_ids = {token: number for number, token in enumerate(old.tokens)}
    pairs = [(token_ids[token], number) for number, token in enumerate(new.tokens) if token in token_ids]
    return torch.tensor(pairs).T


@torch.no_grad()
def take_over(network: Any, other: Any) -> Start:
    """Copy the weights of ``other`` that fit into ``network``, which is the same part of a model."""
    rows, words = common_rows(other.vocabulary, network.vocabulary), (len(other.vocabulary), len(network.vocabulary))
    old, new, layouts = other.state_dict(), network.state_dict(), (_layout(other), _layout(network))
    more = sum(layouts[1][name] - layouts[0][name] for name in ("branch", "summary"))
    left, wider = list[str](), list[str]()
    for name, target in new.items():
        said = ".ngrams." in f".{name}"  # refers to another vocabulary
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
            _take_columns(target, source, layouts, name.endswith("weight"))
            wider.append(name)
        else:
            left.append(name)
    known = rows.shape[1] - len(RESERVED), words[1] - len(RESERVED)
    return Start(len(new) - len(left), tuple(left), known, other, tuple(wider))


def _layout(network: Any) -> Mapping[str, int]:
    """Return the layout of a network's region features; networks without such features have none of the branch."""
    config = network.config
    return config.layout if isinstance(config, RegionConfig) else {"branch": 0, "summary": 0}


def _take_columns(target: Tensor, source: Tensor, layouts: Sequence[Mapping[str, int]], empty: bool) -> None:
    """Copy the columns of region features that do not come from the branch; ``empty`` sets the others to 0."""
    old, new = (places(layout, of.shape[-1]) for layout, of in zip(layouts, (source, target), strict=True))
    common = old["branch"].start
    if empty:
        target.zero_()
    target[..., :common] = source[..., :common]
    target[..., new["place"]] = source[..., old["place"]]


@torch.no_grad()
def keep_scale(network: Any, start: Start, samples: Sequence[Sample]) -> None:
    """Preserve a captioner's outputs although features of the second branch or the tower are new to it.

    It normalises all features of a region together, so new ones change the scale of the others. This undoes the change
    on average over some of the samples. Other networks stay unchanged. ``network`` comes from :func:`start_from`, which
    returned ``start``; its branch or tower must be loaded.
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
            some.append(region_cells(of.config, ImageMaps.look(of.trunk, [pixels])[0])[0])
    features, old = torch.cat(rows), torch.cat(old_rows)
    spread, old_spread = (rows.std(dim=1, unbiased=False) for rows in (features, old))
    scale, shift = (spread / old_spread).mean(), ((features.mean(dim=1) - old.mean(dim=1)) / old_spread).mean()
    for layer in layers:
        layer.bias.add_(layer.weight.sum(dim=1) * shift)
        layer.weight.mul_(scale)


def average_models(shares: Mapping[str, float], trained: str | Path, out: Path, samples: Sequence[Sample] = ()) -> Path:
    """Write the weighted mean of the weights of several models; all else is the trained model's.

    A mean of models that were trained from the same weights is often better than each of them (Wortsman et al., 2022,
    Model soups). Rows of common words and tensors of equal shape are averaged; equal values stay bit for bit. Features
    of the second branch or tower that are new to the trained model have weight 0 in the others, see :func:`keep_scale`.

    Args:
        shares: weight of each other model; the trained one has the rest.

    Raises:
        UserError: no such model, or one lacks the part, or most of its weights do not fit.
    """
    bundle = Bundle.read(trained)
    (part,) = bundle.configs
    network = checkpoint.load_network(trained, part)
    state, known = network.state_dict(), 1 - sum(shares.values())
    for name, share in shares.items():
        wide = checkpoint.load_network(trained, part)
        taken = take_over(wide, checkpoint.load_network(name, part))
        if taken.tensors < len(state) / 2:
            raise UserError(f"keep: few weights of {name} fit this model; it must have begun at the same ones")
        keep_scale(wide, taken, samples)
        other, known = wide.state_dict(), known + share
        with torch.no_grad():
            for key, value in state.items():
                if value.is_floating_point():
                    mean = torch.lerp(value, other[key].to(value), share / known)
                    value.copy_(torch.where(other[key] == value, value, mean))
    kinds = {value.dtype for value in checkpoint.read_weights(bundle.folder).values()}
    dtype = torch.float16 if torch.float16 in kinds else torch.float32
    card = (bundle.folder / CARD).read_text(encoding="utf-8")
    others = " and ".join(f"{share:g} of those of another model" for share in shares.values())
    replaced = f"{card.rstrip()}\n\n## Mean of weights\n\nThe trained weights, {others}.\n"
    return checkpoint.save({part: network}, out, replaced, bundle.description, dtype)
