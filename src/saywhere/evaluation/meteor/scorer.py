"""METEOR of many pairs: the best alignment of a hypothesis with a reference, and its score (METEOR 1.5, section 2).

A beam search over the words of the reference, from left to right, prefers alignments that cover more words, then fewer
chunks, then smaller distances. Coverage, costs and ties follow the observed behaviour of the authors' program, which
differs from the paper in part:

- A stem or synonym match covers nothing, and a paraphrase of n words covers n // 2, in each text. A match whose words
  occur in no other match is always taken.
- A chunk is counted when it ends, so the last chunk of a partial alignment is free.
- A match costs the distances of the earlier options at its word; leaving the word unmatched costs those of all.
- Ties go to the earlier option; leaving the word unmatched is the last.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from gzip import BadGzipFile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar
from zipfile import BadZipFile, ZipFile

from saywhere.errors import UserError
from saywhere.evaluation.meteor.paraphrases import Paraphrases, load_paraphrases
from saywhere.evaluation.meteor.words import BLANKS, Normaliser, Synonyms, stem
from saywhere.options import dataclass

INSTALL = "pip install 'saywhere[evaluate]'"

Pair = tuple[str, Sequence[str]]
"""A candidate and its references."""


def pycocoevalcap_module(name: str) -> ModuleType:
    """Import a module of pycocoevalcap, such as ``"meteor.meteor"``.

    Raises:
        UserError: it is missing; the message names the extra.
    """
    try:
        return import_module(f"pycocoevalcap.{name}")
    except ImportError as error:
        raise UserError(f"caption metrics need pycocoevalcap ({error}): {INSTALL}") from error


@dataclass(frozen=True)
class MeteorFiles:
    """Paths of the program and of its paraphrases."""

    jar: Path
    paraphrases: Path

    @classmethod
    def find(cls) -> MeteorFiles:
        """Return the files of the installed package; ``UserError``, naming the extra, if one is missing."""
        module = pycocoevalcap_module("meteor.meteor")
        folder = Path(str(module.__file__)).parent
        files = cls(folder / module.METEOR_JAR, folder / "data" / "paraphrase-en.gz")
        for path in (files.jar, files.paraphrases):
            if not path.is_file():
                raise UserError(f"{path} is missing, a part of pycocoevalcap: {INSTALL}")
        return files


def clean(text: str) -> str:
    """Return a text as the program receives it: on one line, without ``|||``, and valid UTF-8."""
    text = text.replace("\r", " ").replace("\n", " ").replace("|||", "").strip(BLANKS)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


BEAM = 40
CHUNK = 1 << 40
COVER = CHUNK << 40
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)


class Match(NamedTuple):
    """Matching words of reference and hypothesis: start and count in each, and the kind of match."""

    reference: int
    reference_words: int
    hypothesis: int
    hypothesis_words: int
    module: int


Chain = tuple["Chain | None", Match]
"""Matches, the last one first."""
Partial = tuple[int, int, int, int, "Chain | None"]
"""Cost, used hypothesis words, next free reference word, end of the open chunk or -1, matches."""


def align(options: dict[int, list[Match]], reference_words: int) -> tuple[list[Match], int]:
    """Return the matches of the best alignment, the last one first, and its number of chunks.

    ``options`` has the possible matches that start at each reference word, in the order in which they are tried.
    """
    forced = _forced(options)
    paths: list[Partial] = [(0, 0, 0, -1, None)]
    sort = False
    for word in range(reference_words):
        if sort:
            paths.sort(key=_cost)
            del paths[BEAM:]
        here = options.get(word)
        if not here:
            paths, sort = _gap(paths, word)
        elif word in forced:
            paths, sort = [_forced_on(path, here[0]) for path in paths], len(paths) > 1
        else:
            paths, sort = _cheapest(paths, here, word), False
    paths.sort(key=_cost)
    best = min(paths[:BEAM], key=_closed_cost)
    matches: list[Match] = []
    chain = best[4]
    while chain:
        chain, match = chain
        matches.append(match)
    return matches, _closed_cost(best) // CHUNK % CHUNK


def _forced(options: dict[int, list[Match]]) -> set[int]:
    """Return the reference words where a match starts whose words, in both texts, occur in no other match."""
    references: dict[int, int] = {}
    hypotheses: dict[int, int] = {}
    for here in options.values():
        for start, count, other, length, _ in here:
            for word in range(start, start + count):
                references[word] = references.get(word, 0) + 1
            for word in range(other, other + length):
                hypotheses[word] = hypotheses.get(word, 0) + 1
    return {
        start
        for start, here in options.items()
        if len(here) == 1
        and all(references[word] == 1 for word in range(start, start + here[0][1]))
        and all(hypotheses[word] == 1 for word in range(here[0][2], here[0][2] + here[0][3]))
    }


def _forced_on(path: Partial, match: Match) -> Partial:
    """Return a path extended by a forced match."""
    broken = CHUNK if path[3] >= 0 and path[3] != match[2] else 0
    return _extended(path, match, path[0] + broken - _cover(match))


def _gap(paths: list[Partial], word: int) -> tuple[list[Partial], bool]:
    """Return the paths after a word where no match starts, and whether any has changed."""
    if all(path[3] < 0 or path[2] > word for path in paths):
        return paths, False
    closed = [path if path[3] < 0 or path[2] > word else _closed(path, path[0] + CHUNK) for path in paths]
    return closed, len(paths) > 1


def _cheapest(paths: list[Partial], here: Sequence[Match], word: int) -> list[Partial]:
    """Return the ``BEAM`` cheapest paths after a word where matches start; they are built once all costs are known."""
    options = [(match, match[2], ((1 << match[3]) - 1) << match[2], _cover(match)) for match in here]
    found: list[tuple[int, Partial, Match | None]] = []
    for path in paths:
        cost, used, free, end, _ = path
        if free > word:
            found.append((cost, path, None))
            continue
        broken = cost + CHUNK if end >= 0 else cost
        distance = 0
        for match, other, words, cover in options:
            if not used & words:
                found.append(((cost if end == other else broken) + distance - cover, path, match))
                distance += abs(word - other)
        found.append((broken + distance, path, None))
    found.sort(key=_cost)
    return [
        _extended(path, match, cost) if match else path if path[2] > word else _closed(path, cost)
        for cost, path, match in found[:BEAM]
    ]


def _extended(path: Partial, match: Match, cost: int) -> Partial:
    start, count, other, length, _ = match
    return cost, path[1] | ((1 << length) - 1) << other, start + count, other + length, (path[4], match)


def _closed(path: Partial, cost: int) -> Partial:
    return cost, path[1], path[2], -1, path[4]


def _cover(match: Match) -> int:
    """Return what a match saves for the words that it covers in both texts."""
    if match[4] == EXACT:
        return 2 * COVER
    return (match[1] // 2 + match[3] // 2) * COVER if match[4] == PARAPHRASE else 0


def _cost(path: tuple[int, *tuple[object, ...]]) -> int:
    return path[0]


def _closed_cost(path: Partial) -> int:
    return path[0] + (CHUNK if path[3] >= 0 else 0)


T = TypeVar("T", int, str)
WORDS = 100_000
Spans = dict[int, list[tuple[int, int]]]


class Text:
    """A text's words, with the positions of each word, stem, synonym set and phrase.

    Attributes:
        words: normalised.
        functions: which of them are function words.
        codes: hash codes of the words.
        exact, stems, sets: positions by code of the word, by code of its stem, and by synonym set.
        phrases: start and number of words by phrase id.
        sources: start, number of words and targets of each phrase that has targets, by start, then length.
    """

    __slots__ = ("codes", "exact", "functions", "phrases", "sets", "sources", "stems", "words")

    def __init__(self, words: Sequence[str], language: Language) -> None:
        self.words = words
        self.functions = [word in language.functions for word in words]
        self.codes: list[int] = []
        self.exact: dict[int, list[int]] = {}
        self.stems: dict[int, list[int]] = {}
        self.sets: dict[str, list[int]] = {}
        self.phrases: Spans = {}
        self.sources: list[tuple[int, int, dict[int, int]]] = []
        for place, word in enumerate(words):
            code, root, sets = language.senses(word)
            self.codes.append(code)
            self.exact.setdefault(code, []).append(place)
            self.stems.setdefault(root, []).append(place)
            for name in sets:
                self.sets.setdefault(name, []).append(place)
        for start, count, phrase in language.paraphrases.phrases(words):
            self.phrases.setdefault(phrase, []).append((start, count))
            if targets := language.paraphrases.targets(phrase):
                self.sources.append((start, count, targets))


class Language:
    """METEOR's data for English: matching words, stems, synonyms and paraphrases."""

    @classmethod
    def load(cls, files: MeteorFiles) -> Language:
        """Read pycocoevalcap's files, compiling the paraphrases once; ``UserError`` if a file is damaged."""
        try:
            with ZipFile(files.jar) as jar:
                return cls(jar, load_paraphrases(files.paraphrases))
        except (BadZipFile, BadGzipFile, EOFError, KeyError, ValueError, zlib.error) as error:
            raise UserError(f"{files.jar.parent} is damaged ({error}): install pycocoevalcap again") from error

    def __init__(self, jar: ZipFile, paraphrases: Paraphrases) -> None:
        names = ("function/english.words", "nonbreaking/english.prefixes", "synonym/english.synsets")
        functions, prefixes, sets = (jar.read(name).decode() for name in names)
        self.paraphrases = paraphrases
        self.functions = frozenset(functions.split())
        self._normaliser = Normaliser(prefixes)
        self._synonyms = Synonyms(sets, jar.read("synonym/english.exceptions").decode())
        self.senses = lru_cache(WORDS)(self._senses)

    def text(self, text: str) -> Text:
        """Return a text's words."""
        return Text(self._normaliser.words(text), self)

    def _senses(self, word: str) -> tuple[int, int, frozenset[str]]:
        """Return the codes of a word and of its stem, and its synonym sets."""
        return java_code(word), java_code(stem(word)), self._synonyms.sets(word)


