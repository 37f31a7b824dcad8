"""The classes of regions, for programs that need classes: nouns of phrases, or names that the user gives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.models.nouns import SINGULAR, Head, Noun, known_form, noun_tree
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.text import tokenize

LONGEST = 4
"""Maximum number of words of a class name that is looked for in a phrase."""
NAMELESS = "object"
"""The class of a region without a phrase."""
COCO80 = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "", "backpack", "umbrella", "", "", "handbag", "tie", "suitcase",
    "frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant",
    "bed", "", "dining table", "", "", "toilet", "", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "", "book", "clock", "vase", "scissors", "teddy bear",
    "hair drier", "toothbrush",
)  # fmt: skip
"""COCO's classes in the order of their ids, which begin at 1; empty names are gaps."""
MAPS = {"coco80": {name: number for number, name in enumerate(COCO80, 1) if name}}
"""Named lists of classes, with their ids in COCO's files."""


PARTS = frozenset({
    "antler", "antlers", "base", "beak", "belly", "blade", "blades", "brim", "bumper", "cabin", "cockpit", "dial",
    "fender", "fin", "fingers", "fins", "frame", "handle", "handlebar", "handlebars", "handles", "headlight",
    "headlights", "hindquarters", "hood", "hoof", "hooves", "horn", "horns", "hull", "keys", "lid", "mane", "neck",
    "propeller", "reflection", "rim", "shadow", "shoulder", "shoulders", "sleeve", "snout", "sole", "stem", "strap",
    "throat", "thumb", "trunk", "tusk", "tusks", "windscreen", "windshield",
})  # fmt: skip
"""Nouns outside the tree that name a part of a thing, and not its amount or view ("the front of a car")."""


POSSESSIVE = frozenset({"the", "his", "her", "their", "its", "my", "your", "our"})
"""Words before a noun that may stand before another one: "the waters edge"."""
POSTURES = frozenset({"lies", "sits", "stands"})
"""Verbs, also after a noun that is not known."""


def head_of(words: Sequence[str]) -> Head:
    """Return the noun of a region's phrase: ``trunk`` for "the trunk of an elephant", whose box shows no elephant.

    An unknown word after a noun with which it agrees is a verb: ``cat`` for "a cat sits on the ground".
    """
    head = noun_tree().head(words)
    if head.noun is None and head.stop > 1:
        subject, verb = noun_tree().head(words[: head.stop - 1]), words[head.stop - 1]
        one = verb.endswith("s") and not verb.endswith("ss") and words[0] in SINGULAR
        agrees = not verb.endswith("s") and words[0] not in POSSESSIVE if subject.plural else one
        known = subject.noun is not None or verb in POSTURES
        if known and agrees and subject.stop == head.stop - 1:
            return subject
    part = words.index("of") - 1 if "of" in words[: head.start] else -1
    return Head(part, part + 1, None, False) if part >= 0 and words[part] in PARTS else head


def label(caption: str | None) -> str:
    """Return the head noun of a phrase, ``dog`` for "a brown dog on the grass", even if unknown."""
    words = tokenize(caption or "")
    head = head_of(words)
    return head.noun.name if head.noun is not None else " ".join(words[head.start : head.stop]) or NAMELESS


