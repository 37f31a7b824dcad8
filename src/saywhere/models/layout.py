"""Counts, places and relations in a text, and how well boxes agree with them.

"Two dogs", "a man on the left" and "a cup on a table" say more than what things there are. A small table of words
recognises this. Each place or relation becomes a probability of boxes, a logistic function of their centres and edges.
It decides between regions that fit a phrase equally well, and lowers the probability of a phrase that disagrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from saywhere import boxes as geometry
from saywhere.calibration import logistic
from saywhere.errors import UserError
from saywhere.models.chunker import Chunker
from saywhere.models.nouns import (
    AFTER,
    BEFORE_NOUNS,
    COLOURS,
    STARTS,
    colour_of,
    find_heads,
    is_participle,
    noun_tree,
    plural,
    related,
)
from saywhere.options import dataclass
from saywhere.text import split_words, tokenize, with_articles

JOINING = frozenset({"and", "of", "with", "a", "an", "the", "there", "is", "are"})
"""Words between phrases that say nothing about where these are."""
NUMBERS = {
    **{"two": 2, "both": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10},
    **{"several": 3, "many": 4, **{str(number): number for number in range(2, 11)}},
}
"""Minimum count that a number at the beginning of a phrase stands for."""
_SPELT = {number: word for word, number in reversed(NUMBERS.items()) if word.isalpha()}
_TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
AMOUNTS = {
    **{(word,): number for word, number in NUMBERS.items()},
    **{("a", "couple", "of"): 2, ("a", "pair", "of"): 2, ("a", "few"): 3, ("a", "lot", "of"): 4, ("lots", "of"): 4},
    **{(word,): number for number, word in enumerate(_TEENS, 11)},
    **{(word,): 10 * number for number, word in enumerate(_TENS, 2)},
    **{("a", "dozen"): 12, ("dozens", "of"): 24, ("a", "hundred"): 100, ("hundreds", "of"): 200},
    **{("a", "thousand"): 1000, ("thousands", "of"): 2000},
}
"""Minimum counts of amounts of one or several words; numbers in figures are read as well."""
_NUMBER = rf"(?:\d+|one|{'|'.join(word for word, number in NUMBERS.items() if word.isalpha() and number > 1)})"
AT_MOST = re.compile(rf"\b(?:at most|(?<!no )(?:fewer|less) than|not? more than)\s+{_NUMBER}\s+(?=\w)", re.IGNORECASE)
"""What limits a number from above, which is not judged and so unused."""
OR_MORE = re.compile(
    rf"\b(?:(?:no|not) (?:fewer|less) than\s+({_NUMBER})|({_NUMBER}) or more)(?=\s+\w)|\bat least (an?|one)(?=\s+\w)",
    re.IGNORECASE,
)
"""Other ways to say "at least two", and that one is enough."""
AT_LEAST: dict[tuple[str, ...], int] = {("at", "least"): 0, ("more", "than"): 1}
"""Words before a number, and what they add to it."""
MOST_SAID = 10
"""Captions hardly have larger numbers: they call more things than this many."""
DETERMINERS = frozenset({"the", "these", "those", "his", "her", "their"})
"""Words that may precede a number."""
UNREAD = frozenset({"or", "no", "not"})
"""Words that change the meaning but are not interpreted; they are reported as unused."""
WITHOUT = re.compile(
    r"(?:^|[\s,;]+)(?:(?:and|but)\s+)?(?:(?:--)?without(?:\s+any)?|(?:with|has|have|having)\s+no|not(?=\s+(?:an?|any|the)\s))\s+"
    r"|(?:^|[,;]\s*|\s(?:and|but)\s+)no\s+(?!(?:entry|one|parking|smoking|trespassing|fewer|less|more)\b)"
    r"(?!(?:(?!(?:and|or|but|an?|the)\b)\w+\s+){1,3}signs?\b)",
    re.IGNORECASE,
)
"""What precedes an unwanted thing; other uses of "no" do not count, because "a no parking sign" is one thing."""
EMPTY = (
    JOINING
    | DETERMINERS
    | {"this", "that", "its", "my", "your", "our", "some", "any", "in", "on", "at", "to", "by", "for", "from"}
)
"""Words that name nothing by themselves."""
STEEP, STEEPER = 8.0, 12.0
"""Steepness of the logistic functions: of relations (per mean box size) and of places (per image size)."""
SIDE = 0.4
"""A box with this centre is "left" with probability 0.5; a box of the whole image is neither left nor right."""
CHOOSES = frozenset({"on"})
"""Relations that only choose among regions and do not change probabilities: grass around a dog is not below it."""
LEAST = 0.02
"""Minimum probability that a box agrees with a place or relation, because boxes are inexact."""
SWEEPS = 2
"""Number of passes over the relations when regions are chosen jointly."""

Place = Callable[[np.ndarray], np.ndarray]
"""Maps boxes ``(R, 4)``, in fractions of the image size, to probabilities ``(R,)`` of being in the place."""
Relation = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps two sets of boxes, ``(R, 4)`` and ``(S, 4)`` in fractions of the image size, to probabilities ``(R, S)``."""


