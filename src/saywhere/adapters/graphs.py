"""Third-party models as graphs in ONNX Runtime, without torch and transformers.

The graphs, and the names of their inputs and outputs, are those of the exports that transformers.js runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from saywhere.adapters.adapter import Detected
from saywhere.adapters.sources import CONFIG, GRAPHS, Adapted, suffix
from saywhere.engines.arrays.layers import log_softmax
from saywhere.engines.onnx import Session, find_provider, import_runtime, session_options
from saywhere.errors import UserError
from saywhere.files import read_json
from saywhere.models.decoding import largest
from saywhere.options import dataclass

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
"""NumPy types by ONNX Runtime's names."""
NAMES = {
    "vision_encoder": ("pixel_values", "image_features"),
    "embed_tokens": ("input_ids", "inputs_embeds"),
    "encoder_model": ("inputs_embeds", "last_hidden_state"),
    "decoder_model_merged": ("use_cache_branch", "logits"),
    "model": ("pixel_values", "logits"),
}
"""An input and an output that identify each graph."""


class GraphRunner:
    """Graphs and a tokenizer; see :class:`saywhere.adapters.adapter.Runner`.

    Args:
        found: the model.
        kind: the family's class, which names tokens that its tokenizer must have.
        device: one of :data:`saywhere.engines.onnx.DEVICES`; None: ``cpu``.
        threads: number of threads; None: as many as the process may use.
        precision: precision of the graphs, one of :data:`saywhere.adapters.sources.PRECISIONS`.

    Raises:
        UserError: a file is missing, damaged or another model's, or there is no such device or precision.
        ImportError: tokenizers is not installed.
    """

    def __init__(self, found: Adapted, kind: Any, device: str | None, threads: int | None, precision: str) -> None:
        self._folder = found.folder
        self.device = device or "cpu"
        find_provider(self.device)
        paths = {name: self._folder / GRAPHS / f"{name}{suffix(precision)}.onnx" for name in found.family.graphs}
        for path in paths.values():
            if not path.is_file():
                there = sorted(path.name for path in path.parent.glob("*.onnx"))
                raise UserError(f"{path} is missing; there are {', '.join(there)}")
        self.config, self.pixels = read_json(self._folder / CONFIG), Pixels(self._folder)
        self._tokenizer = self._open_tokenizer(kind.marks)
        self._settings = Generation.read(self._folder) if len(paths) > 1 else None
        self.silent = self._settings.silent if self._settings else ()
        self.files = sorted(path for own in paths.values() for path in own.parent.glob(f"{own.name}*"))
        self._graphs = {name: Graph(path, threads, self.device) for name, path in paths.items()}
        for name, graph in self._graphs.items():
            if lacking := [each for each in NAMES[name] if each not in (*graph.inputs, *graph.outputs)]:
                raise UserError(f"{paths[name]}: is another graph: it has no {lacking[0]}")

    def _open_tokenizer(self, marks: Sequence[str]) -> Any:
        from tokenizers import Tokenizer

        path = self._folder / "tokenizer.json"
        try:
            tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # it raises no narrower class
            raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error
        size = (self.config.get("text_config") or {}).get("vocab_size", tokenizer.get_vocab_size())
        lacking = [mark for mark in marks if tokenizer.token_to_id(mark) is None]
        if lacking or tokenizer.get_vocab_size() > size:
            reason = f"no token {lacking[0]}" if lacking else f"{tokenizer.get_vocab_size()} tokens instead of {size}"
            raise UserError(f"{path}: is another model's: it has {reason}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def to(self, device: str) -> None:
        if device != self.device:
            raise UserError(f"{self._folder}: graphs stay on {self.device}; load the model with device={device!r}")

    def token_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(token_id) for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _encode(self, texts: Sequence[str], length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of texts, with special tokens and right padding, and the mask of real tokens."""
        rows = [self._tokenizer.encode(text).ids for text in texts]
        if length is not None:  # keep the special last token
            rows = [[*row[: length - 1], row[-1]] if len(row) > length else row for row in rows]
        mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
        token_ids = np.full(mask.shape, self.config.get("pad_token_id") or 0, np.int64)
        token_ids[mask] = np.concatenate(rows)
        return token_ids, mask.astype(np.int64)

    def write(
        self, images: Sequence[Image.Image], prompts: Sequence[str], most_tokens: int, beam_size: int
    ) -> list[tuple[list[int], np.ndarray]]:
        assert self._settings is not None, "a model that writes has several graphs"
        token_ids, mask = self._encode(prompts)
        seen = self._graphs["vision_encoder"](pixel_values=self.pixels(images))["image_features"]
        read = self._graphs["embed_tokens"](input_ids=token_ids)["inputs_embeds"]
        mask = np.concatenate((np.ones(seen.shape[:2], np.int64), mask), axis=1)
        embeddings = np.concatenate((seen, read), axis=1)
        states = self._graphs["encoder_model"](inputs_embeds=embeddings, attention_mask=mask)["last_hidden_state"]
        decoder = CachedDecoder(self._graphs["embed_tokens"], self._graphs["decoder_model_merged"], states, mask)
        return search(decoder, len(images), self._settings, most_tokens, beam_size)

    def detect(self, images: Sequence[Image.Image], texts: Sequence[Any], length: int, **options: Any) -> Detected:
        token_ids, mask = self._encode(texts, length)
        pixels = self.pixels(images)
        out = self._graphs["model"](
            pixel_values=pixels, pixel_mask=np.ones((len(pixels), *pixels.shape[2:]), np.int64), input_ids=token_ids,
            token_type_ids=np.zeros_like(token_ids), attention_mask=mask,
        )  # fmt: skip
        return Detected(out["logits"].astype(np.float32), out["pred_boxes"].astype(np.float32), token_ids)


class Graph:
    """A graph as a function of named arrays."""

    def __init__(self, path: Path, threads: int | None, device: str) -> None:
        def load(provider: str) -> Any:
            return import_runtime().InferenceSession(str(path), session_options(threads), providers=[provider])

        self._session = Session(path, load, device)
        self.inputs, self.outputs = self._session.inputs, self._session.outputs

    def __call__(self, names: Sequence[str] | None = None, /, **values: np.ndarray) -> dict[str, np.ndarray]:
        """Return the named outputs, by default all, for arrays; those that are not inputs of the graph are ignored.

        Raises:
            UserError: the graph cannot process them.
        """
        fed = {name: np.asarray(values[name], TYPES.get(each.type)) for name, each in self.inputs.items()}
        return self._session.run(fed, names)


class Pixels:
    """Resize and normalise images as in ``preprocessor_config.json``; images of a batch must get the same size."""

    def __init__(self, folder: Path) -> None:
        stored = read_json(path := folder / "preprocessor_config.json")
        try:
            self.size: dict[str, int] = {name: int(value) for name, value in stored["size"].items()}
            self.resample = Image.Resampling(stored.get("resample", Image.Resampling.BILINEAR))
            self.factor = np.float32(stored.get("rescale_factor", 1 / 255))
            self.mean, self.std = (
                np.array(stored[name], np.float32).reshape(3) for name in ("image_mean", "image_std")
            )
            cropped = stored.get("do_center_crop", False)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: cannot be understood: {error!r}") from error
        if cropped or not (self.size.keys() >= {"height", "width"} or self.size.keys() >= {"shortest_edge"}):
            raise UserError(f"{path}: its cropping or size is not supported; use the engine torch")

    def __call__(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Return pixels ``(N, 3, h, w)`` float32."""
        resized = [np.asarray(each.resize(self.input_size(*each.size), self.resample), np.float32) for each in images]
        return ((np.stack(resized) * self.factor - self.mean) / self.std).transpose(0, 3, 1, 2)

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of the network's input for an image."""
        if "height" in self.size:
            return self.size["width"], self.size["height"]
        short, most = float(self.size["shortest_edge"]), self.size.get("longest_edge")
        side = short
        if most is not None and max(width, height) / min(width, height) * short > most:
            short = most * min(width, height) / max(width, height)
            side = round(short)
        if min(width, height) == side:
            return width, height
        long = int(short * max(width, height) / min(width, height))
        return (int(side), long) if width < height else (long, int(side))


RULES: dict[str, float] = {
    "repetition_penalty": 1, "min_length": 0, "min_new_tokens": 0, "bad_words_ids": 0, "suppress_tokens": 0,
    "begin_suppress_tokens": 0, "encoder_no_repeat_ngram_size": 0, "num_beam_groups": 1, "diversity_penalty": 0,
    "do_sample": False,
}  # fmt: skip
"""Generation rules that are not supported, and the values other than None that switch them off."""


@dataclass(frozen=True)
class Generation:
    """The decoding options in ``generation_config.json``.

    Attributes:
        start: the token that decoding starts from.
        first, last: forced first token, and forced last token of an answer of maximum length; None: not forced.
        ends: tokens that end an answer.
        silent: ids of special tokens, which are not part of a text.
        ngram: length of n-grams that are never repeated; 0: no such rule.
        length_penalty: exponent of an answer's length, by which its log-probability is divided.
    """

    start: int
    first: int | None
    last: int | None
    ends: tuple[int, ...]
    silent: frozenset[int]
    ngram: int
    length_penalty: float

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """Read the file in a folder; raise ``UserError`` if something is missing, or a rule is not supported."""
        stored = read_json(path := folder / "generation_config.json")
        for name, off in RULES.items():
            if (stored.get(name) or off) != off:
                raise UserError(f"{path}: {name}={stored[name]!r} is not supported; use the engine torch")
        try:
            ends = stored["eos_token_id"]
            ends = tuple(ends) if isinstance(ends, list) else (int(ends),)
            start = stored.get("decoder_start_token_id", stored.get("bos_token_id"))
            silent = frozenset({*ends, *(stored[name] for name in ("bos_token_id", "pad_token_id"))})
            first, last = (stored.get(f"forced_{name}_token_id") for name in ("bos", "eos"))
            ngram, penalty = stored.get("no_repeat_ngram_size") or 0, float(stored.get("length_penalty") or 1)
            if not all(isinstance(each, int) for each in (start, ngram, *silent, first or 0, last or 0)):
                raise TypeError("token ids must be whole numbers")
            return cls(int(start), first, last, ends, silent, ngram, penalty)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: cannot be understood: {error!r}") from error

    def allow(self, scores: np.ndarray, written: np.ndarray, ending: bool) -> np.ndarray:
        """Return scores ``(R, V)`` with -inf for tokens that may not follow ``written`` ``(R, T)``, ``start`` included.

        ``ending`` says that this is the last token that fits.
        """
        forced = self.first if written.shape[1] == 1 else None
        forced = self.last if ending and self.last is not None else forced
        if forced is not None:
            scores = np.full_like(scores, -np.inf)
            scores[:, forced] = 0
        elif 0 < self.ngram <= written.shape[1]:
            windows = np.lib.stride_tricks.sliding_window_view(written, self.ngram, axis=1)
            alike = (windows[..., :-1] == written[:, None, written.shape[1] - self.ngram + 1 :]).all(axis=2)
            rows, places = np.nonzero(alike)
            scores[rows, windows[rows, places, -1]] = -np.inf
        return scores


class CachedDecoder:
    """A decoder with a cache of keys and values.

    Args:
        embed, decode: graphs of the token embeddings and of the decoder.
        states, mask: the encoder's states ``(N, S, D)``, and the mask of real ones ``(N, S)``.
    """

    def __init__(self, embed: Graph, decode: Graph, states: np.ndarray, mask: np.ndarray) -> None:
        self._embed, self._decode = embed, decode
        self._read = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        self._items = np.arange(len(states))
        self._past: dict[str, np.ndarray] = {}
        self._own = [name for name in decode.outputs if name.startswith("present.") and ".decoder." in name]

    def __call__(self, token_ids: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """Return logits ``(R, V)`` after one more token per row; ``rows`` ``(R,)``: previous rows; None: the same."""
        if rows is not None:
            self._select(rows)
        first = not self._past
        embeddings = self._embed(input_ids=token_ids[:, None])["inputs_embeds"]
        past = self._past or {
            name: np.zeros((len(token_ids), each.shape[1], 0, each.shape[3]), TYPES[each.type])
            for name, each in self._decode.inputs.items()
            if name.startswith("past_key_values.")
        }
        names = None if first else ["logits", *self._own]  # the encoder's keys are computed only once
        out = self._decode(
            names, inputs_embeds=embeddings, use_cache_branch=np.array([not first]), **self._read, **past
        )
        logits = out.pop("logits")[:, -1].astype(np.float32)
        self._past |= {name.replace("present.", "past_key_values."): value for name, value in out.items()}
        return logits

    def _select(self, rows: np.ndarray) -> None:
        """Keep some rows; the encoder's states are only moved if the rows belong to other items than before."""
        items = self._items[rows]
        moved = not np.array_equal(items, self._items)
        self._items = items
        self._past = {name: v[rows] if moved or ".decoder." in name else v for name, v in self._past.items()}
        if moved:
            self._read = {name: value[rows] for name, value in self._read.items()}


class Hypotheses(NamedTuple):
    """Beginnings of answers: tokens ``(R, B, T)`` with the start, ``(R, B, T - 1)`` for the others, and its sum."""

    tokens: np.ndarray
    log_probs: np.ndarray
    total: np.ndarray

    def step(self, scores: np.ndarray, count: int) -> tuple[Hypotheses, np.ndarray]:
        """Return the ``count`` likeliest with one more token, and which each continues, ``(R, count)``.

        ``scores`` ``(R * B, V)`` are log-probabilities of the tokens.
        """
        scores = scores.reshape(*self.total.shape, -1)
        sums = (scores + self.total[..., None]).reshape(len(scores), -1)
        best, rows = largest(sums, count), np.arange(len(sums))[:, None]
        parents, words = np.divmod(best, scores.shape[2])
        tokens = np.concatenate((self.tokens[rows, parents], words[..., None]), axis=2)
        log_probs = np.concatenate((self.log_probs[rows, parents], scores[rows, parents, words][..., None]), axis=2)
        return Hypotheses(tokens, log_probs, sums[rows, best]), parents


def search(
    decoder: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
    count: int,
    settings: Generation,
    most_tokens: int,
    beam_size: int = 1,
) -> list[tuple[list[int], np.ndarray]]:
    """Return the best answer for each of ``count`` items, with the log-probability of each token.

    Decoding is greedy, or beam search like that of transformers with ``early_stopping``: ended hypotheses leave the
    beam, and the best of the first ``beam_size`` ended ones wins. (In :func:`saywhere.models.decoding.search` they
    stay in the beam.) ``decoder`` takes the last tokens and their previous rows, and returns logits.
    """
    ended: list[list[tuple[float, list[int], np.ndarray]]] = [[] for _ in range(count)]
    items, rows = np.arange(count), None
    start = np.full((count, 1, 1), settings.start, np.int64)
    beam = Hypotheses(start, np.zeros((count, 1, 0), np.float32), np.zeros((count, 1), np.float32))
    for length in range(1, most_tokens + 1):
        written, last = beam.tokens.reshape(-1, length), length == most_tokens
        scores = decoder(written[:, -1], rows)
        if beam_size > 1:
            scores = settings.allow(log_softmax(scores), written, last)
        else:
            scores = log_softmax(settings.allow(scores, written, last))
        grown, parents = beam.step(scores, (1 + max(1, len(settings.ends))) * beam_size)
        ends = np.isin(grown.tokens[:, :, -1], settings.ends) | last
        for row, item in enumerate(items):
            for column in np.flatnonzero(ends[row, :beam_size] & np.isfinite(grown.total[row, :beam_size])):
                tokens, log_probs, total = (each[row, column] for each in grown)
                ended[item].append((float(total) / length**settings.length_penalty, tokens[1:].tolist(), log_probs))
            ended[item] = sorted(ended[item], key=lambda one: -one[0])[:beam_size]
        left = np.flatnonzero([len(ended[item]) < beam_size for item in items])
        if last or not len(left):
            break
        chosen, kept = left[:, None], np.argsort(ends, axis=1, kind="stable")[left, :beam_size]
        rows = (chosen * beam.total.shape[1] + parents[chosen, kept]).reshape(-1)
        rows = None if np.array_equal(rows, np.arange(len(written))) else rows
        items, beam = items[left], Hypotheses(*(each[chosen, kept] for each in grown))
    return [(answers[0][1], answers[0][2]) for answers in ended]


RUNNER = GraphRunner
