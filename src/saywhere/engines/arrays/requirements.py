"""What the engine without torch asks of a model: options that it runs, and weights that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig, NgramsConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import LAST_CHANNELS, TrunkConfig
from saywhere.engines.arrays.layers import Weights
from saywhere.errors import UserError
from saywhere.text import RESERVED

MULTIPLE = 32
"""Both sides of the graph's input are multiples of this: paddings are then the same for all sizes."""
UNUSED = ("num_batches_tracked", "log_scale")
"""Last names of stored arrays that only training needs."""
Shapes = dict[str, tuple[int | str, ...]]
"""Shapes of arrays by name; a length that the options do not give has a name, and is the same wherever it stands."""


def refused_options(trunk: TrunkConfig, configs: Mapping[str, Any]) -> list[str]:
    """Return the options of a model, with their values, that only the engine torch runs."""
    refused: list[str] = []
    if trunk.multiple % MULTIPLE:
        refused.append(f"trunk.multiple={trunk.multiple}, which is no multiple of {MULTIPLE}")
    for part, config in configs.items():
        if isinstance(config, DenseCapConfig) and config.conventions == "original":
            refused.append("conventions=original, the published program")
        if isinstance(config, DenseCapConfig) and config.pooling != "bilinear":
            refused.append(f"pooling={config.pooling}")
        if isinstance(config, AlignerConfig) and config.parses is not None:
            refused.append(f"parses={config.parses}, relations in the place of words")
        if isinstance(config, CaptionerConfig) and config.attend_to == "transformer":
            refused.append("attend_to=transformer")
        if isinstance(config, CaptionerConfig) and config.attend_to != "whole" and config.pooling != "mean":
            refused.append(f"pooling={config.pooling}")
        if part == "region-rnn":
            refused.append("a region-rnn, a baseline of Table 1")
    return refused


def require_shapes(part: str, config: Any, vocabulary_size: int, weights: Weights) -> None:
    """Refuse weights that do not fit a part's options and vocabulary.

    Args:
        part, config: its name and options.
        vocabulary_size: V, reserved tokens included.
        weights: those of the part.

    Raises:
        UserError: an array is missing, has another shape, or belongs to other options; one line.
    """
    kinds = {"densecap": _densecap, "aligner": _aligner, "captioner": _captioner, "nouns": _nouns}
    wanted = kinds[part](config, vocabulary_size)
    stored = {name for name in weights.names() if name.rpartition(".")[2] not in UNUSED}
    if other := sorted(wanted.keys() ^ stored):
        here = "lack" if other[0] in wanted else "have, against its options,"
        raise UserError(f"the weights of the part {part} {here} {other[0]}")
    lengths: dict[str, int] = {}
    for name, shape in wanted.items():
        found = weights.shape(name)
        known = tuple(
            length if isinstance(length, int) else lengths.setdefault(length, found[axis] if axis < len(found) else 0)
            for axis, length in enumerate(shape)
        )
        if known != found:
            what = "vocabulary" if name.endswith("words.weight") and vocabulary_size != found[0] else "options"
            raise UserError(f"the weights of the part {part} do not fit its {what}: {name} is {found}, not {known}")


