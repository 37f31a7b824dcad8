"""The words of texts, and which of them may match: exact words, stems, synonyms and paraphrases."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from gzip import BadGzipFile
from typing import TypeVar
from zipfile import BadZipFile, ZipFile

from saywhere.errors import UserError
from saywhere.evaluation.meteor.alignment import EXACT, PARAPHRASE, STEM, SYNONYM, Match
from saywhere.evaluation.meteor.normaliser import Normaliser
from saywhere.evaluation.meteor.package import MeteorFiles
from saywhere.evaluation.meteor.paraphrases import Paraphrases
from saywhere.evaluation.meteor.stemmer import stem
from saywhere.evaluation.meteor.synonyms import Synonyms
from saywhere.evaluation.meteor.table import load_paraphrases

T = TypeVar("T", int, str)
WORDS = 100_000
Spans = dict[int, list[tuple[int, int]]]


class Text:
    """Words of a text, with the positions of each word, stem, synonym set and phrase.

    Attributes:
        words: normalised.
        functions: which of them are function words.
        codes: of the words.
        exact, stems, sets: positions by code of the word, by code of its stem and by name of synonym set.
        phrases: start and number of words by id of phrase.
        sources: start, number of words, and targets of each phrase that has some, by start, then length.
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
    """METEOR's data on English: what words, stems, synonyms and paraphrases match."""

    @classmethod
    def load(cls, files: MeteorFiles) -> Language:
        """Read what pycocoevalcap brings; the paraphrases are compiled once.

        Raises:
            UserError: a file is damaged.
        """
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
        """Return the codes of a word and of its stem, and the names of its synonym sets."""
        return java_code(word), java_code(stem(word)), self._synonyms.sets(word)


def possible_matches(hypothesis: Text, reference: Text) -> dict[int, list[Match]]:
    """Return what may match, by the first word in the reference, in the order in which METEOR tries it."""
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
    """Add pairs of different words that have a stem or a set in common."""
    pairs = {(place, other) for name in theirs.keys() & ours.keys() for place in theirs[name] for other in ours[name]}
    for place, other in sorted(pairs):
        if reference.codes[place] != hypothesis.codes[other]:
            found[place].append(Match(place, 1, other, 1, module))


def _ranked(targets: dict[int, int], phrases: Spans) -> Sequence[int]:
    """Return which phrases are among the targets, by rank."""
    common = targets.keys() & phrases.keys()
    return sorted(common, key=targets.__getitem__) if common else ()


def java_code(text: str) -> int:
    """Return Java's hash of a text. The program compares words and stems by it: ``tan.`` and ``tall`` are the same."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[0::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code
