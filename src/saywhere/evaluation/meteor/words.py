"""The words of METEOR 1.5: text normalisation, stems and synonyms.

Stems are those of Porter's second algorithm ("English" in Snowball) as of 2015 (Porter, M. F.: The English (Porter2)
stemming algorithm, 2002); later versions of Snowball differ for some words. Words are synonyms if they, or their base
forms, share a WordNet synonym set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

BLANKS = "".join(map(chr, range(33)))
"""Characters that Java strips off a text."""
LETTERS = "A-Za-zÀ-ÖØ-öø-žЀ-ԧᴀ-ᵿꙀ-ꙮ꙾-ꚗ"
QUOTES = str.maketrans({"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"'})
STEPS = [
    (re.compile(pattern), new)
    for pattern, new in (
        (rf"([^{LETTERS}0-9 \t\f\x0b.',\-])", r" \1 "),
        (r"(\.\.+)", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        (r"--", r"-"),
        (r"''", r' " '),
        (rf"([^{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([^{LETTERS}0-9])'([{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([^{LETTERS}])", r"\1 ' \2"),
        (rf"([{LETTERS}])'([{LETTERS}])", r"\1 '\2"),
        (r"([0-9])'s", r"\1 's"),
        (rf"([{LETTERS}0-9.])-([{LETTERS}0-9])", r"\1 \2"),
    )
]
LETTER = re.compile(f"[{LETTERS}]")
SPACES = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
LAST = str.maketrans({"–": "-", **dict.fromkeys(SPACES, " ")})
GAP = re.compile("[ \t\f]+")
PLAIN = re.compile("[A-Za-z ]*")
NUMERIC = "#NUMERIC_ONLY#"


class Normaliser:
    """Split text into the words that METEOR compares.

    Args:
        prefixes: lines of words after which a full stop does not end a sentence; marked ones only before a number.
    """

    def __init__(self, prefixes: str) -> None:
        lines = [line.strip() for line in prefixes.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        self._numeric = frozenset(line.split()[0] for line in lines if NUMERIC in line)
        self._prefixes = frozenset(line for line in lines if NUMERIC not in line)

    def words(self, text: str) -> list[str]:
        """Return the words of a text."""
        if PLAIN.fullmatch(text):
            return text.lower().split()
        text = f" {text.translate(QUOTES)} "
        for pattern, new in STEPS:
            text = pattern.sub(new, text)
        words = [word for word in GAP.split(text) if word]
        text = " ".join(self._part_stop(word, after) for word, after in pairwise([*words, ""]))
        return [word for word in GAP.split(text.translate(LAST).lower().strip(BLANKS)) if word]

    def _part_stop(self, word: str, after: str) -> str:
        """Split off the full stop after a word if it ends a sentence; abbreviations lose their full stops."""
        if not word.endswith(".") or not word.strip("."):
            return word
        bare = word[:-1]
        if "." in bare and LETTER.search(bare):
            return word.replace(".", "")
        if bare in self._prefixes or "a" <= after[:1] <= "z" or (bare in self._numeric and "0" <= after[:1] <= "9"):
            return word
        return f"{bare} ."


ENDINGS = (
    ("s", ""),
    ("ies", "y"),
    ("es", ""),
    ("men", "man"),
    ("ed", "e"),
    ("ed", ""),
    ("ing", "e"),
    ("ing", ""),
    ("er", ""),
    ("er", "e"),
    ("est", ""),
    ("est", "e"),
)
"""Endings of inflected words and of their base forms; the first that yields a known word is used."""


class Synonyms:
    """Look up the synonym sets of words.

    Args:
        sets: alternating lines: a word, and the names of its sets.
        exceptions: alternating lines: a base form, and its irregular inflected forms.
    """

    def __init__(self, sets: str, exceptions: str) -> None:
        self._sets = dict(_pairs(sets))
        self._bases: dict[str, list[str]] = defaultdict(list)
        for base, forms in _pairs(exceptions):
            for form in forms.split():
                self._bases[form].append(base)

    def sets(self, word: str) -> frozenset[str]:
        """Return the names of the synonym sets of a word or of its base form."""
        return frozenset(name for form in (word, *self._base_forms(word)) for name in self._sets.get(form, "").split())

    def _base_forms(self, word: str) -> list[str]:
        if word in self._bases:
            return self._bases[word]
        if len(word) > 2 and not word.endswith("ss"):
            for old, new in ENDINGS:
                if word.endswith(old) and (base := word[: -len(old)] + new) in self._sets:
                    return [base]
        return []


def _pairs(text: str) -> zip[tuple[str, str]]:
    lines = text.split("\n")
    return zip(lines[0::2], lines[1::2], strict=False)


VOWELS = frozenset("aeiouy")
DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
BEFORE_LI = frozenset("cdeghkmnrt")
SPECIAL = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}
AFTER_PLURAL = frozenset(("inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"))
PREFIXES = ("gener", "commun", "arsen")  # the first region starts after these
DERIVED = {
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "abli": "able",
    "entli": "ent",
    "izer": "ize",
    "ization": "ize",
    "ational": "ate",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "aliti": "al",
    "alli": "al",
    "fulness": "ful",
    "ousli": "ous",
    "ousness": "ous",
    "iveness": "ive",
    "iviti": "ive",
    "biliti": "ble",
    "bli": "ble",
    "ogi": "og",
    "fulli": "ful",
    "lessli": "less",
    "li": "",
}
SHORTENED = {
    "tional": "tion",
    "ational": "ate",
    "alize": "al",
    "icate": "ic",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
    "ative": "",
}
DROPPED = ("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism", "ate", "iti", "ous")
DROPPED += ("ive", "ize", "ion")


def stem(word: str) -> str:
    """Return the stem of a lower-case word."""
    if word in SPECIAL:
        return SPECIAL[word]
    if len(word) < 3:
        return word
    word = _mark_consonants(word.removeprefix("'"))
    first = _first_region(word)
    second = _after_syllable(word, first)
    word = _plural(word)
    if word not in AFTER_PLURAL:
        word = _tense(word, first)
        if len(word) > 2 and word[-1] in "yY" and word[-2] not in VOWELS:
            word = word[:-1] + "i"
        word = _derived(word, first)
        word = _shortened(word, first, second)
        word = _dropped(word, second)
        word = _last_letter(word, first, second)
    return word.replace("Y", "y")


def _mark_consonants(word: str) -> str:
    """Write ``y`` as ``Y`` where it is a consonant: at the start and after a vowel."""
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in VOWELS):
            letters[i] = "Y"
    return "".join(letters)


def _first_region(word: str) -> int:
    for prefix in PREFIXES:
        if word.startswith(prefix):
            return len(prefix)
    return _after_syllable(word, 0)


def _after_syllable(word: str, start: int) -> int:
    """Return the index after the first consonant that follows a vowel; the word's length if there is none."""
    for i in range(start + 1, len(word)):
        if word[i] not in VOWELS and word[i - 1] in VOWELS:
            return i + 1
    return len(word)


