"""Phrases of regions: beam search, reranking, and the removal of uncertain words.

A phrase is the hypothesis with the highest score: length-normalised log-probability, plus the weighted log-probability
of its noun (noun classifier), agreement with the likely n-grams, and similarity with the region (aligner). The noun
classifier also guides each decoding step before the noun. A word for a person's sex stays only if it is probably right;
otherwise the phrase says person or child. A colour is replaced by the most probable one in the box, or removed if that
is probably wrong.

The trunk was trained to recognise things whatever their colour. So ``colours.npz`` beside this file, shared by all
models, has the weights of a small network that names colours from the pixels of a box. ``benchmarks/colour_table.py``
trains it on boxes whose phrases name a colour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.calibration import Calibration
from saywhere.engines.engine import Aligner, Decoder, DenseCap, State
from saywhere.models.decoding import Decoded, Hypotheses, Reason, Reranker, Score, Sentence, search_each
from saywhere.models.encoding import STEP, Encoding
from saywhere.models.nouns import (
    COLOUR_NAMES,
    FUNCTION_WORDS,
    STAYS_BEFORE,
    Noun,
    NounEvidence,
    colour_of,
    end_of_colours,
    likely_length,
    noun_of,
    repeated,
)
from saywhere.options import dataclass
from saywhere.text import PAD, with_usage, without_stutter

SEXES = {
    **dict.fromkeys(("man", "men", "boy", "boys", "guy", "guys", "gentleman", "gentlemen", "male"), "male"),
    **dict.fromkeys(("woman", "women", "girl", "girls", "lady", "ladies", "female"), "female"),
}
"""Sex that a word implies, without words for relatives and roles."""

CHILDREN = frozenset({"boy", "boys", "girl", "girls"})
"""Words in SEXES for the young."""

WITHOUT_SEX = {
    **dict.fromkeys(("man", "guy", "gentleman", "woman", "lady"), "person"),
    **dict.fromkeys(("men", "guys", "gentlemen", "women", "ladies"), "people"),
    **dict.fromkeys(("boy", "girl"), "child"),
    **dict.fromkeys(("boys", "girls"), "children"),
    **dict.fromkeys(("his", "her"), "their"),
}
"""Replacements for words whose implied sex is uncertain."""

LEAST_EXPECTED = 1e-4
"""Minimum probability of a word by the n-grams, as evidence."""
UNTAUGHT, LEAST_NOUN = 0.1, 0.01
"""Assumed probability of a noun that the classifier was not trained on, and minimum probability of any noun."""
OWN_LEAST = 0.1
"""Minimum probability of the kind of thing that a word of one's own stands for, so that a region gets this word."""

COMPARED_PHRASES = 3
"""Number of hypotheses per region that the aligner scores, best first; more do not improve results."""
COMPARED = ("man", "woman", "boy", "girl", *COLOUR_NAMES)
"""Words compared with a region if its phrase has one of them."""
COLOUR_TABLE = Path(__file__).with_name("colours.npz")
GRID, CELLS, WHOLE = 16, 4, 8
"""Pixels sampled across a box, cells across a box, and pixels sampled across the whole image."""
SOFTNESS = 0.02
"""Squared distance at which the weight of a typical colour for a pixel falls to 1/e."""


@dataclass(frozen=True, eq=False)
class Doubtful:
    """A word of a phrase that may be wrong, with evidence.

    Attributes:
        question: ``person`` or ``colour`` (:data:`saywhere.calibration.QUESTIONS`).
        place: index of the word in its phrase.
        word: the word that belongs there; a colour is the most probable one by the pixels.
        evidence: inputs of the calibration of ``word`` being right, by name.
    """

    question: str
    place: int
    word: str
    evidence: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Phrases:
    """The phrases of the N regions of an image.

    Attributes:
        confidence: ``(N,)`` mean natural log-probability of the decoded tokens, END included.
        doubtful: words of each phrase that may be wrong.
        expected: ``(N,)`` mean natural log-probability of the words by the n-grams, see :func:`mean_log_probability`.
    """

    texts: tuple[str, ...]
    confidence: np.ndarray
    doubtful: tuple[tuple[Doubtful, ...], ...]
    expected: np.ndarray


