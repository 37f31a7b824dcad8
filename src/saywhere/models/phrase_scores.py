"""Scores of arbitrary phrases for the regions of an image: open-world detection (DenseCap, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from saywhere.engines.engine import Decoder, DenseCap, State
from saywhere.errors import UserError
from saywhere.models.encoding import Encoding
from saywhere.models.nouns import NounEvidence
from saywhere.options import require_ints, require_texts
from saywhere.regions import Regions
from saywhere.report import counted
from saywhere.text import END, START, Vocabulary, tokenize

ROWS = 4096
"""Maximum number of decoder steps in one batch, which bounds the memory of their probabilities."""
LONGEST = 200
"""Maximum number of words in a phrase, because decoding goes word by word."""
STATES = 1 << 15
"""Maximum number of states kept between steps, unless a single region has more."""
DECODER = 0.3
"""Weight of the decoder's log-probability next to that of the noun classifier, which knows kinds better. It gives the
best boxes by class name on training images of COCO that the classifier was not trained on."""


@dataclass(frozen=True, eq=False)
class PhraseScores:
    """Log-probabilities of phrases for the regions of an image.

    Attributes:
        regions: the R regions of one image.
        phrases: P texts.
        log_probs: ``(R, P)`` natural ``log P(phrase | region)``, END included: the probability that the decoder
            generates exactly this phrase. It falls with length, so compare regions, not phrases of different lengths.
        unknown: words of each phrase outside the vocabulary. They count as the unknown word of training. The scores of
            a phrase of only unknown words mean little, unless the noun classifier knows its noun.
        kinds: ``(R, P)`` natural log-probability that a region shows the phrase's kind of thing, by the noun classifier
            (docs/nouns.md); 0 for a phrase without a known kind. None for a model without it.

    Example:
        >>> scores = saywhere.load().score("photo.jpg", ["a woman", "a dog"])
        >>> scores.find("a woman", top=2).captions
        ('a woman', 'a woman')
    """

    regions: Regions
    phrases: tuple[str, ...]
    log_probs: np.ndarray
    unknown: tuple[tuple[str, ...], ...]
    kinds: np.ndarray | None = None

    def __repr__(self) -> str:
        image = self.regions.image or "an image"
        phrases, regions = counted(len(self.phrases), "phrase"), counted(len(self.regions), "region")
        return f"PhraseScores({phrases}, {regions} of {image})"

    @property
    def joint(self) -> np.ndarray:
        """``(R, P)`` natural ``log P(region) P(phrase | region)``: that region and phrase belong together.

        P(region) is the score; without it the decoder often prefers a poor box. It is 1 for regions without scores. For
        a phrase that names a kind: ``log P(region) P(phrase | region)^w P(kind | region)``, w = :data:`DECODER`.
        """
        joint = self.log_probs
        if self.kinds is not None:
            joint = joint * np.where((self.kinds != 0).any(axis=0), np.float32(DECODER), 1) + self.kinds
        if self.regions.scores is None:
            return joint
        with np.errstate(divide="ignore"):
            return joint + np.log(self.regions.scores)[:, None]

    def find(self, phrase: str, top: int | None = None) -> Regions:
        """Return the regions sorted by :attr:`joint` with a phrase, best first, with joint scores and this caption.

        At most ``top`` of them; 0 or None: all.
        """
        require_ints(0, top=top)
        if phrase not in self.phrases:
            raise UserError(f"{phrase!r} was not scored, only {', '.join(map(repr, self.phrases))}")
        column = self.joint[:, self.phrases.index(phrase)]
        best = np.argsort(-column, kind="stable")[: top or None]
        return replace(
            self.regions[best], scores=np.exp(column[best]), captions=(phrase,) * len(best), caption_scores=None
        )

    def best(self) -> Regions:
        """Return the best region of each phrase (see :meth:`find`), captioned with it; no regions if R is 0."""
        if not len(self.regions):
            return self.regions
        joint = self.joint
        rows = joint.argmax(axis=0)
        return replace(self.regions[rows], scores=np.exp(joint.max(axis=0)), captions=self.phrases, caption_scores=None)


def score_regions(decoder: Decoder, vocabulary: Vocabulary, regions: Regions, phrases: Sequence[str]) -> PhraseScores:
    """Score each phrase, none of which is empty, for each region by the decoder, from the region's features."""
    token_ids = encode_phrases(vocabulary, phrases)
    assert regions.features is not None
    log_probs = phrase_log_probs(decoder, regions.features, token_ids)
    unknown = tuple(unknown_words(vocabulary, phrase) for phrase in phrases)
    return PhraseScores(regions, tuple(phrases), log_probs, unknown)


def score_image(
    detector: DenseCap, classes: NounEvidence | None, encoding: Encoding, regions: Regions, phrases: Sequence[str]
) -> PhraseScores:
    """Score phrases for an image's regions by the decoder and, unless ``nouns`` is off, by the noun classifier."""
    scores = score_regions(detector.decoder, detector.vocabulary, regions, phrases)
    if classes is None or not detector.config.nouns:
        return scores
    return replace(scores, kinds=classes.log_kinds(encoding, regions, phrases)[0])