def _left(boxes: np.ndarray) -> np.ndarray:
    return logistic(STEEPER * (SIDE - (boxes[:, 0] + boxes[:, 2]) / 2))


def _top(boxes: np.ndarray) -> np.ndarray:
    return logistic(STEEPER * (SIDE - (boxes[:, 1] + boxes[:, 3]) / 2))


def _middle(boxes: np.ndarray) -> np.ndarray:
    return logistic(STEEP * (0.2 - np.abs(boxes[:, 0] + boxes[:, 2] - 1) / 2))


def _before(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
    """Return the probability that one centre precedes another on an axis; the distance is relative to the mean size."""
    apart = (other[None, :, axis] + other[None, :, axis + 2] - one[:, None, axis] - one[:, None, axis + 2]) / 2
    sizes = (other[None, :, axis + 2] - other[None, :, axis] + one[:, None, axis + 2] - one[:, None, axis]) / 2
    return logistic(STEEP / 2 * apart / np.maximum(sizes, 1e-6))


def _left_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return _before(one, other, 0)


def _above(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return _before(one, other, 1)


def _on(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the probability that a box is above another, times the width they share."""
    return _above(one, other) * _shared_width(one, other)


def _shared_width(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the fraction of the narrower box's width that overlaps the other box horizontally."""
    common = np.minimum(one[:, None, 2], other[None, :, 2]) - np.maximum(one[:, None, 0], other[None, :, 0])
    width = np.minimum((one[:, 2] - one[:, 0])[:, None], (other[:, 2] - other[:, 0])[None])
    return np.clip(common / np.maximum(width, 1e-6), 0, 1)


def _common_share(boxes: np.ndarray) -> np.ndarray:
    """Return the intersection ``(R, R)`` of each two boxes ``(R, 4)`` as a share of the smaller one."""
    low, high = np.maximum(boxes[:, None, :2], boxes[None, :, :2]), np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    areas = geometry.area(boxes)
    common = np.clip(high - low, 0, None).prod(axis=2)
    return np.clip(common / np.maximum(np.minimum(areas[:, None], areas[None]), LEAST), 0, 1)


def _in_front(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the probability that a box ends lower than another, times the width they share: nearer things do."""
    lower = (one[:, None, 3] - other[None, :, 3]) / np.maximum(other[None, :, 3] - other[None, :, 1], 1e-6)
    return logistic(STEEP * lower) * _shared_width(one, other)


def _reversed(relation: Relation) -> Relation:
    return lambda one, other: relation(other, one).T


def _mirrored(place: Place) -> Place:
    return lambda boxes: place(1 - boxes[:, [2, 3, 0, 1]])


PLACES: dict[str, Place] = {
    "left": _left, "right": _mirrored(_left), "top": _top, "bottom": _mirrored(_top), "middle": _middle,
}  # fmt: skip
"""Places of an image by name."""
RELATIONS: dict[str, Relation] = {
    "left of": _left_of, "right of": _reversed(_left_of), "above": _above, "below": _reversed(_above), "on": _on,
    "under": _reversed(_on), "in front of": _in_front, "behind": _reversed(_in_front),
}  # fmt: skip
"""Relations of two boxes by name."""
_SIDES_OF = {"left": "left of", "right": "right of", "top": "above", "bottom": "below"}
"""The relation that a thing in a place has to others of its kind: of two dogs, "the dog on the left"."""

_SAID = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom",
         "middle": "in the middle"}  # fmt: skip
_SIDES = {"left": "left", "right": "right"}
_HEIGHTS = {
    **{"top": "top", "bottom": "bottom", "middle": "middle", "center": "middle", "centre": "middle"},
    **{"upper half": "top", "upper part": "top", "lower half": "bottom", "lower part": "bottom"},
}
_PLACE_BEFORE = {
    **{"left": "left", "leftmost": "left", "right": "right", "rightmost": "right"},
    **{"top": "top", "topmost": "top", "upper": "top", "bottom": "bottom", "lower": "bottom"},
    **{"middle": "middle", "center": "middle", "centre": "middle"},
}
"""Places that words before a noun say, as in "the left dog"."""
_PLAIN = frozenset({*COLOURS, *BEFORE_NOUNS} - STARTS)
"""Words that may stand between such a word and the noun: colours and common adjectives."""
_CORNERS = {
    f"{word} {side}": f"{height} {side}"
    for word, height in {"top": "top", "upper": "top", "bottom": "bottom", "lower": "bottom"}.items()
    for side in _SIDES
}
_ENDS = [
    part + whole
    for part in ("", " side", " hand side", " half", " part", " edge", " corner")
    for whole in ("", " of the image", " of the picture", " of the photo")
]
_PLACE_WORDS = {
    f"{before} {word}{after}": name
    for word, name in (_SIDES | _HEIGHTS | _CORNERS).items()
    for before in ("on the", "at the", "in the", "to the", "on the far")
    for after in _ENDS
}
_RELATION_WORDS = {
    **{f"{before}{word}{after} of": f"{word} of" for word in _SIDES
       for before in ("", "to the ", "on the ", "at the ") for after in ("", " side")},
    **{"above": "above", "over": "above", "on top of": "on", "on": "on", "upon": "on", "under": "under"},
    **{"underneath": "under", "beneath": "under", "below": "below", "in front of": "in front of", "behind": "behind"},
}  # fmt: skip
_PATTERNS: dict[tuple[str, ...], tuple[str, str]] = {
    **{tuple(words.split()): ("relation", name) for words, name in _RELATION_WORDS.items()},
    **{tuple(words.split()): ("place", name) for words, name in _PLACE_WORDS.items()},
}
_LONGEST = max(map(len, _PATTERNS))
POSITIONS = frozenset({"a", "an", "back", "end", "far", "front", "rear", "side", "the", "very"})
"""Words of which "in front", "at the far end" and the like consist: they name no thing, unless "of" follows."""


SIDED = frozenset({
    "arm", "arms", "ankle", "back", "body", "breast", "bunk", "deck", "drawer", "floor", "hat", "jaw", "level", "lip",
    "row", "shelf", "shelves", "step", "cheek", "corner", "ear", "ears", "edge", "elbow", "eye", "eyes",
    "fist", "foot", "front", "glove", "half", "hand", "hands", "knee", "lane", "leg", "legs", "mitten", "part",
    "paw", "paws", "rear", "shoe", "shoulder", "side", "sleeve", "sock", "thumb", "turn", "wheel", "wing", "wings",
    "field", "fielder", "whale", "winger", "wrist",
})  # fmt: skip
"""Things of which "left" and "top" tell which of several parts it is, not where it is in the image."""


def require_names(phrases: Iterable[str]) -> None:
    """Raise ``UserError`` if a phrase has no words or only :data:`EMPTY` ones, which every image would match."""
    for phrase in phrases:
        if (EMPTY | UNREAD).issuperset(words := tokenize(phrase)):
            what = "names nothing: say what is in the image, such as 'a dog'" if words else "has no word"
            raise UserError(f"the phrase {phrase!r} {what}")


class Asked(NamedTuple):
    """A relation and the indices of its two phrases."""

    relation: str
    subject: int
    object: int


@dataclass(frozen=True)
class Layout:
    """The phrases of a text with their places, relations and counts.

    Attributes:
        phrases: P texts.
        places: pairs of phrase index and place name, see :data:`PLACES`.
        relations: relations between phrases, see :data:`RELATIONS`.
        unused: words that were not interpreted, or name something without a place.
        listed: the P phrases as given, with their place words; empty if a text was cut into phrases.

    Example:
        >>> layout = Layout.parse("two dogs to the left of a man on a bench")
        >>> layout.phrases, [tuple(asked) for asked in layout.relations]
        (('two dogs', 'a man', 'a bench'), [('left of', 0, 1), ('on', 1, 2)])
        >>> Layout.parse("the man on the left wearing a hat").unused
        ('wearing',)
    """

    phrases: tuple[str, ...]
    places: tuple[tuple[int, str], ...] = ()
    relations: tuple[Asked, ...] = ()
    unused: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> Layout:
        """Return the layout of given phrases, each with the place at its end.

        "Left of", "no" and what a phrase excludes are unused words.

        Example:
            >>> layout = Layout.of(["a man", "a man in a coat on the right"])
            >>> layout.phrases, layout.places
            (('a man', 'a man in a coat'), ((1, 'right'),))
        """
        phrases, places, unused = list(texts), list[tuple[int, str]](), list[str]()
        for number, text in enumerate(texts):
            text, excluded = without_excluded(text)
            phrases[number] = text
            unused += excluded
            words = tokenize(text)
            marks = _find_patterns(words)
            unused += [name for i, _, kind, name in marks if i and kind == "relation" and name not in CHOOSES]
            if words[:1] == ["no"] and words[1:]:
                unused.append("no")
                phrases[number] = " ".join(words[1:])
            if marks and marks[-1][2] == "place" and marks[-1][1] == len(words) and marks[-1][0]:
                phrases[number] = " ".join(words[words[:1] == ["no"] : marks[-1][0]])
                places += [(number, part) for part in marks[-1][3].split()]
            phrases[number], sides = _side_of(phrases[number])
            places += [(number, side) for side in sides]
        return cls(tuple(phrases), tuple(places), unused=tuple(dict.fromkeys(unused)), listed=tuple(texts))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text; the whole text is the only phrase if no part of it names something visible.

        What a text excludes, such as "without cars", is unused.
        """
        text, excluded = without_excluded(text)
        if excluded:
            layout = cls.parse(text)
            return replace(layout, unused=(*layout.unused, *excluded))
        words, gaps = split_words(text)
        marks = _find_patterns(words)
        found = _visible_phrases(words, gaps, marks)
        if not found:
            return cls((text,), listed=(text,))
        places: list[tuple[int, str]] = []
        relations: list[Asked] = []
        used = {i for start, stop in found for i in range(start, stop)}
        for start, stop, kind, name in marks:
            before = max((n for n, (_, end) in enumerate(found) if end <= start), default=None)
            after = min((n for n, (first, _) in enumerate(found) if first >= stop), default=None)
            if kind == "place" and (before if before is not None else after) is not None:
                own = before if before is not None else after or 0
                places += [(own, part) for part in name.split()]
            elif kind == "relation" and before is not None and after is not None and found[after][0] == stop:
                relations.append(Asked(name, before, after))
            else:
                continue
            used.update(range(start, stop))
        phrases, sides = zip(*(_side_of(" ".join(words[start:stop])) for start, stop in found), strict=True)
        places += [(number, side) for number, each in enumerate(sides) for side in each]
        return cls(phrases, tuple(places), tuple(relations), unused_runs(words, used))

    @property
    def captions(self) -> tuple[str, ...]:
        """The P phrases for results: as they were given, if they were listed."""
        return self.listed or self.phrases

    @property
    def without_noun(self) -> tuple[str, ...]:
        """The listed phrases without a recognised noun; they are compared with images as a whole."""
        chunker = Chunker.load()
        return tuple(text for text in self.listed if not any(phrase.visible for phrase in chunker.chunk(text)))

    def said(self, number: int) -> str:
        """Return a phrase with its places and relations: ``a dog on the left``, ``a dog left of a man``."""
        if self.listed:
            return self.listed[number]
        own = [_SAID[name] for phrase, name in self.places if phrase == number]
        own += [f"{name} {self.phrases[other]}" for name, one, other in self.relations if one == number]
        subjects = [one for _, one, other in self.relations if other == number]
        return " ".join([self.phrases[number], *own]) if own or not subjects else self.said(subjects[0])

    def names(self, scores: np.ndarray, agree: np.ndarray, least: float) -> tuple[str, ...]:
        """Return the P phrases for messages; a phrase that is shown, but elsewhere, includes its places and relations.

        ``scores`` ``(P,)`` are the probabilities that phrases are shown in the right place, ``agree`` ``(P,)`` the
        log-probabilities of the place alone, see :meth:`choose`. ``least`` is the threshold for phrases that are found.
        """
        misplaced = (scores < least) & (scores / np.exp(agree) >= least)
        return tuple(self.said(i) if misplaced[i] else phrase for i, phrase in enumerate(self.captions))

    def missing(self, scores: np.ndarray, agree: np.ndarray, least: float) -> tuple[str, ...]:
        """Return :meth:`names` of the phrases that are not found, without duplicates."""
        names = self.names(scores, agree, least)
        return tuple(dict.fromkeys(names[i] for i in np.flatnonzero(scores < least)))

    def only(self, kept: Sequence[bool]) -> Layout:
        """Return the layout of the phrases in the mask ``kept``; the other phrases become unused words."""
        new = {old: number for number, old in enumerate(i for i, keep in enumerate(kept) if keep)}
        places = tuple((new[phrase], name) for phrase, name in self.places if phrase in new)
        pairs = (each for each in self.relations if each.subject in new and each.object in new)
        relations = tuple(Asked(name, new[one], new[other]) for name, one, other in pairs)
        dropped = tuple(self.said(i) for i, keep in enumerate(kept) if not keep)
        listed = tuple(self.listed[i] for i in new if self.listed)
        return Layout(tuple(self.phrases[i] for i in new), places, relations, self.unused + dropped, listed)

    def choose(
        self, fits: np.ndarray, boxes: np.ndarray, size: tuple[int, int], weight: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the region of each phrase ``(P,)``, and the log-probability ``(P,)`` that its place is right.

        The latter includes how much worse the region fits than the best region anywhere, multiplied by ``weight``. Use
        a weight below 1 for fits that are overconfident when several regions are right.

        Args:
            fits: ``(R, P)`` log-probability that each region fits each phrase.
            boxes: ``(R, 4)`` region boxes in pixels of the image, which has this ``size`` (width, height).
        """
        shares = boxes / np.array([*size, *size], np.float64)
        agree = np.zeros(fits.shape)
        for phrase, name in self.places:
            here = PLACES[name](shares)
            if name in _SIDES_OF and tokenize(self.phrases[phrase])[0] == "the":
                here = np.maximum(here, _outermost(RELATIONS[_SIDES_OF[name]], weight * fits[:, phrase], shares))
            agree[:, phrase] += _log(here)
        logs = [_log(RELATIONS[name](shares, shares)) for name, _, _ in self.relations]
        alike = [self._are_alike(one, other) for _, one, other in self.relations]
        other_box, other_thing = _log(1 - geometry.iou(boxes, boxes)), _log(1 - _common_share(boxes))
        logs = [log + (other_thing if both else 0) for log, both in zip(logs, alike, strict=True)]
        own = fits + agree
        rows = own.argmax(axis=0)
        for _ in range(SWEEPS if logs else 0):
            for number, (_, one, other) in enumerate(self.relations):
                first, second = (
                    own[:, phrase] + self._said_by_others(number, phrase, rows, logs) for phrase in (one, other)
                )
                pairs = first[:, None] + second[None] + logs[number] + other_box
                rows[one], rows[other] = np.unravel_index(int(pairs.argmax()), pairs.shape)
        judged = {phrase for phrase, _ in self.places}
        judged |= {phrase for name, *both in self.relations if name not in CHOOSES for phrase in both}
        columns = np.arange(len(rows))
        lost = weight * (fits[rows, columns] - fits.max(axis=0)) * np.isin(columns, sorted(judged))
        found = agree[rows, columns] + lost
        for (name, one, other), log in zip(self.relations, logs, strict=True):
            if name not in CHOOSES:
                found[one] += log[rows[one], rows[other]]
        return rows, found

    def _are_alike(self, one: int, other: int) -> bool:
        """Return whether two phrases name the same kind of thing, so that one box must not be part of the other."""
        nouns = [noun_tree().find(self.phrases[number]) for number in (one, other)]
        return nouns[0] is not None and nouns[1] is not None and related(nouns[0], nouns[1])

    def _said_by_others(self, number: int, phrase: int, rows: np.ndarray, logs: Sequence[np.ndarray]) -> np.ndarray:
        """Return what the other relations add for each region of a phrase, given the regions of the other phrases."""
        total = np.zeros(len(logs[0]))
        for other, ((_, one, two), log) in enumerate(zip(self.relations, logs, strict=True)):
            if other != number and phrase == one:
                total += log[:, rows[two]]
            elif other != number and phrase == two:
                total += log[rows[one]]
        return total


def _outermost(relation: Relation, fits: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the probability ``(R,)`` that each region has a relation to another thing of its kind, and none to it.

    ``fits (R,)`` are log-probabilities that regions show such a thing; those far below the best count little.
    """
    alike = np.exp(fits - fits.max())
    ahead = relation(boxes, boxes) * (1 - _common_share(boxes))
    return (alike * ahead).max(axis=1) * (1 - (alike[:, None] * ahead).max(axis=0))


def _log(probability: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probability, LEAST))


def _side_of(phrase: str) -> tuple[str, tuple[str, ...]]:
    """Return a phrase without the place that it gives a thing before its noun, and this place.

    "The upper left dog" is a dog at the top and on the left. The left hand, the top shelf, and other parts of a thing
    stay as they are, as do "a top hat" and all with "a", and what has other words than colours and common adjectives
    between place and noun ("middle eastern men").

    Example:
        >>> _side_of("the upper left black dog"), _side_of("the left hand")
        (('the black dog', ('top', 'left')), ('the left hand', ()))
    """
    words, low = phrase.split(), phrase.replace("-", " ").lower().split()
    words = words if len(words) == len(low) else low
    start = stop = int(low[:1] != [] and low[0] in STARTS - {"a", "an"})
    while stop < len(low) and (low[stop] in _PLACE_BEFORE or low[stop] in ("far", "hand", "most")):
        stop += 1
    head = noun_tree().head(low)
    if head.noun is None or not start < stop <= head.start or not SIDED.isdisjoint(low[head.start : head.stop]):
        return phrase, ()
    places = dict.fromkeys(_PLACE_BEFORE[word] for word in low[start:stop] if word in _PLACE_BEFORE)
    if not places or not _PLAIN.issuperset(low[stop : head.start]):
        return phrase, ()
    return " ".join([*words[:start], *words[stop:]]), tuple(places)


def _find_patterns(words: Sequence[str]) -> list[tuple[int, int, str, str]]:
    """Return places and relations among words as (first word, word after the last, kind, name)."""
    found: list[tuple[int, int, str, str]] = []
    start = 0
    while start < len(words):
        ends = range(min(start + _LONGEST, len(words)), start, -1)
        stop = next((end for end in ends if tuple(words[start:end]) in _PATTERNS), None)
        if stop is not None:
            found.append((start, stop, *_PATTERNS[tuple(words[start:stop])]))
        start = start + 1 if stop is None else stop
    return found


def _visible_phrases(
    words: Sequence[str], gaps: Sequence[str], marks: Sequence[tuple[int, int, str, str]]
) -> list[tuple[int, int]]:
    """Return the phrases that name something visible, except place and relation words of several words.

    A phrase that continues after a relation word ("clouds over mountains") is cut there. An initial "no" is left out.
    """
    cuts = [(start, stop) for start, stop, _, _ in marks if stop - start > 1]
    found = _chunks(words, gaps, cuts)
    inside = [
        (start, stop)
        for start, stop, _, _ in marks
        if any(start < last and not EMPTY.issuperset(words[first:start]) for first, last in found if first < start)
    ]
    return _chunks(words, gaps, sorted(cuts + inside)) if inside else found


def _chunks(words: Sequence[str], gaps: Sequence[str], cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the visible phrases of the parts of a text between its cuts, but for those of :data:`POSITIONS`."""
    found: list[tuple[int, int]] = []
    for first, last in zip([0, *(stop for _, stop in cuts)], [*(start for start, _ in cuts), len(words)], strict=True):
        text = "".join(gap + word for gap, word in zip(gaps[first:last], words[first:last], strict=True))
        chunks = Chunker.load().chunk(text)
        starts = [phrase.start + phrase.words.startswith("no ") for phrase in chunks]
        found += [(first + a, first + each.stop) for a, each in zip(starts, chunks, strict=True) if each.visible]
    return [(a, b) for a, b in found if not POSITIONS.issuperset(words[a:b]) or words[b : b + 1] == ["of"]]


def unused_runs(words: Sequence[str], used: set[int]) -> tuple[str, ...]:
    """Return the runs of unused words, without joining words such as "and" at their ends."""
    runs: list[list[str]] = [[]]
    for i, word in enumerate(words):
        if i in used:
            runs.append([])
        elif runs[-1] or word not in JOINING:
            runs[-1].append(word)
    texts = (" ".join(run[: max(i for i, word in enumerate(run, 1) if word not in JOINING)]) for run in runs if run)
    return tuple(dict.fromkeys(texts))


def nouns_in_a_row(phrase: str) -> tuple[str, ...]:
    """Return the parts of a phrase without an article that ends with several nouns, each with an article; else nothing.

    The tree has no name for them all: "dog pizza" is read as one thing, like "coffee cup", and may mean two. A "snow
    covered mountain" is one.

    Example:
        >>> nouns_in_a_row("brown dog pizza"), nouns_in_a_row("a dog pizza"), nouns_in_a_row("hot dog")
        (('a brown dog', 'a pizza'), (), ())
    """
    words = tokenize(phrase)
    heads = [head for head in find_heads(words, noun_tree()) if colour_of(words, head.start) is None]  # an orange fish
    one = any(is_participle(words[head.stop]) for head in heads[:-1])
    if one or len(heads) < 2 or not (STARTS | AFTER | JOINING | UNREAD).isdisjoint(words):
        return ()
    stops = [0, *(head.stop for head in heads[:-1]), len(words)]
    parts = [" ".join(words[start:stop]) for start, stop in pairwise(stops)]
    return tuple(p if head.plural else with_articles(f"a {p}") for p, head in zip(parts, heads, strict=True))


def cut_excluded(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a text without what it excludes, and that in pairs of the word that excludes it and the thing.

    Example:
        >>> cut_excluded("a man without a hat and a dog"), cut_excluded("no snow, a dog")
        (('a man and a dog', [('without', 'a hat')]), ('a dog', [('no', 'snow')]))
    """
    excluded = list[tuple[str, str]]()
    while found := WITHOUT.search(text):
        before, rest = text[: found.start()], text[found.end() :]
        words, gaps = split_words(rest)
        stop = _end_of_first(rest)
        after = "".join(gap + word for gap, word in zip(gaps[stop:], words[stop:], strict=False))
        excluded.append((" ".join(tokenize(found[0])), " ".join(words[:stop])))
        text = f"{before}{after}" if tokenize(before) else _ANDS.sub("", after)
    return text, excluded


def without_excluded(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without what it excludes, and that as it was said; limits of numbers count, too.

    Where nothing else is named, the things stay.

    Example:
        >>> without_excluded("at most two dogs without collars"), without_excluded("no dogs")
        (('dogs', ('at most two', 'without collars')), ('dogs', ('no',)))
        >>> without_excluded("two or more dogs")
        ('at least two dogs', ())
    """
    text = OR_MORE.sub(lambda found: found[3] or f"at least {found[1] or found[2]}", text)
    unused = [" ".join(tokenize(found[0])) for found in AT_MOST.finditer(text)]
    text = AT_MOST.sub("", text) if unused else text
    kept, excluded = cut_excluded(text)
    if not excluded:
        return text, tuple(unused)
    if any(phrase.visible for phrase in Chunker.load().chunk(kept)):
        return kept, (*unused, *(f"{word} {thing}" for word, thing in excluded))
    listed = ", ".join([*(thing for _, thing in excluded), *([kept] if tokenize(kept) else [])])
    return listed, (*unused, *dict.fromkeys(word for word, _ in excluded))


_ANDS = re.compile(r"^[\s,;]*(?:(?:and|but|with)\s+)*")


def _end_of_first(text: str) -> int:
    """Return where the first thing that a text names ends, with those joined to it by "or"; at least the first word."""
    chunks, words = [phrase for phrase in Chunker.load().chunk(text) if phrase.visible], tokenize(text)
    stop = chunks[0].stop if chunks else len(words)
    while stop < len(words) and words[stop] == "or":
        stop = next((phrase.stop for phrase in chunks if phrase.start == stop + 1), stop + 1)
    return max(stop, 1)


# Counting


def _amount(words: Sequence[str]) -> tuple[int, int, int]:
    """Return where the amount at the beginning of a phrase starts and stops, and its minimum count; 1 without one."""
    start = 1 if words[:1] and words[0] in DETERMINERS else 0
    if (more := AT_LEAST.get(tuple(words[start : start + 2]))) is not None:
        _, stop, number = _amount(words[start + 2 :])
        if more and not stop and words[start + 2 : start + 3] == ["one"]:
            stop = 1
        return (start, start + 2 + stop, number + more) if stop else (start, start, 1)
    stop, number = start, 1
    for length in (3, 2, 1):
        if (found := AMOUNTS.get(tuple(words[start : start + length]))) is not None:
            stop, number = start + length, found
            break
    else:
        if len(words) > start + 1 and words[start].isdecimal() and noun_tree().head(words[start + 1 :]).plural:
            stop, number = start + 1, max(int(words[start]), 1)
    while number > 1 and stop < len(words) - 1 and words[stop] in ("dozen", "hundred", "thousand", "million"):
        stop, number = stop + 1, 12 * number
    return (start, stop, number) if stop < len(words) else (start, start, 1)


def count_of(phrase: str) -> int:
    """Return the minimum number of things that a phrase names; 1 if it has no number."""
    return _amount(tokenize(phrase))[2]


def one_of(phrase: str) -> str:
    """Return a counted phrase in the singular: "two brown dogs" becomes "a brown dog"."""
    words, tree = tokenize(phrase), noun_tree()
    words = words[_amount(words)[1] :]
    head = tree.head(words)
    if head.noun is not None and head.plural:
        words = [*words[: head.start], head.noun.name, *words[head.stop :]]
    return with_articles(" ".join(["a", *words]))


_NO_COUNT = re.compile(r"\d[^\w\s]|[^\w\s]\d")
"""Figures that are no number of things: "1.5", "1,000", "1-year-old"."""


def spelt_out(phrase: str) -> str:
    """Return a phrase with its number as captions have it: "two dogs" for "2 dogs" and "a couple of dogs".

    Example:
        >>> spelt_out("3 brown dogs"), spelt_out("1 dog"), spelt_out("two persons"), spelt_out("a Dog")
        ('three brown dogs', 'a dog', 'two people', 'a Dog')
    """
    words = tokenize(phrase)
    if _NO_COUNT.search(phrase):
        return phrase
    start, stop, number = _amount(words)
    amount, said = words[start:stop], _SPELT.get(number)
    if (number > 1 and said and amount[0].isdecimal()) or amount == ["a", "couple", "of"]:
        words[start:stop] = [said or "two"]
    elif words[:1] == ["1"] and words[1:] and words[1] not in AFTER:
        words = with_articles(" ".join(["a", *words[1:]])).split()
    words = ["people" if word == "persons" else word for word in words]
    return phrase if words == tokenize(phrase) else " ".join(words)


def as_many(phrase: str, known: Container[str]) -> str:
    """Return a phrase with "many" in place of a number that captions hardly have: of "50 dogs" "many dogs".

    That is one above :data:`MOST_SAID`, or one with words that are not ``known``.
    """
    words = tokenize(phrase)
    start, stop, number = _amount(words)
    if number > 1 and tuple(words[start : start + 2]) in AT_LEAST:
        said = next((word for word, value in NUMBERS.items() if value == number and word != "both"), "many")
        words = [*words[:start], said if said in known else "many", *_plural(words[stop:])]
        return " ".join(words)
    said = number <= MOST_SAID and (number == 1 or all(word in known for word in words[start:stop]))
    return phrase if said else " ".join((*words[:start], "many", *words[stop:]))


def _plural(words: Sequence[str]) -> list[str]:
    """Return a phrase with its noun in the plural: "brown dogs" for "brown dog"."""
    head = noun_tree().head(words)
    if head.plural or head.stop == head.start:
        return [*words]
    return [*words[: head.start], *plural(" ".join(words[head.start : head.stop])).split(), *words[head.stop :]]