class PhraseWriter:
    """Write the phrases of regions.

    Args:
        densecap: the dense captioner; its configuration has the weights for reranking.
        aligner: function that returns the aligner, called at first use; or None.
        nouns: noun classifier for reranking (:mod:`saywhere.models.nouns`); its tree also ends a phrase before it
            repeats a thing. None: neither.
        greedy: always decode greedily. Suffices if only the probabilities of other phrases are needed.
    """

    def __init__(
        self, densecap: DenseCap, aligner: Callable[[], Aligner | None] | None = None,
        nouns: NounEvidence | None = None, greedy: bool = False,
    ) -> None:  # fmt: skip
        self.nouns, self._densecap, self._read_aligner, self._config = nouns, densecap, aligner, densecap.config
        self._greedy, self._own = greedy, frozenset(densecap.config.own_words)
        self._unjudged = frozenset(word for word, kind in densecap.config.own_words.items() if not kind)

    def write(
        self,
        encodings: Sequence[Encoding],
        boxes: Sequence[np.ndarray],
        inputs: Sequence[np.ndarray],
        ranks: Sequence[np.ndarray] | None = None,
        calibration: Calibration | None = None,
        doubts: bool = False,
        posteriors: Sequence[np.ndarray] | None = None,
        features: Sequence[np.ndarray] | None = None,
    ) -> list[Phrases]:
        """Return the phrases of the regions of images.

        Args:
            boxes: one ``(N, 4)`` array per image, in its pixels.
            inputs: one ``(N, D)`` array of decoder inputs per image.
            ranks: one ``(N,)`` array per image; the ``beam_regions`` highest-ranked regions are decoded by beam search,
                the rest greedily. None: beam search for all. -inf: always greedy.
            calibration: probabilities that words are right; where it has none, the words stay.
            doubts: whether to return the evidence for words that may be wrong.
            posteriors: one ``(N, K)`` array per image by the part nouns, or None.
            features: one ``(N, F)`` array per image, inputs of the n-grams' probabilities, or None: without these.
        """
        calibration = calibration or Calibration()
        doubts = bool(doubts or calibration.person or calibration.colour)
        vectors = self._vectors(encodings, boxes, doubts)
        if ranks is None:
            chosen = [np.full(len(rows), not self._greedy) for rows in boxes]
        else:
            chosen = [self._best(row) for row in ranks]
        posterior = None if posteriors is None else np.concatenate(posteriors)
        ngrams = self._densecap.ngrams
        expected = None if ngrams is None or features is None else ngrams.probabilities(np.concatenate(features))
        decoded = self._decode(np.concatenate(inputs), np.concatenate(chosen), vectors, posterior, expected)
        said, likely = self._shorten(self._words(decoded), expected)
        fits = vectors @ self._word_table if doubts and vectors is not None else None
        doubtful = [()] * len(said) if fits is None else self._doubt(encodings, boxes, said, decoded.log_probs, fits)
        texts = [self._revise(words, unsure, calibration) for words, unsure in zip(said, doubtful, strict=True)]
        ends = np.cumsum([len(rows) for rows in boxes]).tolist()
        parts = [slice(end - len(rows), end) for end, rows in zip(ends, boxes, strict=True)]
        confidence = decoded.confidence
        return [Phrases(tuple(texts[part]), confidence[part], tuple(doubtful[part]), likely[part]) for part in parts]

    def _words(self, decoded: Decoded) -> list[list[str]]:
        """Return the words of decoded phrases, which end before they name a thing again."""
        vocabulary, unknown = self._densecap.vocabulary, self._densecap.decoder.unknown
        said = [vocabulary.decode(ids, unknown).split() for ids in decoded.token_ids.tolist()]
        return said if self.nouns is None else [words[: repeated(words, self.nouns.tree)] for words in said]

    def _shorten(self, said: list[list[str]], expected: np.ndarray | None) -> tuple[list[list[str]], np.ndarray]:
        """Return phrases without their improbable endings, and the mean log-probabilities ``(N,)`` of their words.

        Words have the probabilities of the n-grams, whose own are ``expected (N, G)``; None: they stay, with 0.
        """
        ngrams = self._densecap.ngrams
        if ngrams is None or expected is None:
            return said, np.zeros(len(said), np.float32)
        number, least = self._densecap.vocabulary.number, self._config.ngrams.least_probability
        kept, likely = list[list[str]](), list[float]()
        for words, of_row in zip(said, expected, strict=True):
            known = ngrams.word_probabilities(of_row, [number(word) for word in words])
            probable = [None if word in self._own else p for word, p in zip(words, known, strict=True)]
            length = likely_length(words, probable, least)
            kept.append(words[:length])
            likely.append(mean_log_probability(words[:length], probable[:length]))
        return kept, np.array(likely, np.float32)

    def _doubt(
        self, encodings: Sequence[Encoding], boxes: Sequence[np.ndarray], said: Sequence[Sequence[str]],
        log_probs: np.ndarray, fits: np.ndarray,
    ) -> list[tuple[Doubtful, ...]]:  # fmt: skip
        """Return the words of each phrase that may be wrong, given :func:`_doubtful`'s arguments for all of them."""
        colours, found = name_colours(encodings, boxes, said), list[tuple[Doubtful, ...]]()
        for row, words in enumerate(said):
            unsure = _doubtful(words, log_probs[row], fits[row], colours.get(row, {}))
            found.append(tuple(doubt for doubt in unsure if words[doubt.place] not in self._own))
        return found

    @cached_property
    def _aligner(self) -> Aligner | None:
        return None if self._read_aligner is None else self._read_aligner()

    def _vectors(self, encodings: Sequence[Encoding], boxes: Sequence[np.ndarray], doubts: bool) -> np.ndarray | None:
        """Return the embeddings of all regions in the space of words; None if they are not needed."""
        compared = self._config.similarity_weight and self._config.decoding.beam_size > 1
        if not (doubts or compared) or self._aligner is None:
            return None
        inputs = [e.to_input(rows) for e, rows in zip(encodings, boxes, strict=True)]
        return np.concatenate(self._aligner.last.region_vectors([e.maps for e in encodings], inputs))

    def _best(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mask of an image's regions that are decoded by beam search."""
        best = np.zeros(len(ranks), bool)
        if self._greedy:
            return best
        best[np.argsort(-ranks, kind="stable")[: self._config.beam_regions]] = True
        return best & (ranks > -np.inf)

    def _decode(
        self, inputs: np.ndarray, chosen: np.ndarray, vectors: np.ndarray | None, posterior: np.ndarray | None,
        expected: np.ndarray | None,
    ) -> Decoded:  # fmt: skip
        """Return the phrases of all regions: the best of a beam for ``chosen`` regions, greedy for the others.

        ``expected (N, G)`` are the probabilities of the n-grams.
        """
        decoder, settings = self._densecap.decoder, self._config.decoding
        if self._named and posterior is not None:
            ordered = np.concatenate([posterior[chosen], posterior[~chosen]])
            decoder = NounGuide(decoder, self._noun_words[0], self._noun_logs(ordered), self._refused(ordered))
        groups = [inputs[chosen], inputs[~chosen]]
        found, plain = search_each(decoder, groups, settings, [settings.beam_size, 1])
        seen = (None if rows is None else rows[chosen] for rows in (vectors, posterior, expected))
        best, plain = found.best(self._rank(found, *seen)), plain.best()
        length = max(best.token_ids.shape[1], plain.token_ids.shape[1])
        token_ids = np.full((len(inputs), length), PAD, np.int64)
        log_probs = np.zeros((len(inputs), length), np.float32)
        for rows, part in ((chosen, best), (~chosen, plain)):
            token_ids[rows, : part.token_ids.shape[1]] = part.token_ids
            log_probs[rows, : part.log_probs.shape[1]] = part.log_probs
        return Decoded(token_ids, log_probs)

    def _rank(
        self, found: Hypotheses, vectors: np.ndarray | None, posterior: np.ndarray | None, expected: np.ndarray | None
    ) -> np.ndarray:
        """Return the scores ``(N, B)`` of hypotheses: log-probabilities plus weighted terms."""
        similarity = self._config.similarity_weight
        compared = vectors is not None and similarity and self._aligner is not None
        named = posterior is not None and self._named
        ngrams = self._densecap.ngrams if self._config.ngrams.weight and expected is not None else None
        if not (compared or named or ngrams):
            return found.ranks

        def fits(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
            assert self._aligner is not None and vectors is not None
            sums = text_sums(self._aligner.last, sorted({one.text for own in sentences for one in own}))
            rows = zip(vectors, sentences, strict=True)
            return [np.array([row @ sums[one.text] for one in own], np.float32) for row, own in rows]

        def shows(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
            assert self.nouns is not None and posterior is not None
            rows = zip(posterior, sentences, strict=True)
            return [noun_log_probs(self.nouns, row, [one.text for one in own]) for row, own in rows]

        def agrees(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
            assert ngrams is not None and expected is not None
            weighed = [ngrams.weigh([one.token_ids for one in own], unknown=False) for own in sentences]
            return ngrams.agreement(expected, weighed)

        reasons = [Reason(shows, self._config.noun_weight)] if named else []
        reasons += [Reason(agrees, self._config.ngrams.weight)] if ngrams else []
        reasons += [Reason(fits, similarity, COMPARED_PHRASES)] if compared else []
        if self._own:
            unjudged = [self._unjudged if named and reason is reasons[0] else self._own for reason in reasons]
            each = zip(reasons, unjudged, strict=True)
            reasons = [replace(reason, score=_impartial(reason.score, words)) for reason, words in each]
        return Reranker(reasons).rank(found, self._densecap.vocabulary)

    def prepare(self) -> None:
        """Read what the first phrase needs besides the weights."""
        if self._named:
            _ = self._noun_words
        colour_names()

    @property
    def _named(self) -> bool:
        """Whether the noun classifier takes part in decoding and reranking."""
        return self._config.noun_weight > 0 and self.nouns is not None

    @cached_property
    def _noun_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Mask ``(V,)`` of the W words that name a kind known to the classifier, and their leaves ``(K, W)``."""
        assert self.nouns is not None
        named, leaves = self.nouns.words(self._densecap.vocabulary)
        if not self._own:
            return named, leaves
        own = np.isin(self._densecap.vocabulary.tokens, list(self._own))
        return named & ~own, leaves[:, ~own[named]]

    def _noun_logs(self, posterior: np.ndarray) -> np.ndarray:
        """Return the weighted log-probability ``(N, W)`` of each of :attr:`_noun_words` by posteriors ``(N, K)``."""
        likely = np.maximum(posterior @ self._noun_words[1], np.float32(LEAST_NOUN))
        return np.float32(self._config.noun_weight) * np.log(likely)

    @cached_property
    def _own_nouns(self) -> list[tuple[int, list[Noun]]]:
        """Own words as token ids, each with the kinds of thing that it, or a name with it, stands for.

        Words without such a kind, or with one that the classifier does not know, are left out.
        """
        assert self.nouns is not None
        config, nouns = self._config, self.nouns
        found = list[tuple[int, list[Noun]]]()
        for word, kind in config.own_words.items():
            meant = [kind] if kind else [meaning for name, meaning in config.own_names.items() if word in name.split()]
            kinds = [noun for each in meant if (noun := nouns.tree.named(each)) is not None and nouns.knows(noun)]
            if kinds and len(kinds) == len(meant):
                found.append((self._densecap.vocabulary.number(word), kinds))
        return found

    def _refused(self, posterior: np.ndarray) -> np.ndarray | None:
        """Return the words ``(N, V)`` that regions with posteriors ``(N, K)`` do not get; None if there are none."""
        if not self._own or self.nouns is None:
            return None
        refused = np.zeros((len(posterior), len(self._densecap.vocabulary)), bool)
        for token_id, kinds in self._own_nouns:
            likely = [self.nouns.probability(posterior, kind) for kind in kinds]
            refused[:, token_id] = np.max(likely, axis=0) < OWN_LEAST
        return refused

    # Uncertain words

    @cached_property
    def _word_table(self) -> np.ndarray:
        """``(D, W)`` embeddings of the words :data:`COMPARED`; their products with a region are similarities."""
        assert self._aligner is not None
        sums = text_sums(self._aligner.last, COMPARED)
        return np.stack([sums[word] for word in COMPARED], axis=1)

    def _revise(self, words: list[str], doubtful: Sequence[Doubtful], calibration: Calibration) -> str:
        """Correct a phrase's colours, remove its uncertain words, and adapt the articles."""
        fits = {"person": calibration.person, "colour": calibration.colour}
        least = {"person": self._config.person_threshold, "colour": self._config.colour_threshold}
        unsure: dict[str, set[int]] = {"person": set(), "colour": set()}
        for doubt in doubtful:
            fit = fits[doubt.question]
            if fit is None or least[doubt.question] == 0:
                continue
            if fit.apply(doubt.evidence) < least[doubt.question]:
                unsure[doubt.question].add(doubt.place)
            elif doubt.word != words[doubt.place]:
                words = [*words[: doubt.place], doubt.word, *words[doubt.place + 1 :]]
        words = without_sex(words, unsure["person"]) if unsure["person"] else words
        text = " ".join(without_colours(words, unsure["colour"]) if unsure["colour"] else words)
        return with_usage(text if self.nouns is None else without_stutter(text))


def _impartial(score: Score, words: Collection[str]) -> Score:
    """Return a score that gives hypotheses with one of some words the highest value of their region."""

    def scored(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
        values = [np.array(row) for row in score(sentences)]
        for row, own in zip(values, sentences, strict=True):
            row[[any(word in words for word in one.text.split()) for one in own]] = row.max(initial=-np.inf)
        return values

    return scored


def mean_log_probability(words: Sequence[str], likely: Sequence[float | None]) -> float:
    """Return the mean natural log-probability of the words that :func:`likely_length` counts; 0 if there are none."""
    counted = [p for word, p in zip(words, likely, strict=True) if p is not None and word not in FUNCTION_WORDS]
    return float(np.log(np.maximum(counted, LEAST_EXPECTED)).mean()) if counted else 0.0


class NounGuide:
    """A decoder whose first noun is guided by the noun classifier, see :class:`saywhere.engines.engine.Decoder`.

    The total probability of all nouns stays the same. It is divided among them in proportion to the product of the
    decoder's probability and the probability that the region shows the noun.

    Args:
        nouns: ``(V,)`` mask of the W words that are nouns known to the classifier.
        logs: ``(N, W)`` log-probabilities to add for each of the N regions that decoding starts with.
        refused: ``(N, V)`` mask of words that the regions do not get; None: none.
    """

    def __init__(
        self, decoder: Decoder, nouns: np.ndarray, logs: np.ndarray, refused: np.ndarray | None = None
    ) -> None:
        self._decoder, self._nouns, self._words, self._logs = decoder, nouns, np.flatnonzero(nouns), logs
        self._refused = refused
        self.never, self.unknown, self.independent = decoder.never, decoder.unknown, decoder.independent

    def start(self, embeddings: Any) -> State:
        """Return the start state of regions: their indices, whether each has a noun yet, and the decoder's state."""
        count = len(embeddings)
        return (np.arange(count), np.zeros(count, bool), self._decoder.start(embeddings))

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        regions, said, inner = state
        log_probs, inner = self._decoder.step(token_ids, inner)
        said = said | self._nouns[token_ids]
        rows = np.flatnonzero(~said)
        if len(rows):
            log_probs = np.array(log_probs, np.float32)
            some = log_probs[rows]
            own = some.take(self._words, axis=1)
            weighed = own + self._logs[regions[rows]]
            some[:, self._words] = weighed + np.log(_sums(own) / _sums(weighed))[:, None]
            log_probs[rows] = some
        if self._refused is not None:
            log_probs = np.where(self._refused[regions], -np.inf, log_probs).astype(np.float32)
        return log_probs, (regions, said, inner)

    def select(self, state: State, rows: np.ndarray) -> State:
        regions, said, inner = state
        return (regions[rows], said[rows], self._decoder.select(inner, rows))

    def join(self, states: Sequence[State]) -> State:
        regions, said, inner = zip(*states, strict=True)
        return (np.concatenate(regions), np.concatenate(said), self._decoder.join(inner))


def _sums(log_probs: np.ndarray) -> np.ndarray:
    """Return the sum of each row's probabilities, never 0."""
    return np.maximum(np.exp(log_probs).sum(axis=1), np.finfo(np.float32).tiny)


def _doubtful(
    words: Sequence[str], log_probs: np.ndarray, fits: np.ndarray, colours: Mapping[int, np.ndarray]
) -> tuple[Doubtful, ...]:
    """Return the words of a region's phrase that may be wrong, with evidence.

    ``log_probs`` has one value per word; ``fits`` are ``(W,)`` similarities of :data:`COMPARED`; ``colours`` has the
    log-probabilities of colours by word index, see :func:`name_colours`.
    """
    found: list[Doubtful] = []
    for place, word in enumerate(words):
        colour = colour_of(words, place)
        if word in SEXES:
            male, female = fits[2:4] if word in CHILDREN else fits[:2]
            fit = np.array(float(male - female) * (1 if SEXES[word] == "male" else -1))
            evidence = {"word": np.array(float(log_probs[place])), "similarity": fit}
            found.append(Doubtful("person", place, word, evidence))
        elif colour is not None:
            seen, said = colours[place], COLOUR_NAMES.index(colour)
            likeliest = said if is_joined(words, place) else int(seen.argmax())
            own, every = fits[-len(COLOUR_NAMES) :][likeliest], fits[-len(COLOUR_NAMES) :]
            evidence = {
                "pixels": np.array(float(seen[likeliest])),
                "similarity": np.array(float(own - (every.sum() - own) / (len(COLOUR_NAMES) - 1))),
                "agrees": np.array(float(likeliest == said)),
            }
            found.append(Doubtful("colour", place, word if likeliest == said else COLOUR_NAMES[likeliest], evidence))
    return tuple(found)


def is_joined(words: Sequence[str], place: int) -> bool:
    """Return whether the colour at ``place`` is next to another: "black and white", "blue gray"."""
    return end_of_colours(words, place) > place + 1 or any(
        colour_of(words, start) is not None and end_of_colours(words, start) > place for start in range(place)
    )


def noun_log_probs(nouns: NounEvidence, posterior: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return the natural log-probability ``(B,)`` of each phrase's noun for a region with the posterior ``(K,)``.

    A noun unknown to the classifier counts as :data:`UNTAUGHT`; no noun is below :data:`LEAST_NOUN`.
    """
    return _log_probs(nouns, [posterior] * len(texts), [nouns.judged(text) for text in texts])


def _log_probs(nouns: NounEvidence, posteriors: Sequence[np.ndarray], taught: Sequence[Noun | None]) -> np.ndarray:
    """Return the log-probability of each noun by its own posterior ``(K,)``, see :func:`noun_log_probs`."""
    likely = [
        UNTAUGHT if noun is None else float(nouns.probability(posterior[None], noun)[0])
        for posterior, noun in zip(posteriors, taught, strict=True)
    ]
    return np.log(np.maximum(np.array(likely, np.float32), np.float32(LEAST_NOUN)))


def caption_evidence(
    nouns: NounEvidence | None, posterior: np.ndarray | None, texts: Sequence[str], confidence: np.ndarray,
    expected: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the inputs of the calibration of captions (does a phrase name what is in its box?), ``(N,)`` each.

    ``confidence`` and ``expected`` are those of :class:`Phrases`, the only inputs in a model without the part
    ``nouns``. Otherwise ``posterior (N, K)`` gives the noun's probability, and whether the classifier knows it.
    """
    likely, known = np.zeros((2, len(texts)), np.float32)
    if nouns is not None and posterior is not None:
        taught = [nouns.judged(text) for text in texts]
        known[:] = [noun is not None for noun in taught]
        likely = _log_probs(nouns, list(posterior), taught)
    return {"confidence": np.asarray(confidence), "noun": likely, "known": known, "expected": np.asarray(expected)}


def text_sums(aligner: Aligner, texts: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the sum of each text's weighted word embeddings: its product with a region is their similarity."""
    from saywhere.models.aligner import embed_texts

    known = embed_texts(aligner, texts, plain=True)
    return {text: vectors.vectors.sum(axis=0) for text, vectors in zip(texts, known, strict=True)}


def without_sex(words: Sequence[str], places: set[int]) -> list[str]:
    """Replace the words at ``places`` that imply a person's sex, and "his" and "her", by neutral words.

    Example:
        >>> without_sex("a man in his red coat".split(), {1})
        ['a', 'person', 'in', 'their', 'red', 'coat']
    """
    owned = {place for place, word in enumerate(words) if places and word in ("his", "her")}
    return [WITHOUT_SEX.get(word, word) if place in places | owned else word for place, word in enumerate(words)]


def without_colours(words: Sequence[str], places: set[int]) -> list[str]:
    """Remove the colours at ``places`` that are adjectives of the following word.

    Colours joined by "and" are all removed or all kept. Things that become equal without their colours are named once:
    "a red cup and a blue cup" becomes "a cup".

    Example:
        >>> without_colours("a black and white dog on a red apple".split(), {3, 7})
        ['a', 'dog', 'on', 'a', 'apple']
    """
    gone: set[int] = set()
    place = 0
    while place < len(words):
        stop = end_of_colours(words, place)
        before_noun = stop < len(words) and words[stop] not in STAYS_BEFORE
        if before_noun and places.intersection(range(place, stop)):
            gone.update(range(place, stop))
        place = stop + 1
    said = [word for number, word in enumerate(words) if number not in gone]
    for place in [number for number, word in enumerate(said) if word == "and"][::-1]:
        article = said[place + 1 : place + 2] in (["a"], ["an"])
        if gone and place and said[place + 1 + article : place + 2 + article] == [said[place - 1]]:
            del said[place : place + 2 + article]
    return said


# Colours from pixels


def to_lab(pixels: np.ndarray) -> np.ndarray:
    """Convert sRGB pixels ``(..., 3)`` uint8 to CIE L*a*b* (D65) divided by 100, float32."""
    values = np.arange(256, dtype=np.float32) / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92).astype(np.float32)[pixels]
    to_xyz = np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]], np.float32)
    xyz = linear @ (to_xyz / np.array([0.9505, 1, 1.089], np.float32))
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), -1, 0)
    return np.stack([1.16 * y - 0.16, 5 * (x - y), 2 * (y - z)], axis=-1).astype(np.float32)


def sample(pixels: np.ndarray, boxes: np.ndarray, count: int) -> np.ndarray:
    """Return evenly spaced pixels ``(N, count, count, 3)`` of ``(H, W, 3)`` in boxes ``(N, 4)`` ``x1 y1 x2 y2``."""
    x1, y1, x2, y2 = np.asarray(boxes, np.float64).T[:, :, None]
    shares = (np.arange(count) + 0.5) / count
    columns = np.clip((x1 + shares * (x2 - x1)).astype(int), 0, pixels.shape[1] - 1)
    rows = np.clip((y1 + shares * (y2 - y1)).astype(int), 0, pixels.shape[0] - 1)
    return pixels[rows[:, :, None], columns[:, None]]


def features(pixels: np.ndarray, boxes: np.ndarray, typical: np.ndarray) -> np.ndarray:
    """Return how often typical colours occur in each box, its cells and the whole image: square roots of fractions.

    ``pixels`` are ``(H, W, 3)`` uint8 of the image, ``boxes`` ``(N, 4)`` in these pixels, and ``typical`` ``(K, 3)``
    colours as from :func:`to_lab`.
    """

    def shares(found: np.ndarray) -> np.ndarray:
        """Return the soft assignment ``(N, count, count, K)`` of pixels to typical colours."""
        lab = to_lab(found)
        distances = np.square(typical).sum(axis=1) - 2 * (lab @ typical.T)  # up to a constant per pixel
        weights = np.exp((distances.min(axis=-1, keepdims=True) - distances) / SOFTNESS)
        return weights / weights.sum(axis=-1, keepdims=True)

    inside, side = shares(sample(pixels, boxes, GRID)), GRID // CELLS
    parts = inside.reshape(len(boxes), CELLS, side, CELLS, side, -1).mean(axis=(2, 4)).reshape(len(boxes), -1)
    image = shares(sample(pixels, np.array([[0, 0, pixels.shape[1], pixels.shape[0]]]), WHOLE)).mean(axis=(1, 2))
    return np.sqrt(np.concatenate([parts, inside.mean(axis=(1, 2)), image.repeat(len(boxes), axis=0)], axis=1))


class ColourNames:
    """Network that gives natural log-probabilities of :data:`saywhere.models.nouns.COLOUR_NAMES` for boxes.

    Args:
        table: ``typical (K, 3)``; ``nouns`` with ``vectors (M, E)`` and ``biases (M, 15)``, whose first entry, "",
            stands for all other nouns; ``hidden (F + E, H)``, ``hidden_bias``, ``out (H, 15)``, ``out_bias``.
    """

    def __init__(self, table: Mapping[str, np.ndarray]) -> None:
        arrays = {name: values.astype(np.float32) for name, values in table.items() if name != "nouns"}
        self._typical, self._vectors, self._biases = (arrays[name] for name in ("typical", "vectors", "biases"))
        self._hidden, self._out = (arrays["hidden"], arrays["hidden_bias"]), (arrays["out"], arrays["out_bias"])
        self._nouns = {noun: row for row, noun in enumerate(table["nouns"].tolist())}

    def log_probs(self, pixels: np.ndarray, boxes: np.ndarray, nouns: Sequence[str]) -> np.ndarray:
        """Return ``(N, 15)``; arguments as for :func:`features`, and the noun of the coloured thing in each box."""
        rows = [self._nouns.get(noun, 0) for noun in nouns]
        inputs = np.concatenate([features(pixels, boxes, self._typical), self._vectors[rows]], axis=1)
        hidden = np.maximum(inputs @ self._hidden[0] + self._hidden[1], 0)
        return _normalised(hidden @ self._out[0] + self._out[1] + self._biases[rows])

    def of_nouns(self, log_probs: np.ndarray, nouns: Sequence[str]) -> np.ndarray:
        """Return ``(N, 15)`` for things of the given nouns, about those of :meth:`log_probs`, from those of noun "".

        It only adds how usual each colour is for the noun, so it needs no pixels.
        """
        rows = [self._nouns.get(noun, 0) for noun in nouns]
        return _normalised(log_probs + self._biases[rows] - self._biases[0])


def _normalised(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


@cache
def colour_names() -> ColourNames:
    """Return the network stored in :data:`COLOUR_TABLE`."""
    with np.load(COLOUR_TABLE, allow_pickle=False) as table:
        return ColourNames(dict(table))


def name_colours(
    encodings: Sequence[Encoding], boxes: Sequence[np.ndarray], said: Sequence[Sequence[str]]
) -> dict[int, dict[int, np.ndarray]]:
    """Return log-probabilities ``(15,)`` for each colour word in phrases, by phrase index and word index.

    ``boxes`` has one ``(N, 4)`` array per image, in its pixels; ``said`` the words of each box of all images.
    """
    found: dict[int, dict[int, np.ndarray]] = {}
    first = 0
    for encoding, rows in zip(encodings, boxes, strict=True):
        own = range(first, first := first + len(rows))
        asked = [(row, place) for row in own for place in range(len(said[row])) if colour_of(said[row], place)]
        if asked:
            inside = encoding.to_input(rows)[[row - own.start for row, _ in asked]] / STEP
            nouns = [noun_of(said[row], place) for row, place in asked]
            for (row, place), named in zip(
                asked, colour_names().log_probs(encoding.pixels, inside, nouns), strict=True
            ):
                found.setdefault(row, {})[place] = named
    return found


def colours_of_boxes(encoding: Encoding, boxes: np.ndarray, nouns: Sequence[str] | None = None) -> np.ndarray:
    """Return log-probabilities ``(N, 15)`` of the colours of things in the boxes ``(N, 4)`` of an image.

    ``nouns`` name the things; None: whatever they are.
    """
    return colour_names().log_probs(encoding.pixels, encoding.to_input(boxes) / STEP, nouns or [""] * len(boxes))


COLOUR_STEPS = 16
"""Steps per natural logarithm in which log-probabilities of colours are packed."""


def pack_colours(log_probs: np.ndarray) -> np.ndarray:
    """Pack log-probabilities of colours in bytes of the same shape; values below -15.9 become -15.9."""
    return np.round(log_probs * -COLOUR_STEPS).clip(0, 255).astype(np.uint8)


def unpack_colours(packed: np.ndarray) -> np.ndarray:
    """Return the log-probabilities that were given to :func:`pack_colours`, rounded."""
    return packed.astype(np.float32) / -COLOUR_STEPS
