"""Noun tree, the kinds of things that regions show, and the nouns of phrases (docs/nouns.md).

ImageNet's classes and everyday kinds are arranged in WordNet's hierarchy: the table ``nouns.tsv`` beside this file,
compiled by ``benchmarks/noun_table.py``. ``nouns.LICENSE`` is WordNet's notice.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from saywhere.engines.engine import DenseCap, Nouns
from saywhere.errors import UserError
from saywhere.models.encoding import Encoding
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.text import COUNTING, PHRASE_ENDS, RESERVED, Vocabulary, tokenize, with_articles

TABLE = Path(__file__).with_name("nouns.tsv")
_reading = threading.Lock()

Sort = Literal["class", "kind", "group"]
"""A class of ImageNet, another kind of thing, or a common hypernym of several of them."""
Use = Literal["count", "mass", "plural", ""]
"""How a name is used: ``a dog``, ``grass``, ``skis``; empty if people use the name of a node above instead."""

_SAME = (
    "aircraft", "binoculars", "bison", "boxers", "cattle", "deer", "elk", "fish", "glasses", "goggles", "headphones",
    "jeans", "leggings", "moose", "overalls", "pants", "pyjamas", "salmon", "scissors", "series", "sheep", "shorts",
    "skis", "spacecraft", "squid", "stairs", "sunglasses", "swine", "tights", "tongs", "trousers", "trout",
)  # fmt: skip
IRREGULAR = {name: name for name in _SAME} | {
    "man": "men", "woman": "women", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth",
    "mouse": "mice", "goose": "geese", "ox": "oxen", "knife": "knives", "wolf": "wolves", "leaf": "leaves",
    "shelf": "shelves", "scarf": "scarves", "half": "halves", "calf": "calves", "loaf": "loaves", "hoof": "hooves",
    "wife": "wives", "thief": "thieves", "cactus": "cacti", "hippopotamus": "hippopotami", "potato": "potatoes",
    "tomato": "tomatoes", "mango": "mangoes", "volcano": "volcanoes", "mosquito": "mosquitoes", "buffalo": "buffaloes",
    "hero": "heroes", "torpedo": "torpedoes", "human": "humans", "german": "germans", "caiman": "caimans",
    "ottoman": "ottomans", "shaman": "shamans", "talisman": "talismans", "mongoose": "mongooses",
}  # fmt: skip
"""Usual plurals that follow no rule."""
COMPOUNDS = tuple(name for name in IRREGULAR if len(name) > 3 or name == "man")
"""Those whose plurals compounds share: "bookshelf", "goldfish", "policeman"."""
AFTER = frozenset({
    "of", "with", "in", "on", "at", "from", "by", "near", "under", "over", "behind", "beside", "to", "for", "against",
    "into", "through", "onto", "next", "that", "who", "which", "while", "is", "are", "wearing", "holding", "riding",
    "carrying", "playing", "sitting", "standing", "walking", "running", "jumping", "looking",
})  # fmt: skip
"""Words that end the part of a phrase with its noun."""
STARTS = frozenset({
    "a", "an", "the", "his", "her", "their", "its", "my", "your", "our", "this", "that", "these", "those", "another",
    "other", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "several", "some", "many",
    "few", "both", "all", "each", "every", "any", "no", "more",
})  # fmt: skip
"""Words that begin phrases and cannot be their nouns."""
SINGULAR = frozenset({"a", "an", "one", "another", "this", "that", "each", "every"})
"""Those before a singular: after "a biker", "bikes" is a verb."""
BEFORE_NOUNS = STARTS | {
    "red", "blue", "green", "yellow", "black", "white", "brown", "grey", "gray", "pink", "purple", "golden", "dark",
    "bright", "big", "small", "large", "little", "tiny", "huge", "long", "short", "tall", "old", "new", "beautiful",
    "wooden", "colorful", "colourful", "striped", "empty", "wet", "dirty", "young", "wild", "different",
}  # fmt: skip
"""STARTS, and adjectives that are never a phrase by themselves."""
PARTICIPLES = frozenset({
    "beaten", "bent", "bitten", "blown", "bought", "bound", "broken", "built", "burnt", "caught", "chosen", "drawn",
    "driven", "eaten", "fallen", "flown", "forgotten", "frozen", "grown", "held", "hidden", "hung", "knit", "lit",
    "lost", "made", "molten", "overgrown", "ridden", "seen", "sewn", "shaken", "shaven", "sold", "spilt",
    "spun", "stolen", "strewn", "stuck", "sunken", "swollen", "taken", "thrown", "torn", "unlit", "woven", "worn",
    "written",
})  # fmt: skip
"""Participles that do not end in -ed: "a car seen" names a car, and "a stolen car" too."""
ARTICLES = frozenset(["a", "an", "the", "his", "her", "their", "its", "another", "two", "three"])
"""Words that begin another phrase after "and"."""
OTHERS = frozenset({"another", "other", "each", "one", "second"})
"""Words before a noun that make it a different thing from one named before."""
DETERMINED = ("a", "an", "the")
"""First words of the phrases that must not be repeated."""
SIDES = frozenset({"front", "side", "top", "middle", "back"})
"""Words that a text does not end with when it is cut after "in", "on" or "the": "in front", but "in a pink top"."""
LOOSE = AFTER | PHRASE_ENDS | {"after", "as", "before", "close", "full", "like", "out"}
"""Words that end such phrases, and that a text does not end with when it is cut."""
AMOUNTS = frozenset({
    "group", "pair", "bunch", "couple", "piece", "line", "row", "kind", "type", "pile", "lot", "number", "slice",
    "plate", "stack", "herd", "flock", "set",
})  # fmt: skip
"""Nouns that give way to the noun after ``of``: ``a group of people``."""

LONGEST = 3
"""Maximum number of words in a name."""

_NARROWER = {
    "aircraft": "drone glider helicopter", "animal": "alpaca lemur livestock newt seal", "bag": "briefcase satchel",
    "bed": "bunk",
    "bird": "budgie canary chick cockatoo egret falcon gull heron kingfisher parakeet pheasant raven sparrow stork "
    "woodpecker",
    "boat": "dinghy raft tugboat", "bottle": "decanter flask thermos", "brass instrument": "tuba", "bread": "croissant",
    "butterfly": "moth", "cabinet": "cupboard", "camera": "camcorder", "car": "hatchback", "cat": "kitty",
    "cellphone": "smartphone", "chair": "stool", "computer": "desktop tablet", "couch": "settee sofabed",
    "cow": "steer", "crocodile": "alligator", "cup": "mug", "deer": "caribou elk reindeer", "donkey": "mule",
    "field": "meadow pasture", "fire truck": "firetruck", "flower": "bouquet carnation lily orchid rose tulip",
    "fruit": "apricot avocado cherry grape kiwi mango melon peach pear watermelon", "gun": "pistol",
    "horse": "foal racehorse", "house": "bungalow cabin hut villa", "insect": "beetle bug hornet mosquito wasp",
    "jacket": "peacoat", "labrador retriever": "labrador", "lake": "lagoon", "lamp": "chandelier", "lemon": "lime",
    "lizard": "chameleon gecko", "missile": "rocket", "mower": "lawnmower", "nose": "snout", "path": "footpath",
    "pembroke": "corgi", "pig": "piglet", "pillow": "cushion", "potted plant": "cactus", "power drill": "drill",
    "river": "brook canal creek stream", "road": "motorway", "rock": "outcropping pebble",
    "rv": "camper caravan motorhome", "scarf": "shawl", "sheep": "lamb", "ship": "destroyer frigate galleon steamer",
    "shirt": "blouse undershirt", "shoe": "slipper", "shovel": "spade", "sign": "signpost", "sled": "toboggan",
    "snake": "cobra python viper", "suit": "tuxedo", "surfboard": "bodyboard wakeboard", "sweatshirt": "hoodie",
    "table": "nightstand", "teapot": "kettle", "tree": "palm shrubbery", "truck": "lorry trailer", "turtle": "tortoise",
    "typewriter keyboard": "typewriter", "umbrella": "brolly parasol", "vacuum cleaner": "hoover",
    "vegetable": "garlic lettuce onion pumpkin", "weapon": "sword", "wind instrument": "clarinet",
}  # fmt: skip
NARROWER = {word: kind for kind, words in _NARROWER.items() for word in words.split()}
"""Kinds of words that are not in the table, where the kind tells best whether an image shows the thing. Breeds of dogs
are left out: in a photograph of a dog, the text encoder tells more."""


def is_amount(word: str) -> bool:
    """Return whether a word, or its singular, is in :data:`AMOUNTS`."""
    return known_form(word, AMOUNTS) in AMOUNTS


def is_participle(word: str) -> bool:
    """Return whether a word is, by its form, a past participle: it may stand before a noun or after it."""
    return word.endswith("ed") or word in PARTICIPLES


def plural(name: str) -> str:
    """Return the usual plural of a noun: ``hot dog`` gives ``hot dogs``, ``policeman`` gives ``policemen``."""
    return plurals(name)[0]


def plurals(name: str) -> list[str]:
    """Return the plurals of a noun, the usual one first: ``cactus`` gives ``cacti`` and ``cactuses``."""
    before, space, last = name.rpartition(" ")
    several = []
    if last in IRREGULAR:
        several = [IRREGULAR[last]]
    elif last.endswith(COMPOUNDS):
        end = next(end for end in COMPOUNDS if last.endswith(end))
        several = [last.removesuffix(end) + IRREGULAR[end]]
    if several and not last.endswith(("o", "us")):  # "fishes" and "leafs" are verbs
        return [before + space + several[0]]
    if last.endswith(("s", "x", "ch", "sh")):
        several.append(last + "es")
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        several.append(last[:-1] + "ies")
    else:
        several.append(last + "s")
    if last.endswith("o"):
        several.append(last + "es")
    return [before + space + form for form in dict.fromkeys(several)]


def singulars(word: str) -> list[str]:
    """Return the words of which a word is a plural by its form, the likeliest first."""
    forms = [name for name, several in IRREGULAR.items() if several == word]
    cuts = ((2, "an"), (3, "f"), (3, "fe"), (3, ""), (0, ""))
    twice = word.endswith(("buses", "ches", "ies", "shes", "sses", "xes"))
    cuts += ((3, "y"), (2, ""), (1, "")) if twice else ((1, ""), (2, ""))
    forms += [word[: len(word) - cut] + end for cut, end in cuts]
    return [form for form in dict.fromkeys(forms) if form and word in plurals(form)]


def known_form(word: str, known: Container[str]) -> str:
    """Return a word if it is known, else its known singular, plural or form without "'s", else the word itself."""
    forms = (word, *singulars(word), plural(word), word.removesuffix("'s"))
    return next((form for form in forms if form in known), word)


@dataclass(frozen=True, eq=False)
class Noun:
    """A node of the tree: its ``row`` in the table, and its common name in the singular.

    Attributes:
        ancestors: rows of the node itself and of all nodes above it, with the number of steps to each.
        leaves: rows of the classes and kinds at or below it.
    """

    row: int
    sort: Sort
    name: str
    use: Use
    ancestors: Mapping[int, int] = field(repr=False)
    leaves: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Head:
    """The noun of a phrase: words ``start`` to ``stop``, its node or None, and whether it is in the plural."""

    start: int
    stop: int
    noun: Noun | None
    plural: bool


class NounTree:
    """Tree of nouns, read from the lines of a table.

    A line has six fields separated by tabs (else ``ValueError``): synset, sort, name, use, words that lead to the
    synset, and synsets above it. The classes of ImageNet come first, in their order, then other kinds, then groups. The
    first ``leaves`` of the ``nouns`` are not groups. A line without a synset lists names that lead nowhere, such as
    "record player", whose last word alone would lead to people.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        lists = [line.split("\t") for line in lines]
        rows = [row for row in lists if row[0]]
        sorts, uses = get_args(Sort), get_args(Use)
        if any(len(row) != 6 or row[1] not in sorts or row[3] not in uses for row in rows):
            raise ValueError("a noun has a synset, a sort, a name, a use, words and the synsets above it")
        numbers = {row[0]: number for number, row in enumerate(rows)}
        above = [tuple(numbers[synset] for synset in row[5].split()) for row in rows]
        ancestors = [_ancestors(number, above) for number in range(len(rows))]
        self.leaves = sum(row[1] != "group" for row in rows)
        below: list[list[int]] = [[] for _ in rows]
        for leaf in range(self.leaves):
            for up in ancestors[leaf]:
                below[up].append(leaf)
        self.nouns = tuple(
            Noun(number, *row[1:4], ancestors[number], np.array(below[number], np.int64))  # pyright: ignore[reportArgumentType, reportCallIssue]
            for number, row in enumerate(rows)
        )
        self._words: dict[str, tuple[int | None, bool]] = {}
        for row in lists:
            for word in row[4].split(", "):
                self._words[word] = (numbers.get(row[0]), False)
        self._words.pop("", None)
        for word, (number, _) in list(self._words.items()):
            for several in plurals(word):
                self._words.setdefault(several, (number, True))

    def named(self, word: str) -> Noun | None:
        """Return the node of a word, or of a name of several words, in the singular or plural; None if unknown."""
        row, _ = self._words.get(word, (None, False))
        return None if row is None else self.nouns[row]

    def is_plural(self, word: str) -> bool:
        """Return whether a word is known as the plural of a noun."""
        return self._words.get(word, (None, False))[1]

    def names(self) -> Iterator[tuple[str, Noun]]:
        """Yield each name with a node, singular or plural and of one word or several, together with the node."""
        return ((name, self.nouns[row]) for name, (row, _) in self._words.items() if row is not None)

    def entry(self, noun: Noun) -> Noun | None:
        """Return the nearest node at or above ``noun`` whose name people use; None if there is none."""
        near = [(steps, row) for row, steps in noun.ancestors.items() if self.nouns[row].use]
        return self.nouns[min(near)[1]] if near else None

    def find(self, phrase: str) -> Noun | None:
        """Return the node of a phrase's noun: ``dog`` for ``two big dogs on the grass``; None if it has none."""
        return self.head(tokenize(phrase)).noun

    def find_kind(self, phrase: str) -> Noun | None:
        """Return :meth:`find`, or else the node above a noun of :data:`NARROWER`: ``bird`` for "a sparrow"."""
        spot = self._narrower(words := tokenize(phrase))
        return self.head(words).noun if spot is None else self.named(spot[1])

    def widened(self, phrase: str) -> str | None:
        """Return a phrase with the kind in place of a noun of :data:`NARROWER`; None if it has none.

        Example:
            >>> noun_tree().widened("two small sparrows on a roof")
            'two small birds on a roof'
        """
        if (spot := self._narrower(words := tokenize(phrase))) is None:
            return None
        place, kind = spot
        kind = kind if words[place] in NARROWER else plural(kind)
        return with_articles(" ".join([*words[:place], kind, *words[place + 1 :]]))

    def narrower(self, phrase: str) -> tuple[str, str] | None:
        """Return the noun of :data:`NARROWER` that a phrase is about, and its kind; None if it has none.

        Example:
            >>> noun_tree().narrower("two small sparrows on a roof")
            ('sparrow', 'bird')
        """
        spot = self._narrower(words := tokenize(phrase))
        return None if spot is None else (known_form(words[spot[0]], NARROWER), spot[1])

    def _narrower(self, words: Sequence[str]) -> tuple[int, str] | None:
        """Return the place of the word of :data:`NARROWER` that a phrase is about, and its kind; None if it has none.

        In "a flask of water" it is the flask, in "a flock of gulls" it is the gulls.
        """
        head = self.head(words)
        places = [head.start] if head.noun is None and words else []
        if "of" in words[1:]:
            of = words.index("of", 1)
            inner = self.head(words[of + 1 :])
            amount = is_amount(words[of - 1]) and inner.noun is None
            places = [of + 1 + inner.start] if amount else [of - 1, *places]
        forms = ((place, known_form(words[place], NARROWER)) for place in places if place < len(words))
        return next(((place, NARROWER[form]) for place, form in forms if form in NARROWER), None)

    def is_person(self, noun: Noun | None) -> bool:
        """Return whether a noun is a word for people."""
        person = self.named("person")
        return noun is not None and person is not None and person.row in noun.ancestors

    def share(self, phrase: str) -> float:
        """Return the fraction of a noun's node that the noun covers: below 1 for roles, whose node is all people.

        Example:
            >>> [noun_tree().share(text) for text in ("a person", "two women", "a nurse", "a dog")]
            [1.0, 1.0, 0.05, 1.0]
        """
        head = self.head(words := tokenize(phrase))
        role = head.noun is not None and head.noun.name == "person"
        return ROLE if role and " ".join(words[head.start : head.stop]) not in SOMEBODY else 1.0

    def is_bare(self, phrase: str) -> bool:
        """Return whether a phrase says nothing but its noun, and that is no role (see :meth:`share`).

        Example:
            >>> [noun_tree().is_bare(text) for text in ("a dog", "dogs", "a big dog", "two dogs", "a nurse")]
            [True, True, False, False, False]
        """
        head = self.head(words := tokenize(phrase))
        alone = head.stop == len(words) and words[: head.start] in ([], ["a"], ["an"], ["the"], ["some"])
        return alone and head.noun is not None and self.share(phrase) == 1

    def head(self, words: Sequence[str]) -> Head:
        """Return the noun of a phrase and its position.

        The noun is the longest name of the tree that ends the phrase, or its part before "of", "in", "wearing" etc. A
        participle at the end of that part is skipped ("a car parked"). In "a group of people" it is the noun after
        "of", if the tree has it. If the tree has no noun of the phrase, the head is the last word of that part.
        """
        whole = self._ending(words, 0, len(words))
        if whole is not None and whole.start <= 1:
            return whole
        stop = next((i for i in range(1, len(words)) if self._ends(words, i)), len(words))
        found, last = self._ending(words, 0, stop), stop - 1
        while found is None and last > 0 and (words[last].endswith("ly") or is_participle(words[last])):
            found, last = self._ending(words, 0, last), last - 1
        unknown = found is None or found.noun is None
        if words[stop : stop + 1] == ["of"] and (unknown or is_amount(words[stop - 1])):
            inner = self.head(words[stop + 1 :])
            if inner.noun is not None:
                return Head(inner.start + stop + 1, inner.stop + stop + 1, inner.noun, inner.plural)
        return found or Head(max(stop - 1, 0), stop, None, stop > 0 and words[stop - 1].endswith("s"))

    def _ends(self, words: Sequence[str], place: int) -> bool:
        """Return whether the word at ``place`` follows the phrase's noun: "a dog running", but not "a running dog"."""
        word, after = words[place], words[place + 1] if place + 1 < len(words) else ""
        if word in ("and", "or"):
            return after in ARTICLES
        if not word.endswith("ing"):
            return word in AFTER
        if word in self._words or all(one in BEFORE_NOUNS or one.endswith("ing") for one in words[:place]):
            return False
        return word in AFTER or after in ARTICLES | AFTER or self._ending(words, 0, place) is not None

    def _ending(self, words: Sequence[str], start: int, stop: int) -> Head | None:
        """Return the longest name that ends at ``stop``, including names that lead nowhere."""
        firsts = range(max(start, stop - 4), stop)
        return next((head for first in firsts if (head := self.name_at(words, first, stop))), None)

    def name_at(self, words: Sequence[str], start: int, stop: int) -> Head | None:
        """Return the name formed by the words ``start`` to ``stop``; None if they form none or there are too few."""
        name = " ".join(words[start:stop])
        if stop > len(words) or name not in self._words:
            return None
        return Head(start, stop, self.named(name), self._words[name][1])