@dataclass(frozen=True)
class Classes:
    """A list of class names with optional ids; without names, every noun is a class.

    Attributes:
        names: class names, in the order of their numbers; empty: all nouns.
        ids: ids of the names in COCO's files; empty: 1, 2, ...
        first: names in a file that is converted, which come first, in its order, if all nouns are classes.
        numbered: their numbers, if they stay.

    Raises:
        UserError: a name is empty or duplicate.

    Example:
        >>> chosen = Classes(("person", "dog"))
        >>> chosen.label("a boy in red"), chosen.label("two poodles"), chosen.label("a red car")
        ('person', 'dog', None)
    """

    names: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    first: tuple[str, ...] = ()
    numbered: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(tokenize(name) for name in self.names):
            raise UserError(f"classes {', '.join(self.names)!r}: each needs a word")
        spelt = Counter(" ".join(tokenize(name)) for name in self.names)
        if twice := [name for name in self.names if spelt[" ".join(tokenize(name))] > 1]:
            raise UserError(f"classes: {twice[-1]!r} is named twice; capitals and punctuation do not count")

    @classmethod
    def of(cls, names: Iterable[object]) -> Classes:
        """Return the classes of somebody's file: texts with a word, of names that differ in capitals one."""
        return cls(
            tuple({tokens: n for n in names if isinstance(n, str) and (tokens := " ".join(tokenize(n)))}.values())
        )

    @classmethod
    def parse(cls, names: str | None = None, named: str | None = None) -> Classes | None:
        """Return the classes of a list such as ``person,dog``, or of a name in :data:`MAPS`; None without either."""
        if names is not None and named is not None:
            raise UserError("--classes and --map both say which classes there are: give one of them")
        if named is not None:
            if named not in MAPS:
                raise UserError(f"--map {named}: there is {', '.join(MAPS)}; other classes are listed with --classes")
            return cls(tuple(MAPS[named]), tuple(MAPS[named].values()))
        return None if names is None else cls(tuple(" ".join(name.split()) for name in names.split(",")))

    @classmethod
    def carried(cls, numbers: Mapping[str, int], alike: bool) -> Classes:
        """Return all nouns, those of a file with these ``numbers`` first; to a format ``alike`` the numbers stay."""
        return cls(first=tuple(numbers), numbered=tuple(numbers.values()) if alike else ())

    @cached_property
    def _nodes(self) -> dict[int, str]:
        """The names, by the row of their node in the tree of nouns."""
        found = {name: noun_tree().named(" ".join(tokenize(name))) for name in self.names}
        return {noun.row: name for name, noun in reversed(found.items()) if noun is not None}

    def unknown(self, words: Container[str] = ()) -> list[str]:
        """Return the names that are not in the tree of nouns, and do not consist of the given words either."""
        tokens = {name: tokenize(name) for name in self.names}
        lacking = [name for name in self.names if noun_tree().named(" ".join(tokens[name])) is None]
        return [name for name in lacking if not all(word in words for word in tokens[name])]

    def notes(self) -> list[str]:
        """Return a line for each name that is not in the tree of nouns."""
        return [
            f"class {name!r}: is not in the table of nouns, so only this word itself matches it"
            for name in self.unknown()
        ]

    def label(self, caption: str | None) -> str | None:
        """Return the class of a phrase, ``dog`` for "a brown dog on the grass"; None if no name matches.

        A name matches its synonyms and its kinds in the tree of nouns; of several matching names, the nearest wins. A
        name that is not in the tree matches only itself, in the singular and the plural.
        """
        if not self.names:
            return label(caption)
        words = tokenize(caption or "")
        head = head_of(words)
        spelt = {" ".join(tokenize(name)): name for name in self.names}
        for start in range(max(0, head.stop - LONGEST), head.start + 1):
            word = known_form(" ".join(words[start : head.stop]), spelt)
            if word in spelt:
                return spelt[word]
        return self._above(head.noun)

    def _above(self, noun: Noun | None) -> str | None:
        """Return the nearest name at or above a node, or None."""
        above = {} if noun is None else noun.ancestors
        near = [(steps, self._nodes[row]) for row, steps in above.items() if row in self._nodes]
        return min(near)[1] if near else None

    def labels(self, regions: Regions) -> list[str]:
        """Return the class of each region, :data:`NAMELESS` if no name matches.

        Without names, it is the label of a region that has one. Otherwise a name matches its label or its caption.
        """
        return [name or NAMELESS for name in self._labels(regions)]

    def _labels(self, regions: Regions) -> list[str | None]:
        captions = regions.captions or [None] * len(regions)
        if regions.labels is None:
            return [self.label(caption) for caption in captions]
        pairs = zip(regions.labels, captions, strict=True)
        if not self.names:
            return [own or label(caption) for own, caption in pairs]
        return [self.label(own) or self.label(caption) for own, caption in pairs]

    def keep(self, regions: Regions) -> Regions:
        """Return the regions that match a name; without names, all of them.

        A drafted group is left out if one of its things has a region: "two dogs" around a dog.
        """
        names = self._labels(regions)
        rows = [row for row, name in enumerate(names) if name is not None]
        if self.names and regions.scores is not None and regions.captions is not None and rows:
            several = [head_of(tokenize(caption or "")).plural for caption in regions.captions]
            inside = geometry.containment(regions.boxes) >= INSIDE
            sizes = geometry.area(regions.boxes)
            ones = [row for row in rows if not several[row]]
            rows = [
                row for row in rows
                if not several[row]
                or not any(inside[row, one] and sizes[one] < sizes[row] and names[one] == names[row] for one in ones)
            ]  # fmt: skip
        return regions if len(rows) == len(regions) else regions[rows]

    def all(self, images: Iterable[Regions]) -> list[str]:
        """Return the names or, without names, the classes of all regions: the first ones, others by the alphabet."""
        found = {name for regions in images for name in self.labels(regions)}
        return list(self.names) or [*self.first, *sorted(found.difference(self.first))]

    def numbers(self, images: Sequence[Regions], start: int = 1) -> dict[str, int]:
        """Return the number of each class, from ``start``; those of :attr:`ids` or :attr:`numbered` as they are."""
        names, given = self.all(images), self.ids or self.numbered
        return dict(
            zip(names, itertools.chain(given, itertools.count(max(given, default=start - 1) + 1)), strict=False)
        )


INSIDE = 0.8
"""Minimum share of a region in that of a group it belongs to."""
NOUNS = Classes()
"""The default: every noun is a class."""


def is_corrected(phrase: str, name: str, names: Classes = NOUNS) -> bool:
    """Return whether a phrase contradicts the class ``name`` of its region, because one of them was changed.

    The phrase then names another of the file's classes ``names``, or none of them although ``name`` is in the tree of
    nouns. A name in another language, or of a state, says nothing about the phrase.

    Example:
        >>> names = Classes(("dog", "cat", "Hund"))
        >>> [is_corrected(phrase, "dog", names) for phrase in ("a brown poodle", "a cat", "a fox")]
        [False, True, True]
        >>> [is_corrected(phrase, "Hund", names) for phrase in ("a fox", "a dog")]
        [False, True]
    """
    nearest = names.label(phrase) if names.names else None
    if nearest is not None or name in (phrase, label(phrase)):
        return nearest not in (None, name)
    return noun_tree().named(" ".join(tokenize(name))) is not None and Classes((name,)).label(phrase) is None
