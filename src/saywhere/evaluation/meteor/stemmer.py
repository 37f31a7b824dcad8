"""The stems of English words by Porter's second algorithm ("English" of Snowball), as it was in 2015.

Porter, M. F.: The English (Porter2) stemming algorithm, 2002. Later versions of Snowball differ in some words.
"""

from __future__ import annotations

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
PREFIXES = ("gener", "commun", "arsen")  # the first region begins after these
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
    """Return the stem of a word in lower case."""
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
    """Return what follows the first consonant after a vowel; the end of the word if there is none."""
    for i in range(start + 1, len(word)):
        if word[i] not in VOWELS and word[i - 1] in VOWELS:
            return i + 1
    return len(word)


def _ending(word: str, endings: tuple[str, ...] | dict[str, str]) -> str:
    return max((e for e in endings if word.endswith(e)), key=len, default="")


def _has_vowel(text: str) -> bool:
    return any(letter in VOWELS for letter in text)


def _ends_short(word: str) -> bool:
    """Whether the word ends in a short syllable."""
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
