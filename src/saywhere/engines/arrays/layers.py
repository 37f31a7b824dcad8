"""Weights from a model file, basic layers, and predictors of n-grams."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from saywhere.configs.parts import NgramsConfig
from saywhere.errors import UserError
from saywhere.options import dataclass
from saywhere.text import END, START

ROWS_TOGETHER = 4
"""Number of rows that OpenBLAS computes at a time."""
PANEL, DEPTH, SMALL = 64, 448, 10**6
"""Columns and rows of a panel of :class:`Panels`, and maximum number of multiplications in a small product."""
MANY_ROWS = 64
"""With more rows than this, padding costs more than it saves."""
BLOCK = 1 << 15
"""Number of values converted at a time."""
SIGN_AND_NUMBER = np.int32(-0x70002000)
"""Mask of the single-precision bits that half precision fills: the sign, and 15 bits of exponent and fraction."""
SCALE = np.float32(2.0**112)
INFINITE, MINUS_INFINITE = 0x7C00, 0xFC00
"""Bits of the infinities in half precision."""
UNUSED = ("num_batches_tracked", "log_scale")
"""Last names of stored arrays that only training needs."""
Shapes = dict[str, tuple[int | str, ...]]
"""Shapes of arrays by name; a length that no option gives has a name, and must be equal wherever that occurs."""


class Weights:
    """Arrays of a model file, read on demand in single precision.

    Args:
        read: function that returns an array by name.
        shapes: function that returns the shape of an array by name, without reading it.
        prefix: prefix of all requested names.
        content: the memory-mapped file, if arrays are views of it.
    """

    def __init__(
        self,
        read: Callable[[str], np.ndarray],
        shapes: Callable[[str], Sequence[int]],
        names: frozenset[str],
        prefix: str = "",
        content: mmap.mmap | None = None,
    ) -> None:
        self._read, self._shapes, self._names, self._prefix, self._content = read, shapes, names, prefix, content

    @classmethod
    def open(cls, path: Path) -> Weights:
        """Open a safetensors file (or ``UserError``); half-precision arrays are views of the mapped file."""
        try:
            file = safe_open(path, framework="numpy")  # validates the file
            with open(path, "rb") as stream:
                content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        first = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:first])

        def read(name: str) -> np.ndarray:
            if header[name]["dtype"] != "F16":
                return file.get_tensor(name)
            start, stop = header[name]["data_offsets"]
            return np.frombuffer(content, "<f2", (stop - start) // 2, first + start).reshape(header[name]["shape"])

        return cls(read, lambda name: header[name]["shape"], frozenset(file.keys()), content=content)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Weights:
        """Wrap arrays in memory as weights."""
        return cls(arrays.__getitem__, lambda name: arrays[name].shape, frozenset(arrays))

    def release(self) -> None:
        """Free the memory of file pages that were read; they are read again on demand."""
        if self._content is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._content.madvise(mmap.MADV_DONTNEED)

    def has(self, name: str) -> bool:
        """Return whether there is an array of this name."""
        return self._prefix + name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array; ``UserError`` if it is missing."""
        return tuple(self._asked(self._shapes, name))

    def __getitem__(self, name: str) -> np.ndarray:
        """Return an array in single precision; ``UserError`` if it is missing or damaged."""
        value = self.stored(name)
        return value if value.dtype.kind in "iub" else in_single(value)

    def transposed(self, name: str) -> np.ndarray:
        """Return a matrix ``(n, m)`` in single precision as ``(m, n)``, row-major in memory.

        This makes products with few rows twice as fast.
        """
        return in_single(self.stored(name).T)

    def for_few_rows(self, name: str) -> np.ndarray | Panels:
        """Return a matrix ``(n, m)`` as ``(m, n)`` for :func:`product`, in the fastest form for few rows."""
        return Panels(self.stored(name)) if small_products() else self.transposed(name)

    def stored(self, name: str) -> np.ndarray:
        """Return an array as it is stored; ``UserError`` if it is missing or damaged."""
        return self._asked(self._read, name)

    def _asked(self, ask: Callable[[str], Any], name: str) -> Any:
        name = self._prefix + name
        if name not in self._names:
            raise UserError(f"the model's weights lack {name}")
        try:
            return ask(name)
        except (SafetensorError, OSError, TypeError, AttributeError) as error:  # last two: a type that NumPy lacks
            raise UserError(f"{name} of the model's weights cannot be read: {' '.join(str(error).split())}") from error

    def names(self) -> list[str]:
        """Return the sorted names of all arrays below the prefix."""
        return sorted(n.removeprefix(self._prefix) for n in self._names if n.startswith(self._prefix))

    def below(self, prefix: str) -> Weights:
        """Return the weights whose names begin with ``prefix`` and a dot."""
        return Weights(self._read, self._shapes, self._names, f"{self._prefix}{prefix}.", self._content)