def _ancestors(number: int, above: Sequence[tuple[int, ...]]) -> dict[int, int]:
    steps, todo = {number: 0}, [number]
    for one in todo:
        for up in above[one]:
            if up not in steps:
                steps[up] = steps[one] + 1
                todo.append(up)
    return steps


def find_names(words: Sequence[str], tree: NounTree) -> list[Head]:
    """Return the tree's names in a text, in order; the longest at each position.

    The noun of a name that leads nowhere is None.
    """
    found, start = list[Head](), 0
    while start < len(words):
        head = next((h for stop in range(start + LONGEST, start, -1) if (h := tree.name_at(words, start, stop))), None)
        if head is not None:
            found.append(head)
        start = start + 1 if head is None else head.stop
    return found


def find_heads(words: Sequence[str], tree: NounTree) -> list[Head]:
    """Return the names of :func:`find_names` that have a noun."""
    return [head for head in find_names(words, tree) if head.noun is not None]


def repeated(words: Sequence[str], tree: NounTree) -> int | None:
    """Return where a text must be cut so that it names nothing twice; None if it does not ("another man" is fine).

    It repeats a thing if two names lead to the same noun, unless one modifies the next name ("a cowboy hat"), or if two
    phrases with an article end alike: "a bathroom has a white bathroom". A stop sign and a street sign are two things.
    """
    named, said = set[int](), dict[str, list[Noun | None]]()
    heads, cuts = find_heads(words, tree), list[int]()
    after, before = {head.start: head.noun for head in heads}, {head.stop: head.noun for head in heads}
    for number, head in enumerate(heads):
        if head.noun is None or after.get(head.stop, head.noun) is not head.noun:
            continue
        if head.noun.row in named and not OTHERS.intersection(words[max(head.start - 2, 0) : head.start]):
            cuts.append(heads[number - 1].stop)
            break
        named.add(head.noun.row)
    ends = [i for i, word in enumerate(words) if word in LOOSE and not joins_colours(words, i)]
    articles = [i for i, word in enumerate(words) if word in DETERMINED]
    for start in articles:  # "a standing man" goes on after its second word
        stop = next((end for end in ends if end > start and (end > start + 1 or end in articles)), len(words))
        if words[stop - 1].endswith("ing"):  # a verb: "a man taking a picture"
            continue
        noun, alike = before.get(stop), said.setdefault(words[stop - 1], [])
        known = any(noun is None or one is None or related(noun, one) for one in alike)
        if known and not OTHERS.intersection(words[start:stop]):
            cuts += [kept] if (kept := without_loose_end(words, start)) else []
            break
        alike.append(noun)
    return min(cuts, default=None)


