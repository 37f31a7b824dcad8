"""How METEOR 1.5 normalises English text: punctuation stands apart, letters are small."""

from __future__ import annotations

import re
from itertools import pairwise

from saywhere.evaluation.meteor.package import BLANKS

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
        prefixes: lines of words that a full stop does not end a sentence after; those that are marked, before a number.
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
        """Set the full stop at the end of a word apart where it ends a sentence; abbreviations lose theirs."""
        if not word.endswith(".") or not word.strip("."):
            return word
        bare = word[:-1]
        if "." in bare and LETTER.search(bare):
            return word.replace(".", "")
        if bare in self._prefixes or "a" <= after[:1] <= "z" or (bare in self._numeric and "0" <= after[:1] <= "9"):
            return word
        return f"{bare} ."