def _ending(word: str, endings: tuple[str, ...] | dict[str, str]) -> str:
    return max((e for e in endings if word.endswith(e)), key=len, default="")


def _has_vowel(text: str) -> bool:
    return any(letter in VOWELS for letter in text)


def _ends_short(word: str) -> bool:
    """Return whether the word ends in a short syllable."""
    if len(word) == 2:
        return word[0] in VOWELS and word[1] not in VOWELS
    if len(word) < 3:
        return False
    before, vowel, last = word[-3:]
    return before not in VOWELS and vowel in VOWELS and last not in VOWELS and last not in "wxY"


def _plural(word: str) -> str:
    word = word.removesuffix(_ending(word, ("'", "'s", "'s'")))
    ending = _ending(word, ("sses", "ied", "ies", "us", "ss", "s"))
    if ending == "sses":
        return word[:-2]
    if ending in ("ied", "ies"):
        return word[:-2] if len(word) > 4 else word[:-1]
    return word[:-1] if ending == "s" and _has_vowel(word[:-2]) else word


def _tense(word: str, first: int) -> str:
    ending = _ending(word, ("eed", "eedly", "ed", "edly", "ing", "ingly"))
    base = word.removesuffix(ending)
    if ending.startswith("eed"):
        return base + "ee" if len(base) >= first else word
    if not ending or not _has_vowel(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base.endswith(DOUBLES):
        return base[:-1]
    return base + "e" if len(base) == first and _ends_short(base) else base


def _derived(word: str, first: int) -> str:
    ending = _ending(word, DERIVED)
    base = word.removesuffix(ending)
    if not ending or len(base) < first:
        return word
    if (ending == "ogi" and not base.endswith("l")) or (ending == "li" and base[-1:] not in BEFORE_LI):
        return word
    return base + DERIVED[ending]


def _shortened(word: str, first: int, second: int) -> str:
    ending = _ending(word, SHORTENED)
    base = word.removesuffix(ending)
    if not ending or len(base) < (second if ending == "ative" else first):
        return word
    return base + SHORTENED[ending]


def _dropped(word: str, second: int) -> str:
    ending = _ending(word, DROPPED)
    base = word.removesuffix(ending)
    if not ending or len(base) < second or (ending == "ion" and base[-1:] not in ("s", "t")):
        return word
    return base


def _last_letter(word: str, first: int, second: int) -> str:
    base = word[:-1]
    if word.endswith("e"):
        return base if len(base) >= second or (len(base) >= first and not _ends_short(base)) else word
    return base if word.endswith("ll") and len(base) >= second else word