def joins_colours(words: Sequence[str], place: int) -> bool:
    """Return whether the word at ``place`` is the "and" of "black and white"."""
    return words[place] == "and" and all(word in COLOURS for word in (*words[:place][-1:], *words[place + 1 :][:1]))


def without_loose_end(words: Sequence[str], stop: int) -> int:
    """Return where words before ``stop`` end if they do not end like "a dog that is" or "a dog in the middle of"."""
    while stop and (
        words[stop - 1] in LOOSE or (words[stop - 1] in SIDES and stop > 1 and words[stop - 2] in ("in", "on", "the"))
    ):
        stop -= 1
    return stop


def likely_length(words: Sequence[str], likely: Sequence[float | None], least: float) -> int:
    """Return how many words to keep so that a text ends with a part that the image or region probably shows.

    The first part, with the noun, stays. Each later one begins with a preposition, but "of", or a word in -ing. The
    parts are kept up to the end with the largest sum of the probabilities of their words less ``least`` each; articles,
    numbers, prepositions and "and" do not count. ``likely`` are the probabilities; None: unknown, which does not count.

    Example:
        >>> likely_length("a man in a red coat on a bench".split(), [0.9] * 4 + [0.2, 0.3] + [0.9] * 2 + [0.02], 0.05)
        6
    """
    best, most, total = len(words), 0.0, 0.0
    first = True
    for place, (word, probable) in enumerate(zip(words, likely, strict=True)):
        begins = place > 1 and ((word in AFTER and word != "of") or word.endswith("ing"))
        if begins and (first or total > most):
            best, most = place, total
        first &= not begins
        if not first and probable is not None and word not in FUNCTION_WORDS:
            total += probable - least
    return len(words) if first or total >= most else best