def possible_matches(hypothesis: Text, reference: Text) -> dict[int, list[Match]]:
    """Return the possible matches by first reference word, in the order in which METEOR tries them."""
    found: dict[int, list[Match]] = defaultdict(list)
    for code in reference.exact.keys() & hypothesis.exact.keys():
        for place in reference.exact[code]:
            found[place] = [Match(place, 1, other, 1, EXACT) for other in hypothesis.exact[code]]
    _add_words(found, STEM, hypothesis, reference, hypothesis.stems, reference.stems)
    _add_words(found, SYNONYM, hypothesis, reference, hypothesis.sets, reference.sets)
    for start, count, targets in reference.sources:
        for phrase in _ranked(targets, hypothesis.phrases):
            found[start] += [Match(start, count, *span, PARAPHRASE) for span in hypothesis.phrases[phrase]]
    for start, count, targets in hypothesis.sources:
        for phrase in _ranked(targets, reference.phrases):
            for span in reference.phrases[phrase]:
                found[span[0]].append(Match(*span, start, count, PARAPHRASE))
    return found


def _add_words(
    found: dict[int, list[Match]],
    module: int,
    hypothesis: Text,
    reference: Text,
    ours: dict[T, list[int]],
    theirs: dict[T, list[int]],
) -> None:
    """Add pairs of different words with a common stem or synonym set."""
    pairs = {(place, other) for name in theirs.keys() & ours.keys() for place in theirs[name] for other in ours[name]}
    for place, other in sorted(pairs):
        if reference.codes[place] != hypothesis.codes[other]:
            found[place].append(Match(place, 1, other, 1, module))


