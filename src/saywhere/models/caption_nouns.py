"""The nouns of captions against what the noun classifier sees: corrected, refused, or given up (docs/nouns.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from saywhere.engines.engine import Captioner, DenseCap
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.nouns import (
    THIN,
    Head,
    Noun,
    NounEvidence,
    find_heads,
    find_nouns,
    related,
    repeated,
    with_noun,
    without_repetition,
)
from saywhere.text import tokenize, without_stutter

FEW, REGIONS = 10, 40
"""Proposals per image to look at: first FEW, then REGIONS if the first do not show everything the sentence names."""
LEAST_REGION = 0.2
"""Minimum uncalibrated probability that a region contains something; other regions are left out."""
OF_PEOPLE = (
    "biker", "bikers", "climber", "climbers", "couple", "couples", "crowd", "crowds", "families", "family", "female",
    "females", "he", "her", "him", "his", "human", "humans", "male", "males", "pitcher", "pitchers", "she", "team",
    "teams", "their", "them", "they",
)  # fmt: skip
"""Words for people that are not in the person branch of the noun tree; some also describe other things."""
UNSEEN = 0.1
"""A thing is unseen if no region gives it this probability."""
LEAST_SUPPORT = -3.0
"""Minimum support of an unseen noun; a lower value would overstate what the classifier knows."""
SURE = 0.6
"""A thing that the caption does not name may be inserted if some region's probability for it is higher than this."""
LISTED = 2
"""Number of things listed instead of a sentence of which nothing is seen."""


class NounChecker:
    """Check the nouns of sentences against what their images show; each image is looked at once for all questions."""

    def __init__(self, detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding]) -> None:
        self._detector, self._classes, self._encodings = detector, classes, encodings
        self._looked: dict[int, np.ndarray] = {}

    @cached_property
    def _first(self) -> list[np.ndarray]:
        """Posteriors of the first :data:`FEW` proposals of each image."""
        return see(self._detector, self._classes, self._encodings, FEW)

    def _more(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return the posteriors of the first :data:`REGIONS` proposals of the images ``rows``."""
        new = [row for row in rows if row not in self._looked]
        if new:
            seen = see(self._detector, self._classes, [self._encodings[row] for row in new], REGIONS)
            self._looked.update(zip(new, seen, strict=True))
        return [self._looked[row] for row in rows]

    def refuse_people(self, captioner: Captioner) -> np.ndarray | None:
        """Return a mask ``(N, V)`` of forbidden words: words for people, in images that show nobody.

        An image shows somebody if one of its first :data:`REGIONS` regions shows a person with a probability of at
        least ``people_threshold``. None if no image forbids any word.
        """
        least, person = captioner.config.people_threshold, self._classes.tree.named("person")
        if not least or person is None:
            return None
        empty = np.array([shown(self._classes, posterior, person) < least for posterior in self._first], bool)
        rows = np.flatnonzero(empty).tolist()
        empty[rows] = [shown(self._classes, posterior, person) < least for posterior in self._more(rows)]
        named = [self._classes.tree.named(word) for word in captioner.vocabulary.tokens]
        of_people = [self._classes.tree.is_person(noun) for noun in named]
        words = np.array(of_people) | np.isin(captioner.vocabulary.tokens, OF_PEOPLE)
        return empty[:, None] & words if empty.any() else None

    def support(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return how well each image supports the nouns of its sentences, see :func:`support`."""
        return [support(self._classes, posterior, own) for posterior, own in zip(self._first, sentences, strict=True)]

    def correct(self, sentences: Sequence[str]) -> list[str]:
        """Correct the sentence of each image by :func:`correct`, with the first :data:`REGIONS` regions of the image.

        Repetitions are removed: of things, see :func:`saywhere.models.nouns.without_repetition`, and of adjacent words.
        Often the first :data:`FEW` regions show everything the sentence names, and the others are not looked at.
        """
        corrected, classes = list(sentences), self._classes
        doubtful = [i for i, shown in enumerate(self._first) if not all_seen(classes, shown, sentences[i])]
        for i, posterior in zip(doubtful, self._more(doubtful), strict=True):
            corrected[i] = correct(classes, posterior, sentences[i])
        return [without_repetition(without_stutter(sentence), classes.tree) for sentence in corrected]

    def unlikely_subjects(self, captioner: Captioner, embeddings: np.ndarray, sentences: Sequence[str]) -> list[int]:
        """Return the images whose sentence begins with a noun that neither n-grams nor regions expect.

        Its n-gram probability is below ``ngrams.least_subject``, of a word for people that of each such word, and no
        region surely shows the thing or one that is related. A noun that is no n-gram has a probability of 0.
        ``embeddings`` are ``(N, F)``.
        """
        ngrams, least, tree = captioner.ngrams, captioner.config.ngrams.least_subject, self._classes.tree
        if ngrams is None or not least:
            return []
        encode, likely = captioner.vocabulary.encode, ngrams.probabilities(embeddings)
        heads = [tree.head(tokenize(sentence)) for sentence in sentences]
        last = [
            " ".join(tokenize(text)[head.start : head.stop][-1:]) for head, text in zip(heads, sentences, strict=True)
        ]
        known = [ngrams.rows.get(tuple(encode(word))) for word in last]
        rows = [i for i, row in enumerate(known) if row is None or likely[i, row[0]] < least]
        things = [sure_things(self._classes, posterior) for posterior in self._more(rows)]
        tokens = captioner.vocabulary.tokens
        common = [(row, tree.named(tokens[key[0]])) for key, (row, _) in ngrams.rows.items() if rows and len(key) == 1]
        people = [row for row, noun in common if self._classes.tree.is_person(noun)]
        strange = list[int]()
        for i, seen in zip(rows, things, strict=True):
            noun = heads[i].noun
            shown = noun is not None and any(related(noun, thing) for thing in seen)
            person = self._classes.tree.is_person(noun) and (likely[i, people] >= least).any()
            if not (shown or person):
                strange.append(i)
        return strange

    def repeats(self, sentences: Sequence[str]) -> np.ndarray:
        """Return 1 for each sentence that names a thing twice, else 0; see :func:`saywhere.models.nouns.repeated`."""
        tree = self._classes.tree
        return np.array([repeated(tokenize(sentence), tree) is not None for sentence in sentences], np.float32)


def see(
    detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding], limit: int = REGIONS
) -> list[np.ndarray]:
    """Return the noun posteriors ``(N, K)`` of each image's regions, over the K leaves of the noun tree.

    Thin regions (:data:`saywhere.models.nouns.THIN`) are left out, because the classifier mistakes them for people.
    """
    settings, coder = detector.config.proposals, detector.box_coder
    proposals = [propose_boxes(encoding, settings, coder, limit)[0] for encoding in encodings]
    heads = detector.start.region_head([e.maps for e in encodings], proposals)
    boxes, embeddings = list[np.ndarray](), list[np.ndarray]()
    for encoding, proposed, head in zip(encodings, proposals, heads, strict=True):
        in_image = encoding.to_image(proposed)
        kept = np.asarray(head.logits) > np.log(LEAST_REGION / (1 - LEAST_REGION))
        sides = (in_image[:, 2:] - in_image[:, :2]) / (encoding.width, encoding.height)
        kept &= sides.min(axis=1) >= THIN
        boxes.append(in_image[kept])
        embeddings.append(np.asarray(head.embeddings)[kept])
    return classes.posteriors(encodings, boxes, embeddings)