def without_repetition(text: str, tree: NounTree) -> str:
    """Cut a text before it names a thing again: "a dog near a cat and a dog" becomes "a dog near a cat"."""
    words = tokenize(text)
    stop = repeated(words, tree)
    return text if stop is None else " ".join(words[:stop])


def with_singulars(text: str, tree: NounTree) -> str:
    """Replace a known plural after "a" in a generated text by the singular.

    Example:
        >>> with_singulars("a boat with a long masts and a bird that flies", noun_tree())
        'a boat with a long mast and a bird that flies'
    """
    words = text.split()
    for start in [i for i, word in enumerate(words) if word in ("a", "an")]:
        stop = next((i for i in range(start + 1, len(words)) if words[i] in PHRASE_ENDS), len(words))
        between, last = words[start + 1 : stop - 1], words[stop - 1]
        counted = any(word in COUNTING | STARTS or word.endswith("'s") or tree.named(word) for word in between)
        if stop - 1 > start and tree.is_plural(last) and not counted:  # "a bird flies"
            words[stop - 1] = singulars(last)[0]
    return " ".join(words)


def find_nouns(text: str, tree: NounTree) -> list[Noun]:
    """Return the nouns of a text that the tree has, see :func:`find_heads`."""
    return [head.noun for head in find_heads(tokenize(text), tree) if head.noun is not None]


