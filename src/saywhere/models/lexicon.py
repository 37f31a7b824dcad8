"""The words that a model knows: which it has read and how often, which the noun tree has, and how to spell them.

A phrase is read in the words of each part (:func:`familiar`, :func:`captioned`), and a noun that no part has read as
its kind of thing (:meth:`Lexicon.translate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from math import log10
from typing import Literal

from saywhere.configs.aligner import GroundingConfig
from saywhere.engines.engine import Aligner, DenseCap
from saywhere.models.layout import EMPTY, as_many, count_of, spelt_out
from saywhere.models.nouns import (
    SHADES,
    Noun,
    NounEvidence,
    colour_of,
    end_of_colours,
    known_form,
    noun_tree,
    plural,
    singulars,
)
from saywhere.models.phrase_scores import unknown_words
from saywhere.options import dataclass
from saywhere.text import Vocabulary, tokenize, with_articles

A_PERSON = (["person"], ["a", "person"], ["the", "person"], ["persons"], ["somebody"], ["someone"])
"""Phrases that the aligner reads as "people", see :func:`captioned`."""
SELDOM = 6
"""A word that the text encoder read fewer times has a vector that says nothing (docs/experiments.md)."""
ALIKE, SHORT = 0.8, 3
"""Minimum similarity ratio of two words for a spelling suggestion. Words of at most SHORT letters get none, and the
lengths differ by less than SHORT."""


WITH_PARTS = frozenset({
    "backed", "beaked", "bellied", "billed", "breasted", "chested", "collared", "crested", "crowned", "eared", "edged",
    "eyed", "faced", "footed", "handled", "headed", "horned", "legged", "lidded", "maned", "necked", "nosed", "pawed",
    "rimmed", "roofed", "tailed", "throated", "tipped", "topped", "trimmed", "wheeled", "winged",
})  # fmt: skip
"""Words before which a colour is that of a part: "a green-eyed cat"."""


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words of the parts that answer about phrases.

    Attributes:
        densecap, aligner, nouns: parts of a model; at least one of the first two.
        by: the part that chooses regions.
    """

    densecap: DenseCap | None
    aligner: Aligner | None
    nouns: NounEvidence | None
    by: Literal["densecap", "aligner"]

    @property
    def config(self) -> GroundingConfig:
        """Options of the aligner; the defaults without one."""
        return GroundingConfig() if self.aligner is None else self.aligner.config.grounding

    def read(self, phrase: str) -> str:
        """Return a phrase as it is compared with images: :meth:`translate`, then :func:`in_plain_words`."""
        parts = (self.densecap if self.by == "densecap" else None, self.aligner)
        return in_plain_words(self.translate(phrase), [part.vocabulary for part in parts if part is not None])

    def translate(self, phrase: str) -> str:
        """Return a phrase in words that the parts know, if the noun tree has any: "a truck" for "a lorry".

        That is :func:`spelt_out`, :meth:`NounEvidence.translate`, and the kind in place of a narrower noun that no part
        has read.
        """
        phrase = spelt_out(phrase)
        if self.nouns is None:
            return phrase
        phrase = self.nouns.translate(phrase)
        found = noun_tree().narrower(phrase)
        parts = (self.densecap if self.by == "densecap" else None, self.aligner)
        known = [part.vocabulary for part in parts if part is not None]
        if found is None or any(usual_form(found[0], words) in words for words in known):
            return phrase
        return noun_tree().widened(phrase) or phrase

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the text encoder that decides about presence."""
        return (self.aligner or self.densecap).vocabulary  # pyright: ignore[reportOptionalMemberAccess]

    def is_rare(self, phrase: str) -> bool:
        """Return whether the phrase's noun was rare in the text encoder's training data."""
        counts, phrase = self.vocabulary.counts, self.translate(phrase)
        return any(counts.get(word, 0) < self.config.rare for word in noun_words(familiar(phrase, self.vocabulary)))

    def class_noun(self, phrase: str) -> Noun | None:
        """Return the noun of a phrase if the noun classifier can detect it, else None."""
        noun = None if self.nouns is None else self.nouns.lookup(self.translate(phrase))
        return noun if noun is not None and self.nouns is not None and self.nouns.tells(noun) else None

    def needs_classes(self, phrase: str) -> bool:
        """Return whether the noun classifier knows the phrase's noun and the text encoder does not.

        The text encoder also does not know a rare role ("a chef"): it takes it for any person.
        """
        phrase = self.translate(phrase)
        words, role = noun_words(familiar(phrase, self.vocabulary)), noun_tree().share(phrase) < 1
        unread = any(word not in self.vocabulary for word in words) or (role and self.is_rare(phrase))
        return unread and self.class_noun(phrase) is not None

    def is_unknown(self, phrase: str) -> bool:
        """Return whether none of the parts in use knows the noun of a phrase."""
        return not self._has_read(phrase) and self.class_noun(phrase) is None

    def is_unread(self, phrase: str) -> bool:
        """Return whether a phrase is unknown, or the parts read its noun too seldom and the tree has no kind for it."""
        if noun_tree().find_kind(self.translate(phrase)) is not None:
            return self.is_unknown(phrase)
        return not self._has_read(phrase, self.config.least_seen)

    def _has_read(self, phrase: str, least: int = 0) -> bool:
        """Return whether a part in use read a word of a phrase's noun in training, ``least`` times or more.

        That the dense captioner was fine-tuned to say a word does not tell whether an image shows it.
        """
        own = () if self.densecap is None or self.aligner is None else self.densecap.config.own_words
        asked = ((self.densecap if self.by == "densecap" else None, own), (self.aligner, ()))
        return any(
            (form := usual_form(word, part.vocabulary)) in part.vocabulary
            and form not in taught
            and part.vocabulary.counts[form] >= least
            for part, taught in asked
            if part is not None
            for word in noun_words(self.translate(phrase))
        )

    def knows_none(self, phrases: Iterable[str]) -> bool:
        """Return whether all phrases are unknown, such as those in another language."""
        return all(map(self.is_unknown, phrases))

    def unknown(self, phrases: Sequence[str]) -> dict[str, str | None]:
        """Return the words outside the vocabulary that are also no nouns of the classifier, with suggestions.

        Words such as "my", which name nothing, are left out, and so are shades of colours, which count as these.

        A suggestion is a known word with the same first letter and similar spelling ("pizza" for "piza"), or None.
        Nouns of the tree and frequent words are slightly preferred.
        """
        part = self.densecap if self.by == "densecap" else self.aligner
        assert part is not None
        found: dict[str, str | None] = {}
        for phrase in map(self.translate, phrases):
            words = tokenize(phrase)
            kind = noun_tree().widened(phrase) if not self.is_unread(phrase) else None
            told = EMPTY.union(noun_words(phrase) if self.class_noun(kind or phrase) is not None else ())
            told |= set(words).difference(tokenize(kind)) if kind else EMPTY
            told = told.union(words[place] for place in asked_colours(phrase))
            unknown = (
                *unknown_words(part.vocabulary, familiar(phrase, part.vocabulary)),
                *(noun_words(phrase) if self.is_unread(phrase) else ()),
            )  # a user's own words, too
            found |= {word: self._spelt_alike(word, part.vocabulary) for word in unknown if word not in told}
        return found

    def judged_as(self, phrases: Iterable[str]) -> tuple[str, ...]:
        """Return the nouns that are judged as their kind of thing, with the kind: ``sparrow as bird``.

        A user's own names are too, such as ``trash panda as raccoon``.
        """
        known = [phrase for phrase in phrases if not self.is_unread(phrase)]
        own = [None if self.nouns is None else self.nouns.named(phrase) for phrase in known]
        found = (name or noun_tree().narrower(phrase) for phrase, name in zip(known, own, strict=True))
        pairs = dict(pair for pair in found if pair is not None and self.class_noun(pair[1]) is not None)
        return tuple(f"{word} as {kind}" for word, kind in pairs.items())

    def _spelt_alike(self, word: str, vocabulary: Vocabulary) -> str | None:
        if known_form(word, self.vocabulary) in self.vocabulary:  # right, and hardly read
            return None
        names = {one for name, _ in noun_tree().names() for one in name.split()}
        known = (one for one in names | {*vocabulary.counts} if abs(len(one) - len(word)) < SHORT)
        begins = {one for one in known if one[0] == word[0]}

        def likely(one: str) -> float:
            often = 0.03 * log10(1 + vocabulary.counts.get(one, 0))
            return SequenceMatcher(None, one, word).ratio() + often + 0.05 * (one in names)

        close = get_close_matches(word, begins, 5, cutoff=ALIKE)
        meant = [one for one in close if one != word and len(word) > SHORT and not self.is_unknown(one)]
        forms = (*singulars(word), plural(word))  # "labradors" is right, and labradors are as unknown as a labrador
        meant = [one for one in meant if one not in forms or not self.is_unread(one)]
        return max(meant, key=likely, default=None)


def in_plain_words(phrase: str, vocabularies: Sequence[Vocabulary]) -> str:
    """Return a phrase as training phrases begin: "a bus" for "my bus" and "an bus", "bus" for "ein bus".

    An unknown first word is left out unless it belongs to the noun: neither that nor "my" makes a difference to what is
    shown, but to the decoder's probabilities. "The" stays, because it is what one says of water and sky.

    Example:
        >>> in_plain_words("my foo buses", [Vocabulary.build(["a red bus", "buses"])])
        'foo buses'
    """
    words = tokenize(phrase)
    head = noun_tree().head(words)
    if not 0 < head.start < head.stop or count_of(phrase) > 1:
        return phrase
    if words[0] in MEANT:
        words[: 2 if words[1:2] == ["own"] else 1] = [] if head.plural else ["a"]
    elif words[0] not in ("a", "an") and not any(known_form(words[0], each) in each for each in vocabularies):
        words = words if colour_of(words, 0) or words[1] == "of" else words[1:]
    return with_articles(" ".join(words))


MEANT = frozenset({"this", "that", "these", "those", "my", "your", "our"})
"""Words before a noun that say no more than "a"."""


def did_you_mean(unknown: Mapping[str, str | None]) -> str:
    """Return unknown words with their spelling suggestions, as a text for users.

    Example:
        >>> did_you_mean({"un": None, "piza": "pizza"})
        'un, piza (did you mean pizza?)'
    """
    return ", ".join(f"{word} (did you mean {other}?)" if other else word for word, other in unknown.items())


def knows_none(unknown: Mapping[str, str | None]) -> str:
    """Return the message for a text of which the model knows no word."""
    return f"the model knows none of these words: {did_you_mean(unknown)}; it reads English"


def familiar(phrase: str, vocabulary: Vocabulary) -> str:
    """Replace each unknown word of a phrase by its singular or plural if the vocabulary has that.

    A number above ten, or one that is unknown, becomes "many".
    """
    phrase = as_many(phrase, vocabulary)
    if all(word in vocabulary for word in tokenize(phrase)):
        return phrase
    return " ".join(known_form(word, vocabulary) for word in tokenize(phrase))


def usual_form(word: str, vocabulary: Vocabulary) -> str:
    """Return :func:`known_form`, or the singular or plural of a word that occurs less than :data:`SELDOM` if that does
    not: the text encoder has read "eggs", but hardly "egg"."""
    form, counts = known_form(word, vocabulary), vocabulary.counts
    if counts.get(form, SELDOM) >= SELDOM:
        return form
    return max((form, *singulars(form), plural(form)), key=lambda each: counts.get(each, 0) >= SELDOM)


def captioned(phrase: str, vocabulary: Vocabulary) -> str:
    """Return a phrase in the words of captions, which the aligner was trained on: "a person" alone becomes "people".

    A noun is read in its more usual form, see :func:`usual_form`. Captions say "a person" for somebody who is hardly
    visible, so the aligner finds that this word fits any scene.
    """
    if "people" in vocabulary and tokenize(phrase) in A_PERSON:
        return "people"
    words = tokenize(familiar(phrase, vocabulary))
    head = noun_tree().head(words)
    nouns = (usual_form(word, vocabulary) for word in words[head.start : head.stop])
    return " ".join([*words[: head.start], *nouns, *words[head.stop :]])


def noun_words(phrase: str) -> tuple[str, ...]:
    """Return the words of the noun of a phrase."""
    words = tokenize(phrase)
    head = noun_tree().head(words)
    return tuple(words[head.start : head.stop])


def asked_colours(phrase: str) -> dict[int, str]:
    """Return the colours that a phrase gives its noun, by the index of the word; none for people, who wear others.

    Colours of its parts, or of what it belongs to, are left out.

    Example:
        >>> asked_colours("two black and golden cars"), asked_colours("a black man")
        ({1: 'black', 3: 'gold'}, {})
        >>> asked_colours("a black faced sheep"), asked_colours("a brown dog's maroon collar")
        ({}, {3: 'red'})
    """
    words, tree = tokenize(phrase), noun_tree()
    head = tree.head(words)
    if head.noun is not None and any(tree.nouns[row].name == "person" for row in head.noun.ancestors):
        return {}
    owners = (place + 1 for place in range(head.start) if words[place] == "of" or words[place].endswith("'s"))
    found = dict[int, str]()
    for place in range(max(owners, default=0), head.start):
        following = [*words, ""][max(end_of_colours(words, place), place + 1)]
        colour = colour_of(words, place)
        if colour is None and colour_of(words, place + 1) is None:  # the latter is the colour in "maroon red"
            colour = SHADES.get(words[place])
        if colour is not None and following not in WITH_PARTS:
            found[place] = colour
    return found