def require_shapes(part: str, wanted: Shapes, vocabulary_size: int, weights: Weights) -> None:
    """Raise a one-line ``UserError`` if weights do not fit a part's options and vocabulary.

    Args:
        wanted: shapes of the arrays that the part's layers read, by its options.
        vocabulary_size: V, including reserved tokens.
    """
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


def in_single(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert an array to row-major single precision, into ``out`` if given.

    Half precision is converted by shifting bits, one cache-sized block at a time, which is up to five times faster than
    NumPy. The shifted bits mean a value ``2 ** 112`` times too small, so the result is scaled. Infinities and NaN,
    which scaling cannot produce, have the largest bit patterns and are left to NumPy.
    """
    if out is None:
        if values.dtype != np.float16 or values.size < BLOCK:
            return np.asarray(values, np.float32, order="C")
        out = np.empty(values.shape, np.float32)
    finite = values.dtype == np.float16 and values.size > 0
    if not finite or values.view(np.int16).max() >= INFINITE or values.view(np.uint16).max() >= MINUS_INFINITE:
        out[...] = values
        return out
    rows = max(1, BLOCK * len(values) // values.size)
    for start in range(0, len(values), rows):
        block = out[start : start + rows]
        bits = block.view(np.int32)
        bits[...] = values[start : start + rows].view(np.int16)  # sign-extended
        bits <<= 13
        bits &= SIGN_AND_NUMBER
        block *= SCALE
    return out


@cache
def small_products() -> bool:
    """Return whether NumPy multiplies small matrices in place: OpenBLAS copies them first, except with AVX-512."""
    built: Any = np.show_config("dicts")
    features = built.get("SIMD Extensions", {}).get("found", [])
    blas = built.get("Build Dependencies", {}).get("blas", {}).get("name", "")
    return "openblas" in blas and not {"X86_V4", "AVX512_SKX"}.isdisjoint(features)


class Panels:
    """A weight ``(in, out)`` in panels, small enough to be multiplied with few rows without copying.

    With few rows, copying a weight takes as long as the product. ``stored`` is ``(out, in)``.
    """

    def __init__(self, stored: np.ndarray) -> None:
        self.shape = stored.shape[::-1]
        rows, columns = self.shape
        count = -(-columns // PANEL)
        width = -(-columns // count)
        self._panels = np.empty((count, rows, width), np.float32)
        self._panels[-1] = 0  # may have excess columns
        for number, panel in enumerate(self._panels):
            part = stored[number * width : (number + 1) * width].T
            in_single(part, panel[:, : part.shape[1]])

    def product(self, x: np.ndarray) -> np.ndarray:
        """Return ``x @ weight``: ``(N, in)`` to ``(N, out)``."""
        count, depth, width = self._panels.shape
        found = np.empty((len(x), count, width), np.float32)
        together = SMALL // (min(depth, DEPTH) * width)
        for start in range(0, len(x), together):
            rows = x[start : start + together]
            sums = np.matmul(rows[:, :DEPTH], self._panels[:, :DEPTH])
            for step in range(DEPTH, depth, DEPTH):
                sums += np.matmul(rows[:, step : step + DEPTH], self._panels[:, step : step + DEPTH])
            found[start : start + together] = sums.transpose(1, 0, 2)
        return found.reshape(len(x), count * width)[:, : self.shape[1]]


def product(x: np.ndarray, weight: np.ndarray | Panels) -> np.ndarray:
    """Return ``x @ weight`` in single precision for rows ``(..., in)``; few rows are padded to a multiple of four.

    OpenBLAS computes four rows at a time and can take twice as long for seven rows as for eight. A single row is faster
    without padding.
    """
    if isinstance(weight, Panels):
        rows = weight.product(x.reshape(-1, x.shape[-1]))
        return rows if x.ndim == 2 else rows.reshape(*x.shape[:-1], weight.shape[1])
    missing = -len(x) % ROWS_TOGETHER
    if not missing or len(x) == 1 or len(x) > MANY_ROWS or x.ndim != 2:
        return x @ weight
    filled = np.concatenate((x, np.zeros((missing, x.shape[1]), np.float32)))
    return (filled @ weight)[: len(x)]


class Linear:
    """Compute ``x W' + b``; ``b`` is optional."""

    def __init__(self, weights: Weights) -> None:
        self.weight = weights.for_few_rows("weight")
        self.bias = weights["bias"] if weights.has("bias") else None

    @staticmethod
    def shapes(name: str, rows: int, columns: int | str, bias: bool = True) -> Shapes:
        """Return the shapes of the arrays it reads, by name with the prefix ``name``."""
        shapes: Shapes = {f"{name}.weight": (rows, columns)}
        return {**shapes, f"{name}.bias": (rows,)} if bias else shapes

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map ``(..., in)`` to ``(..., out)``."""
        y = product(x, self.weight)
        if self.bias is not None:
            y += self.bias
        return y


class WordVectors:
    """Word vectors shared by the input and output of a decoder.

    Attributes:
        columns: ``(D, V)``, one word per column; products with few rows are more than twice as fast this way.
    """

    def __init__(self, weights: Weights) -> None:
        self.columns = weights.transposed("words.weight")

    @property
    def size(self) -> int:
        """Dimension D."""
        return len(self.columns)

    def __getitem__(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the vectors ``(N, D)`` of words ``(N,)``."""
        return self.columns[:, token_ids].T


class BatchNorm:
    """Normalise ``(N, D)`` by stored statistics; scale and shift are optional."""

    def __init__(self, weights: Weights) -> None:
        scale = 1 / np.sqrt(weights["running_var"] + np.float32(1e-5))
        scale = scale * weights["weight"] if weights.has("weight") else scale
        shift = -weights["running_mean"] * scale
        self.scale, self.shift = scale, shift + weights["bias"] if weights.has("bias") else shift

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the normalised rows."""
        return x * self.scale + self.shift


def recurrent_shapes(name: str, gates: int, inputs: int, size: int, suffix: str = "l0") -> Shapes:
    """Return the shapes of the arrays of torch's GRU (3 gates) or LSTM (4)."""
    rows = gates * size
    return {
        f"{name}.weight_ih_{suffix}": (rows, inputs),
        f"{name}.weight_hh_{suffix}": (rows, size),
        f"{name}.bias_ih_{suffix}": (rows,),
        f"{name}.bias_hh_{suffix}": (rows,),
    }


class Gru:
    """One direction of a gated recurrent unit, with torch's order of gates: reset, update, new."""

    def __init__(self, weights: Weights, suffix: str = "l0") -> None:
        self.w_in, self.b_in = weights.transposed(f"weight_ih_{suffix}"), weights[f"bias_ih_{suffix}"]
        self.w_state, self.b_state = weights.for_few_rows(f"weight_hh_{suffix}"), weights[f"bias_hh_{suffix}"]

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Return what the inputs ``(..., I)`` add to the gates ``(..., 3 H)``, for all steps at once."""
        gates = product(x, self.w_in)
        gates += self.b_in
        return gates

    def step(self, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the state ``(N, H)`` after a step with :meth:`inputs` ``(N, 3 H)``."""
        size = state.shape[1]
        recurrent = product(state, self.w_state)
        recurrent += self.b_state
        gates = sigmoid(inputs[:, : 2 * size] + recurrent[:, : 2 * size])
        new = recurrent[:, 2 * size :]
        new *= gates[:, :size]
        new += inputs[:, 2 * size :]
        np.tanh(new, out=new)
        following = state - new
        following *= gates[:, size:]
        following += new
        return following


class WordGates:
    """What V words add to a GRU's gates by ``weight (D, 3 H)`` and ``bias``; computed per word at first use."""

    def __init__(self, words: WordVectors, weight: np.ndarray, bias: np.ndarray) -> None:
        self._words, self._weight, self._bias = words, weight, bias
        count = words.columns.shape[1]
        self._gates, self._known = np.empty((count, len(bias)), np.float32), np.zeros(count, bool)

    def __getitem__(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the gates ``(N, 3 H)`` of words ``(N,)``."""
        for word in set(token_ids[~self._known[token_ids]].tolist()):  # singly: a batch would change the last digits
            self._gates[word] = self._words[word] @ self._weight + self._bias
            self._known[word] = True  # only after the gates, for other threads that need the same word
        return self._gates[token_ids]


class Lstm:
    """A long short-term memory, with torch's order of gates: input, forget, cell, output."""

    def __init__(self, weights: Weights) -> None:
        self.w_in, self.w_state = weights.for_few_rows("weight_ih_l0"), weights.for_few_rows("weight_hh_l0")
        self.bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]

    @property
    def size(self) -> int:
        """Dimension H."""
        return self.w_state.shape[0]

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Return what the inputs ``(..., I)`` add to the gates ``(..., 4 H)``, for all steps at once."""
        return product(x, self.w_in) + self.bias

    def step(self, inputs: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the state and the cell ``(N, H)`` after a step with :meth:`inputs` ``(N, 4 H)``."""
        size = h.shape[1]
        gates = inputs + product(h, self.w_state)
        opened = sigmoid(gates)
        cell = opened[:, size : 2 * size] * c + opened[:, :size] * np.tanh(gates[:, 2 * size : 3 * size])
        return opened[:, 3 * size :] * np.tanh(cell), cell


def relu(x: np.ndarray) -> np.ndarray:
    """Return ``max(x, 0)``."""
    return np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function of an array of floats, without overflow."""
    y = np.float32(0.5) * x
    np.tanh(y, out=y)
    y += 1
    y *= np.float32(0.5)
    return y


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Return the log-softmax of an array of floats over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def layer_norm(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Normalise each row to mean 0 and variance 1."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(eps))


def side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join the vectors of several encoders, scaled so that products are the mean of the encoders' products."""
    return np.concatenate(parts, axis=-1) / np.float32(np.sqrt(len(parts)))


# N-grams

ORDER = 4
"""Length of the longest n-grams in words."""
SMALLEST = 1e-9
STORED = ("keys", "offsets", "rarity", "lengths", "token_ids")
"""Names of the n-gram arrays in a model's weights."""

Ngram = tuple[int, ...]
Layers = tuple[tuple[np.ndarray, np.ndarray], ...]


def ngrams_of(token_ids: Sequence[int], size: int) -> list[Ngram]:
    """Return the n-grams of length ``size`` in a sentence, in order; from length 2 on with START and END."""
    ids = [START, *token_ids, END] if size > 1 else list(token_ids)
    return [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]


@dataclass(frozen=True, eq=False)
class Ngrams:
    """G n-grams, with the weights that predict their probabilities from an image or region, to rerank hypotheses.

    An n-gram is a tuple of 1 to 4 token ids; from length 2 on it can include START and END. Its probability of
    occurring in a caption of the image or a phrase of the region is a logistic function of a low-dimensional projection
    of the features. :mod:`saywhere.training.ngrams` chooses the n-grams and learns the weights.

    Attributes:
        layers: weight ``(F, D)`` and bias ``(D,)`` of each layer that projects the features; a ReLU between two layers.
        keys: ``(G, D)`` weights of the n-grams, stored as integers.
        offsets: ``(G,)`` log-odds without an image.
        rarity: ``(G,)`` natural log of 1 / the fraction of images or regions with the n-gram in their texts.
        lengths: ``(G,)`` number of words in each.
        rows: index and rarity of each n-gram.
    """

    layers: Layers
    keys: np.ndarray
    offsets: np.ndarray
    rarity: np.ndarray
    lengths: np.ndarray
    rows: Mapping[Ngram, tuple[int, float]]

    @classmethod
    def read(cls, weights: Weights, vocabulary_size: int) -> Ngrams:
        """Create them from the weights of a model; ``UserError`` as :meth:`unpack`."""
        names = [name for name in ("hidden", "query") if weights.has(f"{name}.weight")]
        layers = tuple((weights.transposed(f"{name}.weight"), weights[f"{name}.bias"]) for name in names)
        return cls.unpack(layers, {name: weights[name] for name in STORED}, vocabulary_size)

    @staticmethod
    def shapes(config: NgramsConfig) -> Shapes:
        """Return the shapes of the arrays it reads, by name; none without n-grams."""
        if not config.count:
            return {}
        shapes = Linear.shapes("ngrams.hidden", config.hidden, "features") if config.hidden else {}
        shapes |= Linear.shapes("ngrams.query", config.size, config.hidden or "features")
        shapes |= {"ngrams.keys": (config.count, config.size), "ngrams.token_ids": (config.words,)}
        return shapes | {f"ngrams.{kind}": (config.count,) for kind in ("offsets", "rarity", "lengths")}

    @classmethod
    def unpack(cls, layers: Layers, arrays: Mapping[str, np.ndarray], vocabulary_size: int) -> Ngrams:
        """Create them from the arrays :data:`STORED`; ``UserError`` if lengths or the V token ids do not fit."""
        lengths, token_ids = arrays["lengths"].astype(np.int64), arrays["token_ids"]
        fit = lengths.sum() == len(token_ids) and ((lengths > 0) & (lengths <= ORDER)).all()
        if not fit or not ((token_ids >= 0) & (token_ids < vocabulary_size)).all():
            raise UserError("the n-grams of a part do not fit their lengths or its vocabulary")
        keys, offsets, rarity = (arrays[name].astype(np.float32) for name in STORED[:3])
        ids, known = (
            token_ids.tolist(),
            zip(lengths.tolist(), np.cumsum(lengths).tolist(), rarity.tolist(), strict=True),
        )
        rows = {tuple(ids[end - n : end]): (row, rare) for row, (n, end, rare) in enumerate(known)}
        return cls(layers, keys, offsets, rarity, lengths, rows)

    @property
    def longest(self) -> int:
        """Length of the longest n-gram."""
        return int(self.lengths.max(initial=1))

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability ``(N, G)`` of each n-gram for images or regions with features ``(N, F)``."""
        rows = features
        for number, (weight, bias) in enumerate(self.layers):
            rows = (np.maximum(rows, 0) if number else rows) @ weight + bias
        return 1 / (1 + np.exp(-(rows @ self.keys.T + self.offsets)))

    def word_probabilities(self, expected: np.ndarray, token_ids: Sequence[int]) -> list[float | None]:
        """Return the probability of each of several words, given those of all n-grams ``(G,)``; None if not stored."""
        rows = [self.rows.get((number,)) for number in token_ids]
        return [None if row is None else float(expected[row[0]]) for row in rows]

    def agreement(self, expected: np.ndarray, sentences: Sequence[WeighedNgrams]) -> list[np.ndarray]:
        """Return how well the texts of N images or regions agree with their probable n-grams, from 0 to 1.

        This is the cosine of a text's n-grams and their probabilities ``expected (N, G)``, both weighted by rarity,
        averaged over the length n with weight n.
        """
        expected = expected * self.rarity
        sizes = np.arange(self.longest + 1)
        for row in expected:
            norms = np.sqrt(np.bincount(self.lengths, row * row, len(sizes)))
            row *= (sizes / sizes.sum() / np.maximum(norms, SMALLEST))[self.lengths]
        of_each = zip(expected, sentences, strict=True)
        return [(own.weights @ np.where(own.rows >= 0, row[own.rows], 0)).astype(np.float32) for row, own in of_each]

    def weigh(self, sentences: Sequence[Sequence[int]], unknown: bool = True) -> WeighedNgrams:
        """Return the weighted n-grams of several sentences, given without END.

        ``unknown``: n-grams that are not stored count as rare as the rarest stored one. Otherwise they are left out.
        """
        places, sizes = dict[Ngram, int](), range(1, self.longest + 1)
        found = [
            [places.setdefault(ngram, len(places)) for size in sizes for ngram in ngrams_of(ids, size)]
            for ids in sentences
        ]
        weights = np.zeros((len(found), len(places)))
        for row, own in zip(weights, found, strict=True):
            row += np.bincount(np.array(own, np.int64), minlength=len(places))
        missing = -1, float(self.rarity.max(initial=0.0)) if unknown else 0.0
        known = [self.rows.get(ngram, missing) for ngram in places]
        weights *= np.array([rarity for _, rarity in known])
        of_size = np.array([len(ngram) for ngram in places], np.int64)
        for size in sizes:
            columns = of_size == size
            norms = np.linalg.norm(weights[:, columns], axis=1, keepdims=True)
            weights[:, columns] /= np.maximum(norms, SMALLEST)
        return WeighedNgrams(weights, np.array([row for row, _ in known], np.int64))


@dataclass(frozen=True, eq=False)
class WeighedNgrams:
    """N-grams of B sentences, weighted by rarity as in CIDEr; those of each length n have norm 1.

    Attributes:
        weights: ``(B, U)`` weights of the U distinct n-grams.
        rows: ``(U,)`` their indices; -1 for those not stored.
    """

    weights: np.ndarray
    rows: np.ndarray