def find_invented(said: Sequence[Noun], mentioned: Collection[Noun]) -> list[Noun]:
    """Return the nouns in ``said`` that are not mentioned (CHAIR, Rohrbach et al. 2018).

    A noun counts as mentioned if people named it, a kind of it, or something that it is a kind of: "a man" when they
    say "a person".
    """
    rows = {noun.row for noun in mentioned}
    above = {row for noun in mentioned for row in noun.ancestors}
    return [noun for noun in said if noun.row not in above and rows.isdisjoint(noun.ancestors)]


def kind_of(tree: NounTree, phrase: str) -> str:
    """Return the kind that a true phrase names: the common name of its noun, or the noun's own words if unknown."""
    head = tree.head(words := tokenize(phrase))
    entry = None if head.noun is None else tree.entry(head.noun)
    return entry.name if entry is not None else " ".join(words[head.start : head.stop])


def is_right(tree: NounTree, said: str | Noun | None, truths: Sequence[str]) -> bool:
    """Return whether a noun (a node, or the noun of a phrase) is right for a region with known true phrases.

    It is right if it is the noun of a true phrase, a synonym, or a kind of it: "man" and "skier" are right for "a
    person", but "person" is wrong for "a man". A breed or make counts as its common name: "dog" is right for "a
    poodle". A noun outside the tree is right only if the words are equal. None is wrong.
    """
    if said is None:
        return False
    if isinstance(said, str):
        words = tokenize(said)
        head = tree.head(words)
        noun, word = head.noun, " ".join(words[head.start : head.stop])
    else:
        noun, word = said, said.name
    for truth in truths:
        true = tree.head(true_words := tokenize(truth))
        entry = None if true.noun is None else tree.entry(true.noun)
        if noun is not None and entry is not None and entry.row in noun.ancestors:
            return True
        if word == " ".join(true_words[true.start : true.stop]):
            return True
    return False


def noun_tree() -> NounTree:
    """Return the tree of the packaged table; all threads share one."""
    with _reading:
        return _noun_tree()


@cache
def _noun_tree() -> NounTree:
    return NounTree(TABLE.read_text(encoding="utf-8").splitlines())


SOMEBODY = frozenset({
    "person", "persons", "people", "individual", "individuals", "somebody", "someone", "adult", "adults", "human",
    "humans",
})  # fmt: skip
"""Words for the node of people that say nothing more; other words for it name a role, such as nurse."""
ROLE = 0.05
"""Assumed fraction of people who have a given role: the classifier knows people but no roles (docs/experiments.md)."""
THIN = 0.02
"""A box is ignored if one of its sides is below this fraction of the image's: the classifier takes any thin dark line
for a person (docs/experiments.md)."""
LEAST = 1e-4
"""Minimum probability: of a kind by ImageNet's classifier, and of a region's kind. Probabilities are clipped to this
distance from 0 and 1 before they become log-odds."""