def unknown_words(vocabulary: Vocabulary, text: str) -> tuple[str, ...]:
    """Return the words of a text outside a vocabulary, in order and without duplicates."""
    return tuple(dict.fromkeys(word for word in tokenize(text) if word not in vocabulary))


def encode_phrases(vocabulary: Vocabulary, phrases: Sequence[str]) -> list[list[int]]:
    """Return the token ids of phrases, with ``UNKNOWN`` for unknown words; ``UserError`` for empty or long phrases."""
    require_texts(False, phrases=phrases)
    token_ids = [vocabulary.encode(phrase) for phrase in phrases]
    if empty := [phrase for phrase, words in zip(phrases, token_ids, strict=True) if not words]:
        raise UserError(f"the phrase {empty[0]!r} has no word")
    if long := [words for words in token_ids if len(words) > LONGEST]:
        raise UserError(f"a phrase has {len(long[0])} words; {LONGEST} are the most that are scored")
    return token_ids


@dataclass(frozen=True, eq=False)
class _Level:
    """All phrase prefixes of one length, ordered by parent.

    Attributes:
        words: ``(K,)`` last word of each prefix.
        parents: ``(K,)`` index in the previous level of the prefix without that word.
        ends, phrases: ``(E,)`` each: indices of prefixes that are whole phrases, and of those phrases.
    """

    words: np.ndarray
    parents: np.ndarray
    ends: np.ndarray
    phrases: np.ndarray


def _tree(phrases: Sequence[Sequence[int]]) -> list[_Level]:
    """Return the phrases' prefixes by length, START alone first; a prefix shared by several phrases occurs once."""
    levels: list[_Level] = []
    nodes: dict[tuple[int, ...], int] = {(): 0}
    words, parents = [START], [0]
    depth = 0
    while nodes:
        ends = [(nodes[tuple(p)], number) for number, p in enumerate(phrases) if len(p) == depth]
        rows = (words, parents, [node for node, _ in ends], [number for _, number in ends])
        levels.append(_Level(*(np.array(row, np.int64) for row in rows)))
        depth += 1
        prefixes = {tuple(p[:depth]) for p in phrases if len(p) >= depth}
        longer = sorted(prefixes, key=lambda prefix: (nodes[prefix[:-1]], prefix[-1]))
        words, parents = [prefix[-1] for prefix in longer], [nodes[prefix[:-1]] for prefix in longer]
        nodes = {prefix: number for number, prefix in enumerate(longer)}
    return levels


def phrase_log_probs(decoder: Decoder, embeddings: np.ndarray, phrases: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the natural log-probability ``(R, P)`` of each phrase, END included, for each row of ``embeddings``.

    ``embeddings`` are ``(R, D)``; ``phrases`` are token ids without START and END. R, P and a phrase may be empty. All
    phrases and regions are decoded together, word by word, and shared prefixes only once. The number of decoder steps
    is one more than the longest phrase has words, or more if ``ROWS`` and ``STATES`` bound the memory.
    """
    if not len(embeddings) or not phrases:
        return np.zeros((len(embeddings), len(phrases)), np.float32)
    levels = _tree(phrases)
    regions = max(1, STATES // max(len(level.words) for level in levels))
    starts = range(0, len(embeddings), regions)
    return np.concatenate([_walk(decoder, embeddings[i : i + regions], levels, len(phrases)) for i in starts])


def _walk(decoder: Decoder, embeddings: np.ndarray, levels: Sequence[_Level], count: int) -> np.ndarray:
    """Compute :func:`phrase_log_probs` for N regions whose states fit into memory.

    The states of a level are grouped by prefix: rows ``k N`` to ``k N + N - 1`` belong to prefix k.
    """
    n = len(embeddings)
    together = max(1, ROWS // n)
    totals = np.zeros((count, n), np.float32)
    state, so_far = decoder.start(embeddings), np.zeros((1, n), np.float32)
    for level, after in zip(levels, [*levels[1:], None], strict=True):
        following = np.zeros((0 if after is None else len(after.words), n), np.float32)
        states: list[State] = []
        for first in range(0, len(level.words), together):
            last = min(first + together, len(level.words))
            parents = (level.parents[first:last, None] * n + np.arange(n)).reshape(-1)
            tokens = level.words[first:last].repeat(n)
            log_probs, stepped = decoder.step(tokens, decoder.select(state, parents))
            log_probs = log_probs.reshape(last - first, n, -1)
            states.append(stepped)
            ends = (level.ends >= first) & (level.ends < last)
            totals[level.phrases[ends]] = so_far[level.ends[ends]] + log_probs[level.ends[ends] - first, :, END]
            if after is not None:
                mine = np.flatnonzero((after.parents >= first) & (after.parents < last))
                prefix = after.parents[mine]
                following[mine] = so_far[prefix] + log_probs[prefix - first, :, after.words[mine]]
        so_far, state = following, decoder.join(states)
    return totals.T