def _linear(name: str, rows: int, columns: int | str, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return {**shapes, f"{name}.bias": (rows,)} if bias else shapes


def _recurrent(name: str, gates: int, inputs: int, size: int, suffix: str = "") -> Shapes:
    """Of a GRU (3 gates) or an LSTM (4) of torch."""
    rows = gates * size
    return {
        f"{name}.weight_ih_l0{suffix}": (rows, inputs),
        f"{name}.weight_hh_l0{suffix}": (rows, size),
        f"{name}.bias_ih_l0{suffix}": (rows,),
        f"{name}.bias_hh_l0{suffix}": (rows,),
    }


def _lstm_decoder(embedding: int | str, words: int, word_size: int, hidden_size: int) -> Shapes:
    normalisation = ("weight", "bias", "running_mean", "running_var")
    return {
        **_linear("decoder.encode.0", word_size, embedding),
        **{f"decoder.encode.1.{kind}": (word_size,) for kind in normalisation},
        "decoder.words.weight": (words, word_size),
        **_recurrent("decoder.lstm", 4, word_size, hidden_size),
        **_linear("decoder.output", words, hidden_size),
    }


def _densecap(config: DenseCapConfig, words: int) -> Shapes:
    size, first = config.embed_dim, config.fc_size or config.embed_dim
    channels = config.proposals.pyramid_channels
    return {
        **_linear("region_head.layers.1", first, channels * config.pool_size**2 or "pooled"),
        **_linear("region_head.layers.4", size, first),
        **_linear("region_head.score", 1, size),
        **_linear("region_head.offset", 4, size),
        **(_phrase_head(size) if config.phrase_levels else {}),
        **_lstm_decoder(size, words, config.word_size, config.hidden_size),
    }


def _phrase_head(size: int) -> Shapes:
    shapes: Shapes = {f"phrase_head.0.{kind}": ("features",) for kind in ("running_mean", "running_var")}
    return shapes | _linear("phrase_head.2", size, "features")


def _aligner(config: AlignerConfig, words: int) -> Shapes:
    hidden, size = config.hidden_size, config.embed_dim // config.encoders
    shapes: Shapes = {f"standardise.{kind}": ("features",) for kind in ("running_mean", "running_var")}
    for number in range(config.encoders):
        encoder = f"encoders.{number}"
        shapes |= _linear(f"projects.{number}", size, "features")
        shapes |= {f"{encoder}.words.weight": (words, config.word_size)}
        shapes |= _linear(f"{encoder}.encode", hidden, config.word_size) | _linear(f"{encoder}.decode", size, hidden)
        if config.cell == "relu":
            for direction in ("forwards", "backwards"):
                shapes |= _linear(f"{encoder}.{direction}.recurrent", hidden, hidden)
        elif config.cell != "none":
            for suffix in ("", "_reverse"):
                gates = 3 if config.cell == "gru" else 4
                shapes |= _recurrent(f"{encoder}.context", gates, hidden, hidden, suffix)
    if config.hubs:
        for side in ("texts", "images"):
            shapes |= _linear(f"hubs.{side}", config.hubs, config.embed_dim)
        shapes |= {"hubs.temperatures": (2,)}
    return shapes


def _captioner(config: CaptionerConfig, words: int) -> Shapes:
    return _caption_decoder(config, words) | _ngrams(config.ngrams)


def _ngrams(config: NgramsConfig) -> Shapes:
    if not config.count:
        return {}
    shapes = _linear("ngrams.query", config.size, "features")
    shapes |= {"ngrams.keys": (config.count, config.size), "ngrams.token_ids": (config.words,)}
    return shapes | {f"ngrams.{kind}": (config.count,) for kind in ("offsets", "rarity", "lengths")}


def _caption_decoder(config: CaptionerConfig, words: int) -> Shapes:
    word, hidden = config.word_size, config.hidden_size
    if config.decoder == "lstm":
        return _lstm_decoder("features", words, word, hidden)
    shapes: Shapes = {"decoder.words.weight": (words, word)}
    if config.decoder == "attention":
        return shapes | _attention(config)
    if config.decoder == "gru":
        shapes |= _linear("decoder.begin", hidden, "features") | _recurrent("decoder.gru", 3, word, hidden)
        return shapes | _linear("decoder.output", word, hidden)
    shapes |= _linear("decoder.image", hidden, "features", bias=False) | _linear("decoder.again", hidden, hidden)
    return shapes | _linear("decoder.heard", hidden, word, bias=False) | _linear("decoder.output", words, hidden)


def _attention(config: CaptionerConfig) -> Shapes:
    word, region, hidden = config.word_size, config.region_size, config.hidden_size
    terms: dict[str, Shapes] = {
        "word-state": _linear("decoder.word_state", word, hidden, bias=False),
        "word-region": _linear("decoder.word_region", word, region, bias=False),
        "region-state": _linear("decoder.region_state", region, hidden, bias=False),
        "word": {"decoder.word_bias": (word,)},
        "region": {"decoder.region_bias": (region,)},
    }
    shapes = _linear("narrow", region, "features") | _linear("decoder.begin", hidden, "features")
    shapes |= _recurrent("decoder.gru", 3, word + (region if config.feedback != "none" else 0), hidden)
    for term in config.terms:
        shapes |= terms[term]
    return shapes


def _nouns(config: NounsConfig, words: int) -> Shapes:
    kinds = words - len(RESERVED) + 2
    return _linear("imagenet", 1000, LAST_CHANNELS) | _linear("kinds", kinds, "features")