class NounEvidence:
    """Predictions of the kinds of things in regions, as nouns of the tree.

    A region shows one of the kinds that the classifier was trained on, another class of ImageNet, or neither.
    ImageNet's probabilities divide the probability of a kind among the classes below it. ``UserError`` if the
    classifier needs the embeddings of a dense captioner and there is none.
    """

    def __init__(self, classifier: Nouns, detector: DenseCap | None = None) -> None:
        self._classifier, self._detector, self.config = classifier, detector, classifier.config
        self._own = {} if detector is None else detector.config.own_words
        names = {} if detector is None else detector.config.own_names
        self._names = dict(sorted(names.items(), key=lambda pair: -len(pair[0].split())))
        if self.config.embed_dim and detector is None:
            raise UserError("the part classes was taught with embeddings of the part densecap, which the model lacks")

    @cached_property
    def tree(self) -> NounTree:
        """The noun tree, read at first use."""
        return noun_tree()

    @cached_property
    def kinds(self) -> tuple[Noun, ...]:
        """The G kinds that the classifier was trained on; ``UserError`` if the tree lacks one of them."""
        names = self._classifier.vocabulary.tokens[len(RESERVED) :]
        nouns = [(name, self.tree.named(name)) for name in names]
        if missing := [name for name, noun in nouns if noun is None]:
            raise UserError(f"the model's kind {missing[0]!r} is not in the table of nouns")
        return tuple(noun for _, noun in nouns if noun is not None)

    @cached_property
    def groups(self) -> np.ndarray:
        """``(1000,)`` index of the nearest kind at or above each class of ImageNet; G if there is none."""
        numbers = {kind.row: number for number, kind in enumerate(self.kinds)}
        found: list[int] = []
        for noun in self.tree.nouns:
            if noun.sort == "class":
                near = [(steps, numbers[row]) for row, steps in noun.ancestors.items() if row in numbers]
                found.append(min(near)[1] if near else len(numbers))
        return np.array(found)

    @cached_property
    def known(self) -> np.ndarray:
        """``(G + 1,)`` whether ImageNet has a class of each kind; the last is for classes of no kind."""
        return self._members.sum(axis=0) > 0

    def of_groups(self, of_class: np.ndarray) -> np.ndarray:
        """Sum ImageNet's probabilities ``(N, 1000)`` over the classes of each kind: ``(N, G + 1)``."""
        return of_class @ self._members

    @cached_property
    def _members(self) -> np.ndarray:
        """``(1000, G + 1)`` 1 where a class belongs to a kind."""
        return np.eye(len(self.kinds) + 1, dtype=np.float32)[self.groups]

    def posteriors(
        self, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike],
        embeddings: Sequence[np.ndarray] | None = None, thin: bool = True,
    ) -> list[np.ndarray]:  # fmt: skip
        """Return the probabilities ``(N, K)`` of the tree's K leaves for the boxes of each image; rows sum to <= 1.

        Args:
            boxes: one ``(N, 4)`` array per image, in its pixels.
            embeddings: ``(N, D)`` embeddings of each image's boxes by the dense captioner, if already computed.
            thin: whether to predict boxes thinner than :data:`THIN`; otherwise all their probabilities are 0.
        """
        rows = [e.to_input(e.check(b)) for e, b in zip(encodings, boxes, strict=True)]
        maps = [e.maps for e in encodings]
        if not self.config.embed_dim:
            embeddings = None
        elif embeddings is None and self._detector is not None:
            embeddings = [head.embeddings for head in self._detector.region_head(maps, rows)]
        logits = self._classifier.classify(maps, rows, embeddings)
        found = [self.combine(classes, kinds) for classes, kinds in logits]
        if not thin:
            for encoding, given, posterior in zip(encodings, boxes, found, strict=True):
                corners = np.asarray(given, np.float32).reshape(-1, 4)
                sides = (corners[:, 2:] - corners[:, :2]) / (encoding.width, encoding.height)
                posterior[sides.min(axis=1) < THIN] = 0
        return found

    def combine(self, classes: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Combine logits of classes ``(N, 1000)`` and kinds ``(N, G + 2)`` into probabilities ``(N, K)`` of leaves."""
        config, count = self.config, len(self.kinds)
        of_class = softmax(classes / np.float32(config.temperature))
        of_group = self.of_groups(of_class)
        evidence = self.evidence(of_group)
        of_kind = softmax((kinds + np.float32(config.trust) * evidence) * np.float32(config.sharpness))
        scale = of_kind[:, : count + 1] / (of_group + np.float32(config.rest))
        posterior = np.zeros((len(classes), self.tree.leaves), np.float32)
        posterior[:, : classes.shape[1]] = of_class * scale[:, self.groups]
        posterior[:, [kind.row for kind in self.kinds]] += scale[:, :count] * np.float32(config.rest)
        return posterior

    def evidence(self, of_group: np.ndarray) -> np.ndarray:
        """Return what ImageNet's probabilities ``(N, G + 1)`` add to the logits ``(N, G + 2)`` of kinds.

        This is their logarithm, and 0 for kinds without a class in ImageNet.
        """
        logs = np.where(self.known, np.log(np.maximum(of_group, LEAST)), 0)
        return np.concatenate((logs, np.zeros((len(logs), 1))), axis=1).astype(np.float32)

    def lookup(self, phrase: str) -> Noun | None:
        """Return the node of a noun, or of the noun of a phrase; None if the tree has none.

        Plurals, synonyms and names of several words are known: ``two puppies on the grass`` leads to ``dog``.
        """
        return self.tree.find(phrase)

    def judged(self, phrase: str) -> Noun | None:
        """Return the noun as which the classifier judges a phrase: for ``own_words`` their kind; None if it cannot."""
        own = [self._own[word] for word in phrase.split() if word in self._own] if self._own else []
        noun = self.tree.named(own[-1]) if own else self.tree.find(phrase)
        return noun if noun is not None and self.knows(noun) else None

    def named(self, phrase: str) -> tuple[str, str] | None:
        """Return the name of ``own_names`` that a phrase is about, and what it means; None if it has none."""
        return None if (found := self._own_name(tokenize(phrase))) is None else found[2:]

    def translate(self, phrase: str) -> str:
        """Replace a noun of ``own_names`` in a phrase by what the other parts of the model call such things.

        Example:
            >>> saywhere.load("mine").nouns.translate("two trash pandas on a roof")  # doctest: +SKIP
            'two raccoons on a roof'
        """
        if (found := self._own_name(words := tokenize(phrase))) is None:
            return phrase
        start, stop, name, meaning = found
        other = meaning if list(words[start:stop]) == name.split() else plural(meaning)
        return with_articles(" ".join([*words[:start], other, *words[stop:]]))

    def _own_name(self, words: Sequence[str]) -> tuple[int, int, str, str] | None:
        """Return where the name of ``own_names`` that words are about starts and stops, the name and its meaning."""
        stop = self.tree.head(words).stop if words and self._names else 0
        for name, meaning in self._names.items():
            start = stop - len(name.split())
            if start >= 0 and " ".join(words[start:stop]) in (name, *plurals(name)):
                return start, stop, name, meaning
        return None

    def knows(self, noun: Noun) -> bool:
        """Return whether the classifier was trained on this noun, or on something that it is a kind of."""
        return not self._taught.isdisjoint(noun.ancestors)

    def tells(self, noun: Noun) -> bool:
        """Return whether the classifier can detect this noun: a trained kind or ImageNet class is at or below it."""
        classes = len(self.groups)
        return any(leaf < classes or leaf in self._taught for leaf in noun.leaves.tolist())

    @cached_property
    def _taught(self) -> frozenset[int]:
        return frozenset(kind.row for kind in self.kinds)

    def words(self, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of a vocabulary that name something the classifier was trained on, and what they name.

        The W words are a mask ``(V,)``. What they name are ones in ``(K, W)`` float32: the leaves of each word, alone
        or as part of a longer name, such as "bear" in "teddy bear".
        """
        columns: dict[str, int] = {}
        mask = np.zeros(len(vocabulary), bool)
        for token in range(len(RESERVED), len(vocabulary)):
            noun = self.tree.named(word := vocabulary.tokens[token])
            if noun is not None and self.knows(noun):
                columns[word], mask[token] = len(columns), True
        members = np.zeros((self.tree.leaves, len(columns)), np.float32)
        for name, noun in self.tree.names():
            said = [columns[word] for word in name.split() if word in columns]
            if said and self.knows(noun):
                members[noun.leaves[:, None], said] = 1
        return mask, members

    def probability(self, posterior: np.ndarray, noun: Noun) -> np.ndarray:
        """Return the probability ``(N,)`` that regions with posteriors ``(N, K)`` show a noun."""
        return posterior[:, noun.leaves].sum(axis=1)

    def log_kinds(self, encoding: Encoding, regions: Regions, phrases: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return natural log-probabilities ``(R, P)`` that regions show the kind of thing in each phrase.

        Also returns a mask ``(P,)`` of the phrases whose noun, or its kind, is in the tree; the others have 0.
        """
        nouns = [self.tree.find_kind(phrase) for phrase in phrases]
        kinds = np.zeros((len(regions), len(phrases)), np.float32)
        if any(nouns) and len(regions):
            own = self._detector is None or not self._detector.config.phrase_levels
            embeddings = [regions.features] if own and regions.features is not None else None
            (posterior,) = self.posteriors([encoding], [regions.boxes], embeddings, thin=False)
            for column, noun in enumerate(nouns):
                if noun is not None:
                    likely = self.probability(posterior, noun) * np.float32(self.tree.share(phrases[column]))
                    kinds[:, column] = np.log(np.maximum(likely, LEAST))
        return kinds, np.array([noun is not None for noun in nouns], bool)

    @cached_property
    def _said(self) -> tuple[tuple[Noun, ...], np.ndarray, np.ndarray]:
        """The S kinds and classes with common names, the leaves ``(L,)`` that have them, and the starts ``(S,)``.

        The leaves of one name are adjacent.
        """
        entries = [self.tree.entry(noun) for noun in self.tree.nouns[: self.tree.leaves]]
        nouns = {entry.row: entry for entry in entries if entry is not None and entry.sort != "group"}
        leaves: dict[int, list[int]] = {row: [] for row in nouns}
        for leaf, entry in enumerate(entries):
            if entry is not None and entry.row in leaves:
                leaves[entry.row].append(leaf)
        starts = np.cumsum([0, *(len(rows) for rows in leaves.values())])[:-1]
        return tuple(nouns.values()), np.array(list(chain(*leaves.values()))), starts

    def name(self, posterior: np.ndarray) -> list[tuple[Noun, float]]:
        """Return the most probable kind or class of each region, and its probability.

        If one candidate is a kind of another, such as wine glass and glass, a leaf counts for the nearer one.
        """
        nouns, called, starts = self._said
        best = np.add.reduceat(posterior[:, called], starts, axis=1).argmax(axis=1)
        pairs = zip(posterior, best.tolist(), strict=True)
        return [(nouns[column], float(row[nouns[column].leaves].sum())) for row, column in pairs]


KEPT = 12
"""Number of leaves kept per region where all would take too much space: the most probable ones."""
LEAF_BITS, STEPS = 11, 31
"""A kept leaf has 16 bits: the leaf, and above it the log-probability, quantised in steps down to :data:`LEAST`."""
NO_LEAF = STEPS << LEAF_BITS
"""Packed value for a leaf of that lowest probability, or for no leaf."""


def pack_leaves(posterior: np.ndarray) -> np.ndarray:
    """Pack the most probable leaves of posteriors ``(N, K)``, with rounded probabilities, in 16 bits ``(N, KEPT)``."""
    leaves = np.argpartition(-posterior, KEPT, axis=1)[:, :KEPT]
    chosen = np.maximum(np.take_along_axis(posterior, leaves, axis=1), LEAST)
    steps = np.round(np.log(chosen) * (STEPS / np.log(LEAST))).astype(np.int64)
    return (leaves | steps << LEAF_BITS).astype(np.uint16)


MOST = LEAST ** (1 / STEPS / 4)
"""Mean of the probabilities that are rounded to 1 when packed."""


def leaf_tables(nouns: Sequence[Noun | None]) -> np.ndarray:
    """Return what each packed value adds to the probability of each of P nouns: ``(P, 65536)``."""
    tables = np.zeros((len(nouns), STEPS + 1, 1 << LEAF_BITS), np.float32)
    chances = np.append(np.exp(np.arange(STEPS) * (np.log(LEAST) / STEPS)), 0)[:, None]
    for table, noun in zip(tables, nouns, strict=True):
        if noun is not None:
            table[:, noun.leaves] = chances
    return tables.reshape(len(nouns), -1)


def packed_kinds(packed: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Return the probabilities ``(N, P)`` that regions show nouns; rounding can put them above 1.

    ``packed`` are the leaves of N regions (:func:`pack_leaves`), ``tables`` those of P nouns (:func:`leaf_tables`).
    """
    rows = np.ascontiguousarray(packed.T)
    return np.stack([table.take(rows).sum(axis=0) for table in tables], axis=1)


def log_kinds(probabilities: np.ndarray) -> np.ndarray:
    """Return the natural logarithm of probabilities clipped to :data:`LEAST` and 1."""
    return np.log(np.clip(probabilities, np.float32(LEAST), 1))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def related(one: Noun, other: Noun) -> bool:
    """Return whether one noun is a kind of the other, or both are the same."""
    return one.row in other.ancestors or other.row in one.ancestors


def with_noun(head: Head, words: Sequence[str], noun: Noun) -> str:
    """Replace the noun of a phrase and keep what fits the new one, including the plural.

    Adjectives and everything after the noun stay if both nouns have a common ancestor: a brown dog and a brown cow are
    animals. Otherwise only the article or number, colours and a location stay. With "oven" for "laptop", "a black
    laptop on a desk" becomes "a black oven on a desk", and "a black laptop with keys on a desk" becomes "a black oven".
    """
    alike = head.noun is not None and not head.noun.ancestors.keys().isdisjoint(noun.ancestors)
    before, after = list(words[: head.start]), list(words[head.stop :])
    if not alike:
        colours = [word in COLOURS for word in before]
        joined = [word == "and" and any(colours[:i]) and any(colours[i:]) for i, word in enumerate(before)]
        kept = [(i == 0 and word in NEUTRAL_DETERMINERS) or colours[i] or joined[i] for i, word in enumerate(before)]
        before = [word for word, keep in zip(before, kept, strict=True) if keep]
        after = after if after and after[0] in PLACES else []
    name = plural(noun.name) if head.plural and noun.use == "count" else noun.name
    if before[:1] in (["a"], ["an"]):
        before = before[1:] if noun.use != "count" or name != noun.name else before
    elif not before and noun.use == "count" and name == noun.name:
        before = ["a"]
    return with_articles(" ".join([*before, name, *after]))


NEUTRAL_DETERMINERS = frozenset({
    "a", "an", "the", "one", "two", "three", "four", "five", "several", "some", "many",
})  # fmt: skip
"""Words that can precede any noun."""


PLACES = frozenset(
    {"in", "on", "at", "near", "under", "behind", "beside", "against", "next", "above", "below", "inside"}
)
"""Words that begin a location."""
COLOURS = {
    **{name: name for name in ("red", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")},
    **{"orange": "orange", "gray": "gray", "grey": "gray", "silver": "silver", "gold": "gold", "golden": "gold"},
    **{"beige": "beige", "tan": "beige", "turquoise": "turquoise", "teal": "turquoise"},
}
"""Colour that each word names; several words can name one colour."""
COLOUR_NAMES = tuple(dict.fromkeys(COLOURS.values()))
SHADES = {
    **dict.fromkeys(("maroon", "burgundy", "crimson", "scarlet", "reddish"), "red"),
    **dict.fromkeys(("violet", "lavender", "lilac", "mauve", "purplish"), "purple"),
    **dict.fromkeys(("magenta", "fuchsia", "pinkish"), "pink"),
    **dict.fromkeys(("cyan", "aqua"), "turquoise"),
    **{"yellowish": "yellow", "greenish": "green", "bluish": "blue", "brownish": "brown", "blackish": "black"},
    **{"whitish": "white", "grayish": "gray", "greyish": "gray"},
}
"""Nearest colour of words that captions hardly use. Words that also name a thing, such as "olive", are left out."""
NOT_ORANGE = frozenset({"juice", "slice", "slices", "peel", "tree", "trees", "half", "halves", "segments"})
"""Words before which "orange" is the fruit; it also is at the end of a phrase."""
STAYS_BEFORE = frozenset({"and", "or", "in", "on", "with", "of", "at", "to", "by", "from", "for", "over", "under"})
"""Words that take no adjective: a colour before them does not modify what follows."""
FUNCTION_WORDS = STARTS | STAYS_BEFORE | {word for word in AFTER if not word.endswith("ing")}
"""Words of a text whose probability does not matter."""


def colour_of(words: Sequence[str], place: int) -> str | None:
    """Return the colour that a word of a phrase names; None if it names none."""
    after = words[place + 1] if place + 1 < len(words) else ""
    if words[place] == "orange" and (after == "" or after in NOT_ORANGE):
        return None
    return COLOURS.get(words[place])


def end_of_colours(words: Sequence[str], place: int) -> int:
    """Return the position after the run of colours, with "and" or not, that begins at ``place``; else ``place``."""
    colours = [colour_of(words, number) is not None for number in range(len(words))] + [False, False]
    stop = place
    while colours[stop] or (stop > place and words[stop : stop + 1] == ["and"] and colours[stop + 1]):
        stop += 1
    return stop


def noun_of(words: Sequence[str], place: int) -> str:
    """Return the word that the colour at ``place`` modifies: the last before the next phrase; "" if there is none.

    Example:
        >>> noun_of("a man in a red rain coat with a bag".split(), 4)
        'coat'
    """
    noun = ""
    for word in words[end_of_colours(words, place) :]:
        if word in STAYS_BEFORE or word in ("a", "an", "the", "its", "his", "her", "is", "are"):
            break
        noun = word
    return noun