def _ranked(targets: dict[int, int], phrases: Spans) -> Sequence[int]:
    """Return the phrases that are among the targets, by rank."""
    common = targets.keys() & phrases.keys()
    return sorted(common, key=targets.__getitem__) if common else ()


def java_code(text: str) -> int:
    """Return Java's hash of a text. The program compares words and stems by it: ``tan.`` equals ``tall``."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[0::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)

Statistics = tuple[int, ...]
"""Numbers of words, then of function words, in hypothesis and reference; for each module the matched content words in
both, and function words; chunks; matched words in both."""


def statistics(hypothesis: Text, reference: Text) -> Statistics:
    """Return the numbers that the score of a pair is computed from; those of several pairs may be added."""
    matches, chunks = align(possible_matches(hypothesis, reference), len(reference.words))
    counts = [0] * 16
    ours, theirs = hypothesis.functions, reference.functions
    total = rtotal = 0
    for start, count, other, length, module in matches:
        functions = sum(ours[other : other + length])
        rfunctions = sum(theirs[start : start + count])
        counts[4 * module] += length - functions
        counts[4 * module + 1] += count - rfunctions
        counts[4 * module + 2] += functions
        counts[4 * module + 3] += rfunctions
        total += length
        rtotal += count
    return len(ours), len(theirs), sum(ours), sum(theirs), *counts, chunks, total, rtotal


def score(s: Sequence[int]) -> float:
    """Return the score, from 0 to 1, for statistics."""
    words = DELTA * (s[0] - s[2]) + (1.0 - DELTA) * s[2]
    rwords = DELTA * (s[1] - s[3]) + (1.0 - DELTA) * s[3]
    matched = rmatched = 0.0
    for kind, share in ((4, DELTA), (6, 1.0 - DELTA)):  # content words, function words
        for weight, ours, theirs in zip(WEIGHTS, s[kind:20:4], s[kind + 1 : 20 : 4], strict=True):
            matched += weight * ours * share
            rmatched += weight * theirs * share
    if not matched or not rmatched:
        return 0.0
    precision, recall = matched / words, rmatched / rwords
    mean = 1.0 / ((1.0 - ALPHA) / precision + ALPHA / recall)
    fragmentation = _chunks(s) / ((s[21] + s[22]) / 2)
    return mean * (1.0 - GAMMA * fragmentation**BETA)


def total(statistics: Iterable[Statistics]) -> Statistics:
    """Return the summed statistics of all pairs, where a pair that matches as a whole has no chunk."""
    return tuple(map(sum, zip(*((*s[:20], _chunks(s), *s[21:]) for s in statistics), strict=True)))


def _chunks(s: Sequence[int]) -> int:
    """Return the number of chunks; 0 if all words match in a single one."""
    return 0 if s[20] == 1 and s[21] == s[0] and s[22] == s[1] else s[20]


CACHE = 100_000
TEXTS = 8192


class Meteor:
    """Score captions by METEOR 1.5, without Java.

    METEOR's words are read with the first pair, in less than a second; on first use its paraphrases are compiled into
    the user's cache. Scores are cached, so repeated pairs are free.

    Args:
        cache: number of pairs whose scores are cached, at about 0.6 kB each.

    Raises:
        UserError: pycocoevalcap is missing.

    Example:
        >>> Meteor().score([("a red car", ["the red car", "a car"])])
        [0.7714285714285715]
    """

    def __init__(self, cache: int = CACHE) -> None:
        self._files = MeteorFiles.find()
        self.version = f"METEOR 1.5 (-l en -norm), words of pycocoevalcap {version('pycocoevalcap')}"
        self._language: Language | None = None
        self._text = lru_cache(TEXTS)(self._read)
        self._best = lru_cache(cache)(self._compare)

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the score, from 0 to 1, of each pair of a candidate and its references: that of the best reference.

        An empty candidate, or one without references, scores 0. Line ends become spaces, and ``|||``, the program's end
        of text, is removed.
        """
        return [
            self._best(candidate, tuple(references))[1] if candidate and any(references) else 0.0
            for candidate, references in pairs
        ]

    def corpus_score(self, pairs: Sequence[Pair]) -> float:
        """Return the score, from 0 to 1, of all pairs from their summed statistics: METEOR as COCO reports it.

        Raises:
            ValueError: no pairs.
        """
        if not pairs:
            raise ValueError("the METEOR score of no pairs is not defined")
        return score(total(self._best(candidate, tuple(references))[0] for candidate, references in pairs))

    def _read(self, text: str) -> Text:
        if self._language is None:
            self._language = Language.load(self._files)
        return self._language.text(clean(text))

    def _compare(self, candidate: str, references: tuple[str, ...]) -> tuple[Statistics, float]:
        """Return the statistics and the score of the best reference, the first among equals."""
        hypothesis = self._text(candidate)
        each = (statistics(hypothesis, self._text(reference)) for reference in references or ("",))
        return max(((s, score(s)) for s in each), key=lambda pair: pair[1])