def correct(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> str:
    """Replace the nouns of a caption that the image does not show, as far as the classifier can tell.

    An unseen noun is replaced by the most probable thing that is seen, is of the same sort (a cat for a dog: both are
    animals) and is not named yet. Words for people stay. If the image then shows nothing that the sentence names, the
    sentence is about something else, and the most probable things are listed instead. ``posterior`` is that of the
    image's regions, see :func:`see`.
    """
    words = tokenize(sentence)
    heads = find_heads(words, classes.tree)
    things = sure_things(classes, posterior)
    if not heads or not things:
        return sentence
    nouns = [head.noun for head in heads if head.noun is not None]
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    for number, head in reversed(list(enumerate(heads))):
        if seen[number] or classes.tree.is_person(nouns[number]):
            continue
        new = next((noun for noun in things if _may_replace(nouns[number], noun, nouns)), None)
        if new is not None:
            before = max(head.start - 1, 0)
            moved = Head(head.start - before, head.stop - before, head.noun, head.plural)
            words[before : head.stop] = with_noun(moved, words[before : head.stop], new).split()
            nouns[number], seen[number] = new, True
    return " ".join(words) if any(seen) else listed(things)


def all_seen(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> bool:
    """Return whether regions show everything that a sentence names, so that :func:`correct` would not change it."""
    nouns = find_nouns(sentence, classes.tree)
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    unseen = [noun for noun, there in zip(nouns, seen, strict=True) if not there]
    return not nouns or (any(seen) and all(classes.tree.is_person(noun) for noun in unseen))


def is_seen(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> bool:
    """Return whether some region shows what a noun names, see :func:`shown`."""
    return shown(classes, posterior, noun) >= UNSEEN


def shown(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> float:
    """Return the highest probability over regions that a region shows the noun; for words for people, any person.

    1 for a kind that the classifier was not trained on, because it cannot tell.
    """
    person = classes.tree.named("person")
    asked = person if person is not None and classes.tree.is_person(noun) else noun
    if asked.sort == "kind" and asked not in classes.kinds:
        return 1.0
    return float(classes.probability(posterior, asked).max(initial=0.0))


def support(classes: NounEvidence, posterior: np.ndarray, sentences: Sequence[str]) -> np.ndarray:
    """Return the support of each of S sentences by an image: the sum over its nouns of log(p / :data:`UNSEEN`).

    p is that of :func:`shown`. A seen noun adds 0; an unseen one adds at least :data:`LEAST_SUPPORT`.
    """
    named = [find_nouns(sentence, classes.tree) for sentence in sentences]
    likely = {noun.row: shown(classes, posterior, noun) for noun in {n.row: n for ns in named for n in ns}.values()}
    least = UNSEEN * np.exp(LEAST_SUPPORT)
    each = {row: np.log(min(max(p, least), UNSEEN) / UNSEEN) for row, p in likely.items()}
    return np.array([sum(each[noun.row] for noun in nouns) for nouns in named], np.float32)


def sure_things(classes: NounEvidence, posterior: np.ndarray) -> list[Noun]:
    """Return the kinds and classes that regions show with a probability above :data:`SURE`, most probable first."""
    if not len(posterior):
        return []
    found = [one for one in classes.name(posterior) if one[1] > SURE]
    return list(dict.fromkeys(noun for noun, _ in sorted(found, key=lambda one: -one[1])))


def listed(things: Sequence[Noun]) -> str:
    """Return the first few things as a phrase, none of them a kind of another: ``a banana and an orange``."""
    kept = list[Noun]()
    for noun in things:
        if len(kept) < LISTED and not any(related(noun, other) for other in kept):
            kept.append(noun)
    return " and ".join(with_noun(Head(0, 0, None, False), (), noun) for noun in kept)


def _may_replace(old: Noun, new: Noun, said: Sequence[Noun]) -> bool:
    alike = not old.ancestors.keys().isdisjoint(new.ancestors)
    return alike and not any(related(new, noun) for noun in said)
